"""LSTM, GRU and RNN written in plain operations for vmap: torch's own kernels take one client at a time.

The inputs' part of all time steps is one matrix product, and so is the gradient of each weight; a time step is one
product with the hidden state and a few elementwise operations. Under vmap the products are batched over the clients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.engines.tracing import is_tracing


class Step(NamedTuple):
    """One time step: the hidden and the cell state after it, and what the gradient needs."""

    hidden: Tensor
    cell: Tensor
    saved: Tensor


def _lstm(inputs: Tensor, hidden: Tensor, _before: Tensor, cell: Tensor) -> Step:
    sums = inputs + hidden
    size = cell.shape[-1]
    gates, new = sums.sigmoid(), sums[..., 2 * size : 3 * size].tanh()
    i, f, _, o = gates.chunk(4, dim=-1)
    cell = torch.addcmul(f * cell, i, new)
    return Step(o * cell.tanh(), cell, torch.cat([i, f, new, o], dim=-1))


def _gru(inputs: Tensor, hidden: Tensor, before: Tensor, cell: Tensor) -> Step:
    size = before.shape[-1]
    gates = (inputs[..., : 2 * size] + hidden[..., : 2 * size]).sigmoid()
    r, z = gates[..., :size], gates[..., size:]
    own = hidden[..., 2 * size :]
    new = torch.addcmul(inputs[..., 2 * size :], r, own).tanh()
    return Step(torch.addcmul(new, z, before - new), cell, torch.cat([r, z, new, own], dim=-1))


def _tanh(inputs: Tensor, hidden: Tensor, _before: Tensor, cell: Tensor) -> Step:
    after = (inputs + hidden).tanh()
    return Step(after, cell, after)


def _relu(inputs: Tensor, hidden: Tensor, _before: Tensor, cell: Tensor) -> Step:
    after = (inputs + hidden).relu()
    return Step(after, cell, after)


class Slopes(NamedTuple):
    """Factors of the backward pass for all time steps, `[T, ..., gates, H]` where they differ by gate."""

    by_hidden: Tensor | None
    """From the gradient of the hidden state to that of the gates that act on it directly."""
    by_cell: Tensor | None
    """From the gradient of the cell state to that of the gates before the last."""
    cell_by_hidden: Tensor | None
    cell_by_cell: Tensor | None
    hidden_by_hidden: Tensor | None
    """From the previous hidden state, bypassing the gates."""
    reset: Tensor | None
    """The factor of the hidden state's part of the last gate (GRU)."""


def _lstm_slopes(saved: Tensor, _before: Tensor, cells: Tensor, cells_before: Tensor) -> Slopes:
    i, f, new, o = saved.chunk(4, dim=-1)
    level = cells.tanh()
    by_cell = [new * i * (1 - i), cells_before * f * (1 - f), i * (1 - new * new)]
    by_hidden = level * o * (1 - o)
    return Slopes(by_hidden, torch.stack(by_cell, dim=-2), o * (1 - level * level), f, None, None)


def _gru_slopes(saved: Tensor, before: Tensor, _cells: Tensor, _cells_before: Tensor) -> Slopes:
    r, z, new, own = saved.chunk(4, dim=-1)
    of_new = (1 - z) * (1 - new * new)
    by_hidden = [of_new * own * r * (1 - r), (before - new) * z * (1 - z), of_new]
    return Slopes(torch.stack(by_hidden, dim=-2), None, None, None, z, r)


def _tanh_slopes(saved: Tensor, _before: Tensor, _cells: Tensor, _cells_before: Tensor) -> Slopes:
    return Slopes((1 - saved * saved).unsqueeze(-2), None, None, None, None, None)


def _relu_slopes(saved: Tensor, _before: Tensor, _cells: Tensor, _cells_before: Tensor) -> Slopes:
    return Slopes((saved > 0).to(saved.dtype).unsqueeze(-2), None, None, None, None, None)


KINDS: dict[str, tuple[Callable[..., Step], Callable[..., Slopes]]] = {
    "lstm": (_lstm, _lstm_slopes),
    "gru": (_gru, _gru_slopes),
    "rnn_tanh": (_tanh, _tanh_slopes),
    "rnn_relu": (_relu, _relu_slopes),
}


class Sweep(torch.autograd.Function):
    """All time steps of one layer in one direction; the backward pass makes one matrix product of each kind."""

    @staticmethod
    def forward(
        inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor, kind: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states, cell states and what the gradient needs, `[T, ...]` each."""
        if is_tracing():
            raise NotStackable("a recurrent layer has a graph for each time step, too large to compile")
        if _is_fused(kind, inputs):
            return _fused_forward(inputs, hidden, cell, weight, bias)
        step, narrow, wide = KINDS[kind][0], inputs.dtype, _wide(inputs)
        steps: list[Step] = []
        across, hidden, cell = weight.mT, hidden.to(wide), cell.to(wide)
        for own in inputs.to(wide).unbind(0):
            by_hidden = (hidden.to(narrow) @ across + bias[..., None, :]).to(wide)
            done = step(own, by_hidden, hidden, cell)
            hidden, cell = done.hidden, done.cell
            steps.append(done)
        hiddens, cells, saved = (torch.stack(part) for part in zip(*steps, strict=True))
        return hiddens.to(narrow), cells, saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, hidden, cell, weight, _, ctx.kind = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(hidden, cell, weight, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, first_cell, weight, hiddens, cells, saved = ctx.saved_tensors
        narrow, wide = weight.dtype, _wide(weight)
        before = torch.cat([first[None], hiddens[:-1]])
        if _is_fused(ctx.kind, weight):
            of_hidden, d_first, d_cell = FusedLstmBack.apply(saved, first_cell, cells, weight, *grads[:2])  # type: ignore[no-untyped-call]
            of_inputs = of_hidden
        else:
            cells_before = torch.cat([first_cell.to(wide)[None], cells[:-1]])
            slopes = KINDS[ctx.kind][1](saved, before.to(wide), cells, cells_before)
            of_inputs, of_hidden, d_first, d_cell = _back(slopes, weight, grads[0].to(wide), grads[1])
        d_weight = of_hidden.to(narrow).flatten(0, 1).mT @ before.flatten(0, 1)
        d_bias = of_hidden.sum(dim=(0, 1))
        return of_inputs.to(narrow), d_first.to(narrow), d_cell.to(narrow), d_weight, d_bias.to(narrow), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """All clients at once: the same with one more axis after time."""
        tensors, kind = arguments[:-1], arguments[-1]
        stacked = _with_clients(tensors, in_dims[:-1], (1, 0, 0, 0, 0), info.batch_size)
        return Sweep.apply(*stacked, kind), (1, 1, 1)  # type: ignore[no-untyped-call]


class FusedLstmBack(torch.autograd.Function):
    """The backward pass of an LSTM's time steps by the Triton kernel; under vmap for all clients at once."""

    @staticmethod
    def forward(
        gates: Tensor, first_cell: Tensor, cells: Tensor, weight: Tensor, d_hiddens: Tensor, d_cells: Tensor
    ) -> tuple[Tensor, ...]:
        """Gradients of the gates `[T, ...]`, of the first hidden and of the first cell state."""
        from fedlada.engines.stacked import triton_lstm  # needs a torch build with Triton

        if gates.ndim == 4:
            return triton_lstm.backward(gates, first_cell, cells, weight, d_hiddens, d_cells)
        in_time = [one.unsqueeze(1) for one in (gates, cells, d_hiddens, d_cells)]
        found = triton_lstm.backward(in_time[0], first_cell[None], in_time[1], weight[None], *in_time[2:])
        return found[0].squeeze(1), found[1][0], found[2][0]

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[Any, Any]:
        """The clients' axis comes after time."""
        stacked = _with_clients(arguments, in_dims, (1, 0, 1, 0, 1, 1), info.batch_size)
        return FusedLstmBack.apply(*stacked), (1, 0, 0)  # type: ignore[no-untyped-call]


def _fused_forward(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from fedlada.engines.stacked import triton_lstm

    if inputs.ndim == 4:
        return triton_lstm.forward(inputs, hidden, cell, weight, bias)
    found = triton_lstm.forward(inputs.unsqueeze(1), *(one[None] for one in (hidden, cell, weight, bias)))
    return found[0].squeeze(1), found[1].squeeze(1), found[2].squeeze(1)


def _is_fused(kind: str, like: Tensor) -> bool:
    """Whether the Triton kernel applies; float64 is left to torch."""
    return kind == "lstm" and like.is_cuda and like.dtype != torch.float64 and _has_kernel(like.device)


@cache
def _has_kernel(device: torch.device) -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    from fedlada.engines.stacked import triton_lstm

    one = torch.zeros(1, 1, 1, 4, device=device)
    try:
        triton_lstm.forward(one, one[0, ..., :1], one[0, ..., :1], one[0].mT, one[0, 0])
    except Exception:  # there is no compiler
        return False
    return True


def _with_clients(
    tensors: Sequence[Tensor], dims: Sequence[int | None], places: Sequence[int], clients: int
) -> list[Tensor]:
    """The tensors with the clients' axis moved to its place."""
    return [
        _beside(one, place, clients) if dim is None else one.movedim(dim, place)
        for one, dim, place in zip(tensors, dims, places, strict=True)
    ]


def _wide(like: Tensor) -> torch.dtype:
    """The precision in which states are accumulated over time: at least float32."""
    return torch.promote_types(like.dtype, torch.float32)


def _beside(one: Tensor, place: int, clients: int) -> Tensor:
    """A tensor that all clients share, expanded for each."""
    return one.unsqueeze(place).expand(*one.shape[:place], clients, *one.shape[place:])


def _back(slopes: Slopes, weight: Tensor, d_hiddens: Tensor, d_cells: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the last time step to the first: gradients of the gates (input and hidden part) and of the initial state."""
    of_inputs, of_hidden = [], []
    hidden = torch.zeros_like(d_hiddens[0])
    cell = torch.zeros_like(d_cells[0])
    for time in range(len(d_hiddens) - 1, -1, -1):
        hidden = hidden + d_hiddens[time]
        assert slopes.by_hidden is not None
        if slopes.by_cell is not None:
            assert slopes.cell_by_hidden is not None
            assert slopes.cell_by_cell is not None
            cell = torch.addcmul(cell + d_cells[time], hidden, slopes.cell_by_hidden[time])
            first = (cell.unsqueeze(-2) * slopes.by_cell[time]).flatten(-2)
            gates = torch.cat([first, hidden * slopes.by_hidden[time]], dim=-1)
            cell = cell * slopes.cell_by_cell[time]
        else:
            gates = (hidden.unsqueeze(-2) * slopes.by_hidden[time]).flatten(-2)
        by_hidden = gates
        if slopes.reset is not None:
            size = hidden.shape[-1]
            by_hidden = torch.cat([gates[..., :-size], gates[..., -size:] * slopes.reset[time]], dim=-1)
        past = None if slopes.hidden_by_hidden is None else hidden * slopes.hidden_by_hidden[time]
        hidden = (by_hidden.to(weight.dtype) @ weight).to(hidden.dtype)
        hidden = hidden if past is None else hidden + past
        of_inputs.append(gates)
        of_hidden.append(by_hidden)
    return torch.stack(of_inputs[::-1]), torch.stack(of_hidden[::-1]), hidden, cell


def recurrent(
    kind: str, input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute what `torch.lstm`, `torch.gru`, `torch.rnn_tanh` and `torch.rnn_relu` compute."""
    ways = 1 + bidirectional
    per_way = 4 if has_biases else 2
    if len(params) != num_layers * ways * per_way:
        raise NotStackable("an LSTM with proj_size has no stacked form: project by a Linear behind it")
    hidden, cell = (hx, hx) if isinstance(hx, Tensor) else hx
    ends: list[tuple[Tensor, Tensor]] = []
    for number in range(num_layers):
        if number and dropout and train:
            input = F.dropout(input, dropout)
        sides = []
        for way in range(ways):
            place = number * ways + way
            weights = params[place * per_way : (place + 1) * per_way]
            side, *end = _one_way(kind, input, hidden[place], cell[place], weights, batch_first, backwards=way == 1)
            sides.append(side)
            ends.append((end[0], end[1]))
        input = sides[0] if ways == 1 else torch.cat(sides, dim=-1)
    last = [torch.stack(part) for part in zip(*ends, strict=True)]
    return (input, *last) if kind == "lstm" else (input, last[0])


def _one_way(
    kind: str,
    input: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: Sequence[Tensor],
    batch_first: bool,
    backwards: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction: its outputs in time, the last hidden and the last cell state."""
    times = input.transpose(0, 1) if batch_first else input
    times = times.flip(0) if backwards else times
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or (None, torch.zeros_like(w_hh[:, 0]))
    hiddens, cells, _ = Sweep.apply(F.linear(times, w_ih, b_ih), hidden, cell, w_hh, b_hh, kind)  # type: ignore[no-untyped-call]
    output = hiddens.flip(0) if backwards else hiddens
    return output.transpose(0, 1) if batch_first else output, hiddens[-1], cells[-1].to(input.dtype)
