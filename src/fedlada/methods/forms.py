"""The form of a state: the names, shapes and dtypes of its vectors, which stay the same in all steps and rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlada.methods.state import Vectors


def in_form_of(old: Vectors, new: Any, part: object, hook: str) -> Vectors:
    """The new vectors in the order of the old, on which stacks and messages depend; refuses any other form."""
    compiling = torch.compiler.is_compiling()  # first steps are tried uncompiled, and comparing would split the graph
    if not compiling and new is not old and (problem := other_form(hook, old, new)):
        raise ValueError(f"{type(part).__name__} {problem}")
    return {name: new[name] for name in old}


def other_form(hook: str, old: Vectors, new: Any) -> str:
    """The sentence on new vectors that are not like the old; empty if they are."""
    if not isinstance(new, dict) or any(name not in old for name in new) or any(name not in new for name in old):
        wanted, got = (_names(one) if isinstance(one, dict) else type(one).__name__ for one in (old, new))
        return f"must return from {hook} the names that it was given, {wanted}; got {got}"
    for name, was in old.items():
        now = new[name]
        if not isinstance(now, Tensor) or now.dtype != was.dtype or now.shape != was.shape:
            return f"must return from {hook} {name!r} in the form that it was given, {_form(was)}; got {_form(now)}"
    return ""


def _names(vectors: Vectors) -> str:
    return ", ".join(sorted(map(str, vectors))) or "nothing"


def _form(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
