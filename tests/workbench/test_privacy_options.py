"""Private runs by plain values: the noise is solved once, stored, and kept when a run goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedlada.workbench.experiment import Experiment

pytestmark = pytest.mark.slow

TARGET = {"method": "fedavg", "combiner": "private:0.5", "target_epsilon": 6.0, "target_delta": 1e-3, "rounds": 4}
SMALL = {"model": "mlp", "num_clients": 12, "cohort_size": 4, "cohorts": "bernoulli", "local_steps": 2, "device": "cpu"}


@pytest.mark.slow
def test_the_solved_noise_is_stored_and_more_rounds_stop_at_the_target(tmp_path):
    experiment = Experiment(**TARGET, **SMALL)
    noise = experiment.resolved().noise_multiplier
    assert experiment.noise_multiplier is None
    assert noise > 0
    assert Experiment(**{**TARGET, "rounds": 8}, **SMALL).resolved().noise_multiplier > noise
    stored = json.loads(json.dumps(experiment.to_json()))
    assert stored["noise_multiplier"] == noise
    done = experiment.run(out=tmp_path)
    assert 5.9 < done.history[-1]["epsilon"] <= 6.0
    longer = replace(Experiment.from_json(stored), rounds=9).run(out=tmp_path)
    assert len(longer.history) == 4
    assert "more than the target of 6" in longer.stopped
    with pytest.raises(ValueError, match="holds another run"):
        replace(experiment, rounds=9).run(out=tmp_path)  # solved for nine rounds it is other noise


def test_the_clients_of_a_file_are_counted_for_the_noise(tmp_path):
    random = np.random.default_rng(0)
    named = {"x": random.random((240, 3)), "y": np.arange(240) % 2, "client": np.arange(240) % 12}
    np.savez(tmp_path / "a.npz", **named)
    own = {name: value for name, value in SMALL.items() if name != "num_clients"}
    experiment = Experiment(**TARGET, **own, dataset="npz", data_dir=str(tmp_path / "a.npz"))
    noise = experiment.resolved().noise_multiplier
    assert noise == Experiment(**TARGET, **SMALL).resolved().noise_multiplier  # twelve clients there too
    whole = experiment.run(out=tmp_path / "run")
    assert 5.9 < whole.history[-1]["epsilon"] <= 6.0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["noise_multiplier"] == noise
    longer = replace(Experiment.read(tmp_path / "run" / "config.json"), rounds=9).run(out=tmp_path / "run")
    assert "more than the target of 6" in longer.stopped


def test_a_configuration_of_an_earlier_version_has_no_noise():
    stored = Experiment(method="fedavg").to_json()
    earlier = {name: value for name, value in stored.items() if "noise" not in name and "target_" not in name}
    assert Experiment.from_json(earlier).to_json() == stored


def test_refusals():
    with pytest.raises(ValueError, match="belong to combiner private:CLIP"):
        Experiment(target_epsilon=1.0)
    with pytest.raises(ValueError, match="Private needs noise_multiplier, or epsilon"):
        Experiment(combiner="private:1")
    with pytest.raises(ValueError, match="known only when the data are read: give --noise-multiplier"):
        Experiment(dataset="docstrings", combiner="private:1", target_epsilon=1.0)
    private = {"combiner": "private:1", "noise_multiplier": 1.0, "validation": 0.2}
    with pytest.raises(ValueError, match="validation is measured on samples of the data's own clients, which private"):
        Experiment(dataset="docstrings", **private)
    Experiment(dataset="digits", **private)  # whose clients are made of what is left


def test_evaluate_says_what_epsilon_does_not_cover(tmp_path, command):
    Experiment(**TARGET, **SMALL).run(out=tmp_path / "private")
    Experiment(method="fedavg", **SMALL, rounds=1).run(out=tmp_path / "plain")
    sentence = "its epsilon does not cover what is measured here on clients' data"
    assert sentence in command("evaluate", tmp_path / "private").out
    assert sentence in json.loads(command("evaluate", tmp_path / "private", "--json").out)["note"]
    assert sentence not in command("evaluate", tmp_path / "plain").out
