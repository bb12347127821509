"""Work on a GPU recorded once as a graph and replayed: its kernels start without waiting for the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedlada.engines.stacked.triton_launch import compiled_ahead


def captured(
    work: Callable[[], None], warm_up: Callable[[], None], repeats: int = 1, *, compiles: bool = False
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `work`; `warm_up` runs first, so that everything is compiled and tuned before the capture.

    With `compiles` all of its kernels are compiled at once, before the first of them is launched.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        if compiles:
            with compiled_ahead():
                warm_up()
        for _ in range(repeats):
            warm_up()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with _no_garbage_collection(), torch.cuda.graph(graph):
        work()
    return graph


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: destroying an older graph during a capture would break it."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
