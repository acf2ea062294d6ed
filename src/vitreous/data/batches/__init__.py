"""How a training batch comes to be, from file to tensor.

The path takes four files, each read from top to bottom. An image file is first decoded (``Split.image``) and fitted to
the model's size (``EvalPipeline.pixels``), here to uint8 (32, 32, 3): once for a split in memory, or for every batch.
This is a batch of 128 images::

    sampler.py       TrainSampler.__iter__        indices  int64    (128,)
    dataset.py       MemoryDataset.__getitem__    images   uint8    (128, 3, 32, 32)   labels   int64    (128,)
    loaders.py       BatchLoader.__iter__         the same; Lightning then moves the batch to the device
    pipeline.py      BatchAugment.augment_batch   images   float32  (128, 3, 32, 32)   targets  float32  (128, 10)

1. sampler.py decides which images form a batch. :class:`TrainSampler` shuffles the images of an epoch and yields one
   :class:`BatchPlan` for each batch: epoch, step and the indices of its images.
2. dataset.py turns indices into pixels. :class:`~vitreous.data.preprocess.EvalPipeline` fits each decoded image to the
   model's size. :class:`MemoryDataset` decodes a whole split once, and :class:`StreamedDataset` decodes each batch from
   its files, for data that does not fit into memory.
3. loaders.py combines samplers and datasets. :class:`ImageLoaders` chooses between memory and files, and makes the
   loaders. A :class:`BatchLoader` can be resumed at any batch. data_module.py has the same for any LightningModule.
4. ../augment/pipeline.py augments and normalises a batch on the device, and makes its targets. ``training_step`` in
   train/loop/module.py calls it and passes the result to the model.

Order, crops and augmentation are functions of (seed, epoch, step). A run therefore does not depend on the number of
workers, and a resumed run continues exactly. Random resized crops are in ../augment/resized_crop.py: step 2 cuts them
from files, step 4 from memory.

Validation and test batches come in order, from :class:`OrderedSampler`; step 4 only normalises them. Prediction has no
batches of this kind: read_ahead.py decodes its images in threads.
"""
