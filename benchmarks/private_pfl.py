"""Apple's pfl-research on CIFAR-10 with central differential privacy, beside the results of `private.py`.

    python benchmarks/private_pfl.py run --data-dir data --out runs/private-pfl --device cuda --epsilon 2 --lr 0.1
    python benchmarks/private_pfl.py pack --out runs/private-pfl
    python benchmarks/private.py table --write

pfl does the work: its simulator, FedAvg, clipping, Gaussian noise and accountant, in the setting of its own benchmark.
The images, their normalisation, the users, the first weights and the rounds that are evaluated are those of
`private.py`. These things differ from our runs, because they are pfl's way:

- A cohort is drawn with replacement, so that a user can be in it twice; ours is drawn without.
- A user's images always come in the same order; ours are shuffled in each round.
- Precision is torch's default, float32 with TF32 in convolutions; the stacked engine reads parameters as bfloat16.
- The noise multiplier is that of pfl's accountant.

pfl's own script reads the three colour planes of CIFAR-10 as if they were interleaved, so that its images are
scrambled; `--layout pfl` does the same. Its README runs 3000 rounds under privacy, its configuration 1500, as here.

A run writes its JSON after each evaluation, and goes on from its last evaluation where it is started again, with other
random numbers than an unbroken run. `--trial` takes the digits and few rounds, to see that everything works.
Needs `pip install -r benchmarks/simulators/requirements-pfl.txt`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from private import CLIP, DELTA, NOISE_COHORT, PFL_ARCHIVE, POPULATION, ROUNDS
from torch import Tensor, nn

from fedlada.data.images import Images
from fedlada.data.samples import as_samples
from fedlada.data.source import Source
from fedlada.data.sources import load_dataset
from fedlada.federation.partition import IID
from fedlada.federation.randomness import torch_seed
from fedlada.models import pfl_cnn
from fedlada.runs.files import write_atomic, write_json
from fedlada.training.resolve import resolve_model

# The setting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Everything that decides a run."""

    epsilon: float | None
    """None: without privacy, without clipping too."""
    lr: float
    seed: int
    layout: str = "planes"
    dataset: str = "cifar10"
    users: int = 1000
    cohort: int = 50
    batch: int = 10
    rounds: int = ROUNDS
    clip: float = CLIP
    delta: float = DELTA
    noise_cohort: int = NOISE_COHORT
    population: int = POPULATION

    @property
    def eval_every(self) -> int:
        return max(1, self.rounds // 30)

    @property
    def name(self) -> str:
        privacy = "no-privacy" if self.epsilon is None else f"epsilon-{self.epsilon:g}"
        return f"{privacy}_lr-{self.lr:g}_seed-{self.seed}" + ("_pfl-layout" * (self.layout == "pfl"))


SMALL: dict[str, Any] = {"dataset": "digits", "users": 20, "cohort": 10, "rounds": 60}


@dataclass(frozen=True, eq=False)
class Data:
    """The images of each user and of the test set, on the device."""

    users: Sequence[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    shape: tuple[int, ...]


def read_data(setting: Setting, data_dir: str, device: torch.device) -> Data:
    source = load_dataset(setting.dataset, None if setting.dataset == "digits" else data_dir)
    if setting.layout == "pfl":
        source = misread(source)
    train, test = (on_device(data, device) for data in (source.train, source.test))
    rows = IID(num_clients=setting.users).assign(source.labels("train"), setting.seed)
    users = [tuple(part[torch.from_numpy(one).to(device)] for part in train) for one in rows]
    return Data(users, test, tuple(source.input_shape))


def on_device(data: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    samples = as_samples(data, device, torch.float32)
    return samples.batch(np.arange(len(samples)))


def misread(source: Source) -> Source:
    """The images as pfl's benchmark reads them, normalised by the statistics of what it takes for channels."""
    train, test = (np.moveaxis(data.x.reshape(-1, 32, 32, 3), 3, 1).copy() for data in (source.train, source.test))
    images = Images(train, source.train.y)
    return replace(source, train=images, test=Images(test, source.test.y, images.mean, images.std))


# pfl's parts ----------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of a training batch, with dropout."""
        self.train()
        return nn.functional.cross_entropy(self.network(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """The accuracy of a batch, without dropout."""
        from pfl.metrics import Weighted

        self.eval()
        correct = (self.network(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(correct, len(labels))}


TOLD = {
    "fraction of clipped norms": "clipped",
    "norm before clipping": "norm",
    "DP noise std. dev.": "noise_on_the_sum",
}
"""pfl's metrics of a round's cohort that a row has, by parts of their names."""


class Watch:
    """Evaluates the model and writes the record and the weights; a callback by pfl's protocol."""

    def __init__(self, path: Path, record: dict[str, Any], setting: Setting, test: Any) -> None:
        self.path, self.record, self.setting, self.test = path, record, setting, test
        self.done = rounds_in(record)
        """Rounds made before pfl began to count."""
        self.before = record["seconds"]
        self.begun = time.perf_counter()

    def on_train_begin(self, *, model: Any) -> Any:
        from pfl.metrics import Metrics

        self.begun = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """Evaluate where it is due; never stop."""
        from pfl.metrics import Metrics

        round = self.done + central_iteration + 1
        if round % self.setting.eval_every == 0 or round == self.setting.rounds:
            self.evaluate(round, model, aggregate_metrics.to_simple_dict())
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        pass

    def evaluate(self, round: int, model: Any, told: Mapping[Any, float]) -> None:
        from pfl.hyperparam import NNEvalHyperParams

        measured = model.evaluate(self.test, eval_params=NNEvalHyperParams(local_batch_size=1000))
        (accuracy,) = measured.to_simple_dict().values()
        found = {name: value for metric, value in told.items() for part, name in TOLD.items() if part in str(metric)}
        row = {"round": round, "test_accuracy": accuracy, **found}
        self.record["rows"].append(row)
        self.record["seconds"] = self.before + time.perf_counter() - self.begun
        self.record["seconds_per_round"] = self.record["seconds"] / round
        saved = {"record": json.dumps(self.record), "weights": model.pytorch_model.state_dict()}
        write_atomic(weights_of(self.path), lambda beside: torch.save(saved, beside))
        write_json(self.path, self.record)
        print(f"{self.setting.name}: {row}, {self.record['seconds_per_round']:.2f} s a round", flush=True)


def postprocessors(setting: Setting) -> tuple[list[Any], float | None]:
    """What pfl does with each update and with their sum, and the noise multiplier that its accountant finds."""
    from pfl.aggregate.weighting import WeightByUser
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant

    if setting.epsilon is None:
        return [WeightByUser()], None
    accountant = PLDPrivacyAccountant(
        num_compositions=setting.rounds,
        sampling_probability=setting.noise_cohort / setting.population,
        mechanism="gaussian",
        epsilon=setting.epsilon,
        delta=setting.delta,
        noise_scale=setting.cohort / setting.noise_cohort,
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant, setting.clip)
    return [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)], accountant.noise_parameter


def train(setting: Setting, data: Data, network: nn.Module, steps: list[Any], watch: Watch) -> None:
    """Run pfl's FedAvg for the rounds that are left."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    seed = torch_seed(setting.seed, "pfl", watch.done)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - pfl's objects take their seeds from the global generator
    torch.manual_seed(seed)
    left = setting.rounds - watch.done
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    users = FederatedDataset.from_slices(data.users, get_user_sampler("random", range(len(data.users))))
    FederatedAveraging().run(
        # pfl also evaluates on the users' own data: here in its first round only.
        NNAlgorithmParams(left, evaluation_frequency=left, train_cohort_size=setting.cohort, val_cohort_size=0),
        SimulatedBackend(training_data=users, val_data=users, postprocessors=steps),
        model,
        NNTrainHyperParams(local_learning_rate=setting.lr, local_num_epochs=1, local_batch_size=setting.batch),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )


# Runs and their files -------------------------------------------------------------------------------------------------


def new_record(setting: Setting, device: torch.device) -> dict[str, Any]:
    return {
        "setting": asdict(setting),
        "versions": {name: version(name) for name in ("pfl", "torch", "dp-accounting")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": 0.0,
        "rows": [],
    }


def rounds_in(record: dict[str, Any]) -> int:
    return int(record["rows"][-1]["round"]) if record["rows"] else 0


def weights_of(path: Path) -> Path:
    """The file with the weights of a run, and with its record as it was then."""
    return path.with_suffix(".pt")


def restore(path: Path, setting: Setting, network: nn.Module, device: torch.device) -> dict[str, Any]:
    """The record of a run that was begun, with its weights in the network; else a new record."""
    if not weights_of(path).exists():
        if path.exists():
            raise SystemExit(f"{path} has no weights beside it to go on from: remove it to begin again")
        return new_record(setting, device)
    saved = torch.load(weights_of(path), map_location=device, weights_only=True)
    record: dict[str, Any] = json.loads(saved["record"])
    if record["setting"] != asdict(setting):
        raise SystemExit(f"{path} is of a run with other settings: take another --out")
    network.load_state_dict(saved["weights"])
    return record


def run(setting: Setting, given: argparse.Namespace) -> None:
    """Make a run, or what is left of it."""
    from pfl.data.dataset import Dataset

    os.environ["PFL_PYTORCH_DEVICE"] = given.device
    device, path = torch.device(given.device), given.out / f"{setting.name}.json"
    data = read_data(setting, given.data_dir, device)
    network = Classifier(resolve_model(lambda: pfl_cnn(10, input_shape=data.shape), setting.seed, None)).to(device)
    record = restore(path, setting, network, device)
    if rounds_in(record) >= setting.rounds:
        write_json(path, record)
        print(f"{path} has all rounds")
        return
    steps, found = postprocessors(setting)
    if found is not None:
        record |= {"noise_multiplier": found, "noise_on_the_mean": found * setting.clip / setting.noise_cohort}
        print(f"{setting.name}: noise multiplier {found:.5f}", flush=True)
    train(setting, data, network, steps, Watch(path, record, setting, Dataset(data.test)))


def pack(folder: Path, archive: Path) -> None:
    """Write the records of a folder as one archive."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    write_json(archive, records)
    print(f"{archive}: {len(records)} runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "pack"))
    parser.add_argument("--out", type=Path, default=Path("runs/private-pfl"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epsilon", type=float, help="without it there is no privacy, and no clipping")
    parser.add_argument("--lr", type=float, default=0.1, help="the users' rate; pfl's is 0.1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="others than the benchmark's")
    parser.add_argument(
        "--layout", choices=("planes", "pfl"), default="planes", help="pfl: images as its script has them"
    )
    parser.add_argument("--trial", action="store_true", help="the digits and few rounds")
    parser.add_argument("--archive", type=Path, default=PFL_ARCHIVE, help="pack: the file to write")
    given = parser.parse_args()
    if given.what == "pack":
        pack(given.out, given.archive)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(given.epsilon, given.lr, given.seed, given.layout)
    if given.trial:
        setting = replace(setting, **SMALL)
    run(setting if given.rounds is None else replace(setting, rounds=given.rounds), given)


if __name__ == "__main__":
    main()
