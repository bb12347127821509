"""The pages on results have the tables and pictures of the archives, and nothing typed by hand."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fedlada.training.history import History

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_tables_and_pictures_are_what_the_archives_give(module):
    pages = module("results_pages")
    assert pages.differing_tables() == []
    assert pages.differing_pictures() == []


def test_the_finals_are_those_of_their_archive(module):
    """The search and the readings have tests of their own."""
    finals = module("finals")
    assert all(kept.holds(finals.tables(kept.archive, dataset)) for dataset, kept in finals.KEPT.items())


def test_every_table_of_these_pages_stands_in_a_region(module):
    pages = module("results_pages")
    searched = {"protocol.md", "search.md", "search-cifar10.md", "finals.md", "finals-cifar10.md", "shakespeare.md"}
    by_other_scripts = {*searched, "readings.md", "attacks.md", "privacy.md"}
    for page in pages.PAGES:
        if page.name not in by_other_scripts:
            outside = pages.REGION.sub("", page.read_text(encoding="utf-8"))
            assert not re.search(r"\| [+->]?\s?\d[\d.]*( ± [\d.]+)? \|", outside), page.name


def test_a_number_changed_by_hand_is_put_right(module):
    pages = module("results_pages")
    text = "Before.\n\n<!-- made: counts -->\n\n{}\n<!-- end -->\nAfter.\n"
    right = text.format(pages.TABLES["counts"]().to_markdown())
    assert pages.filled(right) == right
    assert pages.filled(text.format("| T1 | 43 |\n")) == right


def test_a_picture_knows_the_data_it_was_drawn_from(module, tmp_path):
    pytest.importorskip("matplotlib")
    pictures = module("result_pictures")
    chart, series = pictures.Chart, pictures.Series
    one, other = (
        pictures.Picture("a", "about", (chart("", "x", "y", (series("FedLADA", (0.0, 1.0), (0.0, end)),)),))
        for end in (1.0, 1.1)
    )
    pictures.draw(one, tmp_path / "a.svg")
    assert pictures.digest_in(tmp_path / "a.svg") == one.digest != other.digest
    assert pictures.COLOURS["FedLADA"] in (tmp_path / "a.svg").read_text()
    assert pictures.digest_in(tmp_path / "b.svg") == ""


def test_a_cell_says_how_many_arrived_and_where_the_others_ended(module):
    cell = module("archived_runs").cell
    assert cell([100, 110], [600, 600]) == "105 ± 7"
    assert cell([100, None, None], [600, 300, 800]) == "> 300 (1 of 3)"
    assert (cell([None], [450]), cell([155], [450]), cell([], [])) == ("> 450", "155", "-")


def run_to(*evaluations):
    rounds = range(1, 5 * len(evaluations) + 1)
    return History(
        [{"round": one, **({"test_accuracy": evaluations[one // 5 - 1]} if one % 5 == 0 else {})} for one in rounds]
    )


def test_gradients_bytes_and_seconds_are_those_until_a_target_is_reached(module):
    """By the mean of five evaluations: 0.9 from round 25 on, of which each took two gradients a step."""
    finals = module("finals")
    history = run_to(*[0.9] * 6)
    for row in history:
        row |= {"bytes_up": 3e9, "bytes_down": 1e9}
    shape = finals.Shape(30, (10,), (0.9, 0.95), steps=2000)
    step = finals.speed_of_methods()["fedsam"]["step_ms"]
    fedsam, fedprox = finals.costs({"fedsam": [history], "fedprox": [history]}, shape).rows
    assert fedsam == ("FedSAM", "2", "50", "100", f"{50 * step:.0f}", "0 of 1", "0 of 1", "0 of 1")
    assert fedprox[2:5] == ("25", "100", "not measured")


def test_finals_with_the_papers_values_are_shown_beside_the_winners(module, monkeypatch):
    finals = module("finals")
    rows = [{"round": round, **({} if round % 5 else {"test_accuracy": round / 1000})} for round in range(1, 601)]
    ran = {"fedcm"}  # whose winner has the paper's values
    monkeypatch.setattr(
        finals,
        "in_archive",
        lambda *_: lambda method, seed: finals.History(rows if method in ran and seed < 12 else []),
    )
    assert finals.with_printed_values(Path("archive"), "cifar100") == []
    ran.add("fedlada")
    first, second = finals.with_printed_values(Path("archive"), "cifar100")
    assert [row[0] for row in first.rows] == ["FedCM", "FedLADA"]
    assert (first.rows[1][2], first.rows[1][5]) == ("2", "59.00 ± 0.00")
    assert "lr 0.001, weight_decay 0.01" in first.rows[1][1]
    assert second.title.endswith("in points, with the paper's values")
    trials = finals.printed()
    assert finals.key(trials["fedcm"], 10, 600) == "finals/cifar100/fedcm/10"
    assert finals.key(trials["fedlada"], 10, 600) == "finals/cifar100/fedlada/10/printed"


def test_the_finals_count_runs_to_the_last_round_alone(module):
    finals = module("finals")
    whole, shorter = run_to(*[0.5] * 6), run_to(*[0.5] * 5)
    shape = finals.Shape(30, (10,), (0.9,))
    assert finals.as_far_as({"fedcm": [whole, shorter], "fedavg": [shorter]}, shape) == {"fedcm": [whole]}


@pytest.mark.parametrize(
    ("paper", "runs", "ratio", "status"),
    [
        (10.0, [run_to(0.1, 0.5)] * 3, "1.00", "settled, agrees"),
        (5.0, [run_to(0.1, 0.5)] * 3, "2.00", "settled, differs"),
        (5.0, [run_to(0.1, 0.2)] * 3, "> 2.00", "settled, differs"),
        (10.0, [run_to(0.1, 0.5)], "1.00", "partly (agrees), 1 min"),
        (99.0, [run_to(0.1, 0.2)] * 3, "-", "partly, 1 min"),
        (1000.0, [], "-", "not run, 6 min"),
    ],
)
def test_the_status_of_a_cell_follows_from_seeds_and_rounds(module, paper, runs, ratio, status):
    scoreboard, reached = module("scoreboard"), module("archived_runs").reached
    made = scoreboard.speed_cell("a", "cifar100", paper, runs, lambda one: reached(one, 40.0))
    assert (made.ratio, made.status) == (ratio, status)
