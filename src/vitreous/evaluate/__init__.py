"""Pure functions on logits, labels and features."""
