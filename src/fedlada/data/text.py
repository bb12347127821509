"""A text task that needs no download: the docstrings of Python's standard library.

Each module is a client, written by its own authors about its own subject: a natural partition. The task is to predict
the character that follows 32 others. The text is that of the running Python, so results are comparable within one of
its versions; a run folder refuses to resume with another.
"""

from __future__ import annotations

import ast
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlada.federation.randomness import Ints

WINDOW = 32
NUM_CHARACTERS = 128
"""ASCII: a character's code is its class; anything else counts as a question mark."""
SPACING = 8
"""Characters from the start of one window to the next; farther where a module would have too many."""
TRAIN_WINDOWS, TEST_WINDOWS = 500, 40
"""Maximum number of windows per module."""
SHORTEST = 600
"""Characters a module's documentation must have to make a client."""


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Windows `[N, length]` of character codes, the character after each, and the number of its client."""

    x: Ints
    y: Ints
    client: Ints


def load_docstrings(library: Path | None = None) -> tuple[TextSplit, TextSplit, list[str]]:
    """(train, test, module names) of the standard library's documentation; the last sixth of each module is test."""
    folder = library or Path(sysconfig.get_paths()["stdlib"])
    names, train, test = [], [], []
    for path in sorted(folder.glob("*.py")):
        text = _documentation(path).encode("ascii", errors="replace")
        codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        if len(codes) < SHORTEST:
            continue
        cut = len(codes) - len(codes) // 6  # no window crosses it, so no test character was trained on
        names.append(path.stem)
        train.append(_windows(codes[:cut], TRAIN_WINDOWS))
        test.append(_windows(codes[cut:], TEST_WINDOWS))
    if len(names) < 2:
        raise ValueError(f"{folder} has no documented Python modules: this Python comes without its library's sources")
    return joined(train), joined(test), names


def _documentation(path: Path) -> str:
    """All docstrings of a file, without their indentation."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return "\n\n".join(text for text in found if text)


def _windows(codes: Ints, at_most: int) -> Ints:
    """Windows of 32 characters and the one that follows, `[N, 33]`, evenly spaced."""
    num_places = len(codes) - WINDOW
    starts = np.linspace(0, num_places - 1, num=min(at_most, num_places // SPACING)).astype(np.int64)
    windows: Ints = codes[starts[:, None] + np.arange(WINDOW + 1)]
    return windows


def joined(parts: list[Ints]) -> TextSplit:
    """The windows of all clients as one split; a window's last character is the one to predict."""
    windows = np.concatenate(parts)
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return TextSplit(windows[:, :-1], windows[:, -1], client)
