"""A method's parts as text, to compare two runs."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import map_inside

PARTS = "parts"
"""Key in the configuration of a run with a user's own method: the parts it is made of."""


def describe_part(part: object) -> str:
    """A transform or server optimizer by its name and hyperparameters, without memory addresses."""
    # Only the fields of a dataclass: attributes that it computes are not hyperparameters.
    own = (
        {one.name: getattr(part, one.name) for one in fields(part)}
        if is_dataclass(part)
        else getattr(part, "__dict__", {})
    )
    named = map_inside(_Named, own)
    return f"{type(part).__qualname__}({', '.join(f'{k}={describe_value(v)}' for k, v in sorted(named.items()))})"


def describe_method(method: FederatedMethod) -> dict[str, Any]:
    """A method by its name and its parts; a subclass also by its class, because it may override any call."""
    kind = type(method)
    own = {one.name for one in fields(method)} - {one.name for one in fields(FederatedMethod)}
    subclass = {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        **({"fields": {name: describe_value(getattr(method, name)) for name in sorted(own)}} if own else {}),
    }
    return {
        "method": method.name,
        **({} if kind is FederatedMethod else subclass),
        "local": [describe_part(part) for part in method.local],
        "server": describe_part(method.server),
        "combiner": describe_part(method.combiner),
        **({} if method.personal is None else {"personal": list(method.personal.names)}),
    }


def words_of(thing: object) -> str:
    """The repr of a part; a default repr, which is only a memory address, is replaced by the attributes."""
    return describe_part(thing) if _says_its_place(thing) else repr(thing)


def _says_its_place(thing: object) -> bool:
    kind: Any = type(thing)
    return kind.__repr__ is object.__repr__


def describe_value(value: Any) -> str:
    """A setting as text: a tensor by a digest of its values, a function by its name."""
    value = map_inside(_Named, value)
    if isinstance(value, (FunctionType, MethodType)):
        return value.__qualname__
    return type(value).__qualname__ if _says_its_place(value) else repr(value)


class _Named:
    """A tensor by a digest of its values: its own repr omits the middle and names the device."""

    def __init__(self, tensor: Tensor) -> None:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        self.words = f"tensor({tuple(tensor.shape)}, {tensor.dtype}, {digest})"

    def __repr__(self) -> str:
        return self.words
