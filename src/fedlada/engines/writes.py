"""Whether a model writes to its own parameters in its forward pass.

Seen in one pass: what a model writes only for some values, or in a hook of the backward pass, stays until the client's
round ends, as in a loop by hand, if the method has no transforms.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class Writes(TorchFunctionMode):
    """Finds operations that write to the memory of a vector, also through a view or `.data`, whatever they write."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.place = vector.untyped_storage().data_ptr()
        self.found = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and self._is_there(one)]
        before = [one._version for one in given]
        result = func(*args, **(kwargs or {}))
        self.found = self.found or [one._version for one in given] != before
        return result

    def _is_there(self, tensor: Tensor) -> bool:
        try:
            return tensor.untyped_storage().data_ptr() == self.place
        except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have no storage of their own
            return False
