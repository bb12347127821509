"""A method of one's own on the command line: the same flags, folders and tables as ours."""

from __future__ import annotations

import json

import pytest
import torch

import fedlada
from command_line import rows, warm
from fedlada.workbench.campaign import identity
from fedlada.workbench.experiment import Experiment
from own_module import forget, working_directory

FEW = [
    "--num-clients",
    8,
    "--cohort-size",
    2,
    "--local-steps",
    2,
    "--batch-size",
    10,
    "--device",
    "cpu",
    "--model",
    "mlp",
]
QUICK = [*FEW, "--rounds", 2, "--quiet"]
METHODS = '''
from dataclasses import dataclass
from pathlib import Path

from fedlada import FederatedMethod, LocalTransform
from fedlada.local import AMSGrad
from fedlada.server import SGD

Path("imported").touch()


@dataclass(frozen=True)
class Damp(LocalTransform):
    """A smaller step."""

    damping: float
    elementwise = True

    def apply(self, update, state, step):
        return (1 - self.damping) * update, state


def damped(damping=0.0, server_lr=1.0, gentle=False, limit=None):
    """SGD with smaller steps."""
    return FederatedMethod(name="damped", local=(Damp(damping / 2 if gentle else damping),), server=SGD(lr=server_lr))


def adaptive(damping=0.0):
    return FederatedMethod(name="adaptive", local=(AMSGrad(), Damp(damping)), server=SGD())


def takes_a_flag(seed=1): return damped()
def without_default(mu): return damped()
def of_a_list(parts=(1, 2)): return damped()
def of_nothing(): return None
def failing(): return 1 / 0
number = 3
'''
OWN = "mine:damped"
ASKS = f"asks for the method '{OWN}', which is not built in, and importing it would run its code: name it yourself"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with methods, which leave a trace where they are imported."""
    with working_directory(tmp_path, monkeypatch, "mine", METHODS) as folder:
        yield folder


def stored(folder):
    return json.loads((folder / "config.json").read_text())


def test_it_runs_as_ours_do(here, command):
    command("run", "--method", OWN, *QUICK, "--lr", 0.07, "--out", "own")
    command("run", "--method", "fedavg", *QUICK, "--lr", 0.07, "--lr-decay", 0.998, "--out", "ours")
    for name in ("train_loss", "test_loss", "test_accuracy", "drift"):
        assert [row[name] for row in rows(here / "own")] == [row[name] for row in rows(here / "ours")]
    config = stored(here / "own")
    assert config["method"] == OWN
    assert config["hyper"] == {"damping": 0.0, "server_lr": 1.0, "gentle": False, "limit": None}
    assert config["parts"]["local"] == ["Damp(damping=0.0)"]


def test_packing_imports_nothing(here, command):
    """Its parts are stored: what --device auto was follows from them, as from the rest of the configuration."""
    words = ["sweep", "--method", OWN, "--set", "lr=0.1", *QUICK, "--device", "auto", "--jobs", 1]
    command(*words, "--out", "swept")
    (here / "imported").unlink()
    forget("mine")
    identity._digest.cache_clear()  # as a new process begins
    command("pack", "swept", "--out", "archive.json")
    assert not (here / "imported").exists()
    found = command(*words[:-2], "--merge", "archive.json", "--only-show", "--out", "again", "--json").out
    assert json.loads(found)["best"] is not None


def test_its_arguments_are_flags(here, command):
    command("run", f"--method={OWN}", "--damping", 0.5, "--gentle", "--limit", 3, *QUICK, "--out", "own")
    assert stored(here / "own")["hyper"] == {"damping": 0.5, "server_lr": 1.0, "gentle": True, "limit": 3.0}
    assert stored(here / "own")["parts"]["local"] == ["Damp(damping=0.25)"]
    shown = command("run", "--method", OWN, "--help").out
    assert "--damping" in shown
    assert "--gentle / --no-gentle" in shown
    assert "--damping" not in command("run", "--help").out
    assert "No such option '--damping'" in command("run", "--method", "fedavg", "--damping", 1, code=2).err
    assert "mine:damped has no hyperparameter 'alpha'" in command("run", "--method", OWN, "--alpha", 1, code=2).err


def test_its_rate_follows_from_its_parts(here, command):
    for method, rate in ((OWN, 0.1), ("mine:adaptive", 0.001)):
        command("run", "--method", method, *QUICK, "--out", method[5:])
        assert (stored(here / method[5:])["lr"], stored(here / method[5:])["lr_decay"]) == (rate, 0.998)


def test_it_goes_on_where_it_is_named_or_trusted(here, command):
    command("run", "--method", OWN, "--damping", 0.3, *FEW, "--rounds", 4, "--quiet", "--out", "whole")
    for name in ("named", "trusted"):
        command("run", "--method", OWN, "--damping", 0.3, *QUICK, "--out", name)
    command("resume", "named", "--rounds", 4, "--quiet", "--method", OWN)
    command("resume", "trusted", "--rounds", 4, "--quiet", "--trust")
    models = [fedlada.load_run(here / name).model for name in ("whole", "named", "trusted")]
    for model in models[1:]:
        assert all(map(torch.equal, model.parameters(), models[0].parameters()))


def test_a_folder_does_not_go_on_with_another_method_of_that_name(here, command):
    command("run", "--method", OWN, *QUICK, "--out", "own")
    (here / "mine.py").write_text(METHODS.replace("local=(Damp(", "local=(AMSGrad(), Damp("))
    forget("mine")
    said = command("resume", "own", "--rounds", 4, "--method", OWN, code=2).err
    assert "holds another run (local is ['Damp(damping=0.0)'] there and " in said
    assert len(rows(here / "own")) == 2


@pytest.fixture
def theirs(here, command):
    """The folder of a run, as it comes from somebody else."""
    command("run", "--method", OWN, *QUICK, "--out", "theirs")
    forget("mine")
    (here / "imported").unlink()
    return here / "theirs"


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "theirs", "--rounds", 3, "--quiet"],
        ["run", "--config", "theirs/config.json", "--out", "new", "--quiet"],
        ["sweep", "--config", "theirs/config.json", "--set", "lr=0.1", "--validation", 0.1, "--out", "new"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_of_somebody_else_does_not_name_what_is_imported(theirs, here, command, words):
    assert ASKS in command(*words, code=2).err
    assert not (here / "imported").exists()
    with pytest.raises(ValueError, match="asks for the method"):
        fedlada.load_run(theirs).experiment.build_method()
    assert not (here / "imported").exists()
    assert "theirs has the method" in command("resume", "theirs", "--method", "mine:adaptive", code=2).err


def test_looking_at_such_a_folder_imports_nothing(theirs, here, command):
    command("report", "theirs", "--out", "page.html")
    command("evaluate", "theirs", "--json")
    command("data", "show", "--config", "theirs/config.json")
    command("compare", "--config", "theirs/config.json", "--methods", "fedavg", "--seeds", 0, *QUICK, "--out", "new")
    assert fedlada.load_run(theirs).round == 2
    assert Experiment.read(theirs / "config.json").resolved().hyper["damping"] == 0.0
    assert not (here / "imported").exists()
    assert "fedlada run --method mine:damped --dataset digits" in (here / "page.html").read_text()


def test_it_is_compared_with_ours(here, command):
    words = ["--methods", f"fedavg,{OWN}", "--damping", 0.5, "--seeds", "0,1", *QUICK, "--target", "test_loss:2.3"]
    compared = json.loads(command("compare", *words, "--jobs", 2, "--json", "--out", "compared").out)
    assert compared["metric"] == "test_loss"
    assert set(compared["methods"]) == {"fedavg", OWN}
    assert len(compared["methods"][OWN]["final_test_loss"]) == 2
    assert stored(here / "compared" / "mine-damped-seed1")["hyper"]["damping"] == 0.5
    again = (here / "compared" / "command.txt").read_text()
    assert all(one in again for one in (f"--methods fedavg,{OWN}", "--damping 0.5", "--target test_loss:2.3"))


def test_it_is_swept(here, command):
    swept = ["sweep", "--method", OWN, "--set", "damping=0.1,0.9", *QUICK, "--jobs", 1, "--out", "swept", "--json"]
    found = json.loads(command(*swept).out)
    assert found["best"]["values"]["damping"] in (0.1, 0.9)
    assert f"fedlada run --method {OWN}" in found["command"]
    assert "--damping" in found["command"]
    both = ["sweep", "--set", f"method=fedavg,{OWN}", "--set", "damping=0.1,0.9", *QUICK, "--jobs", 1, "--out", "both"]
    table = json.loads(command(*both, "--json").out)["table"]
    assert sorted(row[1] for row in table["rows"]) == ["fedavg", OWN, OWN]
    (here / "mine.py").write_text(METHODS.replace("local=(Damp(", "local=(AMSGrad(), Damp("))
    forget("mine")
    command(*swept)  # another method now: its runs are others
    assert len(list((here / "swept" / "runs").glob("*/config.json"))) == 4


@pytest.mark.usefixtures("here")
def test_it_is_listed(command):
    shown = json.loads(command("methods", OWN, "--json").out)
    assert [(one["method"], one["local"], one["summary"]) for one in shown] == [
        (OWN, ["Damp"], "SGD with smaller steps.")
    ]
    assert json.loads(command("methods", OWN, "--dataset", "npz", "--json").out)[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("takes_a_flag", "cannot have the argument 'seed', a flag of every run: rename it"),
        ("without_default", "needs a default for its argument 'mu', which becomes a flag"),
        ("of_a_list", "must have numbers, words, truth values or None as defaults, got parts=(1, 2)"),
        ("of_nothing", "must return a FederatedMethod, got NoneType"),
        ("failing", "could not be made: ZeroDivisionError: division by zero"),
        ("number", "is not a function"),
        ("gone", "cannot be imported: module 'mine' has no attribute 'gone'"),
        ("", "cannot be imported: write package.module:factory"),
    ],
)
def test_what_is_no_method(here, command, name, sentence):
    said = command("run", "--method", f"mine:{name}", *QUICK, "--out", "own", code=2).err
    assert said.startswith(f"fedlada: the method 'mine:{name}' {sentence}")
    assert said.count("\n") == 1
    assert not (here / "own").exists()


def test_a_misspelt_name_is_still_answered_with_the_nearest(command):
    assert "did you mean 'fedavg'?" in command("run", "--method", "fedavgg", code=2).err
    assert "did you mean 'fedavg'?" in command("compare", "--methods", "fedavgg", code=2).err


FAILING = """
from dataclasses import dataclass

import torch
from fedlada import FederatedMethod, ServerOptimizer
from fedlada.server import SGD
from fedlada.combine import Combiner, Mean

steps = []


@dataclass(frozen=True)
class Fails(ServerOptimizer):
    def step(self, params, delta, state, round):
        steps.append(delta)
        return params - torch.zeros(3 if len(steps) > 2 else 1), state


def fails():
    return FederatedMethod(name="fails", local=(), server=Fails())


@dataclass(frozen=True)
class Misses(Combiner):
    def combine(self, uploads, weights=None):
        return {}["gone"] if len(uploads[0].delta) > 1000 else Mean().combine(uploads, weights)


def misses():
    return FederatedMethod(name="misses", local=(), server=SGD(), combiner=Misses())


def wrongly_made():
    return FederatedMethod(name="wrong", local=(), server=unknown)
"""
HINT = "; FEDLADA_TRACEBACK=1 shows the traceback"


def line_of(source, text):
    return 1 + next(number for number, line in enumerate(source.splitlines()) if text in line)


@pytest.mark.parametrize(
    ("source", "words", "said", "line"),
    [
        (FAILING, ["run", "--method", "failing:fails"], "must match the size of tensor b (3)", "return params"),
        (FAILING, ["run", "--method", "failing:misses"], "KeyError: 'gone'", '{}["gone"]'),
        (FAILING, ["compare", "--methods", "failing:misses", "--seeds", 0], "KeyError: 'gone'", '{}["gone"]'),
        (FAILING, ["run", "--method", "failing:wrongly_made"], "name 'unknown' is not defined", "server=unknown"),
        ("def f():\n    return unknown\n\nf()", ["run", "--method", "failing:f"], "NameError", "return unknown"),
        ("def f():\n    return unknown", ["run", "--model", "failing:f"], "could not be made", "return unknown"),
        (FAILING, ["compare", "--methods", "failing:fails", "--jobs", 2, "--seeds", "0,1"], "(3)", "return params"),
    ],
)
def test_an_error_of_ones_own_module_has_its_place(source, words, said, line, tmp_path):
    (tmp_path / "failing.py").write_text(source)
    all_words = [*words, *([] if "--model" in words else ["--model", "mlp"]), *FEW[:-2], "--rounds", 3, "--quiet"]
    in_round = ", in round 1" if {"failing:fails", "failing:misses"} & set(words) else ""
    place = f"{tmp_path}/failing.py, line {line_of(source, line)}{in_round}"
    done = warm([*all_words, "--out", "told"], cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert said in last
    assert last.endswith(f" ({place}{HINT})")
    done = warm([*all_words, "--out", "shown"], cwd=tmp_path, environments=[{"FEDLADA_TRACEBACK": "1"}])
    assert "Traceback" in done.stderr
    assert line in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f" ({place})")


def test_an_error_of_ours_stays_a_sentence(tmp_path):
    done = warm(["run", "--method", "fedavg", "--lr", -1], cwd=tmp_path)
    assert HINT not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    shown = warm(["run", "--method", "fedavg", "--lr", -1], cwd=tmp_path, environments=[{"FEDLADA_TRACEBACK": "1"}])
    assert "Traceback" in shown.stderr
    assert shown.stderr.endswith(done.stderr)
