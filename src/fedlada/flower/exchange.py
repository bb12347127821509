"""The reply policy, and errors and nodes in words."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from flwr.app import Error

from fedlada.methods.validation import count, one_of, positive
from fedlada.training.shown import plural

log = logging.getLogger("fedlada.flower")

UNAVAILABLE = {
    3: "its message or its upload has expired",
    4: "its answer has expired",
    5: "its node does not respond any more",
}
"""Flower's error codes for an expired message or a lost node: the app itself did not fail."""
LONGEST_LINE = 500
MOST_READ = 4 * LONGEST_LINE
"""Characters of an untrusted text that are read: it may have any length."""
LONGEST_WORD = 100
MOST_NAMES = 10
CLOCKS = 60.0
"""Allowed clock difference in seconds: messages stay valid this much longer than they are awaited."""

MOST_SKIPPED = 3
"""Rounds in a row without enough replies, the last of which ends the run."""


def show_log() -> None:
    """Show the log where nobody else does: Flower shows what a ServerApp writes to standard error."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("fedlada: %(message)s"))
        log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


class TooFewReplies(RuntimeError):
    """Too few nodes at the start, or too few usable replies in three rounds in a row; earlier rounds are saved."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The reply policy: how many replies a round waits for, and what happens to missing clients."""

    minimum: int = 1
    """Least number of usable replies for a round to count; one with fewer is skipped."""
    time_limit: float = 600.0
    """Time limit of a client's reply, in seconds; later replies are ignored."""
    on_missing: str = "drop"
    """"drop": continue without clients that did not reply in time, if enough did; "wait": ask them again."""
    nodes: int | None = None
    """Clients that must be connected before the first round; by default all."""
    patience: float = 3600.0
    """Time limit of a round, in seconds: it then continues with the minimum of replies, or is skipped.

    Three skipped rounds in a row end the run.
    """

    def __post_init__(self) -> None:
        count("minimum", self.minimum)
        positive("time_limit", self.time_limit)
        one_of("on_missing", self.on_missing, ("drop", "wait"))
        if self.nodes is not None:
            count("nodes", self.nodes)
        positive("patience", self.patience)


@dataclass
class SkippedRounds:
    """Rounds in a row without enough replies."""

    number: int = 0

    def add(self, why: str, minimum: int) -> None:
        """Note one more with a warning; the run ends if there are too many."""
        self.number += 1
        if self.number == MOST_SKIPPED:
            smaller = ", or set a smaller `minimum` in Replies" if minimum > 1 else ""
            raise TooFewReplies(
                f"{why}. This is round {MOST_SKIPPED} in a row without enough answers: fix these nodes and start the "
                f"run again{smaller}"
            )
        log.warning("%s. The round is skipped", why)


def pauses() -> Iterator[float]:
    """Polling intervals: short at first, then as in Flower."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2.0, 1.3 * pause)


def in_short(error: Error) -> str:
    """An error's message without its traceback."""
    if error.code in UNAVAILABLE:
        return UNAVAILABLE[error.code]
    end = (error.reason or "")[-MOST_READ:].rstrip()
    lines = end.splitlines()
    return one_line(lines[-1]) if lines else "no reason was given"


def one_line(text: object) -> str:
    """A node's untrusted text on one line, for the log."""
    line = " ".join(str(text)[:MOST_READ].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


def word(value: object) -> str:
    """An untrusted value in an error message: never formatted where it may be of any size."""
    if isinstance(value, str):
        return f"{value[:LONGEST_WORD]!r}{' ...' if len(value) > LONGEST_WORD else ''}"
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    return f"a {type(value).__name__}"


def listed(found: Iterable[str]) -> str:
    """Untrusted names in an error message: the first few, shortened."""
    few = [one[:LONGEST_WORD] for one in islice(found, MOST_NAMES + 1)]
    return ", ".join(few[:MOST_NAMES] + ["..."] * (len(few) > MOST_NAMES)) or "none"


def reasons(refused: Mapping[str, str]) -> str:
    """The end of a sentence that says why some are refused: the first few."""
    few = "".join(f"; {who}: {why}" for who, why in islice(refused.items(), MOST_NAMES))
    others = len(refused) - MOST_NAMES
    return few + (f"; and {plural(others, 'other')}" if others > 0 else "")


def in_words(clients: Sequence[int]) -> str:
    """A list of clients as text: the first few."""
    others = len(clients) - MOST_NAMES
    few = ", ".join(map(str, sorted(clients)[:MOST_NAMES])) + (f" and {plural(others, 'other')}" if others > 0 else "")
    return f"{'client' if len(clients) == 1 else 'clients'} {few}"
