"""What a run needs to continue after an interruption, and what happens when a step fails."""
