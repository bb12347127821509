"""Columns of numbers, written short: what repeats is counted, what is rounded can be rounded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_05UP, Context, Decimal
from itertools import accumulate, groupby, pairwise
from typing import Any

DECIMALS = 5
"""Of losses and drifts: one more than any table shows."""
DIGITS = 4
"""Of a drift, at least: it can be very small."""


def is_number(value: Any) -> bool:
    """Whether JSON has a number there."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: Any) -> float:
    """A number as a file has it, or an error."""
    if not is_number(value):
        raise ValueError(f"{value!r} is not a number")
    return value  # type: ignore[no-any-return]


def whole(value: Any) -> int:
    """A whole number from 0, or an error."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def shortened(name: str, value: float) -> float:
    """Losses and drifts to a few digits; all else, accuracies above all, as it is.

    A last digit is never made 0 or 5: to the digits that a table shows, the result is rounded as the value would be.
    """
    if name != "drift" and not name.endswith("loss"):
        return value
    written = Decimal(repr(value))
    decimals = max(DECIMALS, DIGITS - 1 - written.adjusted()) if name == "drift" else DECIMALS
    return float(written.quantize(Decimal(1).scaleb(-decimals), ROUND_05UP, Context(prec=400)))


def packed(values: Sequence[float]) -> Any:
    """One number where all are equal, else pairs of a number and how often it follows itself."""
    pairs = [[value, len(list(same))] for value, same in groupby(values)]
    return pairs[0][0] if len(pairs) == 1 else pairs


def unpacked(stored: Any, length: int) -> list[float]:
    """The numbers again, so many of them."""
    pairs = [[stored, length]] if is_number(stored) else stored
    values = [one for value, times in pairs for one in [number(value)] * whole(times)]
    if len(values) != length:
        raise ValueError(f"there are {len(values)} numbers in the place of {length}")
    return values


def packed_column(by_round: Mapping[int, float]) -> dict[str, Any]:
    """Values and the steps from each round that has one to the next."""
    return {"steps": packed([b - a for a, b in pairwise([0, *by_round])]), "values": list(by_round.values())}


def unpacked_column(stored: Mapping[str, Any], num_rounds: int) -> dict[int, float]:
    """The values by round."""
    values = [number(value) for value in stored["values"]]
    rounds = list(accumulate(whole(step) for step in unpacked(stored["steps"], len(values))))
    if len(set(rounds)) < len(rounds) or any(not 1 <= one <= num_rounds for one in rounds):
        raise ValueError(f"its values are not of rounds 1 to {num_rounds}")
    return dict(zip(rounds, values, strict=True))
