"""Export to files that run without this package.

Read :mod:`run` first (export and verification), then :mod:`whole` (the exported computation and its description).
:mod:`onnx_file` and :mod:`torch_file` each write and run one format.
"""
