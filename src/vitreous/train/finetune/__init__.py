"""Training that starts from a pretrained model.

`stages/` tries cheap methods first and trains from the best; the other files serve single methods too.
`starting_point.py` finds the model to start from, and `choice.py` chooses one from the table of pretrained models.
`initialisation.py` opens it and fits it to the new task, `free_options.py` says what a user may change in it,
`trainable.py` chooses the weights to train, and `first_probe.py` scores the frozen features before training and
compares the fine-tuned model with them.
"""
