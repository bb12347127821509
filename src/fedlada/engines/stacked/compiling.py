"""Compilation of a function on all clients at once into one kernel."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from fedlada.engines.stacked.triton_launch import start_compiling

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def compiled(function: Callable[Arguments, Result], what: str) -> Callable[Arguments, Result]:
    """The function as one kernel; where the compiler fails, the plain function, which is slower but correct."""
    from torch._dynamo.exc import TorchDynamoException  # the compiler takes a second to import

    # A code object of its own: the compiler counts its attempts by it, over all simulations of a process.
    own: Any = function
    fresh = types.FunctionType(own.__code__.replace(), own.__globals__, closure=own.__closure__)
    options = fixed_choices(compile_threads=1)  # one kernel is not worth a pool of processes
    fast: Callable[Arguments, Result] = torch.compile(fresh, fullgraph=True, dynamic=False, options=options)

    def tried(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal fast
        start_compiling()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about the compiler itself
                return fast(*args, **kwargs)
        except TorchDynamoException as error:
            warnings.warn(f"{what} could not be compiled and runs as it is: {error}", stacklevel=2)
            fast = function
            return fast(*args, **kwargs)

    return tried


def fixed_choices(**others: Any) -> dict[str, Any]:
    """Compiler options that forbid choosing between kernels by measured time, and others.

    Sums have another order in another kernel, and on a shared GPU another one may measure faster: a run would not
    repeat. With elementwise kernels the choice takes seconds, and gains at most a hundredth.
    """
    from torch._inductor import config

    # torch 2.8 has no `deterministic`.
    wanted = {"dynamic_scale_rblock": False, "triton.autotune_pointwise": False, "deterministic": True, **others}
    known: dict[str, Any] = config.get_config_copy()
    return {name: value for name, value in wanted.items() if name in known}
