"""Training that starts from a pretrained model.

`initialisation.py` opens the pretrained model and fits it to the new task, `trainable.py` chooses the weights to train,
`first_probe.py` scores the frozen features before training and compares the fine-tuned model with them.
"""
