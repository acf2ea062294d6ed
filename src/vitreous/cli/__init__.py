"""The command line, in the order to read it.

- `main`: dispatches to a verb and turns errors into exit codes.
- `verbs/`: one module per verb, imported only when it is called. Each parses its arguments, does the work through the
  library, and prints. Start with `verbs/train.py`.
- `options/`: the argument parser, options shared by several verbs, and the checks of their combinations.
- `work/`: the steps of evaluate, probe and audit between options and output.
- `output/`: tables, progress and files of predictions and features.
"""
