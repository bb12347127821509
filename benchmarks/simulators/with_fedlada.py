"""The same work with fedlada's sequential engine."""

import task  # first, because it notes the start time and limits the threads of OpenMP

# isort: split
import fedlada


def main() -> None:
    """Run the benchmark."""
    args = task.argument_parser().parse_args()
    task.set_threads(args.threads)
    clients, _ = task.load_data()
    images = task.torch.cat([samples.images for samples in clients])
    labels = task.torch.cat([samples.labels for samples in clients])
    size = task.SAMPLES_PER_CLIENT
    clock = task.RoundClock()

    class Clock(fedlada.Observer):
        def on_start(self, simulation: fedlada.Simulation, num_rounds: int) -> None:
            clock.tick()

        def on_round(self, simulation: fedlada.Simulation, row: dict[str, object]) -> None:
            clock.tick()

    result = fedlada.simulate(
        task.make_model(),
        (images, labels),
        method=fedlada.recipes.fedavg(),
        partition=[range(client * size, (client + 1) * size) for client in range(task.NUM_CLIENTS)],
        cohorts=fedlada.cohorts.Scheduled(task.draw_cohorts(args.rounds)),
        batch_size=task.BATCH_SIZE,
        local_epochs=task.LOCAL_EPOCHS,
        lr=task.LEARNING_RATE,
        rounds=args.rounds,
        callbacks=[Clock()],
        device="cpu",
    )
    task.print_result("fedlada", fedlada.__version__, args, clock, task.test_accuracy(result.model))


if __name__ == "__main__":
    main()
