"""What computes a model's outputs: PyTorch, or an inference engine that runs a graph converted from it."""
