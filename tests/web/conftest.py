"""A small model's page, written once: a folder, and a single file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from small import model_and_info, write_graph

from browser import Browser, browser
from converting import one_operator_table  # noqa: F401  fixture
from vitreous.predictor import Classifier


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The model, its description and classifier, the graph, and the folder with the page."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from vitreous.export.web import export_web

    folder = tmp_path_factory.mktemp("web")
    model, info = model_and_info()
    write_graph(model, info, folder / "model.onnx")
    said: list[str] = []
    result = export_web(
        folder / "model.onnx", folder / "site", model, info, title="Trees & <i>more</i>", tell=said.append
    )
    classifier = Classifier(model, info, "cpu", engine="torch")
    return SimpleNamespace(
        model=model,
        info=info,
        graph=folder / "model.onnx",
        site=folder / "site",
        said=said,
        result=result,
        classifier=classifier,
    )


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> list[Path]:
    """Image files that decoders may differ in: sizes, orientation, alpha, palettes, grey, a colour profile."""
    folder = tmp_path_factory.mktemp("images")
    astronaut = Image.open(photos / "astronaut.png").convert("RGB")
    rocket, files = Image.open(photos / "rocket.jpg").convert("RGB"), []

    def save(name: str, image: Image.Image, **options: object) -> None:
        image.save(folder / name, **options)
        files.append(folder / name)

    save("tall.jpg", astronaut.crop((100, 0, 300, 512)), quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.jpg", rocket, exif=exif, quality=90)
    half = astronaut.convert("RGBA")
    half.putalpha(Image.fromarray(np.linspace(0, 255, 512 * 512).reshape(512, 512).astype(np.uint8)))
    save("alpha.png", half)
    save("grey.png", rocket.convert("L"))
    save("palette.gif", astronaut.resize((120, 90)).quantize(32))
    save("lossless.webp", rocket.resize((90, 60)), lossless=True)
    deep = np.arange(64 * 96, dtype=np.uint16).reshape(64, 96) * 10
    save("deep.png", Image.fromarray(deep))
    save("small.bmp", astronaut.resize((33, 21)))
    return files


@pytest.fixture
def view(tmp_path: Path) -> Iterator[Browser]:
    """A browser with a wide, light window."""
    profile = tmp_path / "profile"
    profile.mkdir()
    with browser(profile) as started:
        started.view(1400, "light")
        yield started
