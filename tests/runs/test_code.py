"""A run that goes on with other code than it began with says so, in one sentence."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys

import pytest
from torch import nn
from torch.nn import functional as F

import fedlada
from fedlada import recipes
from fedlada.runs.code import SETTINGS, _Reader, changed
from tasks import blobs, small_net

MODULE = """
from dataclasses import dataclass

import fedlada
import parts_of_mine
from torch import nn
from torch.nn import functional as F

SCALE = 1.0


def helper(loss):
    return loss * SCALE


def loss(output, y):
    return helper(F.cross_entropy(output, y))


def spread(output, y):
    return float(output.std()) if y.ndim == 1 and "a" in {"a", "b", "c"} else 0.0


@dataclass(frozen=True, kw_only=True)
class Mine(fedlada.LocalTransform):
    beta: float = 0.9

    def apply(self, update, local, step):
        return update * 1.0, local


@dataclass(frozen=True, kw_only=True)
class Server(fedlada.ServerOptimizer):
    def step(self, params, delta, state, round):
        return params - parts_of_mine.factor() * delta, {}


class Cohorts(fedlada.cohorts.Cohorts):
    def draw(self, num_clients, seed, round):
        return [0, 1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)[:, :4])


def make():
    return nn.Sequential(Net(), nn.ReLU())


def rate(t):
    return 0.1 if t < 2 else 0.05
"""
PARTS = "def factor():\n    return 1.0\n"
RUN = """
import fedlada
import mine
from tasks import blobs

x, y = blobs()
method = fedlada.FederatedMethod(name="mine", local=(mine.Mine(),), server=mine.Server())
given = {{"cohorts": mine.Cohorts(), "loss": mine.loss, "lr": mine.rate, "metrics": {{"spread": mine.spread}}}}
fedlada.simulate(
    mine.make, (x, y), test=(x, y), method=method, device="cpu", rounds=2, out="run", progress={progress}, **given
)
"""
SENTENCE = "has changed since the run in run began: its stored rounds are of the old code; choose another folder"


@pytest.fixture
def rerun(tmp_path, monkeypatch, capsys):
    """Runs the script with the files as they are then; the result is standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "parts_of_mine.py").write_text(PARTS)

    def run(module=MODULE, progress=False):
        (tmp_path / "mine.py").write_text(module)
        for name in ("mine", "parts_of_mine"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        exec(RUN.format(progress=progress), {})
        return capsys.readouterr().err

    yield run
    for name in ("mine", "parts_of_mine"):
        sys.modules.pop(name, None)


def test_every_own_part_is_watched(rerun, tmp_path):
    assert rerun() == ""
    names = json.loads((tmp_path / "run" / "config.json").read_text())["ran_by"]["code"]
    assert set(names) == {"python", "model", SETTINGS, "Mine", "Server", "Cohorts", "Net", "loss", "rate", "spread"}
    for old, new, name in (
        ("update * 1.0", "update * -1.0", "Mine"),
        ("SCALE = 1.0", "SCALE = 2.0", "loss"),
        ("loss * SCALE", "loss + SCALE", "loss"),
        ("output.std()", "output.mean()", "spread"),
        ("[0, 1]", "[0, 2]", "Cohorts"),
        ("self.layer(x", "-self.layer(x", "Net"),
        ("nn.ReLU()", "nn.Tanh()", "model"),
        ("else 0.05", "else 0.5", "rate"),
    ):
        assert MODULE.count(old) == 1
        assert f"the code of `{name}` {SENTENCE}" in rerun(MODULE.replace(old, new)), name
    assert rerun() == ""
    (tmp_path / "parts_of_mine.py").write_text(PARTS.replace("1.0", "2.0"))
    said = rerun(MODULE.replace("update * 1.0", "update * -1.0"))
    assert (said.count("\n"), f"the code of `Mine` and `Server` {SENTENCE}" in said) == (1, True)


@pytest.mark.slow
def test_comments_docstrings_and_a_new_interpreter_change_nothing(rerun, tmp_path):
    rerun()
    talk = MODULE.replace("SCALE = 1.0", '"""Other words."""\n\n# A comment.\n\nSCALE = 1.0')
    talk = talk.replace("    def apply(self", "    # Why.\n    def apply(self")
    talk = talk.replace("        return update", '        """Words."""\n        return update')
    assert rerun(talk) == ""
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    for seed in ("1", "2"):  # the order of sets depends on it
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
        script = RUN.format(progress=False)
        done = subprocess.run([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_finished_run_says_that_it_is_loaded(rerun):
    loaded = "fedlada: run holds this run, which ended after round 2: it is loaded, nothing is trained\n"
    assert loaded not in rerun(progress=True)
    assert rerun(progress=True).count(loaded) == 1
    assert rerun() == ""


X, Y = blobs()


def run(folder, rounds=2, **changes):
    values = {"method": recipes.fedavg(), "lr": 0.05, "device": "cpu", **changes}
    return fedlada.simulate(small_net(), (X, Y), rounds=rounds, out=folder, **values)


class Focal:
    """A loss with a setting and a memory."""

    def __init__(self, gamma):
        self.gamma, self.calls, self.sizes = gamma, 0, []

    def __call__(self, output, y):
        self.calls += 1
        self.sizes.append(len(y))
        return F.cross_entropy(self.gamma * output, y)


def scaled(scale):
    def loss(output, y):
        return scale * F.cross_entropy(output, y)

    return loss


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (Focal(1.0), Focal(2.0), "Focal"),
        (scaled(1.0), scaled(2.0), "loss"),
        (lambda output, y: F.cross_entropy(output, y), lambda output, y: F.cross_entropy(2 * output, y), "loss"),
        *(
            (functools.partial(F.cross_entropy, **a), functools.partial(F.cross_entropy, **b), "cross_entropy")
            for a, b in [({"label_smoothing": 0.0}, {"label_smoothing": 0.5})]
        ),
    ],
)
def test_values_that_a_loss_holds_count(one, other, name, tmp_path, capsys):
    run(tmp_path, loss=one)
    run(tmp_path, 3, loss=one)  # after its calls, whatever it remembers of them
    assert "changed" not in capsys.readouterr().err
    run(tmp_path, 3, loss=other)
    assert f"the code of `{name}` has changed" in capsys.readouterr().err


class Attentive(nn.Module):
    """A setting that its text does not have, and a memory; neither have the heads of torch's attention a text."""

    def __init__(self, heads=1, scale=1.0):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, heads, batch_first=True)
        self.last, self.scale, self.calls = nn.Linear(4, 3), scale, 0

    def forward(self, x):
        self.calls += 1
        x = x[:, None, :4]
        return self.scale * self.last(self.attention(x, x, x, need_weights=False)[0][:, 0])


@pytest.mark.parametrize("other", [{"heads": 2}, {"scale": 2.0}])
def test_values_that_layers_hold_count(other, tmp_path, capsys):
    options = {"method": "fedavg", "lr": 0.05, "device": "cpu", "out": tmp_path}
    fedlada.simulate(Attentive, (X, Y), rounds=1, **options)
    model = Attentive()
    model.calls = 7
    fedlada.simulate(model, (X, Y), rounds=2, **options)
    assert "changed" not in capsys.readouterr().err
    fedlada.simulate(lambda: Attentive(**other), (X, Y), rounds=3, **options)
    assert f"the code of `{SETTINGS}` has changed" in capsys.readouterr().err


def test_folders_of_earlier_versions_and_of_another_python_go_on_silently(tmp_path, capsys):
    run(tmp_path, loss=scaled(1.0))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for about in ({"code": {**config["ran_by"]["code"], "python": "3.1"}}, {"code": 5}, {}):
        ran_by = {name: value for name, value in config["ran_by"].items() if name != "code"}
        path.write_text(json.dumps({**config, "ran_by": {**ran_by, **about}}))
        run(tmp_path, loss=scaled(2.0))
        assert "changed" not in capsys.readouterr().err
    assert json.loads(path.read_text())["ran_by"]["code"]["python"] == "{}.{}".format(*sys.version_info)
    run(tmp_path, loss=scaled(3.0))
    assert "the code of `loss` has changed" in capsys.readouterr().err


def test_a_run_that_failed_at_once_starts_with_the_new_code(tmp_path, capsys):
    mended = []

    def rate(_):
        return 0.05 if mended or not (tmp_path / "config.json").exists() else 1 / 0

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, loss=scaled(1.0), lr=rate)
    assert not list(tmp_path.glob("checkpoints/*"))
    mended.append(True)
    run(tmp_path, loss=scaled(2.0), lr=rate)
    assert "changed" not in capsys.readouterr().err
    run(tmp_path, loss=scaled(1.0), lr=rate)
    assert "the code of `loss` has changed" in capsys.readouterr().err


def test_libraries_are_not_watched(tmp_path):
    run(tmp_path, loss=nn.CrossEntropyLoss())
    assert set(json.loads((tmp_path / "config.json").read_text())["ran_by"]["code"]) == {"python", "model", SETTINGS}
    assert changed({}, {"python": "3.11", "loss": "a"}) == []


def test_a_class_inside_a_function_may_move(tmp_path, monkeypatch):
    text = "def make():\n    class Inner:\n        '''{}'''\n        value = 1\n    return Inner().value\n"
    monkeypatch.syspath_prepend(tmp_path)
    texts = []
    for number, (above, words) in enumerate((("", "a"), ("# moved\n\n", "b"))):
        (tmp_path / f"inner{number}.py").write_text(above + text.format(words))
        texts.append(_Reader().read(importlib.import_module(f"inner{number}").make))
    assert texts[0] == texts[1]
