"""A second task beside classification, learnt by the same encoder in every step: masked reconstruction.

:mod:`config` has the options and what they contradict. :mod:`reconstruction` joins the decoder of
:mod:`vitreous.train.pretrain.mae` to the training step. A run without a second task imports only :mod:`config`.
"""
