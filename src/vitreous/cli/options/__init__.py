"""Options of the verbs.

`parser` normalises and parses arguments, `help` prints help by topic, and `config_files` reads `--config`. `conflicts`
rejects options that contradict each other. `inputs` expands images, `model` loads a trained model, and `outputs` checks
and writes the output files.
"""
