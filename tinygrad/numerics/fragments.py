"""What lanes hold of the matrices that cores multiply, as index expressions; how operands lie that cores read, or warps
together; and what is narrow."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.device.cores import Digit, Fragment, SwizzledTile
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.numerics.decompose import widens
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import LoopIds
from tinygrad.uop.rewrite import substitute_free

WIDENING = 5  # nodes, at most, by which a narrow float is widened


def digit(x: UOp, stride: int, count: int) -> UOp:
  """x // stride % count, for x below stride · count · …"""
  most, x = int(x.vmax), UOp.new(Ops.IDIV, dtypes.index, (x, index(stride))) if stride > 1 else x
  return index(0) if count == 1 else x if most < stride * count else UOp.new(Ops.MOD, dtypes.index, (x, index(count)))


def number(digits: Sequence[Digit], parts: Sequence[UOp], step: int) -> Affine:
  """The row (step 1) or column (2) of these digits."""
  out = Affine(0)
  for moves, u in zip(digits, parts):
    out = out.plus(Affine(0, {u: 1}), moves[step]) if moves[step] else out
  return out


def elements_of_lane(fragment: Fragment | SwizzledTile, lane: UOp, ids: LoopIds) -> tuple[UOp, UOp, tuple[UOp, ...]]:
  """(row, column, the loops over registers) of a lane's elements."""
  loops = tuple(ids.loop(index(count), AxisKind.UPCAST) for count, _, _ in fragment.registers)
  strides = [int(prod(count for count, _, _ in fragment.lanes[i + 1 :])) for i in range(len(fragment.lanes))]
  own = [digit(lane, stride, count) for stride, (count, _, _) in zip(strides, fragment.lanes)]
  digits, parts = (*fragment.lanes, *fragment.registers), (*own, *loops)
  row, column = (number(digits, parts, step).uop() for step in (1, 2))
  return row, column, loops


def lies_as(tile: SwizzledTile, x: UOp, side: UOp, k: UOp) -> bool:
  """Whether an operand lies in a group's memory as a core reads it there."""
  if x.op is not Ops.LOAD or x.src[0].src[0].op is not Ops.AFTER or x.src[0].src[0].src[0].op is not Ops.SCRATCH:
    return False
  extent, depth = int(side.src[0].arg), int(k.src[0].arg)

  def place(i: int, j: int) -> Affine:
    return affine(substitute_free(x.src[0].src[1], {side: index(i), k: index(j)}), {})

  first = place(0, 0)
  powers = [(1 << i, 0) for i in range(extent.bit_length() - 1)] + [(0, 1 << j) for j in range(depth.bit_length() - 1)]
  return all(
    place(*p) == first.plus(Affine(tile.place(*p, depth))) for p in (*powers, (5, 13), (extent - 1, depth - 1))
  )


def row_of_eight(at: UOp, lane: UOp, loops: Sequence[UOp], others: Sequence[UOp]) -> tuple[UOp, bool] | None:
  """Where the eight neighbours begin that a lane is to name, that a warp has fragments of: `at` for the `lane` and the
  `loops` of its registers, the last over two that a word holds, the lanes' lowest digit over words; first come what
  `others` have as their next. And whether they are neighbours across words; None if they are none."""
  *outer, last = loops
  eighth, number = digit(lane, 1, 8), digit(lane, 8, 4)

  def place(lane_is: UOp, last_is: UOp, matrix: UOp) -> UOp:
    bits = [digit(matrix, 1 << i, 2) for i in range(len(outer) + len(others))][::-1]
    more = {r: UOp.new(Ops.ADD, dtypes.index, (r, b)) for r, b in zip(others, bits)}
    return substitute_free(at, {lane: lane_is, last: last_is, **more, **dict(zip(outer, bits[len(others) :]))})

  start = affine(place(index(0), index(0), index(0)), {})
  steps = [affine(place(*map(index, x)), {}).plus(start, -1) for x in ((4, 0, 0), (28, 0, 0), (0, 1, 0), (3, 1, 0))]
  steps += [affine(place(index(0), index(0), index(i)), {}).plus(start, -1) for i in range(1, 4)]
  down, most, right, rest = (x.const for x in steps[:4])
  turned, apart = right != 1, [start.const, *start.terms.values(), *(x.const for x in steps[4:])]
  if any(x.terms for x in steps) or most != 7 * down or rest != 7 * right or 1 not in (down, right):
    return None
  if any(c % 8 for c in (right if turned else down, *apart)):
    return None
  half = UOp.new(Ops.IDIV, dtypes.index, (eighth, index(2)))
  by_word = UOp.new(Ops.MUL, dtypes.index, (eighth, index(4)))
  return place(half if turned else by_word, digit(lane, 1, 2) if turned else index(0), number), turned


def narrow_factors(f: UOp, dtype: DType) -> tuple[UOp, UOp] | None:
  """Of a sum of products both factors as values of this dtype; None of what is none of such."""
  if f.op is not Ops.FOLD or f.arg is not Ops.ADD or f.src[0].op is not Ops.MUL:
    return None
  x, y = (narrowed(s, dtype) for s in f.src[0].src)
  return None if x is None or y is None else (x, y)


def narrowed(wide: UOp, dtype: DType) -> UOp | None:
  """The value of this dtype of which `wide` is the float32."""
  u = wide
  for _ in range(WIDENING):
    if u.dtype is dtype:
      return u if widens(wide, u) else None
    if not u.src:
      return None
    u = u.src[0]
  return None
