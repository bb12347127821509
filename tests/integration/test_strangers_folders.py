"""Folders and archives of somebody else: nothing that they name is imported unless the user names or trusts it."""

from __future__ import annotations

import importlib
import json
import shutil
import sys

import pytest

import fedlada
from command_line import fedlada as start_fedlada
from command_line import rows
from fedlada.models import mlp
from fedlada.models.factory import OWN_FACTORIES, is_built_in
from fedlada.paper.scales import SMOKE
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.watch import LiveReport
from own_module import forget, working_directory

FEW = ["--num-clients", 8, "--cohort-size", 2, "--local-steps", 2, "--batch-size", 10, "--device", "cpu"]
QUICK = [*FEW, "--rounds", 2, "--quiet"]
NET = """
from pathlib import Path
from torch import nn

Path("imported").touch()


def tiny():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
ASKS = "asks for the model 'nets:tiny', which is not built in, and importing it would run its code: "


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a model of its author's, which leaves a trace where it is imported."""
    with working_directory(tmp_path, monkeypatch, "nets", NET) as folder:
        yield folder


@pytest.fixture
def theirs(here, command):
    """The folder of a run of two rounds, as it comes from somebody else."""
    command("run", "--model", "nets:tiny", *QUICK, "--out", "theirs")
    forget("nets")
    (here / "imported").unlink()
    return here / "theirs"


def named_model(folder, name):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": name}))


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "theirs"],
        ["resume", "theirs", "--rounds", 3, "--quiet"],
        ["run", "--config", "theirs/config.json", "--out", "new", "--quiet"],
        ["compare", "--config", "theirs/config.json", "--methods", "fedavg", "--out", "new"],
        ["sweep", "--config", "theirs/config.json", "--set", "lr=0.1", "--validation", 0.1, "--out", "new"],
    ],
    ids=lambda words: words[0],
)
def test_a_model_that_is_not_built_in_is_asked_for(theirs, here, command, words):
    before = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    shutil.copy(here / "nets.py", theirs)  # neither the working directory nor the folder is looked into
    said = command(*words, code=2)
    assert ASKS + "name it yourself (--model, model=) or trust its author (--trust, trust=True)" in said.err
    assert said.err.count("\n") == 1
    assert not (here / "imported").exists()
    assert "nets" not in sys.modules
    assert not (here / "new").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_who_names_the_model_or_trusts_the_folder_goes_on(theirs, here, command):
    command("resume", theirs, "--rounds", 3, "--model", "nets:tiny", "--quiet")
    assert len(rows(theirs)) == 3
    forget("nets")
    command("resume", theirs, "--rounds", 4, "--trust", "--quiet")
    forget("nets")
    by_name = command("evaluate", theirs, "--model", "nets:tiny", "--json").out
    forget("nets")
    assert command("evaluate", theirs, "--trust", "--json").out == by_name
    forget("nets")
    config = ["--config", theirs / "config.json"]
    command("run", *config, "--rounds", 1, "--trust", "--quiet", "--out", "trusted")
    forget("nets")
    command("run", *config, "--rounds", 1, "--model", "nets:tiny", "--quiet", "--out", "named")
    assert rows(here / "trusted") == rows(here / "named")
    command("run", *config, "--rounds", 1, "--model", "mlp", "--quiet", "--out", "other")


def test_another_model_than_the_folders_is_refused(theirs, command):
    for words in (["resume", theirs], ["evaluate", theirs]):
        said = command(*words, "--model", "cnn-gn", code=2)
        assert "theirs has the model 'nets:tiny', not 'cnn-gn'" in said.err


def test_load_run_asks_too(theirs, here):
    with pytest.raises(ValueError, match=r"theirs asks for the model 'nets:tiny', which is not built in"):
        fedlada.load_run(theirs)
    assert not (here / "imported").exists()
    with pytest.raises(ValueError, match="does not fit the model"):
        fedlada.load_run(theirs, mlp(10))
    sys.path.insert(0, "")
    given = fedlada.load_run(theirs, importlib.import_module("nets").tiny)
    with pytest.raises(ValueError, match="asks for the model"):
        _ = given.experiment
    trusted = fedlada.load_run(theirs, trust=True)
    assert trusted.experiment.model == "nets:tiny"
    assert len(trusted.history) == 2


def test_looking_at_a_folder_imports_nothing(theirs, here, command):
    command("report", theirs, "--out", "page.html")
    command("data", "show", "--config", theirs / "config.json")
    assert Experiment.read(theirs / "config.json").model == "nets:tiny"
    watched = LiveReport(theirs, "theirs")
    (run,) = json.loads(watched.index().content)["runs"]
    assert b"nets:tiny" in watched.run(run["id"]).content
    assert not (here / "imported").exists()


def test_a_folder_with_another_model_is_refused_unseen(theirs, here, command):
    """Those that compare what a folder holds with what was asked for only read names."""
    said = command("run", "--model", "mlp", *QUICK, "--out", theirs, code=2)
    assert "holds another run (model is 'nets:tiny' there and 'mlp' here)" in said.err
    (here / "c").mkdir()
    theirs.rename(here / "c" / "fedlada-seed0")
    words = ["--methods", "fedlada", "--seeds", 0, "--model", "mlp", "--out", "c"]
    said = command("compare", *words, *QUICK, code=2)
    assert "holds another run (model is 'nets:tiny' there and 'mlp' here)" in said.err
    assert not (here / "imported").exists()


def test_the_same_comparison_and_sweep_go_on_in_workers(here, command):
    words = ["compare", "--methods", "fedavg", "--seeds", 0, "--jobs", 1, "--model", "nets:tiny", *QUICK]
    command(*words, "--out", "c")
    forget("nets")
    command(*words, "--rounds", 3, "--out", "c")
    assert len(rows(here / "c" / "fedavg-seed0")) == 3
    words = ["sweep", "--set", "lr=0.1", "--jobs", 1, "--model", "nets:tiny", *QUICK]
    command(*words, "--out", "s")
    forget("nets")
    command(*words, "--out", "s")
    config = ["--config", here / "c" / "fedavg-seed0" / "config.json", "--trust", "--methods", "fedavg,fedcm"]
    forget("nets")
    command("compare", *config, "--seeds", 0, "--jobs", 2, "--quiet", "--out", "d")
    assert len(rows(here / "d" / "fedcm-seed0")) == 3
    assert "--trust" in (here / "d" / "command.txt").read_text()
    assert "trust" not in (here / "c" / "command.txt").read_text()


def test_packing_and_merging_import_nothing(here, command):
    # What "auto" was, only the digest of the whole configuration tells.
    words = ["sweep", "--set", "lr=0.1,0.2", "--jobs", 1, "--model", "nets:tiny", *QUICK, "--device", "auto"]
    command(*words, "--out", "s")
    (here / "imported").unlink()
    forget("nets")
    command("pack", "s", "--out", "archive.json")
    others = ["sweep", "--set", "lr=0.1", *QUICK, "--merge", "archive.json", "--only-show"]
    command(*others, "--out", "others")
    assert not (here / "imported").exists()
    command(*words, "--merge", "archive.json", "--only-show", "--out", "again")
    assert (here / "imported").exists()  # because this command names it


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("os:system", "the model could not be made: "),
        ("os:getcwd", "model must be an nn.Module or a function that makes one, got str"),
        ("os:sep", "the model 'os:sep' is not a function"),
        ("nowhere:net", "the model 'nowhere:net' cannot be imported: No module named 'nowhere'"),
    ],
)
def test_a_trusted_thing_that_is_no_model_is_one_sentence(theirs, command, name, sentence):
    named_model(theirs, name)
    for words in (["evaluate", theirs], ["resume", theirs, "--rounds", 3, "--quiet"]):
        assert f"asks for the model '{name}'" in command(*words, code=2).err
        said = command(*words, "--trust", code=2)
        assert sentence in said.err
        assert said.err.count("\n") == 1
    assert len(rows(theirs)) == 2


def test_the_librarys_own_factories_are_built_in():
    """Those of a reproduction, and nothing else of the package: a folder could name any function of it."""
    assert set(OWN_FACTORIES) == set(SMOKE.lenet_models.values())
    assert all(map(is_built_in, ["mlp", *OWN_FACTORIES]))
    assert not any(map(is_built_in, ["fedlada.workbench.cli:main", "fedlada.paper.small_lenet:nn", "os:system"]))


def test_a_module_that_lies_beside_a_folder_stands_for_none_of_ours(tmp_path):
    """`python -m` would look for every import in the working directory first."""
    for name in ("click", "sklearn", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    shown = start_fedlada("data", "show", "digits", cwd=tmp_path, PYTHONSAFEPATH="")
    assert "1497" in shown.stdout
