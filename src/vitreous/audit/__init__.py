"""What is wrong with a set of pictures before a model is trained on it: each file, its copies, its labels."""
