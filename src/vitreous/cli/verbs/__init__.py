"""One thin module per verb, imported only when it is called."""
