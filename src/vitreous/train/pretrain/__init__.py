"""Training without labels. The result is a backbone, a model file without a head.

Read `base.py` first: an objective turns a batch into one or several views, and views into a loss. Each method is one
file: `mae.py` and `mpp.py` reconstruct masked patches; `visreg.py`, `lejepa.py` and `dino.py` make the views of an
image (`views.py`) agree. To add a method, write such a file, and add one line to :data:`METHODS` and one field to
:class:`~vitreous.train.pretrain.config.PretrainConfig`.

`run.py` is the course of a run, `setup.py` prepares it, `module.py` is its Lightning module, `monitor.py` measures
features and recognises a collapse, and `writing.py` writes the model file and the report.
"""

__all__ = ["METHODS"]

METHODS = {
    "mae": "vitreous.train.pretrain.mae:Mae",
    "mpp": "vitreous.train.pretrain.mpp:Mpp",
    "visreg": "vitreous.train.pretrain.visreg:VisReg",
    "lejepa": "vitreous.train.pretrain.lejepa:LeJepa",
    "dino": "vitreous.train.pretrain.dino:Dino",
}
"""The class of each method's objective, by the value of the option `method`, which also names its group of options."""
