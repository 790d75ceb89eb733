"""What a schedule is, as data, and which of its intermediate values share memory: each lives from the item that writes
it to the last one that reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import Placement
from tinygrad.dtype import DType
from tinygrad.helpers import round_up
from tinygrad.uop import UOp

ALIGN = 64


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
  of other devices: its sources must be ready on all devices before, and stay as they are until all have read them."""

  kernel: UOp | Transfer
  slots: tuple[int, ...]
  devices: tuple[str, ...]
  variables: tuple[str, ...]
  peers: bool
  computes: Lines = ()  # where kernels are `watched`
  writes: int = 1
  constants: tuple[tuple[str, int], ...] = ()  # variables that tell this item from others with its kernel


@dataclass(frozen=True, slots=True)
class Temp:
  """Memory for intermediate values: `nbytes` on each device of `device`."""

  device: Placement
  nbytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
  """Slot i is the memory of `buffers[i]`; the slots after these are `temps`, intermediate values."""

  items: tuple[ScheduleItem, ...]
  buffers: tuple[UOp, ...]
  temps: tuple[Temp, ...]


def plan_memory(uses: Sequence[Sequence[int]], temps: Mapping[int, Temp]) -> tuple[dict[int, int], list[Temp]]:
  """Assigns the intermediate slots to as little memory as a first fit finds.

  `uses[i]`: the slots that item i touches. A read by a peer ends at the barrier after its item, so it counts as a use
  like any other.
  Returns (slot -> number of the memory, the memories). Two slots share one only if no item needs both.
  """
  last: dict[int, int] = {}
  for i, slots in enumerate(uses):
    last.update((s, i) for s in slots if s in temps)
  pool, at = list[Temp](), dict[int, int]()
  free: dict[Placement, list[int]] = {}
  for i, slots in enumerate(uses):
    for s in slots:
      if s not in temps or s in at:
        continue
      want = Temp(temps[s].device, round_up(max(temps[s].nbytes, 1), ALIGN))
      if candidates := free.setdefault(want.device, []):  # the smallest that fits, else the largest
        m = min(candidates, key=lambda m: (pool[m].nbytes < want.nbytes, abs(pool[m].nbytes - want.nbytes)))
        candidates.remove(m)
        pool[m] = max(pool[m], want, key=lambda memory: memory.nbytes)
      else:
        m = len(pool)
        pool.append(want)
      at[s] = m
    for s in dict.fromkeys(slots):
      if s in temps and last[s] == i:
        free[temps[s].device].append(at[s])
  return at, pool
