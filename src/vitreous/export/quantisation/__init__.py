"""Static int8 quantisation of OpenVINO and ONNX graphs, with control of what it costs in accuracy.

Read :mod:`quantise` first, it tells the story. :mod:`calibration` has NNCF quantise a graph in each of the tried ways,
:mod:`layers` finds the layers of a graph and sets some back to float, :mod:`folding` removes the factors that
SmoothQuant leaves, and :mod:`running` runs graphs: outputs, accuracy and speed. ONNX is quantised as an OpenVINO graph;
:mod:`onnx_graph` writes the result back, and :mod:`onnx_running` runs it. :mod:`files` is the step of an export.
Nothing here reads models or images.
"""
