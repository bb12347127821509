"""The precision in which a stack computes; its state always stays in the model's own precision."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from fedlada.engines.stacked.kernels import Kernels, TorchKernels
from fedlada.methods.validation import one_of

PRECISIONS = ("auto", "bf16", "tf32", "float32")


def resolve_precision(precision: str, like: Tensor, *, compiles: bool) -> tuple[torch.dtype, Kernels]:
    """The type in which gradients are computed, and the kernels that do it.

    "bf16" reads parameters as bfloat16 and sums in float32, "tf32" rounds the factors of float32 products, "float32"
    does not. float64 is always exact, and a CPU computes in the model's own precision.
    """
    one_of("precision", precision, PRECISIONS)
    if precision == "bf16" and not like.is_cuda:
        raise ValueError("precision bf16 needs a GPU: on a CPU take float32")
    if not like.is_cuda or like.dtype == torch.float64:
        return like.dtype, TorchKernels()
    compute = torch.bfloat16 if precision in ("auto", "bf16") else torch.float32
    # cuDNN uses TF32 unless a user forbids it, so exact products need our kernels in any case.
    wanted = compiles or precision == "float32"
    if not wanted or importlib.util.find_spec("triton") is None:
        return compute, TorchKernels()
    from fedlada.engines.stacked.triton_kernels import TritonKernels  # needs a torch build with Triton

    return compute, TritonKernels("ieee" if precision == "float32" else "tf32")
