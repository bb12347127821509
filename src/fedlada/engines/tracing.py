"""Whether operations are recorded as a graph: kernels of our own, which a graph does not see, are not used then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TRACING = ContextVar("tracing", default=False)


@contextmanager
def tracing() -> Iterator[None]:
    """Record everything inside as plain operations of torch."""
    token = _TRACING.set(True)
    try:
        yield
    finally:
        _TRACING.reset(token)


def is_tracing() -> bool:
    """Whether plain operations alone are wanted."""
    return _TRACING.get()
