"""Settings for all tests."""

import os

import torch
from hypothesis import settings

# A shared machine can be slow for a moment, and that is not a failure.
settings.register_profile("fedlada", deadline=None)
settings.load_profile("fedlada")

# Before anything imports Triton: where there is no GPU its interpreter runs the kernels, step by step, on the CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
