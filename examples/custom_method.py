"""A new method in about ten lines: FedAvg whose clients take sign steps, and the same amended as FedLADA does it.

python examples/custom_method.py
"""

from dataclasses import dataclass

import fedlada
from fedlada.data import Dirichlet, load_digits
from fedlada.methods.local import TowardGlobalDirection


@dataclass(frozen=True, kw_only=True)
class SignMomentum(fedlada.LocalTransform):
    """The sign of an exponential average of gradients (as signSGD with momentum, or Lion without its weight decay)."""

    beta: float = 0.9

    def begin(self, shared, kept, like):
        return {"m": like * 0}

    def apply(self, update, local, step):
        m = self.beta * local["m"] + (1 - self.beta) * update
        return m.sign(), {"m": m}


def sign_method(*amendment):
    """The order in the chain is the science: what comes first sees the raw gradient."""
    return fedlada.FederatedMethod(name="sign", local=(SignMomentum(), *amendment), server=fedlada.server.SGD())


train, test = load_digits()
for name, method in {
    "sign": sign_method(),
    "sign, amended": sign_method(TowardGlobalDirection(alpha=0.3)),
}.items():
    result = fedlada.simulate(
        lambda: fedlada.models.mlp(10),
        train,
        test=test,
        method=method,
        partition=Dirichlet(num_clients=50, concentration=0.3),
        cohort_size=5,
        rounds=40,
        local_epochs=5,
        batch_size=10,
        lr=0.005,
    )
    print(f"{name}: accuracy {result.history.best():.3f}, {method.num_vectors()} vectors down and up")
