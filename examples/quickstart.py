"""Your own model on your own data, with FedLADA and FedAvg: one call each.

python examples/quickstart.py
"""

import torch
from torch import nn

import fedlada
from fedlada.data import Dirichlet, load_digits

# Any pair of arrays and any nn.Module will do.
train, test = load_digits()
torch.manual_seed(0)  # of the first weights
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

for name in ("fedavg", "fedlada"):
    result = fedlada.simulate(
        model,
        train,
        test=test,
        method=name,  # with what is suggested for any data; or fedlada.recipes.fedlada(alpha=0.1) and lr=... of yours
        partition=Dirichlet(num_clients=50, concentration=0.3),  # non-IID clients
        cohort_size=5,  # of which five take part in a round
        rounds=40,
        local_epochs=5,
        batch_size=10,
        seed=0,
    )
    print(f"{name}: accuracy {result.history.best():.3f}, 90 % in round {result.history.rounds_to(0.9)}")

torch.save(result.model.state_dict(), "fedlada-digits.pt")
result.plot().savefig("fedlada-digits.png")
