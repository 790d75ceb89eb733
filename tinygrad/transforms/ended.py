"""Where gradients end without a word: a realize leaves memory in the place of a graph. What has become memory is noted
with the tensors whose gradient would have flowed through it, so that who asks for that is told."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.program_order import memory_state, program_order
from tinygrad.helpers import Holder, living, source_line
from tinygrad.transforms.gradient import occurrences, sources
from tinygrad.uop import Ops, Ref, UOp, describe, side_table

_ended: dict[Ref, tuple[Holder, ...]] = side_table()
"""Of memory: the tensors with requires_grad that its value was computed from."""
_written: dict[Ref, dict[Holder, None]] = side_table()
"""Of a node: the tensors with requires_grad that stood for it until they were written to."""


def note_written(t: Any) -> None:
  """Before a tensor is written to: what was computed from its content is no function of what it is then."""
  if t.requires_grad:
    _written.setdefault(t.uop.ref, {})[t._holder] = None


def _stood(u: UOp) -> list[Any]:
  """The tensors with requires_grad that stood for `u` and have been written to since."""
  return [t for t in living(_written.get(u.ref, ())) if t.requires_grad and t.uop is not u]


def note_ended(standing: Iterable[Any], order: Sequence[UOp], made: dict[UOp, UOp]) -> None:
  """Before computed values become memory (`made`: value to buffer): notes which tensors of those that live, and ask for
  a gradient, each of them depends on; also by way of what became memory before. `order`: the graph of the values;
  `standing`: the tensors that may stand for one of its nodes."""
  computed = {u: v.base for u, v in made.items() if memory_state(u) is None and dtypes.is_float(u.dtype)}
  if not computed:
    return
  stood = {u: _stood(u) for u in order if u.ref in _written}
  before = [t for u in order for t in (*stood.get(u, ()), *living(_ended.get(u.ref, ())))]
  takers = [*{id(t): t for t in (*standing, *before) if t.requires_grad}.values()]
  if not takers:
    return
  places = occurrences(order, [t.uop for t in takers])
  own: dict[UOp, int] = {}  # a bit for each taker
  bits = {t._holder: 1 << i for i, t in enumerate(takers)}
  for t in takers:
    for u in places.get(t.uop, ()):
      own[u] = own.get(u, 0) | bits[t._holder]
  reached: dict[UOp, int] = {}
  for u in order:
    found = own.get(u, 0)
    for t in stood.get(u, ()):
      found |= bits.get(t._holder, 0)
    if dtypes.is_float(u.dtype):
      for s in sources(u):
        found |= reached.get(s, 0)
      if u.op is Ops.BUFFER and u.ref in _ended:
        for holder in _ended[u.ref]:
          found |= bits.get(holder, 0)
    reached[u] = found
  for u, buffer in computed.items():
    tensors = tuple([t._holder for t in takers if reached[u] & bits[t._holder] and t.uop is not u])
    if tensors:
      _ended[buffer.ref] = tensors


class EndedGradients:
  """What the engine calls, of memory that a realize makes, and of what a captured step makes again in each replay."""

  note_made = staticmethod(note_ended)

  @staticmethod
  def noted(u: UOp, given: Sequence[Any]) -> tuple[Holder | int, ...]:
    """What is noted of memory that a step made, with the numbers of those tensors that were given to it."""
    numbers: dict[Holder, Holder | int] = {x._holder: i for i, x in enumerate(given) if type(x) is not UOp}
    found: list[Holder | int] = [numbers.get(h, h) for h in _ended.get(u.ref, ())]
    return tuple(found)

  @staticmethod
  def note(u: UOp, noted: Iterable[Holder | int], given: Sequence[Any]) -> UOp:
    """The same of what a replay made of others that were given. Returns `u`."""
    _ended[u.ref] = tuple([given[x]._holder if isinstance(x, int) else x for x in noted])
    return u


program_order.ended = EndedGradients


def check_not_ended(name: str, root: UOp, asked: Collection[Any] | None, leaves: Iterable[UOp]) -> None:
  """RuntimeError if `root` depends on a tensor with requires_grad, one of those `asked` if they are given, by way of
  memory that was computed from it, or by what it was before a write, but for `leaves`, which gradients are for."""
  leaves = set(leaves)
  stack, seen = [root] if _ended or _written else [], leaves - {root}
  while stack:
    u = stack.pop()
    if u in seen:
      continue
    seen.add(u)
    stack += [s for s in sources(u) if dtypes.is_float(s.dtype)]
    before = [t for t in _stood(u) if asked is None or any(t is x for x in asked)]
    if before and leaves.isdisjoint(u.toposort()):  # else it was computed itself: the gradient goes on to a leaf
      rule = "the value was computed from a tensor with requires_grad before a write to it (assign, x[..] = value)"
      fix = f"call {name}() before the write; or compute the value from x.detach(), if x is a constant there"
      raise RuntimeError(f"{name}: {rule}\n    requires_grad: {describe(before[0].uop)}\n  fix: {fix}")
    if u.op is not Ops.BUFFER or (holders := _ended.get(u.ref)) is None:
      continue
    lost = [t for t in living(holders) if t.requires_grad and (asked is None or any(t is x for x in asked))]
    if lost:
      line = "" if u.origin is None else f" in {source_line(*u.origin)}"
      tensors = "".join(f"\n    requires_grad: {describe(t.uop)}" for t in lost[:3])
      more = f"\n    and {len(lost) - 3} more" if len(lost) > 3 else ""
      rule = "a gradient flows through no realized tensor, and this one was computed from what takes a gradient"
      fix = "realize() it after that, numpy() and item() leave it as it is, and a TinyJit's result is realized: call"
      fix += f" {name}() inside; or use its detach() if it is a constant"
      raise RuntimeError(f"{name}: {rule}\n    realized: {describe(u)}{line}{tensors}{more}\n  fix: {fix}")
