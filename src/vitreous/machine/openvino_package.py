"""OpenVINO without its telemetry.

The packages openvino and nncf report each import and use to Google Analytics, and keep an identifier of the user in
the home folder, unless the package openvino_telemetry is missing: they catch that and do without.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["import_openvino"]


def import_openvino() -> Any:
    """Return the module ``openvino``, with its submodules ``passes`` and ``utils.node_factory``.

    From then on openvino_telemetry is missing in this process, unless the program has imported it before: then its own
    choice stays.

    Raises:
        ImportError: If OpenVINO is not installed.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # Python's mark of what is missing
    import openvino
    import openvino.passes
    import openvino.utils.node_factory

    return openvino
