"""What a run will cost, measured before it starts."""
