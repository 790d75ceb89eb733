"""Which values have the very bits of others: a maximum those of what it is taken of. A comparison of the two asks for
equality of bits, so what both are chosen from must not be computed twice: kernels round differently."""

from collections.abc import Sequence

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes
from tinygrad.uop.node import UOp
from tinygrad.uop.op import GroupOp, Ops

EXTREMA = (Ops.MAX, Ops.MIN)
_PASSED_ON = GroupOp.Movement | {Ops.CONTIGUOUS, Ops.DETACH, Ops.CONSTRAIN, Ops.NEG, *EXTREMA}
_READ = frozenset((Ops.SHARD, Ops.AFTER, Ops.BIND))  # besides what has no sources
_SUMS = (Ops.ADD, Ops.MUL)
DIRECT, CHOSEN = 1, 2


def chosen_from(u: UOp) -> tuple[UOp, ...]:
  """The sources of which each element of `u` is one, but for its sign or a wider type, or a constant. None if its
  elements are computed, or read from memory."""
  op, src = u.op, u.src
  if op in _PASSED_ON:
    return src
  match op:
    case Ops.WHERE:
      return src[1:]
    case Ops.GATHER:
      return src[:1]
    case Ops.SCATTER if u.arg[0] is not Ops.MUL:
      return src[1:]
    case Ops.CAST if u.dtype.itemsize > src[0].dtype.itemsize and dtypes.is_float(src[0].dtype):
      return src
    case Ops.REDUCE if u.arg[0] in EXTREMA or _picks_one(u):
      return src
    case Ops.MOVE if not _sums(src[0].device):
      return src
    case Ops.COLLECTIVE if not any(_sums(p) for p in u.arg.placements):
      return src
  return ()


def _sums(placement: object) -> bool:
  return isinstance(placement, Sharding) and any(o.op in _SUMS for o in placement.partial)


def _picks_one(u: UOp) -> bool:
  """A sum of elements of which a condition leaves some, often one, and others are 0."""
  x = next(x for x in u.src[0].down() if x.op not in GroupOp.Movement)
  return x.op is Ops.WHERE and u.arg[0] is Ops.ADD and any(_is_constant(s, 0) for s in x.src[1:])


def _is_constant(u: UOp, value: float | None = None) -> bool:
  x = next(x for x in u.down() if x.op not in GroupOp.Movement)
  return x.op is Ops.CONST and (value is None or x.arg == value)


def is_computed(u: UOp) -> bool:
  """Whether elements of `u` are results of arithmetic, which another kernel may round otherwise."""
  return bool(u.src) and u.op not in _READ and dtypes.is_float(u.dtype) and not chosen_from(u)


def compares(u: UOp) -> bool:
  """Whether `u` compares floats with one another, not with a constant."""
  return u.op in GroupOp.Comparison and dtypes.is_float(u.src[0].dtype) and not any(map(_is_constant, u.src))


def compared(nodes: Sequence[UOp]) -> set[UOp]:
  """Computed values among the nodes of a graph, sources first, that are compared with what is chosen from them, or may
  be: that they are met on both sides of one comparison is not looked for, since that would not be linear."""
  marks: dict[UOp, int] = {}
  found: set[UOp] = set()
  for u in reversed(nodes):
    if compares(u):
      for s in u.src:
        marks[s] = marks.get(s, 0) | DIRECT
    if not (mark := marks.get(u, 0)):
      continue
    chooses = u.op in EXTREMA or u.op in (Ops.REDUCE, Ops.SCATTER)
    for s in chosen_from(u):
      marks[s] = marks.get(s, 0) | (CHOSEN if chooses else mark)
    if mark == DIRECT | CHOSEN and is_computed(u):
      found.add(u)
  return found
