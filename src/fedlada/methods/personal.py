"""Parameters that stay with their client, such as the head of a network (FedPer) or its norms (FedBN)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlada.methods.state import Broadcast, PerTransform, Server, Upload, Vectors


@dataclass(frozen=True, eq=False)
class Personal:
    """The personal parameters of a model: each client keeps and trains its own, and they are never sent.

    Full vectors keep the model's length `[P]`, so that the parts of a method need no special case. On the server the
    personal entries keep their initial values. A client's private state holds its personal entries only.
    """

    places: Tensor
    """`[P]`: the index of each parameter among the personal ones, in the model's order; -1 if it is shared."""
    names: tuple[str, ...]
    """Names of the personal parameters, which distinguish two runs."""

    @classmethod
    def of(cls, sizes: Mapping[str, int], names: Collection[str]) -> Personal:
        """Those of the model's parameters, with their sizes in its order, that have these names."""
        is_personal = torch.cat([torch.full((size,), name in names) for name, size in sizes.items()])
        places = torch.where(is_personal, is_personal.cumsum(0) - 1, -1)
        return cls(places, tuple(name for name in sizes if name in names))

    @property
    def shared(self) -> Tensor:
        """Indices of the parameters that are sent."""
        return (self.places < 0).nonzero().squeeze(-1)

    def cut(self, vector: Tensor) -> Tensor:
        """The personal entries of a full vector, in the model's order."""
        found = (self.places >= 0).nonzero().squeeze(-1)
        return vector.index_select(-1, found[self.places[found].argsort()])

    def joined(self, vector: Tensor, own: Tensor) -> Tensor:
        """A full vector with a client's personal entries in place."""
        if own.shape[-1] == 0:
            return vector
        return torch.where(self.places >= 0, own.index_select(-1, self.places.clamp(min=0)), vector)

    def memory(self, params: Tensor, shared: PerTransform) -> Vectors:
        """A client's private state: its personal entries of the parameters and of each shared vector."""
        return {"params": self.cut(params)} | {
            f"{index}.{name}": self.cut(vector)
            for index, vectors in enumerate(shared)
            for name, vector in vectors.items()
            if self._is_whole(vector)
        }

    def received(self, broadcast: Broadcast, memory: Vectors) -> Broadcast:
        """The broadcast with the client's personal entries in place."""

        def own(index: int, name: str, vector: Tensor) -> Tensor:
            return self.joined(vector, memory[f"{index}.{name}"]) if self._is_whole(vector) else vector

        return Broadcast(
            self.joined(broadcast.params, memory["params"]),
            tuple(
                {name: own(index, name, vector) for name, vector in vectors.items()}
                for index, vectors in enumerate(broadcast.shared)
            ),
        )

    def without(self, upload: Upload, positive: Sequence[Collection[str]]) -> Upload:
        """The upload without personal entries: zeros, or a tiny number where a vector must stay positive."""

        def blank(vector: Tensor, fill: float) -> Tensor:
            return torch.where(self.places >= 0, fill, vector) if self._is_whole(vector) else vector

        tiny = torch.finfo(upload.delta.dtype).tiny
        extra = tuple(
            {name: blank(vector, tiny if name in names else 0.0) for name, vector in vectors.items()}
            for vectors, names in zip(upload.extra, positive, strict=True)
        )
        return Upload(blank(upload.delta, 0.0), extra)

    def unpaired(self, before: Vectors, after: Vectors, names: Collection[str]) -> Vectors:
        """A transform's private state, with the personal entries of the named vectors unchanged."""
        return {
            name: torch.where(self.places >= 0, before[name], vector) if name in names else vector
            for name, vector in after.items()
        }

    def unmoved(self, before: Server, after: Server) -> Server:
        """The server after a round, with the personal entries unchanged."""

        def stayed(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(self.places >= 0, old, new) if self._is_whole(new) else new

        shared = tuple(
            {name: stayed(old[name], vector) for name, vector in new.items()}
            for old, new in zip(before.shared, after.shared, strict=True)
        )
        return replace(after, params=stayed(before.params, after.params), shared=shared)

    def _is_whole(self, vector: Tensor) -> bool:
        return vector.shape[-1:] == self.places.shape
