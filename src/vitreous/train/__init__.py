"""Training. Begin with `run.py`, which tells the story of a run from top to bottom.

`config.py` is the configuration; `setup.py` opens the data and builds loaders and model; `assembly.py` builds the
Lightning module (`module.py`, the training step, with `optim.py` and the clock in `progress.py`), the callbacks
(`callbacks.py`, where `preference.py` says which scores are better) and the Trainer (`trainer.py`, which `silence.py`
keeps quiet). `results.py` writes the model file and the report, `finish.py` ends the run, `console.py` prints its lines
and `advice.py` its advice. `recipe_file.py` writes recipe.yaml, `out_of_memory.py` recognises errors that more
micro-batches solve. Packages: `resume/` checkpoints, signals and failures; `finetune/` training from a pretrained
model; `planning/` the cost of a run.

`vitreous.train(data, **options)` is the function of the same name: see `help(vitreous.api.train)`.
"""
