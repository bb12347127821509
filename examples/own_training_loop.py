"""A method's local chain as a torch optimizer, in a training loop of one's own; here with a scheduler and autocast.

python examples/own_training_loop.py
"""

import torch
from torch import nn

import fedlada
from fedlada.data import Dirichlet, load_digits

NUM_ROUNDS, NUM_STEPS = 30, 25

device = "cuda" if torch.cuda.is_available() else "cpu"
(x, y), (x_test, y_test) = [[torch.from_numpy(array).to(device) for array in part] for part in load_digits()]
clients = Dirichlet(num_clients=20, concentration=0.3).assign(y.cpu().numpy(), seed=0)
torch.manual_seed(0)
model = fedlada.models.mlp(10).to(device)

suited = fedlada.suggested("fedlada")
method = suited["method"]  # or fedlada.recipes.fedlada(alpha=0.1) and a rate of your own
optimizer = fedlada.LocalOptimizer(model.parameters(), method, lr=suited["lr"])
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=suited["lr_decay"])
server = method.init(optimizer.vector)
kept = {}  # each client's private memory, for methods that have one

for _ in range(NUM_ROUNDS):
    uploads = []
    cohort = torch.randperm(len(clients))[:5].tolist()
    for client in cohort:
        optimizer.begin(server.broadcast, kept.get(client))  # the model is now the server's
        for _ in range(NUM_STEPS):
            rows = clients[client][torch.randint(len(clients[client]), (10,)).numpy()]
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        upload, kept[client] = optimizer.finish()
        uploads.append(upload)
    server = method.aggregate(
        server,
        method.combine(uploads),  # their mean, unless the method combines in another way, as FedExP and FedNova do
        lr=optimizer.mean_lr,
        num_steps=NUM_STEPS,
        participation=len(cohort) / len(clients),
    )
    scheduler.step()

optimizer.begin(server.broadcast)  # load the final parameters
accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean()
print(f"accuracy after {NUM_ROUNDS} rounds: {accuracy:.3f}")
