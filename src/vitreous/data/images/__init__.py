"""From one image file, possibly untrusted, to 8-bit RGB pixels in bounded time and memory.

Read in this order:

- `reading.py`: the entry points; `inputs.py`: the types of image that `predict` accepts.
- `formats.py`: the supported formats and their limits; `headers.py`: what a file's header says, before any decoding.
- `decoding.py`: bytes to pixels; `exif.py`: the orientation tag.
- `watched/`: decoder processes with limits on time and memory, for files that may be expensive to decode.
- `content.py` and `memory_budget.py`: how long a file's bytes are held, and how much all threads hold together.
"""
