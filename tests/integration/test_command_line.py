"""The command line as a user meets it."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import fedlada as library
from command_line import (
    ENVIRONMENT,
    QUICK,
    fedlada,
    num_rows,
    rows,
    run_shortened,
    running,
    wait_until,
    warm,
)
from fedlada.methods.recipes import RECIPES
from fedlada.models import mlp
from fedlada.models.factory import model_factory
from fedlada.workbench.cli import fedlada as command_line
from fedlada.workbench.cli import main
from fedlada.workbench.cli.flags import build_experiment
from fedlada.workbench.cli.output import new_folder
from fedlada.workbench.presets import preset
from held_run import hold, let_go


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One short run that several tests look at."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = fedlada("run", *QUICK, "--rounds", 5, "--target", 0.05, "--out", folder)
    return folder, done


def test_a_rule_for_a_vector_that_is_not_sent_is_said(tmp_path):
    sentence = "fedavg does not send v: its rule in --messages has no effect"
    run = ["run", "--method", "fedavg", *QUICK, "--rounds", 1]
    assert sentence in fedlada(*run, "--messages", "v=log8", "--out", tmp_path / "v").stderr
    assert "has no effect" not in fedlada(*run, "--messages", "lean:params=bfloat16", "--out", tmp_path / "lean").stderr
    assert "has no effect" not in fedlada("resume", tmp_path / "lean", "--rounds", 2).stderr


def test_run_writes_its_folder(finished):
    folder, done = finished
    assert [row["round"] for row in rows(folder)] == [1, 2, 3, 4, 5]
    needed = {"round", "lr", "train_loss", "drift", "bytes_up", "bytes_down", "test_loss", "test_accuracy"}
    assert all(needed <= set(row) for row in rows(folder))
    assert re.search(r"fedlada: 5 rounds, test accuracy 0\.\d{4}", done.stdout)
    assert "target 0.05: reached in round 1" in done.stdout
    assert f"in {folder}: config.json" in done.stdout
    assert f"view it: fedlada report {folder}" in done.stdout
    assert "round 5/5: training loss" in done.stderr
    assert json.loads((folder / "config.json").read_text())["hyper"]["alpha"] > 0


def test_the_first_lines_say_what_a_run_has(finished, tmp_path):
    _, done = finished
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("fedlada on digits (mlp): 5 rounds of 2 of 8 clients (Dirichlet 0.1), seed 0, in ")
    values = "lr 0.003, lr_decay 0.998, alpha 0.5, beta1 0, v_init 1e-07"
    assert second == f"fedlada: {values}; other values as in fedlada methods"
    robust = ["--combiner", "median", "--attack", "sign-flip:0.3", "--messages", "lean", "--out", tmp_path]
    done = fedlada("run", *QUICK, "--rounds", 1, "--alpha", 0.1, "--beta1", 0.9, "--clip-norm", 3, *robust)
    # alpha and beta1 are the recipe's own
    values = "v_init 1e-07, clip_norm 3, combiner median, attack sign-flip:0.3, messages lean"
    assert f"fedlada: lr 0.003, lr_decay 0.998, {values}; other values" in done.stderr


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lrr": 0.1}, "the configuration has an unknown field 'lrr'; did you mean 'lr'?"),
        ({"hyper": {"alfa": 0.1}}, "fedlada has no hyperparameter 'alfa'; it has alpha, beta1,"),
        ({"rounds": "many"}, "rounds"),
    ],
)
def test_a_wrong_configuration_is_one_sentence_that_names_the_file(values, sentence, tmp_path):
    config = tmp_path / "mine.json"
    config.write_text(json.dumps(values))
    errors = fedlada("run", "--config", config, "--out", tmp_path / "r", code=2).stderr
    assert errors.startswith(f"fedlada: {config}: {sentence}")
    assert errors.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_wrong_flag_beside_a_configuration_is_not_blamed_on_the_file(finished, tmp_path):
    wrong = {("--lr", "-1"): "lr must be", ("--method", "fedavg", "--alpha", "0.1"): "fedavg has no"}
    for flags, sentence in wrong.items():
        errors = fedlada("run", "--config", finished[0] / "config.json", *flags, "--out", tmp_path / "r", code=2).stderr
        assert errors.startswith(f"fedlada: {sentence}")


def test_a_stored_configuration_runs_again_to_the_same_bits(finished, tmp_path):
    folder, _ = finished
    fedlada("run", "--config", folder / "config.json", "--out", tmp_path / "again", "--quiet")
    errors = fedlada("run", "--config", folder, "--out", tmp_path / "other", code=2).stderr
    assert errors == f"fedlada: {folder} is a folder: give its config.json, {folder / 'config.json'}\n"
    assert rows(tmp_path / "again") == rows(folder)
    first, second = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_flags_override_a_stored_configuration(finished, tmp_path):
    folder, _ = finished
    fedlada("run", "--config", folder / "config.json", "--alpha", 0.7, "--rounds", 2, "--out", tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["hyper"]["alpha"] == 0.7
    assert config["rounds"] == 2
    assert config["model"] == "mlp"


def test_json_and_quiet(tmp_path):
    done = fedlada("run", *QUICK, "--rounds", 2, "--json", "--out", tmp_path / "a")
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 2
    assert summary["folder"] == str(tmp_path / "a")
    done = fedlada("run", *QUICK, "--rounds", 2, "--quiet", "--out", tmp_path / "b")
    assert done.stdout == done.stderr == ""


def test_a_run_without_a_folder_makes_one(tmp_path):
    fedlada("run", *QUICK, "--rounds", 1, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-fedlada-digits-seed0")


@pytest.mark.parametrize("method", RECIPES)
def test_every_method_runs(method, tmp_path):
    fedlada("run", "--method", method, *QUICK, "--rounds", 2, "--out", tmp_path / method)
    assert len(rows(tmp_path / method)) == 2


def test_load_run_and_export(finished, tmp_path):
    folder, _ = finished
    run = library.load_run(folder)
    assert len(run.history) == 5
    assert run.config["method"] == "fedlada"
    assert run.experiment.rounds == 5
    run.export(tmp_path / "weights.safetensors")
    plain = mlp(10)
    plain.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(plain(x), run.model(x))
    assert run.best_model()(x).shape == (3, 10)


def test_evaluate(finished):
    folder, _ = finished
    report = json.loads(fedlada("evaluate", folder, "--json").stdout)
    assert report["test"]["accuracy"] == pytest.approx(rows(folder)[-1]["test_accuracy"])
    assert set(report["per_class"]) == {str(digit) for digit in range(10)}
    assert len(report["per_client"]) == 8
    assert report["worst_client"]["accuracy"] == min(report["per_client"].values())
    text = fedlada("evaluate", folder, "--best").stdout
    assert "worst client" in text
    assert "class 9" in text


def test_compare(tmp_path):
    arguments = ["compare", "--methods", "fedavg,fedlada", "--seeds", "0,1", *QUICK, "--rounds", 4, "--target", 0.05]
    done = fedlada(*arguments, "--alpha", 0.2, "--out", tmp_path)
    assert "[4/4]" in done.stderr
    assert "1.0 ± 0.0" in done.stdout
    assert "1.00x" in done.stdout
    table = (tmp_path / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table if line.startswith("| fed")] == ["| fedavg", "| fedlada"]
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    page = (tmp_path / "report.html").read_text()
    assert page.count('"label":"') == 4
    assert "fedlada compare --methods fedavg,fedlada --seeds 0,1 --model mlp" in page
    assert "--alpha 0.2" in page
    assert (tmp_path / "table.csv").read_text().count("\n") == 5
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "fedlada-seed1" / "config.json").read_text())["hyper"]["alpha"] == 0.2
    again = fedlada(*arguments, "--alpha", 0.2, "--jobs", 1, "--out", tmp_path, "--json")  # nothing is run twice
    assert json.loads(again.stdout)["methods"]["fedavg"]["rounds_to_target"] == [1, 1]
    never = fedlada(*arguments[:-1], 1.0, "--alpha", 0.2, "--jobs", 1, "--out", tmp_path)
    assert never.stdout.count("∞") >= 2


def test_compare_equals_single_runs(tmp_path):
    fedlada("compare", "--methods", "fedcm", "--seeds", "3", *QUICK, "--rounds", 3, "--out", tmp_path / "all")
    fedlada("run", "--method", "fedcm", "--seed", 3, *QUICK, "--rounds", 3, "--out", tmp_path / "one")
    assert rows(tmp_path / "all" / "fedcm-seed3") == rows(tmp_path / "one")


def test_a_failed_run_is_exit_code_one_and_its_sentence(tmp_path):
    common = [*QUICK, "--rounds", 3, "--lr", 1e38]
    done = fedlada("run", "--method", "fedavg", *common, "--out", tmp_path / "one", code=1)
    assert "the run has diverged, try a smaller learning rate" in done.stderr
    done = fedlada("compare", "--methods", "fedavg", "--seeds", "0", *common, "--out", tmp_path / "many", code=1)
    assert "fedavg, seed 0: round" in done.stderr


def test_two_runs_of_one_second_have_folders_of_their_own(monkeypatch):
    moments = iter([datetime(2026, 11, 16, 14, 41, 15, 341_000), datetime(2026, 11, 16, 14, 41, 15, 342_999)])

    class Clock:
        now = staticmethod(lambda: next(moments))

    monkeypatch.setattr("fedlada.workbench.cli.output.datetime", Clock)
    assert [new_folder("run").name for _ in range(2)] == ["20261116-144115.341-run", "20261116-144115.342-run"]


def test_methods_and_data_show(tmp_path):
    listed = json.loads(fedlada("methods", "--json").stdout)
    assert [row["method"] for row in listed] == list(RECIPES)
    assert (listed[-1]["down"], listed[-1]["up"]) == (3, 2)
    table = fedlada("methods").stdout
    assert max(len(line) for line in table.splitlines()) > 200  # a pipe does not cut it
    assert "v_start zero" in table
    on_cifar = json.loads(fedlada("methods", "--dataset", "cifar100", "--json").stdout)
    suited = preset("cifar100", "fedlada")
    shown = on_cifar[-1]["hyperparameters"]
    assert (on_cifar[-1]["lr"], on_cifar[-1]["lr_decay"], shown["beta2"]) == (suited["lr"], 0.998, 0.99)
    assert {**shown, **suited["hyper"]} == shown
    assert "equal search, test data, round 600: three seeds" in fedlada("methods", "--dataset", "cifar10").stdout
    shown = fedlada("data", "show", "digits", "--num-clients", 12, "--out", tmp_path / "partition.png")
    assert "1497 of 1497" in shown.stdout
    assert (tmp_path / "partition.png").stat().st_size > 10_000
    assert json.loads(fedlada("data", "show", "--json").stdout)["clients"] == 50


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "there is no command 'rnu'; did you mean 'run'?"),
        (["run", "--methd", "fedavg"], "'--methd'.*'--method'"),
        (["run", "--method", "fedlda"], "'fedlda' is not known; did you mean 'fedlada'?"),
        (["run", "--method", "fedavg", "--alpha", "0.1"], "fedavg has no hyperparameter 'alpha'; it has server_lr"),
        (["run", "--alpha", "2"], r"alpha must be in \(0, 1\], got 2.0"),
        (["run", "--alpha", "x"], "'x' is not a valid float"),
        (["run", "--clip-norm", "x"], "'x' is neither a number nor 'none'"),
        (["run", "--dataset", "digit"], "did you mean 'digits'?"),
        (["run", "--model", "resnet"], "model must be one of cnn-gn, mlp, lenet, .*, got 'resnet'"),
        (["run", "--model", "nowhere:net"], "the model 'nowhere:net' cannot be imported"),
        (["run", "--cohort-size", "60"], "cohort_size is 60, but there are only 50 clients"),
        (["run", "--num-clients", "100000000000"], "samples cannot be divided among 100000000000 clients"),
        (["run", "--num-clients", f"1{'0' * 26}"], f"samples cannot be divided among 1{'0' * 26} clients"),
        (["compare", "--num-clients", "100000000000"], "samples cannot be divided among 100000000000 clients"),
        (["data", "show", "digits", "--num-clients", "10000000000000"], "samples cannot be divided among 1000"),
        (["run", "--size-spread", "1e300"], "size_spread must be at most 100"),
        (["run", "--combiner", "private:0.4", "--noise-multiplier", "1e308"], "noise_multiplier must be at most"),
        (["run", "--seed", "-1"], r"seed must be between 0 and 2\^64 - 1, got -1"),
        (["compare", "--seeds", "0,18446744073709551616"], r"seed must be between 0 and 2\^64 - 1, got 1844"),
        (["run", "--out", ""], "the path is empty: name a folder, or . for the current one"),
        (["compare", "--out", ""], "the path is empty: name a folder, or . for the current one"),
        (["run", "--dataset", "npz", "--data-dir", ""], "data_dir is empty: name a folder"),
        (["run", "--rounds", "0"], "rounds must be a whole number of at least 1"),
        (["run", "--stop-at-target"], "stop_at_target needs a target"),
        (["run", "--local-epochs", "2", "--local-steps", "3"], "give local_epochs or local_steps, not both"),
        (["run", "--partition", "pathological", "--size-spread", "1"], "size_spread has no effect"),
        (["run", "--partition", "iid", "--concentration", "1"], "concentration has no effect on partition iid"),
        (["run", "--classes-per-client", "3"], "classes_per_client has no effect on partition dirichlet"),
        (["compare", "--partition", "iid", "--refill"], "refill has no effect on partition iid: leave it out"),
        (["sweep", "--set", "concentration=1,9", "--partition", "iid"], "concentration has no effect on partition iid"),
        (["sweep", "--set", "precision=auto,bf16", "--device", "cpu"], "precision bf16 has no effect on a CPU"),
        (
            ["data", "show", "--partition", "iid", "--concentration", "1"],
            "concentration has no effect on partition iid",
        ),
        (["run", "--target-delta", "1e-5"], "target_delta belongs to combiner private:CLIP: leave it out"),
        (["run", "--dataset", "docstrings", "--data-dir", "."], "data_dir has no effect on docstrings, which need no"),
        (["run", "--data-dir", "data"], "data_dir has no effect on digits, which need no files: leave it out"),
        (["run", "--device", "cuda:9"], "device 'cuda:9' cannot be used here"),
        (["run", "--config", "nowhere.json"], "there is no configuration nowhere.json"),
        (["run", "--config", "/"], "/ is a folder"),
        (["compare", "--methods", "fedavg,fedlda"], "did you mean 'fedlada'?"),
        (["compare", "--methods", "FedLADA,fedlada"], "'FedLADA,fedlada' names something twice"),
        (["compare", "--methods", "fedavg", "--alpha", "0.1"], "none of fedavg has the hyperparameter 'alpha'"),
        (["compare", "--seeds", "0,x"], "is not a list of numbers"),
        (["compare", "--seeds", "0,0"], "names something twice"),
        (["resume", "nowhere"], "nowhere is not a run's folder: it has no config.json"),
        (
            ["resume", "runs/x", "--lr", "0.3"],
            "a resumed run keeps its settings: only --rounds and --data-dir can change",
        ),
        (["resume", "runs/x", "--lrr", "0.3"], "No such option '--lrr'"),
        (["run", "--model", "resnet"], "did you mean 'resnet18-gn'?"),
        (["evaluate", "nowhere"], "nowhere is not a run's folder: it has no config.json"),
        (["run", "--model", ".nets:tiny"], "the model '.nets:tiny' cannot be imported: write package.module:factory"),
        (["run", "--model", ":tiny"], "the model ':tiny' cannot be imported: write package.module:factory"),
        (["run", "--num-clients", "0"], "num_clients must be a whole number of at least 1, got 0"),
        (["run", "--dataset", "docstrings", "--num-clients", "9"], "num_clients has no effect on a natural partition"),
        (
            ["run", "--dataset", "docstrings", "--cohorts", "bernoulli", "--cohort-size", "9999"],
            "cohort_size is 9999, but",
        ),
        (["run", "--dataset", "docstrings", "--cohort-size", "9999"], "cohort_size is 9999, but there are only"),
        (["run", "--partition", "natural"], "digits does not say which client a sample belongs to"),
        (["run", "--dataset", "folder", "--data-dir", ".", "--image-size", "0"], "image_size must be a whole number"),
        (["run", "--dataset", "folder"], "folder must be read from files: say where they lie with --data-dir"),
        (
            ["compare", "--dataset", "cifar10"],
            "there is no folder data/cifar-10-batches-py: fedlada data fetch cifar10 --data-dir data brings the",
        ),
        (["run", "--dataset", "mnist"], "there is no train-images-idx3-ubyte.gz in data/mnist: put the four official"),
        (
            ["compare", "--dataset", "cifar10", "--data-dir", "nowhere"],
            "there is no folder nowhere/cifar-10-batches-py",
        ),
        (["data", "show", "digit"], "'digit' is not known; did you mean 'digits'?"),
        (["data", "shw"], "there is no command 'shw'; did you mean 'show'?"),
        (["data", "show", "--lr", "0.1"], "No such option '--lr'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(arguments, sentence, tmp_path, monkeypatch, capsys):
    """In this process, because starting one for each sentence would take minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedlada", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    errors = capsys.readouterr().err
    assert re.search(sentence, errors)
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_path_of_home_is_there(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    x = np.random.default_rng(0).standard_normal((60, 4))
    np.savez(tmp_path / "home" / "mine.npz", x=x, y=np.arange(60) % 2)
    quick = ["--method", "fedavg", "--rounds", 1, "--quiet", "--cohort-size", 1, "--num-clients", 2]
    command("run", "--dataset", "npz", "--data-dir", "~/mine.npz", *quick, "--out", "~/first")
    command("resume", "~/first", "--rounds", 2, "--quiet")
    command("evaluate", "~/first", "--data-dir", "~/mine.npz", "--json")
    assert len(library.load_run("~/first").history) == 2
    net = torch.nn.Linear(4, 2)
    library.simulate(net, (x, np.arange(60) % 2), rounds=1, out="~/second", progress=False, method="fedavg")
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"first", "second", "mine.npz"}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    with pytest.raises(ValueError, match=r"^out is empty: name a folder, or \. for the current one$"):
        library.simulate(net, (x, np.arange(60) % 2), rounds=1, out="", progress=False, method="fedavg")


def test_wrong_usage_in_a_process():
    assert fedlada("run", "--alpha", "2", code=2).stderr == "fedlada: alpha must be in (0, 1], got 2.0\n"


def test_help_teaches_with_an_example_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    for command in (
        "",
        "run",
        "resume",
        "compare",
        "sweep",
        "evaluate",
        "report",
        "methods",
        "data show",
        "completion",
    ):
        text = CliRunner().invoke(command_line, [*command.split(), "--help"]).output
        lines += re.findall(r"^ +(fedlada .*)$", text, flags=re.MULTILINE)
    assert len(lines) >= 9
    run_shortened(lines, tmp_path)


def test_a_run_goes_on_where_its_data_lie_now_and_not_backwards(tmp_path):
    random = np.random.default_rng(0)
    np.savez(tmp_path / "here.npz", x=random.standard_normal((60, 5)), y=np.arange(60) % 3)
    few = ("--num-clients", 4, "--cohort-size", 2, "--rounds", 1)
    fedlada(
        "run",
        "--method",
        "FedLADA",
        "--dataset",
        "npz",
        "--data-dir",
        tmp_path / "here.npz",
        *few,
        "--out",
        tmp_path / "r",
    )
    (tmp_path / "here.npz").rename(tmp_path / "there.npz")
    fedlada("resume", tmp_path / "r", "--rounds", 2, code=2)
    fedlada("resume", tmp_path / "r", "--rounds", 2, "--data-dir", tmp_path / "there.npz")
    assert len(rows(tmp_path / "r")) == 2
    assert "-1 is not in the range" in fedlada("resume", tmp_path / "r", "--rounds", -1, code=2).stderr


def test_data_that_are_elsewhere_from_here_are_asked_for(tmp_path, monkeypatch, command):
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    np.savez("d.npz", x=np.random.default_rng(0).standard_normal((60, 5)), y=np.arange(60) % 3)
    few = ("--num-clients", 4, "--cohort-size", 2, "--rounds", 1, "--quiet")
    command("run", "--method", "fedavg", "--dataset", "npz", "--data-dir", "d.npz", *few, "--out", "r")
    monkeypatch.chdir(tmp_path / "here")
    folder = tmp_path / "there" / "r"
    said = (
        f"fedlada: there is no d.npz from {tmp_path / 'here'}, which is the data_dir that {folder / 'config.json'} "
        "names for the run's own data: say where they are now with --data-dir\n"
    )
    for words in (["resume", folder, "--rounds", 2], ["evaluate", folder]):
        assert command(*words, code=2).err == said
    there = ["--data-dir", tmp_path / "there" / "d.npz"]
    command("resume", folder, "--rounds", 2, "--quiet", *there)
    command("evaluate", folder, "--json", *there)


def test_a_folder_with_more_rounds_says_so(tmp_path, command):
    words = ["run", "--method", "fedavg", "--model", "mlp", "--local-steps", 1, "--out", tmp_path / "a"]
    command(*words, "--rounds", 3, "--quiet")
    said = command(*words, "--rounds", 2)
    assert "fedavg: 3 rounds" in said.out
    assert "sent; the folder already holds 3 rounds\n" in said.out


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("def (", "SyntaxError: .*"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("raise SystemError('one\\ntwo')", "SystemError: one two"),
        ("other = 1", "module 'broken' has no attribute 'tiny'"),
    ],
)
def test_a_model_whose_module_fails_is_one_sentence(module, reason, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match=rf"^the model 'broken:tiny' cannot be imported: {reason}$"):
        model_factory("broken:tiny")


def test_own_model_by_its_path(tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\ndef tiny():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    fedlada("run", "--model", "nets:tiny", "--rounds", 1, "--out", "r", cwd=tmp_path, PYTHONPATH=search)
    assert json.loads((tmp_path / "r" / "config.json").read_text())["model"] == "nets:tiny"


def test_completion():
    assert "_FEDLADA_COMPLETE=bash_complete" in fedlada("completion", "bash").stdout
    done = fedlada(code=0, _FEDLADA_COMPLETE="bash_complete", COMP_WORDS="fedlada run --meth", COMP_CWORD="2")
    assert "--method" in done.stdout


def test_tensorboard(tmp_path):
    fedlada("run", *QUICK, "--rounds", 2, "--tensorboard", "--out", tmp_path / "r")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "r" / "events"))
    events.Reload()
    assert [point.step for point in events.Scalars("test_accuracy")] == [1, 2]


def test_version():
    assert fedlada("--version").stdout == f"fedlada {library.__version__}\n"


def test_compare_interrupted_goes_on(tmp_path):
    """Ctrl-C in the middle saves every run, leaves no process behind, and the same command finishes them."""
    folders = [tmp_path / f"fedavg-seed{seed}" for seed in (0, 1)]
    flags = [*hold(tmp_path, num_runs=2), "--rounds", 8, "--out", tmp_path]
    arguments = ["compare", "--methods", "fedavg", "--seeds", "0,1", *flags]
    with running([*arguments, "--jobs", 2], session=True, cwd=tmp_path) as process:
        wait_until(lambda: all(map(num_rows, folders)), process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
        wait_until(lambda: "saving every run" in process.stderr, process)
        let_go(tmp_path)
        assert process.wait() == 130
        errors = process.stderr
    assert f"the same command with --out {tmp_path} resumes it" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not _num_living(process.pid), seconds=60)
    assert 1 <= min(len(rows(folder)) for folder in folders) < 8
    fedlada(*arguments, "--jobs", 1, "--json", cwd=tmp_path)
    assert [len(rows(folder)) for folder in folders] == [8, 8]


@pytest.mark.parametrize("processes", [2, 3])
def test_compare_interrupted_while_its_workers_start(processes, tmp_path):
    """Ctrl-C reaches workers that do not yet listen, too: nothing is lost, and nothing is left behind."""
    arguments = ["compare", "--methods", "fedavg", "--seeds", "0,1", *QUICK, "--rounds", 3, "--out", tmp_path]
    with running([*arguments, "--jobs", 2], session=True) as process:
        wait_until(lambda: _num_living(process.pid) > processes, process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 130
        errors = process.stderr
    assert f"the same command with --out {tmp_path} resumes it" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not _num_living(process.pid), seconds=60)
    fedlada(*arguments, "--jobs", 1, "--json")
    assert [len(rows(tmp_path / f"fedavg-seed{seed}")) for seed in (0, 1)] == [3, 3]


def _num_living(group: int) -> int:
    """How many processes of the group live; one that has ended and waits for its parent does not count."""
    living = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        living += int(its_group) == group and state not in "ZX"
    return living


def test_workers_die_with_a_killed_compare(tmp_path):
    words = ["compare", "--methods", "fedavg", "--seeds", "0,1", *QUICK, "--rounds", 100_000, "--jobs", 2]
    with running([*words, "--out", tmp_path], session=True) as process:
        wait_until(lambda: num_rows(tmp_path / "fedavg-seed0"), process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not _num_living(process.pid), seconds=60)


def test_config_for_another_method_takes_that_methods_rate(tmp_path):
    fedlada("run", "--method", "fedavg", *QUICK, "--rounds", 1, "--quiet", "--out", tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    other = build_experiment({"config": path, "method": "fedlada"})
    assert other.resolved().lr == preset("digits", "fedlada")["lr"]
    assert build_experiment({"config": path, "method": "fedlada", "lr": 0.7}).lr == 0.7
    by_epochs = build_experiment({"config": path, "local_epochs": 3})
    assert (by_epochs.local_steps, by_epochs.local_epochs) == (None, 3)
    assert build_experiment({"clip_norm": "none"}).hyper == {"clip_norm": None}


def test_config_for_another_data_set_takes_what_suits_that(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros((40, 4)), y=np.arange(40) % 2)
    stored = build_experiment(
        {"method": "fedlada", "dataset": "folder", "data_dir": "x", "image_size": 8, "alpha": 0.3}
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**stored.to_json(), "local_steps": 3}))
    given = {"config": path, "dataset": "npz", "data_dir": str(tmp_path / "mine.npz")}
    other = build_experiment(given)
    fresh = build_experiment({**given, "config": None, "local_steps": 3})
    assert other.to_json() == fresh.to_json()
    assert (other.resolved().model, other.image_size, other.hyper) == ("mlp", None, {})
    digits = build_experiment({"config": path, "dataset": "digits", "batch_size": 7, "lr": 0.7}).resolved()
    assert (digits.data_dir, digits.num_clients, digits.batch_size, digits.lr) == (None, 50, 7, 0.7)
    assert digits.hyper["v_init"] == preset("digits", "fedlada")["hyper"]["v_init"]
    assert build_experiment({"config": path, "dataset": "folder"}).resolved().hyper["alpha"] == 0.3  # the same data


def test_without_arguments_the_help_is_shown():
    assert "Commands:" in fedlada().stdout


def test_own_model_beside_the_user(tmp_path):
    """The installed command finds a module in the working folder, as `python -m` does."""
    (tmp_path / "beside.py").write_text(
        "from torch import nn\ndef tiny():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    command = [str(Path(sys.executable).with_name("fedlada")), "run", "--model", "beside:tiny", "--rounds", "1"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, check=False)
    assert run.returncode == 0, run.stderr


def test_a_full_gpu_is_one_sentence_and_the_run_goes_on(tmp_path):
    """As torch says it where there is a GPU: the place where it runs out is the model's."""
    (tmp_path / "hungry.py").write_text(
        "import os, torch\n"
        "class Hungry(torch.nn.Linear):\n"
        "    room = int(os.environ['ROOM'])\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 10)\n"
        "    def forward(self, x):\n"
        "        Hungry.room -= 1\n"
        "        if Hungry.room < 0:\n"
        "            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    words = ["run", *QUICK, "--model", "hungry:Hungry", "--rounds", "6", "--quiet", "--checkpoint-every", "1"]

    def run(room, folder):
        return warm([*words, "--out", folder], cwd=tmp_path, environments=[{"ROOM": str(room)}])

    full = run(30, "r")
    sentence = "fedlada: CUDA out of memory. Tried to allocate 2.00 GiB: a run with --engine sequential needs"
    assert full.returncode == 1
    assert re.fullmatch(f"{re.escape(sentence)}.*\n", full.stderr), full.stderr
    assert 0 < len(rows(tmp_path / "r")) < 6
    for folder in ("r", "alone"):
        assert run(10**9, folder).returncode == 0
    assert rows(tmp_path / "r") == rows(tmp_path / "alone")


def test_interrupted_before_the_first_evaluation(tmp_path):
    words = ["run", *QUICK, "--rounds", 5000, "--eval-every", 5000, "--out", tmp_path / "r"]
    with running(words) as process:
        wait_until(lambda: num_rows(tmp_path / "r"), process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 130
        out, errors = process.stdout, process.stderr
    assert "Traceback" not in errors
    assert re.search(r"rounds?\n", out)
    assert "stopped by SIGTERM" in out


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    """The run is stopped as soon as its first round is on disk, then goes on to the bits of a run never stopped."""
    words = ["run", *hold(tmp_path), "--rounds", 8]
    with running([*words, "--out", tmp_path / "r"], cwd=tmp_path) as process:
        wait_until(lambda: num_rows(tmp_path / "r"), process)
        os.kill(process.pid, signal.SIGINT)
        let_go(tmp_path)
        assert process.wait() == 130
        errors = process.stderr
    assert f"continue with: fedlada resume {tmp_path / 'r'}" in errors
    assert 1 <= len(rows(tmp_path / "r")) < 8
    fedlada("resume", tmp_path / "r", "--trust", "--quiet", cwd=tmp_path)
    fedlada(*words, "--out", tmp_path / "whole", "--quiet", cwd=tmp_path)
    assert rows(tmp_path / "r") == rows(tmp_path / "whole")
