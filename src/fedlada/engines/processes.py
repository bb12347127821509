"""Several processes of one run, started by torchrun: which one this is, and what keeps them together."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch

TIMEOUT = timedelta(hours=1)
"""For one that waits while another evaluates or writes; a process that dies is noticed at once."""


def num_processes() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process speaks and writes for all."""
    return int(os.environ.get("RANK", "0")) == 0


def refuse_several(what: str) -> None:
    """Of what only one process can be in charge of."""
    if num_processes() > 1:
        raise ValueError(f"{what} are not shared by torchrun's processes: start this command without it")


def own_device(device: torch.device) -> torch.device:
    """This process's GPU, where one that is not numbered was asked for."""
    if device.type != "cuda":
        return device
    if device.index is not None:
        torch.cuda.set_device(device)
        return device
    if num_processes() == 1:
        return device
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(place)
    return place


def join(device: torch.device) -> None:
    """Meet the other processes: NCCL on GPUs, gloo on CPUs."""
    import torch.distributed as dist

    if not dist.is_initialized():
        # Two processes on one GPU cannot use NCCL; gloo carries their tensors through the host.
        alone = device.type == "cuda" and num_local() <= torch.cuda.device_count()
        dist.init_process_group("nccl" if alone else "gloo", timeout=TIMEOUT)
        atexit.register(leave)  # a script does not say good-bye itself, and its threads would abort the process


def num_local() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def leave() -> None:
    """Say good-bye to the others, if they were met."""
    import torch.distributed as dist

    if num_processes() > 1 and dist.is_initialized():
        dist.destroy_process_group()
