"""The bytes of memory that ops read and write, uncut, where kernels are as `fused_ones` says: each computes what is
stored, and all that only it reads."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.helpers import prod
from tinygrad.solver.auto.memory import is_view
from tinygrad.solver.graph import Asked
from tinygrad.uop import GroupOp, Ops, UOp


def nbytes_of(u: UOp) -> float:
  return float(prod(u.max_shape) * u.dtype.itemsize)


def read_by(sources: Sequence[UOp], fused: set[UOp]) -> dict[UOp, float]:
  """What is read of stored values for these sources of a kernel: of what is behind a slice no more than that shows.
  What is computed in the kernel by an op that is priced itself is not looked into."""
  most = dict.fromkeys(sources, float("inf"))  # elements
  found: dict[UOp, float] = {}
  todo = list(most)
  while todo:
    u = todo.pop()
    if u not in fused:
      if u.device is not None:
        found[u] = min(nbytes_of(u), most[u] * u.dtype.itemsize)
    elif is_view(u) or u.op in GroupOp.KeepsPlacement:
      seen = min(most[u], prod(u.max_shape)) if u.op is Ops.SHRINK else most[u]
      for s in u.src[:1] if u.op is Ops.AFTER else u.src:
        if seen > most.get(s, 0.0):
          most[s] = seen
          todo.append(s)
  return found


def by_elementwise(asked: Asked, fused: set[UOp]) -> list[float]:
  """Of each value the bytes that elementwise kernels write, and read, of it."""
  touched = [0.0] * len(asked.nodes)
  for v, u in enumerate(asked.nodes):
    if u.op in GroupOp.Elementwise and u not in fused:
      touched[v] += nbytes_of(u)
      for s, n in read_by(u.src, fused).items():
        if (i := asked.number.get(s)) is not None:
          touched[i] += n
  return touched


def is_heavy(u: UOp) -> bool:
  """Whether an op reads memory itself: it is no view, and computed elementwise in the kernel that needs it."""
  return u.op is Ops.ASSIGN or not (is_view(u) or u.op in GroupOp.KeepsPlacement)


def by_op(u: UOp, sources: Sequence[UOp], fused: set[UOp]) -> list[float]:
  """Of each source of an op that reads memory, and of its result, the bytes that it reads or writes. A source that
  comes twice is read once."""
  of_sources = []
  known: set[UOp] = set()
  for s in sources:
    reads = read_by([s], fused) if u.op is not Ops.ASSIGN or s is not u.src[0] else {}
    of_sources.append(sum(n for x, n in reads.items() if x not in known))
    known.update(reads)
  if u.op is Ops.GATHER:
    of_sources[0] = min(of_sources[0], nbytes_of(u))
  return [*of_sources, nbytes_of(u) if u not in fused or u.op is Ops.ASSIGN else 0.0]
