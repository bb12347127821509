"""Limits on the unpacked size of a file: one that would exhaust memory is refused before it is unpacked."""

from __future__ import annotations

from pathlib import Path

ALWAYS_READ = 10**9
"""Unpacked size that is always allowed, in bytes."""
TIMES_ITS_SIZE = 50
"""Allowed ratio of unpacked to packed size beyond that; a zip bomb has a thousand."""


class Unfit(ValueError):
    """An error of this library, not of the one that reads the file."""


def refuse_bomb(path: Path, num_bytes: int) -> None:
    """Refuse a file whose header claims an implausible unpacked size."""
    if num_bytes > max(ALWAYS_READ, TIMES_ITS_SIZE * path.stat().st_size):
        raise Unfit(
            f"{path} promises {num_bytes / 1e9:.2f} GB: at most {ALWAYS_READ / 1e9:g} GB, or {TIMES_ITS_SIZE} times "
            "the file's own size, are read"
        )
