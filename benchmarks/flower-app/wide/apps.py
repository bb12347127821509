"""Both sides of the app."""

import numpy as np
from flwr.serverapp import ServerApp
from torch import nn

from fedlada.flower import MethodStrategy, Replies, client_app
from fedlada.methods.recipes import fedlada

SETTINGS = {"batch_size": 4, "local_steps": 1, "lr": 0.01, "device": "cpu"}


def make_model():
    return nn.Linear(1000, 4000)  # 4,004,000 parameters: 16 MB a vector


def load(context):
    random = np.random.default_rng(context.node_config["partition-id"])
    return random.standard_normal((4, 1000)).astype(np.float32), random.integers(0, 4000, 4)


def strategy_of(num_clients):
    replies = Replies(time_limit=400.0)
    return MethodStrategy(make_model, fedlada(), num_clients=num_clients, replies=replies, **SETTINGS)


client = client_app(make_model, load, method=fedlada(), device="cpu")
server = ServerApp()


@server.main()
def main(grid, context):
    config = context.run_config
    strategy_of(config["num-clients"]).run(grid, config["rounds"], out=config["out"])
