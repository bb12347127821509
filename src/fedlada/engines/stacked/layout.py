"""The order in which the stacked engine stores the parameters.

Methods are elementwise but for norms, so the engine may choose the order of the P numbers. Convolution weights are
channels-last, as the kernels read them. Zeros at the end of a row fill it up to a multiple of 64 numbers, in a large
model of 1024: compiled kernels then read several numbers at once, from rows without gaps, and norms are sums of norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada.methods.norm import LARGE, NORM_BLOCK

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
        self.padding = -self.num_params % (ALIGN if self.num_params < LARGE else NORM_BLOCK)
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
        self.keeps_order = self.order == list(range(len(self.names))) and not channels_last

    @property
    def width(self) -> int:
        """The length of a row: the parameters and the padding."""
        return self.num_params + self.padding

    @property
    def is_identity(self) -> bool:
        """Whether a vector of the engine is one of the model."""
        return self.keeps_order and not self.padding

    def rows(self, num_clients: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros `[C, width]` whose rows are aligned."""
        storage = torch.zeros(
            num_clients, -(-self.width // ALIGN) * ALIGN, device=like.device, dtype=dtype or like.dtype
        )
        return storage[:, : self.width]

    def inward(self, vector: Tensor) -> Tensor:
        """A vector `[P]` of the model's order in the engine's, with its padding."""
        if self.is_identity or vector.shape[-1:] != (self.num_params,):
            return vector
        if self.keeps_order:
            return F.pad(vector, (0, self.padding))
        parts = torch.split(vector, self.sizes, dim=-1)
        moved = []
        for index in self.order:
            part, shape = parts[index], self.shapes[index]
            if self.places[self.names[index]].channels_last:
                part = part.view(*part.shape[:-1], *shape).movedim(-len(shape) + 1, -1).flatten(-len(shape))
            moved.append(part)
        return torch.cat([*moved, vector.new_zeros((*vector.shape[:-1], self.padding))], dim=-1)

    def without_padding(self, vector: Tensor) -> Tensor:
        """A vector of the engine as `[P]`, still in its order: padding may hold anything after a step."""
        return vector[..., : self.num_params] if vector.shape[-1:] == (self.width,) else vector

    def outward(self, vector: Tensor) -> Tensor:
        """A vector of the engine's order, with or without padding, in the model's."""
        vector = self.without_padding(vector)
        if self.keeps_order or vector.shape[-1:] != (self.num_params,):
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
