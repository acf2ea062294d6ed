"""What the longer verbs do between their options and their output."""
