"""Conversion between states and Flower's records.

Down goes one `ArrayRecord` with the broadcast and one `ConfigRecord` that says what to do; up come one `ArrayRecord`
with the upload, a `ConfigRecord` that says what was done, and a `MetricRecord`. Nothing that arrives is trusted: names,
shapes, dtypes, sizes and finiteness are checked on both sides, and each fault has its error message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedlada.federation.batches import LocalWork
from fedlada.flower.arrays import NPY_HEADER, UnreadableArray, numbers_of
from fedlada.flower.exchange import MOST_NAMES, MOST_READ, in_short, listed, one_line, word
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Server, Upload, map_tensors, named_tensors
from fedlada.runs.parts import describe_part

FORMAT = 5
"""Format version, incremented when older versions can no longer read it."""
VECTORS, HEADER, METRICS = "vectors", "fedlada", "metrics"

State = TypeVar("State", Broadcast, Server, Kept, Upload)


class WrongMessage(ValueError):
    """An invalid message; the error says why."""


class NotFinite(WrongMessage):
    """A vector with a NaN or an infinity: the run diverges, or is attacked."""


def pack(state: Broadcast | Upload) -> ArrayRecord:
    """The vectors of a state, by name."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in named_tensors(state)})


def unpack(record: ArrayRecord, like: State) -> State:
    """A state from its vectors: exactly those of `like`, with its shapes and dtypes, all finite."""
    expected = dict(named_tensors(like))
    if list(record) != list(expected):
        raise WrongMessage(f"it holds the vectors {listed(record)} instead of {', '.join(expected)}")
    vectors = {name: _vector(name, record[name], tensor) for name, tensor in expected.items()}
    names = iter(expected)
    return map_tensors(lambda tensor: vectors[next(names)].to(tensor.device), like)


def packed_bytes(content: RecordDict) -> int:
    """The size of all vectors of a message as they are sent."""
    data = [array.data for record in content.array_records.values() for array in record.values()]
    return sum({id(one): len(one) for one in data}.values())  # an array under many names is sent once


def _vector(name: str, array: Array, like: torch.Tensor) -> torch.Tensor:
    dtype = str(like.dtype).removeprefix("torch.")
    if array.dtype != dtype or tuple(array.shape) != tuple(like.shape):
        raise WrongMessage(
            f"the vector {name} is {one_line(array.dtype)} of shape {tuple(array.shape[:MOST_NAMES])}, "
            f"not {dtype} of {tuple(like.shape)}"
        )
    try:
        values = numbers_of(array, dtype, most=like.numel() * like.element_size() + NPY_HEADER)
    except UnreadableArray as error:
        raise WrongMessage(f"the vector {name} {error}") from None
    if values.shape != tuple(like.shape):
        raise WrongMessage(f"the vector {name} holds numbers of shape {values.shape} under another label")
    vector = torch.from_numpy(np.array(values))
    if not bool(vector.isfinite().all()):
        raise NotFinite(f"the vector {name} holds a NaN or an infinity")
    return vector


def fingerprint(method: FederatedMethod) -> str:
    """The method with all its hyperparameters, which must be the same on the server and on the nodes."""
    parts = ", ".join(describe_part(part) for part in (*method.local, method.server))
    kind = type(method)
    own = "" if kind is FederatedMethod else f" ({kind.__qualname__})"
    personal = "" if method.personal is None else f"; personal: {', '.join(method.personal.names)}"
    return f"{method.name}{own}: {parts}{personal}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A node's task in a round, besides the vectors."""

    method: str
    """The method's fingerprint."""
    untrained: str
    """The summary of the model's untrained parameters and buffers."""
    run: str
    """Names the whole run; a run that was resumed keeps its name."""
    round: int
    client: int
    lr: float
    seed: str
    """As text: it may exceed the range of a message's integers."""
    batch_size: int
    epochs: int
    steps: int
    """0 if the work is given in epochs."""
    attempt: str
    """Names this start of the server, to distinguish its tasks from those of a crashed predecessor."""
    memory: str
    """The version of the client state to start from; empty for a fresh one."""
    needed_memories: str
    """All versions that this server, or one resumed from its checkpoints, can name; comma-separated."""
    messages: str = "float32"
    """The compression rules of both directions."""
    threads: int = 1
    """CPU threads to compute with: their number affects the last bits."""
    answer: str = "delta"
    """The form of the reply: the upload, or ("params") the resulting parameters, as Flower's wrappers expect."""

    @property
    def work(self) -> LocalWork:
        """The amount of local work."""
        return LocalWork(batch_size=self.batch_size, epochs=self.epochs, steps=self.steps or None)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A node's report about its work, besides the vectors."""

    run: str
    round: int
    client: int
    status: str = "done"
    """"done", "refused", "diverged" if its update was not finite, or "moved" if the node is another client now."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The identification request to a new node, with the server's seed for its model."""

    seed: str
    """As text, as in a task."""
    untrained: str
    """As in a task."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A node's reply to a greeting."""

    method: str
    client: int
    num_examples: int
    num_params: int
    trained: str
    """A digest of the names, shapes and dtypes of its model's trained parameters."""
    has_untrained: int
    """1 if its model's untrained parameters and buffers are those of the greeting."""
    loss: str
    """The loss with which it trains."""
    refused: str = ""


Header = TypeVar("Header", Task, Done, Greeting, Hello)


def read_header(message: Message, kind: type[Header]) -> Header:
    """The header of a message, with every field's type checked."""
    if message.has_error():
        raise WrongMessage(f"its app raised an error: {in_short(message.error)}")
    record = message.content.config_records.get(HEADER)
    if record is None:
        raise WrongMessage(f"it has no record {HEADER!r}")
    version = record.get("format")
    if not isinstance(version, int) or version != FORMAT:
        raise WrongMessage(
            f"it has the format {word(version)} and this side {FORMAT}: install the same version of fedlada"
        )
    values: dict[str, Any] = {}
    types = {"int": int, "float": float, "str": str}
    for one in fields(kind):
        value = record.get(one.name)
        if type(value) is not types[str(one.type)]:
            raise WrongMessage(f"its field {one.name!r} must be of type {one.type}, got {word(value)}")
        values[one.name] = value
    return kind(**values)


def check_done(reply: Message, asked: tuple[str, int, int]) -> None:
    """Refuse a reply that is not done, or not for the requested run, round and client."""
    done = read_header(reply, Done)
    if done.status != "done":
        raise WrongMessage(done.reason[:MOST_READ])
    if (done.run, done.round, done.client) != asked:
        raise WrongMessage(
            f"it answers for client {done.client} in round {done.round} of the run {one_line(done.run)}, "
            f"not for {asked}"
        )


def vectors_of(message: Message) -> ArrayRecord:
    """The one record of vectors of a message."""
    records = message.content.array_records
    if list(records) != [VECTORS]:
        raise WrongMessage(f"it holds the vector records {listed(records)} instead of {VECTORS!r}")
    return records[VECTORS]


def metric(message: Message, name: str, kind: type[int] | type[float]) -> Any:
    """One number of a reply."""
    value = message.content.metric_records.get(METRICS, MetricRecord()).get(name)
    if type(value) is not kind:
        raise WrongMessage(f"its metric {name!r} must be of type {kind.__name__}, got {word(value)}")
    return value


def content(
    header: Task | Done | Greeting | Hello,
    vectors: ArrayRecord | None = None,
    metrics: Mapping[str, float | int] | None = None,
    more: Mapping[str, Any] | None = None,
) -> RecordDict:
    """The content of a message; `more` are extra fields of a wrapper."""
    records: dict[str, Any] = {HEADER: ConfigRecord({"format": FORMAT, **vars(header), **(more or {})})}
    if vectors is not None:
        records[VECTORS] = vectors
    if metrics is not None:
        records[METRICS] = MetricRecord(dict(metrics))
    return RecordDict(records)


def sent_upload(upload: Upload, broadcast: Broadcast, answer: str) -> ArrayRecord:
    """An upload in the form that the server requests."""
    if answer == "delta":
        return pack(upload)
    return pack(Broadcast(broadcast.params - upload.delta, tuple({} for _ in broadcast.shared)))


def received_upload(record: ArrayRecord, broadcast: Broadcast, like: Upload, answer: str) -> Upload:
    """The upload in a node's reply, or in a wrapper's mean."""
    if answer == "delta":
        return unpack(record, like)
    params = unpack(record, Broadcast(broadcast.params, tuple({} for _ in broadcast.shared))).params
    return Upload(broadcast.params - params, like.extra)
