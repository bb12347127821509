"""Calls a model with one or several inputs, and finds the logits in its output."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def call(module: nn.Module, x: Any) -> Any:
    """The logits of a model for inputs `x`: a tensor, a tuple, or a dict by the names of its arguments."""
    if isinstance(x, Tensor):
        return scores(module(x))
    positional, named = arguments(module, x)
    return scores(module(*positional, **named))


def arguments(module: nn.Module, x: Any) -> Arguments:
    """The inputs as arguments of a model's `forward`: unpacked if it has that many parameters, else as one."""
    if isinstance(x, Tensor) or not isinstance(x, (Mapping, tuple, list)):
        return (x,), {}
    kinds = _kinds(module)
    places = [name for name, kind in kinds if kind in (inspect.Parameter.POSITIONAL_ONLY, _EITHER)]
    if isinstance(x, Mapping):
        names = _names(kinds)
        takes_all = any(kind == inspect.Parameter.VAR_KEYWORD for _, kind in kinds)
        return ((), dict(x)) if takes_all or x.keys() <= names.keys() else ((x,), {})
    takes_all = any(kind == inspect.Parameter.VAR_POSITIONAL for _, kind in kinds)
    return (tuple(x), {}) if takes_all or len(x) <= len(places) else ((x,), {})


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
Kinds = list[tuple[str, Any]]
"""Parameters of a `forward`, with the kind of each."""


def _kinds(module: nn.Module) -> Kinds:
    return [(name, one.kind) for name, one in inspect.signature(module.forward).parameters.items()]


def _names(kinds: Kinds) -> dict[str, None]:
    """Parameters that can be given by name, in order."""
    return dict.fromkeys(name for name, kind in kinds if kind in (_EITHER, inspect.Parameter.KEYWORD_ONLY))


def misnamed(module: nn.Module, x: Any) -> str:
    """A sentence that names the inputs of a dict for which `forward` has no argument; empty if there are none."""
    if not isinstance(x, Mapping) or arguments(module, x)[1]:
        return ""
    names = _names(_kinds(module))
    wrong = [repr(name) for name in x if name not in names]
    have = "has no argument" if len(wrong) == 1 else "has no arguments"
    takes = f"it takes {', '.join(names) or 'none by name'}"
    return f"its forward {have} {', '.join(wrong)} ({takes}), so it was given the whole dict"


def scores(output: Any) -> Any:
    """The `logits` of a dict or an object that has them; any other output as it is."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) and not isinstance(output, Tensor) else output


def only_logits(module: nn.Module, x: Any) -> str:
    """The end of an error message: entries of the output that no loss gets beside `logits`; empty if there are none."""
    positional, named = arguments(module, x)
    output = module(*positional, **named)
    if scores(output) is output:
        return ""
    entries = output if isinstance(output, Mapping) else vars(output)
    others = [str(name) for name, value in entries.items() if name != "logits" and value is not None]
    if not others:
        return ""
    return (
        f"; of the model's output a loss gets the logits alone, without {', '.join(others)}: rename logits, and it "
        "gets the whole output"
    )


def own_loss(output: Any, _y: Any) -> Tensor:
    """The `loss` that a model computes itself."""
    loss: Tensor = output["loss"] if isinstance(output, Mapping) else output.loss
    return loss


def has_own_loss(output: Any) -> bool:
    """Whether a model returns a loss but no logits."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return isinstance(found, Tensor) and not isinstance(output, Tensor)
