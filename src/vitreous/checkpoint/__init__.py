"""The self-describing model file, and other families' formats."""
