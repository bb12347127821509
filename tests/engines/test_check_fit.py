"""What would never be trained is refused before the first round, and the loss follows from the targets."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import fedlada
from fedlada import recipes
from fedlada.engines.classes import exact_match
from fedlada.engines.default_loss import broadcasts
from tasks import blobs, small_net

X, Y = blobs()
LABELS = (X @ np.random.default_rng(1).standard_normal((4, 3))) > 0
PRICES = (X @ np.ones((4, 1))).astype(np.float32)


def run(model, y=Y, x=X, **changes):
    values = {"test": (x, y), "method": recipes.fedavg(), "rounds": 2, "lr": 0.1, "batch_size": 20, "device": "cpu"}
    return fedlada.simulate(model, (x, y), **{**values, **changes})


class Around(nn.Module):
    """A network, and what somebody has put around it."""

    def __init__(self, forward, **more):
        super().__init__()
        self.net = small_net()
        self.way = forward
        for name, part in more.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.way(self.net, x)


def without_gradient(net, x):
    with torch.no_grad():
        return net(x)


@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(2, 4))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(make):
    for model, where in ((make(small_net()), "the model"), (nn.Sequential(make(small_net())), "the module '0'")):
        with pytest.raises(ValueError, match=f"{where} is TorchScript, whose parameters cannot be trained here: give"):
            run(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_frozen_torchscript_is_a_part_like_any_other():
    frozen = torch.jit.script(nn.Linear(4, 4).requires_grad_(False))
    result = run(nn.Sequential(frozen, small_net()))
    assert result.history["train_loss"][1] < result.history["train_loss"][0]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_model_without_any_gradient_is_refused(engine):
    with pytest.raises(ValueError, match="has no gradient: nothing would be trained; look for torch"):
        run(Around(without_gradient), engine=engine)
    with pytest.raises(ValueError, match="is zero for every parameter, on 120 samples: nothing would be trained"):
        run(Around(lambda net, x: net(x).round()), engine=engine)


def test_a_loss_without_any_gradient_is_refused():
    with pytest.raises(ValueError, match="has no gradient"):
        run(small_net(), loss=lambda output, y: F.cross_entropy(output.detach(), y))


class Clamped(nn.Linear):
    """Puts other memory in the place of its weight."""

    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-1, 1)
        return super().forward(x)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_model_that_replaces_its_memory_is_refused(engine):
    with pytest.raises(ValueError, match=r"replaces the memory of weight in its forward pass"):
        run(Clamped(4, 3), engine=engine)


def test_sparse_gradients_are_gradients():
    def trained(sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(16, 3))
        return run(model, x=np.abs(3 * X).astype(int) % 9).history[-1]["test_loss"]

    assert trained(True) == trained(False)


def test_one_batch_without_a_gradient_is_no_reason():
    off = np.concatenate([np.zeros((60, 4)), X[60:]])  # of the first half no unit is on

    def gated(net, x):
        return net(x) * (x.abs().sum(dim=1, keepdim=True) > 0)

    result = run(Around(gated), x=off.astype(np.float32))
    assert result.history["train_loss"][1] < result.history["train_loss"][0]


def test_a_rate_of_zero_is_not_the_gradient():
    assert len(run(small_net(), lr=lambda _: 0.0).history) == 2


def test_parameters_that_are_not_used_are_named_once():
    with pytest.warns(UserWarning, match=r"does not depend on spare.weight, spare.bias: they are sent and not") as said:
        run(Around(lambda net, x: net(x), spare=nn.Linear(2, 2)))
    assert len(said) == 1


def with_statistics():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()), nn.Linear(6, 3)


def test_batch_norm_is_refused_with_both_ways_out():
    backbone, head = with_statistics()
    with pytest.raises(ValueError, match=r"group_norm\(model\), or keep pretrained statistics as they are by freezing"):
        run(nn.Sequential(backbone, head))


def test_a_frozen_backbone_in_evaluation_mode_keeps_its_statistics():
    backbone, head = with_statistics()
    backbone(torch.tensor(X, dtype=torch.float32))
    backbone.requires_grad_(False).eval()
    result = run(nn.Sequential(backbone, head), rounds=4)
    assert result.history["train_loss"][3] < result.history["train_loss"][0]
    assert torch.equal(result.model[0][1].running_mean, backbone[1].running_mean)
    assert not result.model[0][1].training


class Items(Dataset):
    """Samples one by one, whose targets nobody knows before they are read."""

    def __init__(self, x, y):
        self.x, self.y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@pytest.mark.parametrize(
    ("outputs", "y", "loss"),
    [
        (3, Y, "cross_entropy"),
        (3, LABELS, "binary_cross_entropy"),
        (3, LABELS.astype(np.int64), "binary_cross_entropy"),
        (1, Y % 2, "binary_cross_entropy"),
        (1, (Y % 2)[:, None], "binary_cross_entropy"),
        (1, PRICES, "mse_loss"),
    ],
)
def test_the_default_loss_follows_from_the_targets_and_is_named(outputs, y, loss):
    result = run(small_net(outputs), y, rounds=6)
    assert result.loss == loss
    assert result.history["train_loss"][5] < result.history["train_loss"][0]
    assert ("test_accuracy" in result.history[-1]) == (loss != "mse_loss")
    assert fedlada.evaluate(result.model, (X, y))["loss"] == pytest.approx(result.history[-1]["test_loss"])


def test_floats_of_zero_and_one_are_a_regression_and_that_is_said():
    with pytest.warns(
        UserWarning, match="trained as a regression with the squared error: for labels with one logit each"
    ):
        assert run(small_net(3), LABELS.astype(np.float32)).loss == "mse_loss"
    run(small_net(3), LABELS.astype(np.float32), loss=F.mse_loss)  # whoever gives it means it


@pytest.mark.parametrize(
    ("kind", "loss"), [(np.int64, "binary_cross_entropy"), (bool, "binary_cross_entropy"), (np.float32, "mse_loss")]
)
def test_one_hot_targets_are_no_classes_and_that_is_said(kind, loss):
    y = np.eye(3)[Y].astype(kind)
    with pytest.warns(
        UserWarning, match=r"exactly one 1, trained as .*: for classes give y.argmax\(1\), else give"
    ) as it:
        assert run(small_net(3), y).loss == loss
    assert len(it) == 1
    run(small_net(3), y.astype(np.float32), loss=nn.BCEWithLogitsLoss())  # whoever gives it means it
    y[0] = 1
    if kind is not np.float32:  # several labels
        run(small_net(3), y)


SQUARES = {"default": None, "module": nn.MSELoss(), "function": F.mse_loss, "huber": nn.HuberLoss(), "l1": F.l1_loss}


@pytest.mark.parametrize("loss", SQUARES.values(), ids=SQUARES)
def test_outputs_of_one_column_are_not_compared_with_every_target(loss):
    for y in (PRICES[:, 0], np.arange(len(X)))[: 2 if loss else 1]:
        with pytest.raises(
            ValueError,
            match=r"\(2, 1\)\) and training targets .* the same shape .*: make y \(N, 1\): y\[:, None\], or give loss=",
        ):
            run(small_net(1), y, loss=loss)
    with pytest.raises(ValueError, match="must have the same shape"):
        fedlada.evaluate(small_net(1), (X, PRICES[:, 0]), loss)


def test_a_loss_of_ones_own_that_compares_each_with_each_is_a_warning():
    with pytest.warns(UserWarning, match=r"the loss broadcasts outputs .* reshape y like the outputs, unless"):
        run(small_net(1), PRICES[:, 0] * 0, loss=lambda output, y: ((output - y) ** 2).mean())
    run(small_net(1), PRICES[:, 0], loss=lambda output, y: ((output[:, 0] - y) ** 2).mean())
    run(small_net(1), PRICES[:, 0], loss=lambda output, y: ((output.flatten() - y) ** 2).mean())


class OfOneColumn(nn.L1Loss):
    """Handles the shapes itself."""

    def forward(self, output, y):
        return super().forward(output[:, 0], y)


def test_a_loss_made_from_a_known_one_may_handle_shapes_itself():
    assert run(small_net(1), PRICES[:, 0], loss=OfOneColumn()).loss == "OfOneColumn"


def test_whether_a_loss_broadcasts_is_asked_with_classes_that_there_are():
    seen = []

    def loss(output, y):
        seen.append(int(y.max()))
        return F.cross_entropy(torch.stack([-output[..., 0], output[..., 0]], 1), y)

    assert not broadcasts(loss, torch.randn(3, 4, 1), torch.tensor([[0, 1, 0, 0]] * 3))
    assert max(seen) == 1


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (nn.CrossEntropyLoss, r"loss is the class CrossEntropyLoss: give an instance, loss=nn.CrossEntropyLoss\(\)"),
        (
            "cross_entropy",
            "loss must be a function of outputs and targets, such as F.cross_entropy, got 'cross_entropy'",
        ),
    ],
)
def test_a_loss_is_a_function(loss, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(small_net(), loss=loss)
    with pytest.raises(ValueError, match=sentence):
        fedlada.evaluate(small_net(), (X, Y), loss)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": {"loss": lambda *_: 42.0}}, "the metric 'loss' would replace the built-in one: call it 'my_loss'"),
        ({"metrics": {"accuracy": lambda *_: 42.0}}, "the metric 'accuracy' would replace the built-in one: call it"),
        ({"metrics": [lambda *_: 42.0]}, "metrics must be a dict of functions by name"),
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1, got -1"),
        ({"module": small_net}, "model must be an nn.Module, and not a function that makes one, got <function"),
    ],
)
def test_an_evaluation_is_checked_as_a_simulation_is(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        fedlada.evaluate(**{"module": small_net(), "samples": (X, Y), **changes})


def test_a_model_without_parameters_can_be_evaluated():
    class Guess(nn.Module):
        def forward(self, x):
            return nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 3).float()

    assert fedlada.evaluate(Guess(), (X, Y))["accuracy"] == pytest.approx((Y == 0).mean())


def writes_to_targets(output, y):
    y[y < 0] = 0
    return nn.functional.cross_entropy(output, y)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_loss_that_writes_to_its_targets_is_refused(engine):
    with pytest.raises(ValueError, match=r"the loss writes to its targets, which may be read again: write to a copy"):
        run(small_net(), loss=writes_to_targets, engine=engine)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Linear(4, 3)

    def forward(self, output, y):
        return nn.functional.cross_entropy(self.scale * output, y)


def test_parameters_of_a_loss_are_not_trained_and_that_is_said():
    with pytest.warns(UserWarning, match=r"the loss has parameters of its own \(scale\), which are not trained: make"):
        run(small_net(), loss=Scaled(), engine="sequential")


def test_the_loss_is_said_once(capsys):
    run(small_net(1), PRICES, progress=True)
    said = capsys.readouterr().err
    assert (
        said.count("fedlada: the loss is squared error, because the targets are floats; set another with loss=\n") == 1
    )
    run(small_net(1), PRICES, progress=True, loss=F.l1_loss)
    assert "the loss is" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outputs", "y", "sentence"),
    [
        (4, Y[:, None], r"\(2, 4\)\) and .*targets \(int64 of shape \(2, 1\)\) do not fit: for classes flatten y"),
        (3, LABELS[:, :2].astype(int), r"do not fit: classes are one whole number .* need one output each, here 2"),
        (
            1,
            (Y % 2).astype(np.float32),
            r"for labels of 0 and 1 make y whole numbers; for a regression make y \(N, 1\)",
        ),
        (2, PRICES, r"must have the same shape for mse_loss: reshape y, or give loss="),
        (3, Y + 0.5, r"must have the same shape for mse_loss: reshape y, or give loss="),
        (3, Y.astype(np.float32), r"for classes make y whole numbers, as y.long\(\) or .*; for a regression reshape y"),
    ],
)
def test_targets_of_another_shape_have_a_way_out(outputs, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(small_net(outputs), y)
    if y.dtype.kind != "f":
        with pytest.raises(ValueError, match=sentence):
            fedlada.evaluate(small_net(outputs), (X[:2], y[:2]))
        with pytest.raises(ValueError, match=sentence):
            run(small_net(outputs), y, loss=nn.CrossEntropyLoss())


def test_floats_that_may_be_classes_are_told_in_every_form():
    floats = torch.from_numpy(Y.astype(np.float32))
    sentence = r"for classes make y whole numbers, as y.long\(\)"
    data = TensorDataset(torch.from_numpy(X.astype(np.float32)), floats)
    for ask in (lambda: fedlada.simulate(small_net(), data, method="fedavg"), lambda: run(small_net(), floats)):
        with pytest.raises(ValueError, match=sentence):
            ask()
    with pytest.raises(ValueError, match=sentence):
        fedlada.evaluate(small_net(), (X, floats))
    with pytest.raises(ValueError, match=r"same shape for MSELoss: reshape y, or"):  # that one is meant
        run(small_net(), floats, loss=nn.MSELoss())


def test_text_needs_to_become_numbers():
    class Reviews(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, number):
            return "good" if number % 2 else "bad", number % 2

    with pytest.raises(ValueError, match="the text of the training data: turn it into numbers, in collate_fn= or"):
        fedlada.simulate(small_net(), Reviews(), method="fedavg", rounds=1)


@pytest.mark.parametrize("outputs", [1, 3])
def test_whole_numbers_that_are_no_labels_have_a_way_out(outputs):
    counts = np.round(10 * X[:, :outputs]).astype(np.int64)
    with pytest.raises(ValueError, match=r"from -\d+ to \d+: for a regression make y float, in the shape of the outp"):
        run(small_net(outputs), counts[:, 0] if outputs == 1 else counts)


def test_labels_that_nobody_has_seen_are_not_guessed():
    with pytest.raises(ValueError, match=r"give loss=nn.BCEWithLogitsLoss\(\) with float targets"):
        fedlada.simulate(small_net(1), Items(X, Y % 2), method=recipes.fedavg(), lr=0.1, rounds=1)


def test_test_labels_are_looked_at_too():
    with pytest.raises(ValueError, match=r"test labels must be 0 or 1 for the binary cross-entropy, got 0\.\.2"):
        run(small_net(1), Y % 2, test=(X, Y))


@pytest.mark.parametrize("loss", [None, F.cross_entropy, nn.CrossEntropyLoss()])
def test_labels_to_evaluate_on_are_classes_of_the_model(loss):
    said = r"^labels must be in 0\.\.2 for a model with 3 outputs, got 5\.\.7"
    with pytest.raises(ValueError, match=said):
        fedlada.evaluate(small_net(), (X, Y + 5), loss)
    with pytest.raises(ValueError, match=said):
        run(small_net(), rounds=1).evaluate((X, Y + 5), loss)


def test_labels_that_are_ignored_need_be_no_classes():
    assert np.isnan(fedlada.evaluate(small_net(), (X, np.full_like(Y, -100)))["loss"])


def test_a_loss_that_needs_floats_says_so():
    with pytest.raises(ValueError, match="it takes float targets: make y float"):
        run(small_net(), LABELS, loss=nn.BCEWithLogitsLoss())


def test_the_accuracy_of_labels_is_their_share_that_is_right():
    result = run(small_net(), LABELS, rounds=5, metrics={"exact": exact_match})
    right = (result.model(torch.tensor(X, dtype=torch.float32)).detach().numpy() > 0) == LABELS
    assert result.history[-1]["test_accuracy"] == pytest.approx(right.mean())
    assert result.history[-1]["test_exact"] == pytest.approx(right.all(axis=1).mean()) != pytest.approx(right.mean())
    floats = run(small_net(), LABELS.astype(np.float32), rounds=5, loss=nn.BCEWithLogitsLoss())
    assert floats.history["test_accuracy"] == result.history["test_accuracy"]


def test_one_output_is_no_choice_between_classes():
    own = run(small_net(1), Y % 2, loss=lambda output, y: (output[:, 0] - y).square().mean())
    assert "test_accuracy" not in own.history[-1]


@pytest.mark.parametrize("y", [LABELS, Y % 2, PRICES])
def test_both_engines_agree_on_every_task(y):
    model = small_net(1 if y is not LABELS else 3)
    one, all_at_once = (run(model, y, engine=engine, dtype=torch.float64) for engine in ("sequential", "stacked"))
    assert all_at_once.engine == "stacked"
    assert torch.allclose(one.server.params, all_at_once.server.params, rtol=1e-10)
    assert one.history[-1]["test_loss"] == pytest.approx(all_at_once.history[-1]["test_loss"])


def test_segmentation_has_an_accuracy_of_pixels():
    random = np.random.default_rng(0)
    images = random.standard_normal((24, 2, 6, 5)).astype(np.float32)
    classes = images.sum(axis=1).clip(-1, 1).round().astype(np.int64) + 1
    classes[:, 0] = -100  # the first line does not count
    net = nn.Conv2d(2, 3, 1)
    result = run(net, classes, images, rounds=3)
    scores = result.model(torch.tensor(images)).argmax(dim=1).numpy()[:, 1:]
    assert result.loss == "cross_entropy"
    assert result.history[-1]["test_accuracy"] == pytest.approx((scores == classes[:, 1:]).mean())
    masks = (images.sum(axis=1) > 0).astype(np.int64)
    assert run(nn.Conv2d(2, 1, 1), masks, images).loss == "binary_cross_entropy"


def test_metrics_are_tried_before_the_first_round():
    rounds = []
    with pytest.raises(
        ValueError, match=r"the metric 'bad' failed: ZeroDivisionError: division by zero; it is given a"
    ):
        run(small_net(), metrics={"bad": lambda *_: 1 / 0}, eval_every=4, callbacks=[lambda *_: rounds.append(1)])
    with pytest.raises(
        ValueError, match=r"\(float32 of shape \(120, 3\)\) and all targets \(int64 of shape \(120,\)\)"
    ):
        run(small_net(), metrics={"words": lambda *_: "many"})
    assert not rounds


def test_a_metric_may_need_more_samples_than_it_is_tried_on():
    def rare(_, y):
        if len(y) < 100:
            raise ValueError("all classes are needed")
        return 0.5

    assert run(small_net(), metrics={"rare": rare}).history["test_rare"] == [0.5, 0.5]


def test_what_a_metric_draws_comes_from_the_seed_and_leaves_the_callers_generator():
    def noisy(*_):
        return float(torch.rand(()))

    found = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = torch.rand(())
        torch.manual_seed(seed)
        found.append(run(small_net(), metrics={"noisy": noisy}).history["test_noisy"])
        assert torch.equal(torch.rand(()), expected)
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_a_metric_does_not_replace_a_built_in_one(name):
    with pytest.raises(
        ValueError, match=f"the metric '{name}' would replace the built-in one: call it 'my_{name}', say"
    ):
        run(small_net(), metrics={name: lambda *_: 1.0})


class WithFeatures(nn.Module):
    """Returns its outputs and what they are made from, as methods do that regularize features."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = self.body(x).tanh()
        return self.head(z), z


def test_an_accuracy_of_ones_own_where_none_is_built_in():
    def accuracy(output, y):
        return float((output[0].argmax(dim=1) == y).double().mean())

    def loss(output, y):
        return F.cross_entropy(output[0], y) + 0.01 * output[1].square().mean()

    options = {"loss": loss, "metrics": {"accuracy": accuracy}, "client_test": 0.3}
    result = run(WithFeatures(), **options)
    last = result.history[-1]
    expected = accuracy(result.model(torch.as_tensor(X, dtype=torch.float32)), torch.as_tensor(Y))
    assert last["test_accuracy"] == expected > 0
    assert {"client_loss", "client_accuracy", "client_accuracy_worst_decile"} <= last.keys()
    assert result.history.judged_by == "test_accuracy"
    assert result.history.best() == max(result.history["test_accuracy"])
    assert result.history.rounds_to(0.0) == 1
    assert len(run(WithFeatures(), **options, stop_at_accuracy=0.0).history) == 1
    assert len(run(WithFeatures(), **{**options, "test": None}, stop_at_accuracy=0.0).history) == 1
    assert result.evaluate((X, Y), loss, metrics={"accuracy": accuracy})["accuracy"] == expected


def test_metrics_need_test_data():
    hits = {"hits": lambda *_: 1.0}
    with pytest.raises(ValueError, match="give test=, validation= or client_test=, or leave metrics out"):
        run(small_net(), test=None, metrics=hits)
    assert run(small_net(), test=None, validation=(X, Y), metrics=hits).history["validation_hits"]
    assert run(small_net(), test=None, client_test=0.2, metrics=hits).history["client_hits"]


def test_metrics_are_a_dict():
    with pytest.raises(ValueError, match="metrics must be a dict of functions by name"):
        run(small_net(), metrics=[len])


def test_metrics_of_outputs_that_are_dicts():
    model = Around(lambda net, x: {"out": net(x), "length": x.norm()})
    own = {"loss": lambda output, y: F.cross_entropy(output["out"], y)}
    hits = {"hits": lambda output, y: (output["out"].argmax(dim=1) == y).double().mean()}
    plain = run(small_net())
    assert run(model, metrics=hits, eval_batch_size=50, **own).history["test_hits"] == plain.history["test_accuracy"]


class Answer:
    def __init__(self, value):
        self.value = value


def test_metrics_of_outputs_that_cannot_be_joined():
    with pytest.raises(ValueError, match="the metric 'm' needs outputs that are tensors, or dicts and tuples of ten"):
        run(
            Around(lambda net, x: Answer(net(x))),
            loss=lambda output, y: F.cross_entropy(output.value, y),
            metrics={"m": lambda *_: 1.0},
        )


class Both:
    """Logits, and what a loss may want beside them."""

    def __init__(self, logits, features, nothing=None):
        self.logits, self.features, self.nothing = logits, features, nothing


def features_too(net, x):
    return {"logits": net(x), "features": x, "loss": None}


@pytest.mark.parametrize("forward", [features_too, lambda net, x: Both(net(x), x)])
def test_a_loss_that_wants_more_than_logits_is_told_how(forward):
    sentence = (
        r"of the model's output a loss gets the logits alone, without features: rename logits, and it gets the whole"
    )
    with pytest.raises(ValueError, match=sentence):
        run(Around(forward), loss=lambda out, y: F.cross_entropy(out.logits, y) + out.features.mean())


def test_a_loss_that_is_wrong_in_another_way_is_told_nothing_of_logits():
    with pytest.raises(ValueError, match=r"the loss cannot compare outputs .*: no$"):
        run(small_net(), loss=raises)
    with pytest.raises(ValueError, match=r"the loss cannot compare outputs .*: no$"):
        run(Around(lambda net, x: {"logits": net(x)}), loss=raises)


def raises(*_):
    raise RuntimeError("no")


OUTPUTS = {
    "logits": (lambda net, x: {"logits": net(x), "features": x}, F.cross_entropy, "stacked"),
    "tuple": (lambda net, x: (net(x), x), lambda out, y: F.cross_entropy(out[0], y), "sequential"),
    "dict": (lambda net, x: {"scores": net(x)}, lambda out, y: F.cross_entropy(out["scores"], y), "sequential"),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.filterwarnings("ignore:the stacked engine cannot be used")
def test_outputs_under_other_names_reach_the_loss(name):
    """As docs/engines.md says of each."""
    forward, loss, engine = OUTPUTS[name]
    found = run(Around(forward), loss=loss, engine="stacked", dtype=torch.float64)
    assert found.engine == engine
    expected = run(small_net(), loss=F.cross_entropy, dtype=torch.float64).server.params
    torch.testing.assert_close(found.server.params, expected, rtol=1e-10, atol=1e-12)


def test_nothing_is_said_of_an_ordinary_model():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(small_net())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_ignored_targets_of_a_classifier_are_no_classes(engine):
    y = np.where(np.arange(len(Y)) % 5 == 0, -1, Y)
    loss = nn.CrossEntropyLoss(ignore_index=-1)
    with pytest.raises(ValueError, match="got -1"):
        run(small_net, y)
    result = run(small_net, y, loss=loss, engine=engine, dtype=torch.float64)
    kept = y != -1
    output = result.model(torch.from_numpy(X[kept]).to(next(result.model.parameters()).dtype))
    correct = (output.argmax(1) == torch.from_numpy(Y[kept])).double().mean()
    assert result.history["test_accuracy"][-1] == pytest.approx(float(correct))


def test_lazy_layers_are_named():
    def lazy():
        return nn.Sequential(nn.LazyLinear(3))

    def known():
        net = lazy()
        net(torch.zeros(1, 4))
        return net

    for model in (lazy, lazy()):
        with pytest.raises(ValueError, match=r"lazy layers, whose sizes are not known yet \(0.weight\)"):
            run(model)
    assert len(run(known).history) == 2
