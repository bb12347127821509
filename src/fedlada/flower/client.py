"""The node's app: a simulation's training code as a Flower `ClientApp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedlada.data.samples import Samples, as_samples
from fedlada.engines.evaluation import Loss
from fedlada.engines.inputs import inputs_for
from fedlada.engines.sequential import SequentialEngine
from fedlada.engines.threads import check_threads, cpu_threads
from fedlada.federation.plan import RoundPlan, assign
from fedlada.flower import wire
from fedlada.flower.coding import Coding
from fedlada.flower.memory import Memories, default_folder
from fedlada.flower.refusals import TOLD, Diverged, Moved, step
from fedlada.flower.untrained import check_same, is_same, summary
from fedlada.flower.versions import Version
from fedlada.messages import Exchange
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, named_tensors
from fedlada.models.flat import trainable, trained_digest
from fedlada.runs.config import describe_loss
from fedlada.training.resolve import (
    Model,
    resolve_device,
    resolve_dtype,
    resolve_method,
    resolve_model,
    resolve_personal,
)

LoadData = Callable[[Context], Any]
MethodOf = FederatedMethod | str | Callable[[Context], FederatedMethod | str]


def client_app(
    model: Model,
    load_data: LoadData,
    *,
    method: MethodOf = "fedlada",
    load_test: LoadData | None = None,
    loss: Loss | None = None,
    personal: str | Sequence[str] = (),
    client: Callable[[Context], int] | None = None,
    memory: str | Path | None = None,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A `ClientApp` that trains `model` on this node's data with any method.

    Args:
        model: an `nn.Module` or a function that makes one, the same as the server's.
        load_data: a function of Flower's `Context` that returns this node's own samples: an `(x, y)` pair of arrays or
            a torch `Dataset`. `context.node_config` holds the node's start options.
        method: the server's method, a name as in `fedlada.simulate`, or a function of the context
            (`context.run_config`) that gives it. A node with another one is refused.
        load_test: like `load_data`, for evaluation on the nodes; by default the training samples.
        loss: as in `fedlada.simulate`, the same as the server's.
        personal: as in `fedlada.simulate`, the same as the server's; these parameters stay in the node's `memory`.
        client: this node's client index, 0 to `num_clients - 1`; by default `partition-id` of its node config.
        memory: the folder for client state (SCAFFOLD, `top...` codecs); by default `memory` of
            the node config, else the user's folder for state.
        device: where to train; "auto" uses a GPU if there is one.
        dtype: torch.float32 or torch.float64, or their names; by default the model's own.
        mods: Flower's modifiers, such as `LocalDpMod`.
    """
    node = _Node(
        model=model,
        load_data=load_data,
        method=method,
        load_test=load_test or load_data,
        loss=loss,
        personal=personal,
        client=client or _partition_id,
        memory=memory,
        device=device,
        dtype=resolve_dtype(dtype),
    )
    app = ClientApp()

    @app.query(mods=[_discreet])
    def query(message: Message, context: Context) -> Message:
        return Message(node.hello(message, context), reply_to=message)

    @app.train(mods=[_discreet, *mods])
    def train(message: Message, context: Context) -> Message:
        return Message(node.train(message, context), reply_to=message)

    @app.evaluate(mods=[_discreet])
    def evaluate(message: Message, context: Context) -> Message:
        return Message(node.evaluate(message, context), reply_to=message)

    return app


@dataclass(frozen=True, kw_only=True)
class _Node:
    """The work of a node. Data and models are made for each message: most nodes run each in its own process."""

    model: Model
    load_data: LoadData
    method: MethodOf
    load_test: LoadData
    loss: Loss | None
    personal: str | Sequence[str]
    client: Callable[[Context], int]
    memory: str | Path | None
    device: str | torch.device
    dtype: torch.dtype | None

    def hello(self, message: Message, context: Context) -> RecordDict:
        """The node's client index, model and number of samples."""
        said = wire.Hello(method="", client=-1, num_examples=0, num_params=0, trained="", has_untrained=0, loss="")
        try:
            greeting = wire.read_header(message, wire.Greeting)
            with step("answering the greeting"):
                said = replace(said, client=self._client(context))
                engine = self._engine(self.load_data, context, greeting.seed)  # does the model fit the data?
                said = replace(
                    said,
                    method=wire.fingerprint(self._method(context, engine.template)),
                    num_examples=len(engine.samples),
                    num_params=engine.flat.vector.numel(),
                    trained=trained_digest(engine.flat.module),
                    has_untrained=int(is_same(summary(engine.template), greeting.untrained)),
                    loss=describe_loss(engine.loss),
                )
        except TOLD as error:
            said = replace(said, refused=str(error))
        return wire.content(said)

    def train(self, message: Message, context: Context) -> RecordDict:
        """One round's local work; a task that cannot be done is refused with a reason and changes nothing."""
        task = wire.read_header(message, wire.Task)
        try:
            with step("training"), self._threads(task):
                return self._train(task, message, context)
        except TOLD as error:
            return self._refusal(task, error)

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Loss and accuracy of the server's parameters on this node's samples."""
        task = wire.read_header(message, wire.Task)
        try:
            with step("evaluation"), self._threads(task):
                engine = self._engine(self.load_test, context, task.seed)
                params = engine.initial_params()
                exchange = Exchange(task.messages, engine.method, int(task.seed))
                like = Broadcast(params, ())
                received = exchange.arrived(wire.unpack(wire.vectors_of(message), exchange.sent(like)), like).params
                if engine.method.personal is not None:
                    memories = Memories(self._memory(context), task.run, task.client)
                    start = Version.parse(task.memory) if task.memory else None
                    kept = memories.load(start, exchange.init_kept(params))
                    received = engine.method.own_params(received, kept)
                measured = engine.evaluate(received, engine.samples, {})
        except TOLD as error:
            return self._refusal(task, error)
        return wire.content(
            wire.Done(run=task.run, round=task.round, client=task.client),
            metrics={"num-examples": len(engine.samples), **measured},
        )

    def _threads(self, task: wire.Task) -> AbstractContextManager[None]:
        """The server's number of threads, on which the bits depend."""
        return cpu_threads(resolve_device(self.device), check_threads(task.threads))

    def _refusal(self, task: wire.Task, error: Exception) -> RecordDict:
        status = "diverged" if isinstance(error, Diverged) else "moved" if isinstance(error, Moved) else "refused"
        return wire.content(
            wire.Done(run=task.run, round=task.round, client=task.client, status=status, reason=str(error))
        )

    def _train(self, task: wire.Task, message: Message, context: Context) -> RecordDict:
        if (own := self._client(context)) != task.client:
            raise Moved(f"it is for client {task.client}, and this node is client {own}")
        engine = self._engine(self.load_data, context, task.seed)
        if (method := wire.fingerprint(engine.method)) != task.method:
            raise wire.WrongMessage(f"the server runs {task.method}, and this node has {method}: install the same app")
        check_same(engine.template, task.untrained)
        params = engine.initial_params()
        exchange = Exchange(task.messages, engine.method, int(task.seed))
        coding, fresh = Coding(exchange), engine.method.init(params).broadcast
        broadcast, _ = coding.unpack(wire.vectors_of(message), fresh, task.round)
        memories = Memories(self._memory(context), task.run, task.client)
        start = Version.parse(task.memory) if task.memory else None
        made = Version.parse(f"{task.round}-{task.attempt}")
        kept = memories.load(start, exchange.init_kept(params))
        num_samples = len(engine.samples)
        key = {"seed": int(task.seed), "round": task.round, "client": task.client}
        work = assign(np.arange(num_samples), task.work, **key, num_steps=task.work.num_steps(num_samples))
        plan = RoundPlan(task.round, task.lr, (work,), (), ())
        # A first memory is made by the engine, from the client's seed.
        own_memory = {task.client: exchange.of_method(kept)} if start is not None else {}
        (answer,) = engine.answers(broadcast, plan, own_memory)
        if not answer.is_finite:
            raise Diverged(f"its update of round {task.round} is NaN or infinite")
        wanted, new = answer.upload, answer.kept
        if exchange.remembered:
            wanted = exchange.with_rest(wanted, kept)
        packed = coding.pack(wanted, task.round, task.client)
        if exchange.remembered:
            new = exchange.rest(wanted, packed.received, new)
        if any(named_tensors(new)):
            needed = [Version.parse(text) for text in task.needed_memories.split(",") if text]
            with step("saving this node's client state"):
                memories.save(made, new, needed=needed)
        return wire.content(
            wire.Done(run=task.run, round=task.round, client=task.client),
            packed.record if task.answer == "delta" else wire.sent_upload(answer.upload, broadcast, task.answer),
            {"num-examples": num_samples, "num-steps": work.num_steps, "train-loss": answer.train_loss},
        )

    def _engine(self, load: LoadData, context: Context, seed: str) -> SequentialEngine:
        network, place = self._network(seed), resolve_device(self.device)
        samples = self._samples(load, context, network, place)
        method = self._method(context, network)
        with step("fitting the model to this node's data"):
            return SequentialEngine(network, method, samples, self.loss, device=place, dtype=self.dtype)

    def _network(self, seed: str) -> nn.Module:
        # Trained parameters come with every message; random untrained ones must come from the server's seed.
        with step("making this node's model"):
            return resolve_model(self.model, int(seed), self.dtype)

    def _client(self, context: Context) -> int:
        with step("finding this node's client index"):
            own = self.client(context)
        if isinstance(own, bool) or not isinstance(own, int):
            raise wire.WrongMessage(f"this node's client index must be a whole number, got {type(own).__name__}")
        return own

    def _method(self, context: Context, network: nn.Module) -> FederatedMethod:
        given = self.method
        is_function = callable(given) and not isinstance(given, FederatedMethod)
        with step("making this node's method"):
            method = resolve_method(given(context) if is_function else given)  # type: ignore[arg-type, operator]
            return resolve_personal(self.personal, method, network)

    def _samples(self, load: LoadData, context: Context, network: nn.Module, place: torch.device) -> Samples:
        numbers = self.dtype or next(iter(trainable(network).values())).dtype
        with step("loading this node's data"):
            samples = as_samples(load(context), place, numbers)
            # A node has only its own images: scaled by their mean they would differ from the other nodes' inputs.
            return inputs_for(network, samples, place, numbers, scaled=False).of(samples)

    def _memory(self, context: Context) -> Path:
        folder = self.memory or context.node_config.get("memory")
        return Path(str(folder)).expanduser() if folder else default_folder()


def _discreet(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """The outermost modifier: Flower sends the text of any error that leaves an app."""
    with step(f"{message.metadata.message_type} on this node"):
        return call_next(message, context)


def _partition_id(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise wire.WrongMessage(
            f"this node's config must have a whole number `partition-id`, got {type(number).__name__}: "
            "start it with --node-config 'partition-id=0'"
        )
    return number
