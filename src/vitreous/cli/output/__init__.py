"""Output of the verbs.

`terminal` prints tables, remarks and progress bars, `notebook` shows progress in Jupyter, and `wrapping` fits text to
the terminal. `predictions` and `features` write result files.
"""
