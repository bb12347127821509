"""Checks of hyperparameters, whose errors name the value and its range."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Sequence
from dataclasses import field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any

SMALLEST_FLOAT32 = 2.0**-126


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def _finite(name: str, value: object) -> float:
    number = _number(name, value)
    if math.isinf(number):
        raise ValueError(f"{name} must be finite, got {value}")
    return number


def positive(name: str, value: object) -> None:
    """Refuse all but finite numbers above zero."""
    if _finite(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


def not_vanishing(name: str, value: object) -> None:
    """Refuse all but finite positive numbers that float32 holds with all its digits."""
    positive(name, value)
    if _finite(name, value) < SMALLEST_FLOAT32:
        raise ValueError(f"{name} must be at least {SMALLEST_FLOAT32:.2g}, as smaller numbers vanish, got {value}")


def finite(name: str, value: object) -> None:
    """Refuse all but finite numbers."""
    _finite(name, value)


def not_negative(name: str, value: object) -> None:
    """Refuse all but finite numbers from zero on."""
    if _finite(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def weight_of_new(name: str, value: object) -> None:
    """Refuse all but (0, 1]."""
    if not 0 < _number(name, value) <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


def decay_of_old(name: str, value: object) -> None:
    """Refuse all but [0, 1)."""
    if not 0 <= _number(name, value) < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def at_most_half(name: str, value: object) -> None:
    """Refuse all but (0, 1/2]."""
    if not 0 < _number(name, value) <= 0.5:
        raise ValueError(f"{name} must be in (0, 0.5], got {value}")


def probability(name: str, value: object) -> None:
    """Refuse all but [0, 1]."""
    if not 0 <= _number(name, value) <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def count(name: str, value: object, least: int = 1) -> None:
    """Refuse all but whole numbers from `least` on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def whole_number(name: str, value: object) -> int:
    """The value as a Python int; NumPy integers would overflow when hashed."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def seed_number(value: object) -> int:
    """A seed as a Python int; random numbers have keys of 64 bits, of which others would be remainders."""
    seed = whole_number("seed", value)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be between 0 and 2^64 - 1, got {seed}")
    return seed


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse all but the given words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{did_you_mean(value, choices)}")


def option(default: Any, help: str, choices: Sequence[str] = ()) -> Any:
    """A dataclass field with the help text of its flag."""
    return field(default=default, metadata={"help": help, "choices": tuple(choices)})


def field_types(instance: Any) -> None:
    """Refuse a dataclass with a field of the wrong type: a stored configuration can hold anything."""
    hints = _types_of(instance.__class__)
    for one in fields(instance):
        value, hint = getattr(instance, one.name), hints[one.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (typing.get_origin(hint) or hint,)
        accepted = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in kinds)
            raise ValueError(f"{one.name} must be of type {wanted}, got {value!r}")


@cache
def _types_of(kind: type) -> dict[str, Any]:
    """Read from annotations, which takes longer than the check."""
    return typing.get_type_hints(kind)


def nearest(word: str, choices: Sequence[str]) -> str:
    """The end of an error message: "; did you mean ...?" if a choice is close, else all choices."""
    return did_you_mean(word, choices) or f"; it is one of {', '.join(choices)}"


def did_you_mean(word: object, choices: Sequence[str]) -> str:
    """The end of an error message that lists the choices: "; did you mean ...?" if one is close."""
    from difflib import get_close_matches  # only mistakes need it

    by_lower_case = {choice.lower(): choice for choice in choices}
    given = word.lower() if isinstance(word, str) else ""
    exact = [given] if given in by_lower_case else []
    begun = [choice for choice in by_lower_case if len(given) > 2 and choice.startswith(given)]
    close = exact or begun or (get_close_matches(given, by_lower_case, n=1) if given else [])
    return f"; did you mean {by_lower_case[close[0]]!r}?" if close else ""
