"""Writing a model in the format of another family, with proof."""
