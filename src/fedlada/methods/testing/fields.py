"""State in the fields of a method's parts: no checkpoint has it, and two runs with the part would share it."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedlada.methods.state import held_by


def refuse_generator(part: object) -> None:
    """Refuse a part with a random generator of its own, also inside a list or dict."""
    numpy = sys.modules.get("numpy")
    kinds = (random.Random, *(() if numpy is None else (numpy.random.Generator, numpy.random.RandomState)))
    for name, value in held_by(part).items():
        if any(isinstance(one, (torch.Generator, *kinds)) for one in _everything(value)):
            raise ValueError(
                f"{type(part).__name__} holds the random generator {name!r}, whose state no checkpoint has: draw from "
                "torch, NumPy or Python themselves, which follow the run's seed"
            )


def _everything(value: Any) -> Iterator[Any]:
    """A value, and what its lists, tuples and dicts hold."""
    yield value
    if isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _everything(one)


def fields_of(part: object) -> dict[str, Any]:
    """A copy of what a part holds in its fields, as far as it can be copied."""
    found = {}
    for name, value in held_by(part).items():
        try:
            found[name] = copy.deepcopy(value)
        except Exception:  # a user's object, such as an open file
            continue
    return found


def changed_field(before: dict[str, Any], part: object) -> str:
    """The name of a field that is not as it was; empty if there is none. Lists and dicts may grow, as notes do."""
    after = held_by(part)
    return next((name for name, value in before.items() if name in after and not _is_same(value, after[name])), "")


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor):
        return isinstance(new, Tensor) and torch.equal(old, new)
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and _is_same(one, new[name]) for name, one in old.items())
    if isinstance(old, (list, tuple)):
        return isinstance(new, type(old)) and len(new) >= len(old) and all(map(_is_same, old, new))
    if hasattr(old, "__array_interface__"):
        return hasattr(new, "__array_interface__") and old.tobytes() == new.tobytes()
    plain = (bool, int, float, complex, str, bytes, type(None))
    return not isinstance(old, plain) or repr(new) == repr(old)
