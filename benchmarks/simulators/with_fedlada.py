"""The same work with fedlada's sequential engine."""

import task  # first, because it notes the start time and limits the threads of OpenMP

# isort: split
import fedlada


def main() -> None:
    """Run the benchmark."""
    args = task.argument_parser().parse_args()
    task.set_threads(args.threads)
    work = task.TASKS[args.task]
    clock = task.RoundClock()

    class Clock(fedlada.Observer):
        def on_start(self, simulation: fedlada.Simulation, num_rounds: int) -> None:
            clock.tick()

        def on_round(self, simulation: fedlada.Simulation, row: dict[str, object]) -> None:
            clock.tick()

    result = fedlada.simulate(
        work.make_model(),
        tuple(work.train_samples()),
        method=fedlada.recipes.fedavg(),
        partition=[range(place.start, place.stop) for place in map(work.place_of, range(work.num_clients))],
        cohorts=fedlada.cohorts.Scheduled(work.draw_cohorts(args.rounds)),
        batch_size=work.batch_size,
        local_epochs=work.local_epochs,
        lr=work.learning_rate,
        rounds=args.rounds,
        callbacks=[Clock()],
        device="cpu",
        threads=args.threads,
    )
    if clock.stamps:  # under torchrun the first process alone calls observers
        task.print_result("fedlada", fedlada.__version__, args, clock, result.model)


if __name__ == "__main__":
    main()
