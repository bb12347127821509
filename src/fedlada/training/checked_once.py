"""Transforms are checked once in a process, not in every run or for every message."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any
from weakref import WeakValueDictionary

from fedlada.methods.local import LocalTransform
from fedlada.methods.state import has_tensors, held_by
from fedlada.methods.testing.transforms import HOOKS, error_in_check

MOST = 256
"""Values that are remembered at most."""

_right: WeakValueDictionary[int, LocalTransform] = WeakValueDictionary()
"""Transforms that were found right, by their identity."""
_right_values: set[Hashable] = set()
"""Kinds and fields of transforms that were found right."""


def check_once(part: LocalTransform) -> None:
    """Check a transform, unless this very object was, or a frozen one that equals it."""
    values = _values(part)
    if _right.get(id(part)) is part or values in _right_values:
        return
    error_in_check(part)
    with suppress(TypeError):  # one with slots cannot be found again
        _right[id(part)] = part
    if values is not None:
        if len(_right_values) >= MOST:
            _right_values.clear()
        _right_values.add(values)


def _values(part: LocalTransform) -> Hashable | None:
    """All that its results depend on; None if that may change, or is large."""
    kind: Any = type(part)
    if not is_dataclass(part) or not kind.__dataclass_params__.frozen or has_tensors(held_by(part)):
        return None
    held = tuple((name, type(value), value) for name, value in held_by(part).items())
    values = (kind, *(getattr(kind, hook) for hook in HOOKS), held)
    try:
        hash(values)
    except TypeError:
        return None
    return values
