"""The HTTP process: what a client sends and receives. It imports no torch.

`app.py`, `routes.py` and `schemas.py` are what the service answers, `service.py` what its requests share, `bodies.py`
the way from a request to the bytes of images, `border.py` what every request passes, `connections.py` the bounds on
sockets, `keys.py` API keys, `page.py` the page at `/`.
"""
