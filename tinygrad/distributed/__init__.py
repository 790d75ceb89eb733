"""One program, many processes: `initialize()` makes the devices of all of them one set of names (docs/hosts.md)."""

from __future__ import annotations

import atexit
import importlib
import os
import stat
from typing import TYPE_CHECKING, Any

from tinygrad.device import Device
from tinygrad.distributed.errors import DistributedError, DivergedError, LostProcessError
from tinygrad.distributed.siblings import wait_for_siblings
from tinygrad.helpers import LazyModule, getenv

if TYPE_CHECKING:
  from tinygrad.distributed import world as processes
else:
  processes = LazyModule("tinygrad.distributed.world")

__all__ = [
  "DistributedError",
  "DivergedError",
  "LostProcessError",
  "initialize",
  "process_count",
  "process_index",
  "so_anywhere",
]
# How many processes a starter has started, as it leaves it in the environment: mpiexec, which srun may have started
# itself, and srun. (SLURM_NTASKS is a whole job's: the script of the job, too, has it, and is one process.)
STARTED_BY = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
CONNECTION = "PMI_FD"
UNTOLD = "PMIX_RANK"  # of a starter that does not say how many there are


def initialize(devices: int | None = None) -> None:
  """Joins the processes that mpiexec, srun or `tinygrad.launch` have started: from here on `CPU:0` to `CPU:n-1` are
  the devices of all, `devices` in each (None: TINYGRAD_DEVICES in the environment, else one), in the order of the
  processes. Call it first, in every process. In a process that was started alone, or by one of these, it does nothing,
  and `CPU:i` are devices of its own.

  Raises: DeviceError where devices are in use already; DistributedError where MPI is missing, or sees other processes
  than the starter; LostProcessError where one has ended before it came here; ValueError for no devices.
  """
  if devices is None:
    devices = getenv("TINYGRAD_DEVICES", 1) if Device.world is None else Device.world.per_process
  if not isinstance(devices, int) or devices < 1:
    raise ValueError(f"initialize: a process has at least one device, not {devices!r}\n  fix: initialize(devices=1)")
  if (world := Device.world) is not None and world.per_process != devices:
    have = f"there {f'are {n} devices' if (n := world.per_process) > 1 else 'is 1 device'} in each process already"
    raise DistributedError(f"initialize: {have}, not {devices}\n  fix: initialize(devices={devices}) first and once")
  if world is not None or (mpi := _mpi()) is None:
    return
  world = processes.Processes(mpi, devices)
  Device.join(world)
  world.watch_errors()


def _is_started() -> bool:
  """Whether a starter's connection (of the protocol PMI, by number in the environment) is open here: a program that one
  of the processes has started itself, as `multiprocessing` spawns workers, has its environment and no connection."""
  try:
    return CONNECTION not in os.environ or stat.S_ISSOCK(os.fstat(int(os.environ[CONNECTION])).st_mode)
  except OSError:
    return False


def _finalize(mpi: Any, process: int) -> None:
  """Ends MPI in the process that has begun it."""
  if os.getpid() == process and not mpi.Is_finalized():
    mpi.Finalize()


def _mpi() -> Any:
  """MPI, if more than one process runs; None if this one runs alone."""
  wanted = next((int(os.environ[name]) for name in STARTED_BY if name in os.environ), 1)
  if (wanted < 2 and UNTOLD not in os.environ) or not _is_started():
    return None
  wait_for_siblings()
  try:
    importlib.import_module("mpi4py").rc.finalize = False  # it would, in processes that are forked, too
    mpi: Any = importlib.import_module("mpi4py.MPI")
  except ImportError as e:
    raise DistributedError(f"several processes need MPI ({e})\n  fix: pip install 'tinygrad[mpi]'") from e
  atexit.register(_finalize, mpi, os.getpid())
  if (size := mpi.COMM_WORLD.Get_size()) < wanted:
    rule = f"{wanted} processes were started, and MPI sees {size}: it does not know who has started them"
    raise DistributedError(f"{rule}\n  fix: that MPI's own mpiexec; srun --mpi=pmi2 (MPICH's wheel) or --mpi=pmix")
  return mpi if size > 1 else None


def process_index() -> int:
  """The number of this process, from 0."""
  return 0 if Device.world is None else Device.world.index


def process_count() -> int:
  """How many processes there are."""
  return 1 if Device.world is None else Device.world.count


def so_anywhere(so: bool) -> bool:
  """Whether it is so in any process: what one alone may have seen (Ctrl-C, a clock) is then acted on by all. Every
  process asks."""
  return so if Device.world is None else Device.world.so_anywhere(so)
