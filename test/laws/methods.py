"""The public `Tensor`, a row a method: how to draw its arguments, and what may go in and come out.

A row is one step of a random program (programs.py): the method runs on a random value in both builds. Where numpy has
the same function the unsharded value is compared with it too. What has no row has a reason, at the end.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad import Tensor
from tinygrad.device import Placement
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop import Ops

if TYPE_CHECKING:
  from programs import Generator, Value


class Kind(Flag):
  """What a row takes and gives. Values that are no small integers are *rounded*: sums of them differ in the last bits
  from build to build, so that they may enter continuous functions only, and are compared within a tolerance."""

  ROUNDS = auto()  # its result is rounded
  JUMPS = auto()  # not continuous: takes no rounded values
  BENDS = auto()  # its derivative is not continuous: takes no rounded values where it is differentiated


EXACT = Kind(0)
KINK, STEP, SMOOTH, BENT = Kind.BENDS, Kind.JUMPS, Kind.ROUNDS, Kind.BENDS | Kind.ROUNDS
ROUGH = Kind.JUMPS | Kind.ROUNDS


@dataclass(frozen=True)
class At:
  """A placement among the arguments: on one device it is that device."""

  placement: Placement


Draw = Callable[["Generator", "Value"], tuple[Any, ...] | None]


@dataclass(frozen=True)
class Row:
  """`draw`: the arguments after the tensor, a dict last for keywords; Values stand for tensors. None: does not apply.
  `first` brings values into the domain, for tensors and arrays alike; `pick`: which of several results (None: any)."""

  name: str
  kind: Kind
  draw: Draw = lambda g, x: ()
  numpy: Callable[..., Any] | None = None
  of: str = "number"
  ndim: tuple[int, int] = (0, 4)
  first: Callable[[Any], Any] | None = None
  pick: int | None = None
  forward: bool = False  # not differentiated
  largest: int = 600  # elements

  @property
  def creates(self) -> bool:
    return isinstance(inspect.getattr_static(Tensor, self.name), classmethod) and self.name != "einsum"


def positive(t: Any) -> Any:
  return t * t + 1


def bounded(t: Any) -> Any:
  return t / (t * t + 1)


def eighth(t: Any) -> Any:
  return t * 0.125


def half(t: Any) -> Any:
  return t * 0.5


def chance(t: Any) -> Any:
  return bounded(t) * 0.5 + 0.5


def values_in(args: Any) -> list[Value]:
  """The Values among (nested) arguments."""
  if isinstance(args, (tuple, list)):
    return [v for a in args for v in values_in(a)]
  if isinstance(args, dict):
    return [v for a in args.values() for v in values_in(a)]
  return [args] if hasattr(args, "placed") else []


def filled(args: Any, of: Callable[[Any], Any]) -> Any:
  """The arguments with `of` applied to what is no tuple, list or dict."""
  if isinstance(args, (tuple, list)):
    return type(args)(filled(a, of) for a in args)
  if isinstance(args, dict):
    return {k: filled(a, of) for k, a in args.items()}
  return of(args)


NONE: dict[str, Any] = {}


def call(row: Row, x: Tensor, args: tuple[Any, ...], seed: int) -> Any:
  """The method's result; of methods without one the tensor itself."""
  Tensor.manual_seed(seed)
  with Context(TRAINING=1):
    named = args[-1] if args and isinstance(args[-1], dict) else NONE
    rest = args[: len(args) - (named is not NONE)]
    x = x if row.first is None else row.first(x)
    if row.name == "T":
      return x.T
    if row.creates:
      return getattr(Tensor, row.name)(*rest, **named)
    if row.name == "einsum":
      return Tensor.einsum(rest[0], x, *rest[1:], **named)
    name = row.name
    if name.startswith("shard") and isinstance(rest[0], str):
      name = name.replace("shard", "to")
    result = getattr(x, name)(*rest, **named)
    return x if result is None else result


def expected(row: Row, x: np.ndarray, args: tuple[Any, ...]) -> np.ndarray | None:
  """The value by numpy, where it has the function."""
  if row.numpy is None:
    return None
  named = args[-1] if args and isinstance(args[-1], dict) else NONE
  with np.errstate(all="ignore"):
    first = x if row.first is None else row.first(x)
    return np.asarray(row.numpy(first, *args[: len(args) - (named is not NONE)], **named))


# ---------------------------------------------------------------- arguments


def axis(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.axis(x),)


def axes(g: Generator, x: Value) -> tuple[Any, ...]:
  n = len(x.shape)
  some = tuple(i for i in range(n) if g.rng.random() < 0.5)
  return (g.rng.choice((None, some or None, *range(-n, n))), {"keepdim": g.rng.random() < 0.5})


def other(g: Generator, x: Value) -> tuple[Any, ...]:
  """A tensor of the same or a broadcast shape, or a number."""
  k = g.rng.randrange(4)
  if k == 0:
    return (g.number(x.dtype),)
  return (g.leaf(tuple(n if g.rng.random() < 0.6 else 1 for n in x.shape), x.dtype) if k == 1 else g.like(x),)


def at_least_one(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.leaf(x.shape, x.dtype, np.abs(g.array(x.shape, x.dtype)) + g.array((), x.dtype).dtype.type(1)),)


def shift(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.rng.randint(0, 3),)


def mask(g: Generator, x: Value) -> Value:
  return g.leaf(x.shape, dtypes.bool) if g.rng.random() < 0.5 else g.like(x, dtypes.bool)


def where(g: Generator, ndim: int) -> At:
  return At(g.place(ndim))


def created(g: Generator, x: Value, *args: Any, **named: Any) -> tuple[Any, ...]:
  """Arguments of a creator of x's shape on a random placement."""
  return (*x.shape, *args, {"device": where(g, len(x.shape)), **named})


def like(g: Generator, x: Value) -> tuple[Any, ...]:
  return ({"device": where(g, len(x.shape))},)


def layer(g: Generator, x: Value) -> tuple[Any, ...]:
  return g.leaf((x.shape[-1], 3), x.dtype), g.leaf((3,), x.dtype)


def np_top(x: np.ndarray, k: int, axis: int) -> np.ndarray:
  return x.max(axis, keepdims=True)


def np_alu(x: np.ndarray, op: Ops, y: Any) -> np.ndarray:
  return x + y


def shape_kept(g: Generator, x: Value) -> tuple[Any, ...]:
  """A shape of as many elements."""
  rest, shape = math.prod(x.shape), []
  while rest > 1 and len(shape) < 3:
    shape.append(g.rng.choice([k for k in range(1, rest + 1) if rest % k == 0]))
    rest //= shape[-1]
  return (tuple(shape) + ((rest,) if rest != 1 or not shape else ()),)


def slices(g: Generator, x: Value, writing: bool = False) -> Any:
  """An index of slices, ints, None, ... and tensors."""
  out: list[Any] = []
  picked = g.rng.random() < 0.4
  lead: tuple[int, ...] = (g.rng.randint(1, 3),)
  for n in x.shape[: g.rng.randint(1, len(x.shape))]:
    k = g.rng.randrange(7)
    a = g.rng.randrange(n)
    if k == 0:
      out.append(g.rng.choice((a, a - n)))
    elif k == 1:
      out.append(slice(None, None, g.rng.choice((-1, 2, -2, 3))))
    elif k == 2:
      out.append(slice(a, g.rng.randint(a + 1, n), g.rng.choice((None, 1, 2))))
    elif k == 3 and picked:
      out.append(g.index(lead if g.rng.random() < 0.7 else (2, *lead), n))
    elif k == 4 and not writing:
      out += [None, slice(a, None)]
    else:
      out.append(slice(None) if g.rng.random() < 0.6 else slice(a, None))
  if len(out) < len(x.shape) and g.rng.random() < 0.3:
    out.append(...)
  return out[0] if len(out) == 1 and g.rng.random() < 0.5 else tuple(out)


def written(g: Generator, x: Value) -> tuple[Any, ...]:
  if g.rng.random() < 0.25:
    lead = x.shape[: g.rng.randint(1, len(x.shape))]
    return (g.leaf(lead, dtypes.bool), g.number(x.dtype))
  index = slices(g, x, writing=True)
  shape = np.zeros(x.shape, np.int8)[filled(index, lambda a: g.p.value(a.plain) if hasattr(a, "plain") else a)].shape
  thin = tuple(n if g.rng.random() < 0.8 else 1 for n in shape)
  return (index, g.number(x.dtype) if g.rng.random() < 0.3 else g.leaf(thin, x.dtype))


def pairs(g: Generator, x: Value, most: Callable[[int], int] = lambda n: 3) -> tuple[Any, ...]:
  return tuple((g.rng.choice((0, g.rng.randint(0, most(n)))), g.rng.randint(0, most(n))) for n in x.shape)


def padded(mode: str) -> Draw:
  most = {"reflect": lambda n: min(n - 1, 3), "circular": lambda n: min(n, 3), "replicate": lambda n: 3}[mode]
  return lambda g, x: (pairs(g, x, most), {"mode": mode})


def inner(x: Value, i: int) -> tuple[int, ...]:
  return tuple(1 if k == i else n for k, n in enumerate(x.shape))


def several(g: Generator, x: Value, *, dim: bool) -> tuple[Any, ...]:
  n = len(x.shape)
  d = g.rng.randrange(-n, n) if dim else g.rng.randrange(-n - 1, n + 1)
  rest = [g.like(x) for _ in range(g.rng.randint(0, 2))]
  if dim and g.rng.random() < 0.5:
    rest.append(g.leaf(tuple(g.rng.randint(1, 5) if k == d % n else m for k, m in enumerate(x.shape)), x.dtype))
  return (*rest, {"dim": d})


def split_sizes(g: Generator, x: Value) -> tuple[Any, ...]:
  d = g.axis(x)
  a = g.rng.randint(1, x.shape[d])
  rest = x.shape[d] - a
  return (g.rng.choice((a, [a, rest] if rest else [a])), {"dim": d})


def index_along(g: Generator, x: Value) -> tuple[int, Any, tuple[int, ...]]:
  d = g.axis(x)
  shape = tuple(g.rng.randint(1, 5) if i == d % len(x.shape) else g.rng.randint(1, n) for i, n in enumerate(x.shape))
  return d, g.index(shape, x.shape[d]), shape


def gathered(g: Generator, x: Value) -> tuple[Any, ...]:
  return index_along(g, x)[:2]


def scattered(**named: Any) -> Draw:
  def draw(g: Generator, x: Value) -> tuple[Any, ...]:
    d, index, shape = index_along(g, x)
    return (d, index, g.leaf(shape, x.dtype), named)

  return draw


def weights(g: Generator, x: Value, *, transposed: bool = False) -> tuple[Any, ...]:
  """Arguments of a convolution."""
  groups = g.rng.choice([k for k in (1, 2) if x.shape[1] % k == 0])
  kernel = tuple(g.rng.randint(1, min(3, n)) for n in x.shape[2:])
  out = groups * g.rng.randint(1, 2)
  shape = (x.shape[1], out // groups, *kernel) if transposed else (out, x.shape[1] // groups, *kernel)
  named = {"groups": groups, "stride": g.rng.randint(1, 2), "padding": g.rng.randint(0, 1)}
  if transposed:
    named["padding"] = min(named["padding"], min(kernel) - 1)
  return (g.leaf(shape, x.dtype), g.leaf((out,), x.dtype) if g.rng.random() < 0.5 else None, named)


def pool(g: Generator, x: Value) -> tuple[Any, ...]:
  kernel = tuple(g.rng.randint(1, min(3, n)) for n in x.shape[-2:])
  named = {"stride": g.rng.randint(1, 3), "padding": g.rng.randint(0, min(kernel) // 2)}
  return (kernel, {**named, "ceil_mode": g.rng.random() < 0.3})


def image(g: Generator, x: Value) -> tuple[Any, ...]:
  return (tuple(g.rng.randint(1, 9) for _ in x.shape[2:]),)


def product(g: Generator, x: Value) -> tuple[Any, ...]:
  k, n = x.shape[-1], g.rng.randint(1, 5)
  batch = tuple(g.rng.choice((1, m)) for m in x.shape[:-2])
  return (g.leaf(g.rng.choice(((k,), (k, n), (*batch, k, n))), x.dtype),)


def contraction(g: Generator, x: Value) -> tuple[Any, ...]:
  names = "abcd"[: len(x.shape)]
  second = g.rng.sample(names, g.rng.randint(1, len(names))) + ["e"]
  out = g.rng.sample(names + "e", g.rng.randint(0, len(names) + 1))
  y = g.leaf(tuple(x.shape[names.index(c)] if c in names else g.rng.randint(1, 4) for c in second), x.dtype)
  return (f"{names},{''.join(second)}->{''.join(out)}", y)


def attention(g: Generator, x: Value) -> tuple[Any, ...]:
  keys = (*x.shape[:-2], g.rng.randint(1, 5), x.shape[-1])
  return (g.leaf(keys, x.dtype), g.leaf(keys, x.dtype), {"is_causal": g.rng.random() < 0.3})


def classes(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.index((x.shape[0], *x.shape[2:]), x.shape[1]), {"reduction": g.reduction()})


def zero_or_one(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.index(x.shape, 2, x.dtype), {"reduction": g.reduction()})


def normed(g: Generator, x: Value) -> tuple[Any, ...]:
  one = g.leaf((x.shape[1],), x.dtype)
  return (g.rng.choice((None, one)), g.leaf((x.shape[1],), x.dtype), one, g.leaf((x.shape[1],), x.dtype))


def rolled(g: Generator, x: Value) -> tuple[Any, ...]:
  return (g.rng.randint(-5, 5), g.rng.choice((None, g.axis(x))))


def flipped(g: Generator, x: Value) -> tuple[Any, ...]:
  return (tuple(i for i in range(len(x.shape)) if g.rng.random() < 0.5),)


def two_axes(g: Generator, x: Value) -> tuple[Any, ...]:
  return tuple(g.rng.sample(range(len(x.shape)), 2))


def resharded(g: Generator, x: Value) -> tuple[Any, ...]:
  return (where(g, len(x.shape)),)


def merged(x: np.ndarray, y: Any) -> np.ndarray:
  return np.asarray(x @ y)


def np_pad(x: np.ndarray, pairs: Any, mode: str = "constant", value: float = 0) -> np.ndarray:
  names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
  return np.pad(x, pairs, constant_values=value) if mode == "constant" else np.pad(x, pairs, names[mode])


def np_logsumexp(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
  most = x.max(axis, keepdims=True)
  return np.log(np.exp(x - most).sum(axis, keepdims=keepdims)) + (most if keepdims else most.sum(axis))


def np_softmax(x: np.ndarray, axis: int) -> np.ndarray:
  e = np.exp(x - x.max(axis, keepdims=True))
  return e / e.sum(axis, keepdims=True)


def np_view(x: np.ndarray, index: Any) -> tuple[np.ndarray, Any]:
  """(the view that the index's integers take, the rest of the index): an integer is a view, as in PyTorch, also beside
  arrays, where numpy would count it as one of them."""
  if not isinstance(index, tuple):
    index = (index,)
  first = tuple(i if isinstance(i, int) else slice(None) for i in index if i is not None and i is not Ellipsis)
  if any(isinstance(i, np.ndarray) and i.dtype == bool for i in index):  # of several dims
    return x, index
  return x[(*first, ...)], tuple(i for i in index if not isinstance(i, int))


def np_get(x: np.ndarray, index: Any) -> np.ndarray:
  view, rest = np_view(x, index)
  return np.asarray(view[rest])


def np_set(x: np.ndarray, index: Any, value: Any) -> np.ndarray:
  x = x.copy()
  view, rest = np_view(x, index)
  view[rest] = value
  return x


def reducing(f: Callable[..., Any]) -> Callable[..., Any]:
  return lambda x, axis, keepdim=False, **k: f(x, axis=axis, keepdims=keepdim, **k)


# ---------------------------------------------------------------- the table


def unary(kind: Kind, first: Callable[[Any], Any] | None = None, **functions: Any) -> list[Row]:
  return [Row(name, kind, numpy=f, of="float", first=first) for name, f in functions.items()]


def binary(kind: Kind, draw: Draw = other, of: str = "number", forward: bool = False, **functions: Any) -> list[Row]:
  return [Row(name, kind, draw, f, of, forward=forward) for name, f in functions.items()]


ROWS: tuple[Row, ...] = (
  # -------- one operand
  *unary(EXACT, neg=np.negative, square=np.square, __neg__=np.negative, contiguous=np.array, clone=np.array),
  *unary(EXACT, detach=np.array, contiguous_backward=np.array),
  *unary(KINK, abs=np.abs, __abs__=np.abs, relu=lambda x: np.maximum(x, 0), relu6=lambda x: np.clip(x, 0, 6)),
  *unary(STEP, sign=np.sign),
  *unary(STEP, eighth, floor=np.floor, ceil=np.ceil, trunc=np.trunc, round=np.round),
  *unary(SMOOTH, positive, reciprocal=np.reciprocal, sqrt=np.sqrt, rsqrt=lambda x: 1 / np.sqrt(x)),
  *unary(SMOOTH, positive, log=np.log, log2=np.log2, log10=np.log10),
  *unary(SMOOTH, lambda t: t * t + 2, acosh=np.arccosh),
  *unary(SMOOTH, bounded, exp=np.exp, exp2=np.exp2, sinh=np.sinh, cosh=np.cosh, tan=np.tan, asin=np.arcsin),
  *unary(SMOOTH, bounded, acos=np.arccos, atanh=np.arctanh),
  *unary(SMOOTH, sin=np.sin, cos=np.cos, tanh=np.tanh, atan=np.arctan, asinh=np.arcsinh),
  *unary(SMOOTH, sigmoid=lambda x: 1 / (1 + np.exp(-x)), silu=None, swish=None, gelu=None, quick_gelu=None, mish=None),
  *unary(SMOOTH, erf=None, softplus=lambda x: np.logaddexp(x, 0), logsigmoid=lambda x: -np.logaddexp(-x, 0)),
  *unary(BENT, softsign=lambda x: x / (1 + np.abs(x)), elu=None, celu=None, selu=None),
  *unary(BENT, lambda t: t + 0.25, hardsigmoid=lambda x: np.clip(x / 6 + 0.5, 0, 1)),  # bends at whole numbers
  *unary(BENT, hardswish=None, leaky_relu=lambda x: np.where(x > 0, x, 0.01 * x)),
  *unary(KINK, hardtanh=lambda x: np.clip(x, -1, 1)),
  Row("isnan", STEP, numpy=np.isnan, of="float", first=lambda t: t / t, forward=True),
  Row("isinf", STEP, numpy=np.isinf, of="float", first=lambda t: 1 / t, forward=True),
  Row("isfinite", STEP, numpy=np.isfinite, of="float", first=lambda t: 1 / t, forward=True),
  Row("logical_not", STEP, numpy=np.logical_not, of="bool", forward=True),
  Row("bitwise_not", STEP, numpy=np.invert, of="int", forward=True),
  Row("__invert__", STEP, numpy=np.invert, of="int", forward=True),
  # -------- types
  Row("cast", EXACT, lambda g, x: (g.rng.choice((dtypes.float32, dtypes.float64)),), of="number"),
  Row("float", EXACT, numpy=np.array),
  Row("double", EXACT, numpy=np.array),
  Row("half", STEP, forward=True),
  Row("bfloat16", STEP, forward=True, first=lambda t: t.clamp(0, 200)),
  Row("int", STEP, numpy=np.array, forward=True),
  Row("long", STEP, numpy=np.array, forward=True),
  Row("short", STEP, forward=True, first=lambda t: t.clamp(0, 100)),
  Row("bool", STEP, numpy=lambda x: x != 0, forward=True),
  # -------- two operands and more
  *binary(EXACT, add=np.add, sub=np.subtract, mul=np.multiply, __add__=np.add, __mul__=np.multiply),
  *binary(EXACT, __sub__=np.subtract, __radd__=np.add, __rmul__=np.multiply, __rsub__=lambda x, y: y - x),
  *binary(EXACT, __iadd__=np.add, __isub__=np.subtract, __imul__=np.multiply),
  *binary(KINK, maximum=np.maximum, minimum=np.minimum),
  *binary(SMOOTH, at_least_one, "float", div=np.divide, __truediv__=np.divide, __itruediv__=np.divide),
  Row("__rtruediv__", SMOOTH, other, lambda x, y: y / x, "float", first=positive),
  Row("div", STEP, lambda g, x: (*at_least_one(g, x), {"rounding_mode": "floor"}), of="float", forward=True),
  Row("div", STEP, lambda g, x: (*at_least_one(g, x), {"rounding_mode": "trunc"}), of="int", forward=True),
  *binary(STEP, at_least_one, forward=True, mod=np.mod, fmod=np.fmod, __mod__=np.mod, __floordiv__=np.floor_divide),
  *binary(STEP, at_least_one, "int", True, __ifloordiv__=np.floor_divide),
  Row("__rmod__", STEP, lambda g, x: (7,), lambda x, y: y % x, "int", first=positive, forward=True),
  Row("__rfloordiv__", STEP, lambda g, x: (7,), lambda x, y: y // x, "int", first=positive, forward=True),
  *binary(EXACT, lambda g, x: (g.rng.choice((2, 3)),), pow=np.power, __pow__=np.power, __ipow__=np.power),
  Row("pow", SMOOTH, lambda g, x: (g.rng.choice((0.5, -1, 1.5)),), np.power, "float", first=positive),
  Row("__rpow__", SMOOTH, lambda g, x: (2,), lambda x, y: y**x, "float", first=bounded),
  *binary(STEP, forward=True, eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal, gt=np.greater),
  *binary(STEP, forward=True, ge=np.greater_equal, isclose=np.isclose, __eq__=np.equal, __ne__=np.not_equal),
  *binary(STEP, forward=True, __lt__=np.less, __le__=np.less_equal, __gt__=np.greater, __ge__=np.greater_equal),
  Row("allclose", STEP, lambda g, x: (g.like(x),), np.allclose, of="float", forward=True),
  *binary(STEP, of="int", forward=True, bitwise_and=np.bitwise_and, bitwise_or=np.bitwise_or, __and__=np.bitwise_and),
  *binary(STEP, of="int", forward=True, bitwise_xor=np.bitwise_xor, __or__=np.bitwise_or, __xor__=np.bitwise_xor),
  *binary(STEP, of="int", forward=True, __rand__=np.bitwise_and, __ror__=np.bitwise_or, __rxor__=np.bitwise_xor),
  *binary(STEP, of="int", forward=True, __iand__=np.bitwise_and, __ior__=np.bitwise_or, __ixor__=np.bitwise_xor),
  *binary(STEP, shift, "int", True, lshift=np.left_shift, rshift=np.right_shift, __lshift__=np.left_shift),
  *binary(STEP, shift, "int", True, __rshift__=np.right_shift, __ilshift__=np.left_shift, __irshift__=np.right_shift),
  Row("__rlshift__", STEP, lambda g, x: (2,), lambda x, y: y << x, "int", first=lambda t: t & 3, forward=True),
  Row("__rrshift__", STEP, lambda g, x: (99,), lambda x, y: y >> x, "int", first=lambda t: t & 3, forward=True),
  Row("copysign", STEP, at_least_one, np.copysign, "float"),
  Row("logaddexp", SMOOTH, lambda g, x: (g.like(x),), np.logaddexp, "float"),
  Row("lerp", EXACT, lambda g, x: (g.like(x), g.rng.randint(-2, 3)), lambda x, y, w: x + (y - x) * w, "float"),
  Row("where", EXACT, lambda g, x: (g.like(x, g.kind()), g.number(dtypes.int8)), np.where, "bool"),
  *binary(KINK, lambda g, x: (g.rng.randint(-2, 1), g.rng.randint(1, 4)), of="float", clamp=np.clip, clip=np.clip),
  Row("masked_fill", EXACT, lambda g, x: (mask(g, x), g.number(x.dtype)), lambda x, m, v: np.where(m, v, x)),
  Row("usum", EXACT, lambda g, x: (g.like(x), g.like(x)), lambda x, y, z: x + y + z),
  Row("uprod", EXACT, lambda g, x: (g.like(x), g.like(x)), lambda x, y, z: x * y * z),
  Row("alu", EXACT, lambda g, x: (Ops.ADD, g.like(x)), np_alu),
  Row("ufix", EXACT, lambda g, x: (g.number(x.dtype),), lambda x, y: np.asarray(y)),
  Row("const", EXACT, lambda g, x: (g.number(x.dtype),), lambda x, y: np.asarray(y)),
  Row("sequential", KINK, lambda g, x: ([Tensor.neg, Tensor.relu, Tensor.square],), of="float"),
  # -------- reductions
  Row("sum", EXACT, axes, reducing(np.sum)),
  Row("prod", KINK, axes, reducing(np.prod), "float"),
  *[Row(n, KINK, axes, reducing(f)) for n, f in (("max", np.max), ("min", np.min))],
  Row("mean", SMOOTH, axes, reducing(np.mean), "float"),
  Row("var", SMOOTH, lambda g, x: (*axes(g, x)[:1], {"correction": 0}), lambda x, a, correction: np.var(x, a), "float"),
  Row("var", SMOOTH, axes, of="float"),
  Row("std", BENT, lambda g, x: (*axes(g, x)[:1], {"correction": 0}), lambda x, a, correction: np.std(x, a), "float"),
  Row("var_mean", SMOOTH, axes, of="float"),
  Row("std_mean", BENT, axes, of="float"),
  *[Row(n, STEP, axes, reducing(f), forward=True) for n, f in (("any", np.any), ("all", np.all))],
  *[Row(n, STEP, axis, f, ndim=(1, 4), forward=True) for n, f in (("argmax", np.argmax), ("argmin", np.argmin))],
  Row("logsumexp", SMOOTH, axes, reducing(np_logsumexp), "float"),
  Row("softmax", SMOOTH, axis, np_softmax, "float", (1, 4)),
  Row("softmin", SMOOTH, axis, lambda x, a: np_softmax(-x, a), "float", (1, 4)),
  Row("log_softmax", SMOOTH, axis, lambda x, a: x - np_logsumexp(x, a, True), "float", (1, 4)),
  # -------- scans and orders
  Row("cumsum", EXACT, axis, np.cumsum, ndim=(1, 4)),
  Row("cumprod", KINK, axis, np.cumprod, "float", (1, 4)),
  Row("cummax", KINK, axis, np.maximum.accumulate, ndim=(1, 4), pick=0),
  Row("cummin", KINK, axis, np.minimum.accumulate, ndim=(1, 4), pick=0),
  *[Row(n, STEP, axis, ndim=(1, 4), pick=1, forward=True) for n in ("cummax", "cummin")],
  Row("logcumsumexp", SMOOTH, axis, np.logaddexp.accumulate, "float", (1, 4)),
  Row("sort", KINK, axis, np.sort, ndim=(1, 4), pick=0, largest=100),
  Row("sort", STEP, lambda g, x: (g.axis(x), {"descending": True}), ndim=(1, 4), pick=1, forward=True, largest=100),
  Row("argsort", STEP, axis, lambda x, a: np.argsort(x, a, kind="stable"), ndim=(1, 4), forward=True, largest=100),
  Row("topk", KINK, lambda g, x: (1, g.axis(x)), np_top, ndim=(1, 4), pick=0, largest=100),
  Row("topk", STEP, lambda g, x: (min(2, x.shape[0]), 0), ndim=(1, 4), pick=1, forward=True, largest=100),
  # -------- movement
  *[Row(n, EXACT, shape_kept, np.reshape) for n in ("reshape", "view")],
  Row("permute", EXACT, lambda g, x: (g.order(x),), np.transpose),
  Row("T", EXACT, numpy=lambda x: x.T, ndim=(2, 2)),
  Row("transpose", EXACT, two_axes, np.swapaxes, ndim=(2, 4)),
  Row("expand", EXACT, lambda g, x: ((g.rng.randint(1, 4), *x.shape),), np.broadcast_to, ndim=(0, 3)),
  Row("flip", EXACT, flipped, np.flip, ndim=(1, 4)),
  Row("pad", EXACT, lambda g, x: (pairs(g, x), {"value": g.number(x.dtype)}), np_pad, ndim=(1, 3)),
  *[Row("pad", EXACT, padded(mode), np_pad, ndim=(1, 3)) for mode in ("reflect", "replicate", "circular")],
  Row("pad_to", EXACT, lambda g, x: (tuple(n + g.rng.randint(0, 3) for n in x.shape),), ndim=(1, 3)),
  Row("shrink", EXACT, lambda g, x: (g.ranges(x),), lambda x, r: x[tuple(slice(*p) for p in r)], ndim=(1, 4)),
  Row("shrink_to", EXACT, lambda g, x: (tuple(g.rng.randint(1, n) for n in x.shape),), ndim=(1, 4)),
  Row("squeeze", EXACT, numpy=np.squeeze, first=lambda t: t.reshape((1, *t.shape))),
  Row("unsqueeze", EXACT, axis, np.expand_dims, ndim=(1, 3)),
  Row("flatten", EXACT, lambda g, x: (g.rng.randrange(len(x.shape)),), ndim=(1, 4)),
  Row("unflatten", EXACT, lambda g, x: (0, g.factors_of(x.shape[0])), ndim=(1, 3)),
  Row("repeat", EXACT, lambda g, x: (tuple(g.rng.randint(1, 3) for _ in x.shape),), np.tile, ndim=(1, 3)),
  Row("repeat_interleave", EXACT, lambda g, x: (g.rng.randint(1, 3), g.axis(x)), np.repeat, ndim=(1, 4)),
  Row("roll", EXACT, rolled, np.roll, ndim=(1, 4)),
  Row("cat", EXACT, lambda g, x: several(g, x, dim=True), lambda *xs, dim: np.concatenate(xs, dim), ndim=(1, 4)),
  Row("stack", EXACT, lambda g, x: several(g, x, dim=False), lambda *xs, dim: np.stack(xs, dim), ndim=(0, 3)),
  Row("split", EXACT, split_sizes, ndim=(1, 4)),
  Row("chunk", EXACT, lambda g, x: (g.rng.randint(1, 3), g.axis(x)), ndim=(1, 4)),
  Row("meshgrid", EXACT, lambda g, x: (g.leaf((g.rng.randint(1, 5),), x.dtype),), ndim=(1, 1)),
  Row("unfold", EXACT, lambda g, x: (0, g.rng.randint(1, x.shape[0]), g.rng.randint(1, 3)), ndim=(1, 3)),
  Row("diag", EXACT, numpy=np.diag, ndim=(1, 1)),
  Row("diagonal", EXACT, lambda g, x: (g.rng.randint(-1, 1),), np.diagonal, ndim=(2, 4)),
  Row("rearrange", EXACT, lambda g, x: (g.rng.choice(("a b -> b a", "a b -> (b a)", "a b -> a 1 b")),), ndim=(2, 2)),
  Row("tril", EXACT, lambda g, x: (g.rng.randint(-2, 2),), np.tril, ndim=(2, 3)),
  Row("triu", EXACT, lambda g, x: (g.rng.randint(-2, 2),), np.triu, ndim=(2, 3)),
  *[Row(n, EXACT, resharded) for n in ("to", "shard", "to_", "shard_")],
  Row("constrain", EXACT, lambda g, x: ({"priority": g.rng.randint(0, 2)},)),
  Row("shard_like", EXACT, lambda g, x: (g.leaf(x.shape, x.dtype),)),
  # -------- indexing
  Row("__getitem__", EXACT, lambda g, x: (slices(g, x),), np_get, ndim=(1, 4)),
  *[Row("__setitem__", EXACT, written, np_set, ndim=(1, 4), largest=100) for _ in range(2)],
  Row("assign", EXACT, lambda g, x: (g.like(x),), lambda x, y: y, forward=True),
  Row("gather", EXACT, gathered, ndim=(1, 3)),
  Row("scatter", EXACT, scattered(), ndim=(1, 3), largest=100),
  Row("scatter", EXACT, scattered(reduce="add"), ndim=(1, 3), largest=100),
  Row("scatter", KINK, scattered(reduce="multiply"), ndim=(1, 3), largest=100),
  Row("scatter_reduce", KINK, scattered(reduce="amax"), of="float", ndim=(1, 3), largest=100),
  Row("scatter_reduce", KINK, scattered(reduce="amin"), of="float", ndim=(1, 3), largest=100),
  Row("scatter_reduce", KINK, scattered(reduce="prod"), of="float", ndim=(1, 3), largest=100),
  Row("scatter_reduce", EXACT, scattered(reduce="sum", include_self=False), ndim=(1, 3), largest=100),
  Row("scatter_reduce", SMOOTH, scattered(reduce="mean"), of="float", ndim=(1, 3), largest=100),
  Row("masked_select", EXACT, lambda g, x: (mask(g, x), {"size": g.rng.randint(1, 9), "fill_value": 1}), largest=60),
  Row("nonzero", STEP, lambda g, x: ({"size": g.rng.randint(1, 9)},), ndim=(1, 3), forward=True, largest=60),
  Row("one_hot", STEP, lambda g, x: (g.rng.randint(1, 5),), of="int", ndim=(0, 3), forward=True),
  # -------- products
  *[Row(n, EXACT, product, merged, ndim=(2, 4)) for n in ("matmul", "dot", "__matmul__")],
  Row("__rmatmul__", EXACT, lambda g, x: (g.leaf((3, x.shape[0]), x.dtype),), lambda x, y: y @ x, ndim=(2, 2)),
  Row("__imatmul__", EXACT, lambda g, x: (g.leaf((x.shape[1],) * 2, x.dtype),), merged, ndim=(2, 2)),
  Row("einsum", EXACT, contraction, lambda x, f, y: np.einsum(f, x, y), ndim=(1, 3), of="float"),
  Row("linear", EXACT, layer, lambda x, w, b: x @ w + b, ndim=(1, 3)),
  Row("conv2d", EXACT, weights, of="float", ndim=(3, 4), largest=200),
  Row("conv_transpose2d", EXACT, lambda g, x: weights(g, x, transposed=True), of="float", ndim=(3, 4), largest=200),
  Row("avg_pool2d", SMOOTH, pool, of="float", ndim=(3, 4), largest=200),
  Row("max_pool2d", KINK, pool, of="float", ndim=(3, 4), largest=200),
  Row("interpolate", SMOOTH, image, of="float", ndim=(3, 4), largest=200),
  Row("interpolate", EXACT, lambda g, x: (*image(g, x), {"mode": "nearest"}), of="float", ndim=(3, 4), largest=200),
  Row("scaled_dot_product_attention", SMOOTH, attention, of="float", ndim=(2, 4), first=eighth),
  Row("newton_schulz", SMOOTH, lambda g, x: (2, (3.4445, -4.775, 2.0315)), of="float", ndim=(2, 3), first=positive),
  # -------- networks
  Row("layernorm", SMOOTH, axis, of="float", ndim=(1, 4)),
  Row("batchnorm", EXACT, normed, of="float", ndim=(2, 4)),
  Row("normalize", SMOOTH, lambda g, x: ({"dim": g.axis(x)},), of="float", ndim=(1, 4), first=positive),
  Row("dropout", EXACT, lambda g, x: (0.5,), of="float", largest=100),
  Row("binary_crossentropy", SMOOTH, zero_or_one, of="float", first=chance),
  Row("binary_crossentropy_logits", BENT, zero_or_one, of="float"),
  *[Row(n, SMOOTH, classes, of="float", ndim=(2, 3)) for n in ("cross_entropy", "nll_loss")],
  Row("sparse_categorical_crossentropy", SMOOTH, lambda g, x: classes(g, x)[:1], of="float", ndim=(2, 2)),
  # -------- creation, at a placement
  Row("zeros", EXACT, created, lambda x, *a, device: np.zeros(a)),
  Row("ones", EXACT, created, lambda x, *a, device: np.ones(a)),
  Row("full", EXACT, lambda g, x: (x.shape, 3, *like(g, x)), lambda x, s, v, device: np.full(s, v)),
  Row("arange", EXACT, lambda g, x: (1, g.rng.randint(2, 13), g.rng.randint(1, 3), {"device": where(g, 1)})),
  Row("linspace", SMOOTH, lambda g, x: (0, 3, g.rng.randint(1, 11), {"device": where(g, 1)})),
  Row("eye", EXACT, lambda g, x: (g.rng.randint(1, 7), {"device": where(g, 2)}), lambda x, n, device: np.eye(n)),
  *[Row(n, EXACT, like) for n in ("zeros_like", "ones_like")],
  Row("full_like", EXACT, lambda g, x: (2,)),
  Row("const_like", EXACT, lambda g, x: (2,)),
  *[Row(n, SMOOTH, created, largest=60) for n in ("rand", "randn", "uniform", "normal")],
  Row("scaled_uniform", SMOOTH, created, ndim=(1, 3), largest=60),
  *[Row(n, SMOOTH, created, ndim=(2, 3), largest=60) for n in ("glorot_uniform", "kaiming_uniform", "kaiming_normal")],
  *[Row(n, SMOOTH, like, of="float", largest=60) for n in ("rand_like", "randn_like")],
  Row("randint", EXACT, lambda g, x: created(g, x, low=-3, high=4), forward=True, largest=60),
  Row("randperm", STEP, lambda g, x: (g.rng.randint(1, 9), {"device": where(g, 1)}), forward=True),
  Row("multinomial", STEP, lambda g, x: (3, True), of="float", ndim=(1, 2), first=positive, forward=True, largest=60),
)  # fmt: skip

MACHINERY = frozenset(
  f"__{n}__"
  for n in (
    *("annotations", "slots", "weakref", "module", "doc", "dict", "init", "repr", "hash", "reduce"),
    *("firstlineno", "static_attributes"),  # from Python 3.13 on
    *("array_priority", "init_subclass"),  # who computes `number * tensor`: test/tensor; what is no tensor: test/errors
    "getattr",  # what is no name: test/tensor
  )
)

_IO = "reads or runs it: every program is read"
_SHOWS = "shows what it is, computes nothing"
REASONS: dict[str, str] = {
  **dict.fromkeys(("realize", "numpy", "item", "tolist", "data", "__bool__", "__iter__", "__len__"), _IO),
  **dict.fromkeys(("__float__", "__int__", "__format__"), "test_names_of_programs.py"),
  **dict.fromkeys(("__divmod__", "__rdivmod__", "__pos__", "__round__"), "other methods; test_tensor_elementwise.py"),
  "follows": "test_values_and_views.py",
  **dict.fromkeys(("backward", "gradient", "grad"), "every third program has gradients"),
  **dict.fromkeys(("requires_grad", "requires_grad_", "is_param", "is_param_"), "says who gets a gradient"),
  **dict.fromkeys(("shape", "dtype", "device", "ndim", "numel", "size", "nbytes", "element_size", "max_shape"), _SHOWS),
  **dict.fromkeys(("max_numel", "numpy_shape", "is_floating_point", "uop"), _SHOWS),
  **dict.fromkeys(("train", "test", "no_grad", "manual_seed", "training"), "sets a mode; programs run in each"),
  **dict.fromkeys(("empty", "empty_like", "invalids"), "its content is not defined"),
  **dict.fromkeys(("from_blob", "from_dlpack", "from_url", "__array__", "__dlpack__", "__dlpack_device__"), _IO),
  "from_process_local": "what each of several processes has: test/distributed",
  **dict.fromkeys(("shards", "from_shards"), "between tensors of different devices: test/sharding/test_shards.py"),
  **dict.fromkeys(("keccak", "hash"), "thousands of ops: test/sharding/test_every_op.py"),
  **dict.fromkeys(("qr", "svd"), "their branches depend on the last bits: test/sharding/test_every_op.py"),
  **dict.fromkeys(("threefry", "random_bits", "max_unpool2d"), "operands of their own: test/sharding/test_every_op.py"),
  "__delitem__": "raises",
  "replace": "another tensor's value, whatever it is",
  "bitcast": "at UOp level: the bits of integers only",
}  # fmt: skip


def public() -> set[str]:
  """The names that a user reaches on a Tensor."""
  own = {n for n in dir(Tensor) if inspect.getattr_static(Tensor, n) is not inspect.getattr_static(object, n, None)}
  return {n for n in own - MACHINERY if not n.startswith("_") or n.startswith("__")}
