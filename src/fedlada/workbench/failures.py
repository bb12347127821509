"""An error as one line, and as a traceback on request."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "FEDLADA_TRACEBACK"
"""The environment variable that asks for tracebacks."""
HERE = Path(__file__).parents[1]


def told(error: BaseException) -> str:
    """The error's message; if it came through the user's own code, with the last place there, and the round if any."""
    is_sentence = isinstance(error, (ValueError, RuntimeError, OSError, ImportError))
    said = str(error) if is_sentence else f"{type(error).__name__}: {error}"
    place = own_place(error)
    if not place:
        return said
    way = "" if _is_wanted() else f"; {VARIABLE}=1 shows the traceback"
    return f"{said} ({', '.join([place, *getattr(error, '__notes__', ())])}{way})"


def show_traceback(error: BaseException) -> None:
    """Print the whole traceback if the user wants it, with errors that led to this one."""
    if _is_wanted():
        for one in _chain(error):
            one.__suppress_context__ = False
        traceback.print_exception(error)


def _is_wanted() -> bool:
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, the one that led to it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def own_place(error: BaseException) -> str:
    """The last place in the user's own code that the error came through; empty if it came through none."""
    return next((place for one in reversed(list(_chain(error))) if (place := _last_own_line(one))), "")


def _last_own_line(error: BaseException) -> str:
    """The last line that is neither of this library nor of an installed one."""
    installed = {Path(path) for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))}
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [
        f"{file}, line {line}"
        for file, line in places
        if not file.startswith("<") and not any(Path(file).is_relative_to(root) for root in (HERE, *installed))
    ]
    return own[-1] if own else ""
