"""The version of each client's state: the last one that a server accepted.

A version is named by its round and by the start of the server (an attempt) that asked for it. A server that died may
have asked for a round that its successor asks for again: what a node makes of the dead one's task, however late, is
another version.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection
from dataclasses import dataclass

from fedlada.flower.exchange import log
from fedlada.training.history import History, Row
from fedlada.training.simulation import Observer, Simulation


@dataclass(frozen=True, order=True)
class Version:
    """The name of a version."""

    round: int
    attempt: str
    """Empty in runs of versions that did not name attempts."""

    @property
    def text(self) -> str:
        """As it is sent and written."""
        return f"{self.round}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Parse untrusted text, which becomes part of a file name."""
        match = re.fullmatch(r"([1-9][0-9]{0,11})-((?:[0-9a-f]{16})?)", text)
        if match is None:
            raise ValueError(f"{text[:100]!r} does not name a memory")
        return cls(int(match[1]), match[2])


class Versions:
    """The versions of all clients after any round, from the rows of a run."""

    def __init__(self, attempt: str = "", forgotten: Collection[int] = ()) -> None:
        self.accepted: dict[int, list[Version]] = {}
        self.seen = 0
        self.attempt, self.forgotten = attempt, forgotten

    def read(self, history: History) -> None:
        """Read the new rounds."""
        if len(history) < self.seen:
            self.accepted, self.seen = {}, 0
        for row in history.rows[self.seen :]:
            version = Version(row["round"], str(row.get("attempt", "")))
            for client in row["clients"]:
                self.accepted.setdefault(client, []).append(version)
        self.seen = len(history)

    def of(self, client: int, until: int) -> Version | None:
        """The version after round `until`; None before the first, and for what earlier starts made and was lost."""
        versions = self.accepted.get(client, [])
        if client in self.forgotten:
            versions = [version for version in versions if version.attempt == self.attempt]
        place = bisect.bisect_right(versions, until, key=lambda version: version.round)
        return versions[place - 1] if place else None


class NotesAttempt(Observer):
    """Writes into each row which attempt accepted its replies, so that a resumed run names the right versions."""

    def __init__(self, attempt: str, forgotten: Collection[int] = ()) -> None:
        self.attempt, self.forgotten = attempt, sorted(forgotten)

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        if 0 < simulation.round < num_rounds:
            log.info("the run continues after round %d", simulation.round)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        row["attempt"] = self.attempt
        if self.forgotten:
            row["forgotten"] = self.forgotten
