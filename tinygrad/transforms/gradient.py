"""Reverse-mode differentiation on the global graph; every derivative is on its op's card."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from tinygrad.device import Device, Placement, Sharding, device_set, plain_line, reduced_placement, same_devices
from tinygrad.dtype import dtypes
from tinygrad.solver.handed import note_gradient
from tinygrad.uop import CARDS, CustomOp, Hooks, JointGradient, Ops, UOp


class JointOp(CustomOp):
  """An op whose results are computed together, each a node of its own; so are their gradients."""

  __slots__ = ()

  def together(self, u: UOp) -> Any:
    """Equal for the results of one computation, which have the same sources."""
    raise NotImplementedError

  def joint_gradient(self, parts: Sequence[tuple[UOp, UOp]]) -> Sequence[UOp | None]:
    """By each source, of some results and their gradients."""
    raise NotImplementedError


def compute_gradient(root: UOp, grad: UOp, targets: Iterable[UOp]) -> dict[UOp, UOp]:
  """For each of `targets` that `root` depends on: the sum over its elements of grad * d root / d target.

  `grad` has the shape and dtype of `root`, the results those of their targets; they live where their targets live. Only
  nodes on a path from a target to `root` are differentiated. A target on which `root` depends only by what is constant
  almost everywhere (a comparison, a rounding, a sign bit, an index) has derivative 0, as zeros. One that is not among
  what `root` is computed from, or only behind a DETACH or a write to memory, is missing from the result, and so is one
  that is no float.
  """
  return compute_gradients([(root, grad)], targets)


def compute_gradients(roots: Sequence[tuple[UOp, UOp]], targets: Iterable[UOp]) -> dict[UOp, UOp]:
  """`compute_gradient` of several roots, each with its gradient, together: the sum of theirs."""
  grads: dict[UOp, UOp] = {}
  for root, grad in roots:
    grads[root] = grads[root].alu(Ops.ADD, grad) if root in grads else grad
  order = _order(roots[0][0] if len(roots) == 1 else UOp.sink(*grads))
  wanted = occurrences(order, targets)
  places = set(itertools.chain.from_iterable(wanted.values()))
  needed: set[UOp] = set()
  for u in order:
    if u in places or any(s in needed for s in sources(u)):
      needed.add(u)
  caller = Hooks.origin
  try:
    found = _delivered(wanted, _accumulate(order, places, needed, grads))
  finally:
    Hooks.origin = caller
  reached = _reached(order)
  flat = [t for t, us in wanted.items() if t not in found and dtypes.is_float(t.dtype) and not reached.isdisjoint(us)]
  return found | {t: _deliver(t.const_like(0.0), t.device) for t in flat}


def sources(u: UOp) -> tuple[UOp, ...]:
  """What a derivative of `u` is taken by: what it is computed from, unless that is detached, written to memory, or the
  derivative given."""
  if u.op is Ops.DETACH:
    return () if u.arg is None else u.arg.inputs
  return () if u.op is Ops.AFTER else u.src


def _order(root: UOp) -> list[UOp]:
  """All nodes below `root`, sources first; the inputs of what has a gradient of its own in place of its sources."""
  order = root.toposort()
  if not any(u.op is Ops.DETACH and u.arg is not None for u in order):
    return order
  done: dict[UOp, None] = {}
  stack: list[tuple[UOp, bool]] = [(root, False)]
  while stack:
    u, below_done = stack.pop()
    if below_done:
      done[u] = None
    elif u not in done:
      stack.append((u, True))
      stack += [(s, False) for s in reversed(u.src if u.op is not Ops.DETACH else sources(u)) if s not in done]
  return list(done)


def _reached(order: list[UOp]) -> set[UOp]:
  """What the last node of `order` (sources first) depends on: by values, not behind a DETACH or an AFTER."""
  reached = {order[-1]}
  for u in reversed(order):
    if u in reached:
      reached.update(sources(u))
  return reached


def occurrences(order: Sequence[UOp], targets: Iterable[UOp]) -> dict[UOp, list[UOp]]:
  """The nodes of a graph that hold the value of each of `targets`; those that it does not contain are left out.

  Where placement inserted moves there may be several: a product that is summed is placed anew, an EXPAND made again of
  a moved source. They are equal but for implied moves. Of such a move the source is what counts, to which its gradient
  flows. What lives on a single device is also found where it was made again of a source brought beside a sharded
  operand.
  """
  if not any(is_implied(u) for u in order):
    present = set(order)
    return {t: [t] for t in targets if t in present}
  plain: dict[UOp, UOp] = {}  # without implied moves
  alike: dict[UOp, list[UOp]] = {}
  for u in order:
    v = _plain(u, plain)
    if not is_implied(u) or is_brought(u):
      alike.setdefault(v, []).append(u)
  found: dict[UOp, list[UOp]] = {}
  for t in targets:
    for u in t.toposort(lambda u: u not in plain):
      _plain(u, plain)
    if places := [u for u in alike.get(plain[t], ()) if _stands_for(u, t)]:
      found[t] = places
  return found


def _stands_for(u: UOp, t: UOp) -> bool:
  """Whether u, equal to `t` but for implied moves, is an occurrence of it: on its devices, or made again of what was
  brought from its device. The move that brings `t` itself is none: its gradient flows to `t`."""
  if u.device is None or t.device is None or same_devices(u.device, t.device):
    return True
  return isinstance(t.device, str) and isinstance(u.device, Sharding) and not is_brought(u)


def is_implied(u: UOp) -> bool:
  """Whether u is a move that placement has inserted: on one device set, or of what is brought to a sharded operand."""
  if u.op is not Ops.MOVE or u.arg.pinned:
    return False
  return u.src[0].device is None or same_devices(u.src[0].device, u.arg.device) or is_brought(u)


def is_brought(u: UOp) -> bool:
  """Whether u is an implied move from a single device to the devices of a sharded operand. So is the gradient of the
  user's move the other way."""
  if u.op is not Ops.MOVE or u.arg.pinned or not isinstance(u.arg.device, Sharding):
    return False
  here = u.src[0].device
  return isinstance(here, str) and not same_devices(here, u.arg.device)


def _plain(u: UOp, plain: dict[UOp, UOp]) -> UOp:
  """Notes, and returns, `u` without the implied moves below it, given those that its sources are."""
  src = tuple([plain.get(s, s) for s in u.src])  # what has a gradient of its own is not looked into
  plain[u] = v = src[0] if is_implied(u) else u if src == u.src else UOp.new(u.op, u.dtype, src, u.arg)
  return v


def _accumulate(order: list[UOp], wanted: set[UOp], needed: set[UOp], grads: dict[UOp, UOp]) -> dict[UOp, UOp]:
  """From the root's gradient to those of the `wanted`; what is built is said to come from the forward node's line. What
  was computed together waits for the first of it: none of it depends on another, and all on the same."""
  joint = {u: key for u in order if (key := _together(u)) is not None}
  first = {key: u for u, key in reversed(joint.items())}
  waiting: dict[Any, list[tuple[UOp, UOp]]] = {key: [] for key in first}
  for u in reversed(order):
    g = grads.get(u) if u in needed else None
    if u in joint and g is not None:
      waiting[joint[u]].append((u, g))
    ready = g is not None if u not in joint else u is first[joint[u]] and waiting[joint[u]]
    if ready and u.op is not Ops.SINK and any(s in needed for s in sources(u)):
      Hooks.origin = plain_line(u.origin)
      for s, part in zip(sources(u), _parts(u, g, waiting[joint[u]] if u in joint else []), strict=True):
        if part is not None and s in needed:
          grads[s] = grads[s].alu(Ops.ADD, part) if s in grads else part
      if u not in wanted:
        grads.pop(u, None)
  return grads


def _together(u: UOp) -> Any:
  """Equal for nodes whose gradients are computed together, which have the same sources; None for a node alone."""
  if u.op is Ops.CUSTOM and isinstance(u.arg[1], JointOp):
    return u.arg[1].together(u)
  return (u.arg.joint, u.arg.inputs) if u.op is Ops.DETACH and isinstance(u.arg, JointGradient) else None


def _parts(u: UOp, g: UOp | None, together: Sequence[tuple[UOp, UOp]]) -> Sequence[UOp | None]:
  """The gradient by each source of a node; of what was computed together, of all of it."""
  if together and u.op is Ops.DETACH:
    own: JointGradient = u.arg
    return own.joint([v.arg.number for v, _ in together], tuple([part for _, part in together]), own.inputs)
  if together:
    op: JointOp = u.arg[1]
    return op.joint_gradient(together)
  assert g is not None
  rule = CARDS[u.op].gradient if u.op is not Ops.DETACH else _own_gradient
  if rule is None:
    raise RuntimeError(f"no gradient passes {u.op.name}\n  fix: detach() the value before it")
  return rule(g, u)


def _own_gradient(g: UOp, u: UOp) -> tuple[UOp | None, ...]:
  return tuple(u.arg.rule(g, u.arg.inputs))


def _delivered(wanted: dict[UOp, list[UOp]], grads: dict[UOp, UOp]) -> dict[UOp, UOp]:
  """The gradient of each target, the sum of those of its occurrences, where it lives."""
  found: dict[UOp, UOp] = {}
  for t, places in wanted.items():
    if parts := [grads[u] for u in places if u in grads]:
      Hooks.origin = plain_line(parts[0].origin)
      g = functools.reduce(lambda g, part: g.alu(Ops.ADD, part), _gathered(parts, t))
      note_gradient(g, t)
      found[t] = _deliver(g, t.device)
  return found


def _gathered(parts: Sequence[UOp], t: UOp) -> list[UOp]:
  """The parts of the gradient of `t` on its devices, those of each other device set summed there and moved once."""
  if t.device is None:
    return list(parts)
  sums: dict[tuple[str, ...], UOp] = {}
  for part in parts:
    key = () if part.device is None else device_set(part.device)
    sums[key] = sums[key].alu(Ops.ADD, part) if key in sums else part
  here = [g.device is None or same_devices(g.device, t.device) for g in sums.values()]
  return [g if stays else _deliver(g, t.device) for g, stays in zip(sums.values(), here, strict=True)]


def _deliver(g: UOp, device: Placement | None) -> UOp:
  """A gradient at its tensor's placement; a constant lives anywhere, so it only moves off the default device."""
  if device is None or g.device == device or (g.device is None and device == Device.DEFAULT):
    return g
  reduced = reduced_placement(device)
  return g.copy_to_device(reduced) if g.device is None else g.move(reduced, pinned=False)
