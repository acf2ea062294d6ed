"""A plain model made fast, with the same state dict."""
