"""The search for hyperparameters on the paper's data sets: on a few images, with two configurations chosen by hand."""

from __future__ import annotations

import json
import pickle
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from fedlada.methods.recipes import RECIPES
from fedlada.paper import choices
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.identity import DECIDES_NOTHING
from fedlada.workbench.presets import SETTINGS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CHOSEN = [{"lr": 1e-5, "alpha": 0.1}, {"lr": 1e-3, "alpha": 0.1}]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CIFAR-100 as its archive unpacks, with twelve images for each of 100 clients."""
    folder = tmp_path_factory.mktemp("data") / "cifar-100-python"
    folder.mkdir()
    random = np.random.default_rng(0)
    for file, size in (("train", 1200), ("test", 100)):
        content = {
            b"data": random.integers(0, 256, (size, 3072), np.uint8),
            b"fine_labels": [n % 2 for n in range(size)],
        }
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    return folder.parent


@pytest.fixture
def tune_paper(monkeypatch, data, tmp_path):
    """Runs the script's command in this process."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import tune_paper as script

    monkeypatch.setattr(script, "BY_HAND", {("cifar100", "fedlada"): CHOSEN})
    monkeypatch.setattr(choices, "OURS", dict(choices.OURS))
    monkeypatch.setitem(SETTINGS["cifar100"], "model", "mlp")  # in the place of a ResNet, which would take a minute

    def run(stage, *words):
        place = ["--dataset", "cifar100", "--data-dir", str(data), "--device", "cpu", "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["tune_paper.py", stage, *place, *map(str, words)])
        script.main()

    return run


def refusal(tune_paper, capsys, *words):
    with pytest.raises(SystemExit) as ended:
        tune_paper(*words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_is_found_is_what_the_tables_are_made_with(tune_paper, tmp_path, capsys):
    search = ("tune", "--by-hand", "--methods", "fedlada", "--rounds", 2, "--eval-every", 1)
    final = ("final", "--methods", "fedlada", "--", "T6", "--seeds", 0, "--rounds", 5, "--only-show")
    assert "the search for fedlada has not ended" in refusal(tune_paper, capsys, *final)
    tune_paper(*search)
    out = tmp_path / "out"
    table = (out / "fedlada.md").read_text().splitlines()
    assert table[0] == "**fedlada, chosen by hand: mean validation accuracy**."
    scores = [float(line.split("|")[2]) for line in table[4:]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    best = json.loads((out / "cifar100-fedlada-best.json").read_text())
    assert best in CHOSEN
    assert f"lr {best['lr']:g}" in table[4]
    assert not list(out.rglob("checkpoints/*")), "none of them goes further, so none needs them"
    with pytest.raises(SystemExit) as ended:
        tune_paper(*final)
    assert ended.value.code in (0, None)
    assert choices.OURS["cifar100", "fedlada"] == (best["lr"], {"alpha": 0.1})
    assert f"fedlada: lr {best['lr']:g}, alpha 0.1" in capsys.readouterr().out

    # A search that is stopped leaves nothing that an earlier one had found.
    tune_paper(*search[:-3], 4, "--eval-every", 1, "--budget", 1e-6)
    assert "fedlada: the search has not ended" in capsys.readouterr().out
    assert "the search for fedlada has not ended" in refusal(tune_paper, capsys, *final)
    (out / "cifar100-fedlada-best.json").write_text("{}")
    assert "fedlada-best.json is damaged" in refusal(tune_paper, capsys, *final)


def test_bad_input_is_one_sentence(tune_paper, capsys, tmp_path):
    by_hand = ("tune", "--by-hand", "--methods")
    assert refusal(tune_paper, capsys, *by_hand, "fedavg").endswith("fedavg on cifar100: there are fedlada")
    assert "no grid for fedlda" in refusal(tune_paper, capsys, *by_hand, "fedlda")
    assert "at least twice" in refusal(tune_paper, capsys, *by_hand, "fedlada", "--eval-every", 0)
    assert "there is no archive" in refusal(tune_paper, capsys, *by_hand, "fedlada", "--merge", tmp_path / "x.json")
    missing = refusal(tune_paper, capsys, *by_hand, "fedlada", "--data-dir", tmp_path)
    assert "there is no folder" in missing
    assert not (tmp_path / "out").exists()


def test_what_was_chosen_by_hand_can_be_built_and_is_as_much_for_each_method(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from tune_paper_values import BY_HAND

    for (dataset, method), chosen in BY_HAND.items():
        for values in chosen:
            RECIPES[method](**{name: value for name, value in values.items() if name != "lr"})
        assert len(chosen) == len(BY_HAND[dataset, "fedlada"])


def test_every_configuration_that_was_searched_is_in_the_archive(monkeypatch):
    """By its text, so that neither data nor a GPU is needed: what is used by default must not change what was tried."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import tune_paper as script

    runs = read_archive(BENCHMARKS / "results" / "runs_h200_202611.json").runs
    known = {told(run.config) for run in runs}
    for dataset, number, *timing in (("cifar100", 12, 300, 50), ("cifar10", 10, 150, 25)):
        given = Namespace(dataset=dataset, data_dir="data", device="cuda", rounds=timing[0], eval_every=timing[1])
        for method in script.GRIDS:
            tried = script.configurations(method, dataset, number)
            assert {told(one.experiments[0].to_json()) for one in script.candidates(method, tried, given)} <= known
    for (dataset, method), tried in script.BY_HAND.items():
        timing = (300, 50) if dataset == "cifar10" else (150, 25)
        given = Namespace(dataset=dataset, data_dir="data", device="cuda", rounds=timing[0], eval_every=timing[1])
        assert {told(one.experiments[0].to_json()) for one in script.candidates(method, tried, given)} <= known


def told(config):
    """What decides a run, but for its data and its version."""
    return json.dumps(
        {name: value for name, value in config.items() if name not in {*DECIDES_NOTHING, "fedlada"}}, sort_keys=True
    )
