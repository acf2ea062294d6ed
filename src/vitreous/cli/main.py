"""The `vitreous` command: dispatches to a verb, and turns every error into one line and an exit code.

Verbs raise errors; only this module catches them. The module of a verb is imported when the verb is called, so that
``--help`` and ``--version`` start fast.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from vitreous import __version__
from vitreous.cli.output.wrapping import wrap
from vitreous.errors import UsageError, VitreousError, did_you_mean
from vitreous.files.text import printable

__all__ = ["HELP", "VERBS", "main"]

_NAMES = (
    *("train", "plan", "finetune", "pretrain", "replay", "audit", "select", "shard", "evaluate", "calibrate"),
    *("predict", "serve", "watch", "inspect", "embed", "probe", "export", "convert", "models", "doctor", "completion"),
)
VERBS = {verb: f"vitreous.cli.verbs.{verb}" for verb in _NAMES}
"""The module of each verb, which has ``run(argv) -> exit code``."""

HELP = """\
vitreous: Vision Transformers you can see through.
From labelled images to a trained, evaluated, usable classifier in one command.

usage: vitreous VERB ... [--help] [--traceback]

Make a model
  train       train a classifier on a folder of images or a known dataset
  plan        estimate the memory, time and largest batch of a training run
  finetune    train a classifier from a trained model: few images, new classes
  pretrain    train a backbone on images without labels
  replay      repeat a step whose loss was not finite, to find the module that caused it

Check and label the data
  audit       find problems in labelled images: broken files, duplicates, leaks between splits, wrong labels
  select      propose which images to label next, as a table and a contact sheet
  shard       pack images into a few large files, for slow disks and stores

Use a model
  predict     classify images: labels and probabilities
  serve       answer requests over HTTP, in batches, with a page at /
  watch       classify the images that arrive in a folder, into a CSV file
  evaluate    score a model on labelled images, overall and per class
  calibrate   fit thresholds with a promise: unsure predictions, sets of classes
  inspect     show what a model looks at in images, and what it has learned, on one page
  embed       compute feature vectors of images, for search or another classifier
  export      write a model as one verified graph for ONNX Runtime, OpenVINO or torch.export, from image to answer
  convert     write a model for timm, Hugging Face, torchvision, Google or facebookresearch, verified
  probe       measure how well a model's features separate classes, including new ones

Look up
  models      list the model sizes: parameters, FLOPs and memory
  doctor      print what a bug report needs, and test the installation
  completion  complete verbs, options, values and files in bash, zsh or fish

Start here
  vitreous train digits     real handwritten digits, offline, about a minute
  vitreous train photos/    your own images: one folder per class, named after it
  vitreous predict runs/photos-1/model.safetensors some-image.jpg
  vitreous evaluate runs/photos-1/model.safetensors more-photos/

  -h, --help     this text; `vitreous VERB --help` describes a verb, with examples
  --version      the version
  --traceback    show the traceback of an error, for reporting a bug
"""
"""What `vitreous --help` prints."""

_MAX_LENGTH = 2000  # characters of the line that reports an error
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of the output, such as `head`, has exited


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: ``argv``, or ``sys.argv[1:]``.

    The exit code is 0 for success, 1 failure, 2 usage error, 130 interrupted, 141 output closed by its reader.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    show_traceback = "--traceback" in words[:end]
    words = [word for word in words[:end] if word != "--traceback"] + words[end:]
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        _accept_any_name(stream)
    code = _run(words, show_traceback)
    if argv is None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C during interpreter shutdown would print a traceback
        gc.freeze()  # the search for cycles among a million objects of torch takes a second at exit
    return code


def _run(words: list[str], show_traceback: bool) -> int:
    try:
        with _interruptible_imports():
            code = _dispatch(words)
        sys.stdout.flush()  # raises here, rather than at exit, if the disk is full or the pipe is closed
    except BrokenPipeError:
        _discard_output()
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        print("vitreous: interrupted", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        line = f"vitreous: {_describe(error, show_traceback)}"
        if sys.stderr.isatty():  # files and other programs get one line
            line = wrap(line, shutil.get_terminal_size().columns)
        print(line, file=sys.stderr)  # noqa: T201
        if isinstance(error, OSError):
            _discard_output()
        return error.exit_code if isinstance(error, VitreousError) else 1
    return code


@contextmanager
def _interruptible_imports() -> Iterator[None]:
    """Make Ctrl-C during the import of torch end the process at once, with the usual message.

    torch imports Python modules from C++, where a KeyboardInterrupt would abort the process. No output file is open at
    that time.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # set by a caller, or ignored, as by nohup
    ):
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            os.write(2, b"vitreous: interrupted\n")
            os._exit(_INTERRUPTED)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help", *words[2:]]
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        sys.stdout.write(wrap(HELP, shutil.get_terminal_size().columns))
        return 0
    if verb in ("-V", "--version", "version"):
        sys.stdout.write(f"vitreous {__version__}\n")
        return 0
    if verb.startswith("-"):
        verbs = ", ".join(VERBS)
        raise UsageError(f"unknown option '{verb}' before the verb. Write: vitreous VERB ..., verbs: {verbs}")
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS) or f" The verbs are {', '.join(VERBS)}; `vitreous --help` explains them."
        raise UsageError(f"unknown verb '{verb}'.{hint}")
    return int(importlib.import_module(VERBS[verb]).run(rest))


def _describe(error: Exception, traceback_shown: bool) -> str:
    if isinstance(error, VitreousError):
        text = str(error)
    elif isinstance(error, OSError) and error.errno is not None:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        text = f"{error.strerror or error}{where}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += ". Free some space, or write to another disk"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            text += ". Choose another folder, or change the permissions"
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch.OutOfMemoryError
        text = "out of memory. Use a smaller batch size, image size or model"
    else:
        text = f"this is a bug in vitreous {__version__}: {type(error).__name__}: {error}"
        if not traceback_shown:
            text += ". Run the same command with --traceback, and report what it prints"
    return printable(" ".join(line.strip() for line in text.split("\n")), _MAX_LENGTH)


def _replace_closed_streams() -> None:
    """Read nothing from, and discard what is written to, streams that the caller has closed, as services do."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _accept_any_name(stream: TextIO) -> None:
    """Let file names that are not valid Unicode pass through unchanged instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)  # absent if a test or a notebook replaced the stream
    if reconfigure is not None:
        utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _discard_output() -> None:
    """Discard buffered output, so that the flush at exit does not raise the same error again."""
    with suppress(OSError, ValueError):  # stdout is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
