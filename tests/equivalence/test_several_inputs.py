"""Several inputs, in a tuple or by name, and models that return more than scores."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlada
from fedlada.data import Given
from fedlada.data.samples import as_samples
from fedlada.engines.evaluation import predictions
from fedlada.models.call import arguments
from method_table import METHODS
from user_models import CLASSES, VOCABULARY, characters

UNEQUAL = Given(indices=[range(20), range(20, 27), range(27, 28), range(28, 60)])


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Reader(nn.Module):
    """Words and a mask of which of them count, as libraries of language models have it."""

    def __init__(self, returns="tensor", bare=False):
        super().__init__()
        self.returns = returns
        self.table, self.out = nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES)
        self.scale = nn.Parameter(torch.ones(CLASSES)) if bare else None

    def forward(self, words, mask, temperature=1.0):
        known = (self.table(words) * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        scores = self.out(torch.tanh(known)) / temperature
        scores = scores if self.scale is None else scores * self.scale
        if self.returns == "tensor":
            return scores
        return {"logits": scores, "hidden": known} if self.returns == "dict" else Answer(scores, known)


def inputs(as_dict):
    x, y = characters()
    mask = (np.random.default_rng(1).random(x.shape) < 0.7).astype(np.float64)
    mask[:, 0] = 1
    return ({"words": x, "mask": mask} if as_dict else (x, mask)), y


def both(model, data, **changes):
    values = {"method": METHODS["fedlada"].method(), "partition": UNEQUAL, "rounds": 2, "lr": 0.05, "batch_size": 6}
    values |= {"dtype": torch.float64, "device": "cpu", "test": data} | changes
    alone, stacked = (fedlada.simulate(model, data, engine=name, **values) for name in ("sequential", "stacked"))
    torch.testing.assert_close(stacked.server.params, alone.server.params, rtol=1e-10, atol=1e-10)
    return alone, stacked


@pytest.mark.slow
@pytest.mark.parametrize("bare", [False, True], ids=["layer by layer", "by vmap"])
@pytest.mark.parametrize("returns", ["tensor", "dict", "object"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_stacked_is_sequential(as_dict, returns, bare):
    torch.manual_seed(0)
    model, data = Reader(returns, bare), inputs(as_dict)
    alone, stacked = both(model, data)
    assert stacked.engine == "stacked"
    assert ("vmap" in stacked.engine_reason) == bare
    assert stacked.history[-1]["test_accuracy"] == alone.history[-1]["test_accuracy"]
    plain = Reader("tensor", bare)
    plain.load_state_dict(model.state_dict())
    for one, other in zip(both(plain, inputs(not as_dict)), (alone, stacked), strict=True):
        assert torch.equal(one.server.params, other.server.params)


class Named(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = inputs(as_dict=True)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {name: torch.as_tensor(one[index]) for name, one in self.x.items()}, int(self.y[index])


def test_a_dataset_with_named_inputs():
    torch.manual_seed(0)
    model = Reader()
    _, stacked = both(model, Named())
    assert stacked.engine == "stacked"
    assert torch.allclose(both(model, inputs(as_dict=True))[0].server.params, stacked.server.params)


class OwnLoss(Reader):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, words, labels, mask):
        return self.kind(loss=F.cross_entropy(super().forward(words, mask), labels))


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_a_model_with_a_loss_of_its_own_runs_alone(kind):
    torch.manual_seed(0)
    x, y = inputs(as_dict=True)
    model = OwnLoss(kind)
    with pytest.warns(UserWarning, match="its output is not one tensor"):
        own, _ = both(model, ({**x, "labels": y}, y), test=None)
    plain = Reader()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(both(plain, (x, y), test=None)[0].server.params, own.server.params)


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, CLASSES)

    def forward(self, batch):
        return self.out(batch["values"])


def test_how_a_model_takes_its_inputs():
    x = {"words": 1, "mask": 2}
    assert arguments(Reader(), x) == ((), x)
    assert arguments(Reader(), (1, 2)) == ((1, 2), {})
    assert arguments(TakesDict(), x) == ((x,), {})
    assert arguments(TakesDict(), (1, 2)) == (((1, 2),), {})
    values = np.random.default_rng(0).normal(size=(60, 4))
    both(TakesDict(), ({"values": values}, np.arange(60) % CLASSES))


def test_what_does_not_fit_is_a_sentence():
    x, y = inputs(as_dict=True)
    with pytest.raises(ValueError, match="x and y must have one row per sample"):
        both(Reader(), ({**x, "mask": x["mask"][:30]}, y))
    broken = x["mask"].copy()
    broken[3] = np.nan
    with pytest.raises(ValueError, match=r"x\['mask'\] holds a NaN or an infinity in row 3"):
        both(Reader(), ({**x, "mask": broken}, y))


def test_inputs_that_the_model_has_no_argument_for_are_named():
    x, y = inputs(as_dict=True)
    for wrong, sentence in (
        (
            {"ids": x["words"], "mask": x["mask"]},
            r"its forward has no argument 'ids' \(it takes words, mask, temperature\)",
        ),
        (
            {"ids": x["words"], "masks": x["mask"]},
            r"its forward has no arguments 'ids', 'masks' \(it takes words, mask, ",
        ),
    ):
        with pytest.raises(ValueError, match=rf"cannot take a batch of the training data \(dict\): {sentence}"):
            fedlada.simulate(Reader(), (wrong, y), method="fedavg")
    with pytest.raises(ValueError, match=r"the test data \(dict\): its forward has no argument 'ids'"):
        fedlada.simulate(Reader(), (x, y), test=({"ids": x["words"], "mask": x["mask"]}, y), method="fedavg")
    with pytest.raises(
        ValueError, match=r"\(dict\): Reader\.forward\(\) missing 1 required positional argument: 'mask'"
    ):
        fedlada.simulate(Reader(), ({"words": x["words"]}, y), method="fedavg")


def test_an_evaluation_names_misspelled_inputs_and_leaves_the_mode(tmp_path):
    x, y = inputs(as_dict=True)
    wrong = {"ids": x["words"], "mask": x["mask"]}
    result = fedlada.simulate(Reader(), (x, y), method="fedavg", rounds=1, out=tmp_path)
    model = Reader().train()
    stored = fedlada.load_run(tmp_path, Reader())
    sentence = r"^the model cannot take a batch of the data \(dict\): its forward has no argument 'ids' \(it takes "
    for ask in (
        lambda: fedlada.evaluate(model, (wrong, y)),
        lambda: predictions(model, as_samples((wrong, y), torch.device("cpu"), torch.float32)),
        lambda: result.evaluate((wrong, y)),
        lambda: stored.evaluate((wrong, y)),
    ):
        with pytest.raises(ValueError, match=sentence):
            ask()
    assert all(one.training for one in model.modules())
