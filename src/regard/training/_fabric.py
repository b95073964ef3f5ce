"""The engine of the loop: devices, precision and processes. Only this module imports lightning-fabric.

Fabric's own ``save`` and ``load`` are not used, because they pickle.
"""

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.support.checks import check_choice, check_positive
from regard.support.processes import PARENT, announce_parent, end_with_parent
from regard.training._recipe import Precision

_PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def start_fabric(
    precision: Precision = "fp32", *, accelerator: str = "auto", devices: int | None = None, nodes: int | None = None
) -> Any:
    """A launched Fabric for this process.

    Under ``torchrun`` and SLURM's ``srun`` the launcher sets the number of processes. Otherwise there are ``devices``
    (default 1) on each of ``nodes`` (default 1), and Fabric starts the other processes by running the same command
    again.
    """
    for name, value in (("devices", devices), ("nodes", nodes)):
        if value is not None:
            check_positive(name, value)
    here = launched_by()
    if here is not None:
        devices, nodes = here
    devices, nodes = devices or 1, nodes or 1
    _check_machine(accelerator, devices)
    module = _fabric_module()
    # Hide its informational messages, but not its warnings.
    logging.getLogger(module.__name__).setLevel(logging.WARNING)
    fabric = module.Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision=_PRECISIONS[precision],
    )
    end_with_parent()  # set if another process started this one
    if here is None and devices * nodes > 1:
        announce_parent()
    try:
        fabric.launch()
    finally:
        if here is None and not os.environ.get("LOCAL_RANK", "0").strip("0"):
            os.environ.pop(PARENT, None)  # programs that this process starts later are not its workers
    return fabric


def several_processes() -> bool:
    """Whether this process is one of several that train together."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes files."""
    return not several_processes() or torch.distributed.get_rank() == 0


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an exchange between processes failed, as it does when one of them ends. Gloo says so in words only."""
    return isinstance(error, getattr(torch.distributed, "DistError", ())) or "gloo/transport" in str(error)


def _check_machine(accelerator: str, devices: int) -> None:
    check_choice("accelerator", accelerator, ("auto", "cpu", "cuda", "gpu", "mps"))
    here = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    found = [name for name, count in here.items() if count]
    wanted = {"auto": (found or ["cpu"])[0], "gpu": (found or ["cuda"])[0]}.get(accelerator, accelerator)
    if wanted == "cpu":
        cores = max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        if devices > cores:
            raise ValueError(f"devices is {devices}, but this machine has {cores} processors for as many processes")
        return
    if wanted not in found:
        raise ValueError(f"accelerator is {accelerator!r}, but this machine has only {' and '.join(['cpu', *found])}")
    if devices > here[wanted]:
        raise ValueError(f"devices is {devices}, but this machine has {here[wanted]} {wanted} device(s)")


def launched_by(environment: Any = None) -> tuple[int, int] | None:
    """(Processes on each node, nodes) as set by torchrun or SLURM; None without either.

    >>> launched_by({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"})
    (4, 2)
    >>> launched_by({"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"})
    (8, 2)
    >>> launched_by({})
    """
    environment = os.environ if environment is None else environment
    if "TORCHELASTIC_RUN_ID" in environment:
        world, local = int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
        return local, world // local
    interactive = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" in environment and not interactive:
        nodes = int(environment.get("SLURM_NNODES", 1))
        return int(environment.get("SLURM_NTASKS_PER_NODE", int(environment["SLURM_NTASKS"]) // nodes)), nodes
    return None


def total_over_processes(fabric: Any, value: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, on each of them."""
    if fabric.world_size == 1:
        return value
    result: torch.Tensor = fabric.all_reduce(value, reduce_op="sum")
    return result


def share_buffers(fabric: Any, network: nn.Module) -> None:
    """Give all processes the first one's buffers: on CPUs each computes the statistics of BatchNorm from its own samples."""
    if fabric.world_size == 1:
        return
    with torch.no_grad():
        for buffer in network.buffers():
            first = buffer.contiguous()
            torch.distributed.broadcast(first, 0)
            buffer.copy_(first)


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Inside the block, allow or forbid TF32 products; the previous setting is restored afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def shut_down() -> None:
    """Leave the process group, if there is one. Call it at the end of a program, after the last training."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _fabric_module() -> Any:
    # The same package, installed separately or as a part of lightning.
    for name in ("lightning_fabric", "lightning.fabric"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name not in (name, name.partition(".")[0]):
                raise
    raise ImportError("training needs lightning-fabric: pip install 'regard[train]'")
