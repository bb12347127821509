"""The work that every simulator of this benchmark does: FedAvg with a small CNN on scikit-learn's digits."""

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
import statistics  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import Tensor, nn  # noqa: E402

NUM_CLIENTS = 20
CLIENTS_PER_ROUND = 5
SAMPLES_PER_CLIENT = 75
BATCH_SIZE = 10
LOCAL_EPOCHS = 5
LEARNING_RATE = 0.1
SEED = 0
WARMUP_ROUNDS = 2  # allocators, caches and worker processes settle in these, so they are not timed


class Samples(NamedTuple):
    """Images [N, 1, 8, 8] in [0, 1] and their labels [N]."""

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


@functools.lru_cache(maxsize=1)  # so that a process that serves many clients loads the data once
def load_data() -> tuple[list[Samples], Samples]:
    """Return the training samples of every client and the test samples."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    slices = [slice(i * SAMPLES_PER_CLIENT, (i + 1) * SAMPLES_PER_CLIENT) for i in range(NUM_CLIENTS)]
    clients = [Samples(images[part].clone(), labels[part].clone()) for part in slices]
    first_test = NUM_CLIENTS * SAMPLES_PER_CLIENT
    return clients, Samples(images[first_test:], labels[first_test:])


def draw_cohorts(rounds: int) -> list[list[int]]:
    """Return the clients of every round, drawn without replacement within a round."""
    rng = np.random.default_rng(SEED)
    return [rng.choice(NUM_CLIENTS, CLIENTS_PER_ROUND, replace=False).tolist() for _ in range(rounds)]


def make_model(model_class: type[nn.Module] = DigitsCNN) -> nn.Module:
    """Return the model with the same initial parameters everywhere."""
    torch.manual_seed(SEED)
    return model_class()


def train_locally(model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples) -> None:
    """Train the model in place for the local epochs, with a new order of the samples in each."""
    for _ in range(LOCAL_EPOCHS):
        for batch in torch.randperm(len(samples.labels)).split(BATCH_SIZE):
            optimizer.zero_grad()
            logits = model(samples.images[batch])
            nn.functional.cross_entropy(logits, samples.labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def test_accuracy(model: nn.Module) -> float:
    """Return the accuracy on the test samples."""
    _, test = load_data()
    return (model(test.images).argmax(dim=1) == test.labels).double().mean().item()


class RoundClock:
    """Time stamps on the server: one before the first round and one after every round."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def tick(self) -> None:
        """Take a time stamp."""
        self.stamps.append(time.perf_counter())

    def timed_rounds(self) -> list[float]:
        """Return the seconds of every round after the warm-up."""
        timed = self.stamps[WARMUP_ROUNDS:]
        return [after - before for before, after in itertools.pairwise(timed)]

    def startup_seconds(self) -> float:
        """Return what came before the timed part, beyond what the warm-up rounds usually take."""
        usual = WARMUP_ROUNDS * statistics.median(self.timed_rounds())
        return self.stamps[WARMUP_ROUNDS] - STARTED - usual


def argument_parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments that all workers share."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
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


def print_result(simulator: str, version: str, args: argparse.Namespace, clock: RoundClock, accuracy: float) -> None:
    """Print the result as one line of JSON."""
    if len(clock.stamps) != args.rounds + 1:
        raise RuntimeError(f"expected {args.rounds + 1} time stamps, got {len(clock.stamps)}")
    seconds = clock.timed_rounds()
    result = {
        "simulator": simulator,
        "version": version,
        "torch": torch.__version__,
        "threads": args.threads,
        "rounds": args.rounds,
        "seconds_per_round": statistics.median(seconds),
        "seconds_per_round_min": min(seconds),
        # For a simulator that polls: its rounds last whole polling intervals, between which a median jumps.
        "seconds_per_round_mean": statistics.fmean(seconds),
        "startup_seconds": clock.startup_seconds(),
        "test_accuracy": accuracy,
    }
    print(json.dumps(result), flush=True)
