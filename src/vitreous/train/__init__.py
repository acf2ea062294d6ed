"""Training. Begin with `run.py`, which tells the story of a run from top to bottom.

`config.py` is the configuration; `setup.py` opens the data and builds loaders and model; `assembly.py` builds what
trains them, which is in `loop/`: Lightning module, callbacks and Trainer. `preference.py` says which scores are better.
`results.py` writes the model file and the report, `finish.py` ends the run, `console.py` prints its lines, `advice.py`
its advice, and `recipe_file.py` writes recipe.yaml. Packages: `loop/` the steps; `resume/` checkpoints, signals and
failures; `finetune/` training from a pretrained model; `pretrain/` without labels; `auxiliary/` beside classification;
`distil/` with a teacher; `multilabel/` several labels; `planning/` the cost of a run; `scale/` several processes.

`vitreous.train(data, **options)` is the function of the same name: see `help(vitreous.api.train)`.
"""
