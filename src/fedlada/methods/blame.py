"""Where an error arose in a method."""

from __future__ import annotations

import traceback

from fedlada.methods.combine import Combiner
from fedlada.methods.local import LocalTransform
from fedlada.methods.server import ServerOptimizer


def blamed(error: Exception) -> str:
    """The error with the part and the call that raised it: "Mine.apply failed: ValueError: ..."."""
    said = f"{type(error).__name__}: {error}"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, (LocalTransform, ServerOptimizer, Combiner)):
            return f"{type(first).__name__}.{code.co_name} failed: {said}"
    return said
