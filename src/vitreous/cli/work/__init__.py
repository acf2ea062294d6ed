"""Work of the longer verbs between their options and their output.

`evaluating/` belongs to evaluate, calibrate and probe, and `inspecting/` to inspect. Of the files here, `training`
belongs to train, finetune and pretrain, `export_check` and `int8_step` to export, `probing` to probe, `suspects` to
audit, `selecting` to select, `pretrained_models` to models, and `diagnosis` to doctor.
"""
