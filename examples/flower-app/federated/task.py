"""The task: the model, the method, and the data of each node. Replace these by your own."""

from flwr.app import Context

from fedlada import FederatedMethod, models, recipes
from fedlada.data import Dirichlet, load_digits

LR = {"fedlada": 0.01, "localadam": 0.003}  # the others: 0.05


def make_model():
    return models.cnn_gn(num_classes=10, input_shape=(1, 8, 8))


def make_method(context: Context) -> FederatedMethod:
    """The method is the same on the server and on the nodes: its name is in the run config."""
    name = str(context.run_config["method"])
    return recipes.fedlada(alpha=0.3, v_init=1e-8) if name == "fedlada" else recipes.RECIPES[name]()


def shares(num_clients: int):
    """The sample numbers of each client: here one data set is divided, on real nodes each has its own."""
    (_, labels), _ = load_digits()
    return Dirichlet(num_clients=num_clients, concentration=0.5).assign(labels, 0)


def load_data(context: Context):
    (x, y), _ = load_digits()
    own = shares(int(context.run_config["num-clients"]))[int(context.node_config["partition-id"])]
    return x[own], y[own]
