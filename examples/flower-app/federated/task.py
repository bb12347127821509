"""The task: the model, the method, and the data of each node. Replace these by your own."""

from flwr.app import Context

import fedlada
from fedlada.data import Dirichlet, load_digits


def make_model():
    return fedlada.models.cnn_gn(num_classes=10, input_shape=(1, 8, 8))


def make_method(config) -> str | fedlada.FederatedMethod:
    """By its name in the run config, which server and nodes share: with what is suggested for any data."""
    return str(config["method"])  # or fedlada.recipes.fedlada(alpha=0.1), with a rate of your own on the server


def shares(num_clients: int):
    """The sample indices of each client: here one data set is divided, on real nodes each has its own."""
    (_, labels), _ = load_digits()
    return Dirichlet(num_clients=num_clients, concentration=0.5).assign(labels, 0)


def load_data(context: Context):
    (x, y), _ = load_digits()
    own = shares(int(context.run_config["num-clients"]))[int(context.node_config["partition-id"])]
    return x[own], y[own]
