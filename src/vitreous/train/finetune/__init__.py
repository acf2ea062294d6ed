"""Training that starts from a pretrained model.

`stages/` tries cheap methods first and trains from the best; the other files serve single methods too.
`initialisation.py` opens the pretrained model and fits it to the new task, `trainable.py` chooses the weights to train,
`first_probe.py` scores the frozen features before training and compares the fine-tuned model with them.
"""
