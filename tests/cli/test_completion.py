"""Completion in real shells: verbs, options, values and files, without starting Python."""

import contextlib
import io
import shutil
import subprocess
import sys

import pytest

from vitreous.cli.main import VERBS, main

ASK = """
source ./script
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function_name=$(complete -p vitreous | sed 's/.*-F \\([^ ]*\\).*/\\1/')
PATH=/usr/bin:/bin  # no vitreous: nothing may be asked of it
$function_name vitreous "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$((COMP_CWORD - 1))]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script for each shell: that for bash by the command, the others by its entry point."""
    words = [sys.executable, "-m", "vitreous", "completion", "bash"]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    found = {"bash": run.stdout}
    for shell in ("zsh", "fish"):
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            assert main(["completion", shell]) == 0
        assert errors.getvalue() == ""
        found[shell] = printed.getvalue()
    return found


@pytest.fixture
def complete(scripts, tmp_path):
    """What bash offers for a command line whose last word is being typed."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not here")
    (tmp_path / "script").write_text(scripts["bash"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.jpg").touch()

    def ask(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", ASK, "bash", "vitreous", *words]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
        assert run.stderr == "", run.stderr
        return set(run.stdout.split())

    return ask


def test_every_verb_is_offered(complete):
    assert set(VERBS) <= complete("")
    assert complete("pr") == {"predict", "pretrain", "probe"}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["predict", "--prec"], ["--precision"]),
        (["predict", "m", "x.jpg", "--format", ""], ["table", "jsonl", "csv"]),
        (["predict", "--overw"], ["--overwrite"]),
        (["train", "--optim.l"], ["--optim.lr"]),
        (["train", "--recipe", "cifar10-"], ["cifar10-cpu", "cifar10-gpu"]),
        (["train", "--model", "Ti"], ["Ti"]),
        (["train", "--help", "op"], ["optim"]),
        (["finetune", "-h", ""], ["run", "data", "model", "all"]),
        (["finetune", "--fr"], ["--from"]),
        (["convert", "--to", "tim"], ["timm"]),
        (["replay", "--js"], ["--json"]),
        (["completion", "z"], ["zsh"]),
        (["predict", "pho"], ["photos", "photo.jpg"]),
        (["train", "--out", "pho"], ["photos", "photo.jpg"]),
        (["audit", "--html", "pho"], ["photos", "photo.jpg"]),
    ],
    ids=" ".join,
)
def test_bash_offers(complete, words, offered):
    found = {word.rstrip("/") for word in complete(*words)}
    assert set(offered) <= found
    if words[-1]:
        assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(scripts, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    (tmp_path / "script").write_text(scripts[shell])
    run = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_an_unknown_shell_is_answered_with_the_nearest(capsys):
    assert main(["completion", "bahs"]) == 2
    assert "it must be one of bash, zsh, fish. Did you mean 'bash'?" in capsys.readouterr().err
