"""Models as users write them, in small: what the stacked engine was not built around."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, SIZE, CLASSES = 11, 7, 8, 4


class Vgg(nn.Module):
    """Convolutions with GroupNorm, pooling and dropout."""

    def __init__(self):
        super().__init__()
        parts = []
        for depth, width in ((3, 8), (8, 12)):
            parts += [nn.Conv2d(depth, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(inplace=True)]
            parts += [nn.MaxPool2d(2), nn.Dropout2d(0.1)]
        self.features = nn.Sequential(*parts)
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(12 * 4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))

    def forward(self, x):
        return self.classify(self.features(x))


class CharLstm(nn.Module):
    """The next character, from two LSTM layers with dropout between them."""

    def __init__(self, kind=nn.LSTM, batch_first=True, bidirectional=False):
        super().__init__()
        self.batch_first = batch_first
        self.table = nn.Embedding(VOCABULARY, 5)
        self.recurrent = kind(5, 6, 2, dropout=0.3, batch_first=batch_first, bidirectional=bidirectional)
        self.out = nn.Linear(6 * (1 + bidirectional), CLASSES)

    def forward(self, x):
        x = self.table(x)
        out, _ = self.recurrent(x if self.batch_first else x.transpose(0, 1))
        return self.out(out[:, -1] if self.batch_first else out[-1])


class ConvNext(nn.Module):
    """A patch stem, depthwise 7x7, LayerNorm over channels, a scale that is a parameter of its own."""

    def __init__(self, width=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        inner = self.norm(self.mix(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(F.gelu(self.up(inner)))
        x = x + inner.permute(0, 3, 1, 2)
        return self.classify(self.last(x.mean(dim=(2, 3))))


class Vit(nn.Module):
    """Patches, a class token and places (parameters that are no layer), torch's own encoder layers."""

    def __init__(self, width=8, dropout=0.1, batch_first=True):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, (SIZE // 4) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=dropout, batch_first=batch_first, norm_first=True, activation="gelu"
        )
        self.batch_first = batch_first
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        x = self.blocks(x) if self.batch_first else self.blocks(x.transpose(0, 1)).transpose(0, 1)
        return self.classify(x[:, 0])


class GptBlock(nn.Module):
    def __init__(self, width, num_heads, dropout):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.project(mixed.transpose(1, 2).reshape(batch, length, width)), dropout, self.training)
        return x + self.net(self.norm2(x))


class Gpt(nn.Module):
    """Causal attention by torch's function, an embedding of places, a head that is the embedding."""

    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.symbols, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(GptBlock(width, 2, dropout) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.symbols.weight

    def forward(self, x):
        x = self.symbols(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))[:, -1]


class Causal(nn.Module):
    """torch's encoder with masks: each character sees those before it, and none sees a filled up place."""

    def __init__(self, width=8):
        super().__init__()
        self.symbols = nn.Embedding(VOCABULARY, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=self.out.weight.dtype)
        empty = torch.zeros_like(x, dtype=later.dtype).masked_fill(x == 0, -torch.inf)
        empty[:, 0] = 0.0  # somebody is seen
        return self.out(self.encode(self.symbols(x), mask=later, src_key_padding_mask=empty).mean(dim=1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, x):
        return self.inner(x)


class Mixed(nn.Module):
    """Conv1d, a transposed and a grouped convolution, a layer used twice and two that share their weight."""

    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(3, 4, 3, padding=1, stride=2)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.same, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = self.norm(F.relu(self.line(x.flatten(2)))).unflatten(2, (4, -1))
        x = self.norm(self.up(F.relu(self.grouped(x)))).mean(dim=(2, 3))
        x = torch.tanh(self.same(torch.tanh(self.same(x))))
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


def pictures(num=60, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(num, 3, SIZE, SIZE)), np.arange(num) % CLASSES


def characters(num=60, seed=0):
    return np.random.default_rng(seed).integers(0, VOCABULARY, (num, LENGTH)), np.arange(num) % CLASSES


MODELS = {
    "vgg": (Vgg, pictures, "LayeredNetwork"),
    "lstm": (CharLstm, characters, "VmappedNetwork"),
    "convnext": (ConvNext, pictures, "VmappedNetwork"),
    "vit": (Vit, pictures, "VmappedNetwork"),
    "gpt": (Gpt, characters, "VmappedNetwork"),
    "causal": (Causal, characters, "VmappedNetwork"),
    "mlp": (Mlp, pictures, "LayeredNetwork"),
    "mixed": (Mixed, pictures, "LayeredNetwork"),
}
"""By name: the model, its data, and the stacked form that it takes."""
