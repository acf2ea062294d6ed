"""OpenVINO, imported so that it does not report to its maker.

The packages openvino and nncf tell a server of Google that they were imported and used, and keep a number of the user
in his home folder, unless the package openvino_telemetry is missing: they catch that and do without. Here it is missing
for them. Where a program has imported it before, its own choice stays.
"""

from __future__ import annotations

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # Python's mark of what cannot be imported

import openvino  # noqa: E402
import openvino.passes  # noqa: E402
import openvino.utils.node_factory  # noqa: E402

__all__ = ["openvino"]
