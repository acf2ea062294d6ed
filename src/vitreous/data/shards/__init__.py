"""Images packed into large files: a disk and a store read a few large files faster than millions of small ones.

- index.py: the index of a folder of shards, checked when it is read.
- tar.py: the files themselves, tars in the convention of WebDataset.
- parquet.py: Parquet files as Hugging Face's datasets have them.
- listing.py: the images of shards, with an index or without, as entries for :mod:`vitreous.data.sources`.
- local.py, reader.py: files of this machine, and how bytes of them are read.
- remote.py, store.py, cache.py: the same for a store such as S3, with a cache.
- writing/: from any source to shards.
"""
