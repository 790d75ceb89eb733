"""A graph with its buffers numbered and its variables unbound: the key of its plan."""

from __future__ import annotations

import itertools
from typing import Any

from tinygrad.device import Sharding
from tinygrad.uop import BufferArg, GroupOp, Ops, UOp, substitute
from tinygrad.uop.node import map_arg


def canonical(sink: UOp, first: int = -1) -> tuple[UOp, list[UOp], dict[str, int]]:
  """`sink` with its buffers numbered in order, from `first` down, and its variables unbound: the key of its plan. Also
  the buffers, and the variables' values.

  Raises ValueError if a variable is bound to two values."""
  buffers: list[UOp] = []
  values: dict[str, int] = {}
  mapping = {v.bind(n): v for v, n in sink.bound}
  for v, n in sorted(sink.bound, key=lambda x: x[1]):
    if (known := values.setdefault(v.arg[0], n)) != n:
      problem = f"variable {v.arg[0]} is bound to {known} and to {n} in one computation"
      raise ValueError(f"{problem}\n  fix: realize what has the one value first, or use two names")
  changed: list[UOp] = []  # what does not only follow from its changed sources
  copies = itertools.count()  # each CONTIGUOUS is told apart by a number, which here becomes its place in the order

  for u in sink.toposort():
    if u.op is Ops.BUFFER:
      mapping[u] = UOp.new(Ops.BUFFER, u.dtype, (), BufferArg(first - len(buffers), u.arg.shape, u.arg.device))
      buffers.append(u)
    elif u.op is Ops.CONST and u.src:
      mapping[u] = UOp.const(u.dtype, u.arg)
    elif (
      u.op is Ops.CONTIGUOUS
      or (u.op is Ops.DETACH and u.arg is not None)
      or (u.op in GroupOp.Rearranging and u.src[0].op in GroupOp.Rearranging)  # two of a kind in a row are one
    ):
      changed.append(u)
  for u in changed:  # sources first, so that what is replaced holds what was replaced before
    x = substitute(u.src[0], {}, mapping)
    if u.op is Ops.CONTIGUOUS:
      mapping[u] = u.replace(src=(x,), arg=next(copies))
    elif u.op is Ops.DETACH:
      mapping[u] = u.replace(src=(x,), arg=None)
    else:
      mapping[u] = at_once(u, x, map_arg(u.arg, lambda v: substitute(v, {}, mapping)))
  return substitute(sink, {}, mapping), buffers, values


def at_once(u: UOp, x: UOp, arg: Any) -> UOp:
  """x rearranged as `u` does it, by `arg`; what x does to the same end is done with it. (The user's graph has both, for
  each is a value that a derivative may be asked by.)"""
  if x.op is not u.op or (u.op is not Ops.PERMUTE and isinstance(u.device, Sharding)):
    return u.replace(src=(x,), arg=arg)
  y = x.src[0]
  if u.op is Ops.PERMUTE:
    arg = tuple([x.arg[i] for i in arg])
  same = arg == (y.shape if u.op is Ops.RESHAPE else (*range(u.ndim),))
  return y if same else u.replace(src=(y,), arg=arg)
