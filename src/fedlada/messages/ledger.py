"""Traffic in bytes by client, direction and vector, measured on the encoded messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

ENVELOPE = "(envelope)"
"""The header and checksum around the vectors of a message."""


class Ledger:
    """The bytes of one round, by client and path: `down/params`, `up/delta`, `down/(envelope)`, ..."""

    def __init__(self) -> None:
        self.entries: Counter[tuple[int, str]] = Counter()

    def add(self, client: int, path: str, num_bytes: int) -> None:
        """Add the bytes of a client's vector."""
        self.entries[client, path] += num_bytes

    def merge(self, other: Ledger) -> None:
        """Add the counts of another process."""
        self.entries.update(other.entries)

    def only(self, direction: str) -> Ledger:
        """The part that went `up` or `down`."""
        part = Ledger()
        part.entries.update({(c, path): n for (c, path), n in self.entries.items() if path.startswith(f"{direction}/")})
        return part

    def total(self, direction: str) -> int:
        """The bytes of all vectors that went `up` or `down`."""
        return sum(
            n
            for (_, path), n in self.entries.items()
            if path.startswith(f"{direction}/") and path != f"{direction}/{ENVELOPE}"
        )

    def in_vectors(self, direction: str, size: int) -> float:
        """The paper's unit Nd: mean bytes per client, in float32 vectors of the model's size."""
        clients = {client for client, path in self.entries if path.startswith(f"{direction}/")}
        return self.total(direction) / (4 * size * len(clients)) if clients else 0.0

    def by_vector(self) -> dict[str, int]:
        """Bytes of each vector, over all clients."""
        sums: Counter[str] = Counter()
        for (_, path), size in self.entries.items():
            sums[path] += size
        return dict(sums)

    def by_client(self) -> dict[str, list[int]]:
        """Each client's bytes down and up, headers included."""
        sums = {client: [0, 0] for client in sorted({client for client, _ in self.entries})}
        for (client, path), size in self.entries.items():
            sums[client][path.startswith("up/")] += size
        return {str(client): both for client, both in sums.items()}

    def row(self, size: int) -> dict[str, Any]:
        """The columns of a round's row, for a model of that size."""
        return {
            "bytes_up": self.total("up"),
            "bytes_down": self.total("down"),
            "nd_up": self.in_vectors("up", size),
            "nd_down": self.in_vectors("down", size),
            "bytes_by_vector": self.by_vector(),
            "bytes_by_client": self.by_client(),
        }
