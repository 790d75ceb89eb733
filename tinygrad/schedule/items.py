"""What a schedule is, as data."""

from dataclasses import dataclass

from tinygrad.device import Placement
from tinygrad.dtype import DType
from tinygrad.schedule.memory import Temp
from tinygrad.uop import UOp


@dataclass(frozen=True, slots=True)
class Transfer:
  """A copy of a value of `shape` from the placement `source` to `result`, other devices: each receives its box only."""

  shape: tuple[int, ...]
  dtype: DType
  source: Placement
  result: Placement


Lines = tuple[tuple[str, tuple[str, int] | None], ...]  # ops and the user's lines that they come from


@dataclass(frozen=True, slots=True)
class ScheduleItem:
  """One kernel or copy. `slots[i]`: the slot behind PARAM i; the first `writes` are written. `peers`: reads the memory
  of other devices: its sources must be ready on all devices before, and stay as they are until all have read them.
  """

  kernel: UOp | Transfer
  slots: tuple[int, ...]
  devices: tuple[str, ...]
  variables: tuple[str, ...]
  peers: bool
  computes: Lines = ()  # where kernels are `watched`
  writes: int = 1
  constants: tuple[tuple[str, int], ...] = ()  # variables that tell this item from others with its kernel


@dataclass(frozen=True, slots=True)
class Schedule:
  """Slot i is the memory of `buffers[i]`; the slots after these are `temps`, intermediate values."""

  items: tuple[ScheduleItem, ...]
  buffers: tuple[UOp, ...]
  temps: tuple[Temp, ...]
