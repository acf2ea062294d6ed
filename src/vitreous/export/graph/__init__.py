"""The graph that is exported: from uint8 images of any size to calibrated probabilities, decisions and features.

Read `core.py` first: everything after the resize, traced once from the PyTorch model. The resize in front of it is
`onnx_resize.py` and `openvino_resize.py`, which build it of their format's operators, and `torch_resize.py`; all three
take their sizes from `geometry.py`. `tracing.py` turns a module into a traced program, for exported files and for the
engines' caches.
"""
