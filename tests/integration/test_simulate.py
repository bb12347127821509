"""The Python API as a person would use it, and as they would misuse it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedlada
from fedlada import recipes
from fedlada.data import IID, ByKey, Dirichlet
from fedlada.federation.cohorts import Bernoulli, Scheduled, Unreliable
from fedlada.runs.clients import read_clients
from tasks import UNEQUAL, blobs, small_net

X, Y = blobs(num_samples=300)


def run(model=None, train=(X, Y), **changes):
    values = {"test": (X, Y), "method": recipes.fedavg(), "rounds": 4, "lr": 0.1, "batch_size": 20}
    return fedlada.simulate(model or small_net(), train, **{**values, **changes})


def test_one_call_trains_a_model():
    model = small_net()
    before = [p.clone() for p in model.parameters()]
    result = run(model, rounds=15)
    assert len(result.history) == 15
    assert result.history[-1]["test_accuracy"] > 0.8 > result.history[0]["test_accuracy"]
    assert fedlada.evaluate(
        result.model,
        fedlada.data.as_samples((X, Y), torch.device("cpu"), torch.float32),
        nn.functional.cross_entropy,
    )["accuracy"] == pytest.approx(result.history[-1]["test_accuracy"])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert result.stopped == "all 15 rounds were run"


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_gradients_are_switched_on_where_the_caller_has_none(engine):
    settings = {"engine": engine, "client_test": 0.3, "personal_steps": 1}
    expected = run(**settings)
    with torch.no_grad():
        found = run(**settings)
        assert not torch.is_grad_enabled()
    assert torch.equal(found.server.params, expected.server.params)
    assert found.history["personal_accuracy"] == expected.history["personal_accuracy"]
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inference_mode\(\) has no gradients .* outside it"):
        run(**settings)


def bare(**given):
    return fedlada.simulate(small_net(), (X[:60], Y[:60]), rounds=2, batch_size=20, **given)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_name_of_a_method_stands_for_what_is_suggested(name):
    named, told = bare(method=name), bare(**fedlada.suggested(name))
    assert torch.equal(named.server.params, told.server.params)
    rate, decay = fedlada.suggested(name)["lr"], fedlada.suggested(name)["lr_decay"]
    assert [row["lr"] for row in named.history] == [rate, rate * decay]
    assert [row["lr"] for row in bare(method=name, lr_decay=0.5).history] == [rate, rate * 0.5]


def test_a_rate_beside_a_name_changes_the_rate_alone():
    named = bare(method="fedlada", lr=0.02)
    told = bare(**{**fedlada.suggested("fedlada"), "lr": 0.02})
    assert [row["lr"] for row in named.history] == [row["lr"] for row in told.history] == [0.02, 0.02 * 0.998]
    assert torch.equal(named.server.params, told.server.params)
    assert not torch.equal(named.server.params, bare(method=recipes.fedlada(), lr=0.02).server.params)
    assert [row["lr"] for row in bare(method="fedlada", lr=lambda round: 0.1 * round).history] == [0.1, 0.2]


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_that_its_name_stands_for_has_its_rate(name):
    method = fedlada.suggested(name)["method"]
    told, named = bare(method=method), bare(method=name)
    assert torch.equal(told.server.params, named.server.params)
    assert [row["lr"] for row in told.history] == [row["lr"] for row in named.history]
    assert [row["lr"] for row in bare(method=method, lr=0.02).history] == [0.02, 0.02]


def test_most_recipes_are_what_their_name_stands_for():
    assert [row["lr"] for row in bare(method=recipes.fedavg()).history] == [0.1, 0.1 * 0.998]


def test_a_method_of_ones_own_needs_a_rate():
    assert [row["lr"] for row in bare(method=recipes.fedlada(), lr=0.02).history] == [0.02, 0.02]
    known = (
        r"lr must be given with a method object: .*; method='fedlada' has one, for the hyperparameters of fedlada.sug"
    )
    for other in (fedlada.suggested("fedlada", "cifar10")["method"], recipes.fedlada()):
        with pytest.raises(ValueError, match=known):
            bare(method=other)
    own = fedlada.FederatedMethod(name="mine", local=(), server=fedlada.server.SGD())
    for method in (own, recipes.fedavg(clip_norm=1.0)):
        with pytest.raises(ValueError, match="lr must be given with a method object: only a built-in name comes with"):
            bare(method=method)
    for wrong in (None, recipes.fedlada):
        with pytest.raises(ValueError, match=r"method must be a FederatedMethod, as from fedlada\.recipes, or a name"):
            bare(method=wrong)


@pytest.mark.parametrize(
    "data",
    [
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.astype(np.float32), Y.astype(np.uint8)),
        (X.tolist(), Y.tolist()),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    ],
    ids=["torch", "other dtypes", "lists", "dataset"],
)
def test_any_kind_of_data_gives_the_same_bits(data):
    expected = run().server.params
    assert torch.equal(run(train=data).server.params, expected)


@pytest.mark.parametrize(
    "data", [(X, Y), TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))], ids=["arrays", "dataset"]
)
def test_training_accuracy_is_that_of_what_the_clients_hold(data, tmp_path):
    """Of a partition that leaves samples out and gives others to several clients too."""
    mine = {"partition": [[0, 1, 2, 2], range(1, 40), []], "cohort_size": 2, "out": tmp_path / "run"}
    result = run(train=data, eval_train_every=4, **mine)
    held = np.array([0, 1, 2, 2, *range(1, 40)])
    expected = fedlada.evaluate(result.model, (X[held], Y[held]), nn.functional.cross_entropy)
    assert result.history[-1]["full_train_accuracy"] == expected["accuracy"]
    assert result.history[-1]["full_train_loss"] == pytest.approx(expected["loss"])
    assert expected != fedlada.evaluate(result.model, (X, Y), nn.functional.cross_entropy)
    if isinstance(data, tuple):  # a dataset is not read whole for this
        counts = read_clients(tmp_path / "run")
        assert counts == [np.bincount(Y[own], minlength=3).tolist() for own in ([0, 1, 2, 2], range(1, 40), [])]


class FromDisk(Dataset):
    """Reads a sample when it is asked for one, and counts how often."""

    def __init__(self, path):
        self.x = np.load(path, mmap_mode="r")
        self.reads = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        return torch.from_numpy(np.array(self.x[index])), int(Y[index])


def test_a_dataset_is_read_only_as_needed(tmp_path):
    np.save(tmp_path / "x.npy", X)
    dataset = FromDisk(tmp_path / "x.npy")
    result = run(train=dataset, test=None, rounds=2, cohort_size=2, partition=IID(num_clients=10))
    assert dataset.reads < 2 * 2 * 30 + 10
    expected = run(test=None, rounds=2, cohort_size=2, partition=IID(num_clients=10))
    assert torch.equal(result.server.params, expected.server.params)


def test_a_partition_by_class_of_a_dataset_uses_its_labels():
    by_class = Dirichlet(num_clients=5, concentration=0.3)
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert torch.equal(run(train=dataset, partition=by_class).server.params, run(partition=by_class).server.params)


def test_regression_and_own_loss_and_own_metrics():
    target = (X @ np.array([1.0, -2.0, 0.5, 0.0]))[:, None]
    result = fedlada.simulate(
        lambda: nn.Linear(4, 1),
        (X, target),
        test=(X, target),
        method="fedavg",
        loss=nn.functional.smooth_l1_loss,
        metrics={"worst": lambda out, y: float((out - y).abs().max())},
        rounds=60,
        lr=0.1,
    )
    assert "test_accuracy" not in result.history[-1]
    assert result.history[-1]["test_worst"] < 0.5 < result.history[0]["test_worst"]
    assert run(lambda: nn.Linear(4, 1), (X, target), test=None).history[-1]["train_loss"] < 5


def test_a_model_factory_is_seeded():
    def factory():
        return nn.Linear(4, 3)

    first, second, other = (run(factory, rounds=1, seed=seed).server.params for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_adapters_on_a_frozen_model():
    model = nn.Sequential(small_net(), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    result = run(model)
    assert result.server.params.numel() == 12
    assert result.history[0]["bytes_down"] == 12 * 4 * 10
    for name, parameter in result.model.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)) == name.startswith("0.")


def test_natural_clients_and_weights_by_examples():
    keys = [f"user {i}" for i in np.minimum(np.arange(300) // 20, 7)]
    result = run(partition=ByKey(keys=keys), weights="examples")
    uniform = run(partition=ByKey(keys=keys))
    assert result.history[0]["clients"] == list(range(8))
    assert not torch.equal(result.server.params, uniform.server.params)


def test_callbacks_observers_and_stopping():
    seen = []

    class Watcher(fedlada.Observer):
        def on_start(self, simulation, num_rounds):
            seen.append(("start", num_rounds))

        def on_round(self, simulation, row):
            row["mine"] = 2 * row["round"]

        def on_end(self, simulation):
            seen.append(("end", simulation.round))

    def stop_after_three(simulation, row):
        if row["round"] == 3:
            simulation.stop("three is enough")

    result = run(rounds=10, callbacks=[Watcher(), stop_after_three])
    assert seen == [("start", 10), ("end", 3)]
    assert result.stopped == "three is enough"
    assert result.history["mine"] == [2, 4, 6]
    assert len(run(rounds=50, stop_at_accuracy=0.8).history) < 50
    assert len(run(rounds=50, stop_after_seconds=0.0).history) == 1
    assert len(run(rounds=2, stop_after_seconds=float("inf")).history) == 2


def test_numbers_of_numpy_are_numbers(tmp_path):
    numbers = {"stop_at": {"test_loss": np.float32(9.0)}, "client_test": np.float32(0.25), "lr": np.float32(0.1)}
    result = run(**numbers, stop_after_seconds=np.float32(600), out=tmp_path)
    assert result.stopped.startswith("reached a test loss")
    assert result.clients.keys() >= {"client_accuracy"}
    assert run(client_test=0.25, rounds=1).clients == run(client_test=np.float32(0.25), rounds=1).clients


def test_evaluation_every_few_rounds_and_always_at_the_end():
    history = run(rounds=5, eval_every=2).history
    assert [value is not None for value in history["test_accuracy"]] == [False, True, False, True, True]
    assert history.measured("test_accuracy")[0] == [2, 4, 5]


def test_history():
    history = run(rounds=6).history
    assert history.rounds_to(0.0) == 1
    assert history.rounds_to(1.1) is None
    assert history.best() == max(history["test_accuracy"])
    assert len(history[2:4]) == 2
    frame = history.to_pandas()
    assert frame.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["train_loss"].tolist() == history["train_loss"]
    with pytest.raises(KeyError, match="has no column 'accuracy'; it has"):
        history["accuracy"]


def test_plot(tmp_path):
    run().plot().savefig(tmp_path / "run.png")
    run(test=None).plot().savefig(tmp_path / "loss.png")
    assert (tmp_path / "run.png").stat().st_size > 5000


def test_drift_is_the_papers_consistency():
    """mean_i ||x_{i,K} - x^{t+1}||^2, measured directly on a first round."""
    uploads = []

    class Spy(fedlada.LocalTransform):
        def apply(self, update, local, step):
            return update, local

        def finish(self, local, done, step):
            uploads.append(done.delta.cpu())
            return {}, step.kept

    method = fedlada.FederatedMethod(name="spy", local=(Spy(),), server=fedlada.server.SGD(lr=0.6))
    simulated = run(method=method, partition=UNEQUAL, rounds=1, engine="sequential")  # one delta a client
    start = torch.cat([p.detach().reshape(-1) for p in small_net().parameters()])
    trained = [delta for delta in uploads if delta.shape == start.shape]  # a method is also asked what it sends
    drift = np.mean([float(((start - delta) - simulated.server.params.cpu()).square().sum()) for delta in trained])
    assert simulated.history[0]["drift"] == pytest.approx(drift, rel=1e-4)


# ---- bad things ------------------------------------------------------------------------------------------------


class Poisoned(nn.Module):
    """Gives NaN for the marked sample."""

    def __init__(self):
        super().__init__()
        self.inner = small_net()

    def forward(self, x):
        return self.inner(x) * torch.where(x[:, :1] == 77, torch.nan, 1.0)


def poisoned_data(rows):
    x = X.copy()
    x[rows, 0] = 77
    return x, Y


def test_a_client_with_nan_is_left_out_counted_and_its_memory_rolls_back():
    partition = [range(0, 100), range(100, 200), range(200, 300)]
    kept_after = {}

    def watch(simulation, row):
        kept_after[row["round"]] = set(simulation.kept)

    with pytest.warns(UserWarning, match="round 1: the update of client 1 has a NaN or an infinity") as said:
        result = run(
            Poisoned(),
            poisoned_data([150]),
            test=None,
            method=recipes.scaffold(),
            partition=partition,
            callbacks=[watch],
        )
    assert len(said) == 1
    assert result.history["refused"] == [[1]] * 4
    assert result.history["clients"] == [[0, 2]] * 4
    assert kept_after[4] == {0, 2}
    healthy = run(
        Poisoned(),
        test=None,
        method=recipes.scaffold(),
        partition=partition,
        cohorts=Scheduled([[0, 2]]),
    )
    assert torch.equal(result.server.params, healthy.server.params)


def test_when_all_are_nan_the_run_stops_with_a_sentence_and_nothing_is_lost():
    with pytest.raises(fedlada.TrainingDiverged, match=r"round 1: the updates of all 10 clients were NaN") as caught:
        run(Poisoned(), poisoned_data(slice(None)), test=None)
    assert torch.equal(caught.value.result.server.params, run(Poisoned(), test=None, lr=1e-30).server.params)


def test_a_rate_that_is_far_too_large_ends_in_the_same_sentence():
    how = r"than 1e\+30 or clip gradients \(fedlada\.recipes\.fedavg\(clip_norm=10\) in Python, --clip-norm 10 in"
    with pytest.raises(fedlada.TrainingDiverged, match=how):
        run(nn.Linear(4, 1), (X, X[:, :1]), test=None, lr=1e30, rounds=30)


def test_empty_cohorts_and_lost_clients_skip_the_round():
    result = run(cohorts=Bernoulli(0.0))
    assert result.history["train_loss"] == [None] * 4
    assert result.history["drift"] == [None] * 4
    assert result.history["bytes_up"] == [0] * 4
    result = run(unreliable=Unreliable(dropout=1.0))
    assert result.history["lost"] == [list(range(10))] * 4
    assert result.history[0]["bytes_down"] > 0 == result.history[0]["bytes_up"]


def test_some_lost_clients_are_reported():
    history = run(unreliable=Unreliable(dropout=0.3), rounds=10).history
    assert 0 < sum(len(lost) for lost in history["lost"]) < 100
    assert all(sorted(row["clients"] + row["lost"]) == list(range(10)) for row in history)


def test_a_round_with_rate_zero_is_skipped():
    result = run(lr=lambda round: 0.1 if round % 2 else 0.0)
    assert [loss is None for loss in result.history["train_loss"]] == [False, True, False, True]


class Counting(nn.Module):
    """Changes a buffer in its forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = small_net()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"train": (X, Y[:-1])}, r"x and y must have one row per sample, got shapes \(300, 4\) and \(299,\)"),
        ({"train": (X[:0], Y[:0])}, "there are no samples"),
        ({"train": X}, r"data must be an \(x, y\) pair of arrays or a torch Dataset, got ndarray"),
        ({"train": (X, Y, Y)}, "got tuple of 3 items"),
        ({"train": (X, ["a"] * 300)}, "y cannot be read as an array of numbers"),
        ({"train": (np.where(X > 2, np.nan, X), Y)}, r"x holds a NaN or an infinity in row \d+"),
        ({"test": (np.where(X > 2, np.nan, X), Y)}, r"^test: x holds a NaN or an infinity in row \d+"),
        ({"validation": (X, Y[:-1])}, r"^validation: x and y must have one row per sample"),
        ({"client_test": [(X * np.inf, Y)] * 10}, "^client_test: x holds a NaN or an infinity in row 0"),
        ({"train": (X[:, :3], Y)}, r"the model cannot take a batch of the training data \(float32 of shape \(2, 3\)\)"),
        ({"train": (X, Y + 1)}, r"training labels must be in 0..2 for a model with 3 outputs, got 1..3"),
        ({"test": (X, Y - 1)}, r"test labels must be in 0..2 for a model with 3 outputs, got -1..1"),
        ({"train": (X, X[:, 0])}, r"outputs .* and training targets .* must have the same shape"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "the loss must give one number for a batch"),
        ({"loss": lambda out, y: out @ y}, "the loss cannot compare outputs"),
        ({"model": Counting()}, "the forward pass changes the buffer 'calls'"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}, "keeps running statistics"),
        ({"model": lambda: 3}, "model must be an nn.Module or a function that makes one, got int"),
        ({"train": Stream()}, "the dataset must be map-style"),
        ({"method": "fedlda"}, r"method must be one of fedavg, .*, got 'fedlda'; did you mean 'fedlada'\?"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used here"),
        ({"device": "gpu"}, "device 'gpu' cannot be used here"),
        ({"device": "meta"}, "device 'meta' cannot be used here: its tensors hold no numbers"),
        ({"dtype": torch.float16}, "dtype must be torch.float32 or torch.float64"),
        ({"cohort_size": 11}, "cohort_size is 11, but there are only 10 clients"),
        ({"cohort_size": 2, "cohorts": Bernoulli(0.5)}, "give cohort_size or cohorts, not both"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": np.inf}, "lr must be finite, got inf"),
        ({"weights": "size"}, "weights must be one of uniform, examples"),
        ({"eval_every": 0}, "eval_every must be a whole number"),
        ({"partition": [[0, 300]]}, "client 0 has sample indices outside 0..299"),
    ],
)
def test_what_does_not_fit_is_said_at_construction(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(arguments.pop("model", None), arguments.pop("train", (X, Y)), **arguments)


@pytest.mark.usefixtures("only_new_objects")
def test_memory_does_not_grow_with_rounds():
    """Only what a method must keep: nothing for FedLADA, one memory a client for SCAFFOLD; and no tensor besides."""
    import gc

    def living(simulation, row):
        if row["round"] in (3, 12):
            gc.collect()
            row["living"] = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
            row["kept"] = len(simulation.kept)

    for method, kept in ((recipes.fedlada(), 0), (recipes.scaffold(), 10)):
        history = run(method=method, rounds=12, test=None, lr=0.01, callbacks=[living]).history
        assert history[2]["living"] == history[11]["living"]
        assert history[11]["kept"] == kept


# ---- found by a sceptic ---------------------------------------------------------------------------------------


def test_partitions_in_the_usual_formats():
    parts = [list(range(0, 100)), list(range(100, 300))]
    expected = run(partition=parts).server.params
    for same in ({"b": parts[0], "a": parts[1]}, [set(parts[0]), set(parts[1])], [np.array(p) for p in parts]):
        assert torch.equal(run(partition=same).server.params, expected)


def test_read_only_arrays_are_fine():
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    assert torch.equal(run(train=(x, y)).server.params, run().server.params)


def test_numpy_scalars_are_numbers():
    assert torch.equal(run(seed=np.int64(3), rounds=np.int64(2)).server.params, run(seed=3, rounds=2).server.params)
    cohorts = Scheduled(np.array([[0, 1], [2, 3]]))
    run(cohorts=cohorts, lr=np.float32(0.1))


def test_test_loss_is_the_mean_over_all_test_samples():
    """More samples than a batch holds, and not a multiple of it."""
    x, y = blobs(num_samples=2300, seed=3)
    result = run(test=(x, y), rounds=1)
    scores = result.model(torch.from_numpy(x).float()).detach()
    assert result.history[0]["test_loss"] == pytest.approx(
        float(nn.functional.cross_entropy(scores, torch.from_numpy(y)))
    )
    assert result.history[0]["test_accuracy"] == pytest.approx(
        float((scores.argmax(1) == torch.from_numpy(y)).float().mean())
    )
    assert fedlada.evaluate(result.model, (x, y), nn.functional.cross_entropy)["loss"] == pytest.approx(
        result.history[0]["test_loss"]
    )


def test_frozen_parts_in_evaluation_mode_stay_so():
    """A frozen backbone with BatchNorm and dropout, as adapters have it."""
    backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    with torch.no_grad():
        backbone(torch.randn(50, 4))
    backbone.requires_grad_(False).eval()
    model = nn.Sequential(backbone, nn.Linear(8, 3))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    result = run(model, rounds=3)
    for name, value in result.model[0].state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        result.model[0][0].weight.zero_()
    assert not (backbone[0].weight == 0).all()  # the result is a copy
    backbone.train()
    with pytest.raises(ValueError, match="keeps running statistics"):
        run(model)


def test_the_server_that_overflows_is_refused():
    with pytest.raises(fedlada.TrainingDiverged, match="the server's step gave NaN or infinity") as caught:
        run(method=recipes.fedavg(server_lr=3e38), lr=100.0, test=None)
    assert caught.value.result.server.params.isfinite().all()


class Items(Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return self.item


class Labelled(TensorDataset):
    targets = torch.full((300,), 7)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"partition": "dirichlet"},
            r"partition must be an object such as fedlada.data.IID\(num_clients=10\), got '",
        ),
        ({"partition": 10}, "partition must come from fedlada.data or list each client's samples, got 10"),
        ({"partition": [np.arange(300) < 5]}, "client 0 must be given by sample indices, got values of type bool"),
        ({"partition": [[0.5]]}, "got values of type float64"),
        ({"train": (X, X[:, :1]), "partition": Dirichlet(num_clients=3)}, "needs class labels, got floating-point"),
        ({"train": Items({"x": 1})}, r"each item of the dataset must be a pair \(x, y\), got dict"),
        ({"train": Labelled(torch.from_numpy(X), torch.from_numpy(Y))}, "labels must be in 0..2 .*, got 7..7"),
        ({"train": (X, Y + 1), "loss": nn.CrossEntropyLoss()}, "training labels must be in 0..2"),
        ({"local_epochs": 2, "local_steps": 3}, "give local_epochs or local_steps, not both"),
        ({"stop_at_accuracy": 0.9, "test": None}, "stop_at_accuracy needs data to measure it on: give test"),
        ({"stop_at_accuracy": 90}, r"stop_at_accuracy must be in \[0, 1\], got 90"),
        ({"stop_after_seconds": "1"}, "stop_after_seconds must be a number, got '1'"),
        ({"stop_after_seconds": -1}, "stop_after_seconds must not be negative, got -1"),
        ({"unreliable": 0.1}, r"unreliable must be an object such as fedlada.Unreliable\(dropout=0.1\), got 0.1"),
        ({"unreliable": {}}, r"unreliable must be an object such as fedlada.Unreliable\(dropout=0.1\), got {}"),
        ({"personal": [3], "client_test": 0.2}, r"personal must be names of parameters, .*, got \[3\]"),
        ({"personal": 3, "client_test": 0.2}, r"personal must be names of parameters, .*, got 3"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number of at least 1, got 0"),
        (
            {"rounds": "5", "combiner": fedlada.combine.Private(1.0, epsilon=2.0)},
            "rounds must be a whole number of at least 1, got '5'",
        ),
        ({"cohorts": Scheduled([[0], [99]])}, "the cohort of round 2 names clients outside"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"engine": "warp"}, "engine must be one of auto, sequential, stacked, got 'warp'"),
        ({"model": "mlp"}, r"a function that makes one, such as one of fedlada\.models, .*, got 'mlp'"),
        ({"model": [3]}, r"model must be an nn\.Module or a function that makes one, got \[3\]"),
        ({"method": "mymeth:ball"}, r"the shell's way of naming it: in Python import the function .*method=ball\(\)"),
        ({"method": recipes.fedcm}, r"or a name, got the function fedcm: call it, method=fedcm\(\)"),
        ({"model": lambda: 1 / 0}, "the model could not be made: division by zero"),
    ],
)
def test_more_that_does_not_fit(arguments, sentence):
    model = arguments.pop("model", None)
    if "train" in arguments and isinstance(arguments["train"], tuple) and arguments["train"][1].ndim == 2:
        model = nn.Linear(4, 1)
    with pytest.raises(ValueError, match=sentence):
        run(model, arguments.pop("train", (X, Y)), **{"test": None, **arguments})


def test_what_a_callback_puts_into_a_row_is_stored_as_json_has_it(tmp_path):
    def measure(_simulation, row):
        row["per_class"] = [0.5, float("nan"), np.float32(np.inf)]
        row["matrix"] = {"torch": torch.tensor([[1.0, float("nan")]]), "numpy": np.arange(2000)}

    fedlada.simulate(small_net(), blobs(), method="fedavg", rounds=2, callbacks=[measure], out=tmp_path)
    stored = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert stored["per_class"] == [0.5, None, None]
    assert stored["matrix"] == {"torch": [[1.0, None]], "numpy": list(range(2000))}
    assert list((tmp_path / "checkpoints").iterdir())


class Letters(torch.utils.data.Dataset):
    """Its targets are not what it gives, as those of EMNIST's letters."""

    def __init__(self, targets, target_transform):
        self.x, self.y = blobs()
        self.targets, self.target_transform = targets(self.y), target_transform

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return torch.as_tensor(self.x[index], dtype=torch.float32), self.target_transform(self.targets[index])


@pytest.mark.parametrize(
    ("targets", "transform"),
    [(lambda y: [int(v) + 1 for v in y], lambda v: v - 1), (lambda y: [f"class{v}" for v in y], lambda v: int(v[5:]))],
    ids=["from one on", "words"],
)
def test_a_data_set_may_change_its_targets(targets, transform):
    result = fedlada.simulate(small_net(), Letters(targets, transform), method="fedavg", rounds=1)
    assert len(result.history) == 1


def test_validation_data_are_checked_before_the_first_round():
    x, y = blobs()
    with pytest.raises(ValueError, match=r"validation labels must be in 0\.\.2 .* got 0\.\.5"):
        fedlada.simulate(small_net(), (x, y), validation=(x, y % 2 * 5), method="fedavg", rounds=1)


def test_an_evaluation_leaves_every_part_in_its_mode():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), nn.Linear(4, 3))
    fedlada.evaluate(model, blobs(), nn.functional.cross_entropy)
    assert model.training
    assert not any(part.training for part in model[0].modules())


def with_frozen_part():
    features = nn.Linear(4, 8).requires_grad_(False)
    return nn.Sequential(features, nn.Tanh(), nn.Linear(8, 3))


def test_frozen_parts_are_part_of_a_run(tmp_path):
    torch.manual_seed(0)
    first, other = with_frozen_part(), with_frozen_part()
    run(first, rounds=2, out=tmp_path / "given")
    with pytest.raises(ValueError, match="holds another run \\(the frozen parameters or buffers differ"):
        run(other, rounds=3, out=tmp_path / "given")
    run(first, rounds=3, out=tmp_path / "given")
    result = run(with_frozen_part, rounds=3, out=tmp_path / "made")
    (tmp_path / "made" / "model.safetensors").unlink()  # as of a run that has not ended
    opened = fedlada.load_run(tmp_path / "made", with_frozen_part)
    x = torch.as_tensor(X[:5], dtype=torch.float32)
    assert torch.equal(opened.model(x), result.model(x))


def test_another_setting_of_a_loss_is_another_run(tmp_path):
    run(loss=nn.CrossEntropyLoss(), rounds=1, out=tmp_path)
    run(loss=nn.CrossEntropyLoss(), rounds=2, out=tmp_path)
    with pytest.raises(
        ValueError, match=r"loss is 'CrossEntropyLoss' there and 'CrossEntropyLoss\(label_smoothing=0.5\)'"
    ):
        run(loss=nn.CrossEntropyLoss(label_smoothing=0.5), rounds=3, out=tmp_path)


class InTurn(fedlada.cohorts.Cohorts):
    def __init__(self, step):
        self.step = step

    def draw(self, num_clients, seed, round):
        return [round * self.step % num_clients]


def test_cohorts_of_ones_own_go_on(tmp_path):
    for rounds in (1, 3):
        result = run(cohorts=InTurn(1), rounds=rounds, out=tmp_path)
    assert result.history["clients"] == [[1], [2], [3]]
    with pytest.raises(ValueError, match=r"cohorts is 'InTurn\(step=1\)' there and 'InTurn\(step=2\)' here"):
        run(cohorts=InTurn(2), rounds=4, out=tmp_path)


def test_weights_of_ones_own_go_on(tmp_path):
    weights = [1.0, 2.0, 0.5, 3.0, 1.5, 1.0, 1.0, 0.0, 0.7, 1.0]
    for rounds, given in ((1, weights), (3, torch.tensor(weights, dtype=torch.float64) * 4)):
        resumed = run(weights=given, rounds=rounds, out=tmp_path)
    assert torch.equal(resumed.server.params, run(weights=weights, rounds=3).server.params)
    assert not torch.equal(resumed.server.params, run(rounds=3).server.params)
    for other in ([*weights[:9], 1.1], "examples"):
        with pytest.raises(ValueError, match=r"holds another run \(weights is 'given, \w+' there and '.*' here\)"):
            run(weights=other, rounds=4, out=tmp_path)


@pytest.mark.parametrize("given", [lambda *_: [0], InTurn])
def test_cohorts_that_are_none_are_refused(given):
    said = r"fedlada.cohorts.Cohorts, with a method draw\(num_clients, seed, round\); got (the function|<class)"
    with pytest.raises(ValueError, match=said):
        run(cohorts=given)


class NoisyServer(fedlada.server.ServerOptimizer):
    def init(self, params):
        return {}

    def step(self, params, delta, state, round):
        return params - delta + 0.01 * torch.randn_like(params), state


def test_a_servers_noise_is_the_seeds(tmp_path):
    method = fedlada.FederatedMethod(name="noisy", local=(), server=NoisyServer())
    one, again, other = (run(method=method, seed=seed).server.params for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    for rounds in (2, 4):
        resumed = run(method=method, rounds=rounds, out=tmp_path)
    assert torch.equal(resumed.server.params, one)


@dataclass(frozen=True)
class KeepsLargest(fedlada.LocalTransform):
    number: int = 100

    def apply(self, update, local, step):
        least = update.abs().topk(self.number, dim=-1).values[..., -1:]
        return torch.where(update.abs() >= least, update, 0.0), local


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_transform_that_needs_a_model_of_some_size(engine):
    method = fedlada.FederatedMethod(name="largest", local=(KeepsLargest(),), server=fedlada.server.SGD())
    result = run(nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 3)), method=method, rounds=1, engine=engine)
    assert result.history[0]["nd_up"] == 1


def test_evaluation_in_smaller_batches():
    """A model that counts its batches; what is measured stays the same to rounding."""
    sizes = []

    class Counting(nn.Linear):
        def forward(self, x):
            if not self.training:
                sizes.append(len(x))
            return super().forward(x)

    results = []
    for batch in (1000, 7):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            results.append(run(Counting(4, 3), eval_batch_size=batch, engine="sequential").history["test_loss"])
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert max(sizes) > 7
    assert sizes.count(7) > 10
    with pytest.raises(ValueError, match="eval_batch_size must be a whole number of at least 1, got 0"):
        run(eval_batch_size=0)
