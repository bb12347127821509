"""Models by name, and the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn

from fedlada.methods.validation import one_of
from fedlada.models import MODELS

OWN_FACTORIES = ("fedlada.paper.small_lenet:gelu", "fedlada.paper.small_lenet:smu")
"""Factories of this package that a reproduction names by their path."""


def is_built_in(name: str) -> bool:
    """Whether a model of that name comes with this library."""
    return name in MODELS or name in OWN_FACTORIES


def check_model_name(name: str) -> None:
    """Refuse what is neither the name of a model nor written as `package.module:factory`; import nothing."""
    module, colon, attribute = name.partition(":")
    if not colon:
        one_of("model", name, tuple(MODELS))
    elif not module or not attribute or module.startswith("."):
        raise ValueError(f"the model {name!r} cannot be imported: write package.module:factory")


def trusted_factory(
    name: str, place: Path, *, named: str | None = None, trust: bool = False
) -> Callable[..., nn.Module]:
    """The factory of a model that a stored configuration names: built in, named by the user too, or trusted."""
    if named is not None and named != name:
        raise ValueError(f"{place} has the model {name!r}, not {named!r}: name that one, or leave --model out")
    if not (trust or named or is_built_in(name)):
        raise ValueError(
            f"{place} asks for the model {name!r}, which is not built in, and importing it would run its code: "
            "name it yourself (--model, model=) or trust its author (--trust, trust=True)"
        )
    return model_factory(name)


def model_factory(name: str) -> Callable[..., nn.Module]:
    """A model's factory by its name, or the user's own by `package.module:factory`, which is imported."""
    check_model_name(name)
    if name in MODELS:
        return MODELS[name]
    module, _, attribute = name.partition(":")
    if is_built_in(name):
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    try:
        with _working_directory():
            factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module runs here, and can fail in any way
        what = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the model {name!r} cannot be imported: {' '.join(what.split())}") from None
    if not callable(factory):
        raise ValueError(f"the model {name!r} is not a function")

    @wraps(factory, updated=())
    def make(*arguments: Any, **named: Any) -> nn.Module:
        with _working_directory():
            return factory(*arguments, **named)  # type: ignore[no-any-return]

    return make


@contextmanager
def _working_directory() -> Iterator[None]:
    """Find modules that lie beside the user, as `python -m` does; the path is afterwards as it was."""
    is_there = "" in sys.path
    if not is_there:
        sys.path.insert(0, "")
    try:
        yield
    finally:
        if not is_there and "" in sys.path:
            sys.path.remove("")
