"""Training that starts from a trained model."""
