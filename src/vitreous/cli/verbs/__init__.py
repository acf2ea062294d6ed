"""One module per verb, with ``run(argv) -> exit code``.

`train` resolves recipe, --config files and options to a configuration; `plan` and `finetune` build on it. The others
stand alone. To add a verb, write its module, and add its name to ``_NAMES`` and a line to ``HELP`` in
:mod:`vitreous.cli.main`.
"""
