"""Distillation: a run that learns from a larger trained model, its teacher.

Read :mod:`losses` first: what the model learns, as pure functions. :mod:`teacher` opens the teacher and computes its
answers to the model's own images. :mod:`views` says which images can occur, so that :mod:`answers` can compute the
answers once and store them. :mod:`distiller` joins them to the training step. A run without a teacher imports only
:mod:`config`.
"""
