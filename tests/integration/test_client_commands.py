"""`--client-test`, `--personal-steps` and `--personal` on the command line, resumed, evaluated and under torchrun."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from command_line import fedlada, rows, several

SMALL = [
    "--model", "mlp", "--num-clients", 8, "--cohort-size", 4, "--batch-size", 20, "--local-steps", 3, "--lr", 0.01,
    "--seed", 2, "--device", "cpu",
]  # fmt: skip
HEAD = ["--client-test", 0.25, "--personal", "3.*", "--personal-steps", 2]


def test_run_resume_and_evaluate(command, tmp_path):
    """The numbers of the last round are those of the stored models, client by client."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    out = command("run", *SMALL, *HEAD, "--rounds", 4, "--out", whole).out
    assert "each client's held-out samples: accuracy 0." in out
    assert "the same after its own steps: accuracy 0." in out
    command("run", *SMALL, *HEAD, "--rounds", 2, "--out", parts, "--quiet")
    command("resume", parts, "--rounds", 4, "--quiet")
    assert rows(parts) == rows(whole)
    assert (parts / "client_metrics.jsonl").read_text() == (whole / "client_metrics.jsonl").read_text()
    report = json.loads(command("evaluate", parts, "--json").out)
    last = json.loads((parts / "client_metrics.jsonl").read_text().splitlines()[-1])
    assert list(report["per_client"].values()) == pytest.approx(last["client_accuracy"])
    assert list(report["after_own_steps"]["per_client"].values()) == last["personal_accuracy"]
    assert report["clients_by"] == "held-out samples"
    assert "test" not in report  # there is no single model
    shown = command("evaluate", parts).out
    assert "clients' held-out samples, worst decile" in shown
    assert "after steps of their own in round 4, mean" in shown
    assert "test_accuracy" not in rows(whole)[-1]


def test_a_share_alone_leaves_the_test_set_in_use(command, tmp_path):
    command("run", *SMALL, "--client-test", 0.25, "--rounds", 2, "--out", tmp_path, "--quiet")
    row = rows(tmp_path)[-1]
    assert {"test_accuracy", "client_accuracy", "client_accuracy_worst_decile", "client_accuracy_std"} <= set(row)
    report = json.loads(command("evaluate", tmp_path, "--json").out)
    assert report["test"]["accuracy"] == pytest.approx(row["test_accuracy"])
    values = list(report["per_client"].values())
    assert sum(values) / len(values) == pytest.approx(row["client_accuracy"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--personal", "3.*"], "--personal needs the clients' test samples: add --client-test 0.2"),
        (["--personal-steps", 2], "--personal-steps needs the clients' test samples"),
        (["--personal", "3.*", "--client-test", 0.2, "--validation", 0.2], "use --client-test, not --validation"),
        (["--personal", "head", "--client-test", 0.2], "no trained parameter is named 'head'; there are 1.weight"),
        (["--client-test", 2], "client_test must be in (0, 1), got 2.0"),
    ],
)
def test_wrong_flags_are_one_sentence(command, tmp_path, flags, sentence):
    assert sentence in command("run", *SMALL, *flags, "--rounds", 1, "--out", tmp_path / "run", code=2).err


def test_several_processes_equal_one_to_the_bit(tmp_path):
    """Each keeps the personal parameters of all clients, and each tests all of them."""
    common = ["run", "--method", "fedlada", "--rounds", 3, *SMALL, *HEAD]
    fedlada(*common, "--out", tmp_path / "one", "--quiet")
    several(2, [*common, "--ordered", "--out", tmp_path / "two"])
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    values = [(tmp_path / name / "client_metrics.jsonl").read_text() for name in ("one", "two")]
    assert values[0] == values[1]
    for file in (tmp_path / "one" / "checkpoints").glob("*.safetensors"):
        one, two = load_file(file), load_file(tmp_path / "two" / "checkpoints" / file.name)
        assert all(torch.equal(two[name], value) for name, value in one.items()), file.name
