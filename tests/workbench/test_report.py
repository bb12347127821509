"""Tables, charts and the data of a page: escaped, whole, and small."""

from __future__ import annotations

import json
import math
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedlada
from fedlada.methods.combine import Extrapolated
from fedlada.methods.recipes import RECIPES
from fedlada.plots.chart import Chart, Series
from fedlada.plots.draw import plot_histories
from fedlada.runs.clients import Names
from fedlada.runs.parts import describe_method
from fedlada.training.history import History
from fedlada.workbench.cli.flags import build_experiment
from fedlada.workbench.cli.output import print_tables
from fedlada.workbench.cli.run import run as run_command_line
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.command import run_command
from fedlada.workbench.report.comparison import Comparison
from fedlada.workbench.report.curves import all_curves
from fedlada.workbench.report.listing import KnownRun
from fedlada.workbench.report.page import render, script_json, write_page
from fedlada.workbench.report.payload import kept_rounds, rows_per_run, run_payload, share_labels
from fedlada.workbench.report.records import StoredFiles, find_runs, named, read_runs, told_apart
from fedlada.workbench.report.stored import read_charts, read_tables, write_charts, write_tables
from fedlada.workbench.report.table import Table
from run_records import record, row
from tasks import blobs, small_net

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)> & {{data}} | $x_1$ \u2028"


def test_a_column_of_numbers_is_set_to_the_right_everywhere(capsys):
    table = Table("differences", ("method", "points"), (("fedavg", "+1.0"), ("fedcm", "−22.0"), ("mine", "")))
    assert [table.is_numeric(column) for column in (0, 1)] == [False, True]
    print_tables([table])
    printed = capsys.readouterr().out
    assert "│ fedavg │   +1.0 │" in printed
    assert "│ fedcm  │  −22.0 │" in printed


def test_a_table_is_escaped_in_every_form():
    table = Table(f"t {HOSTILE}", ("a_b", "c|d"), ((HOSTILE, "∞"), ("x\ny", "1.0 ± 0.2 %")), notes=("50 % of $",))
    markdown = table.to_markdown()
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [line.replace(r"\|", "").count("|") for line in lines] == [3, 3, 3, 3]
    assert "<" not in markdown
    latex = table.to_latex()
    assert r"a\_b & c|d \\" in latex
    assert r"1.0 $\pm$ 0.2 \% \\" in latex
    assert r"\$x\_1\$" in latex
    assert r"\begin{tabular}{lr}" in latex
    assert table.to_csv().count("\n") == 4  # one of them inside a quoted cell
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table


@pytest.mark.parametrize(("title", "shown"), [("Rounds", "**Rounds**."), ("A (b).", "**A (b).**"), ("", "| a |")])
def test_a_title_in_a_document_ends_in_a_full_stop(title, shown):
    assert Table(title, ("a",), (("1",),)).to_markdown().splitlines()[0] == shown


def test_tables_and_charts_are_kept_and_checked(tmp_path):
    folder = tmp_path / "whole" / "part"
    folder.mkdir(parents=True)
    assert read_tables(folder) == read_charts(folder) == []
    table = Table("t", ("a",), (("1",),))
    chart = Chart("c", "x", "y", (Series("s", (1.0, 2.0), (3.0, math.nan), (2.0, 2.0), (4.0, 4.0)),), targets=(1.0,))
    write_tables(folder, [table])
    write_charts(folder, [chart])
    assert read_tables(folder) == read_tables(tmp_path) == [table]
    (again,) = read_charts(folder)
    assert math.isnan(again.series[0].y[1])
    assert again.to_json() == chart.to_json()
    write_tables(folder.parent, [table])  # a whole that holds its parts' tables: none stands twice
    write_charts(folder.parent, [])
    assert read_tables(tmp_path) == [table]
    assert read_charts(tmp_path) == []
    for text in ("{", "{}", '[{"title": 1}]', '[{"title": "t", "columns": ["a"], "rows": [["1", "2"]]}]'):
        (folder / "tables.json").write_text(text)
        with pytest.raises(ValueError, match=r"tables\.json cannot be read"):
            read_tables(folder)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("t", ("a",), (("1", "2"),))
    with pytest.raises(ValueError, match="1 values of x and 2 of y"):
        Series("s", (1.0,), (1.0, 2.0))
    with pytest.raises(ValueError, match="a low and a high value for each point"):
        Series("s", (1.0,), (1.0,), low=(0.5,))
    with pytest.raises(ValueError, match="style must be one of"):
        Series("s", (1.0,), (1.0,), style="pie")


def test_a_page_holds_no_markup_but_its_own(tmp_path):
    path = tmp_path / "page.html"
    config = {"method": HOSTILE, HOSTILE: [math.nan, None, HOSTILE], "seed": HOSTILE}
    hostile = record(label=HOSTILE, group=HOSTILE, config=config, command=HOSTILE, folder="\udc80" + HOSTILE)
    odd = [row(1, drift=math.nan, test_accuracy=math.inf, train_loss=None, clients="x", lr=True), row(2, clients=[-1])]
    chart = Chart(HOSTILE, "x", "y", (Series(HOSTILE, (1.0,), (math.inf,)),), note=HOSTILE)
    table = Table(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    runs = [hostile, record(rows=odd, labels_per_client=None), record(rows=[])]
    write_page(path, title=HOSTILE, runs=runs, tables=[table], charts=[chart], notes=[HOSTILE], command=HOSTILE)
    text = path.read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2  # the data's and the script's own
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["runs"][0]["label"] == data["notes"][0] == HOSTILE
    assert dict(data["runs"][1]["columns"]).keys() == {"train_loss", "drift", "bytes_up", "bytes_down", "seconds", "lr"}


def test_script_json_cannot_end_its_element():
    text = script_json({"a": HOSTILE, "b": "<!--", "c": "]]>"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["a"] == HOSTILE
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json(math.nan)


def test_a_places_name_in_a_text_is_not_filled():
    assert render("{{data}} {{script}}", {"a": 1}).count('{"a":1}') == 1


def test_sums_are_over_all_rounds():
    shown = run_payload(record(6), 300)
    assert shown["x"]["round"] == [1, 2, 3, 4, 5, 6]
    assert shown["x"]["megabytes"] == [3, 6, 9, 12, 15, 18]
    assert shown["x"]["seconds"][-1] == shown["summary"]["seconds"] == 3
    assert dict(shown["columns"])["test_accuracy"] == [None, 0.02, None, 0.04, None, 0.06]
    assert shown["summary"]["rounds_to_target"] == 4
    assert shown["summary"]["best_round"] == 6
    assert shown["clients"]["drawn"] == [2, 2, 2]
    assert shown["clients"]["seen"] == [8, 12]


def test_long_runs_are_thinned_out_alike_and_short_ones_never():
    long = record(5000, every=10).rows
    kept = kept_rounds(long, 600)
    assert len(kept) <= 602
    assert {0, 4999} <= set(kept)
    assert {9, 19, 4989} <= set(kept)  # all 500 evaluations are there
    assert kept == kept_rounds(record(5000, every=10, seed=1).rows, 600)
    shorter, longer = (set(kept_rounds(record(length, every=1).rows, 600)) for length in (1100, 1700))
    assert len(shorter & longer) >= 275  # a run that is ahead has every second of them
    every_round = kept_rounds(record(5000, every=1).rows, 600)
    assert 300 <= len(every_round) <= 602
    assert kept_rounds(long[:300], rows_per_run(10_000)) == list(range(300))


@pytest.mark.slow
def test_thirty_runs_of_1500_rounds_are_a_page_under_five_megabytes(tmp_path):
    values = {"test_loss": 1 / 3, "test_accuracy": 2 / 3, "full_train_loss": 1 / 7, "drift": 1 / 9, "lr": 1 / 11}
    rows = [row(n, **values, clients=list(range(n % 90, n % 90 + 10))) for n in range(1, 1501)]
    labels = [[7] * 100 for _ in range(100)]
    runs = [record(group=f"m{n // 3}", seed=n % 3, rows=rows, labels_per_client=labels) for n in range(30)]
    write_page(tmp_path / "page.html", title="large", runs=runs)
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    shown = [run_payload(run, 300) for run in runs]
    assert len(share_labels(shown)) == 1


def test_many_clients_share_bars():
    shown = run_payload(record(2, rows=[row(1, clients=[0, 7, 4999])], labels_per_client=[[1, 2]] * 5000), 300)
    assert shown["clients"]["width"] == 5
    assert len(shown["clients"]["drawn"]) == len(shown["clients"]["labels"]) == 1000
    assert shown["clients"]["drawn"][:2] == [1, 1]
    assert shown["clients"]["labels"][0] == [5, 10]


def test_groups_are_named_by_what_tells_them_apart():
    def config(method, seed=0, dataset="digits", lr=0.1, **hyper):
        return {"method": method, "seed": seed, "dataset": dataset, "lr": lr, "hyper": hyper, "rounds": seed + 1}

    def group_names(configs):
        return told_apart([one["method"] for one in configs], configs)

    assert group_names([config("fedavg"), config("fedavg", 1), config("fedlada", alpha=0.1)]) == [
        "fedavg",
        "fedavg",
        "fedlada",
    ]
    assert group_names([config("fedlada", alpha=0.1), config("fedlada", alpha=0.2), config("fedcm", alpha=0.2)]) == [
        "fedlada, alpha 0.1",
        "fedlada, alpha 0.2",
        "fedcm",
    ]
    stored = [Experiment(method="fedlada", hyper={"power": power}).to_json() for power in (0.5, 0.25)]
    assert group_names(stored) == ["fedlada, power 0.5", "fedlada, power 0.25"]  # of which the first is not stored
    # With the data set many fields change: naming that one is enough.
    assert group_names([config("fedavg"), config("fedavg", 1, "mnist", 0.2)]) == ["fedavg, digits", "fedavg, mnist"]


def test_runs_from_python_are_named_as_their_author_says():
    ours = {"method": "fedlada", "not_trained": "ab" * 32, "cohorts": "Everyone()"}
    stored = [
        StoredFiles(KnownRun(Path(f"run{n}")), one, [row(1)], None)
        for n, one in enumerate([{**ours, "name": "wide"}, {**ours, "name": "narrow", "not_trained": "cd" * 32}])
    ]
    assert [one.group for one in named(stored)] == ["wide", "narrow"]
    liars = {"method": "fedavg", "combiner": "Krum(num_bad=2)", "attack": "SignFlip(scale=1.0, share=0.3)"}
    robust = named(
        [StoredFiles(KnownRun(Path("r")), {**liars, **more}, [row(1)], None) for more in ({}, {"name": "x"})]
    )
    assert [one.group for one in robust] == ["fedavg, combiner Krum, attack SignFlip", "x"]
    own = [describe_method(recipe()) for recipe in RECIPES.values()]
    own.append(describe_method(RECIPES["fedavg"]().with_combiner(Extrapolated())))
    python = named([StoredFiles(KnownRun(Path(f"p{n}")), one, [row(1)], None) for n, one in enumerate(own)])
    assert [one.group for one in python] == [*RECIPES, "fedavg, combiner Extrapolated"]
    # Without a name a digest is cut, and a data set that has no name is one's own.
    apart = told_apart(["fedlada"] * 2, [{"dataset": "digits"}, ours])
    assert apart == ["fedlada, digits", "fedlada, own data"]
    assert told_apart(["a"] * 2, [ours, {**ours, "not_trained": "cd" * 32}])[0] == "a, not trained abababab"
    assert run_payload(named(stored)[0], 300)["dataset"] == "own data"


def test_names_of_clients_and_classes_are_on_the_page():
    names = Names(clients=("anna", "bob", "zoe"), classes=("cat", "dog"))
    shown = run_payload(record(names=names), 300)["clients"]
    assert (shown["names"], shown["classes"]) == (["anna", "bob", "zoe"], ["cat", "dog"])
    assert "names" not in run_payload(record(), 300)["clients"]


@pytest.mark.parametrize(
    "experiment",
    [
        {},
        {"method": "fedcm", "hyper": {"alpha": 0.25, "clip_norm": None}, "local_steps": 3, "lr": 0.03, "seed": 4},
        {"method": "fedlada", "hyper": {"maximum": False, "v_start": "server"}, "refill": True, "target": 0.9},
        {"dataset": "docstrings", "partition": "iid", "rounds": 7, "local_epochs": 3, "stragglers": 0.5},
        {"dataset": "cifar10", "data_dir": "some where/it's", "eval_train_every": 5, "cohorts": "bernoulli"},
        {"dataset": "cifar10", "method": "fedlada", "hyper": {"power": 0.5}},  # the recipe's, which is not stored
    ],
)
def test_the_command_makes_the_same_configuration(experiment):
    config = Experiment(**experiment).to_json()
    words = shlex.split(run_command(config, Path("r")))
    assert words[:2] == ["fedlada", "run"]
    flags = run_command_line.make_context("run", words[2:]).params
    for name in ("out", "quiet", "as_json"):
        del flags[name]
    assert build_experiment(flags).to_json() == config


def test_a_command_never_imports_the_runs_model(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = {**Experiment().to_json(), "model": "trap:net"}
    assert "--model trap:net" in run_command(config, tmp_path)
    both = run_command(Experiment(local_epochs=3, local_steps=2).to_json(), tmp_path)
    assert "--local-steps 2" in both
    assert "--local-epochs" not in both  # which would be refused beside it
    assert run_command({**config, "method": "$(rm)"}, Path("a b")) == "fedlada run --config 'a b/config.json'"
    assert run_command({"method": "fedavg", "local": []}, tmp_path) == ""


def test_runs_are_found_at_any_depth_and_others_are_not(tmp_path):
    for name in ("b/fedavg-seed1", "b/deep/er/fedavg-seed0", "a"):
        (tmp_path / name).mkdir(parents=True)
        seed = 2 if name == "a" else int(name[-1])
        (tmp_path / name / "config.json").write_text(json.dumps({"method": "fedavg", "seed": seed}))
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row(1)) + "\n" + '{"round": 2, "lr"')
    (tmp_path / "a" / "inside").mkdir()
    (tmp_path / "a" / "inside" / "config.json").write_text('{"method": "mine"}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architecture": "bert"}')
    found = [run.folder.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)]
    assert found == ["a", "b/deep/er/fedavg-seed0", "b/fedavg-seed1"]
    runs = read_runs([tmp_path / "a", tmp_path])
    assert {run.label for run in runs} == {"fedavg, seed 0", "fedavg, seed 1", "fedavg, seed 2"}
    assert all(len(run.rows) == 1 for run in runs)  # half a line is not a round yet
    with pytest.raises(ValueError, match="holds no run"):
        read_runs([tmp_path / "other"])
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        read_runs([tmp_path])


def test_a_failed_run_has_no_final_accuracy_and_is_named():
    histories = [History([row(n, test_accuracy=value) for n in (1, 2)]) for value in (0.5, 0.7, 0.1)]
    comparison = Comparison({"fedavg": histories}, 0.6, seeds=(4, 5, 6), failures={("fedavg", 6): "it diverged, badly"})
    table = comparison.to_table()
    assert dict(zip(table.columns, table.rows[0], strict=True))["final accuracy"] == "60.00 ± 14.14 % (2 of 3 seeds)"
    assert dict(zip(table.columns, table.rows[0], strict=True))["best accuracy"] == "60.00 ± 14.14 % (2 of 3 seeds)"
    assert table.notes[-1] == "fedavg, seed 6 failed: it diverged, badly."
    lines = comparison.to_csv().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["4", "5", "6"]
    assert lines[-1] == 'fedavg,6,0.6,,,,,"it diverged, badly"'


def of_a_regression(*losses, **config):
    rows = [{**row(n, test_loss=loss), "test_accuracy": None} for n, loss in enumerate(losses, start=1)]
    return record(rows=rows, config={"method": "fedavg", "dataset": "npz", "seed": 0, **config})


def test_a_comparison_of_losses_is_won_by_the_lower():
    histories = {name: [History(of_a_regression(*own).rows)] for name, own in RIVALS.items()}
    comparison = Comparison(histories, 0.5, metric="test_loss")
    assert [comparison.rounds_to_target(name) for name in RIVALS] == [[3], [2]]
    assert (comparison.speed_up("mine"), comparison.best_accuracies("mine")) == (1.5, [0.25])
    table = comparison.to_table()
    assert table.title == "Test loss target 0.5, one seed"
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert (cells["final test loss"], cells["best test loss"]) == ("0.75", "0.25")
    assert comparison.to_csv().splitlines()[0].endswith("bytes_to_target,final_test_loss,best_test_loss,failure")


def test_a_run_without_the_metric_does_not_reach_the_target():
    histories = {name: [History(of_a_regression(*own).rows)] for name, own in RIVALS.items()}
    histories["other"] = [History([row(1)])]
    comparison = Comparison(histories, 0.5, metric="test_loss")
    assert comparison.rounds_to_target("other") == comparison.bytes_to_target("other") == [None]


def test_speed_ups_are_relative_to_a_method_that_is_compared():
    (first, slow), (second, quick) = RIVALS.items()
    runs = {"grid a": [History(of_a_regression(*slow).rows)], "grid b": [History(of_a_regression(*quick).rows)]}
    table = Comparison(runs, 0.5, metric="test_loss").to_table()
    assert "relative to grid a." in table.notes[0]
    assert [dict(zip(table.columns, row, strict=True))["speed-up"] for row in table.rows] == ["1.00x", "1.50x"]
    with_fedavg = Comparison({second: runs["grid b"], first: runs["grid a"]}, 0.5, metric="test_loss")
    assert with_fedavg.baseline == first == "fedavg"
    with pytest.raises(ValueError, match="the baseline 'fedcm' is not compared; there are grid a, grid b"):
        Comparison(runs, 0.5, baseline="fedcm")


def test_a_comparison_may_have_no_target():
    histories = {name: [History(of_a_regression(*own).rows)] for name, own in RIVALS.items()}
    comparison = Comparison(histories, None, metric="test_loss")
    assert comparison.rounds_to_target("mine") == [None]
    table = comparison.to_table()
    assert table.columns == ("method", "final test loss", "best test loss", "MB per round", "seconds per round")
    assert table.title == "Test loss, one seed"
    assert comparison.to_csv().splitlines()[1].startswith("fedavg,0,,,,0.5,0.5,")


@pytest.mark.parametrize("whose", ["validation", "client"])
def test_a_bare_target_is_of_the_accuracy_that_was_measured(whose):
    metric = f"{whose}_accuracy"
    rows = [row(n, **{metric: n / 10, f"{whose}_loss": 1 / n}) for n in range(1, 4)]
    comparison = Comparison({"fedavg": [History(rows)]}, 0.2)
    assert comparison.compared == metric
    assert comparison.rounds_to_target("fedavg") == [History(rows).rounds_to(0.2)] == [2]
    table = comparison.to_table()
    assert table.title.startswith(f"{whose.capitalize()} accuracy target 0.2, ")
    assert dict(zip(table.columns, table.rows[0], strict=True))[f"final {whose} accuracy"] == "30.00 %"
    run = record(rows=rows, config={"method": "fedavg", "dataset": "digits", "target": 0.2})
    shown = run_payload(run, 300)["summary"]
    assert (shown["target_metric"], shown["rounds_to_target"]) == (metric, 2)
    charts = all_curves([run])
    assert charts[f"{metric}-by-rounds"].targets == (0.2,)
    assert charts[f"{whose}_loss-by-rounds"].targets == ()


def test_without_a_target_the_metric_that_judges_is_compared():
    histories = {name: [History(of_a_regression(*own).rows)] for name, own in RIVALS.items()}
    assert Comparison(histories, None).compared == "test_loss"
    assert Comparison(histories, 0.5).rounds_to_target("mine") == [None]  # a bare target is no loss
    assert Comparison({"fedavg": [History()]}, 0.5).compared == "test_accuracy"


def test_a_metric_that_no_run_has_is_refused():
    runs = {"fedavg": [History(record(4).rows)]}
    with pytest.raises(ValueError, match=r"no history has a column 'test_acc'; they have .*test_accuracy, train_loss"):
        Comparison(runs, 0.1, metric="test_acc")
    with pytest.raises(ValueError, match="no history has a column 'test_accurracy'"):
        plot_histories(runs, metric="test_accurracy")
    assert Comparison({"fedavg": [History()]}, 0.1, metric="test_loss").rounds_to_target("fedavg") == [None]
    failed = {("fedavg", 0): "it failed before its first evaluation"}
    table = Comparison({"fedavg": [History([row(1)])]}, 0.1, failures=failed, metric="test_loss").to_table()
    assert table.rows[0][1] == "∞"


def test_histories_are_given_alone_in_lists_or_as_results():
    history = History(record(4).rows)
    plain = Comparison({"fedavg": [history]}, 0.03).to_table()
    for runs in (history, [history.rows], (history,), SimpleNamespace(history=history)):
        assert Comparison({"fedavg": runs}, 0.03).to_table() == plain
        assert len(plot_histories({"fedavg": runs}).axes[0].lines) == 1
    result = fedlada.simulate(small_net(3), blobs(), test=blobs(), rounds=1, device="cpu")
    assert Comparison({"fedlada": [result, result.history]}, 0.0).rounds_to_target("fedlada") == [1, 1]
    assert Comparison({"fedavg": [], "mine": history}, 0.03).rounds_to_target("fedavg") == []
    said = r"the runs of 'mine' must be histories or results, a list with one for each seed, got "
    for wrong, kind in ((3, "int"), ("text", "str"), ([history, 0.5], "a list with float"), ({0: history}, "dict")):
        for show in (plot_histories, partial(Comparison, target=0.5)):
            with pytest.raises(ValueError, match=f"{said}{kind}$"):
                show({"fedavg": history, "mine": wrong})
    for show in (plot_histories, partial(Comparison, target=0.5)):
        with pytest.raises(ValueError, match=r"histories must be a dict such as {'fedavg': \[history\]}, got list"):
            show([history])


def test_a_title_tells_that_methods_have_different_numbers_of_seeds():
    one = History(record(4).rows)
    assert Comparison({"fedavg": [one] * 3, "mine": [one] * 2}, 0.5).to_table().title.endswith(" over 2 to 3 seeds")
    assert Comparison({"fedavg": [one] * 3, "mine": [one] * 3}, 0.5).to_table().title.endswith(" over 3 seeds")


RIVALS = {"fedavg": (2.0, 1.0, 0.5), "mine": (1.0, 0.25, 0.75)}


def test_a_page_has_the_losses_of_a_run_without_accuracy():
    shown = run_payload(of_a_regression(2.0, 0.25, 0.5, target="test_loss:0.4"), 300)["summary"]
    assert (shown["judge"], shown["last"], shown["best"], shown["best_round"]) == ("test_loss", 0.5, 0.25, 2)
    assert (shown["target"], shown["target_metric"], shown["rounds_to_target"]) == (0.4, "test_loss", 2)
    assert run_payload(of_a_regression(1.0, target="nonsense"), 300)["summary"]["target"] is None


def test_a_target_is_drawn_on_its_own_metric():
    charts = all_curves([of_a_regression(2.0, 0.25, target="test_loss:0.4"), record(4)])
    assert charts["npz-test_loss-by-rounds"].targets == (0.4,)
    assert charts["npz-train_loss-by-rounds"].targets == ()


def test_what_is_held_out_is_drawn_and_kept():
    rows = [row(n, **({"validation_accuracy": 0.5} if n % 7 == 0 else {})) for n in range(1, 701)]
    assert "validation_accuracy-by-rounds" in all_curves([record(rows=rows)])
    assert {n - 1 for n in range(7, 701, 7)} <= set(kept_rounds(rows, 300))


@pytest.mark.parametrize("data", ["validation", "client", "nodes"])
def test_what_is_held_out_is_not_shown_as_the_test_set(data):
    rows = [row(n, **{f"{data}_accuracy": n / 8 if n < 4 else 0.25, f"{data}_loss": 0.7}) for n in range(1, 5)]
    shown = run_payload(record(rows=rows), 300)["summary"]
    assert (shown["judge"], shown["last"], shown["best"]) == (f"{data}_accuracy", 0.25, 0.375)
    assert shown["best_round"] == 3
    shown = run_payload(record(rows=[row(1)]), 300)["summary"]
    assert (shown["last"], shown["best"], shown["best_round"]) == (None, None, None)
