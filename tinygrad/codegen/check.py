"""What linear code must be, checked after codegen unless `SPEC=0`; what a kernel must be between passes (`SPEC=2`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinygrad.codegen.analysis.accesses import rereads
from tinygrad.codegen.row_blocks import begins_piece, is_given
from tinygrad.device.cores import EIGHT_ROWS
from tinygrad.dtype import DType, dtypes
from tinygrad.numerics.idle_loops import parts_of
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.affine import affine
from tinygrad.uop.spec import SpecError


def check_linear(linear: Sequence[UOp]) -> None:
  """Raises SpecError, with the op, if a value is used before it is known, loops are not nested, or types misfit."""
  reachable: set[UOp] = set()
  loops: list[UOp] = []
  known: list[list[UOp]] = [[]]  # what was emitted in each open loop
  for u in linear:
    for s in u.src:
      if s not in reachable and s.op is not Ops.CONST:
        raise SpecError(f"linear code: {u.op.name} uses {s.op.name} {s.arg}, which is not known where it stands")
    if (fault := _fault(u)) is not None:
      raise SpecError(f"linear code: {u.op.name} {u.dtype!r} of {[(s.op.name, s.dtype) for s in u.src]}: {fault}")
    if u.op is Ops.ENDRANGE:
      if not loops or loops.pop() is not u.src[0]:
        raise SpecError(f"linear code: the loop {u.src[0].arg} is closed, but it is not the innermost")
      reachable.difference_update(known.pop())
      continue
    if u.op is Ops.RANGE:
      loops.append(u)
      known.append([])
    if u not in reachable:
      reachable.add(u)
      known[-1].append(u)
  if loops:
    raise SpecError(f"linear code: the loop {loops[-1].arg} is never closed")


def check_limits(kernel: UOp) -> None:
  """Raises SpecError if a loop that may end early (`clip_loops`) has become another: that would go on beyond. Or if
  pieces of the kernel overlap (`share_out`), and an element is read where it is written: two threads may be there."""
  stores, limits = parts_of(kernel)
  both = rereads(stores)
  for where in (s.src[0] for s in stores if s.src[0].src[0] in both and is_given(s.src[0].src[0])):
    if any(map(begins_piece, affine(where.src[1], {}).terms)):
      raise SpecError(f"kernel: pieces overlap, and slot {where.src[0].arg.slot} is read and written")
  loops = {u for s in stores for u in s.toposort() if u.op is Ops.RANGE}
  for r in (x.src[0] for x in limits):
    if r.op is Ops.RANGE and r not in loops:
      raise SpecError(f"kernel: loop {r.arg[0]} may end early; what a pass has put in its place does not")


def _fault(u: UOp) -> str | None:
  """What is wrong with an op, apart from where it stands."""
  if u.op not in GroupOp.Linear:
    return "no op of linear code"
  if u.op in GroupOp.Elementwise and u.op is not Ops.BITCAST and {s.dtype.count for s in u.src} != {u.dtype.count}:
    return "operands have as many lanes as the result"
  return next((rule for rule, holds in _RULES.get(u.op, {}).items() if not holds(u)), None)


def _has_fragments(u: UOp) -> bool:
  core, found = u.arg, tuple(s.dtype for s in u.src)
  want = (core.result.vec(core.d.length), core.operand.vec(core.a.length), core.operand.vec(core.b.length))
  evenly = all(s.src[0].arg[0] % EIGHT_ROWS == 0 for s in u.src[1:] if s.op is Ops.INDEX)
  return evenly and u.dtype is want[0] and found in (want, want[: core.late])


def _is_of(where: UOp, dtype: DType) -> bool:
  return where.dtype is dtype and where.op in GroupOp.Place


_RULES: dict[Ops, dict[str, Callable[[UOp], bool]]] = {
  Ops.INDEX: {
    "an INDEX points into a parameter, a peer's buffer or scratch memory": lambda u: u.src[0].op in GroupOp.Memory,
    "its type is that of the memory": lambda u: u.dtype.scalar() is u.src[0].dtype.scalar(),
    "its condition is a bool for each lane": lambda u: {c.dtype for c in u.src[2:]} <= {dtypes.bool.vec(u.dtype.count)},
    "offsets are one, or one for each lane": lambda u: u.src[1].dtype.count in (1, u.dtype.count),
  },
  Ops.LOAD: {"a LOAD has the type of its INDEX or ACC": lambda u: _is_of(u.src[0], u.dtype)},
  Ops.STORE: {
    "the value has the type of the INDEX or ACC": lambda u: _is_of(u.src[0], u.src[1].dtype.vec(u.src[0].dtype.count)),
    "the value has as many lanes as the memory":
      lambda u: u.src[0].dtype is u.src[1].dtype or (u.src[0].op is Ops.ACC and u.src[1].op is Ops.CONST),
  },
  Ops.FOLD: {"a FOLD of lanes gives a scalar of their type": lambda u: [u.dtype] == [s.dtype.scalar() for s in u.src]},
  Ops.DOT: {
    "words are added to a number of the result's type":
      lambda u: {s.dtype for s in u.src[1:]} == {dtypes.uint32.vec(u.dtype.count)} and u.dtype is u.src[0].dtype,
  },
  Ops.MMA: {"fragments are as long as its core's, and tiles begin evenly": _has_fragments},
}  # fmt: skip
