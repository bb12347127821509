"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def user_path(name: str, value: str | Path) -> Path:
    """A path as users write it: `~` is their home folder; an empty one would be the current folder, and is refused."""
    if value == "":
        raise ValueError(f"{name} is empty: name a folder, or . for the current one")
    return Path(os.path.expanduser(value))
