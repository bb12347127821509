"""Models that nobody here wrote the engine for: stacked as sequential, with dropout, attention and recurrent layers."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.modules import transformer

import fedlada
from fedlada.data import Given, as_samples
from fedlada.engines import SequentialEngine, StackedEngine
from fedlada.engines.attention import masks_as_given
from method_table import METHODS
from user_models import CLASSES, MODELS, VOCABULARY, Causal, CharLstm, Vit, characters, pictures

CPU = torch.device("cpu")
UNEQUAL = Given(indices=[range(20), range(20, 27), range(27, 28), range(28, 60)])
"""Clients of 20, 7, 1 and 32 samples."""


def run(model, data, engine, **changes):
    values = {"method": METHODS["fedlada"].method(), "partition": UNEQUAL, "rounds": 2, "lr": 0.05, "batch_size": 6}
    values |= {"dtype": torch.float64, "device": "cpu", "local_epochs": 1, "test": data} | changes
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own, and those of a fallback
        return fedlada.simulate(model, data, engine=engine, **values)


def both(model, data, **changes):
    alone, stacked = (run(model, data, engine, **changes) for engine in ("sequential", "stacked"))
    torch.testing.assert_close(stacked.server.params, alone.server.params, rtol=1e-10, atol=1e-10)
    for name in ("train_loss", "test_loss"):
        assert stacked.history[name] == pytest.approx(alone.history[name], rel=1e-10)


def form(model, data):
    samples = as_samples(data, CPU, torch.float64)
    engine = StackedEngine(model, METHODS["fedlada"].method(), samples, None, device=CPU, dtype=torch.float64)
    return type(engine.network).__name__


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedlada", "fedsam"])
@pytest.mark.parametrize("name", MODELS)
def test_stacked_is_sequential(name, method):
    torch.manual_seed(0)
    model, data, expected = MODELS[name]
    made = model()
    both(made, data(), method=METHODS[method].method())
    assert form(made, data()) == expected


def test_masks_of_an_encoder_are_not_looked_at(monkeypatch):
    """On a GPU that would wait for it, and a CUDA graph cannot wait."""
    x, y = characters()
    samples = as_samples((x, y), CPU, torch.float64)
    method = METHODS["fedlada"].method()
    network = StackedEngine(Causal(), method, samples, None, device=CPU, dtype=torch.float64).network
    looked = []
    monkeypatch.setattr(transformer, "_detect_is_causal_mask", lambda *_: looked.append("yes"))
    rows, grads = (network.layout.rows(2, torch.zeros((), dtype=torch.float64)) for _ in range(2))
    network.bind(rows, grads)
    weights = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    network.backward(torch.from_numpy(x[:6]), torch.from_numpy(y[:6]), weights, torch.tensor([1, 2]))
    assert looked == []
    assert grads.any()
    Causal().double()(torch.from_numpy(x[:6]))
    assert looked == ["yes"]  # afterwards it is as it was


def test_masks_are_looked_at_in_other_threads():
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    with masks_as_given(), ThreadPoolExecutor(1) as other:
        assert not transformer._detect_is_causal_mask(mask)
        assert other.submit(transformer._detect_is_causal_mask, mask).result()
    assert transformer._detect_is_causal_mask(mask)


class TiedWords(nn.Module):
    """A head that is the table, and a layer that is used three times; every layer has a stacked form."""

    def __init__(self):
        super().__init__()
        self.table, self.same = nn.Embedding(VOCABULARY, 6, padding_idx=2), nn.Linear(6, 6)
        self.head = nn.Linear(6, VOCABULARY)
        self.head.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        for _ in range(3):
            x = torch.tanh(self.same(x))
        return self.head(x.mean(dim=1))


def test_gradients_of_all_uses_add_up():
    torch.manual_seed(0)
    both(TiedWords(), characters())
    assert form(TiedWords(), characters()) == "LayeredNetwork"


@pytest.mark.slow
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, partial(nn.RNN, nonlinearity="relu", bias=False)])
def test_recurrent_layers(kind, batch_first):
    """Two layers, dropout between them, one way or both, samples on the first axis or on the second."""
    torch.manual_seed(0)
    both(CharLstm(kind, batch_first, bidirectional=batch_first), characters())


class FromAState(CharLstm):
    """A layer that begins with a state of the model's own, a parameter."""

    def __init__(self, kind):
        super().__init__(kind)
        self.begin = nn.Parameter(torch.randn(2, 1, 6))

    def forward(self, x):
        begin = self.begin.expand(-1, len(x), -1).contiguous()
        out, _ = self.recurrent(self.table(x), (begin, begin) if isinstance(self.recurrent, nn.LSTM) else begin)
        return self.out(out[:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_with_a_state_to_begin_with(kind):
    torch.manual_seed(0)
    both(FromAState(kind), characters())


class OnALine(nn.Module):
    """Transposed convolutions of one dimension, plain and in groups."""

    def __init__(self):
        super().__init__()
        self.up, self.grouped = nn.ConvTranspose1d(3, 4, 3, stride=2), nn.ConvTranspose1d(4, 4, 2, groups=2)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.grouped(torch.tanh(self.up(x.flatten(2))))).mean(dim=2))


def test_transposed_convolutions_on_a_line():
    torch.manual_seed(0)
    both(OnALine(), pictures())
    assert form(OnALine(), pictures()) == "LayeredNetwork"


def test_attention_with_samples_on_the_second_axis():
    torch.manual_seed(0)
    both(Vit(batch_first=False), pictures())


class Masked(nn.Module):
    """Sequences filled up with zeros, which attention and the mean leave out."""

    def __init__(self, need_weights):
        super().__init__()
        self.need_weights = need_weights
        self.table = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.recurrent = nn.GRU(8, 6, batch_first=True)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        is_padding, own = x == 0, self.table(x)
        mixed, _ = self.attend(own, own, own, key_padding_mask=is_padding, need_weights=self.need_weights)
        out, _ = self.recurrent(own + mixed)
        kept = out.masked_fill(is_padding[..., None], 0.0)
        return self.out(kept.sum(dim=1) / (~is_padding).sum(dim=1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize("need_weights", [True, False])
def test_padding_with_a_mask(need_weights):
    x, y = characters()
    x[:, 0] = 1
    x[::2, 3:] = 0
    torch.manual_seed(0)
    both(Masked(need_weights), (x, y))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.recurrent, self.out = nn.Embedding(VOCABULARY, 5), nn.GRU(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        lengths = (x > 0).sum(dim=1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.recurrent(packed)[1][-1])


class Projected(CharLstm):
    def __init__(self):
        super().__init__()
        self.recurrent, self.out = nn.LSTM(5, 6, batch_first=True, proj_size=3), nn.Linear(3, CLASSES)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("model", "reason"), [(Packed, "pad and mask"), (Projected, "proj_size has no stacked form")])
def test_what_is_refused_says_the_way_out_and_runs_alone(model, reason):
    torch.manual_seed(0)
    made = model()
    values = {"rounds": 1, "method": METHODS["fedavg"].method(), "lr": 0.05}
    with pytest.warns(UserWarning, match=reason):
        result = fedlada.simulate(made, characters(), engine="stacked", **values)
    alone = fedlada.simulate(made, characters(), engine="sequential", **values)
    assert torch.equal(result.server.params, alone.server.params)


class Shaky(nn.Module):
    """Drops from a tensor whose first axis is not that of the samples, then from one where it is."""

    def __init__(self):
        super().__init__()
        self.first, self.out, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.02)

    def forward(self, x):
        return self.out(self.drop(self.drop(self.first(x).mT).mT))


def test_dropout_across_the_samples_is_drawn_client_by_client():
    from tasks import blobs

    both(Shaky(), blobs(num_samples=60))
    assert form(Shaky(), blobs(num_samples=60)) == "VmappedNetwork"


@pytest.mark.parametrize("places", [1, 2, 3])
def test_masks_do_not_depend_on_who_is_beside(places):
    """In chunks of any size, some places empty."""
    torch.manual_seed(0)
    model, data, _ = MODELS["vgg"]
    made = model()
    samples = as_samples(data(), CPU, torch.float64)
    alone = run(made, data(), "sequential", local_epochs=2)
    engine = StackedEngine(
        made, METHODS["fedlada"].method(), samples, None, device=CPU, dtype=torch.float64, max_places=places
    )
    torch.testing.assert_close(by_engine(engine).server.params, alone.server.params, rtol=1e-10, atol=1e-10)


def by_engine(engine):
    from fedlada.data import LocalWork
    from fedlada.federation.cohorts import Everyone
    from fedlada.federation.plan import Plan
    from fedlada.federation.schedules import as_schedule
    from fedlada.training.simulation import Simulation

    plan = Plan(
        clients=UNEQUAL.assign(range(60), 0), cohorts=Everyone(), work=LocalWork(batch_size=6, epochs=2),
        schedule=as_schedule(0.05, 1.0),
    )  # fmt: skip
    simulation = Simulation(engine, plan)
    simulation.run(2)
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", ["vgg", "lstm"])
def test_resumed_with_dropout_to_the_same_bits(name, engine, tmp_path):
    torch.manual_seed(0)
    model, data, _ = MODELS[name]
    made = model()

    def stop(simulation, row):
        if row["round"] == 2:
            simulation.pause("here")

    common = {"rounds": 3, "dtype": torch.float32, "local_epochs": 1}
    whole = run(made, data(), engine, **common)
    for callbacks in ([stop], []):
        torch.manual_seed(1)  # nobody's use of the global generator matters
        done = run(made, data(), engine, out=tmp_path, checkpoint_every=1, callbacks=callbacks, **common)
    assert torch.equal(done.server.params, whole.server.params)
    assert not torch.equal(run(made, data(), engine, seed=1, **common).server.params, whole.server.params)


def test_a_step_that_looks_ahead_drops_the_same_at_both_points():
    """By the sequential engine: the gradient at a point is a function of the point."""
    from fedlada.engines.dropout import dropout_of_steps
    from fedlada.engines.sequential import BatchGradient
    from fedlada.federation.batches import LocalWork
    from fedlada.federation.plan import assign

    torch.manual_seed(0)
    model, data, _ = MODELS["vgg"]
    samples = as_samples(data(), CPU, torch.float64)
    engine = SequentialEngine(model(), METHODS["fedsam"].method(), samples, None, device=CPU, dtype=torch.float64)
    work = assign(torch.arange(12).numpy(), LocalWork(batch_size=6), seed=0, round=1, client=0, num_steps=2)
    first, second = (
        BatchGradient(engine.flat, engine.loss, *samples.batch(work.batches[0]), dropout)
        for dropout in dropout_of_steps(engine.elements, work, CPU)
    )
    point = engine.initial_params()
    assert torch.equal(first(point), first(point))
    assert not torch.equal(first(point), second(point))


class Unusual(nn.Module):
    """A function for which vmap has no rule, beside a parameter that is no layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(3 * 8 * 8, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        with torch.no_grad():
            known = torch.special.airy_ai(x)
        return self.scale * self.inner(known.flatten(1))


def test_nothing_is_said_of_functions_without_a_rule(capfd):
    both(Unusual(), pictures(), rounds=1)
    assert form(Unusual(), pictures()) == "VmappedNetwork"
    assert "performance drop" not in capfd.readouterr().err
