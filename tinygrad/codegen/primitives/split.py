"""`split`: a loop as two, one in the other; `mark`: how its iterations are computed; `clip`: where a loop ends that has
nothing left to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from tinygrad.codegen.primitives import IllegalStep
from tinygrad.codegen.primitives.rebind import Rebinding, Version
from tinygrad.dtype import dtypes
from tinygrad.uop import AxisKind, Ops, UOp, simplify
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.indexing import within_bounds
from tinygrad.uop.loops import LoopIds, static


def trips(limit: UOp | None, count: UOp, base: UOp, step: int) -> UOp:
  """So many iterations of `step` of a loop's from `base` on, or less, as far as its limit goes; in normal form, so that
  the loop is the same one to who simplifies what is in it."""
  if limit is None:
    return count
  left = affine(limit, {}).plus(affine(base, {}), -1).plus(Affine(step - 1)).uop()
  left = UOp.new(Ops.MAX, dtypes.index, (left, index(0)))
  return simplify(UOp.new(Ops.MIN, dtypes.index, (UOp.new(Ops.IDIV, dtypes.index, (left, index(step))), count)))


def loop(ids: LoopIds, like: UOp, end: UOp) -> UOp | None:
  """A new loop of the kind of another; None for one of one iteration."""
  return None if end.op is Ops.CONST and end.arg == 1 else ids.loop(end, like.arg[1])


def at(base: UOp, *terms: tuple[UOp | None, int]) -> UOp:
  out = affine(base, {})
  for r, c in terms:
    out = out if r is None else out.plus(Affine(0, {r: 1}), c)
  return out.uop()


# what a split makes: the loops over blocks (o), within one (i), over the rest where these do not divide it (t), and,
# around that of a loop with a limit, one of one iteration or none (w); None for one of one iteration
Parts = dict[str, UOp | None]
Tail = Literal["peel", "mask", "clamp", "overlap"]  # what becomes of a last block that is not whole


def split_loop(r: UOp, size: int, limit: UOp | None, ids: LoopIds, tail: Tail = "peel") -> tuple[list[Version], Parts]:
  """r -> outer·size + inner. Where `size` does not divide the iterations, the last block is a loop of its own (peel) or
  a whole one. Then its other iterations do nothing (mask), or what the last does, but store and add nothing (clamp);
  or it begins so early that it ends with the loop, and stores again what the one before has stored (overlap). `limit`:
  from which iteration on nothing is left to do.

  The order of iterations stays as it is, so it is legal; to overlap, where nothing reads what is stored."""
  assert size > 0, f"a block of {size} iterations"
  n, zero = r.src[0], index(0)
  whole, rest = n // size, n % size
  base, up, left = whole * size, (n + (size - 1)) // size, int(rest.vmax)
  versions, outer, inner, last, once = list[Version](), None, None, None, None
  peeled = tail == "peel" or not left
  if not peeled or whole.op is not Ops.CONST or whole.arg:
    outer = loop(ids, r, trips(limit, whole if peeled else up, zero, size))
    inner = loop(ids, r, index(size))
    value = at(zero, (outer, size), (inner, 1))
    exists = None if peeled else UOp.new(Ops.CMPLT, dtypes.bool, (value, n))
    loops = tuple(x for x in (outer, inner) if x is not None)
    if tail == "overlap" and left:  # in units of which both are multiples, so that neighbours stay aligned
      unit, last_block = math.gcd(left, size), n.vmax - size
      begun = UOp.new(Ops.MIN, dtypes.index, (at(zero, (outer, size // unit)), index(last_block // unit)))
      value, exists = at(zero, (begun, unit), (inner, 1)), None
    clamped = tail == "clamp" and not peeled
    versions.append(Version(within_bounds(value, n), loops, None, exists) if clamped else Version(value, loops, exists))
  if left and peeled:
    once = None if limit is None else loop(ids, r, trips(limit, index(1), base, left))
    last = loop(ids, r, rest)
    versions.append(Version(at(base, (last, 1)), tuple(x for x in (once, last) if x is not None)))
  return versions, {"o": outer, "i": inner, "w": once, "t": last}


def mark(r: UOp, kind: AxisKind) -> tuple[list[Version], UOp]:
  """The loop as one of another kind: UPCAST, iterations that are copies in registers, of a reduction an accumulator
  each; CHAIN, such that are added one after the other; VECTOR, the lanes of a vector."""
  if not static(r):
    raise IllegalStep(f"a loop of {r.src[0].op.name} iterations has no fixed length", "split it first")
  new = r.replace(arg=(r.arg[0], kind))
  return [Version(new, (new,))], new


def clip(kernel: UOp, limits: Mapping[UOp, UOp], ids: LoopIds) -> UOp:
  """Each loop that has a limit ends there."""
  shorter = {r: ids.loop(trips(limit, r.src[0], index(0), 1), r.arg[1]) for r, limit in limits.items()}
  return Rebinding(kernel, {r: [Version(x, (x,))] for r, x in shorter.items()}).kernel if shorter else kernel
