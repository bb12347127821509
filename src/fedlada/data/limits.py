"""Limits on what a file may ask for: one that would fill the memory is refused before it is unpacked."""

from __future__ import annotations

from pathlib import Path

ALWAYS_READ = 10**9
"""Bytes that any file may unpack to."""
TIMES_ITS_SIZE = 50
"""How much larger than the file itself its content may be beyond that; a bomb is a thousand times as large."""


class Unfit(ValueError):
    """A sentence of ours, not one of the library that reads the file."""


def refuse_bomb(path: Path, num_bytes: int) -> None:
    """Refuse a file whose header promises far more than a file of its size holds."""
    if num_bytes > max(ALWAYS_READ, TIMES_ITS_SIZE * path.stat().st_size):
        raise Unfit(
            f"{path} promises {num_bytes / 1e9:.2f} GB: at most {ALWAYS_READ / 1e9:g} GB, or {TIMES_ITS_SIZE} times "
            "the file's own size, are read"
        )
