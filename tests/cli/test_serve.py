"""`vitreous serve` before it serves: what it refuses, keys, imports. `tests/serve` has the service itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="a service needs the extra `serve`")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["gone.safetensors"], 1, "no model file 'gone.safetensors'"),
        ([], 2, "MODEL is missing"),
        (["a", "--port", "99999"], 2, "--port is 99999"),
        (["a/x", "b/x"], 2, "two models are called 'x'"),
        (["a", "--api-keys", "gone.txt"], 2, "cannot read the keys in 'gone.txt'"),
        (["a", "--api-keys", ""], 2, "--api-keys is empty: give a name, or remove the option"),
        (["a", "--api-keys="], 2, "--api-keys is empty: give a name, or remove the option"),
        (["a", "--host", "192.0.2.1"], 2, "cannot listen on 192.0.2.1 port 8000"),
        (["a", "--new-key", "x"], 2, "--new-key needs a file"),
    ],
    ids=["no file", "no model", "port", "names", "keys", "unset variable", "no value", "address", "no key file"],
)
def test_what_cannot_be_served_is_told_in_one_line(vitreous, words, code, line):
    port = [] if "--port" in words or "--host" in words else ["--port", "0"]
    run = vitreous("serve", *words, *port, "--engine", "torch")
    assert run.returncode == code
    assert f"vitreous: {line}" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_a_key_is_shown_once(vitreous, tmp_path):
    run = vitreous("serve", "--new-key", "bob", "--api-keys", "keys.txt")
    assert run.returncode == 0
    key = run.stdout.strip()
    assert (tmp_path / "keys.txt").stat().st_mode & 0o077 == 0
    from vitreous.serve.http.keys import KeyFile

    assert KeyFile(tmp_path / "keys.txt").owner(key) == "bob"
    assert KeyFile(tmp_path / "keys.txt").owner(key[:-1]) is None
    assert vitreous("serve", "--new-key", "bob", "--api-keys", "keys.txt").returncode == 2


def test_a_file_without_keys_is_noted(vitreous, tmp_path):
    (tmp_path / "keys.txt").write_text("# none yet\n")
    run = vitreous("serve", "gone.safetensors", "--api-keys", "keys.txt", "--port", "0")
    assert run.returncode == 1  # there is no such model
    assert "'keys.txt' has no key, so that every request is refused: --new-key NAME adds one" in run.stderr


def test_the_process_of_http_imports_no_torch(model_file):
    code = (
        "import sys, vitreous.client, vitreous.cli.verbs.serve\n"
        "from vitreous.serve.settings import Settings, parse_models\n"
        "from vitreous.serve.http.service import Service\nfrom vitreous.serve.http.app import create_app\n"
        f"create_app(Service(Settings(parse_models([{str(model_file)!r}], {{}}))))\n"
        "sys.exit(' '.join(sorted({'torch', 'scipy', 'matplotlib'} & sys.modules.keys())) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
