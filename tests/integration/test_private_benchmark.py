"""The benchmark of private accuracy: pfl's setting, the same budget for each method, and a page that says which won."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fedlada.data.images import Images
from fedlada.data.source import Source
from fedlada.training.history import History

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def private(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("private")
    monkeypatch.setattr(module, "noise", lambda epsilon: 1.0 / epsilon)  # solving for it takes seconds
    return module


@pytest.fixture
def private_pfl(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("private_pfl")


def accuracy_of(private, find):
    def outcome(run):
        rounds = private.TRIAL_ROUNDS if run.is_trial else private.ROUNDS
        rows = [{"round": round, run.metric: find(run)} for round in range(1, rounds + 1)]
        return private.Outcome(run, History(rows))

    return outcome


def test_every_method_has_the_same_budget_and_the_setting_is_pfls(private):
    every = [run for entry in private.ENTRIES for run in private.trials_of(entry)]
    assert {len(private.trials_of(entry)) for entry in private.ENTRIES} == {4}
    every += [run for entry in private.ENTRIES for run in private.results_of(entry, entry.trials[0])]
    experiments = [run.experiment() for run in every]
    assert len({private.folder_name(run.key) for run in every}) == len(every) == 24 + 39
    assert len({private.identity(one.to_json()) for one in experiments}) == len(every)
    assert sum(one.rounds for one in experiments) == 7_200 + 58_500
    for run, one in zip(every, experiments, strict=True):
        assert (one.num_clients, one.cohort_size, one.batch_size, one.model) == (1000, 50, 10, "pfl-cnn")
        assert (one.validation > 0) == run.is_trial
        if run.epsilon is not None:
            combiner = one.build_method().combiner
            assert (combiner.clip, combiner.delta, combiner.noise_cohort) == (0.4, 1e-6, 1000)
            assert combiner.epsilon == run.epsilon


def test_the_best_trial_makes_the_results(private):
    entry = private.ENTRIES[2]
    find = accuracy_of(private, lambda run: run.values["server_lr"] if run.is_trial else 0.5 + run.seed / 100)
    assert private.chosen(entry, find).values["server_lr"] == 3e-2
    best = {one.name: None for one in private.ENTRIES} | {entry.name: private.chosen(entry, find)}
    rows = {row[0]: row[1:] for row in private.result_table(find, best).rows}
    assert rows["FedAdam"] == ("lr 0.1, server_lr 0.03", "51.0 ± 1.0", "51.0 ± 1.0", "-")
    assert rows["FedAvg"] == ("-", "-", "-", "-")
    assert private.chosen(entry, lambda run: private.Outcome(run, History())) is None


def pfl_record(epsilon, lr, seed, accuracies, *, rounds=1500):
    setting = {"epsilon": epsilon, "lr": lr, "seed": seed, "layout": "planes", "dataset": "cifar10", "rounds": rounds}
    rows = [{"round": 50 * number, "test_accuracy": value} for number, value in enumerate(accuracies, start=1)]
    return {"setting": setting, "versions": {"pfl": "0.6.0"}, "rows": rows}


def test_runs_of_pfl_stand_beside_fedavg(private, tmp_path):
    records = [
        pfl_record(2.0, 0.1, 0, [0.1] * 25 + [0.60, 0.61, 0.62, 0.63, 0.64]),
        pfl_record(2.0, 0.1, 1, [0.9] * 25 + [0.64] * 5),
        pfl_record(8.0, 0.1, 0, [0.66] * 30),
        pfl_record(8.0, 0.1, 1, [0.9] * 29),
        pfl_record(None, 0.03, 0, [0.5, 0.55]),
        pfl_record(8.0, 0.03, 0, [0.9], rounds=50),
    ]
    (tmp_path / "pfl.json").write_text(json.dumps(records))
    find = accuracy_of(private, lambda _: 0.5)
    best = {entry.name: private.trials_of(entry)[0] for entry in private.ENTRIES}
    table = private.pfl_table(tmp_path / "pfl.json", find, best)
    assert table.columns[2:] == ("epsilon 2", "epsilon 8", "without privacy")
    assert table.rows == (
        ("pfl 0.6.0", "lr 0.03", "-", "-", "55.0 in round 100"),
        ("pfl 0.6.0", "lr 0.1", "63.0 ± 1.4", "66.0 (1 of 2)", "-"),
        ("fedlada", "lr 0.03", "50.0 ± 0.0", "50.0 ± 0.0", "50.0 ± 0.0"),
    )
    assert private.pfl_table(tmp_path / "none.json", find, best) is None


def test_packed_records_of_pfl_are_what_the_table_reads(private, private_pfl, tmp_path):
    record = {
        "setting": asdict(private_pfl.Setting(epsilon=2.0, lr=0.1, seed=0, layout="pfl")),
        "versions": {"pfl": "0.6.0"},
        "rows": [{"round": private.ROUNDS, "test_accuracy": 0.7}],
    }
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.json").write_text(json.dumps(record))
    private_pfl.pack(tmp_path / "runs", tmp_path / "all.json")
    best = {entry.name: None for entry in private.ENTRIES}
    table = private.pfl_table(tmp_path / "all.json", accuracy_of(private, lambda _: 0.5), best)
    assert table.rows[0] == ("pfl 0.6.0, its layout of images", "lr 0.1", "70.0", "-", "-")


def test_the_layout_of_pfl_takes_neighbours_in_a_plane_for_colours(private_pfl):
    planes = np.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    images = Images((planes % 251).astype(np.uint8), np.zeros(2, dtype=np.int64))
    read = private_pfl.misread(Source(images, images, num_classes=10, input_shape=(3, 32, 32))).train
    assert read.x[1, :, 0, 5].tolist() == images.x[1, 0, 0, 15:18].tolist()
    assert sorted(read.x[0].ravel()) == sorted(images.x[0].ravel())
