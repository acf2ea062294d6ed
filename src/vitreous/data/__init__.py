"""From labelled images to batches on the device.

In reading order:

- config.py: the options of everything below, as dataclasses that import no torch.
- sources/: known datasets, folders and manifests become labelled splits.
- shards/: images packed into large files, on a disk or in a store; written, indexed and read by offset.
- images/: a file, however people have it, becomes an RGB image, safely.
- preprocess.py: the one evaluation pipeline; an RGB image becomes pixels of the model's size, normalised.
- batches/: the path of a batch, from file to tensor; start with the description in its `__init__.py`.
- augment/: augmentation of training batches on the device.
- corruptions/: corrupted and shifted test images, to measure robustness.
- rng.py: random numbers as a function of (seed, epoch, step).
"""
