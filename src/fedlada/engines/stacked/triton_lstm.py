"""The elementwise part of an LSTM's time step as one kernel in each direction; matrix products are left to torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=("rows", "count"))
def _forward(
    inputs, by_hidden, bias, before, hidden, cell, gates, rows, count, size: tl.constexpr, BLOCK: tl.constexpr
):
    """One time step; `rows` samples of each client, `count` values of the cell state."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    row, column = place // size, place % size
    first, own = row * (4 * size) + column, (row // rows) * (4 * size) + column
    i = _sum(inputs, by_hidden, bias, first, own, inside)
    f = _sum(inputs, by_hidden, bias, first + size, own + size, inside)
    g = _sum(inputs, by_hidden, bias, first + 2 * size, own + 2 * size, inside)
    o = _sum(inputs, by_hidden, bias, first + 3 * size, own + 3 * size, inside)
    i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
    after = f * tl.load(before + place, mask=inside, other=0.0) + i * g
    tl.store(cell + place, after, mask=inside)
    tl.store(hidden + place, o * _tanh(after), mask=inside)
    tl.store(gates + first, i, mask=inside)
    tl.store(gates + first + size, f, mask=inside)
    tl.store(gates + first + 2 * size, g, mask=inside)
    tl.store(gates + first + 3 * size, o, mask=inside)


@triton.jit
def _sum(inputs, by_hidden, bias, place, own, inside):
    total = tl.load(inputs + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(by_hidden + place, mask=inside, other=0.0).to(tl.float32)
    return total + tl.load(bias + own, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=("count",))
def _backward(
    gates, before, cell, d_hiddens, d_cells, d_hidden, d_cell, d_gates, count, size: tl.constexpr, BLOCK: tl.constexpr
):
    """One time step back; `d_hidden` comes from the next step and `d_cell` is carried on in place."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    first = (place // size) * (4 * size) + place % size
    i = tl.load(gates + first, mask=inside, other=0.0)
    f = tl.load(gates + first + size, mask=inside, other=0.0)
    g = tl.load(gates + first + 2 * size, mask=inside, other=0.0)
    o = tl.load(gates + first + 3 * size, mask=inside, other=0.0)
    level = _tanh(tl.load(cell + place, mask=inside, other=0.0))
    dh = tl.load(d_hiddens + place, mask=inside, other=0.0).to(tl.float32)
    dh += tl.load(d_hidden + place, mask=inside, other=0.0).to(tl.float32)
    dc = tl.load(d_cell + place, mask=inside, other=0.0) + tl.load(d_cells + place, mask=inside, other=0.0)
    dc += dh * o * (1 - level * level)
    tl.store(d_cell + place, dc * f, mask=inside)
    tl.store(d_gates + first, dc * g * i * (1 - i), mask=inside)
    past = tl.load(before + place, mask=inside, other=0.0)
    tl.store(d_gates + first + size, dc * past * f * (1 - f), mask=inside)
    tl.store(d_gates + first + 2 * size, dc * i * (1 - g * g), mask=inside)
    tl.store(d_gates + first + 3 * size, dh * level * o * (1 - o), mask=inside)


def forward(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, cell states and gates of all time steps, from the inputs' part of the gates `[T, C, B, 4H]`."""
    times, clients, rows, _ = inputs.shape
    size, count = weight.shape[-1], cell.numel()
    inputs, bias = inputs.contiguous(), bias.contiguous()
    hiddens = inputs.new_empty(times, clients, rows, size)
    cells = torch.empty_like(hiddens, dtype=torch.float32)
    gates = torch.empty_like(inputs, dtype=torch.float32)
    by_hidden, across = torch.empty_like(inputs[0]), weight.mT
    hidden, cell = hidden.to(inputs.dtype).contiguous(), cell.float().contiguous()
    for time in range(times):
        torch.bmm(hidden, across, out=by_hidden)
        own = (inputs[time], by_hidden, bias, cell, hiddens[time], cells[time], gates[time])
        _forward[(triton.cdiv(count, BLOCK),)](*own, rows, count, size=size, BLOCK=BLOCK)
        hidden, cell = hiddens[time], cells[time]
    return hiddens, cells, gates


def backward(
    gates: Tensor, first_cell: Tensor, cells: Tensor, weight: Tensor, d_hiddens: Tensor, d_cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates `[T, C, B, 4H]`, of the first hidden and of the first cell state."""
    times, count, size = len(gates), cells[0].numel(), weight.shape[-1]
    d_hiddens, d_cells = d_hiddens.contiguous(), d_cells.contiguous()
    d_gates = torch.empty_like(gates, dtype=weight.dtype)
    d_hidden, d_cell = torch.zeros_like(cells[0], dtype=weight.dtype), torch.zeros_like(cells[0])
    first_cell = first_cell.float().contiguous()
    for time in range(times - 1, -1, -1):
        before = cells[time - 1] if time else first_cell
        own = (gates[time], before, cells[time], d_hiddens[time], d_cells[time], d_hidden, d_cell, d_gates[time])
        _backward[(triton.cdiv(count, BLOCK),)](*own, count, size=size, BLOCK=BLOCK)
        torch.bmm(d_gates[time], weight, out=d_hidden)
    return d_gates, d_hidden, d_cell
