"""A stored run, opened again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedlada.data.given import Collate
from fedlada.data.own import is_own_data, refuse_untrusted_data
from fedlada.data.paths import user_path
from fedlada.engines.engine import RAN_BY
from fedlada.engines.evaluation import AS_USUAL, Loss, Metric, evaluate_trained
from fedlada.engines.inputs import Inputs
from fedlada.methods.factory import refuse_untrusted
from fedlada.models.factory import trusted_factory
from fedlada.models.flat import copied, flatten, in_dtype, model_with, named_for, trainable
from fedlada.runs.checkpoints import Checkpoints, DamagedCheckpoint
from fedlada.runs.clients import read_names, stored_num_clients
from fedlada.runs.config import how_made, is_experiment, is_federation, read_config
from fedlada.runs.diverged import diverged_in
from fedlada.runs.folder import export
from fedlada.runs.metrics import read_rows
from fedlada.training.history import NO_SINGLE_MODEL, History, client_number, other_model, plot_run
from fedlada.training.resolve import Model, personal_of, resolve_model
from fedlada.training.target import declared
from fedlada.workbench.experiment import Experiment

if TYPE_CHECKING:
    from fedlada.plots.draw import Figure

IN_PYTHON = ("digits", "docstrings")
"""Data sets that are read from no place of the user's."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredRun:
    """A run's folder: its configuration, its history, and its model as far as it was trained."""

    path: Path
    config: dict[str, Any]
    history: History
    model: nn.Module
    """The final model, or that of the newest intact checkpoint if the run has not ended."""
    round: int
    """The number of rounds after which the model was this."""
    trust: bool = False
    """Whether a model that is not built in may be imported because the folder names it."""

    def __repr__(self) -> str:
        return f"Run in {self.path}, its model after round {self.round}\n{self.history!r}"

    def _repr_html_(self) -> str:
        return f"<p>Run in {escape(str(self.path))}, its model after round {self.round}</p>{self.history._repr_html_()}"

    @property
    def experiment(self) -> Experiment:
        """The configuration as an experiment that can be run again (for runs of the command line)."""
        return stored_experiment(self.path, self.config, trust=self.trust)

    @cached_property
    def num_clients(self) -> int | None:
        """The number of clients, if the folder has it."""
        return stored_num_clients(self.path, self.config)

    @property
    def inputs(self) -> Inputs:
        """How whole numbers were read as inputs: the mean and deviation by which images in bytes were scaled."""
        try:
            return Inputs.from_json(self.config.get(RAN_BY, {}).get("images", {}))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {RAN_BY} in config.json cannot be read: {error}") from None

    def evaluate(
        self,
        data: Any = None,
        loss: Loss | None = None,
        *,
        model: nn.Module | None = None,
        metrics: Mapping[str, Metric] | None = None,
        batch_size: int = AS_USUAL.eval_batch_size,
        collate_fn: Collate | None = None,
    ) -> dict[str, float]:
        """`fedlada.evaluate` of the model on data like those of the run: images in bytes are scaled as in training.

        Without data it is the test set that the folder names, of a run of the command line. `model` may be another
        one, such as `best_model()`. A loss that was given to `simulate` is given here too.
        """
        if model is None and self.config.get("personal"):
            raise ValueError(NO_SINGLE_MODEL)
        data = self._test_set() if data is None else data
        about: Any = {"inputs": self.inputs, "trained_by": "", "metrics": metrics, "batch_size": batch_size}
        if isinstance(ran_by := self.config.get(RAN_BY), dict):
            about["trained_by"] = str(ran_by.get("loss") or "")
        return evaluate_trained(model or self.model, data, loss, collate_fn=collate_fn, **about)

    def _test_set(self) -> Any:
        """The test set of the run's data set."""
        if not is_experiment(self.config):
            raise ValueError(f"{self.path} was {how_made(self.config)}: give evaluate the data, as in evaluate((x, y))")
        if is_own_data(name := self.config.get("dataset")):
            raise ValueError(f"{self.path} was run on the data of {name!r}: give them, as in evaluate((x, y))")
        source = replace(Experiment.read(self.path / "config.json"), augment="none").load_data()
        check_class_names(self.path, self.history.class_names, source.class_names)
        return source.test

    def plot(self, metric: str | None = None) -> Figure:
        """A plot of the run (needs matplotlib): the metric against rounds, by default accuracy if there is one."""
        return plot_run(self.history, str(self.config.get("name") or self.config.get("method") or ""), metric)

    def best_model(self) -> nn.Module:
        """The model of the best round: by the test accuracy, else the test loss, or those of the validation.

        Without either it is that of the clients' own tests; `simulate(best=...)` chooses another metric.
        """
        return self.best()[0]

    def best(self) -> tuple[nn.Module, int]:
        """The best model by the metric that the run kept it by, and its round."""
        path = self.path / "checkpoints" / "best.safetensors"
        if not path.exists():
            raise ValueError(f"{self.path} has no best model: the run was never evaluated on test or validation data")
        try:
            with safe_open(path, "pt") as file:
                return model_with(self.model, file.get_tensor("params")), int(file.metadata()["round"])
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None

    def other_model(self, name: str) -> nn.Module:
        """A model that the server optimizer has besides the global one: "mean" of FedDyn, which its authors evaluate.

        Its metrics are those that end in `_of_` and its name, such as `test_accuracy_of_mean`.
        """
        return other_model(self.model, Checkpoints(self.path / "checkpoints").load_others(self.round), name)

    def client_model(self, client: int | str, *, memory: str | Path | None = None) -> nn.Module:
        """A copy of the model, with the personal parameters of this client (its number or name) if the run has any.

        Those of a federation are on the client's node alone: there `memory` is the folder that its node config names.
        """
        number = client_number(client, self.history.client_names, self.num_clients)
        personal = personal_of(self.config.get("personal") or (), self.model)
        if personal is None:
            return copied(self.model)
        params = flatten(trainable(self.model).values())
        if is_federation(self.config):
            kept = self._on_its_node(number, memory)
        else:
            kept = Checkpoints(self.path / "checkpoints").load_memory(self.round, number)
        # After the transforms' states; a client that never took part has the initial one.
        own = [vector for name, vector in sorted(kept.items()) if re.fullmatch(r"memory\.\d+\.params", name)]
        return model_with(self.model, personal.joined(params, own[-1].to(params)) if own else params)

    def _on_its_node(self, client: int, memory: str | Path | None) -> dict[str, Tensor]:
        """The private state of a federation's client, from its node's disk."""
        if memory is None:
            raise ValueError(
                f"{self.path} was made by a federation, whose personal parameters stay on its nodes: on the client's "
                "node give memory=, the folder that its node config names"
            )
        from fedlada.flower.memory import Memories
        from fedlada.flower.versions import Versions

        versions = Versions()
        versions.read(self.history)
        version = versions.of(client, self.round)
        return {} if version is None else Memories(Path(memory), str(self.config["run"]), client).vectors(version)

    def export(self, path: str | Path) -> None:
        """Write the model's `state_dict` as a safetensors file."""
        export(self.model, Path(path))


def check_class_names(folder: Path, stored: Sequence[str], found: Sequence[str]) -> None:
    """Refuse data whose classes are not those that the run was trained on."""
    if stored and tuple(stored) != tuple(found):
        raise ValueError(
            f"{folder} was trained on the classes {_listed(stored)}, but the data have {_listed(found)}: give those "
            "that it was trained on, as evaluate(data) or with --data-dir"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def load_run(path: str | Path, model: Model | str | None = None, *, trust: bool = False) -> StoredRun:
    """Open a run's folder; a `model` that is not built in is given, or imported where the folder is trusted."""
    folder = user_path("path", path)
    config = read_config(folder)
    if model is None or isinstance(model, str):
        experiment = stored_experiment(folder, config, model=model, trust=trust, trains=False)
        refuse_untrusted_data(experiment.dataset, folder, trust=trust)
        model = experiment.build_model(replace(experiment, augment="none").load_data())
    # As the run made it: frozen parameters are in no checkpoint.
    made = resolve_model(model, config.get("seed", 0), None)
    network = (copied(made) if made is model else made).eval()
    names = read_names(folder)
    rows, best = read_rows(folder / "metrics.jsonl"), config.get("best")
    judge = best if isinstance(best, str) and declared(best)[0] is not None else None
    history = History(rows, client_names=names.clients, class_names=names.classes, judge=judge)
    return StoredRun(folder, config, history, *_trained(folder, network, len(history)), trust)


def stored_experiment(
    folder: Path,
    config: dict[str, Any],
    *,
    model: str | None = None,
    method: str | None = None,
    data: str | None = None,
    trust: bool = False,
    trains: bool = True,
) -> Experiment:
    """The experiment of a run's configuration, if its model is built in, `model` names it too, or it is trusted.

    So must be its method and its data, unless nothing is trained.
    """
    if not is_experiment(config):
        raise ValueError(f"{folder} was {how_made(config)}: give load_run the model that it trained")
    experiment = Experiment.read(folder / "config.json")
    if trains:
        refuse_untrusted(experiment.method, folder, named=method, trust=trust)
        refuse_untrusted_data(experiment.dataset, folder, named=data, trust=trust)
    trusted_factory(experiment.resolved().model or "", folder, named=model, trust=trust)
    return experiment


def refuse_moved_data(folder: Path, experiment: Experiment) -> None:
    """Refuse a run whose data are not where its configuration says; a relative place depends on the current folder."""
    place = experiment.data_dir
    if place is not None and experiment.dataset not in IN_PYTHON and not Path(place).exists():
        here = "" if Path(place).is_absolute() else f" from {Path.cwd()}"
        raise ValueError(
            f"there is no {place}{here}, which is the data_dir that {folder / 'config.json'} names for the run's own "
            "data: say where they are now with --data-dir"
        )


def _trained(folder: Path, network: nn.Module, num_rounds: int) -> tuple[nn.Module, int]:
    """The latest model and its number of rounds."""
    final, checkpoints = folder / "model.safetensors", Checkpoints(folder / "checkpoints")
    if final.exists():
        try:
            tensors = load_file(final)
        except (OSError, SafetensorError) as error:
            way_out = "; without it the newest checkpoint is read: move it away" if checkpoints.rounds() else ""
            raise ValueError(f"{final} is damaged, or cannot be read ({error}){way_out}") from None
        try:
            stored = named_for(network, tensors)
            trained = [stored[name].dtype for name in trainable(network) if name in stored]
            if trained and trained[0].is_floating_point:
                in_dtype(network, trained[0])
            network.load_state_dict(stored)
        except RuntimeError as error:
            # The first line of torch's message has no details.
            raise ValueError(f"{final} does not fit the model: {str(error).splitlines()[-1].strip()}") from None
        return network, num_rounds
    for round in checkpoints.rounds():
        try:
            return model_with(network, checkpoints.load_params(round)), round
        except DamagedCheckpoint:
            continue
    if diverged := diverged_in(folder):
        raise ValueError(f"{folder} has no model, as the run diverged: {diverged[1]}")
    if not num_rounds:
        raise ValueError(
            f"{folder} has no round yet: the run was stopped in round 1, or it diverged there; resume it, which says so"
        )
    raise ValueError(f"{folder} has no intact checkpoint yet: resume the run first")
