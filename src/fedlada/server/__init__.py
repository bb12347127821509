"""What the server does with the mean of the clients' deltas."""

from fedlada.server.adam import Adam
from fedlada.server.optimizer import ServerOptimizer
from fedlada.server.sgd import SGD

__all__ = ["SGD", "Adam", "ServerOptimizer"]
