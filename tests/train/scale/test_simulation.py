"""The simulation of benchmarks/scale_simulation.py against closed forms, and the program's own sampler and watch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitreous.data.batches.sampler import Share, TrainSampler
from vitreous.train.scale import watch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale_simulation  # noqa: E402
from scale.lost_time import LOST, simulate  # noqa: E402
from scale.paper import Case, StepModel, Work, fit  # noqa: E402
from scale.paper_inputs import Dataset, values  # noqa: E402
from scale.paper_tables import TABLES, runs_table  # noqa: E402
from scale.run_events import Run, arrivals, noticed_after, simulate_run  # noqa: E402
from scale.step_events import simulate_steps  # noqa: E402

PHOTOS = Dataset("photos", 1_000_000, 1000, 10, "made up")
QUIET = {"jitter": False, "decode": False, "store": False}


def case(gpus: int = 16, layout: str = "disk", batch: int = 1024, spot: bool = False, **given: float) -> Case:
    """A run of a model of 20 M parameters whose steps take 5 ms and 0.1 ms for each image."""
    work, step = Work(20_000_000, 1e10), StepModel(0.005, 0.0001)
    return Case(PHOTOS, gpus, work, step, batch, layout, spot, values(**given))


@pytest.mark.parametrize("gpus", [1, 8, 12, 64])
def test_steps_without_noise_take_computing_and_exchange(gpus):
    simulated = simulate_steps(case(gpus), count=10, **QUIET)
    assert simulated.seconds == pytest.approx(case(gpus).computing + case(gpus).exchange, rel=1e-9)


def test_exchange_moves_twice_the_gradients_where_nothing_hides_it():
    idle = replace(case(16, bus_latency=0, bucket=1e12), step=StepModel(0.005, 0.0))
    assert idle.exchange == pytest.approx(2 * 15 / 16 * 80e6 / 300e9)
    assert case(16, bus_latency=0, bucket=1e12).exchange == idle.exchange  # the last bucket is never hidden
    assert case(16, bus_latency=0, bucket=1).exchange < idle.exchange / 1e6
    assert case(1).exchange == 0


def test_the_largest_share_decides_a_step():
    assert sorted(set(case(12, batch=1000).shares())) == [82, 84]  # pairs stay together
    assert sum(case(12, batch=1000).shares()) == 1000
    assert case(12, batch=1000).computing == pytest.approx(0.005 + 84 * 0.0001)


def test_loaders_limit_steps_to_their_rate():
    slow = case(16, decode=0.01, cores_per_gpu=4)
    simulated = simulate_steps(slow, count=200, jitter=False, store=False).seconds
    assert simulated == pytest.approx(64 * 0.01 / 4, rel=0.02)
    assert simulate_steps(replace(slow, given=values(decode=1e-6)), count=20, jitter=False, store=False).seconds < 0.02


def test_a_link_limits_steps_to_its_rate():
    slow = case(16, "shards", store_rate=1e8, store_requests=1e9, decode=0)
    simulated = simulate_steps(slow, count=200, jitter=False).seconds
    assert simulated == pytest.approx(1024 * 87_700 * slow.touched / 1e8, rel=0.02)


def test_the_store_limits_steps_to_its_requests():
    slow = case(16, "images", store_requests=5500, decode=0)
    assert simulate_steps(slow, count=200, jitter=False).seconds == pytest.approx(1024 / 5500, rel=0.02)


def test_each_machine_needs_the_shards_that_its_shares_touch():
    drawn = case(64, "shards", batch=256, shard_bytes=10 * 87_700)
    images, shards = np.arange(20_480), 2048  # 10 in each
    sampler, touched = TrainSampler(len(images), 256), set()
    for plan in sampler:
        for rank in range(64):
            own = plan.indices[Share(rank, 64).of_batch(len(plan.indices))]
            touched |= {(rank // 8, int(shard)) for shard in own // 10}
    assert len(touched) / (8 * shards) == pytest.approx(drawn.touched, rel=0.02)


@pytest.mark.parametrize(
    ("name", "layout", "less", "more"),
    [
        ("jitter", "disk", 0.0, 0.1),
        ("decode", "disk", 0.001, 0.01),
        ("store_latency", "images", 0.1, 30.0),
        ("store_rate", "shards", 1e9, 1e8),
    ],
)
def test_worse_inputs_make_steps_longer(name, layout, less, more):
    better, worse = (simulate_steps(case(16, layout, **{name: value}), count=60).seconds for value in (less, more))
    assert worse > 1.02 * better


def test_the_slowest_of_more_processes_is_slower():
    waits = [
        simulate_steps(replace(case(gpus), batch=64 * gpus), count=20, decode=False, store=False) for gpus in (8, 64)
    ]
    exchanges = [replace(case(gpus), batch=64 * gpus).exchange for gpus in (8, 64)]
    assert waits[1].seconds - exchanges[1] > waits[0].seconds - exchanges[0] > 0.005 + 64 * 0.0001
    assert 0 < waits[1].longest_wait < watch._LONGEST_STEP


PLAIN = Run(steps=10_000, step=0.1, every=300.0, capture=2.0, write=10.0, restart=60.0, replace=600.0)


def test_a_run_without_events_takes_its_steps_and_checkpoints():
    assert simulate_run(PLAIN) == pytest.approx(
        {"total": 1000 + 3 * 2, "checkpoints": 3 * 2, "failures": 0, "preemption": 0, "slow GPUs": 0}
    )


def test_a_failure_costs_the_work_since_the_checkpoint_and_a_new_start():
    failed = simulate_run(replace(PLAIN, failures=[500.0], noticed=[43.0]))
    assert failed["failures"] == pytest.approx(500 - 302 + 43 + 60)
    while_writing = simulate_run(replace(PLAIN, failures=[305.0], noticed=[43.0]))
    assert while_writing["failures"] == pytest.approx(303 + 43 + 60)  # the state of 300 s is not on disk yet
    assert failed["total"] == pytest.approx(1000 + failed["checkpoints"] + failed["failures"])


def test_a_machine_taken_away_costs_no_step_if_the_notice_is_long_enough():
    taken = simulate_run(replace(PLAIN, preemptions=[500.02]))
    assert taken["preemption"] == pytest.approx(2 + 10 + 600 + 60)
    at_once = simulate_run(replace(PLAIN, preemptions=[500.0], notice=5.0))
    assert at_once["preemption"] == pytest.approx(500 - 302 + 600 + 60)


def test_a_slow_gpu_costs_its_factor_while_it_is_slow():
    slow = simulate_run(replace(PLAIN, every=1e9, slow=[100.0], slow_factor=1.5, slow_seconds=300.0))
    assert slow["slow GPUs"] == pytest.approx(100)
    assert slow["total"] == pytest.approx(1100)


def test_more_failures_cost_more():
    lost, long = [], replace(PLAIN, steps=100_000)
    for rate in (0.0, 0.0005, 0.005):
        failures = arrivals(rate, 1e5, 0, "failures")
        lost.append(simulate_run(replace(long, failures=failures, noticed=[43.0] * len(failures)))["failures"])
    assert lost[0] == 0 < lost[1] < lost[2]


@pytest.mark.parametrize(("rank", "hangs", "low", "high"), [(1, False, 0, 0), (9, False, 40, 42), (9, True, 40, 42)])
def test_the_watch_notices_a_failure_in_its_time(rank, hangs, low, high):
    assert low <= noticed_after(16, 8, rank, hangs=hangs) <= high


def test_the_same_seed_gives_the_same_numbers():
    spot = case(16, "images", spot=True, failures_per_gpu_day=5.0)
    first, again, other = (simulate(spot, seed=seed, runs=3, steps=20) for seed in (0, 0, 1))
    assert first == again
    assert first.lost != other.lost
    assert set(first.lost) == set(LOST)
    steps = first.case.ideal * first.case.steps
    assert first.total == pytest.approx(steps + sum(first.lost.values()))


def test_the_bottleneck_is_the_cause_that_costs_most():
    assert simulate(case(16, decode=0.1), runs=1, steps=40).bottleneck[0] == "decoding"
    assert simulate(case(64, "images", store_requests=1000), runs=1, steps=40).bottleneck[0] == "store"
    assert simulate(case(128, batch=256), runs=1, steps=10).bottleneck[0] == "small shares"
    assert simulate(case(64, failures_per_gpu_day=50.0), runs=1, steps=10).bottleneck[0] == "failures"


def test_step_times_are_fitted_to_what_was_measured(tmp_path):
    assert fit([(32, 0.037), (64, 0.069), (128, 0.133)]) == pytest.approx((0.005, 0.001))
    assert fit([(64, 0.064)]) == (0, 0.001)
    with pytest.raises(ValueError, match="different numbers of images"):
        fit([(64, 0.064), (64, 0.065)])
    with pytest.raises(ValueError, match="do not take longer"):
        fit([(64, 0.4), (128, 0.3)])
    assert fit([(1, 0.001), (2, 0.003)]) == pytest.approx((0, 0.0014))
    for images in (64, 128):
        (tmp_path / f"{images}.json").write_text(f'{{"batch_size": {images}, "step_seconds": {0.005 + images / 1000}}}')
    plans = scale_simulation.parse(["--plan", *map(str, sorted(tmp_path.glob("*.json")))])
    pairs = scale_simulation.parse(["--step-ms", "64:69", "128:133"])
    assert scale_simulation.measured_steps(plans) == pytest.approx(scale_simulation.measured_steps(pairs))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "store_speed=1"], "unknown input store_speed"),
        (["--gpus", "4096"], "batch 4096 is below 2 images for each of 4096 GPUs"),
        (["--plan", "absent.json"], "absent.json"),
        (["--step-ms", "64"], "--step-ms '64' has no colon"),
        (["--gpus", "0"], "0 GPUs: give at least 1"),
    ],
)
def test_wrong_words_are_one_line(words, named):
    with pytest.raises(SystemExit, match=named):
        scale_simulation.main(
            [*words, *([] if {"--plan", "--step-ms"} & set(words) else ["--step-ms", "64:69"]), "--model", "mu/16"]
        )


def test_the_page_has_what_the_script_writes():
    page = (ROOT / "docs/explanation/scale-on-paper.md").read_text(encoding="utf-8")
    places = {
        name: page.partition(f"<!-- {name} -->\n\n")[2].partition(f"\n\n<!-- end of {name} -->")[0] for name in TABLES
    }
    assert {name: places[name] for name in ("inputs", "data")} == {name: TABLES[name]() for name in ("inputs", "data")}
    smallest = runs_table([simulate(Case.of("jft", "B/16", 8))]).splitlines()[-1]
    assert smallest in places["runs jft"].splitlines()
