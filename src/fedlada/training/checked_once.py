"""Transforms are checked once, not in every run or for every message."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from weakref import WeakValueDictionary

from fedlada.methods.local import LocalTransform
from fedlada.methods.state import held_by
from fedlada.methods.testing.transforms import HOOKS, error_in_check

PLAIN = (bool, int, float, str, type(None))

_right: WeakValueDictionary[int, LocalTransform] = WeakValueDictionary()
"""Transforms that were found right, by their identity: their fields are frozen."""
_right_values: set[Hashable] = set()
"""The same for this library's own, by their classes and fields."""


def check_once(part: LocalTransform) -> None:
    """Check a transform, unless this very object was, or an equal one of this library."""
    if _right.get(id(part)) is part:
        return
    values = _values(part)
    if values in _right_values or error_in_check(part):
        return
    with suppress(TypeError):  # one with slots cannot be found again
        _right[id(part)] = part
    if values is not None:
        _right_values.add(values)


def _values(part: LocalTransform) -> Hashable | None:
    """All that its results depend on; None for a user's transform, which may read anything."""
    kind, held = type(part), held_by(part)
    if kind.__module__.split(".")[0] != "fedlada" or not all(type(value) in PLAIN for value in held.values()):
        return None
    return (kind, *(getattr(kind, hook) for hook in HOOKS), repr(held))
