"""Dropout whose masks depend on (seed, round, client, local step, call in the forward pass, element) and nothing else.

A mode replaces torch's dropout during a training step, in modules, functions, attention and recurrent layers. Masks are
made by integer operations, which are the same on every device, for one client, under vmap and on a joint batch, so all
engines draw the same. An element is identified by its index along each axis of one client's tensor: neither other
clients nor the padding of a batch change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlada.engines.attention import attention
from fedlada.engines.bit_masks import can_mask, masked
from fedlada.engines.checkpointing import is_checkpointed
from fedlada.engines.masks import Elements, kept_bits, kept_places
from fedlada.engines.opened import OPENED, opened
from fedlada.engines.tracing import eagerly
from fedlada.federation.plan import Assignment
from fedlada.federation.randomness import bits, mixed, the_same_randomness, words
from fedlada.models.call import call
from fedlada.models.flat import FlatModel

MakeMode = Callable[[], AbstractContextManager[Any]]
"""Makes the mode of a forward pass: a new one each time, with the same masks."""

Draw = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Makes a mask from the hashes of its elements, the two words of a key and the probability of being dropped."""

Words = tuple[Tensor, Tensor]
"""The low and the high 32 bits of keys, each as int32."""

CALLS = 64
"""Number of calls whose keys are made at once: a few small operations per step, not per call."""


def step_keys(work: Assignment) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The key of each local step of a client's round."""
    return words(bits(work.seed, "dropout masks"), work.num_steps).view(np.int64)


def call_words(keys: Tensor, elements: Elements, block: int) -> Words:
    """The keys `[..., CALLS]` of a block of calls in the forward passes of these keys."""
    table = mixed(keys[..., None] + elements.calls(block * CALLS, CALLS, keys.device))
    return ((table << 32) >> 32).to(torch.int32), (table >> 32).to(torch.int32)


class CounterDropout(TorchFunctionMode):
    """Draws the dropout of one forward pass from `keys` (int64): one of one client, or `[C]` of a joint batch.

    On a joint batch every tensor that is dropped from must have its samples first, client after client; `num_samples`
    is their number. In a check everything is dropped with probability one half, so that no error is missed.
    """

    def __init__(
        self,
        keys: Tensor,
        elements: Elements,
        *,
        num_samples: int | None = None,
        in_check: bool = False,
        tables: Sequence[Words] = (),
    ) -> None:
        super().__init__()
        self.keys, self.elements = keys, elements
        self.num_samples, self.in_check = num_samples, in_check
        self.num_calls = 0
        self.tables = list(tables)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in OPENED:
            with self:
                return opened(func)(*args, **kwargs)
        replaced = REPLACED.get(func)
        if replaced is None or is_checkpointed():
            return func(*args, **kwargs)
        return replaced(self, func, *args, **kwargs)

    def keep(self, shape: Sequence[int], device: torch.device, p: float, draw: Draw = kept_places) -> Tensor:
        """The mask of kept elements for that shape: each is kept with probability 1 - p."""
        low, high = self._call_key()
        own = tuple(shape)
        if self.keys.ndim:
            if not own or self.num_samples is None or own[0] % self.num_samples:
                raise ValueError("dropout of a tensor whose first axis is not that of the samples")
            own = (own[0] // len(self.keys), *own[1:])
        kept = draw(self.elements.of(own, device), low, high, 0.5 if self.in_check else p)
        return kept.view(tuple(shape)) if self.keys.ndim else kept

    def _call_key(self) -> Words:
        """Two words of 32 bits for the next call."""
        block, place = divmod(self.num_calls, CALLS)
        if block == len(self.tables):
            self.tables.append(call_words(self.keys, self.elements, block))
        self.num_calls += 1
        low, high = self.tables[block]
        return low[..., place], high[..., place]

    def drop(self, x: Tensor, p: float, shape: Sequence[int] | None = None) -> Tensor:
        """x with dropped elements set to zero and the others scaled; `shape` is that of the mask."""
        scale = 0.0 if p == 1 else 1 / (1 - p)
        if shape is None and can_mask(x):
            return masked(x, self.keep(x.shape, x.device, p, kept_bits), scale)
        kept = self.keep(x.shape if shape is None else shape, x.device, p)
        return torch.where(kept, x * scale, torch.zeros((), dtype=x.dtype, device=x.device))


def _channels(x: Tensor) -> tuple[int, ...]:
    """The shape of a mask for whole channels."""
    return (*x.shape[:2], *([1] * (x.ndim - 2)))


def _dropping(in_place: bool, whole_channels: bool) -> Callable[..., Tensor]:
    def replaced(mode: CounterDropout, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0 or input.numel() == 0:
            result: Tensor = func(input, p, train)
            return result
        dropped = mode.drop(input, p, _channels(input) if whole_channels else None)
        return input.copy_(dropped) if in_place else dropped

    return replaced


def _alpha_dropping(in_place: bool, whole_channels: bool) -> Callable[..., Tensor]:
    """Alpha dropout: dropped elements take SELU's limit, and all are rescaled to keep mean and variance."""
    lowest = -1.7580993408473766

    def replaced(mode: CounterDropout, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p in (0, 1) or input.numel() == 0:
            result: Tensor = func(input, p, train)
            return result
        kept = mode.keep(_channels(input) if whole_channels else input.shape, input.device, p)
        scale = ((1 - p) * (1 + p * lowest**2)) ** -0.5
        low = torch.full((), lowest, dtype=input.dtype, device=input.device)
        dropped = torch.where(kept, input, low) * scale - scale * p * lowest
        return input.copy_(dropped) if in_place else dropped

    return replaced


def _attention(
    mode: CounterDropout, func: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    if dropout_p == 0:
        result: Tensor = func(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return result
    return attention(query, key, value, attn_mask, is_causal, drop=lambda x: mode.drop(x, dropout_p), **options)


def _recurrent(mode: CounterDropout, func: Any, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
    """`torch.lstm` and its kin, layer by layer, with dropout in between."""
    is_packed = not isinstance(rest[0], bool)
    if is_packed or not rest[3] or rest[2] == 0 or rest[1] == 1:
        result: tuple[Tensor, ...] = func(input, hx, params, *rest)
        return result
    has_biases, num_layers, p, train, bidirectional, batch_first = rest
    states, per_layer, ways = (hx,) if isinstance(hx, Tensor) else hx, len(params) // num_layers, 1 + bidirectional
    last: list[tuple[Tensor, ...]] = []
    for number in range(num_layers):
        if number:
            input = mode.drop(input, p)
        own = [one[number * ways : (number + 1) * ways].contiguous() for one in states]
        weights = params[number * per_layer : (number + 1) * per_layer]
        start = own[0] if isinstance(hx, Tensor) else own
        input, *ended = func(input, start, weights, has_biases, 1, 0.0, train, bidirectional, batch_first)
        last.append(tuple(ended))
    return input, *(torch.cat(one) for one in zip(*last, strict=True))


REPLACED: dict[Any, Callable[..., Any]] = {
    torch.dropout: _dropping(in_place=False, whole_channels=False),
    torch.dropout_: _dropping(in_place=True, whole_channels=False),
    torch.feature_dropout: _dropping(in_place=False, whole_channels=True),
    torch.feature_dropout_: _dropping(in_place=True, whole_channels=True),
    torch.alpha_dropout: _alpha_dropping(in_place=False, whole_channels=False),
    torch.alpha_dropout_: _alpha_dropping(in_place=True, whole_channels=False),
    torch.feature_alpha_dropout: _alpha_dropping(in_place=False, whole_channels=True),
    torch.feature_alpha_dropout_: _alpha_dropping(in_place=True, whole_channels=True),
    F.scaled_dot_product_attention: _attention,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
}


def elements_if_dropped(flat: FlatModel, x: Any) -> Elements | None:
    """The source of masks, if a forward pass in training drops anything; seen on the small batch `x`."""
    device = flat.vector.device
    elements = Elements(most=200)  # sequences may have any length
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), the_same_randomness():
        mode = CounterDropout(torch.zeros((), dtype=torch.int64, device=device), elements)
        with eagerly(flat.module), mode:
            call(flat.module, x)
    return elements if mode.num_calls else None


def dropout_of_steps(elements: Elements | None, work: Assignment, device: torch.device) -> list[MakeMode]:
    """The mode of each of a client's steps; a model without dropout has none."""
    if elements is None:
        return [nullcontext] * work.num_steps
    keys = torch.from_numpy(step_keys(work)).to(device)
    low, high = call_words(keys, elements, 0)  # of all steps at once
    steps = zip(keys, low, high, strict=True)
    return [partial(CounterDropout, key, elements, tables=[(one, other)]) for key, one, other in steps]
