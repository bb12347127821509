"""The floor: the loop that one writes by hand in plain PyTorch."""

import task  # first, because it notes the start time and limits the threads of OpenMP

# isort: split
import torch


def run(work: task.Task, rounds: int, clock: task.RoundClock) -> torch.nn.Module:
    """Run FedAvg and return the global model."""
    clients = [work.client(number) for number in range(work.num_clients)]
    model = work.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    parameters = [parameter.detach() for parameter in model.parameters()]  # share the model's memory
    current = [parameter.clone() for parameter in parameters]
    mean = [torch.empty_like(parameter) for parameter in parameters]
    clock.tick()
    for cohort in work.draw_cohorts(rounds):
        _fill(mean, 0.0)
        for client in cohort:
            _copy(current, parameters)
            work.train_locally(model, optimizer, clients[client])
            # The mean of the local models is the global model plus the mean of the deltas.
            for total, parameter in zip(mean, parameters, strict=True):
                total.add_(parameter, alpha=1 / len(cohort))
        current, mean = mean, current
        clock.tick()
    _copy(current, parameters)
    return model


def _fill(tensors: list[torch.Tensor], value: float) -> None:
    for tensor in tensors:
        tensor.fill_(value)


def _copy(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def main() -> None:
    """Run the benchmark."""
    parser = task.argument_parser()
    parser.add_argument(
        "--native-kernels", action="store_true", help="without oneDNN, which is slow on some processors"
    )
    args = parser.parse_args()
    task.set_threads(args.threads)
    torch.backends.mkldnn.enabled = not args.native_kernels
    clock = task.RoundClock()
    model = run(task.TASKS[args.task], args.rounds, clock)
    task.print_result("handwritten", torch.__version__, args, clock, model)


if __name__ == "__main__":
    main()
