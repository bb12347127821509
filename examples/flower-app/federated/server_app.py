"""What the server runs. Where settings are fixed, `fedlada.flower.server_app(...)` is enough: here they may vary."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from federated.task import make_method, make_model
from fedlada.data import load_digits
from fedlada.flower import MethodStrategy, Replies

app = ServerApp()


def settings(config) -> dict:
    """What the simulation that must give the same weights is told too."""
    has_its_own = str(config["method"]) in ("fedexp", "fednova")
    return {
        "method": make_method(config),
        "cohort_size": int(config["cohort-size"]),
        "local_epochs": 2,
        "batch_size": 10,
        "seed": int(config["seed"]),
        "device": "cpu",
        # The default here: a node that sends too much is scaled down. Two methods have combiners of their own.
        "combiner": None if has_its_own else "norm-bound",
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    node_ids = str(config["node-ids"])  # of client 0, 1, ..., as `flwr supernode register` gave them
    strategy = MethodStrategy(
        make_model,
        num_clients=int(config["num-clients"]),
        node_ids=dict(enumerate(map(int, node_ids.split(",")))) if node_ids else None,
        test=load_digits()[1],
        replies=Replies(minimum=int(config["minimum"]), time_limit=float(config["time-limit"])),
        eval_clients_every=int(config["eval-clients-every"]) or None,
        **settings(config),
    )
    strategy.run(grid, int(config["rounds"]), out=str(config["out"]) or None, checkpoint_every=1)
