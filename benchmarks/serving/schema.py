"""Send a service thousands of requests made from its OpenAPI description, and damaged images of every kind.

    python benchmarks/serving/schema.py http://127.0.0.1:8000 [--cases 100] [--images 40] [--seed 1]

Schemathesis makes the requests: examples, values at the edges of every parameter, random ones, and sequences in which
one answer gives the next request its parameters. It complains of a 5xx and of any status, type, header or document that
the description does not name. The images are those of `fuzzing/images.py`; a service may answer with 2xx or 4xx only.
Exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import random
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from fuzzing.image_builders import BUILT
from fuzzing.image_mutations import KINDS, files, large_png, mutated
from fuzzing.images import photographs

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "unsupported_method"),
)


def violations(url: str, cases: int, seed: int, thorough: bool = True) -> tuple[dict[str, int], list[str]]:
    """Return counts, and a line per violation.

    ``cases`` is the number of random requests per operation; ``thorough`` adds the edges of parameters and sequences.
    """
    phases = ["examples", *(["coverage", "stateful"] if thorough else []), "fuzzing"]
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or "schemathesis"
    words = [program, "run", f"{url}/openapi.json", "--phases", ",".join(phases), "--checks", ",".join(CHECKS)]
    words += ["--max-examples", str(cases), "--seed", str(seed), "--generation-database", "none", "--no-color"]
    words += ["--request-timeout", "120", "--warnings", "off", "--suppress-health-check", "all"]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    summary = re.search(r"(\d[\d,]*) generated", run.stdout)
    counts = {"cases": int(summary[1].replace(",", "")) if summary else 0}
    if run.returncode == 0:
        return counts, []
    found = re.findall(r"^(?:- (.+)|(Network Error|\w+Error.*))$", run.stdout, re.MULTILINE)
    lines = [first or second for first, second in found] or run.stdout.strip().splitlines()[-5:] or [run.stderr[-500:]]
    return counts, lines


def fuzzed_images(per_kind: int, seed: int) -> Iterator[bytes]:
    """Yield whole, damaged and hostile image files."""
    shown = photographs(None)
    whole = files(shown)
    for kind in (*KINDS, *BUILT):
        chance = random.Random(f"{kind} {seed}")
        for _ in range(per_kind if kind in BUILT or kind in whole else 0):
            content = BUILT[kind](chance) if kind in BUILT else chance.choice(whole[kind])
            if kind in KINDS and chance.random() < 0.8:
                content = mutated(content, chance)[0]
            yield content
    yield whole["jpeg"][0]
    yield large_png()


def main() -> int:
    """Run both, and print what came back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="address of a running `vitreous serve`")
    parser.add_argument("--cases", type=int, default=100, help="random requests per operation and phase")
    parser.add_argument("--images", type=int, default=40, help="files of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts, wrong = violations(options.url, options.cases, options.seed)
    print(f"{counts['cases']:,} generated requests, {len(wrong)} violations")
    parts = urllib.parse.urlsplit(options.url)
    statuses: collections.Counter[int] = collections.Counter()
    for number, content in enumerate(fuzzed_images(options.images, options.seed)):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        connection.request("POST", "/v1/predict", content)
        statuses[status := connection.getresponse().status] += 1
        connection.close()
        if not (200 <= status < 300 or 400 <= status < 500):
            wrong.append(f"image {number}: {status}")
    print(f"{sum(statuses.values()):,} images: {dict(sorted(statuses.items()))}")
    for line in wrong:
        print(f"WRONG {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
