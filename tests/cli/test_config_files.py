"""Files of --config: plain YAML or JSON of bounded size; every other file is rejected quickly, in one line."""

from __future__ import annotations

import os
import time

import pytest

from vitreous.cli.verbs.train import configure
from vitreous.errors import UsageError

BOMB = "a: &a [x, x, x]\n" + "".join(
    f"b{n}: &b{n} [{', '.join(['*a' if not n else f'*b{n - 1}'] * 9)}]\n" for n in range(30)
)


def refused(words: list[str]) -> str:
    began = time.process_time()
    with pytest.raises(UsageError) as caught:
        configure(["digits", *words])
    assert time.process_time() - began < 3  # the parser of all options is made too
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "alias or an anchor in line 1"),
        ("a: &a [*a]\n", "alias or an anchor"),
        ("a: " + "[" * 300 + "]" * 300, "nested more than 16 deep"),
        ("a: " + "[" * 50_000, "--config"),  # not valid, or nested too deep: Python says how far it recurses
        ("\n".join(f"k{n}: 1" for n in range(20_000)), "more than 10,000 values"),
        ("epochs: 1" + ":1" * 60_000, "more than 10,000 characters"),
        ("a: " + "x" * 300_000, "300,003 bytes, the limit is 262,144"),
        ("epochs: 3\nepochs: 4\n", "has 'epochs' twice, again in line 2"),
        ("optim:\n  lr: 1\n  lr: 2\n", "has 'lr' twice, again in line 3"),
        ("a: !!python/object/apply:os.system [ls]\n", "has the tag"),
        ("optim:\n  class_path: os.system\n", "'class_path' in line 2, which is not an option"),
        ("optim: other.yaml\n", "no settings below 'optim' in line 1"),
        ("model:\n", "no settings below 'model' in line 1"),
        ("epochs: 3\noptim:\n", "no settings below 'optim' in line 2"),
        ("data: null\n", "no settings below 'data' in line 1"),
        ("- a\n", "has no options"),
        ("", "has no options"),
        ("a: [1\n", "is not valid YAML in line 2"),
        ("1.5: 3\n", "a name that is not text"),
        ('out: "a\\0b"\n', "a NUL character in line 1"),
        (b"\xff\xfe\x00", "is not a text file (byte 0)"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, text, said):
    (tmp_path / "c.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert said in refused(["--config", str(tmp_path / "c.yaml")])


def test_unreadable_files_are_rejected(tmp_path):
    (tmp_path / "recipe.yaml").write_text("epochs: 3\n")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("recip.yaml", "there is no such file. Did you mean 'recipe.yaml'?"),
        ("", f"it is a folder. Its recipe is '{tmp_path / 'recipe.yaml'}'"),
        ("pipe", "a pipe, not a regular file"),
        ("a\0b", "null byte"),
        ("a" * 5000, "File name too long"),
    ):
        assert said in refused(["--config", os.path.join(tmp_path, name).rstrip("/")])
    assert "a device, not a regular file" in refused(["--config=/dev/zero"])
    assert "it has settings below it" in refused([f"--optim={tmp_path / 'recipe.yaml'}"])


def test_yaml_and_json_are_equivalent(tmp_path):
    (tmp_path / "c.yaml").write_text("epochs: 3\noptim:\n  lr: 1e-3\n")
    (tmp_path / "c.json").write_text('{"epochs": 3, "optim": {"lr": 1e-3}}')
    yaml, json = (configure(["digits", "--config", str(tmp_path / f"c.{kind}")])[0] for kind in ("yaml", "json"))
    assert yaml == json
    assert (yaml.epochs, yaml.optim.lr) == (3, 1e-3)
