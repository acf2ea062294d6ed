"""The `vitreous` command: finds the verb, and turns every error into one line and an exit code.

Static on purpose: help and version import nothing, and a verb's module is imported when it is called. Only this
module catches errors; the verbs raise them.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from vitreous import __version__
from vitreous.cli.output.wrapping import wrapped
from vitreous.errors import UsageError, VitreousError, did_you_mean
from vitreous.files.text import printable

__all__ = ["HELP", "VERBS", "main"]

VERBS = {
    "train": "vitreous.cli.verbs.train",
    "plan": "vitreous.cli.verbs.plan",
    "finetune": "vitreous.cli.verbs.finetune",
    "replay": "vitreous.cli.verbs.replay",
    "audit": "vitreous.cli.verbs.audit",
    "evaluate": "vitreous.cli.verbs.evaluate",
    "predict": "vitreous.cli.verbs.predict",
    "embed": "vitreous.cli.verbs.embed",
    "probe": "vitreous.cli.verbs.probe",
    "convert": "vitreous.cli.verbs.convert",
    "models": "vitreous.cli.verbs.models",
    "completion": "vitreous.cli.verbs.completion",
}
"""Each verb and the module whose ``run(argv) -> exit code`` it calls."""

HELP = """\
vitreous: Vision Transformers you can see through.
From labelled images to a trained, evaluated, usable classifier in one command.

usage: vitreous VERB ... [--help] [--traceback]

Make a model
  train       a classifier, from a folder of images, a known set or a recipe
  plan        what a training takes here: memory, time, the largest batch
  finetune    a classifier, from a trained model: few images, other classes
  replay      a step whose loss was not finite: which module it comes from

Check the data
  audit       what is wrong with labelled images: broken files, copies, leaks between splits, wrong labels

Use a model
  predict     what is on these images: labels and probabilities
  evaluate    how good a model is on labelled images: scores, overall and per class
  embed       images as feature vectors, for search or another classifier
  convert     a model to another format: ONNX, torch.export, Google, timm, Hugging Face, torchvision; with proof
  probe       how well a model's features tell classes apart, new ones too

Look up
  models      the sizes there are: parameters, FLOPs and memory of each
  completion  how bash, zsh or fish complete verbs, options, values and files

Start here
  vitreous train digits     real handwritten digits, offline, about a minute
  vitreous train photos/    your own: one folder per class, named as the class
  vitreous predict runs/photos-1/model.safetensors some-image.jpg
  vitreous evaluate runs/photos-1/model.safetensors more-photos/

  -h, --help     this text; `vitreous VERB --help` lists what a verb takes, with examples
  --version      the version
  --traceback    where an error came from, in full: for reporting a bug
"""

_LONGEST = 2000  # characters of an error's line: a word or two more than an error itself may have
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of our output, such as `head`, went away


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The words after `vitreous`; None takes them from the process.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 output closed by its reader.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    show_traceback = "--traceback" in words[:end]
    words = [word for word in words[:end] if word != "--traceback"] + words[end:]
    for stream in (sys.stdout, sys.stderr):
        _accept_any_name(stream)
    code = _carried_out(words, show_traceback)
    if argv is None:
        _ignore_interrupts()
    return code


def _carried_out(words: list[str], show_traceback: bool) -> int:
    """The exit code of the words, with what went wrong said in one line."""
    try:
        with _interruptible_imports():
            code = _dispatch(words)
        sys.stdout.flush()  # here, so that a full disk or a closed pipe is met where it is handled
    except BrokenPipeError:
        _discard_output()
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        print("vitreous: interrupted", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        line = f"vitreous: {_one_line(error, show_traceback)}"
        narrow = sys.stderr.isatty()  # what goes into a file or another program stays one line
        print(wrapped(line, shutil.get_terminal_size().columns) if narrow else line, file=sys.stderr)  # noqa: T201
        if isinstance(error, OSError):
            _discard_output()
        return error.exit_code if isinstance(error, VitreousError) else 1
    return code


def _ignore_interrupts() -> None:
    """Let the process end: all is said, and Ctrl-C would only end in a traceback of what the interpreter still does."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interruptible_imports() -> Iterator[None]:
    """Within, Ctrl-C while torch is being imported ends the process at once, in the same words as later.

    torch imports modules of Python from C++, where a KeyboardInterrupt is not caught: the process would abort. Nothing
    has been opened by then that would be left half-written.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # somebody else's, or ignored as by nohup
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
    """Call the verb's module, or print help or version."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        sys.stdout.write(wrapped(HELP, shutil.get_terminal_size().columns))
        return 0
    if verb in ("-V", "--version", "version"):
        sys.stdout.write(f"vitreous {__version__}\n")
        return 0
    if verb.startswith("-"):
        raise UsageError(
            f"unknown option '{verb}' before the verb. Write: vitreous VERB ..., verbs: {', '.join(VERBS)}"
        )
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS) or f" The verbs are {', '.join(VERBS)}; `vitreous --help` explains them."
        raise UsageError(f"unknown verb '{verb}'.{hint}")
    code = importlib.import_module(VERBS[verb]).run(rest)
    return int(code)


def _one_line(error: Exception, traceback_shown: bool) -> str:
    """Say in one line what went wrong, for an error of any kind."""
    if isinstance(error, VitreousError):
        text = str(error)
    elif isinstance(error, OSError) and error.errno is not None:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        text = f"{error.strerror or error}{where}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += ". Free some space, or write to another disk"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            text += ". Choose a place that you may write to, or change the permissions"
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without torch
        text = "out of memory. Use a smaller batch size, image size or model"
    else:
        text = f"this is a bug in vitreous {__version__}: {type(error).__name__}: {error}"
        if not traceback_shown:
            text += ". Run the same command with --traceback, and report what it prints"
    return printable(" ".join(line.strip() for line in text.split("\n")), _LONGEST)


def _accept_any_name(stream: TextIO) -> None:
    """Let file names that are not valid text pass through unchanged instead of ending the command."""
    reconfigure = getattr(stream, "reconfigure", None)  # absent where a test or a notebook replaced the stream
    if reconfigure is not None:
        utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _discard_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not complain about it again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is not a file here: nothing is buffered for one
        return


if __name__ == "__main__":
    sys.exit(main())
