"""Whether operations are recorded as a graph: kernels of our own, which a graph does not see, are not used then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

_TRACING = ContextVar("tracing", default=False)
_transform: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
"""The transform such as vmap that is being applied, if any."""
_has_storage: Any = getattr(torch._C, "_has_storage", None)
"""Whether a tensor has memory: one that stands for many, when autograd takes many gradients at once, has none."""


@contextmanager
def tracing() -> Iterator[None]:
    """Record everything inside as plain operations of torch."""
    token = _TRACING.set(True)
    try:
        yield
    finally:
        _TRACING.reset(token)


def is_tracing() -> bool:
    """Whether plain operations alone are wanted."""
    return _TRACING.get()


def is_plain(x: Any) -> bool:
    """Whether x is a plain tensor with numbers of its own, neither recorded nor under a transform such as vmap."""
    if _transform is None or _has_storage is None:  # another torch
        return False
    is_recorded = torch.compiler.is_compiling() or is_tracing()
    return type(x) is Tensor and not is_recorded and _transform() is None and bool(_has_storage(x))


def is_compiled(module: nn.Module) -> bool:
    """Whether a part of it was given to `torch.compile`, which would record a mode with the model."""
    return any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in module.modules())


def eagerly(module: nn.Module) -> AbstractContextManager[None]:
    """Run compiled parts as they were written, so that a mode sees what they call."""
    may_compile = is_compiled(module) or "torch._dynamo" in sys.modules  # a function of the model's may be compiled
    return _EAGER.used() if may_compile else nullcontext()  # it imports the compiler


class ForAllThreads:
    """A setting of torch's that is one for all threads: the first that needs it sets it, and the last puts it back."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self.setting = setting
        self.lock, self.users = Lock(), 0
        self.before = ExitStack()

    @contextmanager
    def used(self) -> Iterator[None]:
        with self.lock:
            if self.users == 0:
                self.before.enter_context(self.setting())
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.before.close()


_EAGER = ForAllThreads(lambda: torch.compiler.set_stance("force_eager"))
