"""The `vitreous` command: help, verbs, and every error as one line and an exit code."""

import contextlib
import errno
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import vitreous
from vitreous.cli import main as main_module
from vitreous.cli.main import HELP, VERBS, main
from vitreous.cli.output.wrapping import wrap
from vitreous.errors import CheckpointError, ConfigError, DataError

COMMAND = str(Path(sys.executable).with_name("vitreous"))


@pytest.fixture
def verb(monkeypatch):
    """Install a verb `try` that runs a function of the test."""

    def install(run) -> None:
        module = types.ModuleType("vitreous_try")
        module.run = run
        monkeypatch.setitem(sys.modules, "vitreous_try", module)
        monkeypatch.setitem(VERBS, "try", "vitreous_try")

    return install


def raising(error: BaseException):
    def run(argv):
        raise error

    return run


def test_help_names_every_verb_and_every_verb_exists(command):
    run = command("--help")
    assert (run.returncode, run.stdout, run.stderr) == (0, wrap(HELP, 80), "")
    assert command().stdout == run.stdout
    for name, module in VERBS.items():
        assert re.search(rf"^  {name} ", HELP, re.MULTILINE)
        assert importlib.util.find_spec(module), module
    assert {line.split()[1] for line in HELP.splitlines() if line.startswith("  vitreous ")} <= set(VERBS)


@pytest.mark.parametrize("width", [60, 80])
def test_help_breaks_between_words_and_hangs_in_its_column(width):
    lines = wrap(HELP, width).splitlines()
    assert all(len(line) <= width for line in lines if not line.startswith("  vitreous "))
    assert " ".join(" ".join(lines).split()) == " ".join(HELP.split())
    after = lines[next(n for n, line in enumerate(lines) if line.startswith("  audit ")) + 1]
    assert re.match(r" {14}\S", after)


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_fits_a_terminal_but_for_commands(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main([name, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80 and "  vitreous " not in line] == []


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_help_with_examples_and_loads_no_torch_for_it(name):
    code = f"""
import sys
from vitreous.cli.main import main
try:
    code = main([{name!r}, "--help"])
except SystemExit as stop:
    code = stop.code
assert not code, code
heavy = {{"torch", "lightning", "torchvision", "matplotlib", "sklearn"}} & set(sys.modules)
assert not heavy, heavy
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert run.stdout.startswith(f"usage: vitreous {name} ")
    assert f"vitreous {name} " in run.stdout.split("examples:")[1]


def test_version(command):
    assert command("--version").stdout == f"vitreous {main_module.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predcit", "x"], "unknown verb 'predcit'. Did you mean 'predict'?"),
        (["xyz"], "unknown verb 'xyz'. The verbs are train, "),
        (["--verbose"], "unknown option '--verbose' before the verb."),
        (["predict"], "MODEL and IMAGES are missing. Usage: vitreous predict MODEL IMAGES... [options]"),
        (["predict", "m", "i", "--topk", "3"], "unknown option '--topk'. Did you mean '--top-k'?"),
        (["predict", "m", "i", "--top-k", "0"], "--top-k is '0', it must be a whole number of at least 1."),
        (["predict", "m", "i", "--format", "jsnol"], "--format is 'jsnol', it must be"),
        (["embed", "m", "i"], "--output is missing."),
        (["embed", "m", "i", "-o", "f.txt"], "-o is 'f.txt': its extension must be one of .parquet, .csv, .npz, .npy"),
        (["evaluate", "m", "d", "e"], "unexpected: e. Usage: vitreous evaluate MODEL DATA [options]"),
        (["models", "--image-size", "big"], "--image-size is 'big', it must be pixels"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(command, words, said):
    run = command(*words)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"vitreous: {said}")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError("no images\nin x"), 1, "no images in x"),
        (CheckpointError("damaged"), 1, "damaged"),
        (ConfigError("width is 0"), 2, "width is 0"),
        (OSError(errno.ENOSPC, "No space left on device", "out.csv"), 1, "No space left on device: out.csv. Free some"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "Permission denied: x. Choose another folder"),
        (MemoryError(), 1, "out of memory. Use a smaller batch size"),
        (
            ZeroDivisionError("oh"),
            1,
            f"this is a bug in vitreous {main_module.__version__}: ZeroDivisionError: oh. Run the same command with",
        ),
    ],
)
def test_errors_become_one_line_and_an_exit_code(capsys, verb, error, code, said):
    verb(raising(error))
    assert main(["try"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"vitreous: {said}")
    assert err.count("\n") == 1


def test_traceback_is_shown_on_request_wherever_it_stands(capsys, verb):
    seen = []

    def run(argv):
        seen.append(argv)
        raise ValueError("deep")

    verb(run)
    for words in (["--traceback", "try", "a"], ["try", "a", "--traceback"]):
        assert main(words) == 1
        assert 'raise ValueError("deep")' in capsys.readouterr().err
    main(["try", "--", "--traceback"])
    assert "Traceback" not in capsys.readouterr().err
    assert seen == [["a"], ["a"], ["--", "--traceback"]]


def test_ctrl_c_is_130_without_a_traceback(capsys, verb):
    verb(raising(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "vitreous: interrupted\n"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="sees in /proc when torch is being loaded")
def test_ctrl_c_while_a_real_command_works(model_file):
    words = [COMMAND, "predict", str(model_file), "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while b"libtorch" not in Path(f"/proc/{process.pid}/maps").read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)  # while torch is imported, or while the command waits for the list
        error = process.communicate(timeout=60)[1]
    assert (process.returncode, error) == (130, b"vitreous: interrupted\n")


def test_a_closed_pipe_is_quiet():
    read, write = os.pipe()
    os.close(read)
    try:
        run = subprocess.run([COMMAND, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_standard_output():
    run = subprocess.run(f"{COMMAND} --help > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "vitreous: No space left on device. Free some space, or write to another disk\n"


def test_the_version_is_the_package_version():
    assert main_module.__version__ == vitreous.__version__


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("models mu >&-", 0),
        ("--help >&-", 0),
        ("unknown 2>&-", 2),
        ("predict shipped - <&- 2>/dev/null", 2),
        (
            "train digits --epochs=3 --model.width=16 --model.depth=1 --out=run | head -1 >/dev/null",
            141,
        ),
    ],
)
def test_closed_streams_are_no_bug(tmp_path, command, code):
    line = f"'{sys.executable}' -m vitreous.cli.main {command}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
