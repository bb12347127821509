"""The table of combiners against attacks: its runs, that they are not made twice, and its page."""

from __future__ import annotations

import importlib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import fedlada

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def attacks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("attacks")


def test_every_case_is_another_run(attacks):
    found = [one for one in attacks.cases("fashion-mnist") if one.seed == 0]
    assert len({attacks.identity(one.experiment().to_json()) for one in found}) == len(found) == 192
    assert {one.attack for one in found if one.method == "fedcm"} == {None, *attacks.ATTACKS} - {attacks.MOMENTS}
    assert {one.attack for one in found if one.method == "fedlada"} == {None, *attacks.ATTACKS}
    assert next(one for one in found if one.attack).experiment().attack == "sign-flip:0.1:4"


@pytest.mark.slow
def test_runs_are_made_once_and_become_a_table(attacks, monkeypatch, tmp_path, capsys):
    size = attacks.SIZES["fashion-mnist"]
    small = replace(size, settings={**size.settings, "rounds": 1}, seeds=1)
    monkeypatch.setitem(attacks.SIZES, "digits", small)
    first = [attacks.Case("digits", "fedlada", "median", one, 0.3, 0) for one in (None, attacks.MOMENTS)]
    monkeypatch.setattr(attacks, "cases", lambda _: iter(first))
    given = Namespace(
        dataset="digits", data_dir=None, out=tmp_path / "runs", only=None, minutes=None, jobs=1, device="cpu",
        trial=True, archive=None,
    )  # fmt: skip
    for expected in ("2 of 2 runs to make", "0 of 2 runs to make"):
        attacks.run(given)
        assert expected in capsys.readouterr().out
    fedlada("pack", tmp_path / "runs", "--out", tmp_path / "archive.json")
    accuracy = attacks.in_archive(tmp_path / "archive.json")
    assert all(0 < accuracy(one) < 1 for one in first)
    assert accuracy(replace(first[0], seed=1)) is None
    monkeypatch.setitem(attacks.SIZES, "digits", replace(small, settings={**small.settings, "batch_size": 8}))
    assert accuracy(first[0]) is None  # another run than the archive's
    monkeypatch.setitem(attacks.SIZES, "digits", small)
    table = attacks.of_method("digits", "fedlada", 0.3, accuracy).to_markdown()
    assert "**FedLADA, 3 of 10 clients malicious**." in table
    assert f"{100 * accuracy(first[1]):.1f}" in table


def test_the_page_is_made_from_its_archives(attacks):
    page = (ROOT / "docs" / "results" / "attacks.md").read_text(encoding="utf-8")
    begin, end = attacks.MARKS
    assert page.partition(begin)[2].partition(end)[0].strip() == attacks.page_text().strip()
