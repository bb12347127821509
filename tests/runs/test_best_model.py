"""The best model of a run, by the metric that suits it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from fedlada.server import SGD
from safetensors import safe_open

import fedlada
from fedlada import recipes
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Upload
from tasks import blobs, small_net

X, Y = blobs()
PRICES = X.sum(axis=1, keepdims=True)
RATES = (0.02, 0.05, 0.05, 0.4, 0.5, 0.6)
"""Too large in the end: the loss goes up again."""


def run(out, y=PRICES, outputs=1, rounds=6, **changes):
    values = {"test": (X, y), "method": recipes.fedavg(), "lr": lambda round: RATES[round - 1], "checkpoint_every": 2}
    return fedlada.simulate(
        small_net(outputs), (X, y), rounds=rounds, out=out, batch_size=20, device="cpu", **{**values, **changes}
    )


def kept(folder):
    with safe_open(folder / "checkpoints" / "best.safetensors", "pt") as file:
        about = file.metadata()
        return about["metric"], int(about["round"]), file.get_tensor("params")


def test_of_a_regression_the_lowest_loss_is_kept(tmp_path):
    models = []
    result = run(tmp_path, callbacks=[lambda simulation, _: models.append(simulation.server.params)])
    losses = result.history["test_loss"]
    best = losses.index(min(losses))
    assert 0 < best < 5
    metric, round, params = kept(tmp_path)
    assert (metric, round) == ("test_loss", best + 1)
    assert torch.equal(params, models[best])
    assert result.history.best() == min(losses)
    model, found = fedlada.load_run(tmp_path, small_net(1)).best()
    assert found == best + 1
    assert fedlada.evaluate(model, (X, PRICES))["loss"] == pytest.approx(min(losses))


def test_clients_alone_judge_where_there_is_no_test_set(tmp_path):
    by_loss = run(tmp_path / "loss", test=None, client_test=0.3, rounds=2).history
    assert by_loss.best() == min(by_loss["client_loss"])
    assert kept(tmp_path / "loss")[0] == "client_loss"
    by_accuracy = run(tmp_path / "accuracy", Y, 3, test=None, client_test=0.3, rounds=2).history
    assert by_accuracy.best() == max(by_accuracy["client_accuracy"])
    with_test = run(tmp_path / "test", Y, 3, client_test=0.3, rounds=2).history
    assert with_test.best() == max(with_test["test_accuracy"])
    own = run(tmp_path / "own", Y, 3, test=None, client_test=0.3, rounds=2, personal="2.*").history
    assert own.best() == max(own["client_accuracy"])
    assert not (tmp_path / "own" / "checkpoints" / "best.safetensors").exists()  # no model is everybody's


def test_the_validation_judges_where_there_is_no_test_set(tmp_path):
    """Also of clients that are tested: it is there to choose by."""
    history = run(tmp_path, Y, 3, test=None, validation=(X, Y), client_test=0.3).history
    found = history["validation_accuracy"]
    assert kept(tmp_path)[:2] == ("validation_accuracy", found.index(max(found)) + 1)
    model = fedlada.load_run(tmp_path, small_net(3)).best_model()
    assert fedlada.evaluate(model, (X, Y))["accuracy"] == pytest.approx(max(found))


def test_a_best_model_stays_that_of_one_metric(tmp_path):
    """A part of a run may go on without the test set that it began with."""
    data = {"test": (X, Y), "validation": (X[:10], Y[:10])}
    run(tmp_path, Y, 3, rounds=2, **data)
    before = kept(tmp_path)
    history = run(tmp_path, Y, 3, rounds=6, **{**data, "test": None}).history
    assert max(history["validation_accuracy"][2:]) > history.best()
    assert kept(tmp_path)[:2] == before[:2]
    assert before[0] == "test_accuracy"


def test_a_stored_run_is_plotted_as_its_result(tmp_path):
    result = run(tmp_path / "named", Y, 3, rounds=3, test=None, validation=(X, Y), name="wide")
    stored = fedlada.load_run(tmp_path / "named", small_net(3))
    for one in (result, stored):
        (axes,) = one.plot().axes
        assert axes.get_ylabel() == "validation accuracy"
        assert axes.get_legend_handles_labels()[1] == ["wide"]
        assert axes.lines[0].get_ydata().tolist() == result.history["validation_accuracy"]
        assert one.plot("train_loss").axes[0].get_ylabel() == "train loss"
        with pytest.raises(KeyError, match="the history has no column 'bogus'"):
            one.plot("bogus")
    run(tmp_path / "plain", rounds=1)
    (axes,) = fedlada.load_run(tmp_path / "plain", small_net(1)).plot().axes
    assert axes.get_legend_handles_labels()[1] == ["fedavg"]


def test_patience_ends_a_run_that_no_longer_improves(tmp_path):
    whole = run(None).history["test_loss"]
    best = whole.index(min(whole))
    assert 0 < best < 4
    result = run(tmp_path / "whole", patience=2)
    assert result.history["test_loss"] == whole[: best + 3]
    assert result.stopped.startswith(f"test loss did not improve in 2 evaluations after round {best + 1}, which had ")
    run(tmp_path / "parts", patience=2, rounds=best + 2)
    again = run(tmp_path / "parts", patience=2)
    assert (again.history["test_loss"], again.stopped) == (result.history["test_loss"], result.stopped)
    assert len(run(tmp_path / "parts", patience=2).history) == best + 3  # it has ended
    assert len(run(tmp_path / "parts").history) == 6  # and goes on where nobody is impatient
    for named in ({"best": "validation_loss"}, {}):
        assert len(run(None, test=None, validation=(X, PRICES), patience=2, **named).history) == best + 3
    with pytest.raises(ValueError, match=r"'test_accuracy' is not measured in this run.*give test="):
        run(None, test=None, patience=2)
    with pytest.raises(ValueError, match="patience must be a whole number of at least 1, got 0"):
        run(None, patience=0)


def test_values_that_are_no_numbers_count_for_nothing(tmp_path):
    """They are not stored, and a resumed run would end elsewhere if they counted."""
    rounds = []

    def odd(_output, _y):
        return len(rounds) if len(rounds) > 1 else float("nan")

    options = {
        "metrics": {"odd": odd},
        "best": "max:test_odd",
        "patience": 1,
        "callbacks": [lambda *_: rounds.append(1)],
    }
    result = run(tmp_path, **options)
    assert result.history["test_odd"][:2] == [None, None]
    assert len(result.history) == 6
    assert kept(tmp_path)[:2] == ("max:test_odd", 6)


def test_fewer_rounds_than_a_folder_has_are_refused(tmp_path):
    run(tmp_path, rounds=4)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        ValueError, match="has 4 rounds, more than rounds=2: give as many or more, or take another fold"
    ):
        run(tmp_path, rounds=2)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(run(tmp_path, rounds=4).history) == 4


def test_the_metric_can_be_chosen(tmp_path):
    by_loss = run(tmp_path / "loss", Y, 3, best="test_loss").history
    run(tmp_path / "usual", Y, 3)
    own = {"worst": lambda output, y: -float((output.argmax(dim=1) == y).double().mean())}
    run(tmp_path / "own", Y, 3, metrics=own, best="max:test_worst")
    losses, accuracies = by_loss["test_loss"], by_loss["test_accuracy"]
    expected = {
        "loss": ("test_loss", losses.index(min(losses)) + 1),
        "usual": ("test_accuracy", accuracies.index(max(accuracies)) + 1),
        "own": ("max:test_worst", accuracies.index(min(accuracies)) + 1),
    }
    assert len({round for _, round in expected.values()}) > 1
    assert {name: kept(tmp_path / name)[:2] for name in expected} == expected


def test_a_run_that_goes_on_keeps_what_is_best_of_all(tmp_path):
    run(tmp_path / "whole", Y, 3, best="test_loss")
    for rounds in (2, 5, 6):
        run(tmp_path / "parts", Y, 3, rounds=rounds, best="test_loss")
    whole, parts = (kept(tmp_path / name) for name in ("whole", "parts"))
    assert whole[:2] == parts[:2]
    assert torch.equal(whole[2], parts[2])


def test_another_metric_than_before_is_refused(tmp_path):
    run(tmp_path, Y, 3, rounds=2)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match="keeps its best model by test_accuracy, not test_loss: leave best out"):
        run(tmp_path, Y, 3, rounds=4, best="test_loss")
    assert (tmp_path / "config.json").read_bytes() == before
    run(tmp_path, Y, 3, rounds=4)
    run(tmp_path / "named", Y, 3, rounds=2, best="test_loss")
    with pytest.raises(ValueError, match="keeps its best model by test_loss, not test_accuracy: set best to test_loss"):
        run(tmp_path / "named", Y, 3, rounds=4)


def test_a_metric_that_comes_later_leaves_the_best_model_alone(tmp_path):
    """A callback measures, from round 3 on, the metric that would have judged the run from its first round."""

    def measure(_simulation, row):
        if row["round"] >= 3:
            row["test_accuracy"] = 0.1 * row["round"]

    for name, parts in (("whole", [6]), ("parts", [4, 6])):
        for rounds in parts:
            run(tmp_path / name, Y, 3, rounds=rounds, test=None, client_test=0.3, callbacks=[measure])
    whole, parts = (kept(tmp_path / name) for name in ("whole", "parts"))
    assert whole[:2] == parts[:2]
    assert whole[0] == "client_accuracy"
    assert torch.equal(whole[2], parts[2])


def test_the_best_model_is_that_of_the_lowest_likelihood_lost(tmp_path):
    nll = {"nll": lambda output, y: torch.nn.functional.cross_entropy(output, y)}
    history = run(tmp_path, Y, 3, metrics=nll, best="test_nll").history
    assert kept(tmp_path)[:2] == ("test_nll", history["test_nll"].index(min(history["test_nll"])) + 1)


def feddyn(out, **changes):
    return run(out, Y, 3, method=recipes.feddyn(), cohort_size=4, lr=0.1, **changes)


def test_the_best_model_is_the_one_that_the_metric_is_of(tmp_path):
    """A server optimizer's other model is judged by its own metrics, also where a metric's name only looks like one."""
    others = {}

    def remember(simulation, row):
        server = simulation.server
        others[row["round"]] = server.params - server.optimizer["h"]

    history = feddyn(tmp_path / "mean", best="test_accuracy_of_mean", callbacks=[remember]).history
    _, round, params = kept(tmp_path / "mean")
    assert torch.equal(params, others[round])
    model = fedlada.load_run(tmp_path / "mean", small_net(3)).best_model()
    assert fedlada.evaluate(model, (X, Y))["accuracy"] == history.best() == max(history["test_accuracy_of_mean"])
    seen = []
    alike = {"share_of_mean": lambda output, y: float((output.argmax(dim=1) == y).double().mean())}
    watch = {"callbacks": [lambda simulation, _: seen.append(simulation.server.params)]}
    feddyn(tmp_path / "alike", metrics=alike, best="max:test_share_of_mean", **watch)
    _, round, params = kept(tmp_path / "alike")
    assert torch.equal(params, seen[round - 1])


def test_another_model_of_the_server_is_returned_by_its_name(tmp_path):
    result = feddyn(tmp_path, rounds=3)
    last = result.history[-1]
    assert last["test_loss_of_mean"] != last["test_loss"]
    stored = fedlada.load_run(tmp_path, small_net(3))
    (tmp_path / "model.safetensors").unlink()  # as of a run that was killed
    for one in (result, stored, fedlada.load_run(tmp_path, small_net(3))):
        model = one.other_model("mean")
        assert not model.training
        assert one.evaluate((X, Y), model=model)["loss"] == last["test_loss_of_mean"]
        with pytest.raises(ValueError, match="there is no other model 'maen' of the server: there is mean"):
            one.other_model("maen")
    assert feddyn(tmp_path, rounds=6).history[2] == last  # it goes on from the same state
    plain = run(tmp_path / "plain", rounds=1)
    for one in (plain, fedlada.load_run(tmp_path / "plain", small_net(1))):
        with pytest.raises(ValueError, match="there is no other model 'mean' of the server: there is none"):
            one.other_model("mean")


def test_a_history_is_judged_by_the_metric_that_was_chosen(tmp_path):
    def explained(output, y):
        return 1 - float((output - y).square().sum() / (y - y.mean()).square().sum())

    gain = {"r2": explained, "gain": lambda output, _: float(output.mean())}
    history = run(tmp_path / "r2", metrics=gain, best="test_r2").history
    stored = fedlada.load_run(tmp_path / "r2", small_net(1)).history
    for one in (history, stored, history[:], stored[:]):
        assert one.judged_by == "test_r2"
        assert one.best() == max(history["test_r2"])
        assert "best test r2" in repr(one)
        assert one.rounds_to(0.0) is None  # a bare target is an accuracy, and there is none
    run(tmp_path / "gain", metrics=gain, best="min:test_gain", rounds=3)
    lowest = run(tmp_path / "gain", metrics=gain, best="min:test_gain").history
    stored = fedlada.load_run(tmp_path / "gain", small_net(1)).history
    assert lowest.best() == stored.best() == min(lowest["test_gain"]) == lowest.best(lowest.judged_by)
    assert "best test gain" in repr(stored)
    path = tmp_path / "gain" / "config.json"
    path.write_text(path.read_text().replace("min:test_gain", "test_gain"))
    assert fedlada.load_run(tmp_path / "gain", small_net(1)).history.best() == min(lowest["test_loss"])


def test_a_best_model_stays_that_of_one_direction(tmp_path):
    gain = {"gain": lambda output, _: float(output.mean())}
    run(tmp_path, rounds=2, metrics=gain, best="max:test_gain")
    with pytest.raises(ValueError, match="keeps its best model by max:test_gain, not min:test_gain"):
        run(tmp_path, rounds=4, metrics=gain, best="min:test_gain")
    parts = run(tmp_path, rounds=6, metrics=gain, best="max:test_gain").history
    assert kept(tmp_path)[:2] == ("max:test_gain", parts["test_gain"].index(max(parts["test_gain"])) + 1)


@dataclass(frozen=True, kw_only=True)
class Halved(FederatedMethod):
    """FedAvg whose clients send a part of their update."""

    share: float = 0.5

    def finish(self, local, num_steps):
        upload, kept = super().finish(local, num_steps)
        return Upload(self.share * upload.delta, upload.extra), kept


def halved(**values):
    return Halved(name="fedavg", local=(), server=SGD(), **values)


def test_a_folder_knows_a_subclass_of_a_method(tmp_path):
    run(tmp_path / "own", rounds=2, method=halved())
    run(tmp_path / "plain", rounds=2)
    config = fedlada.load_run(tmp_path / "own", small_net(1)).config
    assert config["type"] == f"{__name__}.Halved"
    assert config["fields"] == {"share": "0.5"}
    with pytest.raises(ValueError, match=r"holds another run \(fields is .*\): choose another folder"):
        run(tmp_path / "own", rounds=4)
    with pytest.raises(ValueError, match="holds another run"):
        run(tmp_path / "plain", rounds=4, method=halved())
    with pytest.raises(ValueError, match=r"share is '0\.5' there and '0\.25' here"):
        run(tmp_path / "own", rounds=4, method=halved(share=0.25))
    whole = run(None, rounds=4, method=halved())
    assert torch.equal(run(tmp_path / "own", rounds=4, method=halved()).server.params, whole.server.params)


def test_the_loss_is_written_down(tmp_path):
    run(tmp_path, rounds=1)
    assert fedlada.load_run(tmp_path, small_net(1)).config["ran_by"]["loss"] == "mse_loss"


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_model_has_the_dtype_that_was_trained(tmp_path, engine):
    def frozen():
        model = small_net(1)
        model[0].requires_grad_(False)
        return model

    def kinds(model):
        return {one.dtype for one in model.state_dict().values()}

    options = {"dtype": "float64", "engine": engine, "client_test": 0.3}
    result = fedlada.simulate(
        frozen, (X, PRICES), test=(X, PRICES), rounds=2, lr=0.02, method="fedavg", out=tmp_path, device="cpu", **options
    )
    stored = fedlada.load_run(tmp_path, frozen)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        written = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    models = (result.model, result.client_model(0), stored.model, stored.best_model(), stored.client_model(0))
    assert [kinds(model) for model in models] == [written] * 5 == [{torch.float64}] * 5
    last = result.history[-1]["test_loss"]
    assert result.evaluate((X, PRICES))["loss"] == stored.evaluate((X, PRICES))["loss"] == last
    (tmp_path / "model.safetensors").unlink()
    assert kinds(fedlada.load_run(tmp_path, frozen).model) == {torch.float64}


def test_the_model_of_a_client_is_a_copy(tmp_path):
    result = run(tmp_path, rounds=1)
    for one in (result, fedlada.load_run(tmp_path, small_net(1))):
        before = one.model[0].weight.clone()
        with torch.no_grad():
            one.client_model(0)[0].weight.zero_()
        assert torch.equal(one.model[0].weight, before)
