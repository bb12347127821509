"""The paper's tables and figures: how cells are grouped, compared and described."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from fedlada.paper.choices import AUGMENTATION, CHOICES, PRECISION, STEM
from fedlada.paper.describe import hyper_parameter_table, setting_notes
from fedlada.paper.scales import FULL, QUICK, QUICK_ON_DIGITS, SMOKE
from fedlada.paper.setting import Setting
from fedlada.paper.target import group, ratios
from fedlada.paper.targets import TARGETS
from fedlada.training.history import History
from fedlada.workbench.campaign.request import DONE, UNFINISHED, Outcome
from fedlada.workbench.campaign.write import records
from run_records import history


def test_ratios_are_to_the_best():
    assert ratios([4.0, 2.0, None, float("inf")]) == ["2.00×", "1.00×", "-", "-"]
    assert ratios([None]) == ["-"]


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=["quick", "full"])
def test_no_group_on_a_page_of_several_targets_holds_two_configurations(scale, tmp_path):
    own = Setting(scale=scale, preset="paper", seeds=(0, 1), data_dir="data", device="cpu")
    folders, outcomes = {}, []
    for target in ("T2", "T4", "T8", "F4", "F7"):
        for request in TARGETS[target].requests(own):
            config = request.experiment.to_json()
            key = json.dumps({**config, "rounds": 0}, sort_keys=True)
            if key not in folders:
                folders[key] = tmp_path / str(len(folders))
                folders[key].mkdir()
                (folders[key] / "config.json").write_text(json.dumps(config))
            outcomes.append(Outcome(request, history(0.5), DONE, folders[key]))
    shown = records(outcomes)
    assert len(shown) == len(folders)
    assert len({run.label for run in shown}) == len(shown)
    groups, names = defaultdict(set), defaultdict(set)
    for run in shown:
        key = json.dumps({**run.config, "seed": 0, "rounds": 0}, sort_keys=True)
        groups[run.group].add(key)
        names[key].add(run.group)
    assert all(len(found) == 1 for found in [*groups.values(), *names.values()])


def test_t5_shows_means_of_evaluations_where_it_says_so():
    own = Setting(scale=SMOKE, preset="paper", seeds=(0,), device="cpu", smooth=2, max_rounds=2)
    rows = [{"round": n, "test_accuracy": 0.2 * n, "full_train_accuracy": 1.0} for n in (1, 2)]
    outcomes = [Outcome(one, History(rows), DONE, Path("nowhere")) for one in TARGETS["T5"].requests(own)]
    table = TARGETS["T5"].show(own, group(outcomes)).tables[0]
    assert {(row[2], row[4], row[6]) for row in table.rows} == {("30.0", "2.0", "30.0")}


def test_notes_name_every_value_and_the_choices_that_bear_on_the_runs():
    def notes(target, **changes):
        own = Setting(
            **{"scale": FULL, "preset": "paper", "seeds": (0,), "data_dir": "data", "device": "cpu", **changes}
        )
        done = [Outcome(one, History(), UNFINISHED, Path("nowhere")) for one in TARGETS[target].requests(own)]
        return "\n".join(setting_notes(TARGETS[target], own, done))

    assert "cifar10: model resnet18-gn, 100 clients, 5 or 10 or 20 or 50 a round" in notes("F4")
    assert "2 or 4 or 10 or 20 local epoch(s)" in notes("T3")
    assert all(sentence in notes("F4") for sentence in CHOICES)
    for sentence in (AUGMENTATION, STEM):
        assert sentence in notes("F4")
        assert sentence not in notes("F4", scale=QUICK)
    assert PRECISION in notes("F4", device="cuda")
    assert PRECISION not in notes("F4")


def test_tables_of_other_authors_show_the_values_of_their_runs():
    own = Setting(scale=FULL, preset="paper", seeds=(0,), data_dir="data", device="cpu")
    done = [Outcome(one, History(), UNFINISHED, Path("nowhere")) for one in TARGETS["FEDOPT"].requests(own)]
    table = hyper_parameter_table(TARGETS["FEDOPT"], own, done)
    assert len(table.rows) == 10
    (row,) = (one for one in table.rows if one[1] == "FedYogi on CIFAR-10, Reddi et al.")
    assert row[0] == "CIFAR-10"
    assert row[2].startswith("lr 0.0316228, ")
    assert {"server_lr 0.01", "tau 0.001", "weight_decay 0.0002"} <= set(row[2].split(", "))
    assert "clip_norm" not in row[2]  # not clipped
    assert row[3] == "1"
    notes = "\n".join(setting_notes(TARGETS["FEDOPT"], own, done))
    assert not any(choice in notes for choice in CHOICES)
    assert "10 a round, Dirichlet 0.1, batches of 20" in notes
    assert "10 a round, Pachinko 0.1, batches of 20" in notes


def test_half_a_client_is_rounded_up():
    own = Setting(scale=QUICK_ON_DIGITS, preset="paper", seeds=(0,), device="cpu")
    assert [one.experiment.cohort_size for one in TARGETS["F4"].requests(own)] == [3, 5, 10, 25]  # of 50
