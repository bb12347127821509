"""Compiled models run as they were written while modes watch them, and compiled again afterwards."""

from __future__ import annotations

import torch
from torch import nn

from fedlada.engines.tracing import eagerly


def test_overlapping_uses_leave_compilation_on():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    model = torch.compile(nn.Linear(2, 2), backend=backend)
    first, second = eagerly(model), eagerly(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # one thread ends while another is at work
    model(torch.zeros(1, 2))
    assert not compiled
    second.__exit__(None, None, None)
    model(torch.zeros(1, 2))
    assert len(compiled) == 1
