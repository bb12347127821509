"""How good a model is for each client, on the client's own test samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.evaluation import Loss, Totals
from fedlada.federation.randomness import Ints
from fedlada.models.call import call

Measured = dict[int, dict[str, float]]
"""Loss, and accuracy where there is one, by client."""


@dataclass(frozen=True, eq=False)
class ClientTest:
    """The test samples of all clients, one client behind the other."""

    samples: Samples
    owners: Ints
    """The client of each sample, in ascending order."""
    num_clients: int

    @classmethod
    def of(cls, samples: Samples, sizes: Sequence[int]) -> ClientTest:
        """Samples of which the first so many are client 0's, and so on."""
        if not sum(sizes):
            raise ValueError("client_test leaves no client a test sample: take a larger share, or give test data")
        return cls(samples, np.repeat(np.arange(len(sizes)), sizes), len(sizes))

    @property
    def clients(self) -> list[int]:
        """Those that have test samples."""
        return [int(client) for client in np.unique(self.owners)]

    def rows(self, client: int) -> Ints:
        """The numbers of a client's samples."""
        return np.arange(*np.searchsorted(self.owners, [client, client + 1]))

    def digest(self) -> str:
        """A digest that tells these samples and their owners from others."""
        return hashlib.sha256(self.samples.digest().encode() + self.owners.tobytes()).hexdigest()


def measure(module: nn.Module, test: ClientTest, rows: Ints, loss: Loss, batch_size: int) -> Measured:
    """The means over each client's part of these samples; samples of several clients share a forward pass."""
    device = next(module.parameters()).device
    totals = {client: Totals(loss, device) for client in np.unique(test.owners[rows]).tolist()}
    with torch.no_grad():
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            for client, output, y, number in _by_client(module, test, batch):
                totals[client].add(output, y, number)
    return {client: one.means() for client, one in totals.items()}


def _by_client(module: nn.Module, test: ClientTest, batch: Ints) -> Iterable[tuple[int, Any, Any, int]]:
    x, y = test.samples.batch(batch)
    output = call(module, x)
    owners = test.owners[batch]
    ends = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(batch)]
    parts = list(pairwise(ends))
    if len(parts) == 1:
        yield int(owners[0]), output, y, len(batch)
        return
    is_by_sample = all(isinstance(one, Tensor) and one.ndim and len(one) == len(batch) for one in (output, y))
    for start, end in parts:
        if is_by_sample:
            yield int(owners[start]), output[start:end], y[start:end], end - start
        else:  # a loss of the model's own is one number for all of its batch
            x, own = test.samples.batch(batch[start:end])
            yield int(owners[start]), call(module, x), own, end - start


def columns(prefix: str, measured: Measured) -> dict[str, float]:
    """Over clients: the mean, the mean of the worst tenth (one at least) and the standard deviation of the accuracy.

    Where there is no accuracy, the same of the loss, of which the highest are the worst.
    """
    what = "accuracy" if all("accuracy" in one for one in measured.values()) else "loss"
    values = np.array(sorted((one[what] for one in measured.values()), reverse=what == "loss"))
    tenth = max(1, round(len(values) / 10))
    return {
        f"{prefix}_{what}": float(values.mean()),
        f"{prefix}_{what}_worst_decile": float(values[:tenth].mean()),
        f"{prefix}_{what}_std": float(values.std()),
    }
