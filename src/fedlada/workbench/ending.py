"""Graceful termination: Ctrl-C, SIGTERM, a closed terminal."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""Signals that Windows does not have."""
SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *(() if HANGUP is None else (HANGUP,)))


def asked_by(number: int) -> str:
    """The reason why a run was stopped, for its summary."""
    if number == HANGUP:
        return "stopped because the terminal was closed"
    return "stopped from the keyboard" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


@contextmanager
def when_asked_to_end(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, signals: Sequence[int] = SIGNALS
) -> Iterator[None]:
    """Install this handler; a hang-up signal that `nohup` ignores stays ignored."""

    def decide(number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            signal.signal(number, signal.SIG_IGN)  # a shell forwards its own hang-up: this is not a second request
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


@contextmanager
def held_back(signals: Sequence[int]) -> Iterator[None]:
    """Let these signals wait until the end. Processes that are started meanwhile do not get them either."""
    arrived: list[int] = []
    blocks = hasattr(signal, "pthread_sigmask")  # not on Windows
    with when_asked_to_end(lambda number, _: arrived.append(number), signals):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals) if blocks else set()
        try:
            yield
        finally:
            if blocks:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for number in arrived:  # also those that another thread took
        signal.raise_signal(number)


def let_through(signals: Sequence[int]) -> None:
    """In a process that was started while they were held back."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _let_go_of_the_terminal() -> None:
    """Discard later output: writing to a closed terminal would end the run with an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):  # it was closed from the start
            # Only a file surely still exists: the reader of a pipe has received the hang-up as well.
            if not stat.S_ISREG(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)
