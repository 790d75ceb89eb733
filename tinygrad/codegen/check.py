"""What linear code must be; checked after codegen unless `SPEC=0`."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.uop import GroupOp, Ops, UOp
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


def _fault(u: UOp) -> str | None:
  """What is wrong with an op, apart from where it stands."""
  if u.op not in GroupOp.Linear:
    return "no op of linear code"
  if (of := _FAULTS.get(u.op)) is not None:
    return of(u)
  if u.op in GroupOp.Elementwise and u.op is not Ops.BITCAST and {s.dtype.count for s in u.src} != {u.dtype.count}:
    return "operands have as many lanes as the result"
  return None


def _fault_of_index(u: UOp) -> str | None:
  if u.src[0].op not in GroupOp.Memory:
    return "an INDEX points into a parameter, a peer's buffer or scratch memory"
  if u.dtype.scalar() is not u.src[0].dtype.scalar():
    return "its type is that of the memory"
  if len(u.src) > 2 and u.src[2].dtype is not dtypes.bool.vec(u.dtype.count):
    return "its condition is a bool for each lane"
  return "offsets are one, or one for each lane" if u.src[1].dtype.count not in (1, u.dtype.count) else None


def _fault_of_load(u: UOp) -> str | None:
  sound = u.dtype is u.src[0].dtype and u.src[0].op in GroupOp.Place
  return None if sound else "a LOAD has the type of its INDEX or ACC"


def _fault_of_store(u: UOp) -> str | None:
  where, value = u.src
  if where.dtype.scalar() is not value.dtype.scalar() or where.op not in GroupOp.Place:
    return "the value has the type of the INDEX or ACC"
  if value.dtype is not where.dtype and not (where.op is Ops.ACC and value.op is Ops.CONST):
    return "the value has as many lanes as the memory"
  return None


def _fault_of_fold(u: UOp) -> str | None:
  sound = len(u.src) == 1 and u.dtype is u.src[0].dtype.scalar()
  return None if sound else "a FOLD of lanes gives a scalar of their type"


def _fault_of_dot(u: UOp) -> str | None:
  sound = u.dtype is u.src[0].dtype and all(s.dtype is dtypes.uint32.vec(u.dtype.count) for s in u.src[1:])
  return None if sound else "words are added to a number of the result's type"


def _fault_of_mma(u: UOp) -> str | None:
  core = u.arg
  want = (core.result.vec(core.d.length), core.operand.vec(core.a.length), core.operand.vec(core.b.length))
  found = tuple(s.dtype for s in u.src)
  return None if u.dtype is want[0] and found in (want, want[: core.late]) else "fragments are as long as its core's"


_FAULTS = {
  Ops.INDEX: _fault_of_index, Ops.LOAD: _fault_of_load, Ops.STORE: _fault_of_store, Ops.FOLD: _fault_of_fold,
  Ops.DOT: _fault_of_dot, Ops.MMA: _fault_of_mma,
}  # fmt: skip
