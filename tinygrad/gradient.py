"""Reverse-mode differentiation on the global graph; every derivative is on its op's card."""

from collections.abc import Iterable

from tinygrad.device import Device, Placement, Sharding
from tinygrad.uop import CARDS, Hooks, Ops, UOp


def compute_gradient(root: UOp, grad: UOp, targets: Iterable[UOp]) -> dict[UOp, UOp]:
  """For each of `targets` that `root` depends on: the sum over its elements of grad * d root / d target.

  `grad` has the shape and dtype of `root`, the results those of their targets; they live where their targets live. Only
  nodes on a path from a target to `root` are visited. A target that `root` does not depend on differentiably is missing
  from the result.
  """
  wanted, order = dict.fromkeys(targets), root.toposort()
  needed: set[UOp] = set()
  for u in order:
    if u in wanted or (u.op is not Ops.DETACH and any(s in needed for s in u.src)):
      needed.add(u)
  caller = Hooks.origin
  try:
    return _accumulate(order, wanted, needed, {root: grad})
  finally:
    Hooks.origin = caller


def _accumulate(order: list[UOp], wanted: dict[UOp, None], needed: set[UOp], grads: dict[UOp, UOp]) -> dict[UOp, UOp]:
  """From the root's gradient to those of the `wanted`; what is built is said to come from the forward node's line."""
  for u in reversed(order):
    g = grads.get(u) if u in needed else None
    if g is None or not any(s in needed for s in u.src):
      continue
    rule = CARDS[u.op].gradient
    if rule is None:
      raise RuntimeError(f"no gradient passes {u.op.name}\n  fix: detach() the value before it")
    Hooks.origin = u.origin
    for s, part in zip(u.src, rule(g, u), strict=True):
      if part is not None and s in needed:
        grads[s] = grads[s].alu(Ops.ADD, part) if s in grads else part
    if u not in wanted:
      del grads[u]
  found: dict[UOp, UOp] = {}
  for t in wanted:
    if t in grads:
      Hooks.origin = grads[t].origin
      found[t] = _deliver(grads[t], t.device)
  return found


def _deliver(g: UOp, device: Placement | None) -> UOp:
  """A gradient at its tensor's placement; a constant lives anywhere, so it only moves off the default device."""
  if device is None or g.device == device or (g.device is None and device == Device.DEFAULT):
    return g
  settled = device.settled if isinstance(device, Sharding) else device
  return g.copy_to_device(settled) if g.device is None else g.move(settled, pinned=False)
