"""A user's own function, imported by its name `package.module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any


def check_written(kind: str, name: str) -> None:
    """Refuse anything but `package.module:factory`; import nothing."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute or module.startswith("."):
        raise ValueError(f"the {kind} {name!r} cannot be imported: write package.module:factory")


def refuse_stored(
    kind: str, name: str, place: Path, *, named: str | None, trust: bool, is_own: bool, by_hand: str
) -> None:
    """Refuse a part that a stored configuration names, unless it is built in, named by the user too, or trusted."""
    if named is not None and named != name:
        raise ValueError(f"{place} has the {kind} {name!r}, not {named!r}: name that, or leave --{kind} out")
    if is_own and not (trust or named):
        raise ValueError(
            f"{place} asks for the {kind} {name!r}, which is not built in, and importing it would run its code: "
            f"name it yourself ({by_hand}) or trust its author (--trust, trust=True)"
        )


def imported(kind: str, name: str) -> Callable[..., Any]:
    """The function of that name, called as it was imported: modules in the working directory are found."""
    check_written(kind, name)
    module, _, attribute = name.partition(":")
    try:
        with working_directory():
            factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module runs here, and can fail in any way
        what = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the {kind} {name!r} cannot be imported: {' '.join(what.split())}") from error
    if not callable(factory):
        raise ValueError(f"the {kind} {name!r} is not a function")

    @wraps(factory, updated=())
    def make(*arguments: Any, **named: Any) -> Any:
        with working_directory():
            return factory(*arguments, **named)

    return make


@contextmanager
def working_directory() -> Iterator[None]:
    """Import modules from the working directory, as `python -m` does; restores the path afterwards."""
    is_there = "" in sys.path
    if not is_there:
        sys.path.insert(0, "")
    try:
        yield
    finally:
        if not is_there and "" in sys.path:
            sys.path.remove("")
