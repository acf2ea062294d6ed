"""What a failed training still saves, says and tries: a state where there is a whole one, and parts of steps."""

from __future__ import annotations

from dataclasses import replace

from vitreous.errors import OutputError, TrainingError, VitreousError
from vitreous.train.assembly import Assembled
from vitreous.train.finish import again
from vitreous.train.out_of_memory import is_out_of_memory, more_parts
from vitreous.train.resume.saving import newest
from vitreous.train.resume.signals import Stopped
from vitreous.train.resume.state import RunState

__all__ = ["after_failure"]

_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # modules of the errors of what is compiled


def after_failure(this: Assembled, error: Exception) -> RunState:
    """Decide how a training that broke off goes on.

    Args:
        this: The run.
        error: What ended it.

    Returns:
        Where to go on from, with a step cut into more parts, when the memory did not hold it.

    Raises:
        VitreousError: When the run ends: as it was, or for a worker that is gone, one that says so.
        Stopped: When a signal is what the error came from.
    """
    if this.module.whole:
        this.module.take_back()
    if is_out_of_memory(error):
        return _in_smaller_parts(this, error)
    if not isinstance(error, OutputError) and this.whole:
        this.checkpoint.save(wait=True)
        if this.signals.asked is not None:
            raise Stopped(this.signals.asked) from error
        this.view.line("saved", f"{this.place.folder}: up to {this.capture().where}")
        this.view.line("go on", again(this.ready, this.place.folder))
    if isinstance(error, RuntimeError) and not isinstance(error, VitreousError) and "DataLoader worker" in str(error):
        raise TrainingError(
            "a process that reads pictures ended unexpectedly: it was killed, perhaps for lack of memory. Try fewer "
            "--data.workers"
        ) from error
    if this.ready.config.compile and type(error).__module__.startswith(_COMPILERS):
        raise TrainingError(
            f"torch.compile does not work here ({' '.join(str(error).split())[:160]}): add --compile false. On Linux "
            "it needs a C compiler, such as gcc"
        ) from error
    raise error


def _in_smaller_parts(this: Assembled, error: Exception) -> RunState:
    """The state that the run has, or had last, to go on from with smaller parts."""
    plans = this.ready.loading.plans
    parts = more_parts(plans.batch_size, plans.parts)
    if parts is None:
        raise TrainingError(
            f"out of memory with a single picture ({str(error).splitlines()[0]}): choose a smaller --model or a "
            "smaller image size"
        ) from error
    this.saver.wait()
    state = this.capture() if this.whole else None
    if state is None:
        found = newest(this.place.folder, lambda line: this.view.line("damaged", line))
        if found is None:
            raise TrainingError(
                "out of memory in the optimiser's first step, which smaller parts do not help: choose a smaller --model"
            ) from error
        state = found[1]
    this.view.line(
        "memory",
        f"a step of {plans.batch_size} pictures does not fit: from {state.where} on it is cut into {parts} parts of "
        f"{plans.batch_size // parts}, which add up to the same step",
    )
    this.ready.model.zero_grad(set_to_none=True)
    return replace(state, parts=parts)
