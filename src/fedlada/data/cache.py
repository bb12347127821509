"""The cache of decoded images: written once, then checked and memory-mapped.

A cache is a folder with `images.npy` (bytes `[N, C, H, W]`), `labels.npy` and `meta.json`: what it was made from, the
checksums of both files, and the statistics of the images. It is built under another name and renamed when it is whole;
a lock lets one process build it while the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlada.data.images import Bytes, channel_statistics
from fedlada.federation.randomness import Ints

CACHE_FORMAT = 2
BLOCK = 32 * 2**20
CACHE_FOLDER = ".fedlada-cache"


@dataclass(frozen=True, eq=False)
class Decoded:
    """A split of a data set, its images mapped from a file."""

    images: Bytes
    labels: Ints
    mean: tuple[float, ...]
    std: tuple[float, ...]


def open_or_build(
    beside: Path,
    name: str,
    fingerprint: str,
    labels: Ints,
    shape: Callable[[], tuple[int, ...]],
    images: Callable[[tuple[int, ...]], Iterable[Bytes]],
) -> Decoded:
    """The cache of that name and fingerprint; if there is none, or a damaged one, it is made of the `images`.

    `shape` says what shape each of them has; neither function is called where the cache is whole.
    """
    own = beside / CACHE_FOLDER / name
    # Before the check for write access, which reading does not need.
    if (found := _open(own, fingerprint)) is not None:
        return found
    place = _cache_folder(beside) / name
    if place != own and (found := _open(place, fingerprint)) is not None:
        return found
    from filelock import FileLock  # not needed to simulate on arrays

    with FileLock(place.with_name(f"{name}.lock")):
        found = _open(place, fingerprint)  # another process may have built it while this one waited
        if found is None:
            _remove_left_behind(place)
            _build(place, fingerprint, labels, shape, images)
            found = _open(place, fingerprint)
    if found is None:
        raise OSError(f"the cache {place} was written but reads back differently: check the disk")
    return found


def _build(
    place: Path,
    fingerprint: str,
    labels: Ints,
    shape: Callable[[], tuple[int, ...]],
    images: Callable[[tuple[int, ...]], Iterable[Bytes]],
) -> None:
    each = shape()
    with _new_folder(place) as folder:
        try:
            _write_images(folder / "images.npy", (len(labels), *each), images(each))
            np.save(folder / "labels.npy", labels)
            mean, std = channel_statistics(np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False))
            meta = {
                "format": CACHE_FORMAT,
                "made from": fingerprint,
                "checksums": {file: _checksum(folder / file) for file in ("images.npy", "labels.npy")},
                "mean": mean,
                "std": std,
            }
            (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(f"the cache {place} cannot be written ({reason}); the data set itself is untouched") from None


def _write_images(path: Path, shape: tuple[int, ...], images: Iterable[Bytes]) -> None:
    # Written, not mapped: on a full disk a write raises an error, while a mapped page would kill the process.
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for image in images:
            file.write(image.tobytes())


def _remove_left_behind(place: Path) -> None:
    """Remove unfinished caches of killed processes; the lock ensures that no other process is writing."""
    for left in place.parent.glob(f".{place.name}-*"):
        # A further dash belongs to a cache with a longer name, which has its own lock.
        if "-" not in left.name.removeprefix(f".{place.name}-"):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `place` on success and removed on failure."""
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield folder
        folder.chmod(0o755)
        if place.exists():
            shutil.rmtree(place)
        os.replace(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(place: Path, fingerprint: str) -> Decoded | None:
    """The cache, or None where it is missing, damaged or made from other files: then it is built again."""
    try:
        meta = json.loads((place / "meta.json").read_text())
        fits = meta["format"] == CACHE_FORMAT and meta["made from"] == fingerprint
        if not fits or any(_checksum(place / file) != wanted for file, wanted in meta["checksums"].items()):
            return None
        images = np.load(place / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(place / "labels.npy", allow_pickle=False)
        return Decoded(images, labels, tuple(meta["mean"]), tuple(meta["std"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _checksum(path: Path) -> str:
    """SHA-256 over the SHA-256 of each block: blocks are read by several threads, and mapped, not copied."""
    size = path.stat().st_size
    data: Any = np.memmap(path, dtype=np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)

    def block(start: int) -> bytes:
        return hashlib.sha256(data[start : start + BLOCK]).digest()

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return hashlib.sha256(b"".join(threads.map(block, range(0, size, BLOCK)))).hexdigest()


def _cache_folder(beside: Path) -> Path:
    """The data set's own folder, or the user's cache folder if that is not writable."""
    own = beside / CACHE_FOLDER
    try:
        own.mkdir(exist_ok=True)
        if os.access(own, os.W_OK):
            return own
    except OSError:
        pass
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    elsewhere = base / "fedlada" / hashlib.sha256(str(beside.resolve()).encode()).hexdigest()[:16]
    try:
        elsewhere.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"neither {own} nor {elsewhere} can be made ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder for the decoded images"
        ) from None
    return elsewhere
