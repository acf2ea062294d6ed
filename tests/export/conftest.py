"""What the tests of exports share: a model file, and the same in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

for package, extra in (("onnxscript", "onnx"), ("openvino", "openvino")):
    pytest.importorskip(package, reason=f"{extra} is not installed: pip install -e '.[dev]'")

from exported_models import saved  # noqa: E402 - imports what may be missing

from converting import one_operator_table  # noqa: E402, F401  fixture


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a class token, learned positions and thresholds."""
    return saved(tmp_path_factory.mktemp("model"), depth=2)


@pytest.fixture(scope="session")
def exported(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model's files by format, exported once by the command."""
    from vitreous.cli.main import main

    folder = tmp_path_factory.mktemp("exported")
    files = {"onnx": folder / "m.onnx", "openvino": folder / "m.xml", "torch": folder / "m.pt2"}
    for form, file in files.items():
        assert main(["export", str(model_file), str(file), "--to", form]) == 0, form
    return files
