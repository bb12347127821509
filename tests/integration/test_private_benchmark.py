"""The benchmark of private accuracy: pfl's setting, the same budget for each method, and a page that says which won."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from fedlada.training.history import History

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def private(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("private")
    monkeypatch.setattr(module, "noise", lambda epsilon: 1.0 / epsilon)  # solving for it takes seconds
    return module


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
