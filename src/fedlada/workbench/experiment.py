"""A run described by plain values: the command line takes them, the run folder stores them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedlada.api import simulate
from fedlada.data.image_folder import Progress
from fedlada.data.images import STANDARDIZE
from fedlada.data.paths import user_path
from fedlada.data.source import Source
from fedlada.data.sources import AUGMENTATIONS, DATASETS, check_data_name, load_dataset
from fedlada.engines.choice import ENGINES
from fedlada.engines.evaluation import EvaluationOptions
from fedlada.engines.stacked.precision import PRECISIONS
from fedlada.engines.threads import check_threads
from fedlada.federation.cohorts import Cohorts, Unreliable
from fedlada.federation.partition import Partition
from fedlada.federation.schedules import Schedule
from fedlada.messages.spec import Messages, in_full
from fedlada.methods.factory import check_hyper, check_method_name, hyper_parameters, is_own, method_factory
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import RECIPES
from fedlada.methods.testing.attacks import as_attack
from fedlada.methods.validation import count, field_types, one_of, option, seed_number
from fedlada.models import TEXT_MODELS
from fedlada.models.factory import check_model_name, model_factory
from fedlada.runs.files import read_object
from fedlada.runs.parts import PARTS, describe_method
from fedlada.training.history import Result
from fedlada.training.observers import Callback
from fedlada.training.resolve import resolve_messages
from fedlada.training.target import Target, stop_by
from fedlada.training.trackers import TensorBoard
from fedlada.workbench import federation
from fedlada.workbench.presets import preset
from fedlada.workbench.privacy import NoiseOptions, combiner_of, solved_noise
from fedlada.workbench.stored_config import CONFIG_FORMAT, experiment_fields, identifying_fields, run_digests

if TYPE_CHECKING:
    from fedlada.runs.folder import RunFolder

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Experiment(EvaluationOptions, NoiseOptions):
    """One run. Each field is a flag of the command line; None stands for the default of the data set and method."""

    method: str = option("fedlada", "Method, or package.module:factory for your own.", tuple(RECIPES))
    hyper: Mapping[str, Any] = field(default_factory=dict)
    """The method's hyperparameters; those left out are the preset's or the recipe's."""
    dataset: str = option("digits", "Data set.", tuple(DATASETS))
    data_dir: str | None = option(
        None, "Folder of the data, or the file for npz. Published data sets are in the folder data by default."
    )
    augment: str | None = option(
        None, "Random flips and crops: authors for half of the images, crop for all of them.", tuple(AUGMENTATIONS)
    )
    image_size: int | None = option(None, "For folder: scale and crop images to this many pixels.")
    crop_size: int | None = option(
        None, "Crop images to this many pixels: by --augment in training, otherwise at the centre."
    )
    standardize: str = option("channels", "Standardize images by the data set's channels, or each alone.", STANDARDIZE)
    validation: float = option(0.0, "Hold out this share of the training data and evaluate on it, not on the test set.")
    model: str | None = option(None, "Model, or package.module:factory for your own.")
    personal: str | None = option(
        None, "Personal parameters, which stay on each client: comma-separated names or patterns such as 'head.*'."
    )
    num_clients: int | None = option(None, "Number of clients (m).")
    cohort_size: int | None = option(None, "Clients per round (S).")
    cohorts: str = option("fixed", "Exactly S clients, or each independently (S on average).", ("fixed", "bernoulli"))
    partition: str | None = option(
        None, "How samples are divided among clients.", ("dirichlet", "iid", "pathological", "pachinko", "natural")
    )
    concentration: float | None = option(None, "Dirichlet concentration: lower is more heterogeneous.")
    fine_concentration: float = option(10.0, "For pachinko: Dirichlet concentration of the classes within a group.")
    refill: bool = option(False, "For dirichlet: reuse samples of an exhausted class, as in the authors' simulator.")
    classes_per_client: int = option(2, "For pathological: classes per client.")
    size_spread: float = option(0.0, "Sigma of the log-normal distribution of client sizes; 0 makes them equal.")
    batch_size: int | None = option(None, "Samples per local step.")
    local_epochs: int | None = option(None, "Passes over a client's data per round.")
    local_steps: int | None = option(None, "Local steps per round, instead of epochs.")
    lr: float | None = option(None, "Client learning rate (eta_l).")
    lr_decay: float | None = option(None, "Factor on the learning rate after each round.")
    warmup: int = option(0, "Rounds of linear learning-rate warm-up.")
    debias: bool = option(False, "Divide lr by 1 - (1 - alpha)^round, for a global direction that starts at zero.")
    weights: str = option("uniform", "Weight clients equally or by number of samples.", ("uniform", "examples"))
    dropout: float = option(0.0, "Probability that a client drops out and its update is lost.")
    stragglers: float = option(0.0, "Probability that a client does only part of its local steps.")
    rounds: int = option(100, "Rounds to run (T).")
    target: float | str | None = option(
        None, "Target accuracy, or METRIC:VALUE such as test_loss:0.1; the summary says when it was reached."
    )
    stop_at_target: bool = option(False, "End the run when the target is reached.")
    patience: int | None = option(None, "End the run after this many evaluations without improvement of --best.")
    seed: int = option(0, "Seed of all random choices.")
    device: str = option("auto", "Device: cpu, cuda, cuda:1, ...; auto uses a GPU if there is one.")
    threads: int = option(1, "CPU threads; their number affects the last bits, so no machine has its own default.")
    engine: str = option("auto", "Engine; auto is stacked (vectorised) on a GPU, sequential on a CPU.", ENGINES)
    precision: str = option("auto", "Precision of the stacked engine on a GPU; auto is bf16.", PRECISIONS)
    ordered: bool = option(False, "With several processes: sum uploads in client order, bit for bit as one process.")
    messages: str = option("float32", "Compression of messages: bfloat16, int8, lean, delta=top0.05, ...")
    combiner: str = option(
        "mean",
        "Aggregation of uploads: norm-bound, norm-bound:10, trimmed-mean:0.1, median, geometric-median, krum:2, "
        "private:CLIP.",
    )
    attack: str | None = option(
        None,
        "Malicious clients and their share: sign-flip:0.3, scale:0.3:10, label-flip:0.3, a-little-is-enough:0.3.",
    )
    dtype: str = option("float32", "Data type of model and state.", tuple(DTYPES))
    best: str | None = option(
        None, "Metric that selects the best model, such as test_loss; by default the accuracy, if there is one."
    )
    checkpoint_every: int = option(10, "Rounds between checkpoints.")
    checkpoint_minutes: float | None = option(None, "Also save a checkpoint after this many minutes.")
    keep: int = option(2, "Number of checkpoints to keep.")
    tensorboard: bool = option(False, "Write TensorBoard events to the run folder.")

    def __post_init__(self) -> None:
        field_types(self)
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", str(user_path("data_dir", self.data_dir)))
        for one in fields(self):
            is_choice = one.name not in ("method", "dataset") and one.metadata.get("choices")
            if is_choice and getattr(self, one.name) is not None:
                one_of(one.name, getattr(self, one.name), one.metadata["choices"])
        check_method_name(self.method)
        check_data_name(self.dataset)
        if not is_own(self.method):  # a configuration imports nothing
            check_hyper(self.method, self.hyper)
        count("rounds", self.rounds)
        seed_number(self.seed)
        count("warmup", self.warmup, least=0)
        if self.patience is not None:
            count("patience", self.patience)
        check_threads(self.threads)
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be in [0, 1), got {self.validation}")
        if self.num_clients is not None:
            count("num_clients", self.num_clients)
        super().__post_init__()
        if self.client_test is None and (self.personal or self.personal_steps):
            what = "--personal" if self.personal else "--personal-steps"
            raise ValueError(f"{what} needs the clients' test samples: add --client-test 0.2, say")
        if self.personal and self.validation:
            raise ValueError("with --personal there is no single model: use --client-test, not --validation")
        full = self.resolved()
        federation.check_clients(self, full)
        if self.target is not None:
            Target.parse(self.target)
        if self.stop_at_target and self.target is None:
            raise ValueError("stop_at_target needs a target")
        if self.attack is not None:
            as_attack(self.attack)
        if not is_own(self.method):
            full.build_messages()
        full.build_schedule()
        if self.model is not None:
            check_model_name(self.model)

    def resolved(self) -> Experiment:
        """The same run with all defaults filled in. It is made once, and so are its method and its messages."""
        return self._full

    @cached_property
    def _full(self) -> Experiment:
        suited = federation.suited_clients(self, preset(self.dataset, self.method))
        defaults = {} if is_own(self.method) else hyper_parameters(self.method)
        hyper = {**defaults, **suited.pop("hyper"), **self.hyper}
        missing = {name: value for name, value in suited.items() if getattr(self, name) is None and value is not None}
        changed = {**missing, "hyper": hyper, "messages": in_full(self.messages)}
        changed["noise_multiplier"] = solved_noise(
            self.combiner,
            self,
            num_clients=self.num_clients or suited["num_clients"],
            cohort_size=self.cohort_size or suited["cohort_size"],
            by_coins=self.cohorts == "bernoulli",
            rounds=self.rounds,
        )
        full = copy.copy(self)  # not `replace`: the defaults need not be checked again
        for name, value in changed.items():
            object.__setattr__(full, name, value)
        full.__dict__["_full"] = full
        return full

    @cached_property
    def _method(self) -> FederatedMethod:
        return method_factory(self.method)(**self.hyper).with_combiner(combiner_of(self.combiner, self))

    @cached_property
    def _messages(self) -> Messages:
        return resolve_messages(self.messages, self.build_method())

    def build_method(self) -> FederatedMethod:
        """The method with its hyperparameters."""
        return self.resolved()._method

    def build_messages(self) -> Messages:
        """The compression rules."""
        return self.resolved()._messages

    def build_schedule(self) -> Schedule:
        """The clients' learning rate in each round."""
        return federation.schedule_of(self.resolved())

    def build_partition(self, source: Source | None) -> Partition:
        """The partition of the samples among clients."""
        return federation.partition_of(self.resolved(), source)

    def build_cohorts(self, source: Source) -> Cohorts:
        """The sampling of cohorts."""
        return federation.cohorts_of(self.resolved(), source)

    def load_data(self, progress: Progress | None = None) -> Source:
        """The data set."""
        augment = self.resolved().augment
        assert augment is not None
        source = load_dataset(
            self.dataset,
            self.data_dir,
            augment=augment,
            progress=progress,
            **{name: getattr(self, name) for name in ("image_size", "crop_size", "standardize")},
        )
        return source.holding_out(self.validation) if self.validation else source

    def build_model(self, source: Source) -> Callable[[], nn.Module]:
        """A function that makes the model for this data."""
        name = self.resolved().model
        assert name is not None
        factory = model_factory(name)
        if ":" in name:
            return factory
        if source.is_text and name not in TEXT_MODELS:
            others = " or ".join((", ".join(TEXT_MODELS[:-1]), TEXT_MODELS[-1]))
            raise ValueError(f"the samples of {self.dataset} are text, which {name} cannot read: take {others}")
        source = source.with_shapes()
        return partial(factory, source.num_classes, input_shape=source.input_shape)

    def run(
        self, callbacks: Sequence[Callback] = (), source: Source | None = None, out: str | Path | None = None
    ) -> Result:
        """Run it; `out` is the run folder, and a run found there is resumed."""
        data = source = source or self.load_data()
        full: Experiment = federation.with_known_cohort(self, lambda: data).resolved()
        assert full.batch_size is not None
        trackers = [TensorBoard(user_path("out", out) / "events")] if self.tensorboard and out is not None else []
        return simulate(
            full.build_model(source),
            source.train,
            **full.build_evaluation(source),
            method=full.build_method(),
            partition=full.build_partition(source),
            rounds=full.rounds,
            cohorts=full.build_cohorts(source),
            batch_size=full.batch_size,
            local_epochs=full.local_epochs if full.local_steps is None else None,
            local_steps=full.local_steps,
            lr=full.build_schedule(),
            weights=full.weights,
            unreliable=Unreliable(dropout=full.dropout, stragglers=full.stragglers),
            **{one.name: getattr(full, one.name) for one in fields(EvaluationOptions)},
            personal=full.personal or (),
            best=full.best,
            **full.build_stop(),
            patience=full.patience,
            callbacks=[*callbacks, *trackers],
            progress=False,  # the caller shows progress in its own way
            out=None if out is None else full.folder(out, source),
            engine=full.engine,
            precision=full.precision,
            ordered=full.ordered,
            messages=full.build_messages(),
            attack=full.attack,
            seed=full.seed,
            device=full.device,
            threads=full.threads,
            dtype=DTYPES[full.dtype],
        )

    def build_evaluation(self, source: Source) -> dict[str, Any]:
        """The data to evaluate on, as arguments of `simulate`."""
        # Tuning on a validation split must not see the test set; with personal parameters there is no single model.
        test = None if self.validation or self.personal else source.test
        return {name: data for name, data in (("test", test), ("validation", source.validation)) if data is not None}

    def build_stop(self) -> dict[str, Any]:
        """The target that ends the run, as an argument of `simulate`."""
        return stop_by(self.target) if self.target is not None and self.stop_at_target else {}

    def folder(self, path: str | Path, source: Source) -> RunFolder:
        """The folder of this run, which refuses other data than these."""
        from fedlada.runs.folder import RunFolder

        return RunFolder(
            path,
            {**self.to_json(), **self._parts()},
            checkpoint_every=self.checkpoint_every,
            checkpoint_minutes=self.checkpoint_minutes,
            keep=self.keep,
            digests=partial(run_digests, source, self.build_evaluation(source)),
            upgrade=lambda stored: {
                **json.loads(json.dumps(Experiment.from_json(stored).to_json())),
                **identifying_fields(stored),
            },
        )

    def _parts(self) -> dict[str, Any]:
        """The parts of a user's method: its name does not identify them, and its code may change."""
        return {PARTS: describe_method(self.build_method())} if is_own(self.method) else {}

    def to_json(self) -> dict[str, Any]:
        """Everything needed to run it again, as plain values."""
        from fedlada import __version__

        return {"format": CONFIG_FORMAT, "fedlada": __version__, **asdict(self.resolved())}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], **changes: Any) -> Experiment:
        """The stored run, with some fields changed."""
        experiment = cls(**{**experiment_fields(values, [one.name for one in fields(cls)]), **changes})
        known = () if is_own(experiment.method) else hyper_parameters(experiment.method)
        unnamed = next((name for name in known if name not in experiment.hyper), None)
        if "format" in values and unnamed:  # the current defaults of a data set must not change a stored run
            raise ValueError(f"the configuration does not name {unnamed}: add its value to hyper, or start a new run")
        return experiment

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """The run stored in a `config.json`."""
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give its config.json, {path / 'config.json'}")
        values = read_object(path, f"the configuration {path}", f"there is no configuration {path}")
        try:
            return cls.from_json(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
