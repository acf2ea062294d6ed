"""From labelled pictures to batches: sources, one evaluation pipeline, augmentation, loading."""
