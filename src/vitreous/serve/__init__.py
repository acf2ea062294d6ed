"""A trained model as an HTTP service: `vitreous serve`; and `vitreous watch`, the same for a folder, without a server.

Two kinds of processes. The HTTP process imports no torch; it reads requests, keeps them in one bounded queue per model,
and answers. An engine process per model decodes images and computes; it may crash or be replaced without the service.

Read in this order:

- `settings.py`: the options and limits. `run.py`: the order of events in a service's life.
- `http/`: the HTTP process, from a request to the bytes of images, and to the answer.
- `engine/`: a model's queue and its engine process, on both sides.
- `problems.py`: errors as a client sees them. `metrics.py`: for Prometheus.
- `folder_watch.py`: predictions of the files that arrive in a folder.
"""
