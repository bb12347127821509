"""The chain as a torch optimizer, in people's own loops."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedlada
from fedlada import recipes
from fedlada.methods.personal import Personal
from fedlada.methods.state import named_tensors
from fedlada.models.flat import flatten
from method_table import METHODS
from tasks import small_net


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)) for _ in range(count)
    ]


def train(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def train_with_closure(model, optimizer, data):
    """As for LBFGS: needed where the method looks ahead, possible everywhere."""
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        before = nn.functional.cross_entropy(model(x), y)
        loss = optimizer.step(closure)
        assert torch.equal(loss, before) or optimizer.method.name == "fedlesam"  # asks nowhere at the parameters


@pytest.mark.parametrize("with_closure", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_equals_the_calls_of_a_method(name, with_closure):
    """Two rounds of two clients through the optimizer are the method's own calls, bit for bit."""
    method = METHODS[name].method()
    if method.looks_ahead and not with_closure:
        with pytest.raises(ValueError, match=f"{name} takes gradients at other points .* call step\\(closure\\)"):
            train(model := small_net(), fedlada.LocalOptimizer(model.parameters(), method, lr=0.1), batches(1))
        return
    model = small_net()
    server = method.init(flatten(model.parameters()))
    twin, other = copy.deepcopy(model), server
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.1)
    kept, kept_other = {}, {}
    for round in range(2):
        uploads, uploads_other = [], []
        for client in range(2):
            data = batches(3, seed=10 * round + client)
            optimizer.begin(server.broadcast, kept.get(client))
            (train_with_closure if with_closure else train)(model, optimizer, data)
            upload, kept[client] = optimizer.finish()
            uploads.append(upload)

            memory = kept_other.get(client, method.init_kept(other.params))
            local = method.begin(other.broadcast, memory, lr=0.1)
            for x, y in data:

                def gradient_at(point, x=x, y=y):
                    torch.nn.utils.vector_to_parameters(point, twin.parameters())
                    loss = nn.functional.cross_entropy(twin(x), y)
                    return flatten(torch.autograd.grad(loss, list(twin.parameters())))

                local = method.step(local, gradient_at)
            upload, kept_other[client] = method.finish(local, 3)
            uploads_other.append(upload)
        server = method.aggregate(server, method.combine(uploads), lr=0.1, num_steps=3, participation=1.0)
        other = method.aggregate(other, method.combine(uploads_other), lr=0.1, num_steps=3, participation=1.0)
    for (where, a), (_, b) in zip(named_tensors(server), named_tensors(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=where)


def test_a_name_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"as fedlada\.suggested\('fedlada'\)\['method'\], got 'fedlada'"):
        fedlada.LocalOptimizer(small_net().parameters(), "fedlada", lr=0.1)


def test_without_begin_a_chain_is_a_plain_optimizer():
    first, second = small_net(), small_net()
    ours = fedlada.LocalOptimizer(first.parameters(), recipes.fedavg(weight_decay=0.1), lr=0.2)
    theirs = torch.optim.SGD(second.parameters(), lr=0.2, weight_decay=0.1)
    train(first, ours, batches(5))
    train(second, theirs, batches(5))
    torch.testing.assert_close(flatten(first.parameters()), flatten(second.parameters()))


def test_personal_parameters_are_the_clients_own():
    model = small_net()
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    method = replace(recipes.fedavg(), personal=Personal.of(sizes, ["2.weight", "2.bias"]))
    server = method.init(flatten(model.parameters()))
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.1)
    optimizer.begin(server.broadcast)
    train(model, optimizer, batches(2))
    _, kept = optimizer.finish()
    head = model[2].weight.clone()
    optimizer.begin(server.broadcast, kept)
    assert torch.equal(model[2].weight, head)
    assert torch.equal(model[0].weight, small_net()[0].weight)


def test_state_dict_continues_in_the_middle_of_a_round():
    method = METHODS["fedlada"].method()
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.1)
    optimizer.begin(method.init(optimizer.vector).broadcast)
    train(model, optimizer, batches(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)

    file.seek(0)
    stored = torch.load(file, weights_only=True)
    restored = small_net(seed=9)
    restored.load_state_dict(stored["model"])
    continued = fedlada.LocalOptimizer(restored.parameters(), method, lr=0.7)
    continued.load_state_dict(stored["optimizer"])
    for one, its_optimizer in ((model, optimizer), (restored, continued)):
        train(one, its_optimizer, batches(2, seed=5))
    first, second = optimizer.finish()[0], continued.finish()[0]
    for (_, a), (_, b) in zip(named_tensors(first), named_tensors(second), strict=True):
        assert torch.equal(a, b)


def test_schedulers_set_the_rate_and_the_server_learns_the_mean():
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedcm(alpha=0.5), lr=0.4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for data in batches(3):
        train(model, optimizer, [data])
        scheduler.step()
    assert optimizer.mean_lr == pytest.approx((0.4 + 0.2 + 0.1) / 3)
    assert optimizer.num_steps == 3


def test_automatic_mixed_precision():
    """Autocast and a gradient scaler work as with any optimizer; a step with an overflow is left out."""
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedlada(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    for x, y in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.num_steps == 3
    optimizer.zero_grad()
    scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    model[0].weight.grad[0, 0] = torch.inf
    scaler.step(optimizer)
    assert optimizer.num_steps == 3
    assert all(p.isfinite().all() for p in model.parameters())


def test_closure_and_missing_gradients():
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=0.1)
    model[0].weight.requires_grad_(True)

    def closure():
        optimizer.zero_grad()
        loss = model[2](torch.ones(1, 8)).sum()
        loss.backward()
        return loss

    before = model[0].weight.clone()
    assert optimizer.step(closure) is not None
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(model[2].bias, small_net()[2].bias)


def test_a_parameter_that_is_unfrozen_later_is_not_left_out():
    model = small_net()
    first = next(model.parameters()).requires_grad_(False)
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=0.1)
    train(model, optimizer, batches(1))
    first.requires_grad_(True)
    with pytest.raises(ValueError, match="this optimizer would not train it: make a new LocalOptimizer"):
        train(model, optimizer, batches(1))
    with pytest.raises(ValueError, match="would not train it"):
        optimizer.begin(optimizer.method.init(optimizer.vector).broadcast)


def test_sparse_gradients_are_as_good_as_dense_ones():
    moved = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(5, 3, sparse=sparse)
        optimizer = fedlada.LocalOptimizer(table.parameters(), recipes.fedlada(), lr=0.1)
        table(torch.tensor([1, 3, 3])).square().sum().backward()
        optimizer.step()
        moved.append(table.weight.detach())
    assert torch.equal(*moved)


def test_wrong_use_gets_a_sentence():
    model = small_net()
    with pytest.raises(ValueError, match="lr must be positive, got 0"):
        fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=0)
    for lr, sentence in ((float("inf"), "lr must be finite, got inf"), ("0.1", "lr must be a number, got '0.1'")):
        with pytest.raises(ValueError, match=sentence):
            fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=lr)
    assert fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=torch.tensor(0.5)).mean_lr == 0.5
    groups = [{"params": [p]} for p in model.parameters()]
    with pytest.raises(ValueError, match="one group of parameters"):
        fedlada.LocalOptimizer(groups, recipes.fedavg(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"finish\(\) comes after begin\(\)"):
        fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=0.1).finish()


def test_scaffold_takes_the_mean_rate_of_a_schedule():
    """c_i' = delta / (sum of the rates), where every step has its own rate."""
    model = small_net()
    method = recipes.scaffold()
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    optimizer.begin(method.init(optimizer.vector).broadcast)
    for data in batches(3):
        train(model, optimizer, [data])
        scheduler.step()
    upload, kept = optimizer.finish()
    torch.testing.assert_close(kept.memory[0]["control"], upload.delta / (0.4 + 0.2 + 0.1))


def test_a_second_group_is_refused_later_too():
    optimizer = fedlada.LocalOptimizer(small_net().parameters(), recipes.fedavg(), lr=0.1)
    with pytest.raises(ValueError, match="one group of parameters"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedlada"])
def test_a_round_at_rate_zero_is_a_sentence_and_not_nan(name):
    """A warm-up from zero: FedAvg takes it, the others divide by the rate, on the client or on the server."""
    model, method = small_net(), recipes.RECIPES[name]()
    server = method.init(flatten(model.parameters()))
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.1)
    optimizer.begin(server.broadcast)
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, batches(2))
    if name == "scaffold":
        with pytest.raises(RuntimeError, match="scaffold divides by the rate, which was 0 in every step"):
            optimizer.finish()
        return
    rates = {"lr": optimizer.mean_lr, "num_steps": 2, "participation": 1.0}
    upload, _ = optimizer.finish()
    if name == "fedlada":
        with pytest.raises(ValueError, match="fedlada divides by the clients' rate, which was 0"):
            method.aggregate(server, upload, **rates)
    else:
        assert torch.equal(method.aggregate(server, upload, **rates).params, server.params)


def test_a_state_keeps_its_precision():
    """Parameters in bfloat16, what the server sent in float32."""
    model, method = small_net().to(torch.bfloat16), recipes.fedlada()
    server = method.init(flatten(model.parameters()).float())
    optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=0.1)
    optimizer.begin(server.broadcast)
    data = [(x.to(torch.bfloat16), y) for x, y in batches(4)]
    train(model, optimizer, data[:2])
    twin = copy.deepcopy(model)
    other = fedlada.LocalOptimizer(twin.parameters(), method, lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, data[2:])
    train(twin, other, data[2:])
    for (_, one), (_, again) in zip(
        named_tensors(optimizer.finish()[0]), named_tensors(other.finish()[0]), strict=True
    ):
        assert torch.equal(one, again)


def by_pickle(pair):
    return pickle.loads(pickle.dumps(pair))


def by_torch(pair):
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_torch])
def test_a_copy_goes_on_alone(copied):
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedlada(), lr=0.1)
    train(model, optimizer, batches(2))
    twin, other = copied((model, optimizer))
    assert other.method == optimizer.method
    train(model, optimizer, batches(2, seed=1))
    assert not torch.equal(other.vector, optimizer.vector)
    train(twin, other, batches(2, seed=1))
    assert torch.equal(other.vector, optimizer.vector)
    assert torch.equal(other.finish()[0].delta, optimizer.finish()[0].delta)


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_torch])
def test_a_copy_watches_its_own_frozen_parameters(copied):
    model = small_net()
    model[0].weight.requires_grad_(False)
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedavg(), lr=0.1)
    twin, other = copied((model, optimizer))
    other.load_state_dict(optimizer.state_dict())
    train(twin, other, batches(1))
    twin[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match="this optimizer would not train it"):
        train(twin, other, batches(1))
    train(model, optimizer, batches(1))
    alone = copied(optimizer)
    alone.begin(alone.method.init(alone.vector).broadcast)


def test_names_are_those_of_the_trained_parameters():
    model = small_net()
    model[0].weight.requires_grad_(False)
    optimizer = fedlada.LocalOptimizer(model.named_parameters(), recipes.fedavg(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["0.bias", "2.weight", "2.bias"]
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["param_names"] == ["0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_state_of_another_method_or_model_is_refused_before_anything_changes(has_begun):
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.fedlada(), lr=0.1)
    if has_begun:
        train(model, optimizer, batches(2))
    stored = optimizer.state_dict()
    for name in ("fedavg", "fedcm", "localadam", "scaffold"):
        other = fedlada.LocalOptimizer(model.parameters(), recipes.RECIPES[name](), lr=0.5)
        with pytest.raises(ValueError, match=f"saved with the method fedlada, and this optimizer has {name}: load one"):
            other.load_state_dict(stored)
        assert (other.local, other.param_groups[0]["lr"]) == (None, 0.5)
    plain = torch.optim.SGD(model.parameters(), lr=0.3).state_dict()
    with pytest.raises(ValueError, match="the state_dict is not that of a LocalOptimizer: load one that its"):
        optimizer.load_state_dict(plain)
    assert optimizer.param_groups[0]["lr"] == 0.1
    if has_begun:
        chain = replace(recipes.fedavg(weight_decay=0.1), name="fedlada")
        with pytest.raises(ValueError, match="saved with other transforms than this fedlada has: load its own"):
            fedlada.LocalOptimizer(model.parameters(), chain, lr=0.1).load_state_dict(stored)
        wide = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
        with pytest.raises(ValueError, match="the state_dict is of a model with 67 trained parameters, and this one"):
            fedlada.LocalOptimizer(wide.parameters(), recipes.fedlada(), lr=0.1).load_state_dict(stored)


def test_the_messages_of_another_method_are_refused():
    model = small_net()
    optimizer = fedlada.LocalOptimizer(model.parameters(), recipes.scaffold(), lr=0.1)
    own, other = recipes.scaffold(), recipes.fedavg()
    with pytest.raises(ValueError, match="the broadcast is of another method than scaffold: give that of"):
        optimizer.begin(other.init(optimizer.vector).broadcast)
    with pytest.raises(ValueError, match=r"kept is of another method than scaffold: give what finish\(\)"):
        optimizer.begin(own.init(optimizer.vector).broadcast, other.init_kept(optimizer.vector))
    assert optimizer.local is None
