"""Size, speed, accuracy and calibration of a model in every format, on labelled images, as a table in Markdown.

    python benchmarks/accuracy/formats.py runs/photos-1 photos/ --split val

PyTorch in float32 comes first. Each format is exported and verified, then measured beside PyTorch in turns: the
shortest of five rounds, without reading files. A format that is refused has the reason in its row. `--only onnx`
measures one format.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from vitreous.cli.work.export_check import DataCheck
from vitreous.errors import VitreousError
from vitreous.export.run import Options, export
from vitreous.machine.device import describe_machine, resolve_device

FORMS = {  # row: format, ending, options
    "ONNX float32": ("onnx", ".onnx", {}),
    "ONNX float32, native resize": ("onnx", ".onnx", {"resize": "native"}),
    "ONNX fp16": ("onnx", ".onnx", {"precision": "fp16"}),
    "OpenVINO float32": ("openvino", ".xml", {}),
    "OpenVINO fp16": ("openvino", ".xml", {"precision": "fp16"}),
    "torch float32": ("torch", ".pt2", {}),
    "torch bf16": ("torch", ".pt2", {"precision": "bf16"}),
}


def row(name: str, size: float, measured: dict[str, float]) -> str:
    one, many = 1e3 * measured["latency"], measured["throughput"]
    scores = f"{measured['top1']:.2%} | {measured['log_loss']:.4f} | {measured['ece']:.4f}"
    return f"| {name} | {size / 1e6:.1f} | {scores} | {one:.1f} | {many:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--split")
    parser.add_argument("--only", choices=["onnx", "openvino", "torch"])
    options = parser.parse_args()
    print(f"{options.model} on {options.data}; {describe_machine(resolve_device('cpu')).cpu}\n")
    print("| format | MB | top-1 | log loss | ECE | one image, ms | batches of 32, images/s |")
    print("|---|---|---|---|---|---|---|")
    weights = Path(options.model) / "model.safetensors" if Path(options.model).is_dir() else Path(options.model)
    is_first = True
    for name, (form, ending, how) in FORMS.items():
        if options.only not in (None, form):
            continue
        check = DataCheck(options.data, lambda line: None, split=options.split, quiet=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = export(options.model, Path(folder, f"m{ending}"), form, options=Options(check=check, **how))
            except VitreousError as error:
                print(f"| {name} | refused: {error} | | | | | |", flush=True)
                continue
        if is_first:
            print(row("PyTorch float32", weights.stat().st_size, result.checked["PyTorch"]), flush=True)
        is_first = False
        print(row(name, result.size, result.checked[form]), flush=True)


if __name__ == "__main__":
    main()
