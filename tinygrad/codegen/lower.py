"""`lower_kernel`: passes over a kernel, each from UOp to UOp, and the linearizer after them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinygrad.codegen.check import check_limits, check_linear
from tinygrad.codegen.group_rows import have_nests, in_common, in_groups, with_barriers
from tinygrad.codegen.heuristics.cpu import schedule_cpu
from tinygrad.codegen.linearize import linear_code
from tinygrad.codegen.nests import Heuristic, NestSchedule, Room
from tinygrad.codegen.primitives.rebind import IN_REGISTERS
from tinygrad.codegen.row_blocks import block_rows
from tinygrad.codegen.share import share_out
from tinygrad.device import Target
from tinygrad.device.cores import EIGHT_ROWS
from tinygrad.dtype import dtypes
from tinygrad.helpers import DEBUG, NOOPT, SPEC, VIZ, LazyModule, say
from tinygrad.numerics.cuts import cut_loops
from tinygrad.numerics.decompose import decompose_stores
from tinygrad.numerics.dots import use_dots
from tinygrad.numerics.idle_loops import clip_loops, parts_of
from tinygrad.numerics.one_hots import as_one_hots
from tinygrad.numerics.own_memory import as_own_memory, is_own
from tinygrad.numerics.scatter import step_scatters, with_row_memory
from tinygrad.uop import AxisKind, Ops, UOp, print_linear, simplify, substitute
from tinygrad.uop.loops import LoopIds
from tinygrad.viz import recorder

if TYPE_CHECKING:
  from tinygrad.codegen.heuristics import gpu
else:  # a processor's first kernel does not wait for it
  gpu = LazyModule("tinygrad.codegen.heuristics.gpu")

Pass = Callable[[UOp], UOp]


def passes(target: Target, threads: int, heuristic: Heuristic) -> tuple[Pass, ...]:
  """In their order. Each takes a kernel, a SINK of STOREs over their ranges (and of limits: `clip_loops`), and gives
  one that stores the same values in the same memory."""
  sharers = threads if target.shares and not NOOPT else 1
  return (
    clip_loops,
    functools.partial(as_one_hots, target=target),
    functools.partial(share_out, threads=sharers, lanes=target.vector_bytes // 4),
    *(functools.partial(f, target=target) for f in (with_row_memory, block_rows)),
    functools.partial(use_dots, target=target),
    *(functools.partial(f, target=target) for f in (decompose_stores, step_scatters, cut_loops)),
    functools.partial(schedule_nests, target=target, heuristic=heuristic),
    same_for_copies,
  )


def heuristic_of(target: Target) -> Heuristic:
  return gpu.schedule_gpu if target.threads else schedule_cpu


def lower_kernel(ast: UOp, target: Target, threads: int = 1, heuristic: Heuristic | None = None) -> list[UOp]:
  """Linear UOps of a kernel: SINK of STOREs over their ranges. The list begins with the kernel's whole signature
  (params, variables). With `threads`, it is what one of them does, if sharing it out pays. `heuristic` takes the place
  of the target's."""
  assert ast.op is Ops.SINK, ast.op
  kernel, heuristic = ast, heuristic or heuristic_of(target)
  for lower in passes(target, threads, heuristic):
    kernel = lower(kernel)
    if SPEC >= 2:
      check_limits(kernel)
  linear = linear_code(kernel, target)
  if SPEC >= 1:
    check_linear(linear)
  if DEBUG >= 4:
    say(print_linear(linear))
  return linear


def schedule_nests(whole: UOp, target: Target, heuristic: Heuristic, held: bool = True) -> UOp:
  """Each nest as it is to be computed; `held`: where cores multiply, in groups whose registers hold what rows have."""
  kernel, ids, grid, row = whole, LoopIds(whole), dict[str, UOp](), None
  stores, clipped = parts_of(whole)
  limits = {} if target.threads else {x.src[0]: x.src[1] for x in clipped}
  if target.threads and have_nests(stores):
    kernel, grid, row = in_groups(stores, clipped, target, ids, held)
  room = Room(target, ids, heuristic, {}, [], {s.src[0].src[0] for s in stores}, grid, row)
  memory = [u for u in kernel.toposort() if u.op is Ops.SCRATCH and (not grid or u.arg[0] < target.scratch)]
  start = taken = most = max((u.arg[0] + u.arg[2] for u in memory), default=0)
  nests = [stores] if target.threads and not grid else [(s,) for s in parts_of(kernel)[0]]
  around = in_common(nests) if target.threads else in_common(nests, tuple(AxisKind))
  out = list[Sequence[UOp]]()
  for i, nest in enumerate(nests):
    if i and {*nest[0].src[2:]} & around != {*nests[i - 1][0].src[2:]} & around:
      taken = most = start  # what others have filled ahead is read no more
    mine = {r: limits[r] for r in UOp.sink(*nest).toposort() if r in limits} if limits else {}
    schedule = NestSchedule(str(i), nest, around, mine, room, taken, most)
    out.append(schedule.scheduled_stores())
    most = max(most, schedule.taken)
    taken = most if schedule.stages > 1 else taken  # what is filled ahead is there while others run
  if grid:
    ours = as_own_memory(out, [r for r in grid.values() if r.arg[1] is AxisKind.LOCAL])
    closed = closed_up(UOp.sink(*with_barriers(ours, grid)))
    if held and any(u.op is Ops.SCRATCH and u.arg[0] + u.arg[2] > target.scratch for u in closed.toposort()):
      return schedule_nests(whole, target, heuristic, False)
  if DEBUG >= 3:
    say("\n".join(f"# nest {label}: {', '.join(map(str, steps))}" for label, steps in room.steps.items()))
  if VIZ:
    recorder.scheduled(room.steps)
  return closed if grid else UOp.sink(*itertools.chain.from_iterable(out))


def same_for_copies(kernel: UOp) -> UOp:
  """Comparisons of what is in registers in normal form: 4·o + i < 4096 is o < 1024, so all i are accessed at once."""
  mapping = dict[UOp, UOp]()
  for u in kernel.toposort():
    if u.op is Ops.CMPLT and u.src[0].dtype is dtypes.index and any(r.arg[1] in IN_REGISTERS for r in u.loops):
      v = simplify(u)
      if v.loops < u.loops:  # a loop whose end would be written otherwise is another
        mapping[u] = v
  return substitute(kernel, mapping) if mapping else kernel


def closed_up(kernel: UOp) -> UOp:
  """Local memory without gaps: more groups then have room beside each other."""
  gap, end, moved, nodes = 0, 0, dict[UOp, UOp](), kernel.toposort()
  unit = EIGHT_ROWS if any(u.op is Ops.MMA and u.arg.late for u in nodes) else 1
  for u in sorted((u for u in nodes if u.op is Ops.SCRATCH and not is_own(u)), key=lambda u: int(u.arg[0])):
    gap, end = gap + max(u.arg[0] - end, 0) // unit * unit, max(end, u.arg[0] + u.arg[2])
    moved[u] = u.replace(arg=(u.arg[0] - gap, *u.arg[1:]))
  return substitute(kernel, moved)
