"""The example in a file's metadata: a short program that needs the runtime, NumPy and Pillow, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.placement import cover_size
from vitreous.data.preprocess import EvalPipeline

__all__ = ["example", "reader"]

_OPEN = {
    "onnx": """\
import onnxruntime

session = onnxruntime.InferenceSession({file}, providers=["CPUExecutionProvider"])
words = session.get_modelmeta().custom_metadata_map


def run(images):
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, {{"images": images}})))
""",
    "openvino": """\
import openvino

model = openvino.Core().read_model({file})
words = model.get_rt_info(["vitreous"]).value
# Without the hint OpenVINO computes in bf16 where the processor has it: faster, and less exact.
graph = openvino.compile_model(model, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})


def run(images):
    found = graph([images])
    return {{name: found[name] for name in words["outputs"].split(", ")}}
""",
    "torch --aot": """\
import torch

# The file contains machine code, which runs now.
graph = torch._inductor.aoti_load_package({file})
with zipfile.ZipFile({file}) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith("/extra/vitreous.json")]
    words = json.loads(archive.read(name))


def run(images):
    with torch.inference_mode():
        found = graph(torch.from_numpy(images))
    return {{name: each.numpy() for name, each in zip(words["outputs"].split(", "), found)}}
""",
    "torch": """\
import torch

extra = {{"vitreous.json": ""}}
graph = torch.export.load({file}, extra_files=extra).module()
words = json.loads(extra["vitreous.json"])


def run(images):
    with torch.inference_mode():
        found = graph(torch.from_numpy(images))
    return {{name: each.numpy() for name, each in zip(words["outputs"].split(", "), found)}}
""",
}

_FIT = """

def fit(image):
    # The graph resizes images of any size, some pixels of which then differ by one level from Pillow's.
    w, h = image.size
    return image.resize(({sides}), Image.Resampling.{filter})
"""

_READ = """

def read(path):
    image = ImageOps.exif_transpose(Image.open(path))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("RGB"){grey}
    return numpy.array({fit}){channel}  # (height, width, {channels}), uint8

"""

_CLASSES = """
classes = json.loads(words["classes"])
for path in sys.argv[1:]:
    found = run(read(path)[None])  # images of one size can be one batch
    for k in found["probabilities"][0].argsort()[::-1][:5]:
        print(path, classes[k], float(found["probabilities"][0][k]), sep="\\t")
"""

_LABELS = """
classes = json.loads(words["classes"])
for path in sys.argv[1:]:
    found = run(read(path)[None])  # images of one size can be one batch
    given = [k for k in found["probabilities"][0].argsort()[::-1] if found["labels"][0][k]]
    for k in given:
        print(path, classes[k], float(found["probabilities"][0][k]), sep="\\t")
    if not given:
        print(path, "(none)", sep="\\t")
"""

_FEATURES = """
for path in sys.argv[1:]:
    print(path, *run(read(path)[None])["features"][0].tolist(), sep="\\t")
"""


def example(form: str, file: str, info: ModelInfo, resize: str) -> str:
    """Return the program for a format and a file's name, which prints a line per image and class.

    Of several labels, it prints those that the image has. If the graph's own resize is not exact, the program resizes
    by Pillow; the graph then finds nothing to resize.
    """
    package, _, rest = _OPEN[form].format(file=json.dumps(file)).partition("\n")
    archive = "import zipfile\n" if "zipfile." in rest else ""
    imports = f"import json\nimport sys\n{archive}\nimport numpy\n"
    end = _FEATURES if not info.classes else _CLASSES if info.multilabel is None else _LABELS
    return f"{imports}{package}\nfrom PIL import Image, ImageOps\n{rest}{_reading(info.pipeline, resize)}{end}"


def reader(pipeline: EvalPipeline, resize: str) -> Callable[[str], npt.NDArray[np.uint8]]:
    """Return the function by which the program reads an image file, made of the same text."""
    names: dict[str, Any] = {"numpy": np, "Image": Image, "ImageOps": ImageOps}
    exec(_reading(pipeline, resize), names)
    read: Callable[[str], npt.NDArray[np.uint8]] = names["read"]
    return read


def _reading(pipeline: EvalPipeline, resize: str) -> str:
    grey = pipeline.channels == 1
    convert, channel = ('.convert("L")', "[:, :, None]") if grey else ("", "")
    fit = "image" if resize == "exact" else "fit(image)"
    text = "" if resize == "exact" else _fit(pipeline)
    return text + _READ.format(grey=convert, channel=channel, channels=pipeline.channels, fit=fit)


def _fit(pipeline: EvalPipeline) -> str:
    """Return a function that resizes as Pillow does."""
    config = pipeline.config
    height, width = cover_size(pipeline.size, config) if config.fit == "crop" else pipeline.size
    sides = {
        "crop": f"max({width}, w * {height} // h), max({height}, h * {width} // w)",
        "squash": f"{width}, {height}",
        "pad": f"min({width}, max(1, w * {height} // h)), min({height}, max(1, h * {width} // w))",
    }[config.fit]
    return _FIT.format(sides=sides, filter=config.interpolation.upper())
