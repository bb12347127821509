"""A client's private state (SCAFFOLD's c_i, codec residuals) on its node's disk: a file for each version.

The server names the version to start from, so a reply that came too late, one that was refused, or a server resumed
from an older checkpoint never leaves a client ahead of its server.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from fedlada.flower.exchange import log
from fedlada.flower.versions import Version
from fedlada.methods.state import Kept, map_tensors, named_tensors
from fedlada.runs.files import write_atomic

DIGEST = "sha256"
"""The entry of a file's metadata for the digest of its vectors."""
PLACE = "place"
"""The entry for the run, client and version that the vectors belong to; older files have none."""


class LostMemory(ValueError):
    """The version that the server named is missing or damaged; the text is sent and names no path."""


def default_folder() -> Path:
    """The default folder of client states: the user's folder for state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "fedlada" / "flower"


class Memories:
    """The states of one client in one run, by the round and the attempt that made them."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        # A run's name comes from a message: as a digest it cannot escape this folder.
        self.folder = folder / hashlib.sha256(run.encode()).hexdigest()[:32] / f"client-{client:06d}"

    def load(self, version: Version | None, fresh: Kept) -> Kept:
        """The state of that version; a fresh one before the client's first round."""
        if version is None:
            return fresh
        path, vectors = self._path(version), self.vectors(version)
        expected = dict(named_tensors(fresh))
        shapes = {name: (vector.shape, vector.dtype) for name, vector in expected.items()}
        if shapes != {name: (vector.shape, vector.dtype) for name, vector in vectors.items()}:
            log.error("the client state %s belongs to another model or method", path)
            raise LostMemory(f"its memory of round {version.round} belongs to another model or method")
        names = iter(expected)
        return map_tensors(lambda vector: vectors[next(names)].to(vector.device), fresh)

    def vectors(self, version: Version) -> dict[str, Tensor]:
        """The stored vectors of that version, by name."""
        path = self._path(version)
        try:
            vectors = load_file(path)
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
            place = self._place(version)
            if about.get(DIGEST) == _digest(vectors) and about.get(PLACE, place) == place:
                return vectors
            log.error("the client state %s is damaged, or was that of another run, client or round", path)
        except (OSError, SafetensorError):
            log.error("the client state %s cannot be read", path)
        raise LostMemory(f"it has lost its memory of round {version.round}")

    def save(self, version: Version, kept: Kept, *, needed: Collection[Version]) -> None:
        """Write a state; `needed` are the versions that its server, or one resumed from it, can still name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        vectors: dict[str, Tensor] = {name: vector.detach().cpu().contiguous() for name, vector in named_tensors(kept)}
        with FileLock(self.folder / ".lock"):
            about = {DIGEST: _digest(vectors), PLACE: self._place(version)}
            write_atomic(self._path(version), lambda beside: save_file(vectors, beside, about), private=True)
            for one in self.versions():
                if one not in needed and _is_past(one, version, needed):
                    self._path(one).unlink(missing_ok=True)

    def versions(self) -> list[Version]:
        """The stored versions."""
        names = (
            re.fullmatch(r"round-(\d+)-?([0-9a-f]*)\.safetensors", one.name) for one in self.folder.glob("round-*")
        )
        return sorted(Version(int(match[1]), match[2]) for match in names if match)

    def _path(self, version: Version) -> Path:
        attempt = f"-{version.attempt}" if version.attempt else ""
        return self.folder / f"round-{version.round:06d}{attempt}.safetensors"

    def _place(self, version: Version) -> str:
        return "/".join(self._path(version).parts[-3:])


def _digest(vectors: dict[str, Tensor]) -> str:
    return hashlib.sha256(save(vectors)).hexdigest()


def _is_past(one: Version, made: Version, needed: Collection[Version]) -> bool:
    """Whether no server can name it any more. A task may be late: other attempts may have newer versions."""
    if one.attempt == made.attempt:  # when this task was sent, its server had not accepted it
        return one.round < made.round
    return one.round < min((version.round for version in needed), default=0)
