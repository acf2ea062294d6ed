"""The course of a run in one of several processes: the phases of train/run.py, in step with the others.

The first process opens the run directory, prints and writes; what it reads from there goes to the others. All train,
score and select alike. A signal or an error that all processes have ends them in good order; one that only some have
is for watch.py to report.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from rich.console import Console

from vitreous.data.batches.sampler import Share, TrainSampler
from vitreous.errors import ConfigError, DataError, VitreousError, pluralize
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.machine.device import choose_device
from vitreous.machine.threads import torch_threads
from vitreous.runs.folder import LAST, RunDir, choose_run_dir, is_finished, lock_run_dir
from vitreous.runs.folder_content import remove_empty_dirs
from vitreous.train.assembly import Kit, Session, assemble
from vitreous.train.config import AUTO, RunConfig
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import ProbeResult
from vitreous.train.finish import RunResult, announce_finished, end_interrupted, resume_command
from vitreous.train.loop.progress import exit_after
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.phases import announce, check_budget, fit_once, open_run_dir, select_weights, test_once
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import SelectedWeights, SplitScores
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.signals import Stopped
from vitreous.train.resume.state import RunState
from vitreous.train.run import probe, refuse_to_choose_again, write_results
from vitreous.train.scale.callbacks import NoLock, SharedCheckpoint, SharedSignals, leave_signals_alone
from vitreous.train.scale.choice import choose
from vitreous.train.scale.heartbeat import FOLDER
from vitreous.train.scale.place import Place
from vitreous.train.scale.replicated import Replicated
from vitreous.train.scale.team import Team, is_lost_connection
from vitreous.train.scale.watch import Watch
from vitreous.train.setup import Setup, prepare

__all__ = ["run_rank"]


def run_rank(
    place: Place,
    config: RunConfig,
    *,
    explicit: Collection[str] = (),
    started: float | None = None,
    view: Display | None = None,
    resume: bool = False,
) -> RunResult:
    """Do one process's part of a run. Arguments and result as :func:`vitreous.train.run.run`.

    Raises:
        SystemExit: In all processes but the first, at the end.
    """
    started = time.monotonic() if started is None else started
    exit_seconds = exit_after(started)
    device = _device_of(config, place)
    team = Team(place, device.type == "cuda")
    view = (view or Display()) if team.leads else Display(Console(quiet=True))
    signals = SharedSignals(team)
    try:
        with silence_lightning(), contextlib.ExitStack() as stack:
            team.together(lambda: refuse_to_choose_again(config, resume))
            setup = _prepare(config, device, explicit, team, view)
            stack.enter_context(signals.handled())
            sharing = choose(config.strategy, setup, team)
            opened = team.lead(lambda: _open(setup, view, sharing, resume, stack))
            if team.from_leader(isinstance(opened, RunResult)):
                return opened if isinstance(opened, RunResult) else team.leave(0)
            run_dir, state, threads = _shared(opened, team)
            state = team.together(lambda: sharing.localise(state, run_dir.path))
            stack.enter_context(torch_threads(threads))
            times = {"started": started, "exit_seconds": exit_seconds}
            return _run_phases(setup, run_dir, view, signals, state, sharing=sharing, **times)
    except Stopped as stopped:
        if not team.leads:
            team.leave(stopped.exit_code)
        raise KeyboardInterrupt from stopped
    finally:
        team.close()


def _device_of(config: RunConfig, place: Place) -> torch.device:
    device = choose_device(config.device)
    if device.type == "mps":
        raise ConfigError("several processes cannot share the one GPU of a Mac: use device cpu, or one process")
    if device.type != "cuda":
        return device
    count, local_rank = torch.cuda.device_count(), place.local_rank or 0
    if count < place.devices and (count > 1 or "SLURM_PROCID" not in os.environ):  # srun may show each task its own
        raise ConfigError(f"devices is {place.devices}, but this machine has {count} CUDA GPUs: use --devices {count}")
    chosen = device if device.index is not None else torch.device("cuda", local_rank if count > 1 else 0)
    torch.cuda.set_device(chosen)
    return chosen


def _prepare(config: RunConfig, device: torch.device, explicit: Collection[str], team: Team, view: Display) -> Setup:
    """Open data and model in all processes, and check that they are the same and that every process has work."""

    def refuse() -> None:
        if config.distil.teacher is not None:  # under torchrun, which the configuration does not know of
            raise ConfigError("a run with a teacher uses one process: start it without torchrun")
        if config.aux.is_named:
            raise ConfigError(f"a run with aux {config.aux.method} uses one process: start it without torchrun")

    team.together(refuse)
    config = replace(config, devices=1, nodes=1, strategy="auto")  # not of the run: any other may resume it
    if config.aux.method == "auto":
        view.line("aux", "a second task needs one process: there is none. A run with one cannot resume as this one")
        config = replace(config, aux=replace(config.aux, method="none"))
    if config.tune.mode == AUTO:  # stages choose by the time of one process
        view.line("tune", "stages need one process: all weights are trained. A run in stages cannot resume as this one")
        config = replace(config, tune=replace(config.tune, mode="full"))
    first: Setup | None = None
    if config.tune.source is not None:  # the first process chooses and downloads
        first = team.lead(lambda: prepare(config, explicit, view))
        config = team.from_leader(first.config if first is not None else config)
    setup = team.together(lambda: first or prepare(config, explicit, view))
    seen = team.of_all((setup.data.fingerprint, setup.data.order))
    place, module = team.place, setup.data_module

    def check() -> None:
        if wrong := [rank for rank, each in enumerate(seen) if each != seen[0]]:
            raise DataError(f"process {wrong[0]} sees other images than process 0: give all machines the same data")
        images = module.train_sampler.batch_size // module.accumulate
        if images < 2 * team.world:
            raise ConfigError(
                f"a batch of {images} images is too small for {team.world} processes, each of which needs 2: use at "
                f"most {max(1, images // 2)} processes, a larger --batch_size or a smaller --accumulate"
            )

    team.together(check)
    module.set_share(Share(team.rank, team.world))
    if config.data.workers is None:
        module.workers = max(1, module.workers // place.devices)
    return replace(setup, device=device)


def _shared(
    opened: tuple[RunDir, RunState | None, int] | RunResult | None, team: Team
) -> tuple[RunDir, RunState | None, int]:
    """Give all processes what the first one has opened; only that one keeps the lock."""
    own = opened if isinstance(opened, tuple) else None
    facts = team.from_leader(None if own is None else (own[0].path, own[0].has_run, *own[1:]))
    assert facts is not None  # the first process has opened it
    path, has_run, state, threads = facts
    return own or (RunDir(path, NoLock(), has_run), state, threads)


def _open(
    setup: Setup, view: Display, sharing: Replicated, resume: bool, stack: contextlib.ExitStack
) -> tuple[RunDir, RunState | None, int] | RunResult:
    """Open and lock the run directory, as the first process does."""
    recipe = recipe_text(setup.config)
    folder, created = choose_run_dir(setup.config.out, setup.data.name, recipe, resume)
    stack.enter_context(remove_empty_dirs(created))
    if resume and is_finished(folder, recipe):
        return announce_finished(folder, setup.data.fingerprint, view)
    run_dir = stack.enter_context(lock_run_dir(folder, recipe, resume))
    state, threads = open_run_dir(setup, run_dir, view, whole=sharing.reads_whole)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    announce(setup, view)
    place = sharing.team.place
    machines = f" on {place.nodes} machines" if place.nodes > 1 else ""
    view.line("devices", f"{pluralize(place.world, 'process', 'processes')}{machines}, {sharing.line}")
    return run_dir, state, threads


def _run_phases(
    setup: Setup,
    run_dir: RunDir,
    view: Display,
    signals: SharedSignals,
    state: RunState | None,
    *,
    sharing: Replicated,
    started: float,
    exit_seconds: float,
) -> RunResult:
    team = sharing.team
    session: Session | None = None

    def rescue() -> str:
        return _rescue(session if sharing.saves_alone else None, setup, run_dir)

    try:
        with Watch(run_dir.path, team.rank, team.world, team.pulse, rescue) as watch:
            try:
                session = assemble(
                    setup,
                    run_dir,
                    view,
                    signals,
                    state,
                    started=started,
                    exit_seconds=exit_seconds,
                    kit=_kit(sharing, setup),
                )
                _train(session, state, signals, sharing)
                run_dir.lock.record(phase="selecting")
                selected, training_scores = select_weights(session)
                several = setup.data.several
                temperature = choose_temperature(selected.logits, selected.labels) if team.leads and not several else 1
                run_dir.lock.record(phase="testing")
                tested = test_once(session)
                selected = replace(selected, weights=sharing.gather(selected.weights))
            except NonFiniteStepError as error:
                error.good, error.weights = sharing.gather(error.good), sharing.gather(error.weights)
                raise _save_non_finite(session, error) if team.leads and session else SystemExit(1) from error
            except Stopped as stopped:
                if session is not None and not stopped.at_once:
                    sharing.gather_for_interrupted(session)
                raise
            except Exception as error:
                _fail(error, team, watch)
                raise
        if not team.leads:
            team.leave(0)
        result = _write(session, selected, temperature, tested, training_scores)
        shutil.rmtree(run_dir.path / FOLDER, ignore_errors=True)  # the others have left it by now
        return result
    except Stopped as stopped:
        if not team.leads:
            team.leave(stopped.exit_code)
        result = end_interrupted(setup, run_dir, view, session, stopped)
        shutil.rmtree(run_dir.path / FOLDER, ignore_errors=True)
        return result


def _kit(sharing: Replicated, setup: Setup) -> Kit:
    """Return what the run of one of several processes is assembled from."""
    if not setup.data.several:
        return sharing.kit(setup)
    from vitreous.train.multilabel.shared import shared_kit  # no other run pays for it

    return shared_kit(sharing, setup)


def _write(
    session: Session,
    selected: SelectedWeights,
    temperature: float,
    tested: SplitScores | None,
    training_scores: AnyScores,
) -> RunResult:
    """Write the model and the report in the first process, and print the result."""
    if not session.setup.data.several:
        return write_results(session, selected, temperature, tested, training_scores)
    from vitreous.train.multilabel.run import write_results as write_labels_results

    return write_labels_results(session, selected, tested, training_scores)


def _probe(session: Session, team: Team) -> None:
    """Score the frozen features in the first process, for all."""
    team.lead(lambda: probe(session))
    found = team.from_leader(session.probe.to_dict() if session.probe is not None else None)
    session.probe = ProbeResult.from_dict(found) if found is not None else None


def _train(session: Session, state: RunState | None, signals: SharedSignals, sharing: Replicated) -> None:
    """Train until the clock, early stopping or a signal ends training."""
    leave_signals_alone(session.trainer)
    _probe(session, sharing.team)
    if state is None:
        check_budget(session)
    sharing.begin(session)
    if not session.trained:
        fit_once(session)
        signals.agree()
        signals.raise_if_received()
    sharing.end(session)


def _fail(error: Exception, team: Team, watch: Watch) -> None:
    """Show an error to the other processes. Only the first one goes on, to print its own."""
    lost = is_lost_connection(error)
    team.pulse.fail(error, lost)
    if lost or not team.leads:
        watch.wait_for_end()


def _save_non_finite(session: Session, error: NonFiniteStepError) -> VitreousError:
    """Write what a replay of the step needs: its batches with the images of all processes."""
    module = session.setup.data_module
    sampler: TrainSampler = module.train_sampler
    sampler.share = None
    position = error.batches[0]
    sampler.seek(position["epoch"], position["step"] * sampler.accumulate)
    loader = iter(module.train_dataloader())
    error.batches = [next(loader) for _ in range(sampler.accumulate)]
    return session.writer.save_non_finite(error)


def _rescue(session: Session | None, setup: Setup, run_dir: RunDir) -> str:
    """Save the state after the last whole step, from another thread than the one that is stuck."""
    saved = None
    if session is not None and not session.trained and session.setup.device.type == "cpu":
        for _ in range(50):  # an update of the weights takes no exchange, so it ends soon
            between = cast(SharedCheckpoint, session.checkpoint).is_between_epochs
            if between or session.is_consistent:
                session.module.discard_step()
                state = session.capture(between, between and session.trainer.should_stop)
                session.saver.save(state)
                session.saver.wait()
                saved = state.where
                break
            time.sleep(0.1)
    run_dir.lock.release()
    if saved is None and not Path(run_dir.path, LAST).exists():
        return "There is no checkpoint yet: run the same command again"
    what = f"A checkpoint of {saved} is saved" if saved else "The last checkpoint stays"
    return f"{what}; continue with: {resume_command(setup, run_dir.path)}"
