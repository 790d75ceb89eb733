"""What a backend is, and what it says of its devices: the protocol, `Target`, `Renderer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import cores

PIECE = "_piece_of_"  # and a number of threads: the variable that says which piece of a kernel they share is to be done


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
  features: tuple[str, ...] = ()
  float64: bool = True
  halves: bool = True  # it converts between half and float32


@dataclass(frozen=True, slots=True)
class Renderer:
  """What a backend's code generation offers to programs that ask: `Device[name].renderer`."""

  target: Target

  def supported_dtypes(self) -> set[DType]:
    """The types that tensors on the device may have."""
    return {d for d in dtypes.all if d is not dtypes.float64 or self.target.float64}


class Backend:
  """One device. What is queued on it runs in order and may still run when `submit_all` and `free` have returned;
  `synchronize` waits and raises what failed. A backend adds

    alloc(nbytes) -> handle, free(handle, nbytes)
    copyin(handle, data: memoryview, offset=0), copyout(data, handle, offset=0): offset is 0 where there is a `view`
    render(linear, name) -> source, compile(source, name) -> program
    bind(program, args, variables) -> a call of `program`: its buffers by slot (a list of every device's for a table of
      peers), variables by name
    barrier(devices) -> one call for each device; none returns before all have come so far
    batch(calls) -> calls as one hand-over, which may be submitted again
    submit_all(devices, lists): queues one batch on each device
    synchronize()
  """

  target: Target
  simulated = False  # has no memory and does no work: the engine does not loop over its devices
  interprets = False  # the engine evaluates what is computed there
  description = "virtual devices with threads of their own"

  def __init__(self, name: str) -> None:
    self.name = name

  @property
  def renderer(self) -> Renderer:
    return Renderer(self.target)

  def count(self) -> int:
    """How many devices of this kind may work side by side: those of the machine, of virtual ones a core each."""
    return cores()

  def check(self) -> None:
    """Raises: DeviceError where the driver cannot compile a kernel, run it and give the right values."""

  def view(self, handle: Any) -> Any:
    """The memory itself as a memoryview, where the host can address it (synchronize first)."""

  def reaches(self, other: Any) -> bool:
    """Whether kernels here can read the memory of another device of this kind."""
    return True
