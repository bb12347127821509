"""The work that every simulator of this benchmark does: FedAvg on one of two tasks.

`digits` is a small CNN on scikit-learn's digits. `pfl` is the CIFAR-10 benchmark of pfl-research: its model, its number
of clients and its local work. Its images are CIFAR-10's if `BENCHMARK_DATA` names the folder with
`cifar-10-batches-py`, else noise. With noise most ReLUs die, which makes torch's max-pooling faster than with images.
"""

import time

STARTED = time.perf_counter()  # taken before the slow imports, because they belong to the start-up time

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in each process")


def _limit_openmp() -> None:
    """Set OMP_NUM_THREADS from the arguments, unless it is set.

    torch.set_num_threads alone is not enough: OpenMP starts with a thread for every core, some kernels keep
    using them, and a loop of "one thread" then slows down when another core is busy. ray sets this variable
    in its actors, so without it here Flower would be measured under better conditions than the others.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    if "torch" in sys.modules:
        raise ImportError("import task before torch: OpenMP reads OMP_NUM_THREADS when it is loaded")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_threads(parser)
    os.environ["OMP_NUM_THREADS"] = str(parser.parse_known_args()[0].threads)


_limit_openmp()

import functools  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import pickle  # noqa: E402
import statistics  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import Tensor, nn  # noqa: E402

SEED = 0
WARMUP_ROUNDS = 2  # allocators, caches and worker processes settle in these, so they are not timed


class Samples(NamedTuple):
    """Images [N, channels, height, width] and their labels [N]."""

    images: Tensor
    labels: Tensor


class DigitsCNN(nn.Module):
    """Two convolutions with group normalisation and a linear layer: 10,026 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.GroupNorm(2, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1, stride=2),
            nn.GroupNorm(2, 32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the ten digits."""
        return self.layers(images)


class PflCNN(nn.Module):
    """The model of pfl-research's image benchmarks, `fedlada.models.pfl_cnn`: 1,626,442 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )
        for layer in self.layers:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the ten classes."""
        return self.layers(images)


@dataclass(frozen=True)
class Task:
    """A model, its data and the local work; clients have equal numbers of samples."""

    model_class: type[nn.Module]
    make_samples: Callable[[], Samples]
    """The training samples, client after client, and then the test samples."""
    num_clients: int
    clients_per_round: int
    samples_per_client: int
    batch_size: int
    local_epochs: int
    learning_rate: float

    def place_of(self, client: int) -> slice:
        """Return the place of a client's samples among all."""
        return slice(client * self.samples_per_client, (client + 1) * self.samples_per_client)

    @functools.cached_property  # so that a process that serves many clients loads the data once
    def samples(self) -> Samples:
        """All samples."""
        return self.make_samples()

    def client(self, number: int) -> Samples:
        """Return the training samples of a client."""
        place = self.place_of(number)
        return Samples(self.samples.images[place], self.samples.labels[place])

    def train_samples(self) -> Samples:
        """Return the training samples of all clients, one client after another."""
        size = self.num_clients * self.samples_per_client
        return Samples(self.samples.images[:size], self.samples.labels[:size])

    def draw_cohorts(self, rounds: int) -> list[list[int]]:
        """Return the clients of every round, drawn without replacement within a round."""
        rng = np.random.default_rng(SEED)
        return [rng.choice(self.num_clients, self.clients_per_round, replace=False).tolist() for _ in range(rounds)]

    def make_model(self, model_class: type[nn.Module] | None = None) -> nn.Module:
        """Return the model with the same initial parameters everywhere."""
        torch.manual_seed(SEED)
        return (model_class or self.model_class)()

    def train_locally(self, model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples) -> None:
        """Train the model in place for the local epochs, with a new order of the samples in each."""
        for _ in range(self.local_epochs):
            for batch in torch.randperm(len(samples.labels)).split(self.batch_size):
                optimizer.zero_grad()
                logits = model(samples.images[batch])
                nn.functional.cross_entropy(logits, samples.labels[batch]).backward()
                optimizer.step()

    @torch.no_grad()
    def test_accuracy(self, model: nn.Module) -> float:
        """Return the accuracy on the test samples, without dropout."""
        model.eval()
        images, labels = (part[self.num_clients * self.samples_per_client :] for part in self.samples)
        return (model(images).argmax(dim=1) == labels).double().mean().item()


def _digits() -> Samples:
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    return Samples(images, torch.tensor(digits.target[order], dtype=torch.int64))


def _images() -> Samples:
    folder = os.environ.get("BENCHMARK_DATA")
    return _cifar10(Path(folder) / "cifar-10-batches-py") if folder else _noise()


def _cifar10(folder: Path) -> Samples:
    """All training images in a random order, and the first thousand test images."""
    files = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    parts = [pickle.loads((folder / file).read_bytes(), encoding="bytes") for file in files]
    pixels = np.concatenate([part[b"data"] for part in parts])
    labels = np.concatenate([part[b"labels"] for part in parts])
    num_train = len(labels) - len(parts[-1][b"labels"])
    order = np.r_[np.random.default_rng(SEED).permutation(num_train), num_train : min(num_train + 1000, len(labels))]
    images = torch.from_numpy(pixels[order].reshape(-1, 3, 32, 32)).float() / 255 - 0.5
    return Samples(images, torch.from_numpy(labels[order]))


def _noise() -> Samples:
    """Bytes of noise, three quarters, and a pattern of the class, one quarter: that a model learns can be seen."""
    random = torch.Generator().manual_seed(SEED)
    labels = torch.randint(10, (51_000,), generator=random)
    patterns, noise = (
        torch.randint(256, (number, 3, 32, 32), generator=random, dtype=torch.uint8) for number in (10, len(labels))
    )
    images = torch.empty(noise.shape)
    for place in range(0, len(labels), 1000):  # in parts, which needs less memory
        part = slice(place, place + 1000)
        images[part] = (0.75 * noise[part] + 0.25 * patterns[labels[part]]) / 255 - 0.5
    return Samples(images, labels)


TASKS = {
    "digits": Task(
        DigitsCNN,
        _digits,
        num_clients=20,
        clients_per_round=5,
        samples_per_client=75,
        batch_size=10,
        local_epochs=5,
        learning_rate=0.1,
    ),
    "pfl": Task(
        PflCNN,
        _images,
        num_clients=1000,
        clients_per_round=50,
        samples_per_client=50,
        batch_size=10,
        local_epochs=1,
        learning_rate=0.1,
    ),
}


class RoundClock:
    """Time stamps on the server: one before the first round and one after every round."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.cpu_stamps: list[float] = []

    def tick(self) -> None:
        """Take a time stamp."""
        self.stamps.append(time.perf_counter())
        self.cpu_stamps.append(time.process_time())

    def timed_rounds(self) -> list[float]:
        """Return the seconds of every round after the warm-up."""
        return _differences(self.stamps[WARMUP_ROUNDS:])

    def timed_cpu(self) -> list[float]:
        """Return this process's seconds on a core in every round after the warm-up."""
        return _differences(self.cpu_stamps[WARMUP_ROUNDS:])

    def startup_seconds(self) -> float:
        """Return what came before the timed part, beyond what the warm-up rounds usually take."""
        usual = WARMUP_ROUNDS * statistics.median(self.timed_rounds())
        return self.stamps[WARMUP_ROUNDS] - STARTED - usual


def _differences(stamps: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(stamps)]


def argument_parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments that all workers share."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--task", choices=TASKS, default="digits", help="the work to do")
    parser.add_argument("--rounds", type=_round_count, default=60, help="rounds, the warm-up included")
    _add_threads(parser)
    return parser


def _round_count(text: str) -> int:
    rounds = int(text)
    if rounds <= WARMUP_ROUNDS:
        raise argparse.ArgumentTypeError(f"must be more than the {WARMUP_ROUNDS} rounds of warm-up")
    return rounds


def set_threads(threads: int) -> None:
    """Make torch use this number of threads; every process that trains calls it."""
    if os.environ["OMP_NUM_THREADS"] != str(threads):
        raise RuntimeError(f"OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']}, but --threads is {threads}")
    torch.set_num_threads(threads)


def print_result(simulator: str, version: str, args: argparse.Namespace, clock: RoundClock, model: nn.Module) -> None:
    """Print the result as one line of JSON."""
    if len(clock.stamps) != args.rounds + 1:
        raise RuntimeError(f"expected {args.rounds + 1} time stamps, got {len(clock.stamps)}")
    seconds = clock.timed_rounds()
    result = {
        "simulator": simulator,
        "task": args.task,
        "version": version,
        "torch": torch.__version__,
        "threads": args.threads,
        "rounds": args.rounds,
        "seconds_per_round": statistics.median(seconds),
        "seconds_per_round_min": min(seconds),
        # For a simulator that polls: its rounds last whole polling intervals, between which a median jumps.
        "seconds_per_round_mean": statistics.fmean(seconds),
        # On a busy machine they say more; work in other processes, such as actors, is not in them.
        "cpu_seconds_per_round": statistics.median(clock.timed_cpu()),
        "startup_seconds": clock.startup_seconds(),
        "test_accuracy": TASKS[args.task].test_accuracy(model),
    }
    print(json.dumps(result), flush=True)
