"""Every example runs as it stands, with fewer rounds."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedlada
from command_line import ENVIRONMENT

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "own_data.ipynb"
EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


def shortened(code):
    """The same code with fewer rounds."""
    short, num_changes = re.subn(r"\brounds=\d+|(?<=NUM_ROUNDS, NUM_STEPS = )\d+", _few, code)
    assert num_changes
    return short


def _few(found):
    return re.sub(r"\d+", "3", found[0])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    (tmp_path / path.name).write_text(shortened(path.read_text()))
    run = subprocess.run(
        [sys.executable, "-W", "error", path.name],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    assert "accuracy" in run.stdout


def test_the_training_loop_combines_as_its_method_does(monkeypatch):
    """Only its combiner makes FedExP another method than FedAvg."""
    code = shortened(next(path for path in EXAMPLES if path.stem == "own_training_loop").read_text())
    found = []
    for method in (fedlada.recipes.fedavg(), fedlada.recipes.fedexp()):
        suited = {"method": method, "lr": 0.1, "lr_decay": 1.0}
        monkeypatch.setattr(fedlada, "suggested", lambda _, suited=suited: suited)
        names = {}
        exec(code, names)
        found.append(names["server"].params)
    assert not torch.equal(*found)


def test_the_notebook_runs_and_is_stored_with_its_results():
    """Cell after cell as a kernel does it; what the last line of a cell shows is drawn or written too."""
    book = json.loads(NOTEBOOK.read_text())
    names: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert all(output["output_type"] != "error" for output in cell["outputs"])
            _run_cell(
                re.sub(r"\brounds=\d+", _few, "".join(cell["source"])),
                names,
                {kind for one in cell["outputs"] for kind in one.get("data", ())},
            )
    assert [len(histories) for histories in names["histories"].values()] == [2, 2, 2]


def _run_cell(source, names, stored):
    *lines, last = ast.parse(source).body
    exec(compile(ast.Module(lines, []), str(NOTEBOOK), "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), str(NOTEBOOK), "exec"), names)
        return
    shown = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    for kind, method in (("text/html", "_repr_html_"), ("image/png", "_repr_png_")):
        assert bool(getattr(shown, method, str)()) == (kind in stored), source


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "custom_method", "own_training_loop"}
