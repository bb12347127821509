"""What each node runs."""

from federated.task import load_data, make_method, make_model
from fedlada.flower import client_app

app = client_app(make_model, load_data, method=lambda context: make_method(context.run_config))
