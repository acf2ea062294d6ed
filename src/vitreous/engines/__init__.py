"""What computes a model's outputs: PyTorch, or an inference engine that runs a graph converted from the model.

Read `base.py` first: it says what an engine is. `choose.py` decides which engine computes; `opening.py` opens it, and
`check.py` compares it with PyTorch in float32. The engines are `torch_engine.py`, `openvino_engine.py` and
`onnxruntime_engine.py`. `cache.py` stores converted graphs, in files that `private.py` keeps from other users.
`names.py` has the names of engines and precisions for the command line, without torch.
"""
