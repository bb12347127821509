"""Being asked to end: Ctrl-C, a polite kill, a terminal that is closed."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""Which Windows does not know."""
SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *(() if HANGUP is None else (HANGUP,)))


def asked_by(number: int) -> str:
    """How a run was asked to end, for its summary."""
    if number == HANGUP:
        return "stopped because the terminal was closed"
    return "stopped from the keyboard" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


@contextmanager
def when_asked_to_end(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, signals: Sequence[int] = SIGNALS
) -> Iterator[None]:
    """Let this handler decide what happens; a hang-up that `nohup` has switched off stays so."""

    def decide(number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            signal.signal(number, signal.SIG_IGN)  # a shell passes its own on: the second is not a second wish
            _let_go_of_the_terminal()
        if callable(handler):
            handler(number, frame)

    before = {}
    for number in signals:
        if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, decide if callable(handler) else handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _let_go_of_the_terminal() -> None:
    """Send later output to nowhere: writing to a terminal that is gone would end the run with an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):  # it was closed from the start
            # Only a file is sure to be there still: who reads a pipe has been hung up on as well.
            if not stat.S_ISREG(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)
