"""The work with the simulator of Apple's pfl."""

import task  # first, because it notes the start time and limits the threads of OpenMP

# isort: split
import itertools
import os
from collections.abc import Iterator
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class AskedByPfl:
    """The two methods that pfl asks a model for."""

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        """Return the loss, the only metric; pfl computes it in the first round only."""
        return {"loss": Weighted(self.loss(images, labels).item() * len(labels), len(labels))}


class DigitsCNN(AskedByPfl, task.DigitsCNN):
    """The model of the digits, for pfl."""


class PflCNN(AskedByPfl, task.PflCNN):
    """The model of pfl's benchmark, for pfl."""


MODELS = {"digits": DigitsCNN, "pfl": PflCNN}


class ShuffledDataset(PyTorchTensorDataset):
    """A user's tensors in a new order in each epoch, because pfl's own dataset always keeps one order."""

    def iter(self, batch_size: int) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of one epoch; every tensor is indexed by the same part of a permutation."""
        for batch in torch.randperm(len(self)).split(batch_size):
            yield [tensor[batch] for tensor in self.raw_data]


class ClockCallback(TrainingProcessCallback):
    """Takes the time stamps."""

    def __init__(self, clock: task.RoundClock) -> None:
        self._clock = clock

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Take the stamp before the first round."""
        self._clock.tick()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Take the stamp after a round, and do not stop."""
        self._clock.tick()
        return False, Metrics()


def make_dataset(work: task.Task, rounds: int) -> FederatedDataset:
    """Return the clients' data, with the same cohorts as the handwritten loop.

    Two processes draw two users at a time: of a cohort of odd size one is drawn and not used, and some come again.
    """
    datasets = [ShuffledDataset(tuple(work.client(i)), user_id=str(i)) for i in range(work.num_clients)]
    users = itertools.cycle(itertools.chain.from_iterable(work.draw_cohorts(rounds)))
    return FederatedDataset(datasets.__getitem__, users.__next__)


def run(name: str, rounds: int, clock: task.RoundClock) -> torch.nn.Module:
    """Run FedAvg and return the global model."""
    work = task.TASKS[name]
    module = work.make_model(MODELS[name])
    # A server step of plain SGD with rate 1 adds the mean of the deltas to the parameters.
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    dataset = make_dataset(work, rounds)
    algorithm_params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds,  # pfl always evaluates in the first round, which is not timed
        train_cohort_size=work.clients_per_round,
        val_cohort_size=0,
    )
    train_params = NNTrainHyperParams(
        local_batch_size=work.batch_size,
        local_num_epochs=work.local_epochs,
        local_learning_rate=work.learning_rate,
    )
    FederatedAveraging().run(
        algorithm_params,
        SimulatedBackend(training_data=dataset, val_data=dataset),
        model,
        train_params,
        callbacks=[ClockCallback(clock)],
        send_metrics_to_platform=False,  # it would print them, which the others do not do
    )
    return module


def main() -> None:
    """Run the benchmark."""
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # otherwise pfl would take a GPU where there is one
    args = task.argument_parser().parse_args()
    task.set_threads(args.threads)
    clock = task.RoundClock()
    module = run(args.task, args.rounds, clock)
    if os.environ.get("RANK", "0") == "0":
        task.print_result("pfl", version("pfl"), args, clock, module)


if __name__ == "__main__":
    main()
