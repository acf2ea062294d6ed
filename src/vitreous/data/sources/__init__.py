"""Where labelled images come from: known datasets, folders, manifests; and how they are split."""
