"""A page's commands carried out as one campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import warm
from fedlada.paper.reproduce import reproduce

ROOT = Path(__file__).parents[2]
PAGE = """
    fedlada reproduce T7 --scale smoke --seeds 0 --rounds 1 --out {out}/T7   # a comment
fedlada reproduce T7 --scale smoke --seeds 0 --out {out}/T7-longer
fedlada reproduce T6 --scale full --datasets cifar10 --data-dir {out} --out {out}/T6
fedlada reproduce theory --scale smoke
fedlada reproduce T9 'unclosed
"""


def make_again(page, *words, code=0):
    done = warm(list(map(str, [page, *words])), program=ROOT / "benchmarks" / "make_again.py")
    assert done.returncode == code, done.stderr
    return done


def test_the_commands_of_a_page_share_their_runs(tmp_path):
    (page := tmp_path / "page.md").write_text(PAGE.format(out=tmp_path))
    words = ["--device", "cpu", "--cache", tmp_path / "runs", "--jobs", 1]
    said = make_again(page, *words, "--list").stdout.splitlines()
    left_out = [line.split()[4] for line in said if line.startswith("left out: ")]
    assert left_out == ["T6", "theory", "T9"]
    assert [line.split(":")[0] for line in said[6:]] == ["0 of 7 runs", "0 of 7 runs"]
    said = make_again(page, *words).stdout.splitlines()
    assert [line.split(":")[0] for line in said[6:]] == ["7 of 7 runs", "7 of 7 runs"]
    assert len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 7  # one for both commands
    assert "of 1 rounds" in (tmp_path / "T7" / "table.md").read_text()
    assert "of 2 rounds" in (tmp_path / "T7-longer" / "table.md").read_text()


def test_a_run_that_fails_is_said_and_the_tables_that_need_it_are_not_made(tmp_path):
    (page := tmp_path / "page.md").write_text(PAGE.format(out=tmp_path))
    words = ["--device", "cpu", "--cache", tmp_path / "runs", "--jobs", 1, "--only"]
    make_again(page, *words, "rounds 1 ")
    damaged = next((tmp_path / "runs").glob("*/config.json"))
    damaged.write_text("{")
    done = make_again(page, *words, "T7-longer", code=1)
    assert "6 of 7 runs" in done.stdout
    assert f"failed: {damaged} cannot be read" in done.stdout
    assert not (tmp_path / "T7-longer").exists()


def test_a_page_without_such_a_command_is_one_sentence(tmp_path):
    (page := tmp_path / "page.md").write_text(PAGE.format(out=tmp_path))
    assert "has no such command" in make_again(page, "--cache", tmp_path, "--only", "T3", code=2).stderr


PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "\nfedlada reproduce " in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_such_command_of_the_documentation_can_be_read(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from make_again import lines_in, words_of

    for line in lines_in(page.read_text()):
        context = reproduce.make_context("reproduce", words_of(line))
        assert context.params["targets"], line


def test_a_command_that_differs_in_a_remark_alone_counts_once(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from make_again import lines_in

    page = "fedlada reproduce T6 # the sixth\n\n  fedlada reproduce T6\nfedlada reproduce T1\n"
    assert lines_in(page) == ["fedlada reproduce T6 # the sixth", "fedlada reproduce T1"]
