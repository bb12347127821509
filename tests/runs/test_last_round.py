"""The last round is evaluated, also of a run that was interrupted in it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import fedlada
from fedlada.runs.client_metrics import read_values
from tasks import blobs, small_net

X, Y = blobs()


def run(out=None, **changes):
    options = {"method": "fedavg", "lr": 0.05, "test": (X, Y), "client_test": 0.3, "eval_every": 3, "device": "cpu"}
    clients = [range(40), range(40, 120)]
    return fedlada.simulate(small_net(), (X, Y), partition=clients, out=out, checkpoint_every=2, **options, **changes)


def rows(result):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]


@pytest.mark.parametrize("by_target", [False, True])
def test_a_run_interrupted_in_what_was_its_last_round_is_evaluated_there(by_target, tmp_path):
    ends = {"rounds": 4}
    if by_target:
        ends = {"rounds": 9, "stop_at": {"train_loss": run(rounds=4).history["train_loss"][-1]}}
    whole = run(tmp_path / "whole", **ends)

    def interrupt(_, row):
        if row["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", callbacks=[interrupt], rounds=9)
    again = run(tmp_path / "cut", **ends)
    loaded = run(tmp_path / "cut", **ends)  # nothing is added a second time
    assert len(whole.history) == 4
    assert rows(again) == rows(loaded) == rows(whole)
    best = [load_file(tmp_path / folder / "checkpoints/best.safetensors")["params"] for folder in ("whole", "cut")]
    assert torch.equal(*best)
    assert len((tmp_path / "cut/metrics.jsonl").read_text().splitlines()) == 4
    assert read_values(tmp_path / "cut") == read_values(tmp_path / "whole")
