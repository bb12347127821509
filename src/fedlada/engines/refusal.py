"""The sentence for a model that cannot take a batch, and the first line of any error."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from fedlada.engines.default_loss import shape_of
from fedlada.models.call import misnamed


def refused(module: nn.Module, x: Any, data: str, error: Exception) -> ValueError:
    """The error for inputs `x` of some data, on which the model raised `error`: it names inputs that do not fit."""
    if any(isinstance(one, str) for one in tree_leaves(x)):
        return ValueError(
            f"the model cannot take the text of the {data}: turn it into numbers, in collate_fn= or beforehand"
        )
    why = ": ".join(filter(None, (misnamed(module, x), str(error) or type(error).__name__)))
    return ValueError(f"the model cannot take a batch of the {data} ({shape_of(x)}): {why}")


def first_line(error: Exception) -> str:
    """An error's first line, or its type where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
