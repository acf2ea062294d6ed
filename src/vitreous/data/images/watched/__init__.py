"""Processes that decode what nobody can vouch for, each with limits: what hangs, crashes or swells costs one file.

:mod:`.limits` has the limits and how the system keeps them, :mod:`.worker` the process, :mod:`.child` its handle, and
:mod:`.pool` those of this process.
"""
