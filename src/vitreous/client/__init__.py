"""A client of `vitreous serve`, as `vitreous.Client`.

`client.py` is its interface, `exchange.py` has requests and retries, `images.py` turns images into bytes.
"""

from __future__ import annotations

from vitreous.client.client import Client
from vitreous.client.exchange import ServiceError

__all__ = ["Client", "ServiceError"]
