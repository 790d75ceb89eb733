"""What a schedule is, as data, and which of its intermediate values share memory: each lives from the item that writes
it to the last one that reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import Placement
from tinygrad.dtype import DType
from tinygrad.helpers import BusyTimes, round_up
from tinygrad.uop import Collective, UOp

ALIGN = 64
SMALL = 1 << 16  # bytes: to keep so many is little beside a barrier


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
  """One kernel (None: another process has scheduled it) or copy. `slots[i]`: the slot behind PARAM i; the first
  `writes` are written. `peers`: reads the memory of other devices: its sources must be ready on all devices before, and
  stay as they are until all have read them."""

  kernel: UOp | Transfer | None
  slots: tuple[int, ...]
  devices: tuple[str, ...]
  variables: tuple[str, ...]
  peers: bool
  computes: Lines = ()  # where kernels are `watched`
  writes: int = 1
  constants: tuple[tuple[str, int], ...] = ()  # variables that tell this item from others with its kernel
  after: tuple[int, ...] = ()  # slots of values that are to be computed before it (WAIT)
  moves: tuple[Collective, ...] = ()  # the communications that it is, or reads the results of


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


def uses_of(items: Sequence[ScheduleItem], temps: Mapping[int, Temp]) -> list[tuple[int, ...]]:
  """The slots that each item touches. What is small and read by peers is kept until these meet for the next such read,
  of the last one always, for a plan may run anew: so they need not meet before its memory is written again, too."""
  uses, meets = [i.slots for i in items], [n for n, i in enumerate(items) if i.peers]
  ends = ((meets[-1], 0), (meets[-1], len(items) - 1)) if len(meets) > 1 else ()
  for n, later in (*zip(meets, meets[1:]), *ends):
    uses[later] += tuple(s for s in items[n].slots if s in temps and temps[s].nbytes <= SMALL)
  return uses


def plan_memory(uses: Sequence[Sequence[int]], temps: Mapping[int, Temp]) -> tuple[dict[int, int], list[Temp]]:
  """Assigns the intermediate slots to memories, large ones first, each to the smallest that is free while it lives
  (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020: greedy by size).

  `uses[i]`: the slots that item i touches. A read by a peer ends at the barrier after its item, so it counts as a use
  like any other.
  Returns (slot -> number of the memory, the memories). Two slots share one only if no item needs both."""
  lives: dict[int, tuple[int, int]] = {}
  for i, slots in enumerate(uses):
    lives.update((s, (lives.get(s, (i,))[0], i)) for s in slots if s in temps)
  wanted = {s: Temp(temps[s].device, round_up(max(temps[s].nbytes, 1), ALIGN)) for s in lives}
  pool, at = list[Temp](), dict[int, int]()
  busy: dict[Placement, tuple[BusyTimes, list[int]]] = {}
  for s in sorted(lives, key=lambda s: (-wanted[s].nbytes, lives[s][0])):
    times, memories = busy.setdefault(wanted[s].device, (BusyTimes(len(uses)), []))
    if (n := times.take(*lives[s])) == len(memories):
      memories.append(len(pool))
      pool.append(wanted[s])
    at[s] = memories[n]
  return at, pool
