"""Models as files that run without this package: from 8-bit images to probabilities, logits and features."""
