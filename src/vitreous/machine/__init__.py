"""What this machine has: here, how much memory may still be taken."""
