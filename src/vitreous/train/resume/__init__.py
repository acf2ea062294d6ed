"""What a run saves in order to resume, and what happens when a step fails.

Read `state.py` first: the fields of its `RunState` are everything that is saved.

- `checkpoint.py` decides when a state is written.
- `saving.py` writes it, and decides which of the two latest checkpoints a resume reads.
- `signals.py` lets the current step finish and save after Ctrl-C or SIGTERM.
- `failures.py` decides whether training retries with smaller micro-batches after an error, or ends.
- `non_finite.py` stops a run at the first loss or gradient that is NaN or infinite; `replay.py` writes that step to a
  file and reads it, and `repetition.py` repeats it and names the module where the problem begins.

The file format is in `vitreous.runs.state_file`.
"""
