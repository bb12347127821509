"""Results and histories as a person sees them, progress where one watches, and Ctrl-C."""

from __future__ import annotations

import io
import signal
import sys

import pytest
import torch
from torch import nn

import fedlada
from fedlada import recipes
from fedlada.training.history import History
from fedlada.training.progress import somebody_watches
from tasks import blobs, small_net

X, Y = blobs(num_samples=120)


def run(model=None, **changes):
    values = {"test": (X, Y), "method": recipes.fedavg(), "rounds": 3, "lr": 0.1, "batch_size": 20}
    return fedlada.simulate(model or small_net(), (X, Y), **{**values, **changes})


def test_a_printed_result_is_one_screen():
    result = run(rounds=30, eval_every=2)
    lines = str(result).splitlines()
    assert lines[0] == "Result of fedavg: all 30 rounds were run"
    assert "Sequential with 67 parameters trained by cross_entropy; " in lines[1]
    assert lines[2].startswith("History of 30 rounds, best test accuracy 0.")
    assert lines[3].split() == ["round", "train_loss", "test_loss", "test_accuracy"]
    assert [line.split()[0] for line in lines[4:]] == ["1", "2", "3", "4", "5", "...", "26", "27", "28", "29", "30"]
    assert max(map(len, lines)) <= 80


def test_a_stored_run_is_shown_by_its_history(tmp_path):
    history = run(out=tmp_path / "<b>").history
    stored = fedlada.load_run(tmp_path / "<b>", small_net())
    assert str(stored) == f"Run in {tmp_path}/<b>, its model after round 3\n{history}"
    assert stored._repr_html_() == f"<p>Run in {tmp_path}/&lt;b&gt;, its model after round 3</p>{history._repr_html_()}"


def test_a_table_names_the_columns_that_do_not_fit():
    rows = [{"round": 1, "train_loss": 0.5, **{f"test_metric_{number}": 0.25 for number in range(9)}}]
    lines = str(History(rows)).splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1].startswith("and test_metric_")
    assert lines[-1].endswith("test_metric_8")


def test_numbers_that_callbacks_added_are_columns():
    result = run(callbacks=[lambda _, row: row.update(worst=0.5)])
    assert str(result.history).splitlines()[1].split()[-1] == "worst"


def test_a_history_without_rounds_says_so():
    assert str(History()) == "History of 0 rounds"
    assert str(History([{"round": 1, "train_loss": 1.0}])).startswith("History of 1 round\n")


def test_a_notebook_gets_a_table_without_anyones_markup():
    result = run(rounds=12, name="<b>mine</b>", metrics={"<i>": lambda *_: 0.5})
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + 11
    assert "&lt;b&gt;mine" in page
    assert "<th>test_&lt;i&gt;</th>" in page
    assert "<b>" not in page


def test_the_model_comes_back_in_evaluation_mode_and_can_be_trained_on():
    net = nn.Sequential(small_net(), nn.Dropout(0.5))
    result = run(net)
    assert net.training
    assert not any(module.training for module in result.model.modules())
    assert not result.client_model(0)[1].training
    again = run(result.model)
    with_fresh_mode = run(result.model.train())
    assert again.history["train_loss"] == with_fresh_mode.history["train_loss"]


class Terminal(io.StringIO):
    """Standard error that says it is one."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("progress", "shown"), [(None, True), (False, False)])
def test_progress_shows_on_a_terminal_unless_it_is_switched_off(progress, shown, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run(progress=progress)
    assert ("3/3" in terminal.getvalue()) == shown


@pytest.mark.parametrize("columns", [60, 150])
def test_the_live_line_has_the_accuracy_however_narrow(columns, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    last = run().history[-1]["test_accuracy"]
    assert f"test accuracy {last:.4f}" in terminal.getvalue()


def test_progress_does_not_show_in_a_pipe(capsys):
    assert not somebody_watches()
    run()
    assert capsys.readouterr().err == ""


def press_ctrl_c(_, row):
    if row["round"] == 2:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Also where the tests run in the background, whose processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_raises_in_a_script(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(callbacks=[press_ctrl_c], out=tmp_path)


def test_ctrl_c_at_a_prompt_gives_the_result_so_far_and_the_same_call_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    so_far = run(callbacks=[press_ctrl_c], out=tmp_path)
    assert so_far.stopped == "stopped from the keyboard after round 2 of 3"
    assert so_far.history["round"] == [1, 2]
    whole, straight = run(out=tmp_path), run()
    assert whole.history["test_loss"] == straight.history["test_loss"]


def test_ctrl_c_before_the_first_round_is_over_raises_everywhere(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    def metric(*_):
        if simulating:
            signal.raise_signal(signal.SIGINT)
        return 0.0

    class Simulating(fedlada.Observer):
        def on_start(self, simulation, num_rounds):
            simulating.append(True)

    simulating = []
    with pytest.raises(KeyboardInterrupt):
        run(metrics={"slow": metric}, callbacks=[Simulating()])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"callbacks": press_ctrl_c}, r"callbacks must be a list: callbacks=\[press_ctrl_c\]"),
        ({"callbacks": [3]}, r"a callback must be a function \(simulation, row\) or a fedlada.Observer, got 3"),
        ({"callbacks": [lambda _: None]}, "a callback must be a function .*: <lambda> is neither"),
        ({"callbacks": [fedlada.Observer]}, "a callback must be a function .*: Observer is neither"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
        ({"metrics": [len]}, "metrics must be a dict of functions by name"),
    ],
)
def test_small_slips_are_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(**wrong)


def test_a_precision_goes_by_its_name_and_one_without_effect_is_said():
    assert run(dtype="float64", rounds=1).server.params.dtype == torch.float64
    result = run(precision="bf16", rounds=1)
    assert result.stopped == "the one round was run"
    assert "precision bf16 is the stacked engine's on a GPU and has no effect here" in result.engine_reason
