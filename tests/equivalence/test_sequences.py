"""Targets that are sequences: a class for each place, some of them ignored, classes on either axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlada
from fedlada.data import Given
from method_table import METHODS
from user_models import LENGTH, VOCABULARY, Gpt, characters

UNEQUAL = Given(indices=[range(20), range(20, 27), range(27, 28), range(28, 60)])


class NextCharacters(Gpt):
    """The scores of every next character, classes last or second."""

    def __init__(self, classes_last=True):
        super().__init__()
        self.classes_last = classes_last

    def forward(self, x):
        x = self.symbols(x) + self.places(torch.arange(x.shape[1], device=x.device))
        scores = self.head(self.norm(self.blocks(x)))
        return scores if self.classes_last else scores.mT


def text(ignored=-100):
    """What comes next at each place; the second half of every third text is padding."""
    x, _ = characters()
    y = np.roll(x, -1, axis=1)
    y[::3, 4:] = ignored
    return x, y


def run(model, data, engine="sequential", **changes):
    values = {"method": METHODS["fedlada"].method(), "partition": UNEQUAL, "rounds": 2, "lr": 0.05, "batch_size": 6}
    return fedlada.simulate(model, data, engine=engine, **values | {"dtype": torch.float64, "device": "cpu"} | changes)


@pytest.mark.parametrize(("classes_last", "ignored"), [(True, -100), (False, -100), (False, 0)])
def test_stacked_is_sequential(classes_last, ignored):
    torch.manual_seed(0)
    model, data = NextCharacters(classes_last), text(ignored)
    loss = nn.CrossEntropyLoss(ignore_index=0) if ignored == 0 else None
    alone, stacked = (run(model, data, engine, loss=loss, test=data) for engine in ("sequential", "stacked"))
    torch.testing.assert_close(stacked.server.params, alone.server.params, rtol=1e-10, atol=1e-10)
    assert stacked.engine == "stacked"
    assert stacked.history[-1]["test_loss"] == pytest.approx(alone.history[-1]["test_loss"], rel=1e-10)


@pytest.mark.parametrize("classes_last", [True, False])
def test_means_are_over_all_places_that_count(classes_last):
    """Whatever the size of the batches, of which some have more padding than others."""
    torch.manual_seed(0)
    model, (x, y) = NextCharacters(classes_last).double(), text()
    y[:8] = -100  # a batch of nothing
    with torch.no_grad():
        model.eval()
        output = model(torch.from_numpy(x))
    scores = output if classes_last else output.mT
    counted = torch.from_numpy(y) != -100
    loss = float(F.cross_entropy(scores[counted], torch.from_numpy(y)[counted]))
    loss_of = fedlada.engines.classes.cross_entropy_last if classes_last else F.cross_entropy
    found = fedlada.evaluate(model, (x, y), loss_of, batch_size=8, metrics={"perplexity": fedlada.perplexity})
    assert found["loss"] == pytest.approx(loss, rel=1e-10)
    assert found["accuracy"] == pytest.approx(
        float((scores.argmax(dim=-1) == torch.from_numpy(y))[counted].double().mean())
    )
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-10)


def test_perplexity_leaves_out_what_it_is_told():
    scores, y = torch.randn(4, 5, 3), torch.randint(0, 3, (4, 5))
    kept = y != 0
    expected = math.exp(F.cross_entropy(scores[kept].double(), y[kept]))
    assert fedlada.perplexity(scores, y, ignore_index=0) == pytest.approx(expected)
    assert fedlada.perplexity(scores[:, 0], y[:, 0]) == pytest.approx(math.exp(F.cross_entropy(scores[:, 0], y[:, 0])))
    with pytest.raises(ValueError, match=r"perplexity needs logits and class indices, got \(4, 5, 3\) and \(4, 2\)"):
        fedlada.perplexity(scores, y[:, :2])


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, LENGTH)

    def forward(self, x):
        return self.table(x)


def test_what_does_not_fit_is_a_sentence():
    x, y = text()
    with pytest.raises(ValueError, match="do not determine the class axis: give loss="):
        run(Square(), (x, y % LENGTH))
    run(Square(), (x, y % LENGTH), loss=F.cross_entropy, rounds=1)
    with pytest.raises(ValueError, match=rf"training labels must be in 0..{VOCABULARY - 1} .* got 0..{VOCABULARY}"):
        run(NextCharacters(), (x, np.where(y == 3, VOCABULARY, y)))
    with pytest.raises(ValueError, match="all training targets are ignored"):
        run(NextCharacters(), (x, np.full_like(y, -100)))
