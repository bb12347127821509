"""Per-client evaluation, on each client's own test samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.cpu_layout import Forward, forward_for
from fedlada.engines.evaluation import Gathered, Loss, Metric, Totals
from fedlada.federation.randomness import Ints
from fedlada.models.call import call

Measured = dict[int, dict[str, float]]
"""Loss, accuracy if there is one, and the user's metrics, by client; a metric that fails on a client is NaN."""


@dataclass(frozen=True, eq=False)
class ClientTest:
    """The test samples of all clients, concatenated."""

    samples: Samples
    owners: Ints
    """The client of each sample, in ascending order."""
    num_clients: int

    @classmethod
    def of(cls, samples: Samples, sizes: Sequence[int]) -> ClientTest:
        """Build from samples in client order and the number of samples of each client."""
        if not sum(sizes):
            raise ValueError("client_test leaves no client a test sample: use a larger share, or give test data")
        return cls(samples, np.repeat(np.arange(len(sizes)), sizes), len(sizes))

    @property
    def clients(self) -> list[int]:
        """Clients that have test samples."""
        return [int(client) for client in np.unique(self.owners)]

    def rows(self, client: int) -> Ints:
        """Indices of a client's samples."""
        return np.arange(*np.searchsorted(self.owners, [client, client + 1]))

    def digest(self) -> str:
        """A digest of these samples and their owners."""
        return hashlib.sha256(self.samples.digest().encode() + self.owners.tobytes()).hexdigest()


def measure(
    module: nn.Module,
    test: ClientTest,
    rows: Ints,
    loss: Loss,
    batch_size: int,
    metrics: Mapping[str, Metric] | None = None,
) -> Measured:
    """Means over each client's samples, and the metrics of them; samples of several clients share a forward pass."""
    device = next(module.parameters()).device
    clients = np.unique(test.owners[rows]).tolist()
    totals = {client: Totals(loss, device) for client in clients}
    gathered = {client: Gathered(metrics) for client in clients}
    forward: Forward | None = None
    with torch.no_grad():
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            x, y = test.samples.batch(batch)
            forward = forward or forward_for(module, x)
            for client, output, own, number in _by_client(forward(module, x), y, module, test, batch):
                totals[client].add(output, own, number)
                gathered[client].add(output, own)
    return {client: totals[client].means() | gathered[client].measured_if_possible() for client in clients}


def _by_client(
    output: Any, y: Any, module: nn.Module, test: ClientTest, batch: Ints
) -> Iterable[tuple[int, Any, Any, int]]:
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
        else:  # a model's own loss is one number per batch
            x, own = test.samples.batch(batch[start:end])
            yield int(owners[start]), call(module, x), own, end - start
