"""The choice of the engine for a simulation."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from fedlada.data.samples import Samples
from fedlada.engines import processes
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import Loss
from fedlada.engines.sequential import SequentialEngine
from fedlada.engines.stacked.engine import StackedEngine
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.methods.method import FederatedMethod
from fedlada.methods.validation import one_of

ENGINES = ("auto", "sequential", "stacked")


def choose_engine(
    name: str,
    model: nn.Module,
    method: FederatedMethod,
    samples: Samples,
    loss: Loss | None,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    precision: str = "auto",
    num_steps: int | None = None,
    short_batches: bool = True,
    cohort_size: int | None = None,
    largest_batch: int = 0,
) -> Engine:
    """The engine of that name; "auto" is stacked on a GPU and sequential on a CPU.

    Models that cannot be stacked run sequentially, and the engine's `why` says so. If "stacked" was requested, or on a
    GPU, a warning says so too.
    `num_steps` is the number of local steps of the whole run, `short_batches` whether batches differ in size,
    `cohort_size` the usual number of clients in a round, `largest_batch` the most samples in a batch of any client.
    """
    one_of("engine", name, ENGINES)
    if name == "sequential" or (name == "auto" and device.type == "cpu"):
        engine = SequentialEngine(model, method, samples, loss, device=device, dtype=dtype)
        if name == "auto":
            engine.why += ", which is the faster way on a CPU"
        if precision in ("bf16", "tf32"):
            engine.why += f"; precision {precision} is the stacked engine's on a GPU and has no effect here"
        return engine
    try:
        return StackedEngine(
            model,
            method,
            samples,
            loss,
            device=device,
            dtype=dtype,
            precision=precision,
            num_steps=num_steps,
            short_batches=short_batches,
            cohort_size=cohort_size,
            largest_batch=largest_batch,
        )
    except NotStackable as error:
        engine = SequentialEngine(model, method, samples, loss, device=device, dtype=dtype)
        engine.why += f", because clients cannot be stacked: {error}"
        if (name == "stacked" or device.type != "cpu") and processes.is_first():
            warnings.warn(
                f"the stacked engine cannot be used, so {engine.why}; change that (docs/engines.md lists what stacks), "
                "or set engine='sequential' to silence this warning",
                stacklevel=3,
            )
        return engine
