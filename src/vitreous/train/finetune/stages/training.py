"""Training of weights below the head, from the best head, and the average of the result with its start.

Linear probing before fine-tuning keeps the features from being distorted by a random head (LP-FT, arXiv 2202.10054).
The average of the weights before and after often generalises better than either (WiSE-FT, arXiv 2109.01903).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import add_gradients, num_parts
from vitreous.data.sources.listing import pluralize
from vitreous.errors import NonFiniteError, OutputError
from vitreous.runs.folder import RunDir
from vitreous.train.assembly import Kit, Session, rebuild
from vitreous.train.callbacks import is_better
from vitreous.train.finetune.stages.outcome import Candidate, Outcome
from vitreous.train.finetune.stages.staging import Staging, variant, whole_state
from vitreous.train.finetune.trainable import freeze_modules, merge_adapters
from vitreous.train.phases import ask_teacher, fit, score, select_weights
from vitreous.train.progress import Budget, Clock, Steps
from vitreous.train.results import RunWriter, SelectedWeights
from vitreous.train.resume.saving import Saver, load_newest
from vitreous.train.resume.state import RunState, check_identity, check_position, identity, report_mismatch
from vitreous.train.setup import Setup, one_thread_if_tiny

__all__ = ["ALPHAS", "average_with_start", "step_seconds", "train_stage"]

ALPHAS = (0.25, 0.5, 0.75)
"""Weights of the trained model in the averages with its start."""

_TIMED = 32  # most images of a timed step


class _Guarded(RunWriter):
    """Writes the best model of a training only if it beats those of earlier stages."""

    def __init__(self, setup: Setup, folder: Path, incumbent: Candidate, select: str) -> None:
        super().__init__(setup, folder)
        self._incumbent, self._select = incumbent, select

    def save_best(self, selected: SelectedWeights) -> None:
        if is_better(self._select, selected.scores, self._incumbent.scores):
            super().save_best(selected)


def step_seconds(setup: Setup) -> float:
    """Measure the time of a training step of the model alone: the shorter of two, on part of a batch."""
    model, size = setup.model.to(setup.device).train(), setup.pipeline.size
    freeze_modules(model)
    count = min(_TIMED, setup.config.batch_size, len(setup.data.splits["train"]))
    images = torch.zeros(count, setup.pipeline.channels, *size, device=setup.device)
    targets = torch.full((count, setup.config.model.num_classes), 1 / setup.config.model.num_classes).to(setup.device)
    times = []
    with one_thread_if_tiny(setup), torch.autocast(setup.device.type, torch.bfloat16, setup.precision == "bf16"):
        for _ in range(3):  # the first is a warm-up
            started = time.perf_counter()
            if (parts := num_parts(model, images)) > 1:
                add_gradients(model, images, targets, parts)
            else:
                F.cross_entropy(model(images).float(), targets).backward()
            if setup.device.type == "cuda":
                torch.cuda.synchronize(setup.device)
            times.append(time.perf_counter() - started)
    model.zero_grad(set_to_none=True)
    return min(times[1:]) * min(setup.config.batch_size, len(setup.data.splits["train"])) / count


def train_stage(staging: Staging, mode: str, start: Candidate) -> tuple[Outcome, Session | None]:
    """Train in a mode from a candidate, or continue a training that was killed.

    Return the outcome, and the session for further validations; None if the training failed.
    """
    began = time.monotonic()
    try:
        session = _open(staging, mode, start)
        fit(session)
        selected, _ = select_weights(session)
    except NonFiniteError as error:
        return Outcome(mode, time.monotonic() - began, skipped=f"its training failed: {error}"), None
    setup = session.setup
    setup.model.load_state_dict(selected.weights)
    weights = {name: value.detach().cpu() for name, value in merge_adapters(setup.model).state_dict().items()}
    weights = {name: value.clone() for name, value in weights.items()}
    candidate = Candidate(setup.config.model, weights, selected.logits, selected.labels, selected.epoch)
    history = session.metrics.history
    detail = f"epoch {selected.epoch} of {len(history)}, {pluralize(_trained(setup), 'weight')}"
    seconds = session.training_seconds()
    return Outcome.of(mode, candidate, seconds=seconds, detail=detail, history=list(history)), session


def _trained(setup: Setup) -> int:
    return sum(p.numel() for p in setup.model.parameters() if p.requires_grad)


def _open(staging: Staging, mode: str, start: Candidate) -> Session:
    """Assemble the session of a stage, new or from its last checkpoint."""
    view, lock = staging.view, staging.run_dir.lock
    folder = _folder(staging.run_dir.path, mode)
    setup = variant(staging.setup, start, mode)
    state: RunState | None = None
    settings = identity(setup)
    if staging.run_dir.has_run and (found := load_newest(folder, lambda line: view.line("damaged", line))):
        path, state = found
        check_identity(state.identity, settings, f"'{path}'")
        check_position(state, setup, Kit().score_columns(setup))
        view.line("resume", f"{path}: continues from {state.where}")
    if setup.distiller is not None:
        setup.distiller.restart(setup.config)
    config, best = setup.config, staging.best
    writer = _Guarded(setup, staging.run_dir.path, best.candidate if best and best.candidate else start, config.select)
    clock: Clock = Steps(config.steps or config.epochs * setup.data_module.steps_per_epoch)
    if staging.budget is not None:
        before = 0.0 if state is not None else staging.used_before  # a state counts them itself
        clock = Budget(staging.started - before, staging.budget, staging.reporting)
    with view.counting("decoding") as count:
        setup.data_module.progress = count
        setup.data_module.setup("fit")
    if config.compile:
        setup.model.compile()
    run_dir = RunDir(folder, lock, state is not None)
    session = Session(setup, run_dir, view, staging.signals, writer, Saver(folder, lock), clock, settings)
    session.later_validations = len(ALPHAS) if mode != "lora" else 0
    rebuild(session, state)
    if state is not None:
        with report_mismatch():
            clock.restore(state.clock)
        session.saver.saved = state.where
    ask_teacher(session, state)
    return session


def _folder(run_dir: Path, mode: str) -> Path:
    """Create the folder of a stage; a link in its place is refused, because files would be written through it."""
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
    return folder


def average_with_start(staging: Staging, trained: Outcome, start: Candidate, session: Session) -> Outcome:
    """Score averages of the weights before and after a training, and return the best of them."""
    began, after = time.monotonic(), trained.candidate
    assert after is not None
    before, module, best = whole_state(staging.setup, start), session.module, None
    select = "top1" if staging.setup.config.select == "last" else staging.setup.config.select
    for alpha in ALPHAS:
        weights = _mean(before, after.tensors, alpha)
        module.eval_model.load_state_dict(weights)
        with one_thread_if_tiny(session.setup):
            scored = score(session, session.setup.data_module.val_dataloader())
        candidate = Candidate(after.config, weights, scored.logits, scored.labels, after.epoch)
        if best is None or is_better(select, candidate.scores, best[1].scores):
            best = alpha, candidate
    assert best is not None
    detail = f"{best[0]:g} of {trained.stage} and {1 - best[0]:g} of its start"
    seconds = time.monotonic() - began
    return Outcome.of(f"{trained.stage}, averaged", best[1], seconds=seconds, detail=detail, history=trained.history)


def _mean(before: Mapping[str, Tensor], after: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    return {
        name: before[name].lerp(value, alpha) if value.is_floating_point() else value for name, value in after.items()
    }
