"""Atomic writes: modes are kept, read-only files stay, inputs and existing files are not lost, no file is partial."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vitreous.errors import OutputError, UsageError
from vitreous.files.writing import Outputs, atomic_write

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX modes, links and pipes")


def write(path: Path, text: str = "new", **how) -> None:
    with atomic_write(path, **how) as temporary:
        temporary.write_text(text, encoding="utf-8")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("bits", [0o600, 0o640, 0o660, 0o777, 0o200])
def test_an_existing_file_keeps_its_mode(tmp_path, bits):
    file = tmp_path / "f"
    file.write_text("old")
    file.chmod(bits)
    with atomic_write(file) as temporary:
        assert mode(temporary) & ~0o600 == 0, "never more accessible than the old file"
        temporary.unlink()  # some writers create the file anew
        temporary.write_text("new")
    assert (mode(file), file.stat().st_size) == (bits, 3)


@posix
def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "f")
    finally:
        os.umask(before)
    assert mode(tmp_path / "f") == 0o640


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="needs extended attributes")
def test_extended_attributes_stay(tmp_path):
    file = tmp_path / "f"
    file.write_text("old")
    try:
        os.setxattr(file, "user.origin", b"here")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    write(file)
    assert os.getxattr(file, "user.origin") == b"here"


@pytest.mark.skipif(not hasattr(os, "chown") or os.geteuid() != 0, reason="only the superuser can change owners")
def test_the_owner_stays(tmp_path):
    file = tmp_path / "f"
    file.write_text("old")
    os.chown(file, 1234, 4321)
    write(file)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


@posix
def test_a_read_only_file_stays_even_for_the_superuser(tmp_path):
    file = tmp_path / "f"
    file.write_text("old")
    file.chmod(0o444)
    for name in ("f", "link"):
        if name == "link":
            (tmp_path / name).symlink_to(file)
        with pytest.raises(OutputError, match=r"cannot write '.*': the file is read-only; allow writing it"):
            write(tmp_path / name)
        with pytest.raises(OutputError, match="read-only"):
            Outputs(overwrite=True).claim("-o", tmp_path / name)
    assert file.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["f", "link"]


@posix
def test_a_link_is_followed_or_replaced(tmp_path):
    (tmp_path / "precious").write_text("old")
    (tmp_path / "link").symlink_to("precious")
    write(tmp_path / "link")
    assert ((tmp_path / "precious").read_text(), (tmp_path / "link").is_symlink()) == ("new", True)
    write(tmp_path / "link", "own", follow=False)
    assert ((tmp_path / "precious").read_text(), (tmp_path / "link").is_symlink()) == ("new", False)
    (tmp_path / "dangling").symlink_to("made")
    write(tmp_path / "dangling")
    assert (tmp_path / "made").read_text() == "new"


@pytest.mark.parametrize("name", ["n" * 255, "\u72ac" * 85, "\U0001f33b" * 63, "-", " ", ".hidden"])
def test_every_valid_name_can_be_written(tmp_path, name):
    write(tmp_path / name)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "new")]


@pytest.mark.parametrize("name", ["n" * 256, "a\0b", "gone/f", "", "folder"])
def test_an_impossible_name_is_an_output_error(tmp_path, name):
    (tmp_path / "folder").mkdir()
    for attempt in (lambda: write(tmp_path / name), lambda: Outputs().claim("-o", tmp_path / name)):
        with pytest.raises(OutputError, match="cannot write"):
            attempt()


def test_a_dash_is_standard_output_for_json_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text("old")
    Outputs().claim("--json", "-")
    with pytest.raises(UsageError, match=r"^--html needs a file: use /dev/stdout for standard output, \./- for"):
        Outputs().claim("--html", "-")
    with pytest.raises(UsageError, match="exists already"):
        Outputs().claim("--html", "./-")


def test_a_dangling_link_reports_the_missing_folder(tmp_path):
    (tmp_path / "link").symlink_to("nowhere/x.csv")
    with pytest.raises(OutputError, match=r"the folder '.*nowhere' does not exist"):
        Outputs().claim("-o", tmp_path / "link")


def test_an_existing_file_needs_overwrite_before_the_work(tmp_path):
    (tmp_path / "f").write_text("old")
    with pytest.raises(UsageError, match=r"'.*f' exists already: --overwrite replaces it, or name another file"):
        Outputs().claim("-o", tmp_path / "f")
    outputs = Outputs(overwrite=True)
    outputs.claim("-o", tmp_path / "f")
    with outputs.atomic_write(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "new"


@pytest.mark.parametrize("when", ["before the writing", "during it"])
def test_a_file_created_meanwhile_is_kept_and_so_is_the_result(tmp_path, when):
    outputs = Outputs()
    outputs.claim("-o", tmp_path / "f")
    if when == "before the writing":  # a document is written after the work
        (tmp_path / "f").write_text("theirs")

    def work() -> None:
        with outputs.atomic_write(tmp_path / "f") as temporary:
            temporary.write_text("mine")
            (tmp_path / "f").write_text("theirs")

    with pytest.raises(OutputError, match="was created by another process meanwhile") as raised:
        work()
    assert (tmp_path / "f").read_text() == "theirs"
    (beside,) = (file for file in tmp_path.iterdir() if file.name != "f")
    assert beside.read_text() == "mine"
    assert str(beside) in str(raised.value)


def alias(kind: str, file: Path) -> Path:
    """Return another name of a file."""
    other = file.with_name(f"other-{kind}")
    if kind == "same":
        return file
    if kind == "dots":
        return file.parent / ".." / file.parent.name / file.name
    (other.symlink_to if kind == "symbolic" else other.hardlink_to)(file)
    return other


@posix
@pytest.mark.parametrize("kind", ["same", "dots", "symbolic", "hard"])
@pytest.mark.parametrize("late", [False, True])
def test_an_input_is_never_replaced_under_any_name(tmp_path, kind, late):
    source = tmp_path / "cat.jpg"
    source.write_text("image")
    source.chmod(0o644 if late else 0o444)
    outputs = Outputs(overwrite=True)
    if late:  # the inputs are known only after the work has begun
        outputs.claim("-o", alias(kind, source))
        attempt = lambda: outputs.reads(each=lambda: [source])  # noqa: E731
    else:
        outputs.reads(each=lambda: [source])
        attempt = lambda: outputs.claim("-o", alias(kind, source))  # noqa: E731
    with pytest.raises(UsageError, match="is an input of this command"):
        attempt()
    assert source.read_text() == "image"


@posix
def test_standard_input_is_an_input_too(tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("a.png\n")
    code = (
        "from vitreous.files.writing import Outputs\n"
        "outputs = Outputs(True); outputs.reads(each=lambda: [0]); outputs.claim('-o', 'list.txt')"
    )
    words = [sys.executable, "-c", code]
    with listed.open() as file:
        run = subprocess.run(words, stdin=file, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "is an input of this command (standard input)" in run.stderr


def test_two_outputs_must_be_two_files(tmp_path):
    outputs = Outputs()
    outputs.claim("--json", tmp_path / "f")
    with pytest.raises(UsageError, match="--json and --html both write"):
        outputs.claim("--html", tmp_path / "." / "f")


@posix
def test_a_pipe_and_a_device_are_written_as_they_are(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    outputs = Outputs()
    for name in (tmp_path / "pipe", Path("/dev/null")):
        outputs.claim("-o", name)
        with outputs.atomic_write(name) as temporary:
            temporary.write_text("through")
    reader.join(timeout=10)
    assert got == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
@pytest.mark.parametrize("where", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("target", ["pipe", "file", "append"])
def test_standard_output_by_name(tmp_path, where, target):
    code = (
        "import sys; from vitreous.files.writing import Outputs\n"
        f"o = Outputs(); o.claim('-o', {where!r})\n"
        f"with o.atomic_write({where!r}) as temporary: temporary.write_text('said')"
    )
    if not Path(where).parent.exists():
        pytest.skip(f"no {where}")
    file = tmp_path / "out.txt"
    file.write_text("before ")
    if target == "pipe":
        written = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout.decode()
        assert written == "said"
        return
    with file.open("a" if target == "append" else "w") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
    assert file.read_text() == ("before said" if target == "append" else "said")
    assert os.listdir(tmp_path) == ["out.txt"]


@posix
def test_a_killed_process_leaves_the_old_file(tmp_path):
    (tmp_path / "f").write_text("old")
    code = (
        "import os, signal; from vitreous.files.writing import atomic_write\n"
        "with atomic_write('f') as temporary:\n    temporary.write_text('ne'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / "f").read_text() == "old"


def test_an_interrupt_leaves_the_old_file_alone(tmp_path):
    (tmp_path / "f").write_text("old")

    def work() -> None:
        with atomic_write(tmp_path / "f") as temporary:
            temporary.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("f", "old")]
