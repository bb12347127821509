"""Masks from a counter: fair, independent, the same for a client wherever and beside whomever it is run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedlada.data import as_samples
from fedlada.engines.dropout import CounterDropout, dropout_of_steps, elements_if_dropped, step_keys
from fedlada.engines.masks import Elements, kept_places
from fedlada.federation.batches import LocalWork
from fedlada.federation.plan import assign
from fedlada.models.flat import FlatModel
from tasks import blobs, small_net

CPU = torch.device("cpu")
ELEMENTS = Elements()


def mode(key=5, **options):
    return CounterDropout(torch.tensor(key), ELEMENTS, **options)


def signs(keys, calls, shape, p):
    """Masks as numbers of mean 0 and variance 1, one row for each key and call."""
    rows = []
    for key in keys:
        drawing = mode(int(key))
        rows += [drawing.keep(shape, CPU, p).flatten() for _ in range(calls)]
    return (torch.stack(rows).double() - (1 - p)) / math.sqrt(p * (1 - p))


KEYS = {
    "one after another": range(60),
    "far apart": np.random.default_rng(0).integers(-(2**62), 2**62, 60),
    "in their high bits": [number << 40 for number in range(60)],
}


@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize("keys", KEYS)
def test_masks_are_fair_and_independent(keys, p):
    """Means, and correlations between keys, calls and elements, are those of coins: 6 standard errors at most."""
    z = signs(KEYS[keys], 3, (32, 50), p)
    draws, places = z.shape
    assert abs(z.mean()) < 6 / math.sqrt(z.numel())
    assert (z.mean(dim=1) * math.sqrt(places)).abs().max() < 6
    assert (z.mean(dim=0) * math.sqrt(draws)).abs().max() < 6
    between_draws = (z @ z.T / math.sqrt(places)).fill_diagonal_(0)
    between_places = (z.T @ z / math.sqrt(draws)).fill_diagonal_(0)
    for found, size in ((between_draws, draws), (between_places, places)):
        assert float(found.square().sum() / (size * (size - 1))) == pytest.approx(1, abs=0.05)
        assert found.abs().max() < (8 if p == 0.1 else 6.5)


def test_keys_of_steps_depend_on_seed_round_client_and_step():
    def keys(**changes):
        values = {"seed": 1, "round": 2, "client": 3, "num_steps": 4} | changes
        return step_keys(assign(np.arange(8), LocalWork(batch_size=2), **values)).tolist()

    assert keys() == keys()
    assert keys(num_steps=2) == keys()[:2]  # a straggler's are the first of them
    found = [*keys(), *keys(seed=2), *keys(round=3), *keys(client=4)]
    assert len(set(found)) == len(found)


def test_each_step_has_the_masks_of_its_key():
    """Also after the calls whose keys are made ahead."""
    work = assign(np.arange(8), LocalWork(batch_size=2), seed=1, round=2, client=3, num_steps=4)
    for make, key in zip(dropout_of_steps(ELEMENTS, work, CPU), step_keys(work).tolist(), strict=True):
        for again in (make(), make()):
            alone = mode(key)
            assert all(torch.equal(again.keep((9,), CPU, 0.5), alone.keep((9,), CPU, 0.5)) for _ in range(150))


def test_a_place_keeps_its_mask_in_a_larger_batch():
    """Whichever axis the samples lie on."""
    whole = mode().keep((6, 5, 4), CPU, 0.5)
    assert torch.equal(mode().keep((3, 5, 4), CPU, 0.5), whole[:3])
    assert torch.equal(mode().keep((6, 2, 4), CPU, 0.5), whole[:, :2])
    assert torch.equal(mode().keep((6, 5, 1), CPU, 0.5), whole[..., :1])


def test_clients_draw_the_same_alone_together_and_under_vmap():
    keys, x = torch.tensor([3, -8, 10**15]), torch.rand(3, 4, 5) + 1

    def dropped(key, own):
        with CounterDropout(key, ELEMENTS):
            F.dropout(own, 0.5)
            return F.dropout(own, 0.3)

    alone = torch.stack([dropped(key, own) for key, own in zip(keys, x, strict=True)])
    assert torch.equal(torch.vmap(dropped)(keys, x), alone)
    with CounterDropout(keys, ELEMENTS, num_samples=12):
        F.dropout(x.flatten(0, 1), 0.5)
        joint = F.dropout(x.flatten(0, 1), 0.3)
    assert torch.equal(joint.view_as(x), alone)
    assert 0.1 < (alone == 0).double().mean() < 0.5
    with (
        CounterDropout(keys, ELEMENTS, num_samples=12),
        pytest.raises(ValueError, match="first axis is not that of the samples"),
    ):
        F.dropout(x.flatten(0, 1).mT.contiguous()[:5])


def test_shapes_that_always_change_do_not_fill_the_memory():
    few = Elements(most=3)
    masks = [CounterDropout(torch.tensor(5), few).keep((size, 4), CPU, 0.5) for size in range(1, 9)]
    assert len(few.made) <= 3
    assert all(torch.equal(one, masks[-1][: len(one)]) for one in masks)


def test_many_calls_have_keys_of_their_own():
    drawing = mode()
    masks = {tuple(drawing.keep((40,), CPU, 0.5).tolist()) for _ in range(200)}
    assert len(masks) == 200


LAYERS = [nn.Dropout(0.4), nn.Dropout1d(0.4), nn.Dropout2d(0.4), nn.Dropout3d(0.4), nn.AlphaDropout(0.4)]
LAYERS += [nn.FeatureAlphaDropout(0.4), nn.Dropout(0.4, inplace=True), nn.Dropout2d(0.4, inplace=True)]
AXES = {nn.Dropout1d: 3, nn.Dropout3d: 5}


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_do_what_torch_does_with_other_numbers(layer):
    x = torch.randn(200, 8, *([3] * (AXES.get(type(layer), 4) - 2)), dtype=torch.float64)
    state = torch.get_rng_state()
    with mode():
        ours = layer(x.clone())
    assert torch.equal(torch.get_rng_state(), state)
    theirs = layer(x.clone())
    value = theirs.flatten().mode().values  # what a dropped place has
    dropped, theirs_dropped = (one.isclose(value) for one in (ours, theirs))
    stays = ~dropped & ~theirs_dropped
    torch.testing.assert_close(ours[stays], theirs[stays])
    assert float(dropped.double().mean()) == pytest.approx(0.4, abs=0.06)
    whole = dropped.flatten(2).all(dim=2) | ~dropped.flatten(2).any(dim=2)
    assert bool(whole.all()) == (type(layer) not in (nn.Dropout, nn.AlphaDropout))
    with mode() as drawing:
        layer.eval()(x)
        F.dropout(x, 0.0)
    layer.train()
    assert drawing.num_calls == 0


def test_gradients_go_where_values_went():
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    with mode():
        y = F.dropout(x, 0.5)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, 2 * (y != 0).double())
    with mode():
        assert not F.dropout(x, 1.0).any()


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_inside_and_outside_its_module(need_weights):
    """Both ways of torch's module, and the function alone, drop the weights of the attention by the same masks."""
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True).double(), torch.randn(3, 5, 4).double()
    with mode() as drawing:
        found = module(x, x, x, need_weights=need_weights)[0]
    assert drawing.num_calls == 1
    q, k, v = F.linear(x, module.in_proj_weight, module.in_proj_bias).view(3, 5, 3, 2, 2).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT / math.sqrt(2)).softmax(dim=-1)
    flat = need_weights  # there torch has samples and heads on one axis
    kept = mode().keep((6, 5, 5) if flat else (3, 2, 5, 5), CPU, 0.5).view(3, 2, 5, 5)
    mixed = torch.where(kept, 2 * weights, 0.0) @ v
    torch.testing.assert_close(found, module.out_proj(mixed.transpose(1, 2).flatten(2)))


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "float": {"attn_mask": torch.randn(5, 5).double()},
    "bool, with a row that sees nothing": {"attn_mask": torch.ones(5, 5).tril(-1).bool()},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=list(MASKS))
def test_attention_written_out_is_torchs(options):
    from fedlada.engines.attention import attention

    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 5, 4).double().requires_grad_() for _ in range(3)]
    found, expected = attention(*parts, **options), F.scaled_dot_product_attention(*parts, **options)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parts), torch.autograd.grad(expected.square().sum(), parts),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)
    query, key, value = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    torch.testing.assert_close(
        attention(query, key, value, enable_gqa=True),
        F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
    )


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_drop_between_their_layers(kind):
    torch.manual_seed(0)
    both = kind(3, 4, 2, dropout=0.5, batch_first=True, bidirectional=True).double()
    x = torch.randn(3, 6, 3).double()
    with mode() as drawing:
        found, last = both(x)
    assert drawing.num_calls == 1
    layers = [kind(size, 4, batch_first=True, bidirectional=True).double() for size in (3, 8)]
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            parameter.data = getattr(both, name.replace("l0", f"l{number}")).data
    between, first = layers[0](x)
    expected, second = layers[1](torch.where(mode().keep((3, 6, 8), CPU, 0.5), 2 * between, 0.0))
    torch.testing.assert_close(found, expected)
    pairs = zip(last, zip(first, second, strict=True), strict=True) if kind is nn.LSTM else [(last, (first, second))]
    for one, parts in pairs:
        torch.testing.assert_close(one, torch.cat(parts))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_drops_the_same_when_it_is_run_again(reentrant):
    """No mode sees the second run, so torch's own numbers, which are put back for it, stay."""
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    with mode() as drawing:
        y = checkpoint(lambda own: F.dropout(own, 0.5) ** 2, x, use_reentrant=reentrant)
    (grad,) = torch.autograd.grad(y.sum(), x) if not reentrant else (None,)
    if reentrant:
        y.sum().backward()
        grad = x.grad
    assert drawing.num_calls == 0
    torch.testing.assert_close(grad, torch.where(y == 0, 0.0, 8 * x))


def test_a_frozen_part_without_gradients_drops_by_the_counter():
    x = torch.randn(6, 5)
    with mode() as drawing, torch.no_grad():
        y = F.dropout(x, 0.5)
    assert drawing.num_calls == 1
    assert torch.equal(y != 0, mode().keep((6, 5), CPU, 0.5))


def test_models_without_dropout_run_without_the_mode():
    x, _ = as_samples(blobs(), CPU, torch.float32).batch(np.arange(2))
    cases = ((small_net(), False), (nn.Sequential(small_net(), nn.Dropout(0.1)), True))
    for model, expected in (*cases, (nn.Sequential(small_net(), nn.Dropout(0.0)), False)):
        assert (elements_if_dropped(FlatModel(model, CPU), x) is not None) == expected


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_dropout_of_a_compiled_model_is_seen_without_compiling_it(p):
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    model = torch.compile(nn.Sequential(nn.Linear(3, 2), nn.Dropout(p)), backend=backend)
    assert (elements_if_dropped(FlatModel(model, CPU), torch.randn(2, 3)) is not None) == (p > 0)
    assert not compiled


@pytest.mark.parametrize("p", [0.5, 0.03])
@pytest.mark.parametrize("shape", [(3,), (40, 7, 9)])
def test_the_gpus_kernel_makes_the_same_masks(shape, p):
    """Interpreted where there is no GPU."""
    triton_masks = pytest.importorskip("fedlada.engines.stacked.triton_masks")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    low, high = torch.tensor([[5, -(2**31), 2**31 - 1], [-7, 12345, 0]], dtype=torch.int32, device=device)
    elements = ELEMENTS.of(shape, device)
    found = triton_masks.keep(elements, low, high, round(p * 2**32) - 2**31).cpu()
    assert torch.equal(found, kept_places(elements.cpu(), low.cpu(), high.cpu(), p))
