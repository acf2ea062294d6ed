"""
What a size costs
=================

Parameters, operations and memory of every size, counted without allocating a weight. Halving the patch size leaves
the parameters as they are, and makes four times as many tokens.
"""

import matplotlib.pyplot as plt

from vitreous.accelerate.cost import cost
from vitreous.model.sizes import config_of

names = ["Ti/16", "S/32", "S/16", "S/8", "B/32", "B/16", "L/32", "L/16", "H/14"]
costs = {name: cost(config_of(name, num_classes=1000)) for name in names}
assert costs["B/16"].parameters == 86_567_656

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
for name, each in costs.items():
    left.plot(each.parameters / 1e6, each.flops / 1e9, "o", color="C0")
    left.annotate(name, (each.parameters / 1e6, each.flops / 1e9), xytext=(4, 4), textcoords="offset points")
    right.plot(each.tokens, each.activation_bytes / 2**20, "o", color="C1")
    right.annotate(name, (each.tokens, each.activation_bytes / 2**20), xytext=(4, 4), textcoords="offset points")
left.set(title="Operations of an image", xlabel="parameters, million", ylabel="GFLOPs", xscale="log", yscale="log")
right.set(title="Memory of training", xlabel="tokens", ylabel="MiB an image", xscale="log", yscale="log")
figure.tight_layout()
