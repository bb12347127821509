"""Whether a forward pass reads numbers in Python, as `if x.sum() > 0` and `.item()` do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

NAMES = "allclose equal is_nonzero item numpy tolist"
READS = {*NAMES.split(), *(f"__{name}__" for name in ["array", "bool", "complex", "contains", "float", "index", "int"])}


class NumbersRead(TorchFunctionMode):
    """Notes the first such call of a model's own code; what torch's functions read inside does not count.

    Buffers, frozen parameters and what follows from these alone are the same for all clients.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        frozen = [one for one in model.parameters() if not one.requires_grad]
        self.common = {id(one): one for one in (*model.buffers(), *frozen)}
        self.found = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        is_common = all(id(one) in self.common for one in given)
        name = getattr(func, "__name__", "")
        if name in READS and not is_common:
            self.found = self.found or name.strip("_")
        result = func(*args, **(kwargs or {}))
        made = {id(one): one for one in tree_leaves(result) if isinstance(one, Tensor)}
        if is_common:
            self.common |= made
        else:  # written in place
            for key in made:
                self.common.pop(key, None)
        return result
