"""The page that classifies images in a browser, for the service and for the web export.

Read :mod:`page` first (how the page is put together), then ``page/`` (its markup, style and scripts). :mod:`runtime`
has ONNX Runtime for WebAssembly, as it was published.
"""

from vitreous.web.page import service_files

__all__ = ["service_files"]
