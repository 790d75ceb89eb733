"""Decisions by abstract value: each is made once and kept, for the hooks of `UOp` as for `place`; and how they are
applied to the values themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement, ShardError
from tinygrad.dtype import DType
from tinygrad.helpers import PROCESS, STRATEGY, Settings, settings_from
from tinygrad.ops import Trait, having
from tinygrad.sharding.abstract_values import CHAINED, COMPARED, abstract_of, distinguished, leaves, rebuilt
from tinygrad.sharding.costs import Costs, at_placement
from tinygrad.sharding.decisions import decide
from tinygrad.sharding.outcomes import CACHED, Nodes, is_partial, outcomes, ways_found
from tinygrad.uop import GroupOp, Ops, UOp

AS_GIVEN = having(Trait.IDENTITY) - GroupOp.KeepsPlacement  # their arg or their sources say where they are
HELD = having(Trait.IDENTITY) & GroupOp.KeepsPlacement  # whose arg says nothing of where they are
known_costs = Costs(PROCESS.table())  # of abstract values


@dataclass(frozen=True, slots=True)
class OpPlacement:
  """How an op runs on sources with the abstract values `src`: they are brought to `forms`; `result` is the abstract
  value of what comes out. `fixed`: whatever is charged for reducing that. `asks`: the partial sources, and the
  placement that they are reduced to, None if they stay partial."""

  src: Nodes
  forms: Nodes
  result: UOp
  fixed: bool
  asks: tuple[tuple[int, Placement | None], ...]

  @staticmethod
  def of(src: Nodes, forms: Nodes, result: UOp, fixed: bool, at: Placement | None = None) -> OpPlacement:
    """`at`: where a move brings its source."""
    wanted = [at or x.device for x in forms]
    asks = [(i, None if is_partial(p) else p) for i, (s, p) in enumerate(zip(src, wanted)) if is_partial(s.device)]
    return OpPlacement(src, src if forms == src else forms, result, fixed, tuple(asks))


steps: dict[tuple[Any, ...], OpPlacement] = PROCESS.table()


def forget() -> None:
  """Empties the tables: they are full."""
  for table in (steps, leaves, ways_found):
    table.clear()
  known_costs.memo.clear()


def settings() -> Settings:
  """What decisions depend on besides the sources."""
  return settings_from("placement", "placement")


def roots_step(sink: UOp, src: Nodes) -> OpPlacement:
  """The roots, of these abstract values, where their Tensors show them."""
  return OpPlacement.of(src, tuple([at_placement(x, s.device) for x, s in zip(src, sink.src)]), sink, True)


def step_of(op: Ops, dtype: DType, src: Nodes, arg: Any, later: float | None, under: Settings) -> OpPlacement:
  """How an op runs on sources with these abstract values, under these settings. Cached, for the same decisions come
  again in every layer."""
  if op in HELD:
    arg = None
  key = (op, dtype, src, arg, later, under)
  if (found := steps.get(key)) is None:
    if len(steps) > CACHED:
      forget()
    forms, fixed = src, True
    if op is Ops.ASSIGN:
      forms = (src[0], at_placement(src[1], src[0].device))
    elif op not in AS_GIVEN:
      forms = decide(op, dtype, src, arg, later, known_costs)
      fixed = op is not Ops.REDUCE and not any(
        is_partial(o.result) for o in outcomes(op, dtype, src, arg, STRATEGY.value)
      )
    result = abstract_of(UOp.new(op, dtype, forms, arg))
    found = steps[key] = OpPlacement.of(src, forms, result, fixed, arg.device if op is Ops.MOVE else None)
  return found


def build(op: Ops, dtype: DType, src: Nodes, arg: Any) -> UOp:
  """The node of a user's op, after its sources have been brought to where `decide` wants them (of the table)."""
  seen = tuple([abstract_of(s) for s in src])
  if op in COMPARED:
    seen = distinguished(op, src, seen)
  try:
    step = step_of(op, dtype, seen, arg, None, settings())
  except ShardError as e:
    raise error_of(op, dtype, src, arg) or e from None
  u = applied(step, op, dtype, src, arg)
  u.abstract = step.result
  return u


def error_of(op: Ops, dtype: DType, src: Nodes, arg: Any) -> ShardError | None:
  """What deciding on the operands themselves raises: abstract values don't know by which names the user placed them."""
  try:
    decide(op, dtype, src, arg, None, Costs())
  except ShardError as e:
    return e
  return None


# ---------------------------------------------------------------- from abstract values to values


def applied(step: OpPlacement, op: Ops, dtype: DType, src: Nodes, arg: Any) -> UOp:
  """The node on `src`, whose abstract values the step is made for."""
  if step.forms is not step.src:
    src = tuple([realized(f, o, s) for f, o, s in zip(step.forms, step.src, src)])
  u = UOp.new(op, dtype, src, arg)
  u.shape, u.device = step.result.shape, step.result.device
  return u


def realized(form: UOp, seen: UOp, u: UOp) -> UOp:
  """`u`, whose abstract value is `seen`, in the given form of it."""
  if form is seen:
    return u
  known = {seen: u}
  while seen.op in CHAINED:
    seen, u = seen.src[0], u.src[0]
    known[seen] = u
  return _realized(form, seen, u, known)


def _realized(form: UOp, end: UOp, u: UOp, known: dict[UOp, UOp]) -> UOp:
  if (found := known.get(form)) is not None:
    return found
  if form.op is Ops.MUL:  # at the end of the chain: a product placed anew
    assert end.op is Ops.MUL, f"{form!r} is made of {end!r}"
    return rebuilt(form, tuple([realized(f, o, s) for f, o, s in zip(form.src, end.src, u.src)]), form.arg)
  return rebuilt(form, (_realized(form.src[0], end, u, known),), form.arg)
