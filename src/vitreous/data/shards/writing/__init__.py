"""From any source to shards.

- known.py: known datasets that are decoded already, as PNG files.
- planning.py: which image goes into which shard, decided by content.
- destination.py, remote_destination.py: a folder or a store, in which an interrupted job is found again.
- writer.py: :func:`~vitreous.data.shards.writing.writer.write_shards`, which does it all.
"""
