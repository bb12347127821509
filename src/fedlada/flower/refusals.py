"""Faults of a node: the server learns fedlada's own sentences, and of any other error no more than its type.

An error's text may hold a row of the node's data or a path on its disk. It stays in the node's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedlada.data.samples import NoSamples
from fedlada.flower.exchange import log
from fedlada.flower.memory import LostMemory
from fedlada.flower.wire import WrongMessage
from fedlada.messages import MessageError


class Diverged(ValueError):
    """A client whose update is not finite: nothing of it is sent or stored."""


class Moved(WrongMessage):
    """A task for the client that this node was before it was started with another index."""


class Failed(RuntimeError):
    """A step that failed; the text names the step and the type of the error."""


TOLD = (WrongMessage, LostMemory, MessageError, NoSamples, Diverged, Failed)
"""Errors whose text may be sent: it holds nothing of the node's data and no path."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """A step of a node's work; an error in it is logged here, and only its type passes on."""
    try:
        yield
    except TOLD:
        raise
    except (Exception, SystemExit) as error:
        log.error("%s failed", what, exc_info=error)
        raise Failed(f"{what} failed ({type(error).__name__}); see the node's log") from None
