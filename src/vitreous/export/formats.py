"""The formats that a model can be exported to. A new one is a module and a line here.

A module has ``write``, ``Runner``, ``PACKAGES`` that both need, ``EXTRA``, the optional dependency that installs them,
``ENGINE``, ``RESIZES``, and with a native resize ``NATIVE_FILTERS``; :mod:`onnx_file` documents them.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

from vitreous.errors import MissingExtraError
from vitreous.export import aot_file, onnx_file, openvino_file, torch_file
from vitreous.files.exported import EXPORTED

__all__ = ["AOT", "FORMS", "SUFFIXES", "require"]

AOT = "torch --aot"
"""The format that `--to torch --aot` writes; its files end as those of torch do."""

FORMS: dict[str, ModuleType] = {
    "onnx": onnx_file,
    "openvino": openvino_file,
    "torch": torch_file,
    AOT: aot_file,
}
"""The module of each format that `vitreous export --to` writes as one graph."""

SUFFIXES = {suffix: form for form, suffix in EXPORTED.items()}
"""Format of an exported file by the ending of its name; :func:`.aot_file.is_compiled` tells the two of torch apart."""


def require(form: str, option: str) -> None:
    """Raise MissingExtraError unless the packages of a format are installed; `option` is what asked for it."""
    module = FORMS[form]
    if missing := [name for name in module.PACKAGES if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(f"{option} needs {' and '.join(missing)}: pip install 'vitreous[{module.EXTRA}]'")
