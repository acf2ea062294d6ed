"""The files in deploy/, as far as they can be checked without a container engine."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from vitreous.cli.verbs.serve import _parser
from vitreous.serve.metrics import Metrics
from vitreous.serve.settings import Limits

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def instructions() -> list[tuple[str, str]]:
    """Word and rest of each instruction of the Containerfile."""
    lines = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text()).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line and not line.startswith("#")]


def test_the_containerfile_copies_what_exists_and_runs_what_the_command_takes():
    found = instructions()
    root = DEPLOY.parent
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((root / name).exists() for name in rest.split()[:-1]), rest
    entry = json.loads(next(rest for word, rest in found if word == "ENTRYPOINT"))
    assert entry[:2] == ["/opt/vitreous/bin/vitreous", "serve"]
    assert _parser().parse_args([*entry[2:], "/models/a.safetensors"]).host == "0.0.0.0"
    words = [word for word, _ in found]
    assert words.index("USER") < words.index("ENTRYPOINT"), "it would run as root"
    check = next(rest for word, rest in found if word == "HEALTHCHECK")
    assert "/readyz" in json.loads(check[check.index("[") :])[2]
    extras = re.search(r"/src\[([\w,]+)\]", str(found))
    assert extras
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()


def test_the_compose_file_mounts_what_exists_and_opens_ports_to_this_machine_alone():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"vitreous", "prometheus", "grafana"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).exists(), volume
    build = services["vitreous"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert float(services["vitreous"]["stop_grace_period"].rstrip("s")) > Limits().seconds + 5


def test_prometheus_scrapes_the_service():
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["vitreous:8000"]}]


def test_the_dashboard_names_only_metrics_that_exist():
    metrics = Metrics()
    metrics.model_loaded("m", {"classes": ["a"], "scores": {"test": {"top1": 0.9}}})
    metrics.predicted("m", {"label": "a", "probability": 0.5, "unsure": True})
    for labelled in (metrics.requests, metrics.rejections, metrics.reloads):
        labelled.labels(*["x"] * len(labelled._labelnames))
    for labelled in (metrics.seconds, metrics.batch_size, metrics.batch_seconds, metrics.queue, metrics.engine_up):
        labelled.labels("x")
    exposed = set(re.findall(r"^(\w+)[ {]", metrics.exposition(lambda: None).decode(), re.MULTILINE))
    dashboard = json.loads((DEPLOY / "grafana/dashboards/vitreous.json").read_text())
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    named = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            named |= set(re.findall(r"\b(?:vitreous|process)_\w+", target["expr"]))
            assert target["datasource"]["uid"] in {source["uid"] for source in sources}
    assert len(named) > 12
    assert named - exposed == set()
    own = {name for name in exposed if name.startswith("vitreous_") and not name.endswith(("_created", "_bucket"))}
    base = {re.sub(r"_(sum|count|total)$", "", name) for name in own}
    shown = {re.sub(r"_(sum|count|total|bucket)$", "", name) for name in named}
    assert base - shown == set(), "metrics without a panel"


def test_the_unit_starts_what_the_command_takes():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "vitreous.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[:2] == ["/opt/vitreous/bin/vitreous", "serve"]
    assert _parser().parse_args(words[2:]).models == ["/srv/models/flowers.safetensors"]
    assert int(unit["Service"]["TimeoutStopSec"]) > Limits().seconds + 5
    assert int(unit["Service"]["LimitNOFILE"]) > Limits().connections


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    text = (DEPLOY / "vitreous.service").read_text().replace("/opt/vitreous/bin/vitreous", "/bin/true")
    (tmp_path / "vitreous.service").write_text(text)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "vitreous.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    problems = [line for line in run.stderr.splitlines() if "vitreous.service" in line]
    assert problems == []
