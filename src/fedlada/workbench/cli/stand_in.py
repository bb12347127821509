"""Help and completion without torch, whose import takes seconds: flags are declared next to code that imports it."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import click

HEAVY = ("torch", "triton", "numpy", "safetensors")
"""Libraries that no flag needs."""


class _Anything(ABCMeta):
    """The type of stand-ins: every attribute of one is another stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _new(name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if cls.__dict__.get("_stands_in") is None:  # a class of ours that inherits from one
            return super().__call__(*arguments, **named)
        is_decorated = len(arguments) == 1 and not named and callable(arguments[0])
        return arguments[0] if is_decorated else cls

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _new(name: str) -> Any:
    return _Anything(name, (), {"_stands_in": True})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _new(name)
        setattr(self, name, value)
        return value


class StandIn:
    """Finds stand-ins for torch and the like, with all their modules. A process that has them must not train.

    A finder and a loader without their base classes, whose import would take as long as all else here.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A stand-in for heavy libraries, None for others."""
        loader: Any = self
        return ModuleSpec(name, loader, is_package=True) if name.partition(".")[0] in HEAVY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that has every name."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def only_asks(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command line asks only for help or completion, without importing code of the user."""
    completes = "_FEDLADA_COMPLETE" in environment
    return completes or (not {"-h", "--help"}.isdisjoint(words) and not any(":" in word for word in words))


def install() -> None:
    """From here on torch is a stand-in, unless it is already there."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, StandIn())


def is_installed() -> bool:
    """Whether stand-ins are installed, so that nothing may be run in this process."""
    return any(isinstance(finder, StandIn) for finder in sys.meta_path)


def refuse_to_run(*_: Any, **__: Any) -> None:
    """Replace the work of every command here: --help was given as the value of another flag."""
    raise click.UsageError("--help must not be the value of a flag")
