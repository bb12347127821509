"""The comparison on Shakespeare's plays: the protocol's space, equal search, and a command that goes on."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import warm
from fedlada.methods.recipes import RECIPES
from fedlada.paper.published import NAMES
from plays_by_hand import write_plays

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("shakespeare")


def record(run, accuracy=0.5, diverged=None):
    """A run that has the same accuracy in each evaluation, or what a function of the round gives."""
    setting = run.setting()
    every = setting["eval_every"]
    rounds = list(range(every, (diverged or run.rounds) + 1, every))
    values = [accuracy(one) if callable(accuracy) else accuracy for one in rounds]
    losses = [1 - one for one in values]
    own = {"key": run.key, "setting": setting, "rounds": rounds, "accuracy": values, "loss": losses}
    return json.loads(json.dumps({**own, "diverged": diverged, "seconds": 1.0}))


def test_the_space_is_the_protocols(benchmark):
    page = (ROOT / "docs" / "results" / "shakespeare.md").read_text()
    for method, space in benchmark.SPACES.items():
        first, *drawn = benchmark.trials("char-lstm", method)
        ranges = ", ".join(f"{name} log({low:g}, {high:g})" for name, (low, high) in space.items())
        assert f"| {NAMES[method]} | {ranges} | {first.text()} |" in page
        assert len(drawn) == 5
        for run in drawn:
            assert run.values.keys() == space.keys()
            assert all(low <= run.values[name] <= high for name, (low, high) in space.items())
        RECIPES[method](**first.setting()["hyper"])
    # The same on every machine, and another for the other model.
    assert benchmark.trials("char-lstm", "fedavg")[1].values["lr"] == pytest.approx(0.0777, rel=1e-2)
    assert benchmark.trials("char-transformer", "fedavg")[1].values["lr"] == pytest.approx(0.1396, rel=1e-2)


def test_runs_are_the_protocols(benchmark):
    every = benchmark.all_trials(benchmark.NETWORKS)
    assert len({run.key for run in every}) == len(every) == 60
    assert {run.number for run in every[:10]} == {1}  # trial by trial
    for run in every:
        setting = run.setting()
        assert (setting["seed"], setting["held_out"], setting["rounds"], setting["eval_every"]) == (0, 0.1, 150, 5)
        assert (setting["cohort_size"], setting["local_steps"], setting["batch_size"]) == (10, 20, 20)
    final = replace(every[0], kind="final", number=11).setting()
    assert (final["seed"], final["held_out"], final["rounds"], final["eval_every"]) == (11, 0.0, 500, 25)


def test_the_score_is_the_mean_of_three_means(benchmark, tmp_path):
    results = benchmark.Results(tmp_path / "archive.json")
    run = benchmark.trials("char-lstm", "fedcm")[0]
    results.add(record(run, accuracy=lambda round: round / 1000))
    found = results.find(run)
    assert found.mean(50) == pytest.approx(0.040)
    assert found.score == pytest.approx((0.040 + 0.090 + 0.140) / 3)
    assert benchmark.Results(tmp_path / "archive.json").find(run).score == found.score
    results.add(record(run, accuracy=0.9, diverged=120))
    assert results.find(run).score is None
    other = replace(run, values={"lr": 0.2})
    assert results.find(other) is None  # other settings under the same name


def test_finals_have_the_values_of_the_best_trial(benchmark, tmp_path):
    results = benchmark.Results(tmp_path / "archive.json")
    runs = [run for run in benchmark.all_trials(["char-lstm"]) if run.key != "search/char-lstm/fedlada/6"]
    for run in runs:
        results.add(record(run, {2: 0.6, 4: 0.6}.get(run.number, 0.5), 130 if run.number == 3 else None))
    assert benchmark.winner(results, "char-lstm", "fedavg").number == 2  # the earlier of two equal ones
    assert benchmark.winner(results, "char-lstm", "fedlada") is None
    assert list(benchmark.finals(results, ["char-lstm"])) == []  # a search is missing
    results.add(record(benchmark.trials("char-lstm", "fedlada")[5], 0.7))
    finals = list(benchmark.finals(results, ["char-lstm", "char-transformer"]))
    assert [(run.method, run.number) for run in finals[:6]] == [
        *((one, 10) for one in benchmark.SPACES),
        ("fedavg", 11),
    ]
    assert len(finals) == 15
    assert finals[4].values == benchmark.trials("char-lstm", "fedlada")[5].values
    for run in finals[:11]:
        results.add(record(run, 0.3 + run.number / 1000 + 0.1 * (run.method == "fedcm")))
    text = benchmark.tables(results)
    values = benchmark.trials("char-lstm", "fedcm")[1].text()
    assert f"| FedCM (2 of 3 seeds) | {values} | 41.05 ± 0.07 |" in text
    assert "+10.00 (+10.00 to +10.00) |" in text
    assert "| FedAvg | 3 | " in text
    assert "diverged in round 130" in text
    assert "char-transformer" not in text


def test_the_page_is_what_the_archive_gives(benchmark):
    page = benchmark.PAGE.read_text(encoding="utf-8")
    assert benchmark.tables(benchmark.Results(benchmark.ARCHIVE)).strip() in page


def command(tmp_path, *words):
    script = ROOT / "benchmarks" / "shakespeare.py"
    places = ["--archive", tmp_path / "archive.json", "--out", tmp_path / "unfinished", "--data-dir", tmp_path]
    done = warm(list(map(str, [*words, "--trial", *places])), program=script)
    return done.returncode, done.stdout + done.stderr


def test_the_same_command_goes_on(tmp_path):
    write_plays(tmp_path)
    on_cpu = ("--device", "cpu", "--jobs", 1)
    assert command(tmp_path, "final", *on_cpu) == (1, "the search of no model has ended: search first\n")
    code, said = command(tmp_path, "search", *on_cpu, "--budget", 0)
    assert (code, said) == (0, "20 of 20 runs to make\n")
    code, said = command(tmp_path, "search", "--device", "cpu", "--jobs", 2, "--only", "char-lstm")
    assert code == 0, said
    assert said.count("search/char-lstm/") == 10
    code, said = command(tmp_path, "search", *on_cpu)
    assert (code, said.splitlines()[0]) == (0, "10 of 20 runs to make"), said
    code, said = command(tmp_path, "final", *on_cpu)
    assert (code, said.splitlines()[0]) == (0, "20 of 20 runs to make"), said
    assert command(tmp_path, "final", *on_cpu) == (0, "0 of 20 runs to make\n")
    assert not list((tmp_path / "unfinished").iterdir())
    runs = json.loads((tmp_path / "archive.json").read_text())["runs"]
    assert {one["clients"] for one in runs} == {39}
    held_out = {one["train_windows"] for one in runs if one["key"].startswith("search")}
    assert max(held_out) < min(one["train_windows"] for one in runs if one["key"].startswith("final"))
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n<!-- tables: python benchmarks/shakespeare.py table --write -->\n<!-- end of tables -->\n"
    )
    code, said = command(tmp_path, "table", "--write", "--page", page)
    assert code == 0, said
    assert len(re.findall(r"^\| FedLADA \|", page.read_text(), re.MULTILINE)) == 2 + 4


def test_an_interrupted_run_goes_on_with_the_same_result(benchmark, tmp_path):
    write_plays(tmp_path)
    place = benchmark.Place(str(tmp_path), "cpu", tmp_path / "unfinished")
    run = replace(benchmark.trials("char-lstm", "fedlada", benchmark.SMALL)[1], kind="final", number=10)
    whole = benchmark.make(run, place, lambda: False)
    asked = iter([False, False, True])  # in round 3, which is not evaluated
    assert benchmark.make(run, place, lambda: next(asked)) is None
    assert len(list((tmp_path / "unfinished").iterdir())) == 1
    rest = benchmark.make(run, place, lambda: False)
    assert rest["accuracy"] == whole["accuracy"]
    assert rest["loss"] == whole["loss"]
    assert rest["rounds"] == [2, 4]
