"""Index arithmetic: conditions on indices, and what a movement op makes of the index of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinygrad.dtype import dtypes
from tinygrad.helpers import argsort
from tinygrad.uop import Ops, UOp, is_int, simplify, sint, upper
from tinygrad.uop.node import sint_to_uop as number

Index = tuple[UOp, ...]


def flat_index(idx: Sequence[UOp], sizes: Sequence[sint]) -> UOp:
  """Row-major: ((i0*n1 + i1)*n2 + i2)…"""
  total, stride = number(0), number(1)
  for i, n in zip(reversed(idx), reversed(sizes)):
    total, stride = i * stride + total, stride * n
  return simplify(total)


def both(a: UOp | None, b: UOp | None) -> UOp | None:
  """The conjunction of two conditions, None being True."""
  return b if a is None else a if b is None else conjunction(a, b)


def conjunction(a: UOp, b: UOp) -> UOp:
  return simplify(UOp.new(Ops.AND, dtypes.bool, (a, b)))


def at_least(x: UOp, low: sint) -> UOp:
  """low <= x"""
  return simplify(UOp.new(Ops.CMPLT, dtypes.bool, (number(low - 1), x)))


def below(x: UOp, high: sint) -> UOp:
  """x < high"""
  return simplify(UOp.new(Ops.CMPLT, dtypes.bool, (x, number(high))))


def is_true(c: UOp) -> bool:
  return c.op is Ops.CONST and bool(c.arg)


def is_false(c: UOp | None) -> bool:
  return c is not None and c.op is Ops.CONST and not c.arg


def reshape_index(idx: Index, new: Sequence[sint], old: Sequence[sint]) -> Index:
  """The index into `old` of the element that stands at `idx` in `new`: same flat position, group by group of dims
  with equal products.
  """
  out: list[UOp] = []
  i = j = 0
  while i < len(new) or j < len(old):
    i0, j0 = i, j
    a: sint = 1
    b: sint = 1
    while True:
      if i < len(new) and (i == i0 or j == len(old) or (j > j0 and upper(a) < upper(b))):
        a, i = a * new[i], i + 1
      elif j < len(old):
        b, j = b * old[j], j + 1
      if (a is b or a == b) if isinstance(a, int) or isinstance(b, int) else simplify(a) is simplify(b):
        break
      if i == len(new) and j == len(old):
        break
    if j - j0 == 1 and i - i0 == 1:
      out.append(idx[i0])
      continue
    flat = flat_index(idx[i0:i], new[i0:i])
    group: list[UOp] = []
    for k, n in reversed(list(enumerate(old[j0:j]))):
      if is_int(n, 1):
        group.append(number(0))
      elif all(is_int(m, 1) for m in old[j0 : j0 + k]):
        group.append(flat)
      else:
        group.append(simplify(flat % n))
        flat = simplify(flat // n)
    out += reversed(group)
  return tuple(out)


def _window(u: UOp, idx: Index) -> Index:
  axis, kaxis, stride, dilation, _ = u.arg
  return (*idx[:axis], simplify(idx[axis] * stride + idx[kaxis] * dilation), *idx[axis + 1 :])


MOVEMENT: dict[Ops, Callable[[UOp, Index], Index]] = {
  Ops.RESHAPE: lambda u, idx: reshape_index(idx, u.shape, u.src[0].shape),
  Ops.EXPAND: lambda u, idx: tuple(number(0) if is_int(n, 1) else i for i, n in zip(idx, u.src[0].shape)),
  Ops.PERMUTE: lambda u, idx: tuple(idx[i] for i in argsort(u.arg)),
  Ops.SHRINK: lambda u, idx: tuple(i if is_int(a, 0) else simplify(i + a) for i, (a, _) in zip(idx, u.arg)),
  Ops.FLIP: lambda u, idx: tuple(simplify(number(u.shape[k] - 1) - i) if k in u.arg else i for k, i in enumerate(idx)),
  Ops.WINDOW: _window,
}


def gated_index(u: UOp, idx: Index) -> tuple[UOp | None, Index, float | int | bool]:
  """For PAD and SPREAD: the condition under which `u[idx]` is an element of the source (None: always), which one it
  is, and the value where it is none."""
  return _pad(u, idx) if u.op is Ops.PAD else _spread(u, idx)


def _pad(u: UOp, idx: Index) -> tuple[UOp | None, Index, float | int | bool]:
  pads, fill = u.arg
  gate: UOp | None = None
  for i, (before, after), n in zip(idx, pads, u.src[0].shape):
    if not is_int(before, 0):
      gate = both(gate, at_least(i, before))
    if not is_int(after, 0):
      gate = both(gate, below(i, before + n))
  inner = tuple(simplify(i - before) for i, (before, _) in zip(idx, pads))
  return (None if gate is None or is_true(gate) else gate), inner, fill


def _spread(u: UOp, idx: Index) -> tuple[UOp | None, Index, float | int | bool]:
  axis, kaxis, stride, dilation, _ = u.arg
  at = simplify(idx[axis] - idx[kaxis] * dilation)
  gate = conjunction(at_least(at, 0), below(at, u.src[0].shape[axis] * stride))
  if stride != 1:
    gate = conjunction(gate, simplify(UOp.new(Ops.CMPEQ, dtypes.bool, (at % stride, number(0)))))
  return (None if is_true(gate) else gate), (*idx[:axis], simplify(at // stride), *idx[axis + 1 :]), 0
