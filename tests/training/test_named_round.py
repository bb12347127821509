"""Errors of a user's own functions say in which round they were raised."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from fedlada.combine import Combiner, Mean
from torch import nn

from fedlada import simulate
from fedlada.training.named_round import named_round

DATA = (torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 2)


@dataclass(frozen=True)
class FailsLater(Combiner):
    def combine(self, uploads, weights=None):
        if max(float(upload.delta.abs().max()) for upload in uploads) < 1:
            raise LookupError("too small")
        return Mean().combine(uploads, weights)


def run(**options):
    simulate(nn.Linear(2, 2), DATA, method="fedavg", rounds=3, progress=False, **options)


def test_an_error_of_a_combiner_names_its_round():
    with pytest.raises(LookupError, match="too small") as failed:
        run(combiner=FailsLater(), lr=lambda round: 1e-3 if round > 1 else 1e3)
    assert failed.value.__notes__ == ["in round 2"]


def test_an_error_of_a_schedule_names_its_round():
    with pytest.raises(ZeroDivisionError) as failed:
        run(lr=lambda round: 1 / (3 - round))
    assert failed.value.__notes__ == ["in round 3"]


@pytest.mark.parametrize("note", ["", "in round 2, while client 1 was trained"])
def test_a_round_is_named_once(note):
    error = ValueError("wrong" if note else "round 2: wrong")
    if note:
        error.add_note(note)
    with pytest.raises(ValueError, match="wrong"), named_round(2):
        raise error
    assert getattr(error, "__notes__", []) == ([note] if note else [])
