"""The work with Flower's simulation engine, which runs the clients in actors of ray."""

import task  # first, because it notes the start time and limits the threads of OpenMP

# isort: split
import argparse
import os
import tempfile
from importlib.metadata import version

import torch

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def parse_arguments() -> argparse.Namespace:
    """Return the arguments."""
    parser = task.argument_parser()
    parser.add_argument("--actors", type=int, default=1, help="processes that train clients at the same time")
    return parser.parse_args()


def backend_config(actors: int, temporary: str) -> dict[str, dict[str, object]]:
    """Return a configuration that makes ray start the given number of actors, on 127.0.0.1 only."""
    return {
        "init_args": {
            "address": "local",
            "num_cpus": actors,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": temporary,
        },
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }


def run(args: argparse.Namespace, clock: task.RoundClock, temporary: str) -> torch.nn.Module:
    """Run FedAvg and return the global model."""
    # Imported here because Flower reads its environment variables when it is imported.
    from flower_apps import client_app, make_server_app
    from flwr.simulation import run_simulation

    work = task.TASKS[args.task]
    model = work.make_model()
    run_simulation(
        server_app=make_server_app(args, clock, model),
        client_app=client_app,
        num_supernodes=work.num_clients,
        backend_config=backend_config(args.actors, temporary),
    )
    return model


def main() -> None:
    """Run the benchmark."""
    args = parse_arguments()
    task.set_threads(args.threads)
    clock = task.RoundClock()
    with tempfile.TemporaryDirectory(prefix="flower", ignore_cleanup_errors=True) as temporary:
        os.environ.update(SETTINGS, FLWR_HOME=temporary)
        model = run(args, clock, temporary)
    name = f"flower ({args.actors} actor{'s' if args.actors > 1 else ''})"
    task.print_result(name, version("flwr"), args, clock, model)


if __name__ == "__main__":
    main()
