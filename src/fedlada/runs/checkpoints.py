"""The whole state of a simulation on disk: safetensors and JSON, checked, never half written.

`checkpoints/round-000040.json` names the files that make up the state after round 40, with their digests; it is written
last, so a checkpoint exists whole or not at all. Each client's private state has a file of its own, written only when
the state has changed since the last checkpoint, so that thousands of clients stay cheap.
"""

from __future__ import annotations

import json
import re
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedlada.methods.state import Kept, Server, Vectors, map_tensors, named_tensors
from fedlada.runs.files import digest, write_atomic, write_json

FORMAT = 1
OTHERS = "other_models."
"""Before the names of the server's other models, in the file of its state."""
State = TypeVar("State", Server, Kept)


class DamagedCheckpoint(ValueError):
    """A damaged checkpoint; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round. The history is in `metrics.jsonl`."""

    round: int
    server: Server
    kept: dict[int, Kept]
    others: Vectors = field(default_factory=dict)
    """The server's other models by name; they follow from its state, and are stored to be read without its method."""


@dataclass(frozen=True)
class Written:
    """A client's state on disk; the weak reference tells whether it is still current."""

    memory: weakref.ref[Kept]
    file: str
    sha256: str


class Checkpoints:
    """The checkpoints of one run: the most recent ones, and the best parameters so far."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep
        self.written: dict[int, Written] = {}
        """Each client's state as last written: unchanged state is not written again."""

    def save(self, state: Checkpoint) -> None:
        """Write the state after a round and remove files that no remaining checkpoint needs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"round-{state.round:06d}"
        server = self._write(f"{name}.safetensors", state.server, state.others)
        written = {}
        for client, memory in state.kept.items():
            last = self.written.get(client)
            if last is None or last.memory() is not memory:
                last = Written(weakref.ref(memory), *self._write(f"client-{client:06d}-{name}.safetensors", memory))
            written[client] = last
        write_json(
            self.folder / f"{name}.json",
            {
                "format": FORMAT,
                "round": state.round,
                "server": server[0],
                "kept": {str(client): last.file for client, last in written.items()},
                "sha256": {server[0]: server[1], **{last.file: last.sha256 for last in written.values()}},
            },
        )
        self.written = written
        self._clean()

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, newest first."""
        found = (re.fullmatch(r"round-(\d+)\.json", path.name) for path in self.folder.glob("round-*.json"))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def forget_after(self, round: int) -> None:
        """Remove newer checkpoints: they are damaged, or of rounds that will be run again."""
        for newer in self.rounds():
            if newer > round:
                (self.folder / f"round-{newer:06d}.json").unlink()
        for left_behind in self.folder.glob(".*.part"):
            left_behind.unlink()

    def load(self, round: int, like: Server, like_kept: Kept) -> Checkpoint:
        """The state after that round, in the shapes and dtypes of the given ones.

        The server is loaded onto the device of the given one. Client states stay on the host, because together they may
        not fit on a device; engines copy those they need.
        """
        manifest = self._manifest(round)
        for file, expected in manifest["sha256"].items():
            self._check(file, expected)
        on_host = map_tensors(Tensor.cpu, like_kept)
        state = Checkpoint(
            round=round,
            server=self._read(manifest["server"], like),
            kept={int(client): self._read(file, on_host) for client, file in manifest["kept"].items()},
        )
        self.written = {
            client: Written(weakref.ref(memory), file := manifest["kept"][str(client)], manifest["sha256"][file])
            for client, memory in state.kept.items()
        }
        return state

    def load_params(self, round: int) -> Tensor:
        """The global parameters after that round."""
        return self._server(round)["params"]

    def load_others(self, round: int) -> Vectors:
        """The server's other models after that round, by name."""
        tensors = self._server(round).items()
        return {name.removeprefix(OTHERS): tensor for name, tensor in tensors if name.startswith(OTHERS)}

    def _server(self, round: int) -> Vectors:
        manifest = self._manifest(round)
        file = manifest["server"]
        self._check(file, manifest["sha256"][file])
        return self._tensors(file)

    def load_memory(self, round: int, client: int) -> dict[str, Tensor]:
        """The vectors of a client's state after that round, by name; empty if it has none."""
        manifest = self._manifest(round)
        file = manifest["kept"].get(str(client))
        if file is None:
            return {}
        self._check(file, manifest["sha256"][file])
        return self._tensors(file)

    def save_best(self, params: Tensor, round: int, metric: str, value: float) -> None:
        """Save the best global parameters so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {"params": params.detach().cpu().contiguous()}
        about = {"round": str(round), "metric": metric, "value": repr(value)}
        write_atomic(self.folder / "best.safetensors", lambda path: save_file(tensors, path, metadata=about))

    def best_metric(self) -> str | None:
        """The metric by which the best parameters were chosen; None if there are none."""
        path = self.folder / "best.safetensors"
        try:
            with safe_open(path, "pt") as file:
                return str(file.metadata()["metric"])
        except (OSError, SafetensorError, KeyError, TypeError):
            return None

    def _write(self, name: str, state: Server | Kept, others: Vectors | None = None) -> tuple[str, str]:
        named = {**dict(named_tensors(state)), **{OTHERS + label: tensor for label, tensor in (others or {}).items()}}
        tensors = {label: tensor.detach().cpu().contiguous() for label, tensor in named.items()}
        path = self.folder / name
        write_atomic(path, lambda beside: save_file(_without_aliases(tensors), beside))
        return name, digest(path)

    def _manifest(self, round: int) -> dict[str, Any]:
        path = self.folder / f"round-{round:06d}.json"
        try:
            manifest = json.loads(path.read_bytes())
            files = {manifest["server"], *manifest["kept"].values()}
            whole = manifest["round"] == round and files == set(manifest["sha256"]) and manifest["format"] >= 1
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise DamagedCheckpoint(f"the checkpoint {path} is damaged")
        if manifest["format"] > FORMAT:
            raise ValueError(f"the checkpoint {path} was written by a newer version of fedlada: upgrade")
        return dict(manifest)

    def _check(self, file: str, expected: str) -> None:
        path = self.folder / file
        if Path(file).name != file or not path.is_file():
            raise DamagedCheckpoint(f"the checkpoint file {path} is missing")
        if digest(path) != expected:
            raise DamagedCheckpoint(f"the checkpoint file {path} is damaged: its checksum differs")

    def _read(self, file: str, like: State) -> State:
        tensors = {name: tensor for name, tensor in self._tensors(file).items() if not name.startswith(OTHERS)}
        expected = dict(named_tensors(like))
        _check_fit(self.folder / file, tensors, expected)
        names = iter(expected)
        return map_tensors(lambda tensor: tensors[next(names)].to(tensor.device), like)

    def _tensors(self, file: str) -> dict[str, Tensor]:
        path = self.folder / file
        try:
            return load_file(path)
        except (FileNotFoundError, SafetensorError) as error:
            raise DamagedCheckpoint(f"the checkpoint file {path} cannot be read: {error}") from None

    def _clean(self) -> None:
        rounds = self.rounds()
        for old in rounds[self.keep :]:
            (self.folder / f"round-{old:06d}.json").unlink()
        needed = {"best.safetensors"}
        for round in rounds[: self.keep]:
            try:
                needed |= set(self._manifest(round)["sha256"])
            except DamagedCheckpoint:
                continue
        for path in self.folder.glob("*.safetensors"):
            if path.name not in needed:
                path.unlink()


def _without_aliases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share storage, which safetensors refuses (a server's initial vectors can)."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _check_fit(path: Path, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Refuse a file with tensors of other names or shapes than the run's, or parameters of another type.

    A state goes on in the type that it had: it may have been promoted since the start.
    """
    for name in sorted(tensors.keys() | expected.keys()):
        own, wanted = tensors.get(name), expected.get(name)
        there, here = _kind(own), _kind(wanted)
        is_params = name.rpartition(".")[2] == "params"
        goes_on = own is not None and wanted is not None and own.shape == wanted.shape and not is_params
        if there != here and not goes_on:
            raise ValueError(
                f"the checkpoint file {path} does not fit this run's model and method: {name} is {there} there and "
                f"{here} here"
            )


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
