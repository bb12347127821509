"""A chart as data: drawn by matplotlib into files and by the report page into SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedlada.methods.validation import one_of

STYLES = ("line", "points", "bars", "arrows")


@dataclass(frozen=True)
class Series:
    """One line or cloud of points, with a band where low and high are given."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: str = "line"
    """line, points, bars, or arrows: consecutive points are joined by arrows."""

    def __post_init__(self) -> None:
        one_of("style", self.style, STYLES)
        if len(self.x) != len(self.y):
            raise ValueError(f"the series {self.name!r} has {len(self.x)} values of x and {len(self.y)} of y")
        if len(self.low) != len(self.high) or len(self.low) not in (0, len(self.x)):
            raise ValueError(f"the band of the series {self.name!r} needs a low and a high value for each point")


@dataclass(frozen=True)
class Chart:
    """A chart as data: drawn by matplotlib into PNG, SVG, PDF and by the report page into SVG."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    targets: tuple[float, ...] = ()
    """Dashed horizontal lines."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The chart as plain values; non-finite numbers become null."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Chart:
        """The stored chart; refuses anything else."""
        try:
            series = tuple(
                Series(
                    str(one["name"]),
                    style=one["style"],
                    **{name: _numbers(one[name]) for name in ("x", "y", "low", "high")},
                )
                for one in values["series"]
            )
            title, x_label, y_label, note = (str(values[name]) for name in ("title", "x_label", "y_label", "note"))
            log_x, log_y = bool(values["log_x"]), bool(values["log_y"])
            return cls(title, x_label, y_label, series, log_x, log_y, _numbers(values["targets"]), note)
        except (KeyError, TypeError):
            raise ValueError("a stored chart needs all fields of Chart and Series") from None


def _numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value
