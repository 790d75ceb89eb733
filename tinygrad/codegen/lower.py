"""`lower_kernel`: passes over a kernel, each from UOp to UOp, and the linearizer after them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tinygrad.codegen.check import check_linear
from tinygrad.codegen.decompose import decompose_alone
from tinygrad.codegen.dots import use_dots
from tinygrad.codegen.emit import Emitter, PlanOf
from tinygrad.codegen.grid import GridEmitter
from tinygrad.codegen.heuristic import plan_nest
from tinygrad.codegen.loop_clipping import clip_loops
from tinygrad.codegen.plan import LoopNest
from tinygrad.codegen.row_blocks import blocks_of_rows, parts_of
from tinygrad.codegen.scatter import nests_of, with_row_memory
from tinygrad.codegen.share import share_out
from tinygrad.device import Target
from tinygrad.helpers import DEBUG, NOOPT, SPEC
from tinygrad.uop import RANGES_FROM, Ops, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

Pass = Callable[[UOp], UOp]
Linearizer = Callable[[UOp], list[UOp]]


def passes(target: Target, threads: int) -> tuple[Pass, ...]:
  """In their order. Each takes a kernel, a SINK of STOREs over their ranges (and of limits: `clip_loops`), and gives
  one that stores the same values in the same memory."""
  sharers = threads if target.shares and not NOOPT else 1
  return (
    clip_loops,
    functools.partial(share_out, threads=sharers, lanes=target.vector_bytes // 4),
    drop_unit_ranges,
    functools.partial(use_dots, target=target),
    functools.partial(decompose_alone, halves=target.halves),
    functools.partial(with_row_memory, target=target),
  )


def linearizer(target: Target, plan_of: PlanOf | None) -> Linearizer:
  """What makes a list of a kernel: its signature, then its loops with what is computed in them."""
  if target.threads:
    return functools.partial(linear_grid, target=target)
  planner = plan_of or (lambda stores, taken: plan_nest(stores, target, taken))
  return functools.partial(linear_loops, target=target, planner=planner)


def lower_kernel(ast: UOp, target: Target, threads: int = 1, plan_of: PlanOf | None = None) -> list[UOp]:
  """Linear UOps of a kernel: SINK of STOREs over their ranges. The list begins with the kernel's whole signature
  (params, variables). With `threads`, it is what one of them does, if sharing it out pays. `plan_of`
  takes the place of the heuristic, except on a grid of threads."""
  assert ast.op is Ops.SINK, ast.op
  kernel, linearize = ast, linearizer(target, plan_of)
  for lower in passes(target, threads):
    kernel = lower(kernel)
  linear = linearize(kernel)
  if SPEC >= 1:
    check_linear(linear)
  if DEBUG >= 4:
    print_linear(linear)
  return linear


def linear_grid(kernel: UOp, target: Target) -> list[UOp]:
  """For a grid of threads."""
  emitter = GridEmitter(target, LoopIds(kernel))
  put_signature(emitter, kernel)
  emitter.kernel(kernel.src)
  return emitter.root.out


def linear_loops(kernel: UOp, target: Target, planner: PlanOf) -> list[UOp]:
  """For one thread."""
  ids = LoopIds(kernel)
  emitter = Emitter(planner, ids)
  put_signature(emitter, kernel)
  several = len(kernel.src) > 1
  match list(blocks_of_rows(kernel, target, ids) if several else nests_of(LoopNest(kernel.src))):
    case [LoopNest() as alone]:
      emitter.loop_nest(alone)
    case nests:
      emitter.written = {s.src[0].src[0] for s in parts_of(kernel)[0]}
      emitter.nests(nests)
  return emitter.root.out


def put_signature(emitter: Emitter, kernel: UOp) -> None:
  for u in signature(kernel):
    emitter.node(u.op, u.dtype, (), u.arg)


def signature(ast: UOp) -> list[UOp]:
  """What a kernel is called with: the PARAMs by slot, then the VARIABLEs by name, `_device_num` among them."""
  nodes = ast.toposort()
  params = sorted((u for u in nodes if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
  return params + sorted((u for u in nodes if u.op is Ops.VARIABLE), key=lambda u: u.arg)


def drop_unit_ranges(sink: UOp) -> UOp:
  """Ranges of one iteration are 0, so that no later stage has to tell them apart."""

  def make(u: UOp, src: Sources) -> UOp:
    if u.op is Ops.RANGE and u.src[0].op is Ops.CONST and u.src[0].arg == 1:
      return index(0)
    if (first := RANGES_FROM.get(u.op)) is not None:
      src = (*src[:first], *(r for r in src[first:] if r.op is Ops.RANGE))
    return src[0] if u.op is Ops.FOLD and len(src) == 1 else on_sources(u, src)

  return rebuild(sink, make)


def print_linear(linear: list[UOp]) -> None:
  """One line an op, indented by loop, with the numbers of its sources."""
  numbers: dict[UOp, int] = {}
  depth = 0
  for i, u in enumerate(linear):
    depth -= u.op is Ops.ENDRANGE
    sources = ", ".join(str(s.arg) if s.op is Ops.CONST else f"%{numbers.get(s, -1)}" for s in u.src)
    print(f"{i:4d} {'  ' * depth}{u.op.name} {u.dtype!r} ({sources}) {'' if u.arg is None else u.arg}")
    numbers[u] = i
    depth += u.op is Ops.RANGE
