"""A user's own module in the working directory, as the command line finds it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str) -> Iterator[Path]:
    """A working directory with this module, which has not been imported yet."""
    (folder / f"{module}.py").write_text(source)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(folder))])
    forget(module)
    yield folder
    sys.modules.pop(module, None)


def forget(module: str) -> None:
    """Begin as a new process does: the module was never imported."""
    sys.modules.pop(module, None)
    sys.path[:] = [one for one in sys.path if one != ""]
    importlib.invalidate_caches()
