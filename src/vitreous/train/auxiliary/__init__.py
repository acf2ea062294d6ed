"""A second task beside classification, learnt by the same model in every step; and labels predicted by another model.

:mod:`config` has the options and what they contradict, :mod:`task` what every task has, with the table of all.
:mod:`reconstruction` joins the decoder of :mod:`vitreous.train.pretrain.objectives.mae` to the training step,
:mod:`pseudo_labels` learns the model's own confident answers; both see images without a label too. :mod:`module` is the
Lightning module of such a run. :mod:`self_training` is no second task: it adds images with predicted labels before the
run begins. A run with neither imports only :mod:`config`.
"""
