"""A client's private memory (SCAFFOLD's c_i) on its node's disk: one file for each round that made one.

The server names the version to start from, so a reply that came too late, one that was refused, or a server resumed
from an older checkpoint never leaves a client ahead of its server.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedlada.runs.files import write_atomic
from fedlada.state import Kept, map_tensors, named_tensors


class LostMemory(ValueError):
    """The version that the server named is not there, or not whole."""


def default_folder() -> Path:
    """Where memories lie if nothing is said: the user's folder for state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "fedlada" / "flower"


class Memories:
    """The memories of one client in one run, by the round in which they were made."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        # A run's name comes from a message: as a digest it can name no other place on this disk.
        self.folder = folder / hashlib.sha256(run.encode()).hexdigest()[:32] / f"client-{client:06d}"

    def load(self, version: int, fresh: Kept) -> Kept:
        """The memory that was made in that round; round 0 is before the first, with a fresh one."""
        if version == 0:
            return fresh
        path = self._path(version)
        try:
            vectors = load_file(path)
        except (OSError, SafetensorError):
            raise LostMemory(f"it has lost its memory of round {version} ({path})") from None
        expected = dict(named_tensors(fresh))
        shapes = {name: (vector.shape, vector.dtype) for name, vector in expected.items()}
        if shapes != {name: (vector.shape, vector.dtype) for name, vector in vectors.items()}:
            raise LostMemory(f"its memory of round {version} ({path}) belongs to another model or method")
        names = iter(expected)
        return map_tensors(lambda vector: vectors[next(names)].to(vector.device), fresh)

    def save(self, version: int, kept: Kept, *, oldest: int) -> None:
        """Write the memory made in a round; forget those older than the oldest that a server can still name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        vectors: dict[str, Tensor] = {name: vector.detach().cpu().contiguous() for name, vector in named_tensors(kept)}
        with FileLock(self.folder / ".lock"):
            write_atomic(self._path(version), lambda beside: save_file(vectors, beside))
            for one in self.versions():
                if one < oldest:
                    self._path(one).unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """The rounds of which there is a memory."""
        found = (re.fullmatch(r"round-(\d+)\.safetensors", path.name) for path in self.folder.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"
