"""Where there is no home folder: that of an unknown user in a path, and none at all, as in some containers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vitreous.errors import UsageError
from vitreous.files.locating import expand_home
from vitreous.runs.folder import choose_run_dir

pytestmark = pytest.mark.skipif(os.name == "nt", reason="home folders as POSIX has them")


@pytest.fixture
def homeless(monkeypatch) -> None:
    """No variable names a home folder, and the system does not know the user."""
    import pwd

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "~nobody-here/run"),
        ("inspect", "MODEL", "--out=~nobody-here/out"),
        ("watch", "~nobody-here/inbox", "--model=MODEL"),
        ("shard", "DATA", "~nobody-here/shards"),
        ("train", "digits", "--config=~nobody-here/recipe.yaml"),
        ("evaluate", "MODEL", "cifar10", "--data-dir=~nobody-here/data"),
    ],
    ids=" ".join,
)
def test_the_home_of_an_unknown_user_is_one_line(vitreous, model_file, digits, words):
    run = vitreous(*(word.replace("MODEL", str(model_file)).replace("DATA", str(digits)) for word in words))
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("vitreous: there is no home folder for '~nobody-here/")
    assert run.stderr.count("\n") == 1


def test_a_run_directory_in_the_home_of_an_unknown_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no home folder for '~nobody-here/run': give the whole path"):
        choose_run_dir("~nobody-here/run", "photos", "", resume=False)
    assert list(tmp_path.iterdir()) == []


def test_a_home_folder_is_put_in_and_names_that_begin_like_one_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert expand_home("~/a/~b") == tmp_path / "a" / "~b"
    assert expand_home("./~nobody-here") == Path("~nobody-here")
    (tmp_path / "~kept").touch()
    assert expand_home("~kept").is_file()


@pytest.mark.usefixtures("homeless")
def test_an_audit_without_a_home_folder_keeps_nothing_and_says_so(vitreous, digits):
    run = vitreous("audit", digits, "--json=-")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["pictures"] == 60
    why = "there is no home folder: set XDG_CACHE_HOME"
    assert f"the results of the inspection cannot be cached for the next audit: {why}\n" in run.stderr


@pytest.mark.usefixtures("homeless")
def test_doctor_says_that_there_is_no_home_folder(vitreous):
    lines = {line.split()[0]: line for line in vitreous("doctor").stdout.splitlines()}
    assert lines["cache"].split(maxsplit=1)[1] == "none: there is no home folder: set XDG_CACHE_HOME"
