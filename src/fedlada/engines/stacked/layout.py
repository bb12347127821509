"""The order in which the stacked engine stores the parameters.

Methods are elementwise but for norms, so the engine may choose the order of the P numbers. Convolution weights are
channels-last, as the kernels read them, and rows begin at addresses that are multiples of 128 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGN = 64


@dataclass(frozen=True)
class Place:
    """The position of a parameter in a row, and its shape there."""

    start: int
    shape: tuple[int, ...]
    """As it is stored: a convolution's weight as (out, height, width, in)."""
    channels_last: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()


class Layout:
    """The engine's order of the parameters, with conversions from and to the model's."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], channels_last: set[str]) -> None:
        self.names = list(parameters)
        self.sizes = [parameter.numel() for parameter in parameters.values()]
        self.shapes = [tuple(parameter.shape) for parameter in parameters.values()]
        self.num_params = sum(self.sizes)
        self.stride = -(-self.num_params // ALIGN) * ALIGN
        # Parameters that keep the next one aligned come first; otherwise the order is the model's.
        self.order = sorted(range(len(self.names)), key=lambda index: self.sizes[index] % ALIGN != 0)
        self.places: dict[str, Place] = {}
        start = 0
        for index in self.order:
            shape, name = self.shapes[index], self.names[index]
            last = name in channels_last
            stored = (shape[0], *shape[2:], shape[1]) if last else shape
            self.places[name] = Place(start, stored, last)
            start += self.sizes[index]
        self.is_identity = self.order == list(range(len(self.names))) and not channels_last

    def rows(self, num_clients: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros `[C, P]` whose rows are aligned."""
        storage = torch.zeros(num_clients, self.stride, device=like.device, dtype=dtype or like.dtype)
        return storage[:, : self.num_params]

    def inward(self, vector: Tensor) -> Tensor:
        """A vector `[P]` of the model's order in the engine's."""
        if self.is_identity or vector.shape[-1:] != (self.num_params,):
            return vector
        parts = torch.split(vector, self.sizes, dim=-1)
        moved = []
        for index in self.order:
            part, shape = parts[index], self.shapes[index]
            if self.places[self.names[index]].channels_last:
                part = part.view(*part.shape[:-1], *shape).movedim(-len(shape) + 1, -1).flatten(-len(shape))
            moved.append(part)
        return torch.cat(moved, dim=-1)

    def outward(self, vector: Tensor) -> Tensor:
        """A vector `[P]` of the engine's order in the model's."""
        if self.is_identity or vector.shape[-1:] != (self.num_params,):
            return vector
        parts: list[Tensor] = []
        for name in self.names:
            place = self.places[name]
            part = vector[..., place.start : place.start + place.size]
            if place.channels_last:
                stored = part.reshape(*part.shape[:-1], *place.shape)
                part = stored.movedim(-1, -len(place.shape) + 1).flatten(-len(place.shape))
            parts.append(part)
        return torch.cat(parts, dim=-1)

    def view(self, rows: Tensor, name: str) -> Tensor:
        """One parameter of all clients, `[C, ...]`, as it is stored."""
        place = self.places[name]
        return rows[:, place.start : place.start + place.size].view(len(rows), *place.shape)
