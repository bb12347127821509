"""A summary of frozen parameters and buffers, which do not travel: nodes compare their own with the server's.

What is random in them follows from the run's seed, but its last bits differ between processors. So numbers count as the
same up to rounding: each tensor is told by its norm and by its sum under fixed random signs. No digest could do that.
The server sends its summary and a node keeps its own, which may be of its data.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.flower.wire import WrongMessage

ROUNDING = 1e-3
"""Relative difference up to which two tensors count as the same; processors were seen to differ by 1e-6."""
BLOCK = 2**16
"""Numbers that are summed at once, each with its own sign."""
OTHER_UNTRAINED = (
    "its model's frozen parameters or buffers, which do not travel, are not the server's: make them from the same "
    "file, or in the function that makes the model, where the run's seed fixes what is random"
)


def summary(model: nn.Module) -> str:
    """A digest of names, shapes, dtypes and whole numbers, then the norm and the signed sum of each other tensor."""
    frozen = [(name, one) for name, one in model.named_parameters() if not one.requires_grad]
    exact, sums = hashlib.sha256(), []
    for name, tensor in (*frozen, *model.named_buffers()):
        exact.update(f"{name.replace('_orig_mod.', '')} {tensor.dtype} {tuple(tensor.shape)};".encode())
        values = tensor.detach().cpu().reshape(-1)
        if values.is_complex():
            values = torch.view_as_real(values).reshape(-1)
        if values.is_floating_point():
            exact.update(f"{int(values.isfinite().sum())};".encode())
            sums.append("{:.6g},{:.6g}".format(*_sums(values)))
        else:
            exact.update(values.contiguous().numpy().data)
    return ";".join([exact.hexdigest(), *sums])


def is_same(own: str, servers: str) -> bool:
    """Whether two summaries are of the same tensors."""
    (exact, *sums), (other, *others) = own.split(";"), servers.split(";")
    return exact == other and len(sums) == len(others) and all(map(_are_close, sums, others))


def check_same(model: nn.Module, servers: str) -> None:
    """Refuse a model whose frozen parameters or buffers are not the server's."""
    if not is_same(summary(model), servers):
        raise WrongMessage(OTHER_UNTRAINED)


def _sums(values: Tensor) -> tuple[float, float]:
    square = signed = 0.0
    for part in torch.split(values, BLOCK):
        wide = part.double().nan_to_num(0.0, 0.0, 0.0)
        square += float(torch.dot(wide, wide))
        signed += float(torch.dot(wide, _signs()[: len(wide)]))
    return square**0.5, signed


@cache
def _signs() -> Tensor:
    """Random signs that are the same everywhere."""
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(b"signs").digest(BLOCK // 8), np.uint8))
    return torch.from_numpy(2.0 * bits - 1.0)


def _are_close(own: str, servers: str) -> bool:
    (norm, signed), (other, other_signed) = (map(float, one.split(",")) for one in (own, servers))
    return abs(norm - other) <= ROUNDING * other and abs(signed - other_signed) <= ROUNDING * other
