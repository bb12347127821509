"""What each model gives for fixed parameters and input; made again by `python -m golden.first_forward` in `tests`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from fedlada.federation.randomness import bits, uniform
from fedlada.models import MODELS

STORED = Path(__file__).with_name("first_forward.json")
INPUTS = {
    "cnn-gn": (1, 8, 8),
    "mlp": (1, 8, 8),
    "text-transformer": (32,),
    "char-transformer": (16,),
    "char-lstm": (16,),
}


def numbers(purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Uniform in [-0.5, 0.5), the same on every machine, as torch's own generators are not."""
    drawn = uniform(bits(0, purpose), math.prod(shape)) - 0.5
    return torch.from_numpy(drawn).reshape(shape)


def measure(name: str) -> dict:
    """Shapes and outputs of a model with fixed parameters, in float64."""
    shape = INPUTS.get(name, (3, 32, 32))
    model = MODELS[name](10, input_shape=shape).double().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            fan_in = max(1, parameter[0].numel())
            parameter.copy_(numbers(parameter_name, tuple(parameter.shape)) * 3 / fan_in**0.5)
        x = 2 * numbers("input", (2, *shape))
        outputs = model((x.abs() * 100).long() if len(shape) == 1 else x)
    return {
        "input": list(shape),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tensors": {name: list(one.shape) for name, one in model.named_parameters()},
        "outputs": outputs.tolist(),
    }


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: measure(name) for name in MODELS}, indent=1) + "\n")
