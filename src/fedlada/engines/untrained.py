"""Buffers and frozen parameters, which are not sent and must stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

MOST_COPIED = 2**24
"""Numbers that are copied in all; in larger frozen models any write to what is not copied counts as a change."""


class _Known(NamedTuple):
    module: nn.Module
    is_buffer: bool
    name: str
    tensor: Tensor
    version: int
    values: Tensor | None


class Untrained:
    """A model's buffers and frozen parameters: one may change after many batches, or for large ones only."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.known: list[_Known] = []
        copied = 0
        for module, is_buffer, name, one in _untrained(model):
            copied += one.numel()
            values = one.detach().clone() if copied <= MOST_COPIED else None
            self.known.append(_Known(module, is_buffer, name, one, _version(one), values))

    def check(self, *, thoroughly: bool = False) -> None:
        """Refuse a model that has changed one; thoroughly, writes behind autograd's back and new ones are found too.

        Frozen parameters are shared with the user's model, so they get their values back.
        """
        changed = []
        for one in self.known:
            now = dict(_held(one.module, is_buffer=one.is_buffer)).get(one.name)
            if now is one.tensor and _version(now) == one.version and not thoroughly:
                continue
            if now is None or _has_changed(now, one):
                changed.append(one)
                if one.values is not None:
                    one.tensor.data.copy_(one.values)
        if changed:
            raise _changed(self._full_name(changed[0].module, changed[0].name), is_buffer=changed[0].is_buffer)
        if thoroughly:
            known = {(id(one.module), one.name) for one in self.known}
            for module, is_buffer, name, _ in _untrained(self.model):
                if (id(module), name) not in known:
                    raise _changed(self._full_name(module, name), is_buffer=is_buffer)

    def _full_name(self, module: nn.Module, name: str) -> str:
        prefix = next((path for path, one in self.model.named_modules() if one is module), "")
        return f"{prefix}.{name}" if prefix else name


def _untrained(model: nn.Module) -> Iterator[tuple[nn.Module, bool, str, Tensor]]:
    for module in model.modules():
        for is_buffer in (True, False):
            for name, one in _held(module, is_buffer=is_buffer):
                yield module, is_buffer, name, one


def _held(module: nn.Module, *, is_buffer: bool) -> Iterator[tuple[str, Tensor]]:
    for name, one in (module._buffers if is_buffer else module._parameters).items():
        if one is not None and (is_buffer or not one.requires_grad):
            yield name, one


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _has_changed(now: Tensor, before: _Known) -> bool:
    if before.values is None:
        return now.data_ptr() != before.tensor.data_ptr() or _version(now) != before.version
    return not torch.equal(now, before.values)


def _changed(name: str, *, is_buffer: bool) -> ValueError:
    if is_buffer:
        return ValueError(
            f"the forward pass changes the buffer {name!r}, and no server averages buffers: convert BatchNorm with "
            "fedlada.models.group_norm(model), freeze that part (requires_grad_(False) and .eval()), or compute it "
            "before the run"
        )
    return ValueError(
        f"the forward pass changes the frozen parameter {name!r}, which all clients share and no server averages: "
        "compute it before the run, or train it"
    )
