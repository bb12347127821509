"""The launch of a kernel, and compilation ahead of it: many kernels at once instead of each at its first launch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

THREADS = min(16, os.cpu_count() or 1)


class Ahead:
    """Compiles what would be launched; kernels whose arguments have the same types are compiled once."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS)
        self.wanted: dict[Any, Future[None]] = {}

    def add(self, kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: dict[str, Any]) -> None:
        """Compile a kernel for arguments like these, if that has not begun."""
        counts = [parameter.num for parameter in getattr(kernel, "params", ()) if parameter.do_not_specialize]
        kinds = (None if place in counts else _kind(one) for place, one in enumerate(args))
        key = (kernel, *kinds, *sorted(constants.items()))
        if key not in self.wanted:
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # type: ignore[no-untyped-call]
            self.wanted[key] = self.pool.submit(_compile, device, kernel, grid, args, constants)

    def wait(self, *, cancels: bool) -> None:
        """Wait for all of them, or those under way; a kernel that cannot be compiled says so at its launch."""
        self.pool.shutdown(cancel_futures=cancels)


_ahead: dict[int, Ahead] = {}
"""By stream, which autograd's own thread keeps; another thread that trains on another stream goes on as usual."""


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Inside, kernels of the current stream are compiled in parallel and not launched: their outputs are zeros."""
    stream = _stream()
    ahead = _ahead[stream] = Ahead()
    is_done = False
    try:
        yield
        is_done = True
    finally:
        del _ahead[stream]
        ahead.wait(cancels=not is_done)


def launch(kernel: Any, grid: Sequence[int], *args: Any, outputs: Sequence[Tensor | None], **constants: Any) -> None:
    """Launch a kernel that writes all of `outputs`, which are among its arguments."""
    ahead = _ahead.get(_stream()) if _ahead else None
    if ahead is None:
        kernel[tuple(grid)](*args, **constants)
        return
    ahead.add(kernel, tuple(grid), args, constants)
    for output in outputs:
        if output is not None:
            output.zero_()


def is_ahead() -> bool:
    """Whether kernels are compiled ahead now, not launched."""
    return bool(_ahead) and _stream() in _ahead


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


def _compile(device: int, kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: dict[str, Any]) -> None:
    with torch.cuda.device(device):  # of this thread
        compiled = kernel.warmup(*args, grid=grid, **constants)
        compiled._init_handles()  # load it, too: a launcher is built by a C compiler


def _kind(argument: Any) -> Any:
    """The properties that a kernel's code may depend on: type, alignment, and whether a number is one."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    return (argument == 1, argument % 16 == 0) if isinstance(argument, int) else type(argument)
