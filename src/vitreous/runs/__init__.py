"""A run's folder on disk: who may write there, and the files that a resume reads."""
