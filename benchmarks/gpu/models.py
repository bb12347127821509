"""Six models as users write them: seconds a round, stacked and sequential, in one run.

    python benchmarks/gpu/models.py [--out DIR] [--only vgg,lstm,convnext,vit,gpt,mlp] [--rounds 5] [--precision auto]
    python benchmarks/gpu/models.py --trial          # tiny, on a CPU: does it run?

FedLADA; 10 clients of 100 in each round, 200 samples a client, batches of 20, two local epochs: 20 local steps a round.
Samples are random; time does not depend on them. A round is wall clock, host included; the first one, with tuning and
graphs, stands apart. `step_ms` is one local step of all clients, as CUDA events around the replayed graph. The
sequential engine computes in float32 with TF32 products, as a user's own loop does.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlada import recipes
from fedlada.data import IID, LocalWork, as_samples
from fedlada.engines import SequentialEngine, StackedEngine
from fedlada.engines.engine import Engine
from fedlada.federation.cohorts import FixedSize
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import as_schedule
from fedlada.training.simulation import Simulation

METHOD, LR = recipes.fedlada(weight_decay=1e-2, clip_norm=10.0), 1e-3
CHARACTERS, LENGTH = 80, 80


@dataclass(frozen=True)
class Size:
    """How large everything is: the real benchmark, or a trial of it."""

    num_clients: int = 100
    cohort: int = 10
    samples: int = 200
    shrink: int = 1
    """By what the models' widths are divided."""


def vgg(size: Size) -> nn.Module:
    """A CNN with GroupNorm and one dropout."""
    parts: list[nn.Module] = []
    depth = 3
    for width in (64, 128, 256):
        width //= size.shrink
        for _ in range(2):
            parts += [nn.Conv2d(depth, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(inplace=True)]
            depth = width
        parts.append(nn.MaxPool2d(2))
    hidden = 512 // size.shrink
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(depth * 16, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, 10)
    )


class CharLstm(nn.Module):
    """The next character, from an embedding of 8 and two LSTM layers of 256."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = 256 // size.shrink
        self.table = nn.Embedding(CHARACTERS, 8)
        self.recurrent = nn.LSTM(8, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(self.table(x))[0][:, -1])


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(inner)))).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """A stem of 4x4 patches and two stages of depthwise 7x7."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        first, second = 96 // size.shrink, 192 // size.shrink
        self.body = nn.Sequential(
            nn.Conv2d(3, first, 4, stride=4),
            *(ConvNextBlock(first) for _ in range(3)),
            nn.Conv2d(first, second, 2, stride=2),
            *(ConvNextBlock(second) for _ in range(3)),
        )
        self.norm, self.classify = nn.LayerNorm(second), nn.Linear(second, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.norm(self.body(x).mean(dim=(2, 3))))


class Vit(nn.Module):
    """Patches of 4x4, a token, places, six of torch's encoder layers of 192."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = 192 // size.shrink
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, width))
        layer = nn.TransformerEncoderLayer(
            width, 3, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.classify(self.blocks(x)[:, 0])


class GptBlock(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.net(self.norm2(x))


class Gpt(nn.Module):
    """Four causal blocks of 128, an embedding of places, a head that is the embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = 128 // size.shrink
        self.symbols, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(GptBlock(width, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS, bias=False)
        self.head.weight = self.symbols.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.symbols(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))[:, -1]


def mlp(size: Size) -> nn.Module:
    width = 512 // size.shrink
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def pictures(num: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.standard_normal((num, 3, 32, 32), dtype=np.float32), random.integers(0, 10, num)


def texts(num: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.integers(0, CHARACTERS, (num, LENGTH)), random.integers(0, CHARACTERS, num)


MODELS: dict[str, tuple[Callable[[Size], nn.Module], Callable[[int], tuple[Any, Any]]]] = {
    "vgg": (vgg, pictures),
    "lstm": (CharLstm, texts),
    "convnext": (ConvNext, pictures),
    "vit": (Vit, pictures),
    "gpt": (Gpt, texts),
    "mlp": (mlp, pictures),
}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def simulation(engine: Engine, size: Size) -> Simulation:
    plan = Plan(
        clients=IID(num_clients=size.num_clients).assign(np.zeros(size.num_clients * size.samples), 0),
        cohorts=FixedSize(size.cohort),
        work=LocalWork(batch_size=20, epochs=2),
        schedule=as_schedule(LR, 0.998),
    )
    return Simulation(engine, plan)


def timed(engine: Engine, size: Size, rounds: int, device: torch.device) -> dict[str, Any]:
    made = simulation(engine, size)
    start = time.perf_counter()
    made.run_round()
    wait(device)
    first, start = time.perf_counter() - start, time.perf_counter()
    for _ in range(rounds):
        made.run_round()
    wait(device)
    return {"round_s": (time.perf_counter() - start) / rounds, "first_s": first, "how": engine.why}


def step_ms(engine: StackedEngine, steps: int = 40) -> float | None:
    stack = next(iter(engine.stacks.values()))
    if True not in stack.graphs:
        return None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(steps):
        stack.step_number.zero_()
        stack.graphs[True].replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def measure(name: str, size: Size, rounds: int, precision: str, device: torch.device) -> dict[str, Any]:
    make, data = MODELS[name]
    samples = as_samples(data(size.num_clients * size.samples), device, torch.float32)
    torch.manual_seed(0)
    model = make(size)
    row: dict[str, Any] = {"model": name, "parameters": sum(one.numel() for one in model.parameters())}
    start = time.perf_counter()
    stacked = StackedEngine(
        model, METHOD, samples, None, device=device, precision=precision, cohort_size=size.cohort
    )  # fmt: skip
    row["start_s"] = time.perf_counter() - start
    row["stacked"] = timed(stacked, size, rounds, device)
    row["step_ms"] = step_ms(stacked)
    if device.type == "cuda":
        row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    del stacked
    gc.collect()
    sequential = SequentialEngine(model, METHOD, samples, None, device=device)
    row["sequential"] = timed(sequential, size, max(1, rounds // 2), device)
    row["ratio"] = row["sequential"]["round_s"] / row["stacked"]["round_s"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--trial", action="store_true")
    given = parser.parse_args()
    device = torch.device("cpu" if given.trial else "cuda")
    torch.set_float32_matmul_precision("high")
    size = Size(num_clients=4, cohort=2, samples=20, shrink=8) if given.trial else Size()
    given.out.mkdir(parents=True, exist_ok=True)  # before anything is measured
    where = platform.processor() or "cpu" if given.trial else torch.cuda.get_device_name()
    result: dict[str, Any] = {"device": where, "torch": torch.__version__, "date": str(date.today()), "models": []}
    result["command"] = "python " + " ".join(sys.argv)
    for name in given.only.split(","):
        if not given.trial:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        result["models"].append(measure(name, size, 1 if given.trial else given.rounds, given.precision, device))
        print(json.dumps(result["models"][-1]), flush=True)
        (given.out / "models.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
