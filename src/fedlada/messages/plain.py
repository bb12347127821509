"""Element-wise codecs: unchanged, or rounded to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form

SMALLEST = 2.0**-133
"""The smallest positive bfloat16."""


@dataclass(frozen=True)
class Float32(Codec):
    """No compression. A run in float64 sends float64, and its bytes are counted as such."""

    name: str = "float32"
    is_exact: ClassVar[bool] = True
    keeps_positive: ClassVar[bool] = True

    def encode(self, vector: Tensor, key: int) -> Encoded:
        return Encoded(self.name, vector.numel(), {"values": vector})

    def decode(self, encoded: Encoded) -> Tensor:
        return encoded.parts["values"]

    def form(self, size: int) -> dict[str, Form]:
        return {"values": (torch.float32, size)}


@dataclass(frozen=True)
class BFloat16(Codec):
    """Rounded to the nearest of 8 significant bits: relative error at most 2^-8, never to zero."""

    name: str = "bfloat16"
    keeps_positive: ClassVar[bool] = True
    range: ClassVar[str] = "numbers up to 3.38e38"

    def encode(self, vector: Tensor, key: int) -> Encoded:
        values = vector.float().to(torch.bfloat16)
        # Numbers that would round to zero become the smallest positive one: methods divide by them.
        values = torch.where((values == 0) & (vector != 0), vector.sign().to(torch.bfloat16) * SMALLEST, values)
        return Encoded(self.name, vector.numel(), {"values": values}, values.isfinite().all())

    def decode(self, encoded: Encoded) -> Tensor:
        return encoded.parts["values"].float()

    def form(self, size: int) -> dict[str, Form]:
        return {"values": (torch.bfloat16, size)}


@dataclass(frozen=True)
class Float16(Codec):
    """Rounded to the nearest of 11 significant bits; below 6e-5 the error is absolute, at most 2^-25."""

    name: str = "float16"
    range: ClassVar[str] = "numbers up to 65504"

    def encode(self, vector: Tensor, key: int) -> Encoded:
        values = vector.float().to(torch.float16)
        return Encoded(self.name, vector.numel(), {"values": values}, values.isfinite().all())

    def decode(self, encoded: Encoded) -> Tensor:
        return encoded.parts["values"].float()

    def form(self, size: int) -> dict[str, Form]:
        return {"values": (torch.float16, size)}
