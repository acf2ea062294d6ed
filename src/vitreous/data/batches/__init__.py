"""How images become batches: sampler, dataset, data module."""
