"""The engine says what it does: in the result, in the run's folder, and by a warning where it is not what was asked."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fedlada
from fedlada.engines.engine import RAN_BY
from fedlada.workbench.campaign.identity import digest
from fedlada.workbench.experiment import Experiment
from tasks import blobs, small_net

COMMON = {"rounds": 1, "method": "fedavg"}


def noisy():
    return nn.Sequential(small_net(), nn.RReLU())


@pytest.mark.parametrize(
    ("engine", "kind", "reason"),
    [("auto", "sequential", "which is the faster way on a CPU"), ("stacked", "stacked", "layer by layer")],
)
def test_in_the_result_and_in_the_folder(engine, kind, reason, tmp_path):
    result = fedlada.simulate(small_net(), blobs(), engine=engine, out=tmp_path, device="cpu", **COMMON)
    assert result.engine == kind
    assert reason in result.engine_reason
    stored = json.loads((tmp_path / "config.json").read_text())[RAN_BY]
    assert stored.pop("code").keys() == {"python", "model", "model's attributes"}
    assert stored == {"engine": kind, "reason": result.engine_reason, "loss": "cross_entropy"}


def test_a_fallback_gives_its_reason_and_the_way_out():
    sentence = "it draws random numbers.*docs/engines.md lists what stacks.*engine='sequential'"
    with pytest.warns(UserWarning, match=sentence) as said:
        result = fedlada.simulate(noisy(), blobs(), engine="stacked", device="cpu", **COMMON)
    assert len(said) == 1
    assert result.engine == "sequential"
    assert "it draws random numbers" in result.engine_reason


def test_who_asks_for_sequential_is_not_warned():
    assert fedlada.simulate(noisy(), blobs(), engine="sequential", **COMMON).engine == "sequential"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_a_fallback_is_said_without_asking():
    with pytest.warns(UserWarning, match="it draws random numbers") as said:
        result = fedlada.simulate(noisy(), blobs(), device="cuda", **COMMON)
    assert len(said) == 1
    assert result.engine == "sequential"


def test_a_folder_goes_on_by_another_engine_and_one_that_does_not_say_goes_on_too(tmp_path):
    common = {"method": "fedavg", "device": "cpu", "out": tmp_path, "checkpoint_every": 1}
    fedlada.simulate(small_net(), blobs(), rounds=1, **common)
    fedlada.simulate(small_net(), blobs(), rounds=2, engine="stacked", **common)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    assert stored[RAN_BY]["engine"] == "stacked"
    path.write_text(json.dumps({name: value for name, value in stored.items() if name != RAN_BY}))
    result = fedlada.simulate(small_net(), blobs(), rounds=3, **common)
    assert len(result.history) == 3
    assert RAN_BY in json.loads(path.read_text())


def test_an_experiment_is_the_same_one_whatever_ran_it(tmp_path):
    pytest.importorskip("sklearn")
    experiment = Experiment(dataset="digits", method="fedavg", rounds=1, device="cpu")
    experiment.run(out=tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored[RAN_BY]["engine"] == "sequential"
    again = Experiment.read(tmp_path / "config.json")
    assert again.to_json() == experiment.to_json()
    assert digest(again) == digest(experiment)
