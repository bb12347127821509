"""A second stream of a GPU, for work whose results are needed only at the end of a pass.

Gradients of the weights run there while the gradients of the inputs go on: each alone leaves a part of the GPU idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedlada.engines.stacked.triton_launch import is_ahead

LARGEST_HELD = 2**28
"""Bytes of inputs that wait for the second stream; with more, the first one waits."""


class Beside:
    """Work on the second stream, until `join`."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.held: list[Tensor] = []

    @contextmanager
    def __call__(self, *inputs: Tensor) -> Iterator[None]:
        """Run on the second stream what reads these; their memory is not reused before `join`."""
        if not inputs[0].is_cuda or is_ahead():
            yield
            return
        if sum(one.nbytes for one in self.held) > LARGEST_HELD:
            self.join()
        self.stream = self.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        self.held += inputs
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the first stream wait for the second."""
        if self.held and self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.held = []
