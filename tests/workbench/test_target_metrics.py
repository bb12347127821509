"""The target of a run is checked before the first round."""

from __future__ import annotations

import json

import pytest

import fedlada
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.target import metrics_of
from tasks import blobs, small_net

FLAGS = ["--model", "mlp", "--local-steps", "1", "--num-clients", "8", "--cohort-size", "2", "--rounds", "1"]


@pytest.mark.parametrize("name", ["run", "compare"])
def test_an_unknown_metric_is_refused_before_the_first_round(tmp_path, command, name):
    said = command(name, *FLAGS, "--target", "tst_loss:0.1", "--out", tmp_path / "run", code=2)
    assert "the metric 'tst_loss' of --target is not measured in this run; did you mean 'test_loss'?" in said.err
    assert not (tmp_path / "run").exists()


def test_a_metric_of_clients_needs_their_tests(tmp_path, command):
    asked = ["run", *FLAGS, "--target", "client_accuracy:0.01", "--out", tmp_path / "run"]
    assert "'client_accuracy' of --target is not measured" in command(*asked, code=2).err
    assert "target client accuracy 0.01: reached in round 1" in command(*asked, "--client-test", 0.3).out


def test_a_prefix_turns_a_metric_round(tmp_path, command):
    asked = ["run", *FLAGS, "--rounds", "4", "--best", "min:test_accuracy", "--stop-at-target"]
    said = command(*asked, "--target", "min:test_accuracy:0.99", "--out", tmp_path / "run")
    assert "target 0.99: reached in round 1" in said.out
    compared = ["compare", *FLAGS, "--methods", "fedavg", "--target", "max:test_loss:0.5", "--seeds", "0", "--json"]
    found = json.loads(command(*compared, "--out", tmp_path / "compared").out)
    assert found["metric"] == "test_loss"
    assert found["methods"]["fedavg"]["rounds_to_target"] == [1]
    assert "test loss target 0.5" in (tmp_path / "compared" / "table.md").read_text().lower()
    command("report", tmp_path / "compared")


def test_personal_layers_are_compared_by_their_clients_accuracy(tmp_path, command):
    own = ["--personal", "*.bias", "--client-test", 0.3, "--target", 0.01]
    compared = ["compare", *FLAGS, *own, "--methods", "fedavg", "--seeds", "0", "--json", "--out", tmp_path]
    found = json.loads(command(*compared).out)
    assert (found["metric"], found["methods"]["fedavg"]["rounds_to_target"]) == ("client_accuracy", [1])
    assert "final client accuracy" in (tmp_path / "table.md").read_text()
    assert '"target_metric":"client_accuracy"' in (tmp_path / "report.html").read_text().replace(" ", "")


@pytest.mark.slow
def test_a_report_lists_metrics_whose_names_say_no_direction(tmp_path, command):
    x, y = blobs()
    out = tmp_path / "run"
    fedlada.simulate(
        small_net(3), (x, y), test=(x, y), metrics={"gain": lambda *_: 1.0}, rounds=2, out=out, device="cpu"
    )
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "target": "test_gain:3"}))  # of an earlier version
    command("report", out, "--plots", tmp_path / "plots", "--formats", "png")
    assert (tmp_path / "plots" / "test_gain-by-rounds.png").exists()
    assert "test_gain" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "feddyn"},
        {"combiner": "private:0.5", "noise_multiplier": 4.0},
        {"validation": 0.2, "eval_train_every": 2},
        {"client_test": 0.2, "personal_steps": 1},
        {"personal": "*.bias", "client_test": 0.2},
    ],
)
def test_the_names_are_those_of_a_run(options):
    few = {"num_clients": 4, "cohort_size": 2, "local_steps": 1, "rounds": 2, "model": "mlp", "device": "cpu"}
    experiment = Experiment(**few, **options)
    source = experiment.load_data()
    row = experiment.run(source=source).history[-1]
    row = {name: value for name, value in row.items() if value is not None}  # withheld where the run is private
    measured = {name for name in row if name.endswith(("_loss", "_accuracy", "_decile", "_std")) or "_of_" in name}
    assert set(metrics_of(experiment, source)) == measured | ({"drift"} & set(row))


def test_the_summary_of_a_run_with_held_out_data_is_of_those_data(tmp_path, command):
    asked = ["run", *FLAGS, "--rounds", "3", "--validation", 0.2, "--out", tmp_path / "run"]
    said = command(*asked).out
    found = json.loads(command(*asked, "--json").out)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = [row["validation_accuracy"] for row in rows]
    assert (found["validation_accuracy"], found["best_validation_accuracy"]) == (values[-1], max(values))
    assert found["best_accuracy"] is None  # it is of the test set
    assert f"3 rounds, validation accuracy {values[-1]:.4f} (best {max(values):.4f})" in said
