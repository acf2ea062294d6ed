"""Where labelled images come from, and how they are split. In reading order, from the outside in.

- opening.py: :func:`open_source` turns any source into splits of labelled images.
- image_data.py: what that is, :class:`ImageData`.
- locating.py: what a source is, before anything of it is opened.
- listing.py: what all sources have in common: entries of path, label and split; the list of exclusions.
- folders.py, manifest.py, known.py: one kind of source each. To add a known dataset, add a line to `known.KNOWN`.
- unlabelled.py: images whose labels do not matter, alone or beside labelled ones.
- finding.py: the image files under a folder.
- scan.py: reads every file once: content hash, size, whether it can be decoded.
- split.py: which images are held out, decided by content.
- urls.py: tells addresses of stores from other web addresses, which are refused.
"""
