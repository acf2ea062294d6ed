"""What a run saves in order to resume, and what happens when a step fails.

Read `state.py` first: its `RunState` lists everything that is saved. `saving.py` decides when that state is written and
which of the two kept checkpoints a resume reads. `signals.py` lets the current step finish and save after Ctrl-C or
SIGTERM. `failures.py` decides whether a failed training retries with smaller parts or ends. `non_finite.py` stops a run
at the first NaN or infinite loss or gradient; `replay.py` repeats that step and names the module where it begins.
The file format is in `vitreous.runs.state_file`.
"""
