"""What pretraining learns from, one file for each method: masked patches, or views that should agree.

Read `base.py` first: an objective turns a batch into one or several views, and views into a loss. `mae.py` and `mpp.py`
reconstruct masked patches; `visreg.py`, `lejepa.py` and `dino.py` make the views of an image (`views.py`) agree. The
first two of these share `invariance.py`. `spread.py` says how many dimensions features use.
"""
