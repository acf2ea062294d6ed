"""The tables of docs/explanation/scale-on-paper.md, as Markdown. No number in them is typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scale.lost_time import Outcome, failure_noticed, simulate
from scale.paper import DAY, Case, StepModel, published, work_of
from scale.paper_inputs import DATASETS, INPUTS, STEPS

__all__ = ["GPUS", "TABLES", "runs_table"]

GPUS = (8, 16, 32, 64, 128, 256, 512)
_SCALED = 21_561, 128  # images/s of ViT g/14 on so many H100, NeMo user guide: not used for the fit


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _number(value: float) -> str:
    """Write a number with three digits and a separator of thousands, without an exponent."""
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if abs(value) >= 100 else f"{float(digits):,.3g}"


def inputs_table() -> str:
    """Return all inputs with their sources."""
    rows = [(f"`{name}`", f"{i.value:,.4g}", i.unit, i.label, i.source) for name, i in INPUTS.items()]
    return _table(("input", "value", "unit", "label", "source"), rows)


def steps_table() -> str:
    """Return the published steps, what the fitted model says of them, and of one that it was not fitted to."""
    model, rows = published(), []
    for each in STEPS:
        fitted = model.overhead + model.per_unit * each.images * work_of(each.size, 1000).flops
        rows.append(
            (each.size, 1, f"{each.images:.0f}", f"{1e3 * each.seconds:.1f}", f"{1e3 * fitted:.1f}", each.source)
        )
    rate, gpus = _SCALED
    case = replace(Case.of("jft", "g/14", gpus, layout="disk"), work=work_of("g/14", 1000))
    said = f"not used for the fit: {STEPS[1].source.split(',')[0]}, 16 machines"
    share, taken = case.batch // gpus, case.batch / rate
    rows.append(("g/14", gpus, share, f"{1e3 * taken:.1f}", f"{1e3 * (case.computing + case.exchange):.1f}", said))
    head = ("size", "GPUs", "images per GPU", "published, ms", "model, ms", "source")
    text = f"Fitted: {1e3 * model.overhead:.1f} ms for each step, and {1e-12 / model.per_unit:.0f} TFLOP/s."
    return f"{_table(head, rows)}\n\n{text}"


def data_table() -> str:
    """Return bytes and requests of the datasets."""
    rows = []
    for name, dataset in DATASETS.items():
        few, many = (Case.of(name, "B/16", gpus, step=StepModel(0.0, 0.0)) for gpus in (GPUS[0], GPUS[-1]))
        each = replace(many, layout="images")
        rows += [
            (
                *(dataset.title, f"{dataset.images:,}", f"{few.bytes / 1e12:.2f} TB"),
                *(f"{few.bytes / few.given['shard_bytes']:,.0f}", f"{each.requests_per_epoch:,.0f}"),
                *(f"{case.bytes_per_epoch / 1e12:,.1f} TB, {case.requests_per_epoch:,.0f}" for case in (few, many)),
                f"{few.list_bytes / 1e9:.1f} GB, {few.list_bytes * few.gpus / 1e9:.0f} GB",
            )
        ]
    head = ("dataset", "images", "size", "shards", "requests per epoch, one for each image")
    head += tuple(f"bytes and requests per epoch, shards, {gpus} GPUs" for gpus in (GPUS[0], GPUS[-1]))
    return _table((*head, "list of images, each process and each machine"), rows)


def runs_table(outcomes: Iterable[Outcome]) -> str:
    """Return a row for each number of GPUs."""
    rows = []
    for o in outcomes:
        case, (cause, share) = o.case, o.bottleneck
        per_gpu, epochs = o.images_per_second / case.gpus, o.step * case.steps / case.dataset.epochs
        rows.append(
            (
                *(
                    case.gpus,
                    f"{case.batch / case.gpus:.0f}",
                    f"{1e3 * case.computing:.1f}",
                    f"{1e3 * case.exchange:.2f}",
                ),
                *(f"{1e3 * o.step:.1f}", f"{per_gpu:,.0f}, {per_gpu * case.given['image_bytes'] / 1e6:.0f} MB"),
                *(f"{case.bytes_per_epoch / epochs / 1e9:.1f} GB", _number(case.requests_per_epoch / epochs)),
                *(_number(o.total / DAY), _number(case.failures_per_day), f"{100 * o.useful:.0f} %"),
                *(f"{cause}, {100 * share:.0f} %", f"{_number(case.price(o.total))}"),
            )
        )
    head = ("GPUs", "images per GPU", "computing, ms", "visible exchange, ms", "step, ms", "input per GPU and second")
    head += ("store per second", "requests per second", "days", "failures per day", "useful", "first bottleneck", "$")
    return _table(head, rows)


def checkpoints_table() -> str:
    """Return what a checkpoint and a failure cost."""
    rows = []
    for size in ("S/16", "B/16", "L/16", "H/14", "g/14"):
        for gpus in (8, 512):
            case = Case.of("jft", size, gpus)
            waits = failure_noticed(case)
            lost = case.failure_cost(waits)
            rent = gpus * lost / 3600 * case.given["gpu_hour"]
            rows.append(
                (
                    *(size, gpus, f"{case.state_bytes / 1e9:.2f} GB", f"{case.capture:.2f}", f"{case.write:.1f}"),
                    *(f"{100 * case.capture / case.every:.2f} %", _number(case.failures_per_day), f"{waits:.0f}"),
                    *(f"{lost / 60:.1f}", f"{rent:,.2f}", f"{case.failures_per_day * rent:,.2f}"),
                )
            )
    head = (
        "size",
        "GPUs",
        "state",
        "training waits, s",
        "writing, s",
        "of the time",
        "failures per day",
        "noticed after, s",
    )
    return _table((*head, "each costs, min", "each costs, $", "per day, $"), rows)


def changes_table() -> str:
    """Return what other settings change, for the JFT-size dataset."""
    rows = []
    for gpus in (8, 64, 512):
        base = Case.of("jft", "B/16", gpus)
        cases = {
            "B/16, shards, batch 4,096": base,
            "a request for each image": replace(base, layout="images"),
            "a copy on each machine's disk": replace(base, layout="disk"),
            "a copy on each disk, batch 32,768": replace(base, layout="disk", batch=32_768),
            "the same on spot machines": replace(base, layout="disk", batch=32_768, spot=True),
            "S/16, a copy on each disk": Case.of("jft", "S/16", gpus, layout="disk"),
            "H/14, a copy on each disk": Case.of("jft", "H/14", gpus, layout="disk"),
        }
        for name, case in cases.items():
            o = simulate(case)
            cause, share = o.bottleneck
            rows.append(
                (
                    *(gpus, name, f"{1e3 * o.step:.1f}", f"{o.images_per_second:,.0f}", _number(o.total / DAY)),
                    *(f"{100 * o.useful:.0f} %", f"{cause}, {100 * share:.0f} %", _number(case.price(o.total))),
                )
            )
    return _table(("GPUs", "run", "step, ms", "images/s", "days", "useful", "first bottleneck", "$"), rows)


def _runs_of(dataset: str) -> Callable[[], str]:
    return lambda: runs_table(simulate(Case.of(dataset, "B/16", gpus)) for gpus in GPUS)


TABLES: dict[str, Callable[[], str]] = {
    "data": data_table,
    "steps": steps_table,
    **{f"runs {dataset}": _runs_of(dataset) for dataset in DATASETS},
    "changes": changes_table,
    "checkpoints": checkpoints_table,
    "inputs": inputs_table,
}
"""The tables of the page by the name of their place in it."""
