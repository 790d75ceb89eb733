"""Movement ops: the same elements at other indices. Their gradients are their adjoints."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import all_int, argsort, numpy, prod
from tinygrad.ops.common import define_movement, own_dims
from tinygrad.uop import (
  Ops,
  PartialRule,
  Trait,
  UOp,
  as_dims,
  is_int,
  linear,
  render_shape,
  simplify,
  simplify_sint,
  sint,
)
from tinygrad.uop.cards import Element, Factors
from tinygrad.uop.indexing import Index, at_least, below, both, reshape_index
from tinygrad.uop.node import sint_to_uop as number

Grads = Sequence[UOp | None]
PRIMES = (1000003, 1000033, 1000037, 1000039, 1000081, 1000099, 1000117, 1000121)


# ---------------------------------------------------------------- RESHAPE


def reshape_shape(u: UOp) -> tuple[Any, ...]:
  have, want = simplify_sint(prod(u.src[0].shape)), simplify_sint(prod(u.arg))
  if have is not want and have != want and _elements(u.src[0].shape) != _elements(u.arg):
    shapes = f"{render_shape(u.src[0].shape)} to {render_shape(u.arg)}"
    raise ValueError(f"cannot reshape {shapes}: the number of elements differs")
  return u.arg  # type: ignore[no-any-return]


def _parts(n: sint) -> tuple[int, tuple[UOp, ...]]:
  """A dim as a number times expressions: what is no product, without the number that divides all of it."""
  if isinstance(n, int):
    return n, ()
  a = linear(simplify(n))
  k = math.gcd(a.const, *a.terms.values())
  atom = next(iter(a.terms)) if len(a.terms) == 1 and a.const == 0 else simplify(n // k)
  if atom.op is not Ops.MUL:
    return k, (atom,)
  (i, left), (j, right) = (_parts(x) for x in atom.src)
  return k * i * j, left + right


def _elements(shape: Sequence[sint]) -> tuple[int, Counter[UOp]]:
  """How many: a number times expressions, each so many times."""
  parts = [_parts(n) for n in shape]
  return prod(k for k, _ in parts), Counter(x for _, xs in parts for x in xs)


def _stand_in(n: sint, primes: dict[UOp, int]) -> int:
  """A symbolic dim as a number whose factors tell its symbols: each is a prime of its own."""
  k, symbols = _parts(n)
  return prod([k, *(primes.setdefault(x, PRIMES[len(primes) % len(PRIMES)]) for x in symbols)])


def factors_reshape(u: UOp) -> Factors:
  """Dims of both shapes split into their common factors, major to minor; where there is none, up to the next point at
  which the element counts agree, they are opaque (blocked)."""
  primes: dict[UOp, int] = {}
  a, b = ([_stand_in(n, primes) for n in dims] for dims in (u.src[0].shape, u.arg))
  upper = {p: atom.vmax for atom, p in primes.items()}
  fa: list[list[int]] = [[] for _ in a]
  fb: list[list[int]] = [[] for _ in b]
  sizes, blocked = list[int](), set[int]()
  if 0 in a or 0 in b:
    return Factors((tuple(() for _ in a),), tuple(() for _ in b), ())

  def factor(n: int, *dims: list[int]) -> None:
    for inner in dims:
      inner.append(len(sizes))
    sizes.append(n)

  left, right = list(a), list(b)
  i = j = 0
  while True:
    while i < len(a) and left[i] == 1:
      i += 1
    while j < len(b) and right[j] == 1:
      j += 1
    if i >= len(a) or j >= len(b):
      break
    if (g := math.gcd(left[i], right[j])) > 1:
      factor(g, fa[i], fb[j])
      left[i], right[j] = left[i] // g, right[j] // g
      continue
    have, want, opaque = left[i], right[j], len(sizes)  # no common factor: opaque until the element counts meet again
    factor(have, fa[i])
    factor(want, fb[j])
    while have != want:
      if have < want:
        i += 1
        factor(left[i], fa[i])
        have *= left[i]
      else:
        j += 1
        factor(right[j], fb[j])
        want *= right[j]
    i, j = i + 1, j + 1
    blocked.update(range(opaque, len(sizes)))
  real = tuple(n if not primes else _upper(n, upper) for n in sizes)
  for dims in fa + fb:
    if any(real[f] != sizes[f] for f in dims[1:]):  # its blocks are no blocks of what it is joined to
      blocked.update(dims)
  return Factors((tuple(map(tuple, fa)),), tuple(map(tuple, fb)), real, frozenset(blocked))


def _upper(n: int, upper: dict[int, int]) -> int:
  for p, most in upper.items():
    while n % p == 0:
      n = n // p * most
  return n


define_movement(
  Ops.RESHAPE, shape=reshape_shape, evaluate=lambda u, xs, shape: xs[0].reshape(shape),
  gradient=lambda g, u: (g.reshape(u.src[0].shape),), factors=factors_reshape, partial=PartialRule.KEEP,
  index_map=lambda u, idx: Element(reshape_index(idx, u.shape, u.src[0].shape)),
  traits=Trait.VIEW | Trait.ONTO | Trait.ONE_TO_ONE | Trait.SEEN_THROUGH,
)  # fmt: skip

# ---------------------------------------------------------------- PERMUTE, EXPAND


def permute_shape(u: UOp) -> tuple[Any, ...]:
  if sorted(u.arg) != list(range(u.src[0].ndim)):
    raise ValueError(f"permute of {render_shape(u.src[0].shape)} by {u.arg}: not a permutation of its dims")
  return tuple(u.src[0].shape[i] for i in u.arg)


define_movement(
  Ops.PERMUTE, shape=permute_shape, evaluate=lambda u, xs, shape: xs[0].transpose(u.arg),
  gradient=lambda g, u: (g.permute(argsort(u.arg)),),
  factors=lambda u: Factors((own_dims(u.src[0]),), tuple((i,) for i in u.arg), u.src[0].max_shape),
  partial=PartialRule.KEEP, index_map=lambda u, idx: Element(tuple(idx[i] for i in argsort(u.arg))),
  traits=Trait.VIEW | Trait.ONTO | Trait.ONE_TO_ONE | Trait.SEEN_THROUGH,
)  # fmt: skip


def expand_shape(u: UOp) -> tuple[Any, ...]:
  have = u.src[0].shape
  if len(have) != len(u.arg) or any(n is not m and n != m and n != 1 for n, m in zip(have, u.arg, strict=True)):
    raise ValueError(f"cannot expand {render_shape(have)} to {render_shape(u.arg)}: only dims of 1 grow")
  return u.arg  # type: ignore[no-any-return]


def expanded_axes(u: UOp) -> tuple[int, ...]:
  return tuple(i for i, (n, m) in enumerate(zip(u.src[0].shape, u.shape, strict=True)) if n is not m and n != m)


def factors_expand(u: UOp) -> Factors:
  grown = expanded_axes(u)
  return Factors((tuple(() if i in grown else (i,) for i in range(u.ndim)),), own_dims(u), u.max_shape)


define_movement(
  Ops.EXPAND, shape=expand_shape, evaluate=lambda u, xs, shape: numpy.broadcast_to(xs[0], shape),
  gradient=lambda g, u: (g.r(Ops.ADD, expanded_axes(u)),), factors=factors_expand, partial=PartialRule.KEEP,
  index_map=lambda u, idx: Element(tuple(number(0) if is_int(n, 1) else i for i, n in zip(idx, u.src[0].shape))),
  traits=Trait.VIEW | Trait.ONTO | Trait.SEEN_THROUGH,
)  # fmt: skip

# ---------------------------------------------------------------- PAD, SHRINK, FLIP, CAT


def _remap_factors(u: UOp, remapped: Sequence[int]) -> Factors:
  """One factor a dim; the dims whose index changes are `remapped`."""
  sizes = tuple(max(n, *(s.max_shape[i] for s in u.src)) for i, n in enumerate(u.max_shape))
  return Factors((own_dims(u),) * len(u.src), own_dims(u), sizes, remapped=frozenset(remapped))


def pad_shape(u: UOp) -> tuple[Any, ...]:
  pairs = u.arg[0]
  if len(pairs) != u.src[0].ndim or any(isinstance(x, int) and x < 0 for pair in pairs for x in pair):
    raise ValueError(f"cannot pad {render_shape(u.src[0].shape)} by {pairs}: one pair of non-negative widths a dim")
  return as_dims(n + a + b for n, (a, b) in zip(u.src[0].shape, pairs, strict=True))


def evaluate_pad(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  widths = [(int(a), int(b)) for a, b in u.arg[0]]
  return numpy.pad(xs[0], widths, constant_values=u.arg[1]) if widths else xs[0]


def pad_index(u: UOp, idx: Index) -> Element:
  pads, fill = u.arg
  gate: UOp | None = None
  for i, (before, after), n in zip(idx, pads, u.src[0].shape):
    if not is_int(before, 0):
      gate = both(gate, at_least(i, before))
    if not is_int(after, 0):
      gate = both(gate, below(i, before + n))
  inner = tuple(simplify(i - before) for i, (before, _) in zip(idx, pads))
  return Element(inner, gate, fill)


define_movement(
  Ops.PAD, shape=pad_shape, evaluate=evaluate_pad,
  gradient=lambda g, u: (g.shrink([(a, a + n) for (a, _), n in zip(u.arg[0], u.src[0].shape, strict=True)]),),
  factors=lambda u: _remap_factors(u, [i for i, p in enumerate(u.arg[0]) if p != (0, 0)]), partial=PartialRule.PAD,
  index_map=pad_index, traits=Trait.GATED | Trait.ONTO | Trait.ONE_TO_ONE,
)  # fmt: skip


def shrink_shape(u: UOp) -> tuple[Any, ...]:
  have = u.src[0].shape
  if len(u.arg) != len(have):
    raise ValueError(f"cannot shrink {render_shape(have)} to {u.arg}: one pair a dim")
  for n, (a, b) in zip(have, u.arg, strict=True):
    if isinstance(n, int) and isinstance(a, int) and isinstance(b, int) and not 0 <= a <= b <= n:
      raise ValueError(f"cannot shrink {render_shape(have)} to {u.arg}: [{a}, {b}) is not within [0, {n})")
  return as_dims(b - a for a, b in u.arg)


def shrink_remaps(u: UOp) -> list[int]:
  return [i for i, ((a, b), n) in enumerate(zip(u.arg, u.src[0].shape)) if not (is_int(a, 0) and (b is n or b == n))]


define_movement(
  Ops.SHRINK, shape=shrink_shape, evaluate=lambda u, xs, shape: xs[0][tuple(slice(int(a), int(b)) for a, b in u.arg)],
  gradient=lambda g, u: (g.pad([(a, n - b) for (a, b), n in zip(u.arg, u.src[0].shape, strict=True)]),),
  factors=lambda u: _remap_factors(u, shrink_remaps(u)), partial=PartialRule.KEEP, traits=Trait.VIEW | Trait.ONE_TO_ONE,
  index_map=lambda u, idx: Element(tuple(i if is_int(a, 0) else simplify(i + a) for i, (a, _) in zip(idx, u.arg))),
)  # fmt: skip


def flip_shape(u: UOp) -> tuple[Any, ...]:
  if any(not 0 <= i < u.src[0].ndim for i in u.arg):
    raise ValueError(f"cannot flip {render_shape(u.src[0].shape)} along {u.arg}")
  return u.src[0].shape


def flip_index(u: UOp, idx: Index) -> Element:
  return Element(tuple(simplify(number(u.shape[k] - 1) - i) if k in u.arg else i for k, i in enumerate(idx)))


define_movement(
  Ops.FLIP, shape=flip_shape, evaluate=lambda u, xs, shape: numpy.flip(xs[0], u.arg),
  gradient=lambda g, u: (g.flip(u.arg),), factors=lambda u: _remap_factors(u, u.arg), partial=PartialRule.KEEP,
  index_map=flip_index, traits=Trait.VIEW | Trait.ONTO | Trait.ONE_TO_ONE,
)  # fmt: skip


def cat_shape(u: UOp) -> tuple[Any, ...]:
  first, *rest = ([1 if i == u.arg else n for i, n in enumerate(s.shape)] for s in u.src)
  if any(dims != first for dims in rest):
    raise ValueError(f"cannot concatenate {', '.join(render_shape(s.shape) for s in u.src)} along dim {u.arg}")
  return as_dims(sum(s.shape[i] for s in u.src) if i == u.arg else n for i, n in enumerate(first))


def gradient_cat(g: UOp, u: UOp) -> Grads:
  parts = itertools.pairwise(itertools.accumulate((s.shape[u.arg] for s in u.src), initial=0))
  return tuple(g.shrink([part if i == u.arg else (0, n) for i, n in enumerate(g.shape)]) for part in parts)


define_movement(
  Ops.CAT, shape=cat_shape, evaluate=lambda u, xs, shape: numpy.concatenate(xs, axis=u.arg), gradient=gradient_cat,
  factors=lambda u: _remap_factors(u, (u.arg,)), partial=PartialRule.KEEP, index_map=None,
  traits=Trait.GATED | Trait.ONTO | Trait.ONE_TO_ONE,
)  # fmt: skip

# ---------------------------------------------------------------- WINDOW, SPREAD


def window_shape(u: UOp) -> tuple[Any, ...]:
  axis, kaxis, stride, dilation, size = u.arg
  shape = u.src[0].shape
  n, k = shape[axis], shape[kaxis]
  if all_int((size, n, k)) and size * k > 0 and (size - 1) * stride + (k - 1) * dilation >= n:
    raise ValueError(f"window of {render_shape(shape)} by {u.arg}: the last window ends beyond dim {axis}")
  return spread_shape(u)


def evaluate_window(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """y[o, k] = x[o*stride + k*dilation, k]."""
  axis, kaxis, stride, dilation, _ = u.arg
  x = numpy.moveaxis(xs[0], (axis, kaxis), (0, 1))
  o, k = numpy.ogrid[: shape[axis], : shape[kaxis]]
  return numpy.moveaxis(x[o * stride + k * dilation, k], (0, 1), (axis, kaxis))


def evaluate_spread(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """z[i, k] = y[(i - k*dilation)/stride, k] where that is a whole number in range, else 0."""
  axis, kaxis, stride, dilation, _ = u.arg
  y = numpy.moveaxis(xs[0], (axis, kaxis), (0, 1))
  z = numpy.zeros((shape[axis], *y.shape[1:]), y.dtype)
  for k in range(y.shape[1]):
    at = numpy.arange(y.shape[0]) * stride + k * dilation
    inside = at < shape[axis]
    z[at[inside], k] = y[inside, k]
  return numpy.moveaxis(z, (0, 1), (axis, kaxis))


def spread_shape(u: UOp) -> tuple[Any, ...]:
  axis, kaxis, stride, dilation, size = u.arg
  if axis == kaxis or stride < 1 or dilation < 1:
    what = f"{u.op.name.lower()} of {render_shape(u.src[0].shape)} by {u.arg}"
    raise ValueError(f"{what}: two different dims, stride and dilation >= 1")
  return tuple(size if i == axis else n for i, n in enumerate(u.src[0].shape))


def _adjoint(g: UOp, u: UOp) -> Grads:
  axis, kaxis, stride, dilation, _ = u.arg
  size = u.src[0].shape[axis]
  build = g.spread if u.op is Ops.WINDOW else g.window
  return (build(axis, kaxis, stride, dilation, size),)


def window_index(u: UOp, idx: Index) -> Element:
  axis, kaxis, stride, dilation, _ = u.arg
  return Element((*idx[:axis], simplify(idx[axis] * stride + idx[kaxis] * dilation), *idx[axis + 1 :]))


def spread_index(u: UOp, idx: Index) -> Element:
  axis, kaxis, stride, dilation, _ = u.arg
  at = simplify(idx[axis] - idx[kaxis] * dilation)
  gate = both(at_least(at, 0), below(at, u.src[0].shape[axis] * stride))
  if stride != 1:
    gate = both(gate, simplify(UOp.new(Ops.CMPEQ, dtypes.bool, (at % stride, number(0)))))
  return Element((*idx[:axis], simplify(at // stride), *idx[axis + 1 :]), gate)


define_movement(
  Ops.WINDOW, shape=window_shape, evaluate=evaluate_window, gradient=_adjoint, partial=PartialRule.KEEP,
  factors=lambda u: _remap_factors(u, u.arg[:2]),  # the index of `axis` depends on k: cutting either moves
  index_map=window_index, traits=Trait.VIEW | Trait.ONE_TO_ONE | Trait.STRIDED,
)  # fmt: skip
define_movement(
  Ops.SPREAD, shape=spread_shape, evaluate=evaluate_spread, gradient=_adjoint, partial=PartialRule.PAD,
  factors=lambda u: _remap_factors(u, u.arg[:2]), index_map=spread_index,
  traits=Trait.GATED | Trait.ONE_TO_ONE | Trait.STRIDED,
)  # fmt: skip
