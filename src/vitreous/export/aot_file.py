"""torch.export, compiled by AOTInductor (.pt2): machine code with the weights, which PyTorch runs without Python code.

The code fits the kind of processor and the version of PyTorch that it was compiled with. Opening such a file runs what
it holds, so :mod:`vitreous.export.reading` opens it only for a caller who trusts it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, MissingExtraError, OutputError, first_line
from vitreous.export.graph.core import PIXELS, Core
from vitreous.export.graph.tracing import quiet
from vitreous.export.torch_file import DESCRIPTION, trace_whole
from vitreous.export.untrusted_program import COMPILED

__all__ = ["ENGINE", "EXTRA", "PACKAGES", "RESIZES", "Runner", "check_compiler", "is_compiled", "write"]

PACKAGES: tuple[str, ...] = ()
"""The packages that writing needs beside PyTorch."""
EXTRA = ""
"""The extra that brings them; empty if none does."""
ENGINE = "torch"
"""The engine that runs the file."""
RESIZES = ("exact",)
"""The ways of resizing in the graph, best first."""

_MACHINE = "machine.txt"
"""Name of what the code was compiled for among the extra files of the archive."""

_OPTIONS = {
    "cpp.dynamic_threads": True,  # otherwise the code always takes as many threads as this process has
    "aot_inductor.precompile_headers": False,  # takes longer than one graph
    "cpp_cache_precompile_headers": False,
    "aot_inductor.enable_line_tables": False,  # they would double the size
}


def check_compiler() -> None:
    """Raise MissingExtraError unless there is a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # of any class
        raise MissingExtraError(
            "--aot needs a C++ compiler, and there is none: install g++ or clang++, such as by `apt install g++`, or "
            "set CXX to one. --to torch without --aot needs none"
        ) from error


def write(
    core: Core,
    pipeline: EvalPipeline,
    *,
    outputs: Sequence[str],
    taps: Sequence[str],
    words: Mapping[str, str],
    file: Path,
) -> list[Path]:
    """Write a graph as :func:`vitreous.export.torch_file.write` does, compiled.

    Compiled code has no layers to ask for. After its outputs it returns the resized pixels, for the verification.
    """
    program = trace_whole(core, pipeline, results=len(outputs))
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder, "compiled.pt2")
        _compile(program, compiled, folder)
        extra = {DESCRIPTION: json.dumps(dict(words), indent=2), _MACHINE: _machine()}
        _repack(compiled, file, extra)
    return [file]


def _compile(program: Any, file: Path, folder: str) -> None:
    """Compile a program. Inductor's cache is in the folder too, because its usual one is in a folder of all users."""
    from torch._inductor import aoti_compile_and_package, config
    from torch._inductor.utils import fresh_cache

    known = config.get_config_copy()
    options = {name: value for name, value in _OPTIONS.items() if name in known}
    try:
        with _silent(), quiet(), torch.no_grad(), fresh_cache(dir=folder):
            aoti_compile_and_package(program, package_path=str(file), inductor_configs=options)
    except OSError:
        raise
    except Exception as error:  # of any class; the compiler's output is pages long
        reason = next((line.strip() for line in str(error).splitlines() if "error:" in line), first_line(error))
        raise OutputError(
            f"AOTInductor cannot compile this model: {type(error).__name__}: {reason:.300}; nothing was kept. "
            "--to torch without --aot needs no compiler"
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide log lines of Inductor and of what it imports, which concern its cache and GPUs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _repack(compiled: Path, file: Path, extra: Mapping[str, str]) -> None:
    """Copy a package without its C++ sources, which have paths of this machine, and with extra files."""
    with zipfile.ZipFile(compiled) as package, zipfile.ZipFile(file, "w") as archive:
        for entry in package.infolist():
            if not entry.filename.endswith(".cpp"):
                with package.open(entry) as source, archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target)
        top = package.namelist()[0].partition("/")[0]
        for name, text in extra.items():
            archive.writestr(zipfile.ZipInfo(f"{top}/extra/{name}"), text)  # without a date


def is_compiled(file: Path) -> bool:
    """Return whether an archive holds compiled code; False for what is no archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.partition("/")[2].startswith(COMPILED) for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _machine() -> str:
    """Return what compiled code depends on."""
    version = ".".join(torch.__version__.split(".")[:2])
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"torch {version}, {sys.platform}, {platform.machine()}, {instructions}"


class Runner:
    """A written file in PyTorch, on the CPU. Opening it runs its code."""

    def __init__(self, file: Path, taps: Sequence[str] = ()) -> None:
        self.name = f"torch {torch.__version__.partition('+')[0]} with AOTInductor"
        extra = _extra_files(file)
        machine = extra.get(_MACHINE, "an unknown machine")
        if machine != _machine():
            raise CheckpointError(
                f"'{file}' was compiled for {machine:.100}; this is {_machine()}: export the model again here"
            )
        self.words = {str(name): str(text) for name, text in json.loads(extra.get(DESCRIPTION, "{}")).items()}
        # torch._inductor.aoti_load_package compiles programs first, to find out about this machine.
        self._code = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
        names = [*self.words.get("outputs", "").split(", "), PIXELS]
        self._places = [n for n, name in enumerate(names) if (name in taps if taps else name != PIXELS)]
        self.outputs = [names[n] for n in self._places]

    def __call__(self, images: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return all outputs for images (B, h, w, C)."""
        with torch.inference_mode():
            found = self._code.run([torch.from_numpy(np.array(images))])
        return [found[n].numpy() for n in self._places]


def _extra_files(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        names = {name.partition("/extra/")[2]: name for name in archive.namelist() if "/extra/" in name}
        return {short: archive.read(name).decode() for short, name in names.items()}
