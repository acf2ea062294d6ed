"""Training of weights below the head, from the best head, and the average of the result with its start.

Linear probing before fine-tuning keeps the features from being distorted by a random head (LP-FT, arXiv 2202.10054).
The average of the weights before and after often generalises better than either (WiSE-FT, arXiv 2109.01903).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import add_gradients, num_parts
from vitreous.errors import OutputError, TrainingError, pluralize
from vitreous.machine.free_memory import memory_left
from vitreous.runs.folder import RunDir
from vitreous.runs.folder_content import remove_unfinished
from vitreous.train.assembly import Kit, Session, assemble
from vitreous.train.finetune.stages.outcome import Candidate, Outcome, beats
from vitreous.train.finetune.stages.staging import Staging, variant, whole_state
from vitreous.train.finetune.stages.writers import guarded_writer
from vitreous.train.finetune.trainable import freeze_modules, merge_adapters
from vitreous.train.loop.out_of_memory import is_out_of_memory, release_memory
from vitreous.train.phases import ask_teacher, check_budget, fit, score, select_weights
from vitreous.train.planning.trials import synchronize
from vitreous.train.resume.saving import load_newest
from vitreous.train.resume.signals import Stopped
from vitreous.train.resume.state import RunState, check_identity, identity
from vitreous.train.setup import Setup, one_thread_if_tiny

__all__ = ["ALPHAS", "average_with_start", "quick_step_seconds", "step_seconds", "train_stage"]

ALPHAS = (0.5, 0.75)
"""Weights of the trained model in the averages with its start."""

_TIMED = 32  # most images of a timed step
_REPEATS = 3
_QUICK, _QUICK_SECONDS = (2, 8, _TIMED), 0.1  # images of steps that are timed first, while they take less time
_USABLE = 0.7  # of the free main memory, for a timed step


def quick_step_seconds(setup: Setup) -> float | None:
    """Estimate the time of a training step from few images: it takes little time, and errs on the high side.

    None if not one image fits into memory.
    """
    whole, batch = _Step(setup.pipeline.size, 0.0), _batch_of(setup)
    for most in _QUICK:
        if (timed := _time_fitting(setup, whole, most, repeats=2)) is None:
            return None
        seconds, count = timed
        if seconds > _QUICK_SECONDS or count < most:
            break
    return seconds * batch / count


def step_seconds(setup: Setup, at_most: float, quick: float | None = None) -> tuple[float, float] | None:
    """Measure the time of a training step of the model and a teacher: the mean over the run, and that of a whole step.

    About `at_most` seconds are spent on it, by the time of a few images: `quick`, if :func:`quick_step_seconds` has
    found it already. None if not one image fits into memory.

    A run may begin with smaller images, or drop patches at first.
    """
    config, batch = setup.config, _batch_of(setup)
    if quick is None and (quick := quick_step_seconds(setup)) is None:
        return None
    whole = _Step(setup.pipeline.size, 0.0)
    shares: dict[_Step, float] = {whole: 0.0}
    for start, end in config.phases:
        middle = (start + end) / 2
        height, width = (config.augment.side_at(side, middle) for side in setup.pipeline.size)
        step = _Step((height, width), config.patches_dropped(middle))
        shares[step] = shares.get(step, 0.0) + end - start
    of_image = quick / batch
    most = max(_QUICK[0], min(_TIMED, int(at_most / (len(shares) * _REPEATS * max(of_image, 1e-9)))))
    seconds: dict[_Step, float] = {}
    for step in shares:
        if (timed := _time_fitting(setup, step, most)) is None:
            return None
        seconds[step] = timed[0] * batch / timed[1]
    if config.budget is None:
        return sum(share * seconds[step] for step, share in shares.items()), seconds[whole]
    # With a budget, phases are shares of the time, not of the steps.
    return 1 / sum(share / seconds[step] for step, share in shares.items()), seconds[whole]


class _Step(NamedTuple):
    size: tuple[int, int]  # of its images
    dropped: float  # fraction of their patches


def _batch_of(setup: Setup) -> int:
    return min(setup.config.batch_size, len(setup.data.splits["train"]))


def _time_fitting(setup: Setup, step: _Step, most: int, repeats: int = _REPEATS) -> tuple[float, int] | None:
    """Time a step on at most `most` images; return its seconds and the number of images, None if not one fits."""
    count = min(most, _batch_of(setup), _images_in_memory(setup))
    while count:
        try:
            return _time_step(setup, count, step, repeats), count
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        count //= 2
        release_memory()
    return None


def _images_in_memory(setup: Setup) -> int:
    """Return how many images of a step fit into main memory: Linux ends a program that takes more, a GPU refuses it."""
    free = memory_left() if setup.device.type == "cpu" else None
    if free is None:
        return _TIMED
    gradients = 4 * _trained(setup)  # bytes
    return max(0, int((_USABLE * free - gradients) / setup.cost.activation_bytes))


def _time_step(setup: Setup, count: int, step: _Step, repeats: int) -> float:
    """Return the shortest step but the first, on so many images, with what a teacher computes in each."""
    model, classes = setup.model.to(setup.device).train(), setup.config.model.num_classes
    freeze_modules(model)
    dropped, model.patch_dropout = model.patch_dropout, step.dropped
    images = torch.zeros(count, setup.pipeline.channels, *step.size, device=setup.device)
    targets = torch.full((count, classes), 1 / classes).to(setup.device)
    times: list[float] = []
    try:
        with one_thread_if_tiny(setup), torch.autocast(setup.device.type, torch.bfloat16, setup.precision == "bf16"):
            for _ in range(repeats):
                started = time.perf_counter()
                if setup.distiller is not None and setup.distiller.in_loop:
                    setup.distiller.answer_now(images)
                if (parts := num_parts(model, images)) > 1:
                    add_gradients(model, images, targets, parts)
                else:
                    F.cross_entropy(model(images).float(), targets).backward()
                synchronize(setup.device)
                times.append(time.perf_counter() - started)
    finally:  # also where memory is short
        model.patch_dropout = dropped
        model.zero_grad(set_to_none=True)
    return min(times[1:] or times)


def train_stage(staging: Staging, mode: str, start: Candidate) -> tuple[Outcome, Session | None]:
    """Train in a mode from a candidate, or continue a training that was killed.

    Return the outcome, and the session for further validations; None if the training failed.
    """
    began = time.monotonic()
    try:
        session = _open(staging, mode, start)
        with _best_kept(session):
            fit(session)
            selected, _ = select_weights(session)
    except TrainingError as error:  # a head is found already
        return Outcome(mode, time.monotonic() - began, skipped=f"its training failed: {error}"), None
    setup = session.setup
    setup.model.load_state_dict(selected.weights)
    weights = {name: value.detach().cpu() for name, value in merge_adapters(setup.model).state_dict().items()}
    weights = {name: value.clone() for name, value in weights.items()}
    candidate = Candidate(setup.config.model, weights, selected.logits, selected.labels, selected.epoch)
    history = session.metrics.history
    detail = f"epoch {selected.epoch} of {len(history)}, {pluralize(_trained(setup), 'weight')}"
    facts = {"seconds": session.training_seconds(), "detail": detail, "trained": _trained(setup)}
    return Outcome.of(mode, candidate, **facts, history=list(history)), session


@contextlib.contextmanager
def _best_kept(session: Session) -> Iterator[None]:
    """After a signal, write the best epoch so far if no earlier stage is better: epochs are written at intervals."""
    try:
        yield
    except Stopped as stopped:
        if not stopped.at_once:
            session.writer.save_interrupted(session.selection.best, session.module.eval_model)
        raise


def _trained(setup: Setup) -> int:
    return sum(p.numel() for p in setup.model.parameters() if p.requires_grad)


def _open(staging: Staging, mode: str, start: Candidate) -> Session:
    """Assemble the session of a stage, new or from its last checkpoint."""
    view, run_dir = staging.view, staging.run_dir
    folder = _folder(run_dir.path, mode)
    setup = variant(staging.setup, start, mode)
    state: RunState | None = None
    if run_dir.has_run and (found := load_newest(folder, lambda line: view.line("damaged", line))):
        path, state = found
        check_identity(state.identity, identity(setup), f"'{path}'")
        view.line("resume", f"{path}: continues from {state.where}")
    if setup.distiller is not None:
        setup.distiller.restart(setup.config)
    best = staging.best
    incumbent = best.candidate if best and best.candidate else start
    kit = Kit(
        writer=lambda setup, *_: guarded_writer(setup, run_dir.path, incumbent),
        ending=lambda *_: (staging.map_seconds, staging.reporting),
        later_validations=len(ALPHAS) if mode != "lora" else 0,
        run_folder=run_dir.path,
    )
    before = 0.0 if state is not None else staging.used_before  # a state counts them itself
    own_dir = RunDir(folder, run_dir.lock, state is not None)
    times = {"started": staging.started - before, "exit_seconds": 0.0}
    session = assemble(setup, own_dir, view, staging.signals, state, **times, kit=kit)
    ask_teacher(session, state)
    if state is None:
        check_budget(session)  # images were decoded, and a teacher asked
    return session


def _folder(run_dir: Path, mode: str) -> Path:
    """Create the folder of a stage, and remove what a killed process left unfinished in it.

    A link in its place is refused, because files would be written through it.
    """
    folder = run_dir / "stages" / mode
    for each in (folder.parent, folder):
        if os.path.lexists(each) and (each.is_symlink() or not each.is_dir()):
            raise OutputError(
                f"'{each}' is a link or a file where a run keeps its stages: remove it, or use another --out"
            )
        try:
            each.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(f"'{each}' cannot be created: {error.strerror or error}") from error
    remove_unfinished(folder)
    return folder


def average_with_start(staging: Staging, trained: Outcome, start: Candidate, session: Session) -> Outcome:
    """Score averages of the weights before and after a training, and return the best of them."""
    began, after = time.monotonic(), trained.candidate
    assert after is not None
    before, module, best = whole_state(staging.setup, start), session.module, None
    select = staging.setup.config.select
    for alpha in ALPHAS:
        weights = _mean(before, after.tensors, alpha)
        module.eval_model.load_state_dict(weights)
        with one_thread_if_tiny(session.setup), _best_kept(session):
            scored = score(session, session.setup.data_module.val_dataloader())
        candidate = Candidate(after.config, weights, scored.logits, scored.labels, after.epoch)
        if best is None or beats(select, candidate.scores, best[1].scores):
            best = alpha, candidate
    assert best is not None
    detail = f"{best[0]:g} of {trained.stage} and {1 - best[0]:g} of its start"
    facts = {"seconds": time.monotonic() - began, "detail": detail, "trained": trained.trained}
    return Outcome.of(f"{trained.stage}, averaged", best[1], **facts, history=trained.history)


def _mean(before: Mapping[str, Tensor], after: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    return {
        name: before[name].lerp(value, alpha) if value.is_floating_point() else value for name, value in after.items()
    }
