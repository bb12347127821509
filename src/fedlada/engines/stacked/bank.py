"""Layers whose parameters are those of many clients. Their input is one batch `[C * B, ...]`, client after client.

The other parts of a user's model (activations, pooling, shortcuts) treat every sample by itself and need no change. A
layer writes the gradient of its parameters directly into the gradient `[C, P]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedlada.engines.stacked.kernels import Kernels
from fedlada.engines.stacked.layout import Layout
from fedlada.engines.stacked.not_stackable import NotStackable

NO_SIZE = torch.Size()


class Bank:
    """All clients' parameters and gradients, `[C, P]` each, and views of them by name."""

    def __init__(self, layout: Layout, kernels: Kernels, device: torch.device) -> None:
        self.layout = layout
        self.kernels = kernels
        # What autograd follows instead of the parameters: it makes every layer's backward pass run.
        self.tape = torch.zeros((), device=device, requires_grad=True)
        self.views: dict[str, tuple[Tensor, Tensor]] = {}
        self.written: set[str] = set()
        self.varying: set[str] = set()
        """Parameters that are used more than once in a pass, or on images of several sizes."""
        self.sizes: dict[str, torch.Size] = {}
        """Of the images that each was used on first."""
        self.num_samples = 0

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Read parameters from these rows, and write gradients into those, which hold zeros or earlier gradients."""
        self.views = {
            name: (self.layout.view(weights, name), self.layout.view(grads, name)) for name in self.layout.names
        }

    def begin(self, num_samples: int) -> None:
        """Begin a new pass: the first gradient of each parameter replaces the old one, further ones are added."""
        self.written, self.num_samples = set(), num_samples


class Use(NamedTuple):
    """The arguments of a layer besides its input; only a norm has any."""

    adds: bool = False
    relu: bool = False


class StackedLayer(nn.Module, ABC):
    """One layer of all clients. It may be used more than once in a pass, or share its parameters with another."""

    def __init__(self, bank: Bank, names: dict[str, str]) -> None:
        super().__init__()
        self.bank = bank
        self.names = names

    def rows(self, name: str = "weight") -> Tensor:
        """The parameter `[C, ...]` of that name."""
        return self.bank.views[self.names[name]][0]

    def rows_of_bias(self) -> Tensor | None:
        """The bias `[C, ...]`, if there is one."""
        return self.rows("bias") if "bias" in self.names else None

    @contextmanager
    def grad(self, name: str = "weight", *, size: torch.Size = NO_SIZE) -> Iterator[Tensor]:
        """The buffer for the gradient of this use; it is added to that of an earlier use in the same pass.

        What a use never writes is zero in it: the same part in each pass, or, where uses differ, zeroed. `size` is that
        of the images of this use.
        """
        own = self.names[name]
        if self.bank.sizes.setdefault(own, size) != size:
            self.bank.varying.add(own)
        place = self.bank.views[own][1]
        if own not in self.bank.written:
            self.bank.written.add(own)
            if own in self.bank.varying:
                place.zero_()
            yield place
            return
        self.bank.varying.add(own)
        more = torch.zeros_like(place, memory_format=torch.contiguous_format)
        yield more
        self.bank.kernels.finish()
        place.add_(more)

    def write(self, name: str, value: Tensor) -> None:
        """Write the gradient of this use."""
        with self.grad(name) as place:
            place.copy_(value)

    @abstractmethod
    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and the values that the backward pass needs; only a norm adds a shortcut."""

    @abstractmethod
    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Write the gradients of the parameters; return those of the input and of the added shortcut."""

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        """The layer, seen by autograd."""
        if len(x) % self.bank.num_samples:
            raise NotStackable("a layer is used on something else than the samples")
        result: Tensor = _Layer.apply(  # type: ignore[no-untyped-call]
            self.bank.tape, self, x, add, Use(add is not None, relu)
        )
        return result


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _tape: Tensor, layer: StackedLayer, x: Tensor, add: Tensor | None, use: Use) -> Tensor:
        y, saved = layer.run(x, add, use)
        ctx.layer, ctx.use = layer, use
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, Tensor | None, Tensor | None, None]:
        of_x, of_add = ctx.layer.run_back(dy, ctx.saved_tensors, ctx.use, ctx.needs_input_grad[2])
        return None, None, of_x, of_add, None
