"""The search of the protocol: its trials, its ranking, its two stages and its page."""

from __future__ import annotations

import importlib
import math
import re
from argparse import Namespace
from pathlib import Path
from random import Random

import pytest

from fedlada.paper.published import NAMES
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def search(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("search")


def ranges(text):
    """The ranges of the form log(a, b), in the order of the text."""
    return [tuple(map(float, pair)) for pair in re.findall(r"log\(([^,]+), ([^)]+)\)", text)]


def test_ranges_are_the_protocols(search):
    protocol = (ROOT / "docs" / "results" / "protocol.md").read_text(encoding="utf-8")
    words = {"server rate": "server_lr", "mu": "mu", "alpha": "alpha", "tau": "tau", "v_init": "v_init", "rho": "rho"}
    for method, space in search.EVERY.items():
        line = next(
            one for one in protocol.splitlines() if one.replace("\\", "").startswith(f"| {NAMES[method]} | log")
        )
        lr, decay, *others, choices = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert ranges(lr) == [space.lr]
        named = {words[cell[: cell.index(" log")]]: ranges(cell)[0] for cell in others if cell}
        assert list(named.items()) == list(space.others.items()), "they are drawn in this order"
        assert space.has_coins == bool(choices)
        assert ranges(decay) == ([] if space.has_coins else [search.L2])
    choices = next(line for line in protocol.splitlines() if line.startswith("Binary choices, "))
    assert ranges(choices) == [search.DECOUPLED, search.L2]


def test_a_draw_is_the_protocols_written_out(search):
    def log(low, high):
        return math.exp(random.uniform(math.log(low), math.log(high)))

    random = Random("cifar100 fedlada")
    for trial in search.trials("fedlada")[1:]:
        values = {"lr": log(1e-4, 3e-3), "v_init": log(1e-9, 1e-4), "alpha": log(0.02, 0.5)}
        values["beta1"] = 0.0 if random.random() < 0.5 else 0.9
        values["decoupled"] = random.random() < 0.5
        values["weight_decay"] = log(1e-3, 0.3) if values["decoupled"] else log(1e-4, 1e-2)
        assert dict(trial.values) == values
    random = Random("cifar100 fedadam_amended")
    for trial in search.trials("fedadam_amended")[1:]:
        values = {"lr": log(0.01, 0.3), "server_lr": log(0.01, 0.3), "alpha": log(0.02, 0.5)}
        assert dict(trial.values) == {**values, "weight_decay": log(1e-4, 1e-2)}


def test_trials_are_twelve_and_see_held_out_data_alone(search):
    every = [trial for method in search.SPACES for trial in search.trials(method)]
    assert len({search.identity(trial.experiment().to_json()) for trial in every}) == len(every) == 8 * 12
    assert len({search.folder_name(trial.key) for trial in every}) == len(every)
    experiments = [trial.experiment() for trial in every]
    assert {(one.validation, one.seed, one.rounds, one.eval_every) for one in experiments} == {(0.1, 0, 300, 5)}
    printed = search.trials("fedlada")[0].experiment()
    assert (printed.lr, printed.lr_decay) == (1e-3, 0.998)
    assert [printed.hyper[name] for name in ("alpha", "beta1", "weight_decay", "decoupled")] == [0.05, 0.9, 0.01, True]
    runs = read_archive(search.KEPT["cifar100"].archive).runs
    assert runs
    assert {name.split("_")[0] for run in runs for name in run.measured} == {"drift", "train", "validation"}


def test_methods_that_joined_later_begin_with_known_values(search):
    first = {method: search.trials(method, "cifar100")[0].values for method in search.LATER}
    assert first["mofedsam"] == {"alpha": 0.05}
    assert first["fedsmoo"] == {"clip_pull": False}, "else its recipe has the simulator's values"
    assert all(trial.values["clip_pull"] is False for trial in search.trials("fedsmoo"))
    assert first["fedlada_sam"] == {"alpha": 0.05}, "FedLADA's of this data set"
    pairs = [(method, dataset) for method in search.EVERY for dataset in search.NUM_TRIALS]
    every = [trial for pair in pairs for trial in search.trials(*pair)]
    assert len({search.identity(trial.experiment().to_json()) for trial in every}) == len(every) == 12 * (12 + 12 + 6)
    assert len({search.folder_name(trial.key) for trial in every}) == len(every)


def outcome(search, number, accuracy, rounds=300, diverged=None):
    rows = [
        {"round": one, **({"validation_accuracy": accuracy(one)} if one % 5 == 0 else {})}
        for one in range(1, rounds + 1)
    ]
    return search.Outcome(search.trials("fedavg")[number - 1], History(rows), diverged)


def test_score_counts_the_end_as_much_as_the_start(search):
    one = outcome(search, 1, lambda round: round / 1000)
    assert one.score(1) == pytest.approx(0.09)  # the mean of rounds 80, 85, ..., 100
    assert one.score(2) == pytest.approx((0.09 + 0.19 + 0.29) / 3)
    assert outcome(search, 1, lambda _: 0.5, rounds=299).score(2) is None


def test_ties_go_to_the_earlier_and_what_diverged_is_last(search):
    levels = {number: 0.1 + 0.01 * number for number in range(1, 13)} | {3: 0.22}
    own = [outcome(search, number, lambda _, level=level: level, rounds=100) for number, level in levels.items()]
    own[10] = outcome(search, 11, lambda _: 0.9, rounds=60, diverged=(60, "NaN"))
    assert [one.trial.number for one in search.ranked(own, 1)] == [3, 12, 10, 9, 8, 7, 6, 5, 4, 2, 1, 11]
    assert [one.trial.number for one in search.best_of_stage_one(own)] == [3, 12, 10, 9]
    assert search.winner(own) is None, "stage two is missing"
    assert search.best_of_stage_one([*own[:5], outcome(search, 6, lambda _: 0.1, rounds=95), *own[6:]]) == []
    for number in (3, 9, 10):
        own[number - 1] = outcome(search, number, lambda _, level=levels[number]: level)
    own[11] = outcome(search, 12, lambda _: 0.9, rounds=200, diverged=(200, "NaN"))
    assert search.winner(own).trial.number == 3


def test_stage_two_goes_on_with_the_best_four(search, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(search, "STAGES", (25, 30, 35))
    given = Namespace(out=tmp_path, data_dir="data", device="cpu", jobs=1, minutes=None, trial=True, dataset="cifar100")
    search.run(["fedcm"], given)
    found = [search.in_folder(trial, tmp_path) for trial in search.trials("fedcm")]
    best = search.best_of_stage_one(found)
    assert sorted(len(one.history) for one in found) == [25] * 8 + [35] * 4
    assert {len(one.history) for one in best} == {35}
    assert search.winner(found) in best
    assert "starts over" not in capfd.readouterr().err
    search.run(["fedcm"], given)
    assert "stage 2: 0 of 4 runs to make" in capfd.readouterr().out


@pytest.mark.parametrize("dataset", ["cifar100", "cifar10"])
def test_page_has_the_tables_of_the_archive(search, dataset):
    kept = search.KEPT[dataset]
    assert kept.holds(search.tables(kept.archive, dataset))
