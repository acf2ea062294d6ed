"""Verification of a written file: it is run by its runtime, and compared with PyTorch in float32.

Read `verify.py` first. `samples.py` has the images, `reference.py` what the outputs should be, `bounds.py` by how much
they may differ, and `layers.py` finds the first layer that differs once a comparison has failed.
"""
