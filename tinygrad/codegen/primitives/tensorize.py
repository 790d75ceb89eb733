"""`tensorize`: sums of products on a matrix core, whose lanes hold fragments of operands and results in registers."""

from __future__ import annotations

from tinygrad.codegen.primitives import IllegalStep
from tinygrad.codegen.primitives.rebind import Rebinding, Version
from tinygrad.device.cores import Core, SwizzledTile
from tinygrad.numerics.fragments import elements_of_lane, lies_as, narrow_factors
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.loops import LoopIds, iteration_of
from tinygrad.uop.rewrite import on_sources, rebuild, substitute_free


def operands(f: UOp, core: Core, m: UOp, n: UOp) -> tuple[UOp, UOp] | None:
  """(A, B) of a sum of products as the core takes them: A does not depend on n, nor B on m."""
  if f.dtype is not core.result or (pair := narrow_factors(f, core.operand)) is None:
    return None
  return next(((a, b) for a, b in (pair, pair[::-1]) if n not in a.loops and m not in b.loops), None)


def tensorize(kernel: UOp, core: Core, loops: tuple[UOp, UOp, UOp], ids: LoopIds) -> tuple[UOp, UOp]:
  """(The kernel with the loops m and n shared out among the lanes and their registers, and each reduction over k one of
  the core's products; the loop over lanes, which is to be one of threads of a group that come one after the other.)

  MMA is what the elements of D gain that a lane holds: A and B at its registers' loops, the lane, the number of the
  element's register; then these loops, A's first, which it binds."""
  m, n, k = loops
  if wrong := [(r, x) for r, x in ((m, core.m), (n, core.n), (k, core.k)) if r.src[0] is not index(x)]:
    r, x = wrong[0]
    raise IllegalStep(f"loop {r.arg[0]} has not the {x} iterations of core {core}", f"split it by {x}")
  lane = ids.loop(index(core.lanes), AxisKind.LOOP)
  row, column, registers = elements_of_lane(core.d, lane, ids)
  element, made = iteration_of(registers).uop(), dict[UOp, UOp]()
  for f in (u for u in kernel.toposort() if u.op is Ops.FOLD and k in u.src[1:]):
    if (found := operands(f, core, m, n)) is None:
      rule = f"core {core} sums products of {core.operand.name}s in float32, one of each row and one of each column"
      raise IllegalStep(rule, "stage its operands without a condition of their own, or leave it to the threads")
    for tile, operand, side in ((core.a, found[0], m), (core.b, found[1], n)):
      if isinstance(tile, SwizzledTile) and not lies_as(tile, operand, side, k):
        raise IllegalStep(f"core {core} reads its operands in a group's memory", "stage both as its tiles first")
    (i, j, of_a), (p, q, of_b) = elements_of_lane(core.a, lane, ids), elements_of_lane(core.b, lane, ids)
    a, b = substitute_free(found[0], {m: i, k: j}), substitute_free(found[1], {k: p, n: q})
    value = UOp.new(Ops.MMA, f.dtype, (a, b, lane, element, *of_a, *of_b), core)
    over = tuple(r for r in f.src[1:] if r is not k) or (ids.loop(index(1), AxisKind.REDUCE),)
    made[f] = f.replace(src=(value, *over))
  if not made:
    raise IllegalStep(f"nothing is summed over loop {k.arg[0]}", "name a reduction's loop")
  sites = {r: [Version(x, (lane, *(d for d in registers if d in x.loops)))] for r, x in ((m, row), (n, column))}
  return Rebinding(rebuild(kernel, on_sources, made), sites).kernel, lane
