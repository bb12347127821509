"""A method's parts as text, to compare two runs."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import held_by

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
    return f"{type(part).__qualname__}({', '.join(f'{k}={describe_value(v)}' for k, v in sorted(own.items()))})"


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
    """The repr of a part; one that is only a memory address, or omits numbers, is replaced by the attributes."""
    return describe_part(thing) if _says_its_place(thing) or _named(thing) is not thing else repr(thing)


def _says_its_place(thing: object) -> bool:
    kind: Any = type(thing)
    return kind.__repr__ is object.__repr__


def describe_value(value: Any) -> str:
    """A setting as text: a tensor or an array by a digest of its values, a function by its name."""
    value = _named(value)
    if isinstance(value, (FunctionType, MethodType)):
        return value.__qualname__
    return type(value).__qualname__ if _says_its_place(value) else repr(value)


def _named(value: Any) -> Any:
    """The same value with a digest for each tensor and array inside; a value without any is returned itself."""
    if isinstance(value, (Tensor, np.ndarray)):
        return _Named(value)
    if isinstance(value, dict):
        by_key = {key: _named(item) for key, item in value.items()}
        return by_key if any(by_key[key] is not item for key, item in value.items()) else value
    if isinstance(value, (tuple, list)):
        inside = [_named(item) for item in value]
        if all(new is old for new, old in zip(inside, value, strict=True)):
            return value
        is_named = hasattr(value, "_fields")
        return type(value)(*inside) if is_named else inside if isinstance(value, list) else tuple(inside)
    if is_dataclass(value) and not isinstance(value, type):
        held = held_by(value)
        if (by_name := _named(held)) is held:
            return value
        value = copy.copy(value)
        for name, item in by_name.items():
            object.__setattr__(value, name, item)
    return value


class _Named:
    """A tensor or an array by a digest of its values: its own repr omits some, and that of a tensor has its device."""

    def __init__(self, values: Tensor | np.ndarray) -> None:
        kind = "tensor" if isinstance(values, Tensor) else "array"
        digest = hashlib.sha256(_content(values)).hexdigest()[:16]
        self.words = f"{kind}({tuple(values.shape)}, {values.dtype}, {digest})"

    def __repr__(self) -> str:
        return self.words


def _content(values: Tensor | np.ndarray) -> bytes:
    if isinstance(values, Tensor):
        return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    # The bytes of an array of objects are their addresses.
    return repr(_named(values.tolist())).encode() if values.dtype.hasobject else values.tobytes()
