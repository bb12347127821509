"""Atomic writes: a kill or a full disk never leaves a partly written file."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class CannotWrite(OSError):
    """The file could not be written, for example because the disk is full; earlier files are intact."""

    def __init__(self, path: Path, error: Exception) -> None:
        self.reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        super().__init__(f"{path} cannot be written ({self.reason}); everything saved before it is intact")


def write_atomic(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """Let `write` fill a temporary file, sync it, then rename it to `path`.

    The umask decides who may read it, whatever `write` uses; a private file is readable by its owner only.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.touch(0o600 if private else 0o666)
        mode = stat.S_IMODE(beside.stat().st_mode)
        write(beside)
        beside.chmod(mode)  # safetensors makes a new file, readable by its owner only
        make_durable(beside)
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        raise CannotWrite(path, error) from None
    finally:
        with suppress(OSError):  # on a read-only disk even a file that is not there cannot be removed
            beside.unlink()
    make_durable(path.parent)


def read_object(path: Path, name: str, missing: str) -> dict[str, Any]:
    """A JSON file that holds an object; errors call it `name`, and say `missing` if there is none."""
    try:
        values = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(missing) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name} is not a JSON object")
    return values


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_atomic(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def append_text(path: Path, text: str) -> None:
    """Add text at a file's end, whole or not at all: a later attempt must not continue half a line."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        with suppress(OSError):  # a file that could not be made
            os.truncate(path, size)
        raise CannotWrite(path, error) from None


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_durable(path: Path) -> None:
    """Sync a file or a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
