"""Errors say in which round they were raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named_round(round: int) -> Iterator[None]:
    """Add a note with the round to an error that does not name it: a combiner, schedule or metric of the user's own."""
    try:
        yield
    except Exception as error:
        if not any(f"round {round}" in said for said in (str(error), *getattr(error, "__notes__", ()))):
            error.add_note(f"in round {round}")
        raise
