"""One call that simulates anyone's model on anyone's data with any method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedlada import processes
from fedlada.cohorts import Cohorts, Everyone, FixedSize, Unreliable
from fedlada.data.batches import LocalWork
from fedlada.data.partition import IID, Given, Partition
from fedlada.data.samples import Samples, as_samples
from fedlada.engines.choice import ENGINES, choose_engine
from fedlada.engines.stacking.precision import PRECISIONS
from fedlada.engines.threads import cpu_threads
from fedlada.evaluation import Loss, Metric
from fedlada.flat import trainable
from fedlada.history import Result
from fedlada.messages.spec import Messages, vectors
from fedlada.method import FederatedMethod
from fedlada.observers import Callback, StopAt, as_observer
from fedlada.plan import Plan
from fedlada.presets import suggested
from fedlada.randomness import Ints, torch_seed
from fedlada.recipes import RECIPES
from fedlada.schedules import Schedule, as_schedule
from fedlada.simulation import Simulation
from fedlada.trial import check_transform
from fedlada.validation import one_of, probability, whole_number

if TYPE_CHECKING:
    from fedlada.runs.folder import RunFolder
    from fedlada.runs.load import StoredRun

Model = nn.Module | Callable[[], nn.Module]


def simulate(
    model: Model,
    train: Any,
    *,
    method: FederatedMethod | str = "fedlada",
    test: Any = None,
    validation: Any = None,
    partition: Partition | Iterable[Iterable[int]] | None = None,
    rounds: int = 100,
    cohort_size: int | None = None,
    cohorts: Cohorts | None = None,
    batch_size: int = 50,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    lr: float | Schedule | None = None,
    lr_decay: float | None = None,
    weights: str = "uniform",
    unreliable: Unreliable | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    eval_every: int = 1,
    eval_train_every: int | None = None,
    stop_at_accuracy: float | None = None,
    stop_after_seconds: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    out: str | Path | RunFolder | None = None,
    checkpoint_every: int = 10,
    seed: int = 0,
    engine: str = "auto",
    precision: str = "auto",
    ordered: bool = False,
    messages: str = "float32",
    device: str | torch.device = "auto",
    threads: int = 1,
    dtype: torch.dtype | None = None,
) -> Result:
    """Train `model` on `train` over simulated clients and give back the final model and the history.

    Args:
        model: any `nn.Module` without running statistics, with fresh or pretrained weights (it is not changed), or a
            function that makes one (then `seed` also fixes its first weights). Frozen parameters are neither trained
            nor sent.
        train: an `(x, y)` pair of numpy or torch arrays, or a map-style torch `Dataset`.
        method: a method, as from `fedlada.recipes`, or a name for what `fedlada run` takes for data of one's own (see
            `fedlada.suggested`; that may change from version to version, a recipe that is written out does not).
        test: like `train`; the global model is evaluated on it every `eval_every` rounds.
        validation: like `test`, for data that was held out to tune on: `validation_loss`, `validation_accuracy`.
        partition: how samples are divided among clients, from `fedlada.data` (`IID`, `Dirichlet`, `Pathological`,
            `ByKey`), or the sample numbers of each client (a list, or a dict by client). By default ten equal
            clients, IID.
        rounds: how many rounds to run.
        cohort_size: clients per round, drawn without replacement; by default all.
        cohorts: another way of drawing them, from `fedlada.cohorts`.
        batch_size: samples per local step; a client with fewer makes smaller batches.
        local_epochs: passes over a client's data per round; by default one.
        local_steps: local steps per round, instead of epochs.
        lr: the clients' learning rate, or a function of the round (see `fedlada.schedules`); by default the one that
            goes with the method's name.
        lr_decay: factor on `lr` after each round; by default 0.998 with a method's name, as the paper, else 1.
        weights: how clients count in the mean: "uniform" or by "examples".
        unreliable: simulated drop-outs and stragglers.
        loss: a function of outputs and targets; by default cross-entropy for whole-number targets, else squared error.
        metrics: functions of all test outputs and targets, by name; they appear as `test_<name>`.
        eval_every: evaluate after so many rounds, and always after the last.
        eval_train_every: also evaluate on what the clients hold (as often as they hold it), without augmentation, after
            so many rounds and after the last: `full_train_loss` and `full_train_accuracy`.
        stop_at_accuracy: end when the test accuracy is at least this.
        stop_after_seconds: end after the round in which this time is over.
        callbacks: functions `(simulation, row)` or `fedlada.Observer`s, told after each round.
        progress: show a progress display.
        out: a folder for metrics, checkpoints and the final model (needs safetensors); a run found there goes on.
        checkpoint_every: rounds between checkpoints.
        seed: fixes everything that is random.
        engine: what runs the clients: "sequential" is one after another, "stacked" all of a cohort at once; "auto"
            takes stacked on a GPU and sequential on a CPU.
        precision: how the stacked engine computes on a GPU: "bf16" (what "auto" takes), "tf32" or "float32". State
            stays in `dtype`; float64 is always exact.
        ordered: with several processes (torchrun), add the uploads in their order: the bits are those of one process.
        messages: in which code each vector travels: "float32", "bfloat16", "int8", "lean" or rules such as
            "params=bfloat16:delta=int8" (see `fedlada.messages.Messages`).
        device: "auto" takes a GPU where there is one.
        threads: CPU threads to compute with. Their number decides the last bits of a result, so it is never taken from
            the machine; large models on an idle CPU gain from more.
        dtype: torch.float32 or torch.float64 for model and data; by default the model's own.
    """
    one_of("engine", engine, ENGINES)
    one_of("precision", precision, PRECISIONS)
    if local_epochs is not None and local_steps is not None:
        raise ValueError("give local_epochs or local_steps, not both")
    if stop_at_accuracy is not None:
        probability("stop_at_accuracy", stop_at_accuracy)
        if test is None:
            raise ValueError("stop_at_accuracy needs test data")
    resolve_messages(messages, resolve_method(method))
    seed = whole_number("seed", seed)
    place = processes.own_device(resolve_device(device))
    network = resolve_model(model, seed, dtype)
    numbers = dtype or next(iter(trainable(network).values())).dtype
    train_samples = as_samples(train, place, numbers)
    plan = Plan(
        clients=_clients(partition, train_samples, seed),
        cohorts=resolve_cohorts(cohorts, cohort_size),
        work=LocalWork(batch_size=batch_size, epochs=1 if local_epochs is None else local_epochs, steps=local_steps),
        schedule=resolve_schedule(lr, lr_decay, method),
        seed=seed,
        weights=weights,
        unreliable=unreliable or Unreliable(),
    )
    runner = choose_engine(
        engine,
        network,
        resolve_method(method),
        train_samples,
        loss,
        device=place,
        dtype=dtype,
        precision=precision,
        num_steps=rounds * plan.largest_num_steps,
        short_batches=plan.has_short_batches,
        cohort_size=_usual_share(plan.cohorts),
    )
    if processes.num_processes() > 1:
        from fedlada.engines.distributed import DistributedEngine

        processes.join(place)
        runner = DistributedEngine(runner, ordered=ordered)
    test_samples = None if test is None else as_samples(test, place, numbers)
    simulation = Simulation(
        runner,
        plan,
        test_samples,
        validation=None if validation is None else as_samples(validation, place, numbers),
        metrics=metrics,
        eval_every=eval_every,
        train=train_samples,
        eval_train_every=eval_train_every,
        messages=messages,
        threads=threads,
    )
    observers = [as_observer(callback) for callback in callbacks]
    if stop_at_accuracy is not None or stop_after_seconds is not None:
        observers.append(StopAt(stop_at_accuracy, stop_after_seconds))
    if progress:
        from fedlada.progress import live_or_plain  # rich is not needed without it

        observers.append(live_or_plain(runner.method.name))
    folder = _folder(out, checkpoint_every)
    if processes.num_processes() > 1:
        # The first process speaks, writes and decides for all.
        told, folder = (observers, folder) if processes.is_first() else ([], None)
        observers = [processes.SharedState(), *told, processes.SharedStop()]
    simulation.run(rounds, observers, folder=folder)
    return simulation.result()


def _usual_share(cohorts: Cohorts) -> int | None:
    """How many clients this process usually has in a round, where that is known."""
    return cohorts.size if isinstance(cohorts, FixedSize) and processes.num_processes() == 1 else None


def _folder(out: str | Path | RunFolder | None, checkpoint_every: int) -> RunFolder | None:
    if out is None:
        return None
    from fedlada.runs.folder import RunFolder  # safetensors is not needed without it

    return out if isinstance(out, RunFolder) else RunFolder(out, checkpoint_every=checkpoint_every)


def load_run(path: str | Path, model: Model | None = None, *, trust: bool = False) -> StoredRun:
    """Open a run's folder: its configuration, history and model.

    Give a `model` that is not built in, or `trust=True` to import the one that the folder names.
    """
    from fedlada.runs.load import open_run  # safetensors is not needed to simulate

    return open_run(path, model, trust=trust)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from None
    return place


def resolve_method(method: FederatedMethod | str) -> FederatedMethod:
    """The method, or what is suggested under that name."""
    if isinstance(method, FederatedMethod):
        for part in method.local:
            check_transform(part)
        return method
    if not isinstance(method, str):
        raise ValueError(f"method must be a FederatedMethod, as from fedlada.recipes, or a name, got {method!r}")
    found: FederatedMethod = suggested(method)["method"]
    return found


def resolve_schedule(lr: float | Schedule | None, lr_decay: float | None, method: FederatedMethod | str) -> Schedule:
    """The rate of each round as given; what is left out goes with the method's name."""
    values = suggested(method) if isinstance(method, str) and not callable(lr) else {"lr_decay": 1.0}
    rate, decay = values.get("lr") if lr is None else lr, values["lr_decay"] if lr_decay is None else lr_decay
    if rate is None:
        raise ValueError("lr must be given with a method of one's own: a rate comes with a name alone")
    return as_schedule(rate, decay)


def resolve_messages(text: str, method: FederatedMethod) -> Messages:
    """The codes of that name, if they suit the method and name only vectors that some method sends."""
    messages = Messages.parse(text)
    messages.of(method)
    messages.check_names({*vectors(method), *_known_vectors()})
    return messages


@cache
def _known_vectors() -> frozenset[str]:
    return frozenset(path for recipe in RECIPES.values() for path in vectors(recipe()))


def resolve_model(model: Model, seed: int, dtype: torch.dtype | None) -> nn.Module:
    """The model, or the one that the function makes, whose first weights the seed fixes."""
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if isinstance(model, nn.Module):
        return model
    # One thread: some initializers (orthogonal_) are sums, whose last bits depend on the number of threads.
    with torch.random.fork_rng(devices=[]), cpu_threads(torch.device("cpu"), 1):
        torch.manual_seed(torch_seed(seed, "first weights"))
        try:
            made = model()
        except Exception as error:
            raise ValueError(f"the model could not be made: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"model must be an nn.Module or a function that makes one, got {type(made).__name__}")
    return made


def _clients(partition: Partition | Iterable[Iterable[int]] | None, samples: Samples, seed: int) -> list[Ints]:
    if partition is None:
        partition = IID(num_clients=min(10, len(samples)))
    elif not isinstance(partition, Partition):
        if not isinstance(partition, Iterable):
            raise ValueError(f"partition must come from fedlada.data or list each client's samples, got {partition!r}")
        partition = Given(indices=partition)
    # Only partitions by class look at the labels: a large dataset is not read for the others.
    labels = samples.labels() if partition.needs_labels else np.zeros(len(samples))
    return partition.assign(labels, seed)


def resolve_cohorts(cohorts: Cohorts | None, cohort_size: int | None) -> Cohorts:
    """The given way of drawing cohorts, or so many clients, or all."""
    if cohorts is not None and cohort_size is not None:
        raise ValueError("give cohort_size or cohorts, not both")
    if cohorts is not None:
        return cohorts
    return Everyone() if cohort_size is None else FixedSize(cohort_size)
