"""How every verb talks to people and programs."""
