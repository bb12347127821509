"""What each model gives for a fixed input, made again by `python -m golden.first_forward`, from the folder `tests`."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fedlada.models import MODELS

STORED = Path(__file__).with_name("first_forward.json")
INPUTS = {"cnn-gn": (1, 8, 8), "mlp": (1, 8, 8), "text-transformer": (32,)}


def measure(name: str) -> dict:
    """Parameters and outputs of a freshly made model, in float64, so that every machine agrees."""
    shape = INPUTS.get(name, (3, 32, 32))
    torch.manual_seed(0)
    model = MODELS[name](10, input_shape=shape)
    random = torch.Generator().manual_seed(1)
    if len(shape) == 1:
        x = torch.randint(0, 128, (2, *shape), generator=random)
    else:
        x = torch.randn(2, *shape, generator=random).double()
    with torch.no_grad():
        outputs = model.double()(x)
    return {
        "input": list(shape),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tensors": {name: list(one.shape) for name, one in model.named_parameters()},
        "outputs": outputs.tolist(),
    }


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: measure(name) for name in MODELS}, indent=1) + "\n")
