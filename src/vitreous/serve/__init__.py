"""A trained model as an HTTP service: `vitreous serve`; and `vitreous watch`, the same for a folder, without a server.

Two kinds of processes. The HTTP process imports no torch; it reads requests, keeps them in one bounded queue per model,
and answers. An engine process per model decodes images and computes; it may crash or be replaced without the service.

Read in this order:

- `settings.py`: the options and limits. `run.py`: the order of events in a service's life.
- `app.py`, `routes.py`, `schemas.py`: what the service answers. `bodies.py`: from a request to the bytes of images.
  `problems.py`: errors. `border.py`: what every request passes: identity, keys, headers, log.
- `connections.py`: the bounds on sockets. `keys.py`: API keys. `metrics.py`: for Prometheus. `page.py`: the page.
- `served_model.py`: a model's queue, its engine process, restarts and reloads. `admission.py`: when it says no.
- `engine_process.py`: the parent's side of an engine process, `wire.py` the frames, `worker.py` the process itself:
  `batcher.py` forms batches, `computing.py` computes them.
- `folder_watch.py`: predictions of the files that arrive in a folder.
"""
