"""Random programs over every tensor op and every public method, built twice: on random placements and on one device.
Values are small integers where possible, so sums are exact.

A program is a list of steps; a step is a function of UOps that is applied to both builds alike. The reference value of
each step is known while the program grows, which keeps magnitudes within what float32 adds exactly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformed
from methods import ROWS as METHODS
from methods import At, Kind, Row, call, expected, filled, values_in

from tinygrad import Tensor
from tinygrad.device import Mesh as DeviceMesh
from tinygrad.device import Partial, Placement, Sharding, SubAxis
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.engine.program_order import memory_state
from tinygrad.mixin.random import _states as random_states
from tinygrad.mixin.random import threefry
from tinygrad.runtime.python import Resolved
from tinygrad.uop import Ops, UOp, map_arg
from tinygrad.uop.cards import CARDS
from tinygrad.uop.rewrite import substitute
from tinygrad.uop.symbolic import simplify

MESHES = [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (2, 2), (2, 3), (4, 2), (2, 2, 2), (3, 2), (2, 4)]
REFERENCE = "NULL:91"
FLOATS = (dtypes.float64, dtypes.float32)
NUMERIC = (*FLOATS, dtypes.float16, dtypes.int32, dtypes.int8, dtypes.int64, dtypes.uint8)
VARIABLE = UOp.variable("v", 1, 6)


def mesh(shape: tuple[int, ...], kind: str) -> DeviceMesh:
  return DeviceMesh([f"{kind}:{i}" for i in range(math.prod(shape))], shape)


def divisors(n: int) -> list[int]:
  return [k for k in range(2, n + 1) if n % k == 0]


def random_placement(rng: random.Random, m: DeviceMesh, ndim: int) -> Placement:
  """Each sub-axis of the mesh (an axis, or the parts of a split axis) cuts some dim or none."""
  sub_axes: list[SubAxis] = []
  stride = len(m)
  for n in m.shape:
    stride //= n
    k = rng.choice(divisors(n)) if n > 1 and rng.random() < 0.3 else n
    sub_axes += [SubAxis(k, stride * (n // k)), SubAxis(n // k, stride)]
  dims: list[list[SubAxis]] = [[] for _ in range(ndim)]
  if rng.random() < 0.4:
    rng.shuffle(sub_axes)
  for d in sub_axes:
    at = rng.randrange(-1, ndim)
    if at >= 0:
      dims[at].append(d)
  placed: Placement = Sharding.of(m, dims)
  return placed


def random_partial(rng: random.Random, m: DeviceMesh) -> Partial:
  axis = rng.randrange(len(m.shape))
  sub_axis = SubAxis(m.shape[axis], math.prod(m.shape[axis + 1 :]))
  return Partial((sub_axis,), rng.choice((Ops.ADD, Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL)))


def unreduced(where: Sharding, partial: Partial) -> Placement:
  """The placement, partial over sub-axes that then cut no dim."""
  dims = [
    [d for d in dim if not any(d.stride < o.stride * o.size and o.stride < d.stride * d.size for o in partial.sub_axes)]
    for dim in where.dims
  ]
  placed: Placement = Sharding.of(where.mesh, dims, (partial,))
  return placed


def reference_value(u: UOp, leaves: dict[UOp, np.ndarray], memo: dict[UOp, np.ndarray], variable: int) -> np.ndarray:
  """The value of a graph on one device, by the cards' `evaluate` in numpy; AFTER holds the buffer with its ASSIGNs
  done."""

  def number(x: Any) -> int:
    return (
      int(x) if isinstance(x, int) else int(simplify(substitute(x, {VARIABLE: UOp.const(dtypes.index, variable)})).arg)
    )

  for x in u.toposort(lambda x: x not in memo):
    shape = tuple(number(n) for n in x.shape)
    if x.op is Ops.BUFFER:
      memo[x] = leaves[x]
    elif x.op is Ops.VARIABLE:
      memo[x] = np.asarray(variable)
    elif x.op is Ops.UNIQUE:
      continue
    elif x.op is Ops.ASSIGN:
      memo[x] = memo[x.src[1]]
    elif x.op is Ops.AFTER:
      content = np.array(memo[x.src[0]])
      for effect in x.src[1:]:
        chain, view = [], effect.src[0]
        while view is not x.src[0]:
          chain.append(view)
          view = view.src[0]
        at = np.arange(content.size).reshape(content.shape)
        for v in reversed(chain):
          at = run_card(v, [at], tuple(number(n) for n in v.shape), number, dtypes.int64)
        content.reshape(-1)[at.reshape(-1)] = memo[effect.src[1]].reshape(-1)
      memo[x] = content
    else:
      memo[x] = run_card(x, [memo[s] for s in x.src if s.op is not Ops.UNIQUE], shape, number, x.dtype)
      assert memo[x].shape == shape, (x, memo[x].shape, shape)
  return memo[u]


def run_card(
  u: UOp, xs: list[np.ndarray], shape: tuple[int, ...], number: Callable[[Any], int], dtype: DType
) -> np.ndarray:
  evaluate = CARDS[u.op].evaluate
  assert evaluate is not None, u.op.name
  node: Any = Resolved(u.op, dtype, u.src, map_arg(u.arg, number), shape)
  with np.errstate(all="ignore"):
    return np.asarray(evaluate(node, xs, shape))


@dataclass(eq=False)
class Value:
  """One value in both builds."""

  placed: UOp
  plain: UOp
  text: str
  exact: bool = True  # small integers: the builds agree bit for bit

  @property
  def shape(self) -> tuple[Any, ...]:
    return self.plain.shape

  @property
  def dtype(self) -> DType:
    return self.plain.dtype

  @property
  def fixed(self) -> bool:
    return all(isinstance(n, int) for n in self.shape)


@dataclass(eq=False)
class Program:
  seed: int
  mesh: DeviceMesh
  variable: int
  content: dict[UOp, np.ndarray] = field(default_factory=dict)  # of the buffers of both builds
  memo: dict[UOp, np.ndarray] = field(default_factory=dict)
  pool: list[Value] = field(default_factory=list)  # what a step may take
  made: list[Value] = field(default_factory=list)  # what there is
  leaves: list[Value] = field(default_factory=list)
  roots: list[Value] = field(default_factory=list)
  exact_gradient: bool = True
  methods: bool = False  # some steps are methods of Tensor
  backward: bool = False
  through: tuple[transformed.Through, list[Value]] | None = None  # the step that goes through transforms, its operands

  def value(self, u: UOp) -> np.ndarray:
    return reference_value(u, self.content, self.memo, self.variable)

  def listing(self) -> str:
    lines = [f"%{i}: {v.text} {v.dtype.name}{list(v.shape)} on {v.placed.device}" for i, v in enumerate(self.made)]
    return "\n".join(
      [
        f"seed {self.seed}, {self.mesh}, v={self.variable}",
        *lines,
        *[f"root {v.text} on {v.placed.device}" for v in self.roots],
      ]
    )


MAGNITUDE = {dtypes.float64: 2**46, dtypes.float32: 2**20, dtypes.float16: 2**10}


class Generator:
  """Grows one program from a seed."""

  def __init__(self, seed: int, steps: int, backward: bool, kind: str, methods: float, row: Row | None) -> None:
    self.rng = rng = random.Random(seed)
    self.backward = backward
    self.methods = methods  # how many of the steps are methods of Tensor
    self.p = Program(seed, mesh(rng.choice(MESHES), kind), rng.randint(1, 6), methods=methods > 0, backward=backward)
    self.single = f"{kind}:8"  # a device beside the mesh
    self.transforms = 6 if seed % 4 == 3 and not self.methods else 0  # how many of the steps' draws
    self.unreduced = 0.6 if seed % 2 else 0.1  # how often a leaf is partial, mostly over the same
    self.partial = random_partial(rng, self.p.mesh)
    for _ in range(rng.randint(1, 2)):
      self.input(
        self.random_shape(),
        rng.choice(FLOATS)
        if backward
        else rng.choice((*FLOATS, dtypes.float64, dtypes.float16, dtypes.int32, dtypes.int8)),
      )
    if row is not None:
      made = next((v for _ in range(100) if (v := self.method(self.p.pool[-1], row)) is not None), None)
      assert made is not None, f"no arguments that {row.name} takes in 100 draws"
    for _ in range(rng.randint(1, steps) if methods else steps):
      while not self.step():
        pass
    usable = [v for v in self.p.pool if v.fixed]
    if backward:
      usable = [v for v in usable if v.dtype in FLOATS]
    for v in {id(v): v for v in (usable[-1], rng.choice(usable), rng.choice(usable))}.values():
      if rng.random() < 0.3 and not backward:
        where = random_placement(rng, self.p.mesh, len(v.shape))
        v = Value(v.placed.copy_to_device(where), v.plain, f"move({self.name(v)}, {where})", v.exact)
      self.p.roots.append(v)

  # ---- values

  def name(self, v: Value) -> str:
    return next((f"%{i}" for i, x in enumerate(self.p.made) if x is v), "leaf")

  def add(self, v: Value) -> Value:
    self.p.pool.append(v)
    self.p.made.append(v)
    return v

  def random_shape(self) -> tuple[int, ...]:
    return tuple(
      self.rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 4)) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3)))
    )

  def array(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    r = np.random.default_rng(self.rng.randrange(1 << 30))
    if dtype is dtypes.bool:
      return r.integers(0, 2, shape).astype(bool)
    return r.integers(0 if dtypes.is_unsigned(dtype) else -3, 5, shape).astype(to_numpy_dtype(dtype))

  def leaf(self, shape: tuple[int, ...], dtype: DType, content: np.ndarray | None = None) -> Value:
    rng, m = self.rng, self.p.mesh
    where: Placement = random_placement(rng, m, len(shape))
    if len(m) > 1 and rng.random() < 0.1:
      where = self.single
    if isinstance(where, Sharding) and content is None and dtype is not dtypes.bool and rng.random() < self.unreduced:
      where = unreduced(where, self.partial if rng.random() < 0.8 else random_partial(rng, m))
    data = self.array(shape, dtype) if content is None else content
    v = Value(UOp.buffer(shape, dtype, where), UOp.buffer(shape, dtype, REFERENCE), f"leaf({where})")
    self.p.content[v.placed] = self.p.content[v.plain] = data
    self.p.leaves.append(v)
    return self.add(v)

  def input(self, shape: tuple[int, ...], dtype: DType) -> Value:
    """A leaf, or as often a view of a larger one or something to be computed; in programs of UOps alone, which are
    to find wrong rules soon, a leaf."""
    if not self.methods:
      return self.leaf(shape, dtype)
    rng, ways = self.rng, (self.cut_out, self.turned, self.counted, self.filled, self.summed)
    v = rng.choice(ways)(shape, dtype) if rng.random() < 0.5 and 0 not in shape else None
    return self.leaf(shape, dtype) if v is None else v

  def cut_out(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
    starts = [self.rng.randint(0, 2) for _ in shape]
    wide = self.leaf(tuple(a + n + self.rng.randint(0, 2) for a, n in zip(starts, shape)), dtype)
    pairs = [(a, a + n) for a, n in zip(starts, shape)]
    return self.apply(f"SHRINK({self.name(wide)}, {pairs})", lambda u: u.shrink(pairs), wide)

  def turned(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
    order = tuple(reversed(range(len(shape))))
    x = self.leaf(shape[::-1], dtype)
    return self.apply(f"FLIP(PERMUTE({self.name(x)}))", lambda u: u.permute(order).flip(order[:1]), x)

  def counted(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
    if dtype is dtypes.bool:
      return None
    u = UOp.iota(math.prod(shape), dtypes.int32).reshape(shape)
    return self.made_at(u.alu(Ops.MOD, u.const_like(5)).cast(dtype), f"iota mod 5 as {list(shape)}")

  def filled(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
    value = bool(self.rng.randrange(2)) if dtype is dtypes.bool else self.rng.randint(0, 3)
    return self.made_at(UOp.const(dtype, value).broadcast_to(shape), f"{value} as {list(shape)}")

  def summed(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
    x, y = self.leaf(shape, dtype), self.leaf(shape, dtype)
    op = Ops.XOR if dtype is dtypes.bool else Ops.ADD
    return self.apply(f"{op.name}({self.name(x)}, {self.name(y)})", lambda a, b: a.alu(op, b), x, y)

  def made_at(self, u: UOp, text: str) -> Value:
    """What lives anywhere, made on devices of the program's."""
    where = random_placement(self.rng, self.p.mesh, len(u.shape))
    return self.add(Value(u.copy_to_device(where), u.copy_to_device(REFERENCE), f"{text} at {where}"))

  def constant(self, shape: tuple[Any, ...], dtype: DType, value: Any) -> Value:
    u = UOp.const(dtype, value).broadcast_to(shape)
    return Value(u, u, f"const({value}, {list(shape)})")

  def like(self, x: Value, dtype: DType | None = None) -> Value:
    """An operand of x's shape: an older value, a constant, a counter, a fresh leaf, or a broadcast one."""
    rng, dtype = self.rng, dtype or x.dtype
    same = [v for v in self.p.pool if v.shape == x.shape and v.dtype is dtype and v.exact]
    k = rng.randrange(6)
    if (k <= 2 and same) or not x.fixed:
      return rng.choice(same) if same else self.constant(x.shape, dtype, 1)
    if k == 3:
      return self.constant(
        x.shape,
        dtype,
        True if dtype is dtypes.bool else rng.choice((1, 2, 3) if dtypes.is_unsigned(dtype) else (-2, -1, 1, 2, 3)),
      )
    if k == 4 and x.shape and dtype is not dtypes.bool:
      axis = rng.randrange(len(x.shape))
      ones = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
      u = UOp.iota(x.shape[axis], dtype).reshape(ones).expand(x.shape)
      return Value(u, u, f"iota(axis {axis} of {list(x.shape)})")
    if k == 5 and x.shape:
      thin = self.leaf(tuple(n if rng.random() < 0.5 else 1 for n in x.shape), dtype)
      if (
        wide := self.apply(f"expand({self.name(thin)}, {list(x.shape)})", lambda u: u.expand(x.shape), thin)
      ) is not None:
        return wide
    return self.input(x.shape, dtype)

  def apply(self, text: str, f: Callable[..., UOp], *xs: Value) -> Value | None:
    """The step `f` in both builds; None if its reference value is too large or not finite."""
    return self.apply_exactly(text, f, all(x.exact for x in xs), *xs)

  def apply_exactly(self, text: str, f: Callable[..., UOp], exact: bool, *xs: Value) -> Value | None:
    """`apply` of a step that says whether its result is exact."""
    plain = f(*(x.plain for x in xs))
    self.learn(plain)
    value = self.p.value(plain)
    if value.size > 3000:
      return None
    if plain.dtype in MAGNITUDE:
      most = float(np.abs(value).max(initial=0))
      if not math.isfinite(most) or most * (max(value.size, 1) if exact else 1) > MAGNITUDE[plain.dtype]:
        return None
    v = Value(f(*(x.placed for x in xs)), plain, text, exact)
    self.learn(v.placed)
    assert v.placed.shape == v.plain.shape, f"{text}: {v.placed.shape}, not {v.plain.shape}\n{self.p.listing()}"
    return self.add(v)

  def learn(self, u: UOp) -> None:
    """Takes the content of buffers that methods make: the states of random numbers."""
    if self.p.methods:
      for x in u.toposort(lambda x: x not in self.p.memo):
        if x.op is Ops.BUFFER and x not in self.p.content:
          self.p.content[x] = np.array(random_states[x], np.uint32)

  # ---- steps

  def step(self) -> bool:
    x = self.p.pool[-1] if self.rng.random() < 0.75 else self.rng.choice(self.p.pool)
    if self.methods and self.rng.random() < self.methods:
      return self.method(x) is not None
    kind = self.rng.choice(STEPS + [Generator.transform] * self.transforms)
    return (x.exact or kind in CONTINUOUS) and kind(self, x) is not None

  def binary(self, x: Value) -> Value | None:
    rng = self.rng
    y = self.like(x)
    if rng.random() < 0.5:
      x, y = y, x
    if x.dtype is dtypes.bool:
      ops = [Ops.AND, Ops.OR, Ops.XOR, Ops.CMPEQ, Ops.CMPNE]
    else:
      ops = [Ops.ADD, Ops.SUB, Ops.MUL, Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE]
      if dtypes.is_int(x.dtype):
        ops += [Ops.IDIV, Ops.MOD, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR]
    op = rng.choice(ops)
    if op in (Ops.SHL, Ops.SHR):
      y = self.constant(x.shape, x.dtype, rng.randint(0, 3))
    return self.apply(
      f"{op.name}({self.name(x)}, {y.text if self.name(y) == 'leaf' else self.name(y)})",
      lambda a, b: a.alu(op, b),
      x,
      y,
    )

  def unary(self, x: Value) -> Value | None:
    n = self.name(x)
    if x.dtype is dtypes.bool:
      return self.apply(f"NOT({n})", lambda a: a.alu(Ops.NOT), x)
    if dtypes.is_int(x.dtype):
      op = self.rng.choice((Ops.NEG, Ops.NOT))
      return self.apply(f"{op.name}({n})", lambda a: a.alu(op), x)
    if self.backward or x.dtype is dtypes.float16:  # ops whose gradients stay integers, and that halves compute exactly
      return self.apply(f"NEG({n})", lambda a: -a, x)
    op = self.rng.choice(list(FLOAT_UNARY))
    return self.apply(f"{op.name}({n}) rounded", FLOAT_UNARY[op], x)

  def rounded(self, x: Value) -> Value | None:
    if x.dtype not in FLOATS or self.backward:
      return None
    return self.apply(f"FLOOR({self.name(x)} / 2)", FLOAT_UNARY[Ops.FLOOR], x)

  def where(self, x: Value) -> Value | None:
    c, y = self.like(x, dtypes.bool), self.like(x)
    return self.apply(
      f"WHERE({self.name(c)}, {self.name(x)}, {self.name(y)})", lambda c, a, b: c.alu(Ops.WHERE, a, b), c, x, y
    )

  def cast(self, x: Value) -> Value | None:
    to = self.rng.choice(FLOATS if self.backward else (*NUMERIC, dtypes.bool))
    if dtypes.is_float(x.dtype) and not dtypes.is_float(to) and to is not dtypes.bool:
      value = self.p.value(x.plain)
      if value.size and not dtypes.min(to) <= float(value.min()) <= float(value.max()) <= dtypes.max(to):
        return None
    return None if to is x.dtype else self.apply(f"CAST({self.name(x)}, {to.name})", lambda a: a.cast(to), x)

  def bitcast(self, x: Value) -> Value | None:
    to = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64, dtypes.int8: dtypes.uint8}.get(x.dtype)
    if to is None or self.backward:
      return None
    if x.dtype is dtypes.int8:
      return self.apply(f"THREEFRY({self.name(x)}) & 7", random_bits, x)
    return self.apply(f"BITCAST({self.name(x)}, {to.name}) & 7", lambda a: a.bitcast(to) & 7, x)

  def reshape(self, x: Value) -> Value | None:
    if not x.fixed:
      return None
    rng, rest, shape = self.rng, math.prod(x.shape), []
    if rest == 0:
      return None
    if x.shape and rng.random() < 0.5:  # split one dim, or join two
      i = rng.randrange(len(x.shape))
      k = rng.choice(divisors(x.shape[i]) or [1])
      shape = [*x.shape[:i], k, x.shape[i] // k, *x.shape[i + 1 :]]
      if rng.random() < 0.5:
        shape = [*x.shape[:i], math.prod(x.shape[i : i + 2]), *x.shape[i + 2 :]]
      return self.apply(f"RESHAPE({self.name(x)}, {shape})", lambda a: a.reshape(shape), x)
    while rest > 1 and len(shape) < 4:
      f = rng.choice([1, *divisors(rest)])
      shape.append(f)
      rest //= f
    if rest > 1:
      shape.append(rest)
    if rng.random() < 0.2:
      shape.insert(rng.randint(0, len(shape)), 1)
    return self.apply(f"RESHAPE({self.name(x)}, {shape})", lambda a: a.reshape(shape), x)

  def permute(self, x: Value) -> Value | None:
    order = list(range(len(x.shape)))
    self.rng.shuffle(order)
    return self.apply(f"PERMUTE({self.name(x)}, {order})", lambda a: a.permute(order), x)

  def expand(self, x: Value) -> Value | None:
    shape = tuple(self.rng.randint(1, 5) if isinstance(n, int) and n == 1 else n for n in x.shape)
    return self.apply(f"EXPAND({self.name(x)}, {shape})", lambda a: a.expand(shape), x)

  def pad(self, x: Value) -> Value | None:
    if x.dtype is dtypes.bool or not x.shape:
      return None
    pairs = [(self.rng.choice((0, 0, 1, 2)), self.rng.choice((0, 0, 1, 2))) for _ in x.shape]
    fill = self.rng.choice((0, 0, 1, 2))
    return self.apply(f"PAD({self.name(x)}, {pairs}, {fill})", lambda a: a.pad(pairs, fill), x)

  def shrink(self, x: Value) -> Value | None:
    if not x.fixed or not x.shape or 0 in x.shape:
      return None
    pairs = []
    for n in x.shape:
      a = self.rng.choice((0, self.rng.randrange(n)))
      pairs.append((a, self.rng.choice((n, self.rng.randint(a if self.rng.random() < 0.05 else a + 1, n)))))
    return self.apply(f"SHRINK({self.name(x)}, {pairs})", lambda a: a.shrink(pairs), x)

  def shrink_by_variable(self, x: Value) -> Value | None:
    if self.backward or not x.fixed:
      return None
    long = [i for i, n in enumerate(x.shape) if n >= VARIABLE.vmax]
    if not long:
      return None
    axis = self.rng.choice(long)
    pairs = [(0, VARIABLE) if i == axis else (0, n) for i, n in enumerate(x.shape)]
    return self.apply(f"SHRINK({self.name(x)}, dim {axis} to v)", lambda a: a.shrink(pairs), x)

  def flip(self, x: Value) -> Value | None:
    axes = [i for i in range(len(x.shape)) if self.rng.random() < 0.5]
    return self.apply(f"FLIP({self.name(x)}, {axes})", lambda a: a.flip(axes), x)

  def cat(self, x: Value) -> Value | None:
    if not x.shape or not x.fixed:
      return None
    axis, ys = self.rng.randrange(len(x.shape)), [self.like(x) for _ in range(self.rng.randint(1, 2))]
    xs = [x, *ys]
    self.rng.shuffle(xs)
    return self.apply(f"CAT({', '.join(self.name(y) for y in xs)}, {axis})", lambda *us: UOp.cat(us, axis), *xs)

  def window(self, x: Value) -> Value | None:
    """Windows of k elements along one dim, as pooling makes them; or the adjoint."""
    rng = self.rng
    if not x.shape or not x.fixed or 0 in x.shape:
      return None
    axis = rng.randrange(len(x.shape))
    k, stride, dilation = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2)
    n = x.shape[axis]
    if rng.random() < 0.6:
      size = (n - (k - 1) * dilation - 1) // stride + 1
      if size < 1:
        return None

      def windows(a: UOp) -> UOp:
        wide = a.reshape((*a.shape, 1)).expand((*a.shape, k))
        return wide.window(axis, a.ndim, stride, dilation, size)

      return self.apply(f"WINDOW({self.name(x)}, {axis}, k={k}, {stride}, {dilation})", windows, x)
    size = (n - 1) * stride + (k - 1) * dilation + 1 + rng.randint(0, 1)

    def spread(a: UOp) -> UOp:
      return a.reshape((*a.shape, 1)).expand((*a.shape, k)).spread(axis, a.ndim, stride, dilation, size)

    return self.apply(f"SPREAD({self.name(x)}, {axis}, k={k}, {stride}, {dilation}, {size})", spread, x)

  def reduce(self, x: Value) -> Value | None:
    if not x.shape:
      return None
    axes = [i for i in range(len(x.shape)) if self.rng.random() < 0.5] or [self.rng.randrange(len(x.shape))]
    ops = [Ops.ADD, Ops.ADD] if self.backward else [Ops.ADD, Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL]
    op = self.rng.choice(ops)
    if x.dtype is dtypes.bool and op in (Ops.ADD, Ops.MUL):
      op = Ops.MAX
    return self.apply(f"REDUCE({op.name}, {self.name(x)}, {axes})", lambda a: a.r(op, axes), x)

  def matmul(self, x: Value) -> Value | None:
    if len(x.shape) != 2 or x.dtype is dtypes.bool or not x.fixed:
      return None
    (m, k), n = x.shape, self.rng.randint(1, 6)
    y = self.input((k, n), x.dtype)

    def matmul(a: UOp, b: UOp) -> UOp:
      left, right = a.reshape((m, k, 1)).expand((m, k, n)), b.reshape((1, k, n)).expand((m, k, n))
      return (left * right).r(Ops.ADD, (1,)).reshape((m, n))

    return self.apply(f"matmul({self.name(x)}, {self.name(y)})", matmul, x, y)

  def gather(self, x: Value) -> Value | None:
    if not x.shape or not x.fixed or x.dtype is dtypes.bool or x.shape[0] == 0:
      return None
    shape = tuple(self.rng.randint(1, 5) for _ in range(self.rng.randint(0, 2)))
    kind = self.rng.choice((dtypes.int32, dtypes.int32, dtypes.uint8, dtypes.int64))
    low = 0 if kind is dtypes.uint8 or self.backward else -1
    rows = np.random.default_rng(self.rng.randrange(1 << 30)).integers(low, x.shape[0] + (not self.backward), shape)
    index = self.leaf(shape, kind, rows.astype(to_numpy_dtype(kind)))
    return self.apply(f"GATHER({self.name(x)}, {self.name(index)})", lambda t, i: t.gather(i), x, index)

  def scatter(self, x: Value) -> Value | None:
    """Rows of x, after `batch` dims of it, into a table."""
    rng = self.rng
    if not x.shape or not x.fixed:
      return None
    rank = rng.randint(1, len(x.shape))
    batch, n = rng.randint(0, rank - 1) if rng.random() < 0.4 else 0, rng.randint(1, 6)
    ops = [Ops.ADD] if self.backward else [Ops.ADD, Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL]
    op = rng.choice([Ops.MAX] if x.dtype is dtypes.bool else ops)
    kind = rng.choice((dtypes.int32, dtypes.int32, dtypes.uint8, dtypes.int64))
    low = 0 if kind is dtypes.uint8 else -1
    rows = np.random.default_rng(rng.randrange(1 << 30)).integers(low, n + 1, x.shape[:rank])
    index = self.leaf(x.shape[:rank], kind, rows.astype(to_numpy_dtype(kind)))
    text = f"SCATTER({op.name}, {self.name(x)}, {self.name(index)}, {n}, {batch})"
    return self.apply(text, lambda a, i: a.scatter(i, n, op, batch), x, index)

  def move(self, x: Value) -> Value | None:
    where = random_placement(self.rng, self.p.mesh, len(x.shape)) if x.fixed else None
    if where is None or not self.p.pool or len(self.p.mesh) == 1:
      return None
    v = Value(x.placed.copy_to_device(where), x.plain, f"move({self.name(x)}, {where})", x.exact)
    return self.add(v)

  def identity(self, x: Value) -> Value | None:
    f = (lambda a: a.contiguous()) if self.backward or self.rng.random() < 0.5 else (lambda a: a.detach())
    return self.apply(f"contiguous or detach({self.name(x)})", f, x)

  def partial_leaf(self, x: Value) -> Value | None:
    """An op of the table on a fresh leaf that is partial."""
    if not x.fixed or len(self.p.mesh) == 1 or x.dtype is dtypes.bool:
      return None
    dtype = x.dtype if self.backward or self.rng.random() < 0.5 else self.rng.choice(NUMERIC)
    saved, self.unreduced = self.unreduced, 1.0
    y = self.leaf(x.shape if self.rng.random() < 0.7 else self.random_shape(), dtype)
    z = self.leaf(y.shape, dtype) if self.rng.random() < 0.3 else None
    self.unreduced = saved
    if z is not None:
      op = self.rng.choice((Ops.MUL, Ops.MUL, Ops.ADD, Ops.MAX, Ops.MIN))
      return self.apply(f"{op.name}({self.name(y)}, {self.name(z)})", lambda a, b: a.alu(op, b), y, z)
    row: Step = self.rng.choice(ROWS)
    return row(self, y)

  def assign(self, x: Value) -> Value | None:
    """A buffer after a write of x into a view of it."""
    rng = self.rng
    if self.backward or not x.fixed or not x.shape:
      return None
    lo: list[Any] = [rng.randint(0, 2) for _ in x.shape]
    room = [a + rng.randint(0, 2) for a in lo]
    if rng.random() < 0.3:  # as a cache is written: at a position that is known when the program runs
      axis = rng.randrange(len(lo))
      lo[axis], room[axis] = VARIABLE, VARIABLE.vmax + rng.randint(0, 2)
    shape = tuple(n + extra for n, extra in zip(x.shape, room))
    target = self.leaf(shape, x.dtype, self.array(shape, x.dtype))
    flips = [i for i in range(len(x.shape)) if rng.random() < 0.3]

    def write(buffer: UOp, value: UOp) -> UOp:
      view = buffer.shrink([(a, a + n) for a, n in zip(lo, value.shape)]).flip(flips)
      return buffer.after(view.assign(value))

    return self.apply(f"ASSIGN({target.text} from {lo}, flipped {flips}, {self.name(x)})", write, target, x)

  def transform(self, x: Value) -> Value | None:
    """A part of the program goes through transforms, one of each fourth program; on one device it is a loop."""
    if not x.fixed or x.dtype is dtypes.bool:
      return None
    through = transformed.draw(self.rng, x.shape, x.dtype in FLOATS, self.backward, self.p.mesh)
    if through is None:
      return None
    others = [self.input(shape, x.dtype) for shape in through.others]

    def step(*operands: UOp) -> UOp:
      f = through.loop if operands[0] is x.plain else through.transform
      found: UOp = f(*map(Tensor._wrap, operands)).uop
      return found

    self.transforms = 0  # one part of a program
    made = self.apply(f"{through.text} of {self.name(x)}, {', '.join(map(self.name, others))}", step, x, *others)
    if made is not None:
      self.p.through = through, [x, *others]
    return made

  # ---- methods of Tensor (methods.py)

  def method(self, x: Value, row: Row | None = None) -> Value | None:
    row = row or self.rng.choice([r for r in METHODS if not (self.backward and r.forward)])
    lists = self.p.pool, self.p.made, self.p.leaves
    lengths = [len(values) for values in lists]
    v = self.run_row(row, x)
    if v is None:
      for values, n in zip(lists, lengths):
        del values[n:]
    return v

  def run_row(self, row: Row, x: Value) -> Value | None:
    """A step that is one row of the table, of x if that fits."""
    if not self.fits(row, x) or self.rng.random() < 0.1:
      others = [v for v in self.p.pool if self.fits(row, v)]
      x = self.rng.choice(others) if others and self.rng.random() < 0.7 else self.fresh(row)
    args = row.draw(self, x)
    if args is None:
      return None
    values = values_in(args)
    seed, pick = self.rng.randrange(1 << 16), self.rng.random() if row.pick is None else row.pick

    def step(*operands: UOp) -> UOp:
      t, *tensors = [Tensor._wrap(u) for u in operands]
      there = REFERENCE if operands[0] is x.plain else None
      rest = iter(tensors)
      given = filled(args, lambda a: next(rest) if isinstance(a, Value) else placed_at(a, there))
      result = call(row, t, given, seed)
      if isinstance(result, (tuple, list)):
        result = result[pick if isinstance(pick, int) else int(pick * len(result))]
      found: UOp = result.uop
      return found

    exact = x.exact and all(v.exact for v in values) and not row.kind & Kind.ROUNDS
    v = self.apply_exactly(f"{row.name}({self.name(x)}, {self.shown(args)})", step, exact, x, *values)
    if v is None:
      return None
    assert v.plain.device in (REFERENCE, None), f"{v.text} is on {v.plain.device}: it left its operands' device"
    self.p.exact_gradient &= not row.kind & (Kind.ROUNDS | Kind.BENDS)
    self.compare_with_numpy(row, x, args, v)
    if writes(row) and (state := memory_state(x.placed)) is not None:  # what viewed the memory would see the new value
      self.p.pool = [w for w in self.p.pool if w is v or memory_state(w.placed) is not state]
    return v

  def fits(self, row: Row, v: Value) -> bool:
    if not v.fixed or v.placed.device is None or math.prod(v.shape) > row.largest or 0 in v.shape:
      return False
    if not row.ndim[0] <= len(v.shape) <= row.ndim[1]:
      return False
    if not v.exact and (row.kind & Kind.JUMPS or (self.backward and row.kind & Kind.BENDS)):
      return False
    if writes(row) and not self.writable(v):
      return False
    if row.of == "float" or (self.backward and row.of == "number"):
      return v.dtype in FLOATS
    return (
      v.dtype is dtypes.bool if row.of == "bool" else dtypes.is_int(v.dtype) if row.of == "int" else v.dtype in NUMERIC
    )

  def writable(self, v: Value) -> bool:
    """Whether a user may write to it: no element twice in memory, and no parts of a sum."""
    state = memory_state(v.plain)
    if state is None:
      return True
    if self.backward or any(u.op in (Ops.EXPAND, Ops.WINDOW) for u in v.plain.toposort(lambda u: u is not state)):
      return False
    where = v.placed.device
    return not (isinstance(where, Sharding) and where.partial)

  def fresh(self, row: Row) -> Value:
    ndim = self.rng.randint(row.ndim[0], min(row.ndim[1], max(3, row.ndim[0])))
    shape = [self.rng.choice((1, 2, 3, 4, 5, 6, 7, 8) if ndim > 2 else (1, 2, 3, 5, 7, 8, 11, 13)) for _ in range(ndim)]
    while math.prod(shape) > row.largest:
      shape[shape.index(max(shape))] //= 2
    kinds = {"float": FLOATS, "bool": (dtypes.bool,), "int": (dtypes.int32, dtypes.int8, dtypes.int64, dtypes.uint8)}
    dtype = self.rng.choice(FLOATS if self.backward and row.of != "bool" else kinds.get(row.of, NUMERIC))
    v = self.leaf(tuple(shape), dtype) if writes(row) else self.input(tuple(shape), dtype)
    if not writes(row) or self.writable(v):
      return v
    doubled = self.apply(f"{self.name(v)} + {self.name(v)}", lambda u: u + u, v)
    return self.fresh(row) if doubled is None else doubled  # it was too large

  def shown(self, args: Any) -> str:
    if isinstance(args, dict):
      return ", ".join(f"{k}={self.shown(a)}" for k, a in args.items())
    if isinstance(args, (tuple, list)):
      return f"({', '.join(self.shown(a) for a in args)})"
    return self.name(args) if isinstance(args, Value) else str(args)

  def compare_with_numpy(self, row: Row, x: Value, args: Any, v: Value) -> None:
    """The unsharded value is numpy's, where numpy has the function (types of numpy's own promotion apart)."""
    if x.dtype not in (*FLOATS, dtypes.int32, dtypes.int64, dtypes.bool):
      return
    want = expected(
      row, self.p.value(x.plain), filled(args, lambda a: self.p.value(a.plain) if isinstance(a, Value) else a)
    )
    if want is None:
      return
    got = self.p.value(v.plain)
    near = same(got, want.astype(got.dtype), v.exact, {"float64": 1e-7, "float32": 1e-3})  # some are polynomials
    assert near, f"{v.text} of {self.p.value(x.plain)}: {got}, numpy has {want}\n{self.p.listing()}"

  # arguments that rows draw

  def axis(self, x: Value) -> int:
    return self.rng.randrange(-len(x.shape), len(x.shape))

  def number(self, dtype: DType) -> int:
    return self.rng.choice((1, 2, 3) if dtypes.is_unsigned(dtype) else (-2, -1, 0, 1, 2, 3))

  def place(self, ndim: int) -> Placement:
    return random_placement(self.rng, self.p.mesh, ndim)

  def kind(self) -> DType:
    kinds = FLOATS if self.backward else (*FLOATS, dtypes.int32)
    return self.rng.choice(kinds)

  def index(self, shape: tuple[int, ...], n: int, dtype: DType = dtypes.int32) -> Value:
    """Integers in [0, n)."""
    content = np.random.default_rng(self.rng.randrange(1 << 30)).integers(0, n, shape)
    return self.leaf(shape, dtype, content.astype(to_numpy_dtype(dtype)))

  def order(self, x: Value) -> tuple[int, ...]:
    return tuple(self.rng.sample(range(len(x.shape)), len(x.shape)))

  def ranges(self, x: Value) -> tuple[tuple[int, int], ...]:
    starts = [self.rng.choice((0, self.rng.randrange(n))) for n in x.shape]
    return tuple((a, self.rng.randint(a + 1, n)) for a, n in zip(starts, x.shape))

  def factors_of(self, n: int) -> tuple[int, int]:
    k = self.rng.choice([1, *divisors(n)])
    return k, n // k

  def reduction(self) -> str:
    return self.rng.choice(("mean", "sum", "none"))


def placed_at(a: Any, device: str | None) -> Any:
  """An argument of a call in the build on one device, or in the one on many."""
  return (device or a.placement) if isinstance(a, At) else a


def writes(row: Row) -> bool:
  """Whether the method writes into memory."""
  return row.name in ("assign", "__setitem__") or (row.name.startswith("__i") and row.name != "__invert__")


TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


def tolerance_of(u: UOp) -> dict[str, float]:
  """What a value may differ by, of the largest: as much as the narrowest float on the way to it."""
  on_the_way = {v.dtype.name for v in u.toposort()}
  return dict.fromkeys(TOLERANCE, max((t for name, t in TOLERANCE.items() if name in on_the_way), default=0.0))


def same(x: np.ndarray, want: np.ndarray, exact: bool, tolerance: dict[str, float] = TOLERANCE) -> bool:
  """Whether a value is the one wanted: bit for bit (up to the sign of zero), or within a tolerance of the largest."""
  if x.shape != want.shape or x.dtype != want.dtype:
    return False
  if exact or want.dtype.name not in tolerance:
    return np.array_equal(x, want, equal_nan=want.dtype.kind == "f")
  scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
  return np.allclose(x, want, rtol=0, atol=tolerance[want.dtype.name] * scale, equal_nan=True)


FLOAT_UNARY: dict[Ops, Callable[[UOp], UOp]] = {
  Ops.NEG: lambda a: -a,
  Ops.FLOOR: lambda a: (a * 0.5).alu(Ops.FLOOR),
  Ops.CEIL: lambda a: (a * 0.5).alu(Ops.CEIL),
  Ops.ROUND: lambda a: (a * 0.25).alu(Ops.ROUND),
  Ops.SQRT: lambda a: a.maximum(0.0).alu(Ops.SQRT).alu(Ops.FLOOR),
  Ops.EXP: lambda a: a.minimum(3.0).alu(Ops.EXP).alu(Ops.ROUND),
  Ops.LOG: lambda a: (a.maximum(1.0).alu(Ops.LOG) * 4.0).alu(Ops.ROUND),
  Ops.SIN: lambda a: (a.alu(Ops.SIN) * 8.0).alu(Ops.ROUND),
  Ops.COS: lambda a: (a.alu(Ops.COS) * 8.0).alu(Ops.ROUND),
  Ops.TANH: lambda a: (a.alu(Ops.TANH) * 8.0).alu(Ops.ROUND),
  Ops.ERF: lambda a: (a.alu(Ops.ERF) * 8.0).alu(Ops.ROUND),
  Ops.RECIP: lambda a: (a.maximum(1.0).alu(Ops.RECIP) * 8.0).alu(Ops.ROUND),
  Ops.FDIV: lambda a: (a / 4.0).alu(Ops.FLOOR),
  Ops.POW: lambda a: a.maximum(-4.0).minimum(4.0).alu(Ops.POW, a.const_like(2.0)),
}


def random_bits(a: UOp) -> UOp:
  """Three of the bits that int8s give as counter and key."""
  word = a.bitcast(dtypes.uint8).cast(dtypes.uint32)
  return (threefry(word, word + 1, word * 3, word)[1] & 7).cast(dtypes.uint8)


Step = Callable[[Generator, Value], Value | None]
ROWS: tuple[Step, ...] = (
  *[Generator.binary] * 5, Generator.unary, Generator.rounded, Generator.where, Generator.cast, Generator.cast,
  Generator.pad, Generator.reduce, Generator.cat,
)  # fmt: skip
WEIGHTS: dict[Step, int] = {
  Generator.binary: 5,
  Generator.unary: 2,
  Generator.where: 1,
  Generator.cast: 1,
  Generator.bitcast: 1,
  Generator.reshape: 3,
  Generator.permute: 1,
  Generator.expand: 1,
  Generator.pad: 1,
  Generator.shrink: 2,
  Generator.shrink_by_variable: 1,
  Generator.flip: 1,
  Generator.cat: 1,
  Generator.window: 1,
  Generator.reduce: 3,
  Generator.matmul: 2,
  Generator.gather: 1,
  Generator.scatter: 1,
  Generator.move: 1,
  Generator.identity: 1,
  Generator.assign: 1,
  Generator.partial_leaf: 5,
}
CONTINUOUS = frozenset(
  (
    Generator.reshape,
    Generator.permute,
    Generator.expand,
    Generator.pad,
    Generator.shrink,
    Generator.flip,
    Generator.cat,
    Generator.window,
    Generator.matmul,
    Generator.gather,
    Generator.scatter,
    Generator.move,
    Generator.identity,
  )
)
"""Steps that rounded values may take."""
STEPS = [step for step, weight in WEIGHTS.items() for _ in range(weight)]


def make(seed: int, steps: int = 9, kind: str = "NULL", methods: bool = False, row: Row | None = None) -> Program:
  """The program of a seed on devices of a kind; every third one is differentiated. With `methods`, most steps are
  methods of Tensor, and the first is `row`."""
  backward = seed % 3 == 2 and not (row is not None and row.forward)
  return Generator(seed, steps, backward, kind, 0.7 if methods else 0.0, row).p
