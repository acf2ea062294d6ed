"""Training: configuration, optimiser, the thin Lightning module, and the story of a run."""
