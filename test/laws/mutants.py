"""Wrong rules, by name. Each patches one rule of sharding; the laws must notice every one of them by an assertion.

`MUTANTS[name](patch)` switches one on, with `patch(object, attribute, value)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad import Tensor
from tinygrad.device import Partial, Sharding, SubAxis
from tinygrad.dtype import dtypes
from tinygrad.engine import jit
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import ceildiv
from tinygrad.nn import optim
from tinygrad.runtime import python
from tinygrad.sharding import (
  decision_cache,
  factors,
  index_maps,
  local_forms,
  local_values,
  moves,
  outcomes,
  partial,
  place,
  view_assigns,
)
from tinygrad.transforms import batching, collectives, loop, tracing
from tinygrad.uop import Ops, UOp, simplify_sint, upper
from tinygrad.uop.cards import PartialRule
from tinygrad.uop.local import length
from tinygrad.uop.rewrite import on_sources

Patch = Callable[[Any, str, Any], None]
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(f: Callable[[Patch], None]) -> Callable[[Patch], None]:
  MUTANTS[f.__name__] = f
  return f


def full_block(s: Sharding, i: int, n: Any) -> int:
  return ceildiv(upper(n), s.parts(i))


@mutant
def reshape_keeps_uneven_cuts(patch: Patch) -> None:
  for module in (factors, local_forms):
    patch(module, "legal", lambda cuts, f: {factor: sub_axes for factor, sub_axes in cuts.items() if sub_axes})


@mutant
def all_reduce_skipped(patch: Patch) -> None:
  step = local_values.apply_step
  patch(local_forms, "apply_step", lambda x, s, shape: x if s.kind == "all_reduce" else step(x, s, shape))


@mutant
def reduce_scatter_only_slices(patch: Patch) -> None:
  step = local_values.apply_step

  def own_part_only(x: UOp, s: moves.Step, shape: Any) -> UOp:
    if s.kind == "reduce_scatter" and isinstance(s.b, Sharding):
      return local_values.cut_out(x, shape, s.a, s.b)
    return step(x, s, shape)

  patch(local_forms, "apply_step", own_part_only)


@mutant
def every_reduction_is_a_sum(patch: Patch) -> None:
  patch(outcomes, "Partial", lambda sub_axes, op, disjoint: Partial(sub_axes, Ops.ADD, disjoint))


@mutant
def max_and_min_swapped(patch: Patch) -> None:
  swap = {Ops.MAX: Ops.MIN, Ops.MIN: Ops.MAX}
  patch(outcomes, "Partial", lambda sub_axes, op, disjoint: Partial(sub_axes, swap.get(op, op), disjoint))


@mutant
def blocks_minor_to_major(patch: Patch) -> None:
  start = local_values.start

  def reversed_start(s: Any, i: int, n: Any) -> Any:
    if not isinstance(s, Sharding) or len(s.cut(i)) < 2:
      return start(s, i, n)
    block: Any = 0
    for d in reversed(s.cut(i)):
      block = block * d.size + local_values.device_number(s) // d.stride % d.size
    return simplify_sint(block * full_block(s, i, n))

  for module in (local_values, local_forms):
    patch(module, "start", reversed_start)


@mutant
def padding_read(patch: Patch) -> None:
  """Local lengths are the full block's, valid or not."""

  def whole(s: Any, i: int, n: Any) -> Any:
    return full_block(s, i, n) if isinstance(s, Sharding) and s.cut(i) else length(s, i, n)

  for module in (local_values, local_forms):
    patch(module, "lengths", lambda s, shape: tuple(whole(s, i, n) for i, n in enumerate(shape)))


@mutant
def gather_index_not_shifted(patch: Patch) -> None:
  patch(local_forms, "shifted", lambda index, offset: index)


@mutant
def iota_offset_lost(patch: Patch) -> None:
  rule = local_forms.op_rule

  def without_offset(u: UOp, p: Sharding, f: Any, cuts: Any) -> Any:
    needs, form = rule(u, p, f, cuts)
    return needs, (lambda xs: form(xs).src[0]) if u.op is Ops.IOTA else form

  patch(local_forms, "op_rule", without_offset)


@mutant
def halo_dropped(patch: Patch) -> None:
  """An index map reads zeros where another device holds the element."""
  collective = python.Interpreter.collective

  def own_block_only(self: Any, u: UOp) -> list[Any]:
    if u.arg.kind != "remap":
      return collective(self, u)
    out = []
    for d in range(self.devices[u]):
      mine = [[x if e == d else np.zeros_like(x) for e, x in enumerate(self.values[s])] for s in u.src]
      replicated = [isinstance(p, Sharding) and len(p) != np.prod(p.parts_, initial=1) for p in u.arg.placements]
      if any(replicated):
        return collective(self, u)
      kept = {s: self.values[s] for s in u.src}
      self.values.update(zip(u.src, mine))
      out.append(collective(self, u)[d])
      self.values.update(kept)
    return out

  patch(python.Interpreter, "collective", own_block_only)


@mutant
def index_map_ignored(patch: Patch) -> None:
  """A shift or flip along a cut dim that keeps the shape moves nothing."""
  communicate = local_values.communicate

  def stays(kind: str, xs: Any, template: UOp, places: Any, p: Any) -> UOp:
    if kind == "remap" and len(xs) == 1 and xs[0].shape == local_values.lengths(p, template.shape):
      return xs[0]
    return communicate(kind, xs, template, places, p)

  patch(local_forms, "communicate", stays)


@mutant
def replicas_combined_by_sum(patch: Patch) -> None:
  """An all-reduce over all sub-axes that do not cut, those that replicate included."""
  step = local_values.apply_step

  def over_all(x: UOp, s: moves.Step, shape: Any) -> UOp:
    if s.kind == "all_reduce" and isinstance(s.a, Sharding) and not s.a.dims:
      wide = Sharding.of(s.a.mesh, (), [Partial((SubAxis(len(s.a), 1),), s.a.partial[0].op)])
      s = moves.Step(s.kind, wide, s.b, s.sub_axes, s.payload, s.nbytes)
    return step(x, s, shape)

  patch(local_forms, "apply_step", over_all)


@mutant
def expand_cuts_its_source(patch: Patch) -> None:
  """A dim of 1 that grows is cut with the result: only the first device has it."""
  rule = factors.factor_rule

  def grown_dims_too(u: Any) -> Any:
    f = rule(u)
    return factors.Factors((f.out,), f.out, f.sizes) if u.op is Ops.EXPAND else f

  for module in (factors, outcomes, place, local_forms, index_maps):
    patch(module, "factor_rule", grown_dims_too)


@mutant
def slice_starts_at_zero(patch: Patch) -> None:
  cut_out = local_values.cut_out

  def from_zero(x: UOp, shape: Any, a: Any, b: Sharding) -> UOp:
    u = cut_out(x, shape, a, b)
    return UOp.new(Ops.SHRINK, u.dtype, u.src, tuple((0, simplify_sint(hi - lo)) for lo, hi in u.arg))

  for module in (local_values, local_forms):
    patch(module, "cut_out", from_zero)


@mutant
def any_smaller_block_is_a_slice(patch: Patch) -> None:
  """A cut that is refined is a slice, although flat blocks of an uneven dim do not nest."""
  exchange = moves._exchange

  def careless(shape: Any, a: Sharding, b: Sharding) -> Any:
    if np.prod(b.parts_, initial=1) >= np.prod(a.parts_, initial=1) * 2 and all(
      b.parts(i) % a.parts(i) == 0 for i in range(len(shape))
    ):
      return "slice", 1, 0
    return exchange(shape, a, b)

  patch(moves, "_exchange", careless)


@mutant
def assign_overwrites_what_is_outside(patch: Patch) -> None:
  """A write into a part of a cut dim sets the rest of the buffer too."""
  unview = view_assigns.unview

  def everywhere(v: UOp, x: UOp) -> UOp:
    if v.op is Ops.SHRINK and x.dtype is dtypes.bool and x.device is None:
      return UOp.const(dtypes.bool, True).broadcast_to(v.src[0].shape)
    return unview(v, x)

  patch(view_assigns, "unview", everywhere)


@mutant
def joined_dims_minor_to_major(patch: Patch) -> None:
  """A dim of several factors is cut by their sub-axes in the wrong order."""

  def reversed_dims(lists: Any, cuts: Any) -> Any:
    return tuple(tuple(d for factor in reversed(inner) for d in cuts.get(factor, ())) for inner in lists)

  for module in (factors, outcomes):
    patch(module, "project", reversed_dims)


def taken_as_complete(patch: Patch, op: Ops) -> None:
  """What an op contracts over a cut leaves nothing partial."""
  rule = factors.factor_rule

  def complete(u: Any) -> Any:
    f = rule(u)
    return factors.Factors(f.src, f.out, f.sizes, f.blocked, frozenset(), f.remapped) if u.op is op else f

  patch(outcomes, "factor_rule", complete)


@mutant
def table_rows_not_partial(patch: Patch) -> None:
  """A lookup in a table cut by rows is taken to be complete on each device."""
  taken_as_complete(patch, Ops.GATHER)


@mutant
def scattered_rows_not_partial(patch: Patch) -> None:
  """Rows into which each device scatters its part of the updates are taken to be complete."""
  taken_as_complete(patch, Ops.SCATTER)


# ---------------------------------------------------------------- the table of partial values


def rule(patch: Patch, policy: PartialRule, wrong: Callable[[partial.Case], partial.Kept | None]) -> None:
  patch(partial, "_RULES", {**partial._RULES, policy: wrong})


@mutant
def operands_not_made_partial(patch: Patch) -> None:
  """partial + scalar adds the scalar once per device."""
  patch(partial.Case, "with_unreduced", lambda self, among: self.stay())


@mutant
def every_coordinate_holds_what_is_made_partial(patch: Patch) -> None:
  for module in (local_values, local_forms):
    patch(module, "unreduce", lambda x, a, b: x)


@mutant
def max_stays_max_when_turned_around(patch: Patch) -> None:
  patch(partial, "MIRROR", {Ops.MAX: Ops.MAX, Ops.MIN: Ops.MIN})


@mutant
def sums_multiply_part_by_part(patch: Patch) -> None:
  patch(partial, "_two_sums", lambda c: c.stay())


@mutant
def relu_of_parts_of_a_sum(patch: Patch) -> None:
  rule(patch, PartialRule.EXTREMUM, lambda c: c.stay())


@mutant
def floor_of_parts_of_a_sum(patch: Patch) -> None:
  rule(patch, PartialRule.MONOTONE, lambda c: c.stay())


@mutant
def every_cast_keeps(patch: Patch) -> None:
  rule(patch, PartialRule.CAST, lambda c: c.stay())


@mutant
def every_reduction_commutes(patch: Patch) -> None:
  rule(patch, PartialRule.REDUCE_SAME, lambda c: c.stay())


@mutant
def every_scatter_commutes(patch: Patch) -> None:
  """Parts of updates are scattered as if the index were replicated and the reduction theirs."""
  rule(patch, PartialRule.SCATTER, lambda c: c.stay())


@mutant
def negation_of_a_product(patch: Patch) -> None:
  negate = partial._RULES[PartialRule.NEGATE]
  rule(patch, PartialRule.NEGATE, lambda c: c.stay() if c.by is Ops.MUL else negate(c))


@mutant
def sums_added_to_products(patch: Patch) -> None:
  rule(patch, PartialRule.SUM, lambda c: c.with_unreduced((0, 1)))


@mutant
def everything_else_keeps(patch: Patch) -> None:
  rule(patch, PartialRule.REDUCE_FIRST, lambda c: c.stay())


@mutant
def roots_still_partial(patch: Patch) -> None:
  for module in (decision_cache, place):
    patch(module, "at_placement", lambda x, device: x)


# ---------------------------------------------------------------- transforms

OF_TRANSFORMS: set[str] = set()
"""Of MUTANTS those that show in programs with transforms alone."""


def transform_mutant(f: Callable[[Patch], None]) -> Callable[[Patch], None]:
  OF_TRANSFORMS.add(f.__name__)
  return mutant(f)


@transform_mutant
def lanes_reduce_by_sums(patch: Patch) -> None:
  """A map forgets by which reduction its elements owe."""
  arg = batching.ARGS[Ops.REDUCE]
  patch(batching, "ARGS", {**batching.ARGS, Ops.REDUCE: lambda a, k, lead: arg((Ops.ADD, a[1]), k, lead)})


@transform_mutant
def own_gradients_of_one_lane(patch: Patch) -> None:
  """The gradient by what is the same for all lanes is that of the first."""

  def first(part: UOp, x: UOp, k: int, varies: bool) -> UOp:
    one = part if varies else part.shrink([(0, 1)] * k + [(0, n) for n in part.shape[k:]])
    return one.reshape(x.shape)

  patch(batching, "summed_to", first)


@transform_mutant
def a_loop_is_where_its_sources_are(patch: Patch) -> None:
  """What is carried and stacked is not brought to where the body has it."""
  patch(loop.ScanOp, "graph", lambda self, src, shape=None: self.unrolled(tuple(src)))


@transform_mutant
def what_stands_in_is_placed_as_what_it_stands_for(patch: Patch) -> None:
  patch(tracing, "anew", on_sources)


@transform_mutant
def collectives_of_one_lane(patch: Patch) -> None:
  def first(self: collectives.Reduced, nodes: tuple[UOp, ...]) -> UOp:
    return nodes[0].shrink([(0, 1 if i in self.dims else n) for i, n in enumerate(nodes[0].shape)])

  patch(collectives.Reduced, "__call__", first)


NOTICED_BY = {
  "gather_index_not_shifted": 225,
  "halo_dropped": 84,
  "table_rows_not_partial": 193,
  "operands_not_made_partial": 161,
  "every_coordinate_holds_what_is_made_partial": 161,
  "max_stays_max_when_turned_around": 252,
  "sums_multiply_part_by_part": 278,
  "floor_of_parts_of_a_sum": 744,
  "every_scatter_commutes": 852,
  "negation_of_a_product": 1584,
  "lanes_reduce_by_sums": 139,
  "own_gradients_of_one_lane": 509,
  "a_loop_is_where_its_sources_are": 334,
  "collectives_of_one_lane": 116,
}
"""Of MUTANTS that few programs notice one that does: there the search begins, and goes on from the first."""


# ---------------------------------------------------------------- what scripts notice (test_scripts.py)

OF_SCRIPTS: dict[str, Callable[[Patch], bool | None]] = {}
"""As MUTANTS; those that return True show in compiled scripts alone."""


def script_mutant(f: Callable[[Patch], bool | None]) -> Callable[[Patch], bool | None]:
  OF_SCRIPTS[f.__name__] = f
  return f


@script_mutant
def a_read_forgets_those_who_wait(patch: Patch) -> None:
  """What was computed from memory is not realised before the memory is written."""
  patch(program_order, "readers", lambda roots, known: [])


@script_mutant
def values_that_simplify_to_memory_follow_it(patch: Patch) -> None:
  """A sum over a dim of 1 is a view of what it sums."""
  wrap = Tensor._wrap.__func__
  patch(Tensor, "_wrap", classmethod(lambda cls, uop, follows=False: wrap(cls, uop, True)))


@script_mutant
def a_write_keeps_the_rest_of_no_view(patch: Patch) -> None:
  """Views that were made before a write do not see it."""
  write = Tensor._write

  def alone(self: Tensor, view: UOp, value: UOp) -> None:
    program_order.views = lambda state: [self]
    try:
      write(self, view, value)
    finally:
      del program_order.views

  patch(Tensor, "_write", alone)


@script_mutant
def settings_are_no_part_of_a_captures_key(patch: Patch) -> bool:
  """A capture is replayed where moves are refused."""
  patch(jit, "settings_from", lambda stage: ())
  return True


@script_mutant
def a_replay_keeps_its_first_arguments(patch: Patch) -> bool:
  replay = jit.Captured.replay
  first = lambda self, inputs, *rest: replay(self, self.given[: len(inputs)], *rest)  # noqa: E731
  patch(jit.Captured, "replay", first)
  return True


@script_mutant
def a_replay_writes_over_results_that_are_held(patch: Patch) -> bool:
  patch(jit.Made, "another", lambda self: self.memory)
  return True


@script_mutant
def momentum_is_forgotten(patch: Patch) -> None:
  step = optim.LARS._step

  def forgetful(self: Any, params: Any, grads: Any) -> Any:
    for b in self.b:
      b.assign(b.zeros_like())
    return step(self, params, grads)

  patch(optim.LARS, "_step", forgetful)
