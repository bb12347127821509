"""The paper's tables and figures, each at the smallest scale, from real runs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command_line import fedlada, rows
from fedlada.methods.recipes import RECIPES, hyper_parameters
from fedlada.paper import published
from fedlada.paper.choices import PRESETS, values_of
from fedlada.paper.reproduce import _folder_name, reproduce
from fedlada.paper.scales import scale_of
from fedlada.paper.setting import Setting, stands_for
from fedlada.paper.target import group
from fedlada.paper.targets import TARGETS
from fedlada.training.history import History
from fedlada.workbench.campaign.identity import digest
from fedlada.workbench.campaign.run import Shard, Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.report.watch import LiveReport

CPU = ["--scale", "smoke", "--device", "cpu"]
HERE = Work(jobs=1, quiet=True)


def setting(**changes):
    return Setting.named("smoke", **{"preset": "paper", "seeds": (0,), "device": "cpu", **changes})


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Every run that any target needs, and its outcome, target by target."""
    store = RunStore(tmp_path_factory.mktemp("smoke") / "runs")
    requests = {name: list(target.requests(setting())) for name, target in TARGETS.items()}
    outcomes = iter(carry_out([one for own in requests.values() for one in own], store, HERE))
    return store, {name: [next(outcomes) for _ in own] for name, own in requests.items()}


def test_a_run_of_a_table_is_that_of_run_to_the_bit(smoke, tmp_path):
    store, outcomes = smoke
    made = store.path(outcomes["T6"][0].request)
    num_rounds = len(rows(made))
    fedlada("run", "--config", made / "config.json", "--rounds", num_rounds, "--out", tmp_path, "--quiet")
    names = ("train_loss", "drift", "clients")
    alone, of_table = ([[row[name] for name in names] for row in rows(one)] for one in (tmp_path, made))
    assert alone == of_table


PAPER_CELLS = {
    "T1": ["977", "913", "740", "1429", "2554", "575", "765", "∞", "1177", "1211", "598"],
    "T2": ["34.5", "41.1", "38.8", "35.0", "34.1", "41.9"],
    "T3": ["41.9", "40.2", "36.2", "33.8", "878", "614", "959", "1327"],
    "T4": ["29.5", "41.9", "40.1", "38.8", "36.5", "34.1"],
    "T5": ["81.8", "86.8", "86.4", "86.0", "1511", "2089", "3031", "1313", "84.9", "83.7", "86.1"],
    "T6": ["94.0", "90.9", "85.1", "71.5", "96.1", "65.5", "44.6", "536.9", "262.5", "∞", "186.4"],
    "T7": ["78.32", "80.74", "81.09", "81.72", "81.77", "81.05", "80.62"],
    "FEDOPT": ["72.8", "77.4", "73.1", "78.0"],
    "FLSIM": ["80.65", "84.22", "86.87", "83.30", "30.43"],
    "T8": ["1 Nd", "2 Nd", "0.97", "1.80", "1.51", "1.02", "1.38", "0.95", "1.13", "0.69", "-"],
}


PLACES = [
    ("T1", "SCAFFOLD", "train: paper", "740"),
    ("T1", "SCAFFOLD", "test: paper", "1177"),
    ("T2", "FedCM", "paper above FedAvg", "+6.6"),
    ("T3", "4", "paper's round", "614"),
    ("T4", "0.05", "paper %", "41.9"),
    ("T5", "FedCM", "paper, converged %", "86.8"),
    ("T5", "FedCM", "paper, round 1500 %", "84.9"),
    ("T6", "FedLADA", "paper, 70 %", "44.6"),
    ("T6", "FedLADA", "paper, 80 %", "186.4"),
    ("T7", "0.75", "paper %", "81.72"),
    ("T8", "FedLADA", "paper's count", "2 Nd"),
    ("FLSIM", "FedSMOO", "published best %", "86.87"),
    ("FLSIM", "FedDyn", "published s a round", "20.82"),
    ("FEDOPT", "FedYogi", "published %", "78.0"),
]
"""Table, row, column, cell."""


def test_the_papers_figures_stand_in_their_places(smoke):
    _, outcomes = smoke
    for name, row, column, cell in PLACES:
        table = TARGETS[name].show(setting(), group(outcomes[name])).tables[0]
        (line,) = (one for one in table.rows if one[0] == row)
        assert line[table.columns.index(column)] == cell, (name, row, column)


def test_the_simulators_values_are_those_it_was_published_with(smoke):
    _, outcomes = smoke
    found = {}
    for outcome in outcomes["FLSIM"]:
        own = outcome.request.experiment
        assert (own.cohorts, own.eval_every, own.concentration in (0.6, 0.1)) == ("bernoulli", 1, True)
        found[outcome.request.group.rpartition(",")[0]] = (own.lr, own.lr_decay, own.hyper)
    for name in ("FedAvg", "FedDyn", "FedSMOO", "FedGAMMA", "MoFedSAM"):
        lr, decay, hyper = found[name]
        assert (lr, hyper["weight_decay"], hyper["clip_norm"]) == (0.1, 1e-3, 10.0)
        assert decay == (0.9995 if name == "FedDyn" else 0.998)
    assert [found[name][2]["rho"] for name in ("FedGAMMA", "MoFedSAM", "FedSMOO")] == [0.01, 0.1, 0.1]
    assert (found["MoFedSAM"][2]["alpha"], found["FedCM"][2]["alpha"], found["FedAdam"][2]["server_lr"]) == (
        0.05,
        0.1,
        0.1,
    )
    assert found["MoFedSAM, alpha 0.1"][2] == {**found["MoFedSAM"][2], "alpha": 0.1}
    assert [found[name][2]["clip_pull"] for name in ("FedDyn", "FedSMOO")] == [False, False]
    assert found["FedLADA with SAM"][2]["rho"] == 0.03


def test_the_server_optimizers_run_as_published():
    own = Setting.named("full", preset="paper", seeds=(0,), data_dir="data")
    needed = {one.group: one for one in TARGETS["FEDOPT"].requests(own)}
    assert len(needed) == 10
    ten, hundred = (needed[f"FedYogi on {name}, Reddi et al."].experiment for name in ("CIFAR-10", "CIFAR-100"))
    assert (ten.num_clients, ten.cohort_size, ten.batch_size, ten.local_epochs, ten.lr_decay) == (500, 10, 20, 1, 1.0)
    assert (ten.augment, ten.crop_size, ten.partition, ten.concentration) == ("crop", 24, "dirichlet", 0.1)
    assert (hundred.partition, hundred.concentration, hundred.fine_concentration) == ("pachinko", 0.1, 10.0)
    assert (round(ten.lr, 4), ten.hyper["server_lr"], ten.hyper["tau"]) == (0.0316, 0.01, 1e-3)
    assert (hundred.hyper["server_lr"], hundred.hyper["tau"], hundred.hyper["clip_norm"]) == (1.0, 0.1, None)
    assert needed["FedYogi on CIFAR-10, Reddi et al."].goal.rounds == 4000


def test_the_papers_totals_are_those_it_prints(smoke):
    """T8's printed totals are no products of T6's rounds, which have a decimal."""
    _, outcomes = smoke
    tables = TARGETS["T8"].show(setting(), group(outcomes["T8"])).tables[1:]
    totals = [[row[table.columns.index("paper, Nd")] for row in table.rows] for table in tables]
    assert [row[0] for row in tables[0].rows] == [published.NAMES[method] for method in published.SEVEN]
    assert totals == [["94", "91", "170", "142", "96", "130", "90"], ["537", "511", "524", "572", "611", "-", "372"]]


def test_the_study_is_computed_once(tmp_path):
    told = []
    own = setting(seeds=(0, 1), tell=told.append, folder=tmp_path)
    first = TARGETS["theory"].show(own, {})
    assert told
    told.clear()
    again = TARGETS["theory"].show(own, {})
    assert not told
    assert again.tables == first.tables
    assert [chart.to_json() for chart in again.charts] == [chart.to_json() for chart in first.charts]
    with pytest.raises(ValueError, match="at least two seeds"):  # of other seeds it would be computed
        TARGETS["theory"].show(setting(seeds=(0,), folder=tmp_path), {})


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_becomes_tables_and_charts(name, smoke):
    _, outcomes = smoke
    assert all(outcome.status == "done" for outcome in outcomes[name])
    own = setting(seeds=TARGETS[name].seeds("smoke"))
    shown = TARGETS[name].show(own, group(outcomes[name]))
    assert shown.tables
    cells = [cell for table in shown.tables for row in table.rows for cell in row]
    assert set(PAPER_CELLS.get(name, [])) <= set(cells)
    assert not any("unfinished" in cell or "diverged" in cell for cell in cells)
    for chart in shown.charts:
        assert chart.series
        assert all(math.isfinite(value) for series in chart.series for value in (*series.x, *series.y))
    if name in PAPER_CELLS:
        assert shown.charts
        # Our own figures come from the runs: some cell must change with them.
        one = outcomes[name][0]
        changed = [{**row, "test_accuracy": 0.987, "full_train_accuracy": 0.987} for row in one.history]
        other = [type(one)(o.request, type(o.history)(changed), o.status, o.folder) for o in outcomes[name]]
        assert TARGETS[name].show(own, group(other)).tables != shown.tables


def test_targets_share_runs(smoke):
    store, outcomes = smoke
    t6, t8, f2 = ({outcome.folder for outcome in outcomes[name]} for name in ("T6", "T8", "F2"))
    assert t6 == t8 == f2
    scaffold = [outcome.folder for outcome in outcomes["T7"] if "scale 1 " in outcome.request.label + " "]
    assert set(scaffold) <= f2
    assert len(list(store.folder.iterdir())) == len({one.folder for own in outcomes.values() for one in own})


def test_published_figures():
    """Against figures typed by hand from the paper's tables, not from our file."""
    inf = math.inf
    assert [published.SPEED_TRAIN[m]["cifar100"] for m in published.SEVEN] == [1198, 1166, 1017, 966, 2778, 746, 618]
    assert [published.SPEED_TRAIN[m]["tinyimagenet"] for m in published.SEVEN] == [
        *(1474, 1508, 1338, 1754, 2834, 971, 878)
    ]
    assert [published.SPEED_TEST[m]["tinyimagenet"] for m in published.SEVEN] == [inf, inf, 494, 455, 1397, inf, 269]
    assert [published.SPEED_TEST[m]["cifar100"] for m in published.SEVEN] == [inf, inf, 677, 721, 1114, inf, 447]
    assert published.CONVERGED["fedadam"] == {
        "cifar10": (86.4, 3031),
        "cifar100": (52.6, 2324),
        "tinyimagenet": (41.3, 2834),
    }
    assert published.CONVERGED["fedavg"]["cifar100"] == (45.4, 1664)
    assert list(published.AT_1500["fedcm"].values()) == [84.9, 52.0, 40.6]
    assert list(published.AT_1500["fedlada"].values()) == [86.1, 52.6, 41.9]
    assert [published.STAGES[m]["tinyimagenet"] for m in published.SEVEN] == [
        *((207.7, 421.1), (214.6, 456.5), (191.3, 362.2), (115.9, 245.8), (242.1, 618.7), (142.4, inf)),
        (110.2, 170.2),
    ]
    assert [published.STAGES[m]["cifar100"][1] for m in published.SEVEN] == [
        *(535.7, 501.6, 351.4, 200.0, 407.4, 361.9, 143.7)
    ]
    assert published.COMBINATIONS["fedadam_amended"] == 0.5
    assert published.TEST_TARGETS == {"cifar10": 84.0, "cifar100": 51.0, "tinyimagenet": 38.0}
    # The paper's own ratios follow from its totals (cut or rounded).
    for method, ratios in published.COST_RATIOS.items():
        for ratio, total, base in zip(ratios, published.COST_TOTALS[method], (94, 537), strict=True):
            assert (ratio is None) == (total is None), method
            assert ratio is None or ratio == pytest.approx(total / base, abs=0.0101), method


def test_the_full_scale_is_the_papers_setting():
    full = Setting.named("full", preset="paper", seeds=(0,), data_dir="data")
    for paper, epochs, alpha in (("cifar10", 5, 0.1), ("cifar100", 2, 0.05), ("tinyimagenet", 2, 0.05)):
        run = full.experiment(paper, "fedlada").resolved()
        assert (run.dataset, run.model, run.num_clients, run.cohort_size) == (paper, "resnet18-gn", 100, 10)
        assert (run.concentration, run.batch_size, run.local_epochs, run.augment) == (0.6, 50, epochs, "authors")
        assert (run.lr, run.lr_decay, run.hyper["alpha"], run.hyper["weight_decay"]) == (0.001, 0.998, alpha, 0.01)
        assert (run.hyper["beta1"], run.hyper["beta2"], run.hyper["server_lr"]) == (0.9, 0.99, 1.0)
        sgd = full.experiment(paper, "fedavg").resolved()
        assert (sgd.lr, sgd.hyper["weight_decay"]) == (0.1, 0.001)
        assert full.experiment(paper, "fedadam").hyper["server_lr"] == 0.1
        assert (run.hyper["decoupled"], "decoupled" in sgd.hyper) == (True, False)
    goals = {name: max(one.goal.rounds for one in TARGETS[name].requests(full)) for name in ("T1", "T2", "T5", "F6")}
    assert goals == {"T1": 3100, "T2": 1500, "T5": 3100, "F6": 4000}
    lenets = {one.experiment.model for one in TARGETS["F6"].requests(full)}
    assert lenets == {"lenet-gelu", "lenet-smu"}
    sizes = {one.experiment.cohort_size for one in TARGETS["F4"].requests(full)}
    assert sizes == {5, 10, 20, 50}


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_the_printed_values_do_not_depend_on_the_data_that_stand_in(scale):
    """What suits the digits or Fashion-MNIST must not fill in what the paper leaves to a recipe's default."""
    for method in RECIPES:
        for paper in ("cifar10", "cifar100", "tinyimagenet"):
            own = Setting.named(scale, preset="paper", seeds=(0,), data_dir="data").experiment(paper, method).resolved()
            alpha = {"alpha": {"cifar10": 0.1}.get(paper, 0.05)} if method == "fedlada" else {}
            decay = {"weight_decay": 0.01, "decoupled": True} if "v_init" in own.hyper else {"weight_decay": 0.001}
            printed = {**decay, "clip_norm": 10.0, **alpha}
            assert own.hyper == {**hyper_parameters(method), **printed}, (method, paper)


@pytest.mark.parametrize("method", RECIPES)
def test_the_presets_of_the_paper_differ_in_where_decay_acts(method):
    behind, before = (
        Setting.named("full", preset=preset, seeds=(0,), data_dir="data").experiment("cifar100", method).resolved()
        for preset in ("paper", "paper-l2")
    )
    if method in ("localadam", "fedlada", "fedlada_sam"):
        assert (behind.hyper["decoupled"], before.hyper["decoupled"]) == (True, False)
        behind = replace(behind, hyper={**behind.hyper, "decoupled": False})
    assert behind == before


def test_some_of_the_data_sets_alone():
    """One that stands for another is run with its own settings; the others are those of a whole reproduction."""

    def requests(target, *datasets):
        own = Setting.named("full", preset="paper", seeds=(0,), data_dir="data", chosen_datasets=datasets)
        return [one.experiment for one in TARGETS[target].requests(own)]

    assert requests("T6", "cifar100") == [one for one in requests("T6") if one.dataset == "cifar100"]
    assert [one.dataset for one in requests("T6", "tinyimagenet", "cifar10")] == ["cifar10"] * 7 + ["tinyimagenet"] * 7
    assert {(one.dataset, one.local_epochs) for one in requests("T4", "cifar10")} == {("cifar10", 5)}
    assert requests("T8", "cifar100") == requests("T6", "cifar100")
    place = Setting.named("full", preset="paper", seeds=(0,), data_dir="data", chosen_datasets=("cifar100",))
    assert stands_for(place, "cifar10") == "CIFAR-100 in the place of CIFAR-10"
    assert place.values("cifar10", "fedlada").hyper["alpha"] == 0.05


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.methods])
def test_some_of_the_methods_alone(name, smoke):
    _, outcomes = smoke
    own = setting(chosen_methods=("fedadam", "fedprox"))
    shown = TARGETS[name].show(own, group(outcomes[name]))
    labels = {row[0] for table in shown.tables for row in table.rows}
    assert "FedAdam" in labels
    assert labels <= {"FedAdam", "FedProx"}
    wanted = {one.experiment.method for one in TARGETS[name].requests(own)}
    assert wanted == {"fedadam", "fedprox"} & set(TARGETS[name].methods)


def test_what_was_never_measured_was_not_missed(smoke):
    _, outcomes = smoke

    def first_row(names):
        done = [
            replace(one, history=History([{name: row[name] for name in names if name in row} for row in one.history]))
            for one in outcomes["T1"]
        ]
        return TARGETS["T1"].show(setting(), group(done)).tables[0].rows[0]

    assert first_row(("round", "test_accuracy"))[2] == "-"
    assert first_row(("round", "test_accuracy", "full_train_accuracy"))[2] != "-"
    unmeasured = [
        replace(one, history=History([{**row, "full_train_accuracy": None} for row in one.history]))
        for one in outcomes["T5"]
    ]
    rows_of_t5 = TARGETS["T5"].show(setting(), group(unmeasured)).tables[0].rows
    assert {row[4] for row in rows_of_t5} == {"-"}


def test_nothing_is_run_where_only_what_is_there_is_asked_for(tmp_path, command):
    asked = ["reproduce", "F1", "--scale", "smoke", "--device", "cuda", "--only-show", "--out", tmp_path / "new"]
    said = command(*asked)
    assert "unfinished" in said.out
    assert "3 of 3 runs are not finished: without --only-show they are run" in said.err
    assert (tmp_path / "new" / "report.html").exists()
    assert not (tmp_path / "new" / "runs").exists()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_has_values_everywhere(preset):
    for scale in ("full", "quick", "smoke"):
        for paper in published.DATASETS:
            for method in RECIPES:
                one = Setting(scale=scale_of(scale, "data")[0], preset=preset, seeds=(0,), data_dir="data")
                run = one.experiment(paper, method)
                values = values_of(preset, paper, one.dataset(paper), method)
                assert (run.lr, dict(run.hyper)) == (values.lr, {**hyper_parameters(method), **values.hyper})


def test_shards_merged_are_the_whole(smoke, tmp_path):
    whole, _ = smoke
    requests = TARGETS["F1"].requests(setting())
    for number in (1, 2):
        share = carry_out(
            requests, RunStore(tmp_path / f"{number}" / "runs"), Work(jobs=1, quiet=True, shard=Shard(number, 2))
        )
        assert 0 < sum(outcome.status == "done" for outcome in share) < len(requests)
    merged = RunStore(tmp_path / "merged")
    assert len(merged.adopt([tmp_path / "1", tmp_path / "2"]).taken) == len(requests)
    assert merged.adopt([tmp_path / "1"]).taken == set()  # what is there already is not copied again
    for request in requests:
        assert merged.outcome(request).status == "done"
        assert rows(merged.path(request))[:2] == rows(whole.path(request))[:2]
    with pytest.raises(ValueError, match="holds no runs"):
        merged.adopt([tmp_path])


def test_runs_of_a_gpu_are_shown_where_there_is_none(smoke, tmp_path, command):
    whole, _ = smoke
    here, there = TARGETS["F1"].requests(setting()), TARGETS["F1"].requests(setting(device="cuda"))
    for own, request in zip(here, there, strict=True):
        shutil.copytree(whole.path(own), tmp_path / "gpu" / "runs" / digest(request.experiment))
    assert {outcome.status for outcome in carry_out(there, RunStore(tmp_path / "gpu" / "runs"), HERE)} == {"done"}
    if torch.cuda.is_available():
        return
    asked = ["reproduce", "F1", "--scale", "smoke", "--device", "cuda", "--out", tmp_path / "new"]
    refused = command(*asked, code=2).err
    assert "device 'cuda' cannot be used here" in refused
    assert "3 runs not there yet cannot do without" in refused
    assert not (tmp_path / "new").exists()
    assert (
        "in " + str(tmp_path / "gpu") + " is needed here"
        in command(
            "reproduce",
            "F1",
            *CPU,
            "--seeds",
            "1",
            "--merge",
            tmp_path / "gpu",
            "--out",
            tmp_path / "new",
            "--shard",
            "9/9",
        ).err
    )  # three runs have nine shares, of which the last is empty


def test_the_command_writes_everything_and_runs_nothing_twice(smoke, tmp_path, command):
    whole, _ = smoke
    out = tmp_path / "t8"
    done = command("reproduce", "t8", "--scale", "smoke", "--device", "cpu", "--merge", whole.folder, "--out", out)
    assert "7 runs, 7 of them done already" in done.err
    assert "T8: cost of a round on digits in the place of CIFAR-10" in done.out
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "table.md", "table.csv", "table.tex", "tables.json", "figure-1.png", "figure-1.pdf"} <= names
    table = csv.reader(io.StringIO((out / "table.csv").read_text().split("\n\n")[0]))
    assert ["FedLADA", "2 Nd", "3", "2"] in [row[:4] for row in table]
    text = (out / "table.md").read_text()
    assert "never printed by the paper" in text
    assert "FedProx's mu is 0.1" in text
    both = r"\| FedProx \| lr 0.1, .*mu 0.1\\\* \| lr 0.08, mu 0.6, server_lr 1.2 \|"
    assert re.search(both, text)  # both presets are shown
    assert r"\toprule" in (out / "table.tex").read_text()
    page = (out / "report.html").read_text()
    assert "FedLADA on digits" in page
    assert (out / "command.txt").read_text().startswith("fedlada reproduce T8 --scale smoke --preset paper")
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("metrics.jsonl")}
    again = json.loads(command("reproduce", "T8", "--scale", "smoke", "--device", "cpu", "--json", "--out", out).out)
    assert again["complete"] is True
    assert [table["title"][:8] for table in again["targets"]["T8"]][:2] == ["T8: cost", "T8: cost"]
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("metrics.jsonl")} == before


def test_in_codes_the_bytes_of_a_table_are_those_of_the_codes(smoke, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole, _ = smoke
    two = ["reproduce", "T8", *CPU, "--methods", "fedavg,fedlada", "--jobs", 1]
    plain = json.loads(command(*two, "--merge", whole.folder, "--json").out)
    lean = json.loads(command(*two, "--messages", "lean", "--merge", whole.folder, "--json").out)
    assert Path(plain["folder"]) == Path("runs/reproduce/T8-smoke-paper-fedavg-fedlada")
    assert Path(lean["folder"]) == Path("runs/reproduce/T8-smoke-paper-fedavg-fedlada-lean")
    nine = reproduce.make_context("reproduce", ["T1,T2,T3,T4,T5,T6,T7,T8,F1", *CPU]).params  # not drawn: it takes long
    assert _folder_name(nine["targets"], nine).startswith("T1-T2-T3")
    short = [*two, "--seeds", "0,1", "--rounds", 1, "--smooth", 2, "--only-show", "--json"]
    folder = json.loads(command(*short).out)["folder"]
    assert Path(folder) == Path("runs/reproduce/T8-smoke-paper-fedavg-fedlada-seeds-0-1-rounds-1-smooth-2")
    assert "--messages lean" in (Path(lean["folder"]) / "command.txt").read_text()
    notes = (Path(lean["folder"]) / "table.md").read_text()
    assert "messages in params=int8:direction=int4:v=log8+every5:delta=int4" in notes
    (chart,) = json.loads((Path(lean["folder"]) / "charts.json").read_text())
    assert chart["note"] == "Seed 0. Messages in lean."
    said = ["Messages in lean." in table["notes"] for one in (plain, lean) for table in one["targets"]["T8"]]
    assert said == [False] * 4 + [True] * 3 + [False]  # all but the table of hyperparameters
    by_code = [{row[0]: float(row[-1]) for row in one["targets"]["T8"][0]["rows"]} for one in (plain, lean)]
    assert by_code[0]["FedLADA"] == pytest.approx(2.5 * by_code[0]["FedAvg"], rel=0.01)
    assert by_code[1]["FedAvg"] < 0.25 * by_code[0]["FedAvg"]
    assert by_code[1]["FedLADA"] < 0.25 * by_code[0]["FedLADA"]


def page_of(path):
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_a_page_made_again_is_the_same_page(smoke, tmp_path, command):
    """Runs that lie elsewhere, several targets, a run that stopped early, notes: `report` finds them all."""
    whole, _ = smoke
    out = tmp_path / "moved" / "both"
    command("reproduce", "T8,F8", *CPU, "--cache", whole.folder, "--out", out, "--quiet")
    first = page_of(out / "report.html")
    assert first["notes"]
    assert len(first["runs"]) == 7
    command("report", out)
    again = page_of(out / "report.html")
    for name in ("title", "tables", "charts", "notes", "command"):
        assert again[name] == first[name], name
    assert [run["summary"] for run in again["runs"]] == [run["summary"] for run in first["runs"]]
    assert all(run["summary"]["done"] == run["summary"]["planned"] for run in again["runs"])
    assert [run["group"] for run in again["runs"]] == [run["group"] for run in first["runs"]]
    command("report", out / "F8")  # no runs, but charts
    assert page_of(out / "F8" / "report.html")["charts"]
    live = json.loads(LiveReport(out, "live").index().content)
    assert (len(live["runs"]), live["notes"], len(live["tables"])) == (7, first["notes"], len(first["tables"]))
    listing = json.loads((out / "runs.json").read_text())
    listing["runs"].append({**listing["runs"][0], "folder": "gone"})
    (out / "runs.json").write_text(json.dumps(listing))
    command("report", out)
    assert "1 of the 8 runs of T8, F8 of the paper have not begun" in page_of(out / "report.html")["notes"][-1]
    (out / "runs.json").write_text("{}")
    assert "runs.json cannot be read" in command("report", out, code=2).err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "T9"], "'t9' is not known; it is one of T1, T2"),
        (["reproduce", "T6", "--scale", "larg"], "'larg' is not known; it is one of smoke, quick, full"),
        (["reproduce", "T6", "--scale", "smoke", "--shard", "3/2"], "shard must be one of 1/2 to 2/2, got 3/2"),
        (["reproduce", "theory", "--scale", "smoke", "--shard", "1/2"], "--shard and --only-show out, or theory"),
        (["reproduce", "theory", "--scale", "smoke", "--only-show"], "--shard and --only-show out, or theory"),
        (["reproduce", "T6,theory", "--scale", "smoke", "--budget", "5"], "--shard and --only-show out, or theory"),
        (["reproduce", "T6", "--scale", "smoke", "--budget", "0"], "budget must be positive, got 0"),
        (["reproduce", "T6", "--scale", "full", "--rounds", "7"], "rounds must be a multiple of 5"),
        (["reproduce", "T6", "--datasets", "cifar100", "--scale", "smoke"], "the smoke scale has digits alone"),
        (["reproduce", "T6", "--datasets", "cifr10"], "'cifr10' is not known; did you mean 'cifar10'"),
        (["reproduce", "T6,T4", "--methods", "fedavg"], "T4 compares no methods: leave --methods out"),
        (["reproduce", "F1", "--methods", "fedcm"], "methods must have one of fedavg, fedadam, localadam here"),
        (["reproduce", "T6", "--scale", "smoke", "--messages", "leen"], "'leen' .*is neither a code"),
        (
            ["reproduce", "F8,theory", "--scale", "smoke", "--messages", "lean"],
            "F8 and theory: there are no runs, so nothing is sent",
        ),
        (["reproduce", "T6", "--scale", "full"], "there is no folder data/cifar-10-batches-py: fedlada data fetch"),
        (["reproduce", "T6", "--scale", "smoke", "--merge", "nowhere"], "nowhere is not a folder of runs"),
        (["sweep", "--set", "alfa=1"], "there is no field or hyperparameter 'alfa'; did you mean 'alpha'"),
        (["sweep", "--set", "alpha"], "--set must be written like alpha=0.05,0.1, got 'alpha'"),
        (["sweep", "--set", "alpha=x"], "--set alpha: 'x' is not a valid float"),
        (["sweep", "--set", "alpha=0.1,2"], r"alpha must be in \(0, 1\], got 2.0"),
        (["sweep", "--set", "seed=1,2"], "--set cannot vary 'seed': seeds have a flag of their own, --seeds"),
        (["sweep", "--set", "validation=0.1,0.3"], "--set cannot vary 'validation': every run has the same"),
        (["sweep", "--set", "mu=1,2"], "none of fedlada has the hyperparameter 'mu'"),
        (["sweep", "--set", "lr=1,2", "--select", "test_accuracy"], "must not be chosen on the test set"),
        (["sweep", "--set", "lr=1,2", "--validation", "0"], "validation_accuracy needs held-out data"),
        (["sweep", "--set", "lr=1,2", "--halving", "3", "--shard", "1/2"], "--halving needs the results of all runs"),
        (["sweep", "--set", "lr=1,2", "--eval-every", "3", "--rounds", "4"], "rounds must be a multiple of eval_every"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, sentence, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    errors = command(*arguments, code=2).err
    assert re.search(sentence, errors)
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists() or "nowhere" in sentence


def test_a_data_dir_that_is_not_there_is_refused(tmp_path):
    done = fedlada("reproduce", "T6", "--data-dir", tmp_path / "nowhere", "--out", tmp_path / "t6", code=2)
    assert "nowhere: give the folder of the data with --data-dir" in done.stderr
    assert not (tmp_path / "t6").exists()
