"""Faults to plant in a copy of the library, by where they lie, each group with the tests that must catch them.

A group is a module with `FAULTS` and `checks`, a function that imports tests of the suite: what it gives is called
without arguments and raises an AssertionError where a value is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

Faults = dict[str, tuple[str, str, str]]
"""By name: a file of the library, what stands there in a function, and the mistake that takes its place."""

Check = Callable[[], None]

GROUPS = ("methods", "engines", "stacked", "messages", "runs", "flower", "clients")


def in_folder(test: Callable[..., None], *arguments: object) -> None:
    """Call a test that wants a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        test(*arguments, tmp_path=Path(folder))


def once(test: Callable[..., None], *arguments: object) -> None:
    """Call a test of properties with these values alone: what finds a fault in a moment need not be searched for."""
    test.hypothesis.inner_test(*arguments)  # type: ignore[attr-defined]
