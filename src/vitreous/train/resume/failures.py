"""What happens when training raises an error: save the state, retry with smaller parts, or end with a clear message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vitreous.errors import OutputError, TrainingError, VitreousError, first_line
from vitreous.train.finish import resume_command
from vitreous.train.loop.out_of_memory import is_out_of_memory, more_parts
from vitreous.train.resume.saving import load_newest
from vitreous.train.resume.signals import Stopped
from vitreous.train.resume.state import RunState

if TYPE_CHECKING:
    from vitreous.train.assembly import Session

__all__ = ["after_failure"]

_COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "triton")  # where errors of torch.compile are defined


def after_failure(run: Session, error: Exception) -> RunState:
    """Save what can be saved after an error in training, and raise it, with a clearer message where one is known.

    If the device ran out of memory, return the state to continue from instead, whose steps have more parts.
    """
    if run.module.is_consistent:
        run.module.discard_step()
    if is_out_of_memory(error):
        return _with_smaller_parts(run, error)
    raised = _explained(run, error)
    if not isinstance(error, OutputError) and run.is_consistent:
        run.checkpoint.save(wait=True)
        if run.signals.received is not None:
            raise Stopped(run.signals.received) from error
        run.view.line("saved", f"{run.run_dir.path}: up to {run.capture().where}")
        is_stage = run.kit.run_folder is not None  # a run in stages goes on without a training that failed
        if not (isinstance(raised, TrainingError) and (raised.repeats or is_stage)):
            run.view.line("continue", resume_command(run.setup, run.run_folder))
    if raised is error:
        raise error
    raise raised from error


def _explained(run: Session, error: Exception) -> Exception:
    """Return the error, or one with a clearer message where the cause is known."""
    if isinstance(error, RuntimeError) and not isinstance(error, VitreousError) and "DataLoader worker" in str(error):
        return TrainingError(
            "a data loader worker exited unexpectedly: it was killed, perhaps for lack of memory. Use fewer "
            "--data.workers"
        )
    if run.setup.config.compile and type(error).__module__.startswith(_COMPILER_MODULES):
        return TrainingError(
            f"torch.compile does not work here ({' '.join(str(error).split())[:160]}): add --compile false. On Linux "
            "it needs a C compiler, such as gcc"
        )
    return error


def _with_smaller_parts(run: Session, error: Exception) -> RunState:
    """Return the current or last saved state of a run, with its steps cut into more parts."""
    sampler = run.setup.data_module.train_sampler
    parts = more_parts(sampler.batch_size, sampler.accumulate)
    if parts is None:
        raise TrainingError(
            f"out of memory with a single image ({first_line(error)}): choose a smaller --model or a smaller image size"
        ) from error
    run.saver.wait()
    state = run.capture() if run.is_consistent else None
    if state is None:
        saved = load_newest(run.run_dir.path, lambda line: run.view.line("damaged", line))
        if saved is None:
            raise TrainingError(
                "out of memory in the optimiser's first step, where smaller parts do not help: choose a smaller --model"
            ) from error
        state = saved[1]
    run.view.line(
        "memory",
        f"a step of {sampler.batch_size} images does not fit: from {state.where} on, it is computed in {parts} parts "
        f"of {sampler.batch_size // parts} images, {_of_parts(run.setup.model)}",
    )
    run.setup.model.zero_grad(set_to_none=True)
    return replace(state, parts=parts)


def _of_parts(model: object) -> str:
    """Return what a step in parts is: the whole step, unless the loss compares the images of a part."""
    if getattr(model, "compares_images", False):
        return "each with statistics of its own, so that the loss is not that of the whole step"
    return "whose gradients add up to those of the whole step"
