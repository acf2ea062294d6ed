"""A second task beside classification, learnt by the same encoder in every step: masked reconstruction.

:mod:`config` has the options and what they contradict. :mod:`reconstruction` joins the decoder of
:mod:`vitreous.train.pretrain.mae` to the training step, also of images without a label, and :mod:`module` is the
Lightning module of such a run. A run without a second task imports only :mod:`config`.
"""
