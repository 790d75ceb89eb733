"""Movement: methods that change which element stands where, and never what it is."""

import functools
import itertools
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from tinygrad.engine.run import limits
from tinygrad.helpers import all_int, ceildiv, flatten, make_tuple, prod, user_line
from tinygrad.mixin.base import (
  Base,
  Scalar,
  also_named,
  broadcast_shape,
  check_choice,
  check_formula,
  common_dtype,
  dim_arguments,
  mismatch,
  python_number,
  sint,
)
from tinygrad.uop import Ops, UOp, simplify_sint, smax, smin, substitute

Pairs = tuple[tuple[sint, sint], ...]


def infer_dim(old: tuple[sint, ...], known: list[sint]) -> sint:
  """What -1 stands for in a reshape of `old`, given the other dims; equal ones cancel. -1 if nothing fits."""
  rest, left = list(known), list[sint]()
  for d in old:
    if d in rest:
      rest.remove(d)
    else:
      left.append(d)
  if not all_int(rest):
    return -1
  size, divisor = prod(d for d in left if isinstance(d, int)), int(prod(rest))
  if divisor == 0 or size % divisor:
    return -1
  result: sint = simplify_sint(size // divisor * prod(d for d in left if isinstance(d, UOp)))
  return result


def value_now(n: sint, values: Mapping[str, int] | None = None) -> Any:
  """The value of a dim or an index, by what its variables are bound to in this call, or by `values`; None if one is
  not."""
  if isinstance(n, int):
    return n
  given, bound = values or {}, [u for u in n.toposort() if u.op is Ops.BIND]
  known = {u: UOp.const(u.dtype, given.get(u.src[0].arg[0], u.src[1].arg)) for u in bound}
  value = simplify_sint(substitute(n, known))
  return value if isinstance(value, int) else None


def _always(low: sint, high: sint) -> bool:
  """Whether low <= high for all values in the bounds of the variables."""
  between = simplify_sint(high - low)
  return (between if isinstance(between, int) else int(between.vmin)) >= 0


def check_counts(name: str, counts: tuple[Any, ...]) -> None:
  if any(isinstance(n, int) and n < 0 for n in counts):
    raise ValueError(f"{name}: {counts} has a negative number of times\n  fix: give 0 or more")


def check_alike(repeats: Any) -> None:
  """TypeError for a number of times for each element."""
  if isinstance(repeats, (list, tuple)) or getattr(repeats, "shape", ()) != ():
    rule = "repeat_interleave: a number of times for each element makes a length that values decide"
    raise TypeError(f"{rule}\n  fix: x[numpy.repeat(numpy.arange(len(x)), repeats)]  # repeats: an array")


def check_within(a: sint, b: sint, n: sint, line: str, values: Mapping[str, int]) -> None:
  """ValueError where [a, b) is not within [0, n) by other values of variables, in a replay of what was captured."""
  known = [value_now(x, values) for x in (0, a, b, n)]
  if None not in known and known != sorted(known):
    said = ", ".join(f"{name} = {value}" for name, value in values.items())
    rule = f"TinyJit: with {said} the range {(known[1], known[2])} is not inside [0, {known[3]}]"
    raise ValueError(f"{rule}\n    in {line}\n  fix: bind what lies within, or pad the tensor first")


def _joined(name: str, first: Any, others: Sequence[Any]) -> tuple[Any, ...]:
  """The tensors of a call, or of the one list that it was given. TypeError for what is no tensor, ValueError if there
  is none."""
  xs = (first, *others) if isinstance(first, Base) else (*first, *others)
  for x in xs:
    if not isinstance(x, Base):
      fix = f"x.{name}(*tensors)" if isinstance(x, (list, tuple)) else "wrap it, e.g. Tensor(x)"
      if not isinstance(first, Base) and len(others) == 1 and x is others[0]:  # as PyTorch takes it
        fix = f"Tensor.{name}(*tensors, dim={x})"
      raise TypeError(f"{name}: cannot join {type(x).__name__} to a tensor\n  fix: {fix}")
  if not xs:
    raise ValueError(f"{name}: no tensors are given\n  fix: give one or more, Tensor.{name}(x, y)")
  return xs


class Movement(Base):
  __slots__ = ()

  # ---- the shape

  def reshape(self, shape: Any, *args: Any) -> Self:
    """The same elements in row-major order under another shape. -1 (once) is what is left, None keeps that dim.

    Raises ValueError if the number of elements differs.
    Shape: `(*dims) -> (*shape)`.

    Examples:
      >>> Tensor.arange(6).reshape(2, -1).shape
      (2, 3)
    """
    if (dims := dim_arguments(shape, *args)) == self.shape:
      return self._seen(self.uop)
    new: list[sint] = [self.shape[i] if s is None else s for i, s in enumerate(dims)]
    unknown = [i for i, s in enumerate(new) if isinstance(s, int) and s == -1]
    if len(unknown) > 1:
      raise ValueError(f"reshape: only one dim of {dims} can be -1\n  fix: give the other dims")
    if unknown:
      new[unknown[0]] = infer_dim(self.shape, [s for i, s in enumerate(new) if i != unknown[0]])
    bad = any(isinstance(s, int) and s < 0 for s in new)
    if bad or (all_int(new) and all_int(self.shape) and prod(new) != prod(self.shape)):
      rule = f"cannot reshape {self.shape} to {dims}: the number of elements must be the same"
      fix = f"the dims must multiply to {prod(self.shape)}; -1 in one place stands for what is left"
      mismatch("reshape", rule, [self.uop], fix)
    return self._seen(self.uop.reshape(tuple(new)))

  view = reshape

  def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
    """Dims start..end (inclusive) become one.
    Shape: `(*a, *flat, *b) -> (*a, n, *b)`.

    Examples:
      >>> Tensor.zeros(2, 3, 4).flatten(1).shape
      (2, 12)
    """
    start, end = self._dim(start_dim), self._dim(end_dim)
    return self.reshape((*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :]))

  def unflatten(self, dim: int, sizes: Sequence[sint]) -> Self:
    """One dim becomes `sizes` (one of which may be -1).
    Shape: `(*a, n, *b) -> (*a, *sizes, *b)`.

    Examples:
      >>> Tensor.zeros(2, 12).unflatten(1, (3, 4)).shape
      (2, 3, 4)
    """
    d = self._dim(dim)
    return self.reshape((*self.shape[:d], *dim_arguments(sizes), *self.shape[d + 1 :]))

  @also_named(axis="dim")
  def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
    """Drops dim `dim`, or several, if of length 1; without a dim, all such.
    Shape: `(*dims) -> (*rest)`.

    Examples:
      >>> Tensor.zeros(1, 3, 1).squeeze().shape
      (3,)
      >>> Tensor.zeros(1, 3, 1).squeeze(0).shape
      (3, 1)
    """
    if dim is None:
      return self.reshape(tuple(s for s in self.shape if not (isinstance(s, int) and s == 1)))
    asked = {self._dim(d) for d in make_tuple(dim, 1)}
    rest = tuple(s for i, s in enumerate(self.shape) if i not in asked or not (isinstance(s, int) and s == 1))
    return self.reshape(rest) if len(rest) < self.ndim else self._seen(self.uop)

  def unsqueeze(self, dim: int) -> Self:
    """A dim of 1 before position `dim`.
    Shape: `(*a, *b) -> (*a, 1, *b)`.

    Examples:
      >>> Tensor.zeros(2, 3).unsqueeze(1).shape
      (2, 1, 3)
    """
    d = self._dim(dim, extra=True)
    return self.reshape((*self.shape[:d], 1, *self.shape[d:]))

  def expand(self, shape: Any, *args: Any) -> Self:
    """Dims of 1 repeated to `shape`, aligned at the last; -1 and None keep a dim. ValueError if a dim is neither 1 nor
    kept.
    Shape: `(*dims) -> (*shape)`.

    Examples:
      >>> Tensor([[1], [2]]).expand(2, 3).tolist()
      [[1, 1, 1], [2, 2, 2]]
    """
    dims = dim_arguments(shape, *args)
    old = (1,) * (len(dims) - self.ndim) + self.shape
    new = tuple(o if s is None or (isinstance(s, int) and s == -1) else s for s, o in zip(dims, old))
    if len(old) > len(dims) or broadcast_shape(old, new) != new:
      rule = f"cannot expand {self.shape} to {dims}: a dim must be 1, or stay as it is"
      mismatch("expand", rule, [self.uop], "reshape so that every repeated dim is 1")
    return self._seen(self.uop.broadcast_to(new))

  def _expand_to(self, shape: tuple[sint, ...]) -> Self:
    return self if self.shape == shape else self.expand(shape)

  # ---- order

  @also_named(dims="order")
  def permute(self, order: Any, *args: Any) -> Self:
    """Dim i of the result is dim order[i]. ValueError unless `order` names every dim once.
    Shape: `(*dims) -> (*permuted)`.

    Examples:
      >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
      (4, 2, 3)
    """
    given = dim_arguments(order, *args)
    dims = tuple(self._dim(d) for d in given)
    if sorted(dims) != list(range(self.ndim)):
      rule = f"order {given} must name each of the {self.ndim} dims of {self.shape} once"
      raise ValueError(f"permute: {rule}\n  fix: to exchange two dims use transpose")
    return self._seen(self.uop.permute(dims))

  def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
    """Two dims exchanged.
    Shape: `(*a, n, *b, m, *c) -> (*a, m, *b, n, *c)`.

    Examples:
      >>> Tensor.zeros(2, 3, 4).transpose(1, 2).shape
      (2, 4, 3)
    """
    order, a, b = list(range(self.ndim)), self._dim(dim0), self._dim(dim1)
    if order:
      order[a], order[b] = order[b], order[a]
    return self._seen(self.uop.permute(order))

  @property
  def T(self) -> Self:
    """Dims 0 and 1 exchanged; itself if there are fewer.
    Shape: `(n, m, ..) -> (m, n, ..)`.

    Examples:
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).T.tolist()
      [[1.0, 3.0], [2.0, 4.0]]
    """
    return self.transpose() if self.ndim > 1 else self

  def _move_last(self, dims: Sequence[int]) -> Self:
    """`dims` after the others, in the order given."""
    return self.permute((*(i for i in range(self.ndim) if i not in dims), *dims))

  def _lined(self, dim: int, ndim: int) -> Self:
    """This vector along `dim` of `ndim` dims, the others of 1."""
    return self.reshape(tuple(-1 if i == dim else 1 for i in range(ndim)))

  @also_named(dims="axis")
  def flip(self, axis: Any, *args: Any) -> Self:
    """The order of elements reversed along the axes. ValueError for an axis that is named twice.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).flip(0).tolist()
      [3, 2, 1]
    """
    axes = tuple(self._dim(a) for a in dim_arguments(axis, *args))
    if len(set(axes)) != len(axes):
      raise ValueError(f"flip: axis {axes} names a dim twice\n  fix: give every dim once")
    return self._seen(self.uop.flip(axes if self.ndim else ()))

  # ---- the range

  def _pairs(self, name: str, given: Any, what: str, of_none: Sequence[tuple[sint, sint]]) -> Pairs:
    """A pair for each dim; those `of_none` where None is given."""
    if not hasattr(given, "__len__"):
      raise TypeError(f"{name}: needs {what} of dims, {given!r} is none\n  fix: x.{name}({tuple(of_none)}), or others")
    self._check_count(name, len(given), what, "one pair or None")
    if odd := [p for p in given if p is not None and (not hasattr(p, "__len__") or len(p) != 2)]:
      raise TypeError(f"{name}: {odd[0]!r} is no pair\n  fix: {tuple(of_none)}, or others; None for a dim as it is")
    return tuple(none if p is None else dim_arguments(*p) for p, none in zip(given, of_none))

  def _check_count(self, name: str, count: int, what: str, fix: str) -> None:
    if count != self.ndim:
      raise ValueError(f"{name}: {count} {what} for the {self.ndim} dims of {self.shape}\n  fix: give {fix} a dim")

  def shrink(self, arg: Sequence[tuple[sint, sint] | None]) -> Self:
    """Per dim the half-open range to keep; None keeps all. ValueError outside [0, n], TypeError for what is no pair.
    Shape: `(*dims) -> (*kept)`.

    Examples:
      >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink(((0, 1), (1, 3))).tolist()
      [[2, 3]]
    """
    pairs = self._pairs("shrink", arg, "ranges", [(0, n) for n in self.shape])
    for (a, b), n in zip(pairs, self.shape):
      if None not in (known := [value_now(x) for x in (0, a, b, n)]) and known != sorted(known):
        what = f"the range {(a, b)} is not inside [0, {n}] (shape {self.shape}, ranges {tuple(arg)})"
        raise ValueError(f"shrink: {what}\n  fix: a range within it, as (0, {n}), or pad first")
      if limits.items and not (_always(0, a) and _always(a, b) and _always(b, n)):
        for note in limits:
          note(functools.partial(check_within, a, b, n, user_line()))
    return self._seen(self.uop.shrink(pairs))

  def shrink_to(self, shape: Any, *args: Any) -> Self:
    """The first `shape[i]` elements of each dim; None keeps a dim.
    Shape: `(*dims) -> (*shape)`.

    Examples:
      >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink_to(1, 2).tolist()
      [[1, 2]]
    """
    return self.shrink([None if s is None else (0, s) for s in dim_arguments(shape, *args)])

  def _pad_pairs(self, pairs: Pairs, value: Scalar) -> Self:
    """PAD with constant pairs; a negative amount cuts."""
    if any(isinstance(p, int) and p < 0 for pair in pairs for p in pair):
      keep = [(smax(0, -a), n - smax(0, -b)) for (a, b), n in zip(pairs, self.shape)]
      return self.shrink(keep)._pad_pairs(tuple((smax(0, a), smax(0, b)) for a, b in pairs), value)
    return self._new(self.uop.pad(pairs, value))

  def pad(self, padding: Sequence[Any], mode: str = "constant", value: Scalar = 0.0) -> Self:
    """Elements added before and after dims.

    `padding`: a pair or None a dim, or a flat sequence `(before, after)` of the last dim, then of the last but one, …
    `mode`: "constant" (`value`), "reflect", "replicate" or "circular". Negative amounts cut. The type follows from a
    `value` other than 0 as it does from `x + value`: integers padded with -inf become floats. ValueError for amounts
    a mode cannot serve, TypeError for a number alone and for what is no pair.
    Shape: `(*dims) -> (*padded)`.

    Examples:
      >>> Tensor([1, 2]).pad((1, 2)).tolist()
      [0, 1, 2, 0, 0]
      >>> Tensor.zeros(2, 3).pad(((0, 0), (1, 1))).shape
      (2, 5)
    """
    check_choice("pad", "mode", mode, "constant", "reflect", "replicate", "circular")
    if not hasattr(padding, "__len__"):
      around = (padding,) * 2 * min(2, self.ndim)
      raise TypeError(f"pad: needs amounts for both sides of dims, {padding!r} is one\n  fix: x.pad({around})")
    padding = [python_number(p) for p in padding]
    if all(isinstance(p, (int, UOp)) for p in padding):
      if len(padding) % 2 or len(padding) > 2 * self.ndim:
        rule = f"needs 2 amounts a dim, at most {2 * self.ndim} for {self.shape}"
        raise ValueError(f"pad: the flat form {rule}, got {len(padding)}")
      inner = tuple((padding[i], padding[i + 1]) for i in range(0, len(padding), 2))[::-1]
      pairs: Pairs = ((0, 0),) * (self.ndim - len(inner)) + inner
    else:
      pairs = self._pairs("pad", padding, "pairs", ((0, 0),) * self.ndim)
    if mode == "constant":
      return (self if value == 0 else self.cast(self._lift(value, "pad").dtype))._pad_pairs(pairs, value)
    if not all_int(flatten(pairs)):
      raise ValueError(f"pad: mode {mode!r} needs known amounts, got {pairs}\n  fix: give integers, or mode='constant'")
    x = self
    for dim, (before, after) in enumerate(pairs):
      x = x._pad_around(dim, int(before), int(after), mode)
    return x._value()

  def _pad_around(self, dim: int, before: int, after: int, mode: str) -> Self:
    """Padding along one dim with the tensor's own elements."""
    (low, before), (high, after) = ((max(0, -amount), max(0, amount)) for amount in (before, after))
    circle = mode == "circular"  # of what stays
    x = self._slice(dim, low, self.shape[dim] - high) if circle else self
    n = x.shape[dim]
    limit = {"reflect": n - 1, "circular": n, "replicate": max(before, after) if n else 0}[mode]
    if max(before, after) > limit:
      what = f"at most {limit} on a side of dim {dim} of {self.shape}"
      raise ValueError(f"pad: mode {mode!r} can add {what}, got {(before, after)}\n  fix: less, or pad several times")
    if mode == "replicate":
      sides = [x._slice(dim, i, i + 1).repeat_interleave(k, dim) for i, k in ((0, before), (n - 1, after))]
    elif mode == "reflect":
      sides = [x._slice(dim, i, i + k).flip(dim) for i, k in ((1, before), (n - 1 - after, after))]
    else:
      sides = [x._slice(dim, i, i + k) for i, k in ((n - before, before), (0, after))]
    parts = [part for part, k in zip((sides[0], x, sides[1]), (before, 1, after)) if k]
    x = parts[0].cat(*parts[1:], dim=dim)
    return x if circle else x._slice(dim, low, x.shape[dim] - high)

  def _slice(self, dim: int, start: sint, stop: sint) -> Self:
    return self.shrink([(start, stop) if i == dim else None for i in range(self.ndim)])

  def pad_to(self, shape: Any, *args: Any, value: Scalar = 0) -> Self:
    """Elements of `value` added at the end of dims up to `shape`; None keeps a dim.
    Shape: `(*dims) -> (*shape)`.

    Examples:
      >>> Tensor([1, 2]).pad_to(4).tolist()
      [1, 2, 0, 0]
    """
    dims = dim_arguments(shape, *args)
    self._check_count("pad_to", len(dims), "lengths", "one length or None")
    return self.pad([None if s is None else (0, s - n) for s, n in zip(dims, self.shape)], value=value)

  # ---- several tensors

  @also_named(axis="dim")
  def cat(self, *args: Self, dim: int = 0) -> Self:
    """Tensors, or one list of them, one after the other along `dim`; the other dims must agree. Types are promoted.
    ValueError where they do not, TypeError for what is no tensor.
    Shape: `(*a, n, *b), (*a, m, *b), … -> (*a, total, *b)`.

    Examples:
      >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
      [1, 2, 3]
      >>> Tensor.zeros(2, 3).cat(Tensor.zeros(2, 4), dim=1).shape
      (2, 7)
    """
    xs = _joined("cat", self, args)
    first: Self = xs[0]
    others, d = xs[1:], first._dim(dim)
    for x in others:
      if x.ndim != first.ndim or any(a != b for i, (a, b) in enumerate(zip(x.shape, first.shape)) if i != d):
        fix = "pad, shrink or reshape the odd one out; to join along a new dim use stack"
        mismatch("cat", f"all dims but {d} must be equal", [t.uop for t in xs], fix)
    if not first.ndim:
      mismatch("cat", "scalars have no dim to join along", [t.uop for t in xs], "to join along a new dim use stack")
    if not others:
      return first._value()
    dtype = common_dtype(*(x.dtype for x in xs))
    return first._new(UOp.cat([x.uop if x.dtype is dtype else x.cast(dtype).uop for x in xs], d))

  @also_named(axis="dim")
  def stack(self, *args: Self, dim: int = 0) -> Self:
    """Tensors of one shape, or one list of them, along a new dim. ValueError for other shapes, TypeError for what is no
    tensor.
    Shape: `(*a, *b), (*a, *b), … -> (*a, n, *b)`.

    Examples:
      >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
      [[1, 2], [3, 4]]
    """
    xs = _joined("stack", self, args)
    if any(x.shape != xs[0].shape for x in xs):
      mismatch("stack", "all shapes must be equal", [x.uop for x in xs], "to join along a dim that is there use cat")
    rows: list[Self] = [x.unsqueeze(dim) for x in xs]
    return rows[0].cat(*rows[1:], dim=rows[0]._dim(dim))

  def repeat(self, repeats: Any, *args: Any) -> Self:
    """The tensor laid out `repeats[i]` times along each dim; more repeats than dims add dims in front.
    ValueError for a negative one.
    Shape: `(*dims) -> (*repeated)`.

    Examples:
      >>> Tensor([1, 2]).repeat(2).tolist()
      [1, 2, 1, 2]
      >>> Tensor.zeros(2, 3).repeat(2, 1, 1).shape
      (2, 2, 3)
    """
    counts = dim_arguments(repeats, *args)
    self._check_count("repeat", min(len(counts), self.ndim), "counts", "one")
    check_counts("repeat", counts)
    shape = (1,) * (len(counts) - self.ndim) + self.shape
    split = tuple(x for n in shape for x in (1, n))
    wide = tuple(x for r, n in zip(counts, shape) for x in (r, n))
    return self.reshape(split).expand(wide).reshape(tuple(r * n for r, n in zip(counts, shape)))._value()

  def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
    """Every element `repeats` times in a row along `dim`; without a dim, of the flattened tensor. ValueError for a
    negative number of times.
    Shape: `(*a, n, *b) -> (*a, n*repeats, *b)`.

    Examples:
      >>> Tensor([1, 2]).repeat_interleave(2).tolist()
      [1, 1, 2, 2]
    """
    check_alike(repeats)
    check_counts("repeat_interleave", (repeats,))
    x, d = (self.flatten(), 0) if dim is None else (self, self._dim(dim))
    s = x.shape
    wide = x.reshape((*s[: d + 1], 1, *s[d + 1 :])).expand((*s[: d + 1], repeats, *s[d + 1 :]))
    return wide.reshape((*s[:d], s[d] * repeats, *s[d + 1 :]))._value()

  @also_named(split_size="sizes")
  def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
    """Parts of length `sizes` (the last may be shorter), or of the given lengths.
    ValueError unless the lengths are those of the dim.
    Shape: `(*a, n, *b) -> (*a, part, *b), …`.

    Examples:
      >>> [t.shape for t in Tensor.zeros(5).split(2)]
      [(2,), (2,), (1,)]
      >>> [t.shape for t in Tensor.zeros(5).split([1, 4])]
      [(1,), (4,)]
    """
    d = self._dim(dim)
    n = self.shape[d]
    lengths = make_tuple(sizes, 1)
    if not isinstance(sizes, Iterable):
      (size,) = lengths
      if size < 1:
        raise ValueError(f"split: parts of {size} elements\n  fix: give a length of at least 1, or all lengths")
      n = self._known_length("split", d, size)
      lengths = tuple(min(size, n - i) for i in range(0, max(1, n), size))
    elif all_int(lengths) and sum(lengths) != self._known_length("split", d, lengths[0] if lengths else 1):
      rule = f"the sizes {reprlib.repr(list(lengths))} sum to {sum(lengths)}, dim {d} of {self.shape} has {n}"
      raise ValueError(f"split: {rule}\n  fix: give all of it")
    ends = itertools.accumulate(lengths)
    return tuple(self._slice(d, e - s, e) for s, e in zip(lengths, ends))

  def _known_length(self, name: str, dim: int, first: int) -> int:
    """Of a dim that is cut into a number of parts, which no variable decides. ValueError if one does."""
    if isinstance(n := self.shape[dim], int):
      return n
    length, most = f"x.shape[{dim}]", value_now(n)
    k = first if most is None or first < most else 1
    rule = f"how many parts dim {dim} has depends on a variable, and they are a tuple or a list"
    mismatch(name, rule, [self.uop], f"x.split([{k}, {length} - {k}], {dim})  # parts of lengths that add up")

  def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
    """At most `chunks` parts of equal length (the last may be shorter). ValueError unless `chunks` is positive.
    Shape: `(*a, n, *b) -> (*a, part, *b), …`.

    Examples:
      >>> [t.tolist() for t in Tensor.arange(5).chunk(2)]
      [[0, 1, 2], [3, 4]]
    """
    (chunks,) = make_tuple(chunks, 1)
    if chunks <= 0:
      raise ValueError(f"chunk: the number of parts must be positive, got {chunks}\n  fix: give 1 or more")
    n = self._known_length("chunk", self._dim(dim), 1)
    return list(self.split(ceildiv(n, chunks) if n else [0] * chunks, dim=dim))

  @also_named(shift="shifts", axis="dims")
  def roll(self, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] | None = None) -> Self:
    """Elements moved on by `shifts` along `dims`, those past the end coming back at the start.
    ValueError unless each shift has its dim.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).roll(1).tolist()
      [3, 1, 2]
    """
    amounts = make_tuple(shifts, 1)
    if dims is None:
      if len(amounts) != 1:
        raise ValueError(f"roll: shifts {shifts} need dims\n  fix: dims=(0, 1), as many as there are shifts")
      return self.flatten().roll(amounts, 0).reshape(self.shape)
    axes = make_tuple(dims, 1)
    if len(amounts) != len(axes):
      raise ValueError(f"roll: {len(amounts)} shifts for {len(axes)} dims\n  fix: give one shift a dim")
    x = self
    for amount, dim in zip(amounts, axes):
      d = x._dim(dim)
      n = x.shape[d]
      k = simplify_sint(amount % smax(n, 1))
      if isinstance(k, UOp) or k:
        x = x._slice(d, n - k, n).cat(x._slice(d, 0, n - k), dim=d)
    return x._value()

  # ---- windows and diagonals

  def _steps(
    self, name: str, n: int, stride: int | Sequence[int], dilation: int | Sequence[int]
  ) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations of `n` dims. ValueError for one that is not positive."""
    strides, dilations = make_tuple(stride, n), make_tuple(dilation, n)
    if min((*strides, *dilations), default=1) < 1:
      mismatch(name, f"stride {strides} and dilation {dilations} must be positive", [self.uop], "give 1 or more")
    return strides, dilations

  def _pool(self, kernel: tuple[int, ...], stride: int | Sequence[int] = 1, dilation: int | Sequence[int] = 1) -> Self:
    """Sliding windows over the last dims: (*batch, *dims) -> (*batch, *positions, *kernel)."""
    n = len(kernel)
    strides, dilations = self._steps("pool", n, stride, dilation)
    first, u = self.ndim - n, self.uop
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations)):
      size = ceildiv(u.shape[first + i] - d * (k - 1), s)
      if isinstance(size, int) and size <= 0 and self.shape[first + i] != 0:
        rule = f"a window of {k} (dilation {d}) is longer than dim {first + i}"
        mismatch("pool", rule, [self.uop], "pad the tensor, or use a smaller window")
      u = u.reshape((*u.shape, 1)).expand((*u.shape, k)).window(first + i, len(u.shape), s, d, smax(size, 0))
    return self._seen(u)

  @also_named(dimension="dim")
  def unfold(self, dim: int, size: int, step: int) -> Self:
    """Windows of `size` every `step` along `dim`; the index inside the window is a new last dim.
    ValueError where a window does not fit.
    Shape: `(*a, n, *b) -> (*a, windows, *b, size)`.

    Examples:
      >>> Tensor([1, 2, 3, 4, 5]).unfold(0, 3, 2).tolist()
      [[1, 2, 3], [3, 4, 5]]
    """
    d, (size, step) = self._dim(dim), make_tuple((size, step), 2)
    n = value_now(self.shape[d]) if self.ndim else None
    if size < 0 or step <= 0 or (n is not None and size > n):
      rule = f"size {size}, step {step} do not fit dim {d} of {self.shape}"
      raise ValueError(f"unfold: {rule}\n  fix: 0 <= size <= the dim, step >= 1")
    x = self._move_last((d,))._pool((size,), step)
    return x.permute((*range(d), self.ndim - 1, *range(d, self.ndim - 1), self.ndim))

  def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
    """The diagonal of the matrices of dims dim1, dim2 as a new last dim; offset > 0 is above it.
    ValueError if dim1 is dim2.
    Shape: `(n, m, *rest) -> (*rest, k)`.

    Examples:
      >>> Tensor.arange(9).reshape(3, 3).diagonal().tolist()
      [0, 4, 8]
      >>> Tensor.arange(9).reshape(3, 3).diagonal(offset=1).tolist()
      [1, 5]
    """
    a, b, (offset,) = self._dim(dim1), self._dim(dim2), make_tuple(offset, 1)
    if a == b:
      raise ValueError(
        f"diagonal: dim1 and dim2 are both {a} of {self.shape}\n  fix: give two dims, e.g. dim1=0, dim2=1"
      )
    x = self._move_last((a, b))
    *lead, rows, cols = x.shape
    top, left = smin(max(0, -offset), rows), smin(max(0, offset), cols)
    n = smin(rows - top, cols - left)
    x = x.shrink([*[None] * len(lead), (top, top + n), (left, left + n)]).reshape((*lead, n * n))
    return x.pad((0, n)).reshape((*lead, n, n + 1)).shrink_to((*[None] * len(lead), n, 1)).reshape((*lead, n))

  def diag(self) -> Self:
    """The square matrix with this vector on its diagonal. ValueError for what is no vector.
    Shape: `(n) -> (n, n)`.

    Examples:
      >>> Tensor([1, 2]).diag().tolist()
      [[1, 0], [0, 2]]
    """
    if self.ndim != 1:
      fix = "x.diagonal() takes the diagonal of a matrix" if self.ndim > 1 else "x.reshape(1).diag()"
      mismatch("diag", "needs a vector", [self.uop], fix)
    n = self.shape[0]
    return self.reshape(n, 1).pad((0, n)).flatten().shrink(((0, n * n),)).reshape(n, n)

  def rearrange(self, formula: str, **sizes: int) -> Self:
    """Reorders dims as in einops: `x.rearrange("b (h d) -> h b d", h=4)`. ValueError if the formula does not fit,
    TypeError for one that is no string.
    Shape: `(*dims) -> (*formula)`.

    Examples:
      >>> Tensor.zeros(2, 12).rearrange("b (h d) -> h b d", h=4).shape
      (4, 2, 3)
    """
    check_formula("rearrange", formula, "b h w -> b (h w)")
    sides = formula.split("->")
    if len(sides) != 2:
      raise ValueError(f"rearrange: {formula!r} has no two sides with one -> between\n  fix: e.g. 'b h w -> b (h w)'")
    extra = self.ndim - len(_parse_axes(sides[0].replace("...", "")))
    dots = " ".join(f"...{k}" for k in range(extra))
    left, right = (_parse_axes(side.replace("...", dots)) for side in sides)
    if len(left) != self.ndim:
      rule = f"rearrange: {formula!r} names {len(left)} dims, the tensor has shape {self.shape}"
      raise ValueError(f"{rule}\n  fix: name {self.ndim} of them, or write ... for those that are not named")
    known = _axis_lengths(formula, left, self.shape, sizes)
    flat_left, flat_right = flatten(left), flatten(right)
    if new := [a for a in flat_right if a not in flat_left]:
      rule = f"{new[0]!r} of {formula!r} is not left of ->, and rearrange makes no new axes"
      raise ValueError(f"rearrange: {rule}\n  fix: write 1 for a dim of length 1, or use repeat")
    if sorted(flat_left) != sorted(flat_right) or len(set(flat_left)) != len(flat_left):
      raise ValueError(f"rearrange: the axes on both sides of {formula!r} must be the same, each once")
    x = self.reshape(tuple(known[a] for a in flat_left))
    x = x.permute([flat_left.index(a) for a in flat_right])
    return x.reshape(tuple(prod(known[a] for a in group) for group in right))


def _axis_lengths(
  formula: str, left: list[list[str]], shape: tuple[sint, ...], given: dict[str, int]
) -> dict[str, sint]:
  """The length of each axis: of those that make a dim up all but one are given."""
  if odd := [name for name in given if name not in flatten(left)]:
    raise ValueError(
      f"rearrange: {odd[0]!r} is no axis left of -> in {formula!r}\n  fix: give lengths of axes it names"
    )
  known: dict[str, sint] = dict(zip(given, dim_arguments(*given.values())))
  for dim, (group, n) in enumerate(zip(left, shape)):
    unknown = [a for a in group if a not in known]
    if len(unknown) > 1:
      rule = f"the sizes of {unknown} in {formula!r} are not known"
      raise ValueError(f"rearrange: {rule}\n  fix: give all but one: {unknown[0]}=…")
    rest = prod(known[a] for a in group if a in known)
    if unknown:
      known[unknown[0]] = n // rest
    if all_int((n, rest)) and (n % rest if unknown else n != rest):
      parts = ", ".join(f"{a}={known[a]}" for a in group if a not in unknown)
      rule = f"dim {dim} of {shape} is {n}, which {parts or 1} in {formula!r} does not make up"
      raise ValueError(f"rearrange: {rule}\n  fix: give lengths that multiply to it")
  return known


def _parse_axes(side: str) -> list[list[str]]:
  """`"b (h d) 1"` -> [["b"], ["h", "d"], []]."""
  groups = [(inside or one).split() for inside, one in re.findall(r"\(([^()]*)\)|([^\s()]+)", side)]
  if "(" in (rest := re.sub(r"\([^()]*\)", "", side)) or ")" in rest:
    raise ValueError(
      f"rearrange: unbalanced parentheses in {side!r}\n  fix: close each ( by one ), and none within another"
    )
  return [[axis for axis in group if axis != "1"] for group in groups]
