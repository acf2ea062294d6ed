"""The model alone: torch and nothing of training, files or the web."""
