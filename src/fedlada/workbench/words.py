"""Values and choices as text."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def in_words(values: Mapping[str, Any]) -> str:
    """Names and values, as in `alpha 0.1, lr 0.01`."""
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())


def shown(value: Any) -> str:
    """A value as one would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def asked_of_a_full_gpu(error: Exception) -> str:
    """Torch's out-of-memory message, without the part about other processes."""
    return str(error).partition(". GPU ")[0]


def as_file_name(text: str) -> str:
    """The text without characters that a file name should not have, such as those of compression rules."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)


def show_warnings_as_lines() -> None:
    """Show a warning as one line on standard error, as errors are, without its source location."""

    def show(message: Any, category: Any, *place: Any, **rest: Any) -> None:
        if issubclass(category, UserWarning):
            print(f"fedlada: {message}", file=sys.stderr)
        else:
            usual(message, category, *place, **rest)

    usual, warnings.showwarning = warnings.showwarning, show
