"""`--attack`: stored, gone on with, shown on the page, and refused in a sentence."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from fedlada.methods.combine.named import COMBINERS, PRIVATE
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.records import flattened, read_runs

SMALL = {"model": "mlp", "local_steps": 1, "num_clients": 8, "cohort_size": 4, "method": "fedavg", "device": "cpu"}


def test_a_run_keeps_its_attack(tmp_path):
    attacked = {**SMALL, "attack": "gaussian-noise:0.3"}
    whole = Experiment(**attacked, rounds=3).run(out=tmp_path / "whole")
    Experiment(**attacked, rounds=1).run(out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["attack"] == "gaussian-noise:0.3"
    again = Experiment.from_json({**stored, "rounds": 3}).run(out=tmp_path / "run")
    assert [row["attackers"] for row in again.history] == [row["attackers"] for row in whole.history]
    assert [row["test_loss"] for row in again.history] == [row["test_loss"] for row in whole.history]
    (record,) = read_runs([tmp_path / "whole"])
    assert record.label == "fedavg, attack gaussian-noise:0.3, seed 0"
    assert ("attack", "gaussian-noise:0.3") in flattened(record.config)
    assert "--attack gaussian-noise:0.3" in record.command
    with pytest.raises(ValueError, match=r"holds another run .attack is 'gaussian-noise:0.3' there and None here"):
        Experiment(**SMALL, rounds=4).run(out=tmp_path / "run")


def test_a_configuration_without_the_field_goes_on(tmp_path):
    Experiment(**SMALL, rounds=1).run(out=tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    del stored["attack"]
    path.write_text(json.dumps(stored))
    assert len(Experiment(**SMALL, rounds=2).run(out=tmp_path).history) == 2


def test_a_wrong_name_is_one_sentence():
    with pytest.raises(ValueError, match=r"attack must be one of sign-flip.* got 'flip'"):
        Experiment(attack="flip:0.3")


def test_every_combiner_is_in_the_help():
    (combiner,) = (one for one in fields(Experiment) if one.name == "combiner")
    named = f"{combiner.metadata['help']} {combiner.default}"
    assert [name for name in (*COMBINERS, PRIVATE) if name not in re.split(r"[ :,]+", named)] == []
