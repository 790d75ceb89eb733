"""Versions of buffers: which ASSIGNs have happened to the memory that a node stands for."""

from tinygrad.uop import Ops, UOp

Version = frozenset[UOp]  # the ASSIGNs that a reader of a buffer sees
State = tuple[int, Version]  # the content of a slot at a time


def stands_for_memory(op: Ops) -> bool:
  """Of its source: what is read is what lies there."""
  return op is Ops.AFTER or op is Ops.SHARD or op is Ops.DETACH


class Versions:
  """The versions that the nodes of one graph see."""

  def __init__(self) -> None:
    self.seen: dict[UOp, Version] = {}
    self.assigns: dict[UOp, Version] = {}

  def of(self, u: UOp) -> Version:
    """The ASSIGNs that have happened to the buffer that `u` stands for."""
    chain = [u]
    while chain[-1] not in self.seen and stands_for_memory(chain[-1].op):
      chain.append(chain[-1].src[0])
    for v in reversed(chain):
      if v not in self.seen:
        below = self.seen[v.src[0]] if stands_for_memory(v.op) else frozenset()
        self.seen[v] = below.union(*(self.assigned(s) for s in v.src[1:])) if v.op is Ops.AFTER else below
    return self.seen[u]

  def assigned(self, root: UOp) -> Version:
    """The ASSIGNs among and below `root`."""
    for u in root.toposort(lambda u: u not in self.assigns):
      own = (u,) if u.op is Ops.ASSIGN else ()
      parts = {self.assigns[s] for s in u.src} - {frozenset()}
      self.assigns[u] = parts.pop() if len(parts) == 1 and not own else frozenset(own).union(*parts)
    return self.assigns[root]
