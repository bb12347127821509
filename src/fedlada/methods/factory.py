"""Methods by name, or a user's own by `package.module:factory`, whose arguments are the hyperparameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from fedlada.methods.imported import check_written, imported, refuse_stored
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import RECIPES
from fedlada.methods.recipes import hyper_parameters as of_recipe
from fedlada.methods.validation import one_of

Recipe = Callable[..., FederatedMethod]


def is_own(name: str) -> bool:
    """Whether this is the name of a user's own method."""
    return ":" in name


def check_method_name(name: str) -> None:
    """Refuse anything but a method's name or `package.module:factory`; import nothing."""
    if is_own(name):
        check_written("method", name)
    else:
        one_of("method", name, tuple(RECIPES))


def method_factory(name: str) -> Recipe:
    """A recipe by its name, or a user's own factory, which is imported."""
    check_method_name(name)
    if not is_own(name):
        return RECIPES[name]
    factory = imported("method", name)

    @wraps(factory, updated=())
    def make(**hyper: Any) -> FederatedMethod:
        try:
            made = factory(**hyper)
        except Exception as error:
            raise ValueError(f"the method {name!r} could not be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, FederatedMethod):
            raise ValueError(f"the method {name!r} must return a FederatedMethod, got {type(made).__name__}")
        return made

    return make


def hyper_parameters(name: str) -> dict[str, Any]:
    """A method's hyperparameters with their defaults: the arguments of its recipe or of the imported factory."""
    if not is_own(name):
        return of_recipe(name)
    found = {}
    for argument, one in inspect.signature(method_factory(name)).parameters.items():
        if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        if one.default is inspect.Parameter.empty or one.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ValueError(f"the method {name!r} needs a default for its argument {argument!r}, which becomes a flag")
        if one.default is not None and not isinstance(one.default, (bool, int, float, str)):
            raise ValueError(
                f"the method {name!r} must have numbers, words, truth values or None as defaults, "
                f"got {argument}={one.default!r}"
            )
        found[argument] = one.default
    return found


def refuse_untrusted(name: str, place: Path, *, named: str | None = None, trust: bool = False) -> None:
    """Refuse a method that a stored configuration names, unless it is built in, named by the user too, or trusted."""
    refuse_stored("method", name, place, named=named, trust=trust, is_own=is_own(name), by_hand="--method")


def check_hyper(method: str, hyper: Mapping[str, Any]) -> None:
    """Refuse a hyperparameter that the method does not have; imports a user's own method."""
    known = hyper_parameters(method)
    if unknown := sorted(set(hyper) - set(known)):
        raise ValueError(f"{method} has no hyperparameter {unknown[0]!r}; it has {', '.join(known)}")
