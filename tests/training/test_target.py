"""Targets of any metric, and which way is better."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

import fedlada
from fedlada import recipes
from fedlada.training.history import History
from fedlada.training.observers import StopWithout
from fedlada.training.target import Target, declared, is_same_judge, judged_by, lower_is_better
from tasks import blobs, small_net

X, Y = blobs()
PRICES = X.sum(axis=1, keepdims=True)
ROWS = [{"round": 1, "test_loss": 0.5, "bytes_up": 1, "bytes_down": 2}, {"round": 2, "test_loss": 0.2, "extra": 1}]


def run(y=Y, outputs=3, **changes):
    values = {"test": (X, y), "method": recipes.fedavg(), "rounds": 6, "lr": 0.02, "batch_size": 20, "device": "cpu"}
    return fedlada.simulate(small_net(outputs), (X, y), **{**values, **changes})


def test_a_target_is_an_accuracy_or_names_its_metric():
    assert Target.parse(0.9) == Target.parse("0.9") == Target("test_accuracy", 0.9)
    assert Target.parse("test_loss:1e-2") == Target("test_loss", 0.01)
    assert (str(Target.parse(0.9)), str(Target.parse("test_loss:0.1"))) == ("0.9", "test loss 0.1")


@pytest.mark.parametrize("text", ["loss", "test_loss:", ":0.1", "test_loss:low", "nan", "test_loss:inf", True])
def test_what_is_no_target(text):
    with pytest.raises(ValueError, match="must be"):
        Target.parse(text)


def test_accuracies_are_shares():
    with pytest.raises(ValueError, match=r"target must be in \[0, 1\], got 1.5"):
        Target.parse(1.5)
    assert Target.parse("test_loss:1.5").value == 1.5


def test_lower_is_better_for_losses_and_errors():
    lower = ("test_loss", "validation_loss", "test_rmse", "test_perplexity", "full_train_loss", "test_loss_of_mean")
    assert all(map(lower_is_better, lower))
    assert not any(map(lower_is_better, ("test_accuracy", "test_f1", "test_accuracy_of_mean")))
    assert Target("test_loss", 0.3).is_reached_by(0.3)
    assert not Target("test_loss", 0.3).is_reached_by(0.31)
    assert Target("test_accuracy", 0.3).is_reached_by(0.3)
    assert not Target("test_accuracy", 0.3).is_reached_by(0.29)


def test_the_words_of_a_name_say_which_way_is_better():
    lower = "nll ece brier_score wer cer mape rmsle distance RMSE cross_entropy kl_divergence client_accuracy_std"
    higher = "acc auroc f1 R2 mIoU dice exact_match acc5 top-5 mAP50 bleu f1_macro score"
    assert [name for name in lower.split() if not lower_is_better(f"test_{name}")] == []
    assert [name for name in higher.split() if lower_is_better(f"test_{name}")] == []


def test_a_prefix_says_which_way_is_better():
    assert lower_is_better("min:test_gain")
    assert not lower_is_better("max:test_gain")
    assert lower_is_better("min:test_accuracy")  # whatever the name says
    target = Target.parse("max:test_gain:3")
    assert (target, target.column, str(target)) == (Target("max:test_gain", 3.0), "test_gain", "test gain 3")
    assert target.is_reached_by(3.5)
    assert not target.is_reached_by(2.5)


@pytest.mark.parametrize("name", ["test_gain", "test_lossless", "test_mapping", "seconds"])
def test_a_name_that_does_not_say_it_is_refused(name):
    with pytest.raises(ValueError, match=f"does not say .* write 'min:{name}' or 'max:{name}'"):
        lower_is_better(name)


def test_a_stored_metric_is_the_same_only_in_the_same_direction():
    assert is_same_judge("test_nll", "min:test_nll")
    assert is_same_judge("test_gain", "max:test_gain")  # as earlier versions took it
    assert not is_same_judge("test_gain", "min:test_gain")
    assert not is_same_judge("min:test_gain", "min:test_loss")


def test_a_run_is_judged_by_accuracy_where_there_is_one():
    assert judged_by({"test_loss", "test_accuracy"}) == judged_by(set()) == "test_accuracy"
    assert judged_by({"test_loss", "test_rmse"}) == "test_loss"
    assert judged_by({"test_loss", "validation_accuracy"}) == "test_loss"
    assert judged_by({"validation_loss", "validation_accuracy", "client_accuracy"}) == "validation_accuracy"
    assert judged_by({"validation_loss", "client_loss"}) == "validation_loss"
    assert judged_by({"client_loss", "nodes_accuracy"}) == "client_loss"
    assert judged_by({"nodes_loss", "nodes_accuracy"}) == "nodes_accuracy"
    assert judged_by({"nodes_loss", "nodes_samples"}) == "nodes_loss"


def test_without_test_data_a_history_is_judged_by_the_validation():
    history = run(test=None, validation=(X, Y)).history
    found = history["validation_accuracy"]
    assert found[0] < max(found) == history.best()
    first = found.index(max(found)) + 1
    assert history.rounds_to(max(found)) == history.rounds_to(max(found), "validation_accuracy") == first
    assert history.bytes_to(max(found)) == sum(row["bytes_up"] + row["bytes_down"] for row in history[:first])
    assert "best validation accuracy" in repr(history)
    both = run(validation=(X, Y)).history
    assert both.rounds_to(max(both["test_accuracy"])) == both.rounds_to(max(both["test_accuracy"]), "test_accuracy")
    assert run(PRICES, 1, test=None, validation=(X, PRICES)).history.rounds_to(1.0) is None  # never of a loss


def test_a_history_without_accuracy_has_a_best_loss():
    history = History(ROWS)
    assert history.best() == history.best("test_loss") == 0.2
    assert (history.rounds_to(0.3, "test_loss"), history.rounds_to(0.1, "test_loss")) == (2, None)
    assert history.bytes_to(0.6, "test_loss") == 3
    assert History([]).best() is None


def test_columns_that_are_not_there_are_one_sentence_everywhere():
    result = run(rounds=1)
    for ask in (result.history.best, result.history.__getitem__, result.plot):
        with pytest.raises(KeyError, match=r"the history has no column 'bogus'; it has .*test_accuracy"):
            ask("bogus")


def test_a_run_ends_at_a_target_of_any_metric():
    whole = run(PRICES, 1).history["test_loss"]
    assert whole == sorted(whole, reverse=True)
    stopped = run(PRICES, 1, stop_at={"test_loss": whole[2]})
    assert len(stopped.history) == 3
    assert stopped.stopped == f"reached a test loss of {whole[2]:.4f} in round 3"
    own = run(
        PRICES, 1, metrics={"rmse": lambda output, y: (output - y).square().mean().sqrt()}, stop_at={"test_rmse": 99.0}
    )
    assert len(own.history) == 1


def test_a_run_with_a_metric_that_names_no_direction():
    gain = {"gain": lambda output, y: -float((output - y).square().mean())}
    listed = run(PRICES, 1, metrics=gain)
    assert "test_gain" in repr(listed)  # a list needs no direction
    values = listed.history["test_gain"]
    assert values == sorted(values)
    assert (listed.history.best("max:test_gain"), listed.history.best("min:test_gain")) == (values[-1], values[0])
    assert listed.history.rounds_to(values[2], "max:test_gain") == 3
    assert listed.history.rounds_to(values[2], "min:test_gain") == 1
    stopped = run(PRICES, 1, metrics=gain, stop_at={"max:test_gain": values[2]})
    assert stopped.stopped == f"reached a test gain of {values[2]:.4f} in round 3"
    lost = run(PRICES, 1, metrics=gain, best="min:test_gain", patience=2)
    assert lost.stopped == f"test gain did not improve in 2 evaluations after round 1, which had {values[0]:.4f}"
    asked = [lambda: listed.history.best("test_gain"), lambda: listed.history.rounds_to(0.0, "test_gain")]
    asked += [lambda own=own: run(PRICES, 1, metrics=gain, **own) for own in BARE]
    for ask in asked:
        with pytest.raises(ValueError, match=r"'test_gain' does not say .* 'min:test_gain' or 'max:test_gain'$"):
            ask()


BARE = ({"best": "test_gain"}, {"stop_at": {"test_gain": 1.0}}, {"best": "test_gain", "patience": 3})
"""Metrics to judge by that do not say which way is better."""


def test_an_accuracy_to_stop_at_is_that_which_judges_the_run():
    for changes, metric in (
        ({"test": None, "validation": (X, Y)}, "validation accuracy"),
        ({"test": None, "client_test": 0.5}, "client accuracy"),
        ({"validation": (X, Y)}, "accuracy"),
        ({"test": None, "client_test": 0.5, "personal": "2.bias"}, "client accuracy"),
    ):
        stopped = run(stop_at_accuracy=0.0, **changes)
        assert len(stopped.history) == 1 == stopped.history.rounds_to(0.0)
        assert re.fullmatch(rf"reached an? {metric} of 0\.\d+ in round 1", stopped.stopped), stopped.stopped


def test_either_of_two_targets_ends_a_run():
    assert len(run(stop_at={"test_loss": 0.0}, stop_at_accuracy=0.0).history) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"stop_at_accuracy": 0.9},
            r"there is no accuracy to stop at with the loss mse_loss: use stop_at=\{'test_loss': \.\.\.\}",
        ),
        (
            {"stop_at_accuracy": 0.9, "test": None, "validation": (X, PRICES)},
            r"there is no accuracy to stop at with the loss mse_loss: use stop_at=\{'validation_loss'",
        ),
        (
            {"stop_at": {"test_acuracy": 0.9}},
            "'test_acuracy' is not measured in this run, which has train_loss, test_loss",
        ),
        ({"stop_at": 0.9}, r"stop_at must be a dict such as \{'test_loss': 0.1\}, got 0.9"),
        ({"stop_at": {"test_loss": "low"}}, "the target of test_loss must be a number"),
        ({"best": "test_accuracy"}, "'test_accuracy' is not measured in this run"),
        (
            {"best": "test_loss", "test": None},
            "'test_loss' is not measured in this run, which has train_loss; give test=",
        ),
    ],
)
def test_targets_that_no_round_can_reach_are_refused(changes, sentence):
    rounds = []
    with pytest.raises(ValueError, match=sentence):
        run(PRICES, 1, callbacks=[lambda *_: rounds.append(1)], **changes)
    assert not rounds


def test_what_is_measured_can_be_named():
    validation = {"validation": (X, PRICES), "eval_train_every": 1}
    for metric in ("train_loss", "validation_loss", "full_train_loss"):
        assert len(run(PRICES, 1, stop_at={metric: 1e9}, **validation).history) == 1
    other = run(method=recipes.feddyn(), stop_at={"test_accuracy_of_mean": 0.0})
    assert len(other.history) == 1


def test_a_target_with_a_prefix_is_found_again(tmp_path):
    """A finished run is not trained further."""
    gain = {"gain": lambda output, y: -float((output - y).square().mean())}
    settings = {"metrics": gain, "stop_at": {"max:test_gain": -1e9}, "out": tmp_path}
    assert [len(run(PRICES, 1, **settings).history) for _ in range(2)] == [1, 1]


def test_a_metric_of_each_client_without_a_direction_has_no_worst():
    gain = {"gain": lambda output, y: -float((output - y).square().mean())}
    row = run(PRICES, 1, metrics=gain, client_test=0.2).history[-1]
    assert {"client_gain", "client_gain_std", "client_loss_worst_decile"} <= row.keys()
    assert "client_gain_worst_decile" not in row


def test_a_run_is_resumed_before_its_first_evaluation(tmp_path):
    values = {"eval_every": 3, "out": tmp_path, "checkpoint_every": 1}
    assert len(run(callbacks=[lambda simulation, _: simulation.pause("asked to stop")], **values).history) == 1
    resumed = run(stop_at={"test_accuracy": 0.0}, **values)
    assert (len(resumed.history), resumed.stopped[:19]) == (3, "reached an accuracy")


def test_the_words_of_a_name_are_read_once():
    lower_is_better("test_read_once_accuracy")
    read = declared.cache_info().misses
    lower_is_better("test_read_once_accuracy")
    assert declared.cache_info().misses == read


class CountedRow(dict):
    reads = 0

    def get(self, *key):
        CountedRow.reads += 1
        return super().get(*key)

    def items(self):
        CountedRow.reads += 1
        return super().items()


def test_patience_reads_each_row_a_fixed_number_of_times(monkeypatch):
    """Whoever reads the whole history after every round makes long runs slow."""
    monkeypatch.setattr(CountedRow, "reads", 0)
    stops = []
    simulation = SimpleNamespace(history=History(), stop=stops.append)
    observer = StopWithout(patience=60)
    observer.on_start(simulation, 100)
    for number in range(1, 101):
        row = CountedRow(round=number, test_accuracy=min(number, 40) / 100)
        simulation.history.rows.append(row)
        observer.on_round(simulation, row)
    assert stops == ["test accuracy did not improve in 60 evaluations after round 40, which had 0.4000"]
    assert CountedRow.reads < 300
