"""The ServerApp and the ClientApp of the Flower worker.

They live in a module of their own because ray then sends the client's function by its name. Functions of a
script are sent as code with every message, and a cache in such a script would be lost between messages.
"""

import argparse
import functools

import task
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client_app = ClientApp()


@functools.lru_cache(maxsize=1)  # one model and optimizer in each process, as in the handwritten loop
def _model_and_optimizer(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = task.TASKS[name].make_model()
    return model, torch.optim.SGD(model.parameters(), lr=task.TASKS[name].learning_rate)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the data of this client and reply with the result."""
    config = message.content["config"]
    task.set_threads(int(config["threads"]))
    work = task.TASKS[str(config["task"])]
    samples = work.client(int(context.node_config["partition-id"]))
    model, optimizer = _model_and_optimizer(str(config["task"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    work.train_locally(model, optimizer, samples)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(samples.labels)}),
        }
    )
    return Message(content=content, reply_to=message)


def make_server_app(args: argparse.Namespace, clock: task.RoundClock, model: torch.nn.Module) -> ServerApp:
    """Return a ServerApp that trains the given model in place."""
    server_app = ServerApp()
    work = task.TASKS[args.task]

    def take_stamp(_server_round: int, _arrays: ArrayRecord) -> None:
        """Take the time stamp: the strategy calls this before the first round and after every round."""
        clock.tick()

    @server_app.main()
    def main(grid: Grid, _context: Context) -> None:
        """Run FedAvg; all clients have the same number of samples, hence the mean is uniform."""
        strategy = FedAvg(
            fraction_train=work.clients_per_round / work.num_clients,
            fraction_evaluate=0.0,
            # The strategy may start before the nodes are registered, when a fraction of them is nothing.
            min_train_nodes=work.clients_per_round,
            min_available_nodes=work.num_clients,
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=args.rounds,
            train_config=ConfigRecord({"threads": args.threads, "task": args.task}),
            evaluate_fn=take_stamp,
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())

    return server_app
