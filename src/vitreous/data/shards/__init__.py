"""Images packed into large files: a disk and a store read a few large files faster than millions of small ones.

- index.py: the index of a folder of shards, checked when it is read.
- tar.py: the files themselves, tars in the convention of WebDataset.
- listing.py: the images of shards, with an index or without, as entries for :mod:`vitreous.data.sources`.
- local.py: where the files lie, and how bytes of them are read.
- planning.py, writing.py, destination.py, known.py: from any source to shards.
"""
