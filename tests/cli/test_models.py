"""`vitreous models`: published parameter counts, and cost by depth against the full computation."""

import pytest

from vitreous.accelerate.cost import cost
from vitreous.cli.verbs.models import _cost
from vitreous.model.sizes import SIZES, config_of


def test_parameter_counts_are_the_published_ones(vitreous):
    run = vitreous("models", "B/16", "Ti")
    assert run.returncode == 0
    rows = {line.split()[0]: line.split() for line in run.stdout.splitlines() if line.strip()}
    assert rows["B/16"][1:9] == ["224", "16", "768", "12", "12", "3072", "197", "86,567,656"]
    assert rows["Ti"][8] == "5,717,416"
    assert "384" in vitreous("models", "B/16", "--image-size", "384").stdout


def test_sizes_that_do_not_fit_are_reported(vitreous):
    run = vitreous("models", "--image-size", "64x96", "--num-classes", "10")
    assert run.returncode == 0
    listed = [line.split()[0] for line in run.stdout.splitlines() if "64x96" in line]
    left_out = [line.split()[0] for line in run.stderr.splitlines() if "left out" in line]
    assert sorted(listed + left_out) == sorted(SIZES)
    assert left_out == ["H", "g", "G", "So400m"]


@pytest.mark.parametrize("name", ["mu", "Ti/32", "128x6", "256x24"])
def test_cost_by_depth_is_exact(name):
    full = cost(config_of(name))
    assert _cost(config_of(name)) == (full.parameters, full.flops, full.activation_bytes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["b"], "there is no model size 'b'. Did you mean 'B'?"),
        (["B/x"], "'B/x': the part after / is the patch size in pixels"),
        (["H/14", "--image-size", "225"], "image size 225 is not a multiple of patch size 14"),
    ],
)
def test_invalid_sizes_are_exit_code_2(vitreous, words, said):
    run = vitreous("models", *words)
    assert run.returncode == 2
    assert run.stderr.startswith(f"vitreous: {said}")
    assert run.stderr.count("\n") == 1
