"""How a training batch varies."""
