"""Training without labels. The result is a backbone, a model file without a head.

`objectives/` has one file for each method. To add a method, write such a file, and add one line to :data:`METHODS` and
one field to :class:`~vitreous.train.pretrain.config.PretrainConfig`.

`run.py` is the course of a run, `setup.py` prepares it, `module.py` is its Lightning module, `monitor.py` measures
features and recognises a collapse, and `writing.py` writes the model file and the report.
"""

__all__ = ["METHODS"]

METHODS = {
    "mae": "vitreous.train.pretrain.objectives.mae:Mae",
    "mpp": "vitreous.train.pretrain.objectives.mpp:Mpp",
    "visreg": "vitreous.train.pretrain.objectives.visreg:VisReg",
    "lejepa": "vitreous.train.pretrain.objectives.lejepa:LeJepa",
    "dino": "vitreous.train.pretrain.objectives.dino:Dino",
}
"""The class of each method's objective, by the value of the option `method`, which also names its group of options."""
