"""A few of the damaged images of benchmarks/fuzzing/images.py: each is read, or refused for one reason, in little time.

They run in separate processes, because their memory is limited.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def in_process(code: str, *words: object) -> str:
    """Run code that imports the benchmark; return its output."""
    run = subprocess.run(
        [sys.executable, "-c", f"import json, sys; sys.path.insert(0, sys.argv[1]); {code}", BENCHMARKS, *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_damaged_pictures_of_every_kind_are_one_reason_or_read(tmp_path):
    output = in_process(
        "import fuzzing.images as f; from pathlib import Path; place = Path(sys.argv[2]); f.tiny_model(place)\n"
        "heard = ('png', 'heic', 'built jpeg', 'built tiff', 'special files')\n"
        "for kind in f.ALL: print(json.dumps([kind, f.work(kind, place, 8, 1, None, kind in heard)]))\n"
        "print(json.dumps(['commands', f.commands(place)]))",
        tmp_path,
    )
    found = dict(json.loads(line) for line in output.splitlines())
    assert found.pop("commands") == {}
    assert len(found) == 34
    counts = {kind: collections.Counter(each["counts"]) for kind, each in found.items()}
    for kind, each in found.items():
        assert each["wrong"] == {}, kind
        assert counts[kind].total() == 8
    assert sum(each["refused"] for each in counts.values()) > 120
    assert sum(each["read"] for each in counts.values()) > 40


def test_a_png_of_50_000_by_50_000_is_refused_before_it_is_decoded():
    output = in_process("import fuzzing.images as f; print(f.refused_large())")
    assert output == "image: 2,500,000,000 pixels, the limit for PNG is 50,000,000: save it smaller\n"


def test_the_same_seed_damages_alike():
    code = (
        "import random, hashlib, fuzzing.images as f; from fuzzing.image_mutations import files, mutated\n"
        "whole = files(f.photographs(None)); chance = random.Random(3)\n"
        "damaged = [mutated(file, chance)[0] for each in whole.values() for file in each]\n"
        "print(len(damaged), hashlib.sha256(b''.join(damaged)).hexdigest())"
    )
    first, second = (in_process(code) for _ in range(2))
    assert first == second
    assert first.startswith(("44 ", "46 "))  # without HEIC and with
