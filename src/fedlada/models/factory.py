"""Models by name, and the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from torch import nn

from fedlada.models import MODELS
from fedlada.validation import one_of


def model_factory(name: str) -> Callable[..., nn.Module]:
    """A model's factory by its name, or the user's own by `package.module:factory`."""
    if ":" not in name:
        one_of("model", name, tuple(MODELS))
        return MODELS[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.startswith("."):
        raise ValueError(f"the model {name!r} cannot be imported: write package.module:factory")
    if "" not in sys.path:  # as `python -m` has it: a module beside the user is found
        sys.path.insert(0, "")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module runs here, and can fail in any way
        what = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the model {name!r} cannot be imported: {' '.join(what.split())}") from None
    if not callable(factory):
        raise ValueError(f"the model {name!r} is not a function")
    return factory  # type: ignore[no-any-return]
