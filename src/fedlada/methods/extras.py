"""Errors for optional packages that are not installed."""

from __future__ import annotations


def missing(what: str, extra: str) -> ModuleNotFoundError:
    """The error of a part that needs an extra: `what` says which package, the rest how it is installed."""
    return ModuleNotFoundError(f"{what}: pip install '.[{extra}]' in a clone of fedlada")
