"""How every verb reads its words."""
