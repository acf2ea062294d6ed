"""Requests made from the service's own OpenAPI description, and damaged images: no 5xx, and no answer it does not name.

`benchmarks/serving/schema.py` makes thousands of cases, with sequences of requests; here are a few of each kind.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    """The folder of the benchmarks, from which tests take generators of images."""
    sys.path.insert(0, str(BENCHMARKS))
    yield BENCHMARKS
    sys.path.remove(str(BENCHMARKS))


def test_generated_requests_get_only_answers_that_are_described(service, benchmarks):
    from serving.schema import violations

    counts, wrong = violations(service.url, cases=6, seed=1, thorough=False)
    assert wrong == []
    assert counts["cases"] >= 30


def test_examples_of_the_description_are_accepted(service):
    paths = service.json("GET", "/openapi.json")["paths"]
    tried = 0
    for path, methods in paths.items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        for example in content.get("application/json", {}).get("examples", {}).values():
            body = json.dumps(example["value"]).encode()
            status, _, answer = service.request("POST", path, body, Content_Type="application/json")
            assert status == 200, (path, answer)
            tried += 1
    assert tried >= 6


def test_damaged_images_get_2xx_or_4xx(service, benchmarks):
    from serving.schema import fuzzed_images

    statuses = {service.request("POST", "/v1/predict", content)[0] for content in fuzzed_images(per_kind=3, seed=2)}
    assert statuses <= {200, 413, 415, 422}
    assert {200, 415, 422} <= statuses
