"""What a backend is: the protocol, what it can do (`Capabilities`), and what codegen has to know of it (`Target`)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from tinygrad.device.cluster import Cluster
from tinygrad.device.cores import Core
from tinygrad.device.errors import DeviceError
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import cores


@dataclass(frozen=True, slots=True)
class Target:
  """What codegen has to know of a device: sizes in bytes where not said otherwise."""

  name: str
  vector_bytes: int = 16  # widest SIMD register
  vector_registers: int = 16
  scratch: int = 0  # fast memory for staged operands, per worker
  threads: bool = False  # grid of threads (GPU) rather than loops
  cooperates: bool = True  # threads of a group gain by copying to scratch memory what they share
  shares: bool = False  # threads of the device may share a kernel out (CPU)
  features: tuple[str, ...] = ()  # a processor's as LLVM names them; of OpenCL half, sub_groups, shuffle
  float64: bool = True
  converts: tuple[DType, ...] = (dtypes.float16,)  # narrow floats that it converts to and from float32
  functions: frozenset[str] = frozenset()  # of float32, by op, that it has within 2 units in the last place
  vendor: str = ""  # of a processor, where its instructions differ in speed from what others call the same
  cores: tuple[Core, ...] = ()  # matrix products that it has instructions for
  units: int = 32  # multiprocessors of a grid
  group: int = 256  # threads of a work group, at most
  cluster: int = 1  # groups that read one another's local memory, at most
  warp: int = 0  # threads side by side that read one another's registers; 0: none do
  intensity: int = 80  # operations for each byte that is not read again, beyond which a kernel is better one of its own
  few_rows: int = 256  # of a SCATTER: up to so many, of many threads each looks at every update
  overlaps: Cluster | None = None  # by whose times what runs beside its communications is chosen
  cache: int = 1 << 20  # that a core has for itself. Not read from the machine: everybody's sums are in one order

  @property
  def busy(self) -> int:
    """How many threads a grid has to have for the latency of its memory to be hidden."""
    return self.units << 10

  @property
  def held(self) -> int:
    """How many words of a row a group's threads keep in registers, beside what they compute with."""
    return self.group * (2 * (self.vector_registers // 3))

  @property
  def fuses(self) -> bool:
    """Whether kernels that share rows gain by being one."""
    return self.shares or self.threads


class Computes(enum.Enum):
  """How what is computed on a device comes about."""

  KERNELS = "it runs kernels, which codegen makes for its target"
  INTERPRETED = "numpy evaluates every graph in which it takes part"
  ON_HOST = "numpy evaluates graphs that are on it alone; else values only come from it and go there"
  NOTHING = "it stores values, which are shown, read and written in place"


@dataclass(frozen=True, slots=True)
class Capabilities:
  """What the devices of one kind can do. Each field is about one thing, and the engine asks for that."""

  computes: Computes = Computes.KERNELS
  simulated: bool = False  # it has no memory and does no work: the engine does not loop over its devices (NULL)
  processor: bool = False  # its kernels run on cores of this machine, which its devices have together (CPU)
  arrays: bool = False  # its memory is numpy arrays: `Backend.array` gives one as it is
  wraps: bool = False  # it works on memory of the host that others have allocated: `Backend.wrap`
  cells: bool = False  # arguments of its calls are words in memory, which a replay overwrites: `BoundCall.cells`
  copies: bool = False  # its devices copy memory from one another: `Backend.copy_all`
  nccl: bool = False  # NCCL moves bytes between its devices in several processes (distributed/nccl.py)
  stamps: bool = False  # its lists of calls can tell when they come to a point: `Backend.stamp`
  files: bool = False  # what follows its name and a colon is no number but a file's path (DISK)

  @property
  def ordinary(self) -> bool:
    """Whether programs may choose it to compute on: it is not simulated, for reference, or memory only."""
    return self.computes is Computes.KERNELS and not self.simulated


@dataclass(frozen=True, slots=True)
class Renderer:
  """What a backend's code generation offers to programs that ask: `Device[name].renderer`."""

  target: Target

  def supported_dtypes(self) -> set[DType]:
    """The types that tensors on the device may have."""
    return {d for d in dtypes.all if d is not dtypes.float64 or self.target.float64}


class Launch(NamedTuple):
  """What a kernel needs to be launched, beside its code: the numbers that are not arguments."""

  groups: tuple[int, int, int] = (1, 1, 1)  # of a grid
  threads: tuple[int, int, int] = (1, 1, 1)  # of a group
  writes: int = 1  # how many of its buffers, the first
  pieces: int = 1  # in which it is done
  word: int = 0  # of the arguments that tells which
  workers: int = 1  # threads of the device that share it out
  local: int = 0  # bytes of a group's memory, where it is given at the launch
  turned: int = 0  # groups of the grid of which each device begins with others, by a variable that comes last; 0: none

  @classmethod
  def read(cls, data: Any) -> Launch:
    """One that JSON has had."""
    (x, y, z), (i, j, k), *numbers = data
    return cls((int(x), int(y), int(z)), (int(i), int(j), int(k)), *map(int, numbers))


class Rendered(NamedTuple):
  """A kernel as a backend compiles it."""

  source: str
  launch: Launch = Launch()
  work: int = 0  # operations of one run; 0: it is not said


class PeerCopy(NamedTuple):
  """Bytes that one device has from another of its kind."""

  target: Any  # a backend
  handle: Any  # its memory
  offset: int
  source: Any
  source_handle: Any
  source_offset: int
  nbytes: int


class BoundCall(Protocol):
  """A program with its arguments in place."""

  def set_buffer(self, slot: int, memory: Any) -> None:
    """Replaces the memory of a slot; a list of every device's for a table of peers."""

  def set_variable(self, number: int, value: int) -> None:
    """Replaces the value of a variable, by its place among their names."""

  def cells(self, i: int, device: int) -> list[tuple[Any, int, int]]:
    """Where argument i stands that device number `device` reads, if such a backend's calls can be overwritten
    (`Capabilities.cells`): (words, index, number of the device whose address it is, or 0)."""
    ...


class CallBatch(Protocol):
  """Calls as one hand-over to a device, which may be submitted again."""

  inputs: Sequence[object]  # whose memory is lent to the calls, and lives as long as they do
  whole: bool  # whether it is all of a step that is replayed


class Backend(Protocol):
  """One device. What is queued on it runs in order and may still run when `submit_all` and `free` have returned;
  `synchronize` waits and raises what failed.

  A module of the runtime has a class of this kind as its `open_device`. Handles (memory) and programs are the
  backend's own, and mean nothing to others.
  """

  target: Target
  capabilities: ClassVar[Capabilities]
  name: str
  description: str = "virtual devices with threads of their own"
  identity: str = ""  # of the physical device, among all of its machine; "": it is not said
  worth_waking: int = 1 << 19  # operations and bytes of work: less takes less time than waking a thread for it

  def __init__(self, name: str) -> None:
    self.name = name

  @property
  def kind(self) -> str:
    """The name without a number."""
    return self.name.partition(":")[0]

  @property
  def renderer(self) -> Renderer:
    return Renderer(self.target)

  @property
  def lost(self) -> bool:
    """Whether an error has made the device useless for the rest of the process: nothing is waited for there."""
    return False

  def count(self) -> int:
    """How many devices of this kind may work side by side: those of the machine, of virtual ones a core each."""
    return cores()

  def check(self) -> None:
    """Raises: DeviceError where the driver cannot compile a kernel, run it and give the right values."""
    return  # what has no driver has no faults of one

  def reaches(self, other: Any) -> bool:
    """Whether kernels here can read the memory of another device of this kind."""
    return True

  # ---- memory

  def alloc(self, nbytes: int) -> Any:
    """A handle of fresh memory. Raises: MemoryError."""
    ...

  def free(self, handle: Any, nbytes: int) -> None:
    """Gives memory back, behind what is queued."""
    ...

  def passing(self, handle: Any) -> None:
    """What is in this memory means nothing between runs, until it is freed."""
    return

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    """Fills memory from byte `offset` on, which is 0 where there is a `view`."""
    ...

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    """Reads memory from byte `offset` on, which is 0 where there is a `view`."""
    ...

  @staticmethod
  def copy_all(copies: Sequence[PeerCopy]) -> None:
    """Queues copies between devices of this kind, behind what is queued there and before what follows, if they can
    (`Capabilities.copies`)."""
    raise TypeError("the devices do not copy from one another")

  def view(self, handle: Any) -> memoryview | None:
    """The memory itself, where the host can address it (synchronize first)."""
    return None

  def array(self, handle: Any, dtype: Any, shape: Sequence[int]) -> Any:
    """The memory as a numpy array, if such are its handles (`Capabilities.arrays`)."""
    raise TypeError(f"{self.name} has no arrays")

  def wrap(self, array: Any) -> Any:
    """A handle of the memory of a C-contiguous writable numpy array; None where kernels cannot use it, as always
    without `Capabilities.wraps`."""
    return None

  # ---- programs

  def render(self, linear: list[Any], name: str) -> Rendered:
    """The source of a kernel and how it is launched, from its linear UOps."""
    ...

  def compile(self, rendered: Rendered, name: str) -> Any:
    """The program. Raises: DeviceError with what the compiler said."""
    ...

  def compile_source(self, source: str, name: str, pointers: int, dims: Sequence[int]) -> Any:
    """The program of a kernel that a user wrote: function `name`, called with its result, its operands, and dims.
    Raises: DeviceError where the compiler refuses it, or the backend takes none."""
    raise DeviceError(
      f"{self.name} takes no kernels in source\n  fix: leave {self.kind} out of kernel={{…}}; fn is run"
    )

  def expect(self) -> None:
    """Programs are going to be compiled: what loads a compiler may begin."""
    return

  def settle(self, programs: Sequence[Any]) -> None:
    """Programs that are to run again and again: what was compiled in a hurry is compiled well."""
    return

  def stored(self, program: Any) -> Any:
    """What brings a program back in another process, as JSON knows it; None where nothing does."""
    return None

  def restore(self, name: str, stored: Any) -> Any:
    """The program that another process has `stored`; None if it is gone. Raises: what garbled data makes it raise."""
    return None

  def bind(self, program: Any, args: Sequence[Any], variables: Sequence[int] = (), number: int = 0) -> BoundCall:
    """A call of `program`: its buffers by slot (a list of every device's for a table of peers), variables by name.
    `number`: the device's among those peers."""
    ...

  # ---- work

  def barrier(self, devices: Sequence[Any]) -> Sequence[BoundCall]:
    """One call for each device; none returns before all have come so far."""
    ...

  def stamp(self) -> Any:
    """A call whose `seconds`, after it has run, are when that was, by time.perf_counter (`Capabilities.stamps`)."""
    raise TypeError(f"{self.name} notes no times")

  def batch(self, calls: Sequence[Any], brief: bool = False) -> CallBatch:
    """Calls as one hand-over. What is `brief` takes less time than waking a thread for it."""
    ...

  def submit_all(self, devices: Sequence[Any], lists: Sequence[Any]) -> None:
    """Queues one batch on each of the devices, all of this kind."""
    ...

  def synchronize(self) -> None:
    """Waits for what is queued. Raises: DeviceError for what failed."""
    ...
