"""The processes of one run under torchrun: rank, device and process group."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch

TIMEOUT = timedelta(hours=1)
"""Time-out of a process that waits while another evaluates or writes; a dead process is noticed at once."""


def num_processes() -> int:
    """Number of processes under torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process prints and writes for all."""
    return int(os.environ.get("RANK", "0")) == 0


def refuse_several(what: str) -> None:
    """Refuse torchrun for commands that must run in one process."""
    if num_processes() > 1:
        raise ValueError(f"{what} are not shared by torchrun's processes: start this command without it")


def own_device(device: torch.device) -> torch.device:
    """This process's GPU, if the device has no index."""
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
    """Join the process group: NCCL on GPUs, gloo on CPUs."""
    import torch.distributed as dist

    if not dist.is_initialized():
        # Two processes on one GPU cannot use NCCL; gloo carries their tensors through the host.
        alone = device.type == "cuda" and num_local() <= torch.cuda.device_count()
        dist.init_process_group("nccl" if alone else "gloo", timeout=TIMEOUT)
        atexit.register(leave)  # a script does not leave the group itself, and its threads would abort the process


def num_local() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def leave() -> None:
    """Leave the process group, if it was joined."""
    import torch.distributed as dist

    if num_processes() > 1 and dist.is_initialized():
        dist.destroy_process_group()
