"""Lines of `metrics.jsonl` that are JSON and no round: named by file and line, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from fedlada.workbench.report.records import read_runs
from fedlada.workbench.report.watch import LiveReport

FLAGS = ["--model", "mlp", "--num-clients", 8, "--cohort-size", 2, "--local-steps", 2, "--device", "cpu"]
RUN = ["run", "--method", "fedavg", *FLAGS, "--checkpoint-every", 1, "--rounds", 3, "--quiet"]
NUMBER = "which must be a number"


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    from click.testing import CliRunner

    from fedlada.workbench.cli import fedlada

    folder = tmp_path_factory.mktemp("metrics") / "fedavg-seed0"
    done = CliRunner().invoke(fedlada, [*map(str, RUN), "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def changed(folder, change):
    """The run with its second row changed; all its files."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = json.dumps(change(json.loads(lines[1])))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: {"round": 2}, "it has no bytes_up"),
        (lambda row: {name: row[name] for name in row if name != "clients"}, "it has no clients"),
        (lambda row: {**row, "test_accuracy": "high"}, f"test_accuracy is 'high', {NUMBER}"),
        (lambda row: {**row, "bytes_up": None}, f"bytes_up is None, {NUMBER}"),
        (lambda row: {**row, "bytes_down": 10**400}, f"bytes_down is 1000.*, {NUMBER}"),
        (lambda row: {**row, "seconds": "long"}, f"seconds is 'long', {NUMBER}"),
        (lambda row: {**row, "train_loss": [1.0]}, rf"train_loss is \[1.0\], {NUMBER}"),
        (lambda row: {**row, "lost": "nobody"}, "lost is 'nobody', which must be a list of clients"),
        (lambda row: {**row, "clients": [[]]}, r"clients is \[\[\]\], which must be a list of clients"),
    ],
)
def test_a_row_that_is_none_is_named_and_nothing_is_written(three_rounds, tmp_path, command, change, sentence):
    folder = tmp_path / "fedavg-seed0"
    shutil.copytree(three_rounds, folder)
    before = changed(folder, change)
    compared = ["compare", "--methods", "fedavg", "--seeds", 0, *FLAGS, "--checkpoint-every", 1, "--rounds", 4]
    for words in (
        ["resume", folder, "--rounds", 4, "--quiet"],
        [*RUN, "--rounds", 4, "--out", folder],
        ["report", folder],
        ["evaluate", folder],
        [*compared, "--quiet", "--jobs", 1, "--out", tmp_path],
    ):
        said = command(*words, code=2).err
        start = re.escape(f"fedlada: {folder / 'metrics.jsonl'}, line 2: ")
        assert re.fullmatch(rf"{start}{sentence}: correct the line or remove it\n", said), (words, said)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"fedavg-seed0"}
    (note,) = json.loads(LiveReport(tmp_path, "watched").index().content)["notes"]
    assert note.startswith(f"{folder / 'metrics.jsonl'}, line 2: ")


def test_a_page_of_many_runs_leaves_a_damaged_one_out_and_says_so(three_rounds, tmp_path, command):
    for name in ("a", "b", "c"):
        shutil.copytree(three_rounds, tmp_path / "runs" / name)
    changed(tmp_path / "runs" / "b", lambda row: {**row, "test_accuracy": "high"})
    (tmp_path / "runs" / "c" / "config.json").write_text("{")
    page = tmp_path / "page.html"
    said = command("report", tmp_path / "runs", "--out", page, code=1)
    assert said.out.startswith("1 run in ")
    first, second = said.err.splitlines()
    assert first.startswith(f"fedlada: {tmp_path / 'runs' / 'b' / 'metrics.jsonl'}, line 2: test_accuracy is 'high'")
    assert first.endswith("; it is left out")
    assert second.startswith(f"fedlada: {tmp_path / 'runs' / 'c' / 'config.json'} cannot be read")
    assert str(tmp_path / "runs" / "a") in page.read_text()
    with pytest.raises(ValueError, match="line 2: test_accuracy is 'high'"):
        read_runs([tmp_path / "runs"])  # who calls it from Python is asked to look
    page.unlink()
    shutil.rmtree(tmp_path / "runs" / "a")
    refused = command("report", tmp_path / "runs", "--out", page, code=2).err
    assert refused.startswith(f"fedlada: {tmp_path / 'runs' / 'b' / 'metrics.jsonl'}, line 2: ")
    assert refused.count("\n") == 1
    assert not page.exists()


def test_what_callbacks_add_may_be_anything(three_rounds, tmp_path, command):
    folder = tmp_path / "r"
    shutil.copytree(three_rounds, folder)
    changed(folder, lambda row: {**row, "note": "text", "confusion": [[1, 2], [3, 4]], "drift": None, "test_f1": "n/a"})
    command("report", folder)
    command("resume", folder, "--rounds", 4, "--quiet")
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])["note"] == "text"
