"""Names of torch's own that another version may lack: what needs them goes on without."""

from __future__ import annotations

from importlib import reload

import pytest
import torch

import fedlada
from fedlada.engines import checkpointing, quiet
from tasks import blobs, small_net


class Scaled(torch.nn.Sequential):
    """A parameter outside a layer: stacked through vmap."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * super().forward(x)


@pytest.mark.parametrize(
    ("module", "place", "name"),
    [
        (checkpointing, torch._C._autograd, "_top_saved_tensors_default_hooks"),
        (quiet, torch._C._functorch, "_set_vmap_fallback_warning_enabled"),
    ],
)
def test_a_torch_without_it_trains_the_same(monkeypatch, module, place, name):
    def params():
        model = Scaled(small_net(), torch.nn.Dropout(0.1))
        settings = {"method": "fedavg", "rounds": 1, "engine": "stacked", "lr": 0.1}
        result = fedlada.simulate(model, blobs(), **settings)
        assert result.engine == "stacked"
        return result.server.params

    expected = params()
    with monkeypatch.context() as without:
        without.delattr(place, name)
        reload(module)
        assert torch.equal(params(), expected)
    reload(module)
