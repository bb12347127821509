"""Types of the values of flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedlada.data.paths import user_path
from fedlada.methods.factory import check_method_name, is_own
from fedlada.methods.validation import nearest
from fedlada.training.target import Target

OFF = "none"


class UserPath(click.Path):
    """A path in which `~` is the home folder, also where no shell has replaced it; not an empty one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Convert to a path."""
        try:
            return user_path("the path", value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NearestChoice(click.Choice[str]):
    """A choice whose error message suggests the nearest valid value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert to one of the choices."""
        if str(value).lower() in self.choices:  # FedLADA is fedlada
            return str(value).lower()
        if value not in self.choices:
            self.fail(f"{value!r} is not known{nearest(str(value), list(self.choices))}", param, ctx)
        return str(value)


class MethodName(NearestChoice):
    """One of the methods, or the user's own as `package.module:factory`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert to a method's name."""
        if not is_own(str(value)):
            return super().convert(value, param, ctx)
        try:
            check_method_name(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class TargetValue(click.ParamType[float | str]):
    """An accuracy, or any metric with its value."""

    name = "accuracy|metric:value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or the text as it is."""
        try:
            target = Target.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value if isinstance(value, str) and ":" in value else target.value


class NumberOrNone(click.ParamType[float | str]):
    """A number, or "none" to switch off."""

    name = "number|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or the word."""
        if value == OFF:
            return OFF
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {OFF!r}", param, ctx)


class Words(click.ParamType[list[Any]]):
    """Values separated by commas, each given once."""

    name = "list"

    def __init__(
        self, kind: Callable[[str], Any] = str, choices: tuple[str, ...] = (), *, takes_own: bool = False
    ) -> None:
        self.kind = kind
        self.choices = choices
        self.takes_own = takes_own
        """Whether `package.module:factory` is accepted too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """The values in their order."""
        if isinstance(value, list):
            return value
        words = [word.strip() for word in value.split(",") if word.strip()]
        words = [word.lower() if word.lower() in self.choices else word for word in words]  # FedLADA is fedlada
        for word in words:
            if self.choices and word not in self.choices and not (self.takes_own and is_own(word)):
                self.fail(f"{word!r} is not known{nearest(word, list(self.choices))}", param, ctx)
        try:
            values = [self.kind(word) for word in words]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers separated by commas", param, ctx)
        if not values or len(set(values)) < len(values):
            self.fail("the list is empty" if not values else f"{value!r} names something twice", param, ctx)
        return values
