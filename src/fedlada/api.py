"""`simulate`: federated training of any model on any data with any method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedlada.data.flipped import with_flipped_labels
from fedlada.data.given import Collate
from fedlada.engines import processes
from fedlada.engines.choice import ENGINES, choose_engine
from fedlada.engines.evaluation import EvaluationOptions, Loss, Metric
from fedlada.engines.inputs import as_trained
from fedlada.engines.stacked.precision import PRECISIONS
from fedlada.federation.attackers import attackers
from fedlada.federation.cohorts import Cohorts, FixedSize, Unreliable
from fedlada.federation.partition import Partition
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import Schedule
from fedlada.federation.weights import Weights
from fedlada.messages.spec import Messages
from fedlada.methods.combine import Combiner, Private
from fedlada.methods.method import FederatedMethod
from fedlada.methods.testing.attacks import Attack, as_attack
from fedlada.methods.validation import count, one_of, seed_number
from fedlada.models.flat import trainable
from fedlada.training.history import Result
from fedlada.training.observers import Callback, SaysLoss, SaysStored, WarnsOfRefused, as_observers
from fedlada.training.privacy import with_solved_noise
from fedlada.training.progress import is_interactive, live_or_plain, somebody_watches
from fedlada.training.resolve import (
    Model,
    check_stop,
    resolve_client_test,
    resolve_clients,
    resolve_cohorts,
    resolve_device,
    resolve_dtype,
    resolve_messages,
    resolve_method,
    resolve_model,
    resolve_personal,
    resolve_schedule,
    resolve_stops,
    resolve_targets,
    resolve_test,
    resolve_train,
    resolve_work,
)
from fedlada.training.shared import SharedState, SharedStop
from fedlada.training.simulation import Simulation

if TYPE_CHECKING:
    from fedlada.runs.folder import RunFolder


def simulate(
    model: Model,
    train: Any,
    *,
    method: FederatedMethod | str = "fedlada",
    test: Any = None,
    validation: Any = None,
    partition: Partition | Iterable[Iterable[int]] | None = None,
    collate_fn: Collate | None = None,
    rounds: int = 100,
    cohort_size: int | None = None,
    cohorts: Cohorts | None = None,
    batch_size: int = 50,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    lr: float | Schedule | None = None,
    lr_decay: float | None = None,
    weights: Weights = "uniform",
    unreliable: Unreliable | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    eval_every: int = 1,
    eval_train_every: int | None = None,
    eval_batch_size: int = 1000,
    best: str | None = None,
    stop_at: Mapping[str, float] | None = None,
    client_test: Any = None,
    personal_steps: int | None = None,
    personal_every: int | None = None,
    personal: str | Sequence[str] = (),
    stop_at_accuracy: float | None = None,
    stop_after_seconds: float | None = None,
    patience: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    name: str = "",
    out: str | Path | RunFolder | None = None,
    checkpoint_every: int = 10,
    seed: int = 0,
    engine: str = "auto",
    precision: str = "auto",
    ordered: bool = False,
    messages: str | Messages = "float32",
    combiner: Combiner | str | None = None,
    attack: Attack | str | None = None,
    device: str | torch.device = "auto",
    threads: int = 1,
    dtype: torch.dtype | str | None = None,
) -> Result:
    """Train `model` on `train` over simulated clients; returns the final model and the history.

    Ctrl-C at Python's prompt or in a notebook ends the run and returns its result so far; in a loop over runs the
    next one then starts. In a script it raises KeyboardInterrupt as usual. Either way a run folder has every finished
    round, and the same call resumes it.

    Args:
        model: any `nn.Module` without running statistics, with fresh or pretrained weights (it is not changed), or a
            function that makes one (then `seed` also fixes its initial weights). Frozen parameters are neither trained
            nor sent.
        train: an `(x, y)` pair of numpy or torch arrays or pandas frames, a map-style torch `Dataset`, or one of
            Hugging Face (see `fedlada.data.columns`). Several inputs are a tuple of arrays or a dict by the names of
            the model's arguments. A dict by the names of clients, or a list, holds the data of each client. A model may
            return a dict or object with `logits`. Integer inputs are passed as they are if the model takes them. If
            not, byte images are standardised by the training images' mean and standard deviation, and all other
            integers become floats.
        method: a method, as from `fedlada.recipes`, or its name. A name stands for the values that `fedlada run` uses
            on a user's own data (see `fedlada.suggested`); these may change between versions, a recipe does not.
        test: like `train`; the global model is evaluated on it every `eval_every` rounds.
        validation: like `test`, for data held out for tuning: `validation_loss`, `validation_accuracy`.
        partition: how samples are divided among clients, from `fedlada.data` (`IID`, `Dirichlet`, `Pathological`,
            `ByKey`), or the sample indices of each client (a list, or a dict by client). By default ten equal
            clients, IID. Names of clients, in a dict or as keys, are kept in the history and the run folder.
        collate_fn: a function from a list of samples to `(x, y)`, for samples that need padding; `train` may then be
            a list of samples. It is called once, for all of them; a `collate_fn` of the data set itself is used the
            same way.
        rounds: how many rounds to run.
        cohort_size: clients per round, drawn without replacement; by default all.
        cohorts: another way of sampling them, from `fedlada.cohorts`.
        batch_size: samples per local step; a client with fewer makes smaller batches.
        local_epochs: passes over a client's data per round; by default one.
        local_steps: local steps per round, instead of epochs.
        lr: the clients' learning rate, or a function of the round (see `fedlada.schedules`); by default the one
            suggested for the method's name. A recipe with the values of its name has it too.
        lr_decay: factor on `lr` after each round; by default 0.998 where the method sets the rate or is a name, as in
            the paper, else 1.
        weights: how clients are weighted in the mean: "uniform", by number of "examples", or a list of one number per
            client, of which only ratios matter; a client of weight zero is not asked.
        unreliable: simulated drop-outs and stragglers.
        loss: a function of outputs and targets; by default cross-entropy for class indices, binary cross-entropy for
            targets of 0 and 1 with one output each, squared error for floats. `result.loss` has its name.
        metrics: functions of all test outputs and targets, by name; they appear as `test_<name>`, and of each client as
            `client_<name>`. They need `test`, `validation` or `client_test`. One may be called `accuracy` where none is
            built in; the run is then judged by it.
        eval_every: rounds between evaluations; the last round is always evaluated.
        eval_train_every: rounds between evaluations on the clients' training data, without augmentation; a sample that
            several clients hold counts for each: `full_train_loss` and `full_train_accuracy`.
        eval_batch_size: samples per batch of an evaluation; fewer need less memory.
        best: the metric by which the folder keeps the best model, such as "test_loss"; by default the test accuracy
            where there is one, else the test loss; without `test` those of `validation`. Lower is better for losses
            and errors; "min:test_gain" and "max:test_gain" say it for a name that does not.
        stop_at: end when one of these is reached, as in `{"test_loss": 0.1}` or `{"max:test_gain": 3}`.
        client_test: a share of each client's samples (0.2, say) to hold out as its test set, drawn by the seed, or test
            data by client: a list, or a dict by the client's index or the partition's key. Each evaluation then adds
            `client_accuracy`, the mean over clients, with `_worst_decile` and `_std`, or the same of `client_loss`,
            and that of each of `metrics`; `result.clients` has the values by client.
        personal_steps: local steps of fine-tuning, with the method's own chain, after which each client's model is also
            tested: `personal_accuracy` and its spread. The run itself is unchanged.
        personal_every: rounds between these tests; by default `eval_every`.
        personal: names of parameters that stay with each client, such as `("head.*",)`: every client trains its own,
            and they are never sent. Needs `client_test` in place of `test`.
        stop_at_accuracy: end when the test accuracy is at least this; without `test` that of `validation`, else the
            mean over clients of `client_test`.
        stop_after_seconds: end after the round in which this time is exceeded.
        patience: end when the metric of the best model (see `best`) has not improved in so many evaluations.
        callbacks: functions `(simulation, row)` or `fedlada.Observer`s, called after each round.
        progress: show a progress display; by default only on a terminal and in a notebook.
        name: the run's name in reports and plots, instead of its method's.
        out: a folder for metrics, checkpoints and the final model (needs safetensors); a run found there is resumed.
        checkpoint_every: rounds between checkpoints.
        seed: fixes all random choices.
        engine: what runs the clients: "sequential" is one after another, "stacked" all of a cohort at once; "auto"
            takes stacked on a GPU and sequential on a CPU.
        precision: how the stacked engine computes on a GPU: "bf16" (what "auto" takes), "tf32" or "float32". State
            stays in `dtype`; float64 is always exact.
        ordered: with several processes (torchrun), sum the uploads in order, so that the bits are those of one process.
        messages: compression of each vector that is sent: "float32", "bfloat16", "int8", "lean" or rules such as
            "params=bfloat16:delta=int8" (see `fedlada.messages.Messages`).
        combiner: how the clients' uploads are aggregated: the mean, or a robust rule: "norm-bound",
            "trimmed-mean:0.2", "median", "krum:2", "geometric-median" (see `fedlada.combine`); or
            `Private(clip, epsilon=2.0, delta=1e-6)`, for client-level differential privacy.
        attack: simulated malicious clients, to test combiners with: "sign-flip:0.3", "scale:0.3:10" or one of
            `fedlada.testing.attacks`.
        device: "auto" takes a GPU where there is one.
        threads: CPU threads to compute with. Their number affects the last bits of a result, so it never depends on
            the machine; large models on an idle CPU gain from more.
        dtype: torch.float32 or torch.float64, or their names, for model and data; by default the model's own.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError("torch.inference_mode() has no gradients to train with: call simulate outside it")
    one_of("engine", engine, ENGINES)
    one_of("precision", precision, PRECISIONS)
    count("rounds", rounds)
    count("checkpoint_every", checkpoint_every)
    work = resolve_work(batch_size, local_epochs, local_steps)
    targets = resolve_targets(stop_at)
    check_stop(stop_at_accuracy, has_data=not (test is validation is client_test is None))
    chosen = resolve_method(method).with_combiner(combiner)
    seed, dtype = seed_number(seed), resolve_dtype(dtype)
    place = processes.own_device(resolve_device(device))
    network = resolve_model(model, seed, dtype)
    chosen = resolve_personal(personal, chosen, network)
    if chosen.personal is not None and (test is not None or validation is not None or client_test is None):
        raise ValueError(
            "with personal parameters there is no single model: give client_test, such as client_test=0.2, and neither "
            "test nor validation"
        )
    rules = resolve_messages(messages, chosen)
    numbers = dtype or next(iter(trainable(network).values())).dtype
    train_samples, partition, inputs = resolve_train(train, partition, network, place, numbers, collate_fn)
    if inputs.mean and isinstance(chosen.combiner, Private):
        raise ValueError(
            "images in bytes are scaled by the mean of all clients' data, which Private must hide: give "
            "fedlada.data.Images with a mean and std that are public"
        )
    evaluation = EvaluationOptions(
        eval_every=eval_every,
        eval_train_every=eval_train_every,
        eval_batch_size=eval_batch_size,
        client_test=float(client_test) if isinstance(client_test, Real) else None,
        personal_steps=personal_steps,
        personal_every=personal_every,
    )
    as_read = as_trained(train_samples, inputs)
    clients, client_names = resolve_clients(partition, train_samples, seed)
    clients, own_test = resolve_client_test(
        client_test,
        clients,
        client_names,
        train_samples,
        seed,
        lambda data: resolve_test("client_test", data, place, numbers, collate_fn, inputs),
    )
    lies = None if attack is None else as_attack(attack)
    if lies is not None and lies.poisons_labels:
        liars = attackers(len(clients), lies.share, seed)
        train_samples, clients = with_flipped_labels(train_samples, clients, liars)
    plan = Plan(
        clients=clients,
        client_names=client_names,
        cohorts=resolve_cohorts(cohorts, cohort_size),
        work=work,
        schedule=resolve_schedule(lr, lr_decay, method),
        seed=seed,
        weights=weights,
        unreliable=Unreliable() if unreliable is None else unreliable,
    )
    chosen = with_solved_noise(chosen, plan.cohorts, plan.num_clients, rounds)
    is_alone = processes.num_processes() == 1
    with torch.enable_grad():  # the caller may be in a block of torch.no_grad()
        runner = choose_engine(
            engine,
            network,
            chosen,
            train_samples,
            loss,
            device=place,
            dtype=dtype,
            precision=precision,
            num_steps=rounds * plan.largest_num_steps,
            short_batches=plan.has_short_batches,
            cohort_size=plan.cohorts.size if isinstance(plan.cohorts, FixedSize) and is_alone else None,
            largest_batch=plan.largest_batch,
        )
    if not is_alone:
        from fedlada.engines.distributed import DistributedEngine

        processes.join(place)
        runner = DistributedEngine(runner, ordered=ordered)
    test_samples, validation_samples = (
        resolve_test(name, data, place, numbers, collate_fn, inputs)
        for name, data in (("test", test), ("validation", validation))
    )
    simulation = Simulation(
        runner,
        plan,
        test_samples,
        validation=validation_samples,
        metrics=metrics,
        train=train_samples,
        evaluation=evaluation,
        messages=rules,
        attack=lies,
        threads=threads,
        best=best,
        name=name,
        client_test=own_test,
        inputs=as_read,
    )
    stops = resolve_stops(simulation, targets, stop_after_seconds, patience, stop_at_accuracy)
    observers = [*as_observers(callbacks), *stops, WarnsOfRefused()]
    folder = _folder(out, checkpoint_every)
    if somebody_watches() if progress is None else progress:
        if loss is None and progress:  # otherwise `result` reports it
            observers.append(SaysLoss())
        if folder is not None:
            observers.append(SaysStored(folder.path))
        observers.append(live_or_plain(name or runner.method.name))
    if not is_alone:
        # The first process prints, writes and decides for all.
        active, folder = (observers, folder) if processes.is_first() else ([], None)
        observers = [SharedState(), *active, SharedStop()]
    try:
        simulation.run(rounds, observers, folder=folder)
    except KeyboardInterrupt:
        if not (simulation.round and is_alone and is_interactive()):
            raise
        simulation.pause(f"stopped from the keyboard after round {simulation.round} of {rounds}")
    return simulation.result()


def _folder(out: str | Path | RunFolder | None, checkpoint_every: int) -> RunFolder | None:
    if out is None:
        return None
    from fedlada.runs.folder import RunFolder  # safetensors is not needed without it

    return out if isinstance(out, RunFolder) else RunFolder(out, checkpoint_every=checkpoint_every)
