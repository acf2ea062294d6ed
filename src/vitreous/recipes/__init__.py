"""Recipes: functions that return a run's configuration."""
