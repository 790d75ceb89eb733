"""A graph with its buffers numbered and its variables unbound: the key of its plan."""

from __future__ import annotations

import itertools
from typing import Any

from tinygrad.device import Sharding
from tinygrad.uop import BufferArg, GroupOp, Ops, UOp, substitute


def canonical(sink: UOp, first: int = -1) -> tuple[UOp, list[UOp], dict[str, int]]:
  """`sink` with its buffers numbered in order, from `first` down, and its variables unbound: the key of its plan. Also
  the buffers, and the variables' values.

  Raises ValueError if a variable is bound to two values."""
  buffers: list[UOp] = []
  values: dict[str, int] = {}
  mapping = {v.bind(n): v for v, n in sink.bound}
  for v, n in sorted(sink.bound, key=lambda x: (x[0].arg[0], x[1])):
    if (known := values.setdefault(v.arg[0], n)) != n:
      problem = f"variable {v.arg[0]} is bound to {known} and to {n} in one computation"
      raise ValueError(f"{problem}\n  fix: realize what has the one value first, or use two names")
  copies = itertools.count()  # each CONTIGUOUS is told apart by a number, which here becomes its place in the order

  def numbered(u: UOp, *_: Any) -> UOp:
    buffers.append(u)
    return UOp.new(Ops.BUFFER, u.dtype, (), BufferArg(first + 1 - len(buffers), u.arg.shape, u.arg.device))

  rules = dict.fromkeys(GroupOp.Rearranging, at_once) | {
    Ops.BUFFER: numbered,
    Ops.CONST: lambda u, *_: UOp.const(u.dtype, u.arg) if u.src else u,
    Ops.CONTIGUOUS: lambda u, src, _: u.replace(src=src, arg=next(copies)),
    Ops.DETACH: lambda u, src, _: u.replace(src=src, arg=None),
  }
  return substitute(sink, mapping, rules=rules), buffers, values


def at_once(u: UOp, src: tuple[UOp, ...], arg: Any) -> UOp:
  """`u` over other sources; what the source does to the same end is done with it: two rearrangements of a kind in a row
  are one. (The user's graph has both, for each is a value that a derivative may be asked by.)"""
  (x,) = src
  if x.op is not u.op or (u.op is not Ops.PERMUTE and isinstance(u.device, Sharding)):
    return u.replace(src=src, arg=arg)
  y = x.src[0]
  if u.op is Ops.PERMUTE:
    arg = tuple([x.arg[i] for i in arg])
  same = arg == ((*range(u.ndim),) if u.op is Ops.PERMUTE else y.shape)
  return y if same else u.replace(src=(y,), arg=arg)
