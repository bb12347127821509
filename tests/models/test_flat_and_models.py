"""Models as flat vectors, and the models that ship."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlada import models
from fedlada.models.flat import FlatModel, flatten, model_with, trainable, unflatten

CPU = torch.device("cpu")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


def test_gradient_equals_autograd_and_parameters_are_views():
    model = models.cnn_gn()
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([1, 2, 3])
    nn.functional.cross_entropy(model(x), y).backward()
    expected = flatten(p.grad for p in model.parameters())
    flat = FlatModel(model, CPU)
    for _ in range(2):  # a second time, to see that nothing accumulates
        gradient = flat.gradient_of(nn.functional.cross_entropy(flat.module(x), y))
        torch.testing.assert_close(gradient, expected)
    flat.load(torch.zeros_like(flat.vector))
    assert all((p == 0).all() for p in flat.module.parameters())
    assert all((p != 0).any() for p in model.parameters() if p.ndim > 1)  # the user's model is its own


def test_gradients_stay_as_they_were_returned():
    flat = FlatModel(nn.Linear(3, 1, bias=False), CPU)
    first = flat.gradient_of(flat.module(torch.ones(1, 3)).sum())
    flat.gradient_of(2 * flat.module(torch.ones(1, 3)).sum())
    assert first.tolist() == [1, 1, 1]


def test_gradients_have_no_negative_zeros_and_zeros_where_nothing_is_used():
    """Their bits do not depend on which operation came last."""
    flat = FlatModel(nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)]), CPU)
    gradient = flat.gradient_of((flat.module[0].weight * -0.0).sum())
    assert gradient.tolist() == [0] * 5
    assert not gradient.signbit().any()


def test_sparse_gradients_become_dense():
    dense, sparse = nn.Embedding(5, 2), nn.Embedding(5, 2, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    x = torch.tensor([1, 3, 3])
    gradients = [
        flat.gradient_of(flat.module(x).square().sum()) for flat in (FlatModel(m, CPU) for m in (dense, sparse))
    ]
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


def test_tied_weights_are_one_parameter():
    flat = FlatModel(Tied(), CPU)
    assert flat.vector.shape == (20,)
    flat.load(torch.ones(20))
    assert flat.module.out.weight is flat.module.embed.weight
    result = model_with(Tied(), torch.full((20,), 2.0))
    assert result.out.weight is result.embed.weight
    assert (result.embed.weight == 2).all()


def test_frozen_parameters_are_left_out_and_shared():
    model = models.mlp()
    frozen = model[1].weight
    frozen.requires_grad_(False)
    flat = FlatModel(model, CPU)
    assert flat.vector.numel() == sum(p.numel() for p in model.parameters()) - frozen.numel()
    assert flat.module[1].weight is frozen
    double = FlatModel(model, CPU, torch.float64)
    assert double.module[1].weight.dtype == torch.float64
    assert frozen.dtype == torch.float32  # casting our copy left the user's alone


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        trainable(nn.ReLU())
    with pytest.raises(ValueError, match=r"must all be float32 or all float64, got torch.bfloat16"):
        FlatModel(nn.Linear(2, 2).bfloat16(), CPU)
    with pytest.raises(ValueError, match="expected a vector of 6 parameters"):
        unflatten(torch.zeros(5), nn.Linear(2, 2).parameters())


def test_batch_norm_is_refused_with_the_way_out():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm2d\) keeps running statistics.*group_norm\(model\)"):
        FlatModel(model, CPU)
    converted = models.group_norm(model)
    assert isinstance(converted[1], nn.GroupNorm)
    assert converted[1].num_groups == 2
    assert isinstance(model[1], nn.BatchNorm2d)
    FlatModel(converted, CPU)


def test_group_norm_keeps_scales_and_finds_a_divisor():
    norm = nn.BatchNorm1d(9)
    nn.init.constant_(norm.weight, 3.0)
    converted = models.group_norm(nn.Sequential(nn.Sequential(norm), nn.BatchNorm2d(4, affine=False)), num_groups=4)
    assert converted[0][0].num_groups == 3
    assert (converted[0][0].weight == 3).all()
    assert converted[1].num_groups == 4
    assert isinstance(models.group_norm(nn.BatchNorm2d(4)), nn.GroupNorm)
    with pytest.raises(ValueError, match="num_groups"):
        models.group_norm(norm, num_groups=0)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (1, 7, 9)])
@pytest.mark.parametrize("name", models.MODELS)
def test_models_fit_their_input(name, shape):
    if name in models.TEXT_MODELS:
        with pytest.raises(ValueError, match=r"(text_transformer|char_lstm) needs sequences of one length"):
            models.MODELS[name](input_shape=shape)
        return
    if name.startswith("lenet") and min(shape[1:]) < 16:
        with pytest.raises(ValueError, match="lenet needs images of at least 16x16"):
            models.lenet(input_shape=shape)
        return
    model = models.MODELS[name](7, input_shape=shape)
    assert model(torch.randn(2, *shape)).shape == (2, 7)
    FlatModel(model, CPU)


@pytest.mark.parametrize("name", ["cnn-gn", "lenet", "resnet18-gn", "resnet18-v2-gn"])
def test_models_of_images_take_images(name):
    with pytest.raises(ValueError, match=r"needs images of shape \(channels, height, width\), got inputs of \(32,\)"):
        models.MODELS[name](7, input_shape=(32,))


def test_models_of_characters_have_their_size():
    """LEAF's: an embedding of 8 and two LSTM layers of 256; a transformer of three blocks of 128."""
    sizes = {name: sum(p.numel() for p in models.MODELS[name](128, input_shape=(80,)).parameters()) for name in TEXT}
    assert sizes == {"char-lstm": 832_640, "char-transformer": 638_208}


TEXT = ("char-lstm", "char-transformer")


@pytest.mark.parametrize("name", TEXT)
def test_models_of_characters_tell_places_apart(name):
    model = models.MODELS[name](128, input_shape=(9,))
    x = torch.arange(9)[None]
    assert model(x).shape == (1, 128)
    assert not torch.allclose(model(x), model(x[:, [1, 0, *range(2, 9)]]), atol=1e-6)


def test_a_causal_transformer_sees_nothing_later():
    torch.manual_seed(0)
    x, later = torch.randn(2, 6, 16), torch.randn(2, 2, 16)
    for causal in (True, False):
        blocks = models.text_transformer(input_shape=(6,), width=16, causal=causal).blocks
        first, second = blocks(x), blocks(torch.cat([x[:, :4], later], dim=1))
        assert torch.allclose(first[:, :4], second[:, :4], atol=1e-6) == causal
        assert not torch.allclose(first[:, 4:], second[:, 4:], atol=1e-3)
    assert models.MODELS["char-transformer"](input_shape=(6,)).blocks[2].causal


def test_resnet18_gn_is_the_papers():
    """Parameter counts, torchvision's initialisation, and its names, so that its weights load."""
    model = models.resnet18_gn()
    assert sum(p.numel() for p in model.parameters()) == 11_181_642
    assert sum(p.numel() for p in models.resnet18_gn(100).parameters()) == 11_227_812
    assert sum(p.numel() for p in models.resnet18_gn(stem="cifar").parameters()) == 11_173_962
    names = set(model.state_dict())
    assert {"conv1.weight", "bn1.bias", "layer2.0.downsample.1.weight", "layer4.1.conv2.weight", "fc.bias"} <= names
    fan_out = 512 * 9
    assert model.layer4[1].conv2.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.01)
    assert all(m.num_groups == 2 for m in model.modules() if isinstance(m, nn.GroupNorm))
    with pytest.raises(ValueError, match="stem must be one of imagenet, cifar, got '3x3'"):
        models.resnet18_gn(stem="3x3")


def test_resnet18_v2_gn_keeps_its_resolution():
    """As in the code of Reddi et al.: 6x6 from the stem to the end for crops of 24 pixels."""
    model = models.resnet18_v2_gn(100)
    assert sum(p.numel() for p in model.parameters()) == 11_227_812
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, result: shapes.append(tuple(result.shape[1:])))
    assert model(torch.randn(2, 3, 24, 24)).shape == (2, 100)
    assert shapes == [(width, 6, 6) for width in (64, 64, 128, 128, 256, 256, 512, 512)]
    assert {(m.num_groups, m.eps) for m in model.modules() if isinstance(m, nn.GroupNorm)} == {(2, 1e-3)}
    assert [block.norm1 is None for block in model.blocks] == [True] + [False] * 7
    assert sum(isinstance(block.shortcut, nn.Sequential) for block in model.blocks) == 3


def test_lenet_activations():
    x = torch.linspace(-3, 3, 50)
    gelu, smu = models.lenet(activation="gelu")[1], models.lenet(activation="smu")[1]
    torch.testing.assert_close(gelu(x), nn.functional.gelu(x, approximate="tanh"))
    torch.testing.assert_close(smu(x), (x + x * torch.erf(x)) / 2)
    with pytest.raises(ValueError, match="activation must be one of relu, gelu, smu, got 'tanh'"):
        models.lenet(activation="tanh")
