"""Watched processes: decoding with limits on time and memory, so that a hostile file fails alone.

Read `limits.py` (the limits and how the system enforces them), `worker.py` (the process that decodes), `child.py` (its
handle and the message format) and `pool.py` (the processes kept by this process).
"""
