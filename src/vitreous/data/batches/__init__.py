"""How a training batch comes to be, from file to tensor: four files, each read from top to bottom.

B images, C channels, H x W pixels of the model's input, K classes.

1. sampler.py: which images, in which order. :class:`TrainSampler` permutes the images of an epoch, as a function of
   (seed, epoch), and cuts the permutation into batches. Each item is a :class:`BatchPlan`: epoch, step and the indices
   of the batch, int64 (B,).
2. dataset.py: from indices to pixels. Each file is decoded to uint8 (any size) x 3 and fitted to uint8 H x W x C by
   :class:`~vitreous.data.preprocess.EvalPipeline`. The batch is uint8 B x C x H x W with labels int64 (B,).
   :class:`MemoryDataset` decodes a whole split once; :class:`StreamedDataset` decodes each batch in a worker process.
   The boxes of random resized crops are a function of (seed, epoch, step). StreamedDataset cuts them while it resizes;
   MemoryDataset adds them to the batch, and step 4 cuts them.
3. data_module.py: loaders. :class:`ImageDataModule` combines samplers and datasets in a :class:`BatchLoader`, which a
   checkpoint can resume at any batch. Lightning moves each batch to the device.
4. augment/pipeline.py: augmentation and normalisation on the device. :class:`BatchAugment` maps uint8 B x C x H x W to
   float32 B x C x H x W and labels to targets, float32 B x K, also as a function of (seed, epoch, step).
   ``VitModule.training_step`` of train/module.py calls it.

One batch of CIFAR-10, which fits in memory, passes through these calls:
``TrainSampler.__iter__`` (128 indices), ``MemoryDataset.__getitem__`` (uint8 128 x 3 x 32 x 32),
``BatchLoader.__iter__`` (the same), ``BatchAugment.augment_batch`` (float32 128 x 3 x 32 x 32 and 128 x 10), the model.

Validation and test batches come in order from :class:`OrderedSampler` and are normalised in step 4, not augmented.
Prediction has no batches of this kind; read_ahead.py decodes its images in threads.
"""
