"""Which operations may run before a reduction that is owed, and which may not, with transforms around and within: a
value owes the same inside a map, a derivative, a loop and a checkpoint as it does alone, and what it comes to is what
Python loops over whole arrays of numpy say. Derivatives are differences of numpy's values.

A row of `LAWS` says what is owed after an operation; `PROGRAMS` are what is put around it; `WITHOUT` says why a row is
not run in a program. Beside each value that may not wait stands what the wrong schedule would give: the operation on
every device's part, and then the reduction. (The rows without transforms, op by op: test_partial_table.py.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tinygrad import (
  Mesh,
  P,
  Tensor,
  TinyJit,
  axis_index,
  checkpoint,
  grad,
  pmax,
  pmin,
  psum,
  scan,
  shard_map,
  value_and_grad,
  vmap,
)
from tinygrad.device import Sharding, SubAxis
from tinygrad.dtype import dtypes
from tinygrad.helpers import DEFER, Context
from tinygrad.sharding import explain
from tinygrad.uop import Ops

N, SHAPE, MANY = 4, (4, 4, 2), 3  # devices, an element, elements of a map
DEVICES = tuple(f"CPU:{i}" for i in range(N))
LINE, GRID = Mesh(DEVICES, (4,), ("d",)), Mesh(DEVICES, (2, 2), ("a", "b"))
# where an element is: of its dim 0 is the debt, along the mesh's first axis; on the grid what owes is cut as well
PLACES = {"line": (LINE, P("d")), "grid": (GRID, P("a", "b"))}
AXES = {SubAxis(4, 1): {"line": "d", "grid": "ab"}, SubAxis(2, 2): {"grid": "a"}, SubAxis(2, 1): {"grid": "b"}}
FOLD = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum}
TAIL = {Ops.ADD: Tensor.sum, Ops.MUL: Tensor.prod, Ops.MAX: Tensor.max, Ops.MIN: Tensor.min}


def normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=shape)


C = normal(1, 4, 2)  # an operand that owes nothing, the same on every device
W = normal(2, 8, 2)  # rows of a weight, cut as what it is multiplied by
ROWS = np.array([9, 2, 14, 7])  # of a table of 16
BINS = np.array([0, 2, 1, 2, 3, 0, 1, 1, 2, 0, 3, 3, 1, 0, 2, 0])  # where 16 rows are added


# ---------------------------------------------------------------- how a debt comes about


@dataclass(frozen=True)
class Debt:
  """Of an element, (4, 4, 2) with its first dim cut, a value (4, 2) that owes the reduction `by`. `make`: of the whole;
  `part`: of one device's block, in numpy and number i; `inside`: on one device of a `shard_map`, where a collective
  pays; None where there is no such collective."""

  by: Ops
  make: Callable[[Tensor, Callable[..., Tensor]], Tensor]
  part: Callable[[np.ndarray, int], np.ndarray]
  inside: Callable[[Tensor, Callable[..., Tensor]], Tensor] | None
  grid: str = "a"  # over which axes, where both cut the element


def looked_up(block: np.ndarray, i: int) -> np.ndarray:
  rows, out = block.reshape(-1, 2), np.zeros((4, 2), block.dtype)
  for k, r in enumerate(ROWS):
    if 0 <= r - i * len(rows) < len(rows):
      out[k] = rows[r - i * len(rows)]
  return out


def binned(block: np.ndarray, i: int) -> np.ndarray:
  rows, out = block.reshape(-1, 2), np.zeros((4, 2), block.dtype)
  for k, row in enumerate(rows):
    out[BINS[i * len(rows) + k]] += row
  return out


def own_rows(a: Tensor, put: Callable[..., Tensor]) -> Tensor:
  """A lookup in one device's rows of the table: zeros for those of others."""
  at = put(ROWS) - axis_index("d") * 4
  mine = ((at >= 0) & (at < 4)).unsqueeze(1)
  return psum(mine.where(a.reshape(4, 2)[at.clip(0, 3)], 0), "d")


def one_hot(bins: Any) -> np.ndarray:
  return np.equal.outer(np.arange(4), bins) * 1.0


DEBTS = {
  "sum": Debt(Ops.ADD, lambda x, put: x.sum(0), lambda a, i: a.sum(0), lambda a, put: psum(a.sum(0), "d")),
  "product": Debt(Ops.MUL, lambda x, put: x.prod(0), lambda a, i: a.prod(0), None),
  "greatest": Debt(Ops.MAX, lambda x, put: x.max(0), lambda a, i: a.max(0), lambda a, put: pmax(a.max(0), "d")),
  "least": Debt(Ops.MIN, lambda x, put: x.min(0), lambda a, i: a.min(0), lambda a, put: pmin(a.min(0), "d")),
  "matmul": Debt(
    Ops.ADD,
    lambda x, put: x.permute(1, 0, 2).reshape(4, 8) @ put(W, 0),
    lambda a, i: a.transpose(1, 0, 2).reshape(4, -1) @ np.split(W, 4 // len(a))[i],
    lambda a, put: psum(a[0] @ put(W).reshape(4, 2, 2)[axis_index("d")], "d"),
  ),
  "lookup": Debt(Ops.ADD, lambda x, put: x.reshape(16, 2)[put(ROWS)], looked_up, own_rows, "ab"),
  "scatter": Debt(
    Ops.ADD,
    lambda x, put: put(np.zeros((4, 2))).scatter_reduce(
      0, put(np.stack([BINS, BINS], 1), 0), x.reshape(16, 2), "sum"
    ),
    binned,
    lambda a, put: psum(put(one_hot(BINS)).reshape(4, 4, 4)[:, axis_index("d")] @ a.reshape(4, 2), "d"),
    "ab",
  ),
}  # fmt: skip


# ---------------------------------------------------------------- the table

KEPT, SETTLED = "kept", "settled"


@dataclass(frozen=True)
class Law:
  """`f(t, c)`: the operation, of what owes and of what does not; `value`: the same in numpy. `owes`: what the result
  owes then: what the operand did (KEPT), nothing (SETTLED), or another reduction; `grid`: there, if it is another.
  `parts`: whether the operation on the parts, and then the reduction, comes to the same: not where the other operand
  is made partial first. `waits`: whether the reduction may still wait for one of the result, which is another than
  whether the result owes where an operation makes more of fewer bytes, and pays before; or where a condition has to
  know the sum, and what it chooses still owes. `slope`: numpy's function where differences of `value` are no
  derivative, which `tol` then is about. `found`: it is kept because both operands were found by one lookup, of which
  the function that is mapped over what was found knows nothing. `kind`: "float", "int", or "step" where the result is
  no float."""

  name: str
  debt: str
  f: Callable[[Tensor, Tensor], Tensor]
  value: Callable[[np.ndarray, np.ndarray], np.ndarray]
  owes: str | Ops = KEPT
  grid: str | None = None
  parts: bool | None = None
  waits: bool | None = None
  slope: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
  tol: float = 1e-5
  found: bool = False
  kind: str = "float"

  @property
  def by(self) -> Ops:
    return DEBTS[self.debt].by

  @property
  def one_number(self) -> bool:
    """Whether of a reduction of the result only one number travels."""
    return self.owes != SETTLED if self.waits is None else self.waits

  @property
  def commutes(self) -> bool:
    return self.owes == KEPT if self.parts is None else self.parts

  def after(self, place: str) -> set[str]:
    """What is owed in the end, and over which axes."""
    if not DEFER.value:  # what is summed is reduced at once
      return set()
    if place == "grid" and self.grid is not None:
      return set(self.grid.split())
    if self.owes == SETTLED:
      return set()
    axes = "d" if place == "line" else DEBTS[self.debt].grid if place == "grid" else "a"
    return {f"{(self.by if self.owes == KEPT else self.owes).name}:{axes}"}


def softmax(t: np.ndarray) -> np.ndarray:
  e = np.exp(t - t.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def erf(t: np.ndarray) -> np.ndarray:
  return np.vectorize(math.erf)(t)


LAWS = [
  # views and selections carry a debt of every kind
  Law("reshape", "sum", lambda t, c: t.reshape(2, 4), lambda t, c: t.reshape(2, 4)),
  Law("permute", "greatest", lambda t, c: t.permute(1, 0), lambda t, c: t.T),
  Law("expand", "product", lambda t, c: t.unsqueeze(1).expand(4, 3, 2), lambda t, c: np.stack([t] * 3, 1)),
  Law("flip", "least", lambda t, c: t.flip(0), lambda t, c: t[::-1]),
  Law("slice", "sum", lambda t, c: t[1:], lambda t, c: t[1:]),
  Law("slice", "greatest", lambda t, c: t[:, 1:], lambda t, c: t[:, 1:]),
  Law("rows by an index", "sum", lambda t, c: t[Tensor([2, 0, 3]).to(c.device)], lambda t, c: t[[2, 0, 3]],
      grid="ADD:ab"),
  Law("rows by an index", "least", lambda t, c: t[Tensor([2, 0, 3]).to(c.device)], lambda t, c: t[[2, 0, 3]],
      grid="ADD:b"),
  Law("joined with itself", "sum", lambda t, c: t.cat(t * 2, dim=1), lambda t, c: np.concatenate([t, t * 2], 1)),
  Law("joined with what owes nothing", "sum", lambda t, c: t.cat(c, dim=1), lambda t, c: np.concatenate([t, c], 1),
      SETTLED, waits=True),
  Law("stacked", "least", lambda t, c: Tensor.stack(t, t + 1), lambda t, c: np.stack([t, t + 1])),
  Law("padded with 0", "sum", lambda t, c: t.pad(((0, 0), (1, 0))), lambda t, c: np.pad(t, ((0, 0), (1, 0))),
      SETTLED, parts=True, waits=True),
  Law("padded with 2", "sum", lambda t, c: t.pad(((0, 0), (1, 0)), value=2),
      lambda t, c: np.pad(t, ((0, 0), (1, 0)), constant_values=2), SETTLED, waits=True),
  Law("padded with 2", "product", lambda t, c: t.pad(((0, 0), (1, 0)), value=2),
      lambda t, c: np.pad(t, ((0, 0), (1, 0)), constant_values=2), SETTLED, waits=True),
  Law("chosen by what owes nothing", "sum", lambda t, c: (c > 0).where(t, c), lambda t, c: np.where(c > 0, t, c),
      parts=False),
  Law("chosen by what owes nothing", "greatest", lambda t, c: (c > 0).where(t, 0.5),
      lambda t, c: np.where(c > 0, t, 0.5)),
  Law("chosen by itself", "sum", lambda t, c: (t > 0.1).where(t, c), lambda t, c: np.where(t > 0.1, t, c), parts=False,
      waits=False),
  # linear in all operands: all have to owe the same
  Law("plus one that owes", "sum", lambda t, c: t + t.flip(0) * 3, lambda t, c: t + t[::-1] * 3),
  Law("minus one that owes", "sum", lambda t, c: t * 2 - t.flip(1), lambda t, c: t * 2 - t[:, ::-1]),
  Law("plus what owes nothing", "sum", lambda t, c: t + c, lambda t, c: t + c, parts=False),
  Law("what owes nothing minus", "sum", lambda t, c: c - t, lambda t, c: c - t, parts=False),
  Law("plus a constant", "sum", lambda t, c: t + 3, lambda t, c: t + 3, parts=False),
  Law("plus a constant", "greatest", lambda t, c: t + 3, lambda t, c: t + 3),
  Law("constant minus", "greatest", lambda t, c: 3 - t, lambda t, c: 3 - t, Ops.MIN, parts=False),
  Law("plus a constant", "product", lambda t, c: t + 3, lambda t, c: t + 3, SETTLED),
  Law("negated", "sum", lambda t, c: -t, lambda t, c: -t),
  Law("negated", "least", lambda t, c: -t, lambda t, c: -t, Ops.MAX, parts=False),
  Law("negated", "product", lambda t, c: -t, lambda t, c: -t, parts=False),
  # linear in one operand, of the others none may owe
  Law("times what owes nothing", "sum", lambda t, c: t * c, lambda t, c: t * c),
  Law("divided by what owes nothing", "sum", lambda t, c: t / c, lambda t, c: t / c),
  Law("divided by a constant", "sum", lambda t, c: t / 4, lambda t, c: t / 4),
  Law("times a constant", "greatest", lambda t, c: t * 2, lambda t, c: t * 2),
  Law("times less than 0", "greatest", lambda t, c: t * -2, lambda t, c: t * -2, Ops.MIN, parts=False),
  Law("times what owes nothing", "greatest", lambda t, c: t * c, lambda t, c: t * c, SETTLED),
  Law("times what owes nothing", "product", lambda t, c: t * c, lambda t, c: t * c, parts=False),
  Law("times itself", "sum", lambda t, c: t * t, lambda t, c: t * t, SETTLED),
  Law("times itself", "product", lambda t, c: t * t, lambda t, c: t * t),
  Law("divides", "sum", lambda t, c: c / (t * t + 1), lambda t, c: c / (t * t + 1), SETTLED),
  # what is not linear
  Law("relu", "sum", lambda t, c: t.relu(), lambda t, c: np.maximum(t, 0), parts=False, waits=False),
  Law("relu", "greatest", lambda t, c: t.relu(), lambda t, c: np.maximum(t, 0), waits=False),
  Law("relu", "product", lambda t, c: t.relu(), lambda t, c: np.maximum(t, 0), parts=False, waits=False),
  Law("absolute", "sum", lambda t, c: t.abs(), lambda t, c: np.abs(t), parts=False, waits=False),
  Law("exp", "sum", lambda t, c: t.exp(), lambda t, c: np.exp(t), SETTLED),
  Law("exp", "greatest", lambda t, c: t.exp(), lambda t, c: np.exp(t), SETTLED, parts=True),
  Law("tanh", "sum", lambda t, c: t.tanh(), lambda t, c: np.tanh(t), SETTLED),
  Law("cosine", "least", lambda t, c: t.cos(), lambda t, c: np.cos(t), SETTLED),
  Law("square root", "sum", lambda t, c: (t * t + 1).sqrt(), lambda t, c: np.sqrt(t * t + 1), SETTLED),
  Law("logarithm", "sum", lambda t, c: (t * t + 1).log(), lambda t, c: np.log(t * t + 1), SETTLED),
  Law("error function", "sum", lambda t, c: t.erf(), lambda t, c: erf(t), SETTLED),
  Law("softmax", "sum", lambda t, c: t.softmax(), lambda t, c: softmax(t), SETTLED),
  Law("maximum with what owes nothing", "sum", lambda t, c: t.maximum(c), lambda t, c: np.maximum(t, c), SETTLED),
  Law("maximum with what owes nothing", "greatest", lambda t, c: t.maximum(c), lambda t, c: np.maximum(t, c)),
  Law("minimum with what owes nothing", "greatest", lambda t, c: t.minimum(c), lambda t, c: np.minimum(t, c)),
  Law("floor", "sum", lambda t, c: t.floor(), lambda t, c: np.floor(t), SETTLED),
  Law("floor", "greatest", lambda t, c: (t * 3).floor(), lambda t, c: np.floor(t * 3)),
  # reductions of another dim
  Law("sum of another dim", "sum", lambda t, c: t.sum(1), lambda t, c: t.sum(1)),
  Law("sum of a cut dim", "sum", lambda t, c: t.sum(0), lambda t, c: t.sum(0), grid="ADD:ab"),
  Law("mean of a cut dim", "sum", lambda t, c: t.mean(0), lambda t, c: t.mean(0), grid="ADD:ab"),
  Law("maximum of a cut dim", "sum", lambda t, c: t.max(0), lambda t, c: t.max(0), SETTLED, grid="MAX:b"),
  Law("maximum of a cut dim", "greatest", lambda t, c: t.max(0), lambda t, c: t.max(0), grid="MAX:ab"),
  Law("sum of a cut dim", "greatest", lambda t, c: t.sum(0), lambda t, c: t.sum(0), SETTLED, grid="ADD:b"),
  Law("sum of a cut dim", "product", lambda t, c: t.sum(0), lambda t, c: t.sum(0), SETTLED, grid="ADD:b"),
  Law("contracted with what owes nothing", "sum", lambda t, c: t.T @ c, lambda t, c: t.T @ c,
      SETTLED, grid="ADD:b", parts=True, waits=True),
  Law("contracted with itself", "sum", lambda t, c: t.T @ t, lambda t, c: t.T @ t, SETTLED,
      grid="ADD:b"),
  # casts
  Law("narrower float", "sum", lambda t, c: (t * 683).half(), lambda t, c: (t * 683).astype(np.float16), SETTLED,
      slope=lambda t, c: t * 683, tol=1e-3),
  Law("narrower float", "greatest", lambda t, c: (t * 683).half(), lambda t, c: (t * 683).astype(np.float16),
      slope=lambda t, c: t * 683, tol=1e-3),
  Law("to an integer", "sum", lambda t, c: (t * 3).int(), lambda t, c: (t * 3).astype(np.int32), SETTLED, kind="step"),
  Law("compared", "sum", lambda t, c: t < c, lambda t, c: t < c, SETTLED, kind="step"),
  # integers
  Law("narrower integer", "sum", lambda t, c: (t * 100).cast("int8"), lambda t, c: (t * 100).astype(np.int8),
      kind="int"),
  Law("wider integer", "sum", lambda t, c: t.cast("int64"), lambda t, c: t.astype(np.int64), SETTLED, parts=True,
      kind="int"),
  Law("wider integer", "greatest", lambda t, c: t.cast("int64"), lambda t, c: t.astype(np.int64), SETTLED, parts=True,
      waits=True, kind="int"),
  Law("floor division", "sum", lambda t, c: t // 2, lambda t, c: t // 2, SETTLED, kind="int"),
  Law("bits", "sum", lambda t, c: t & 5, lambda t, c: t & 5, SETTLED, kind="int"),
  # debts of another origin
  *[law for debt in ("matmul", "lookup", "scatter") for law in (
    Law("times what owes nothing", debt, lambda t, c: t * c, lambda t, c: t * c),
    Law("plus what owes nothing", debt, lambda t, c: t + c, lambda t, c: t + c, parts=False),
    Law("plus a sum", debt, lambda t, c: t + t.flip(0), lambda t, c: t + t[::-1]),
    Law("exp", debt, lambda t, c: t.exp(), lambda t, c: np.exp(t), SETTLED),
    Law("softmax", debt, lambda t, c: t.softmax(), lambda t, c: softmax(t), SETTLED),
  )],
  Law("times itself", "matmul", lambda t, c: t * t, lambda t, c: t * t, SETTLED),
  Law("times itself", "scatter", lambda t, c: t * t, lambda t, c: t * t, SETTLED),
  Law("times itself", "lookup", lambda t, c: t * t, lambda t, c: t * t, found=True),  # one device has a row
]  # fmt: skip


# ---------------------------------------------------------------- one law at one place


@dataclass
class Case:
  """A law with its operands at a place, and what numpy says of it."""

  law: Law
  place: str
  mesh: Mesh = field(init=False)

  def __post_init__(self) -> None:
    self.mesh, self.spec = PLACES[self.place]
    self.debt = DEBTS[self.law.debt]
    self.c = self.put(C if self.law.kind != "int" else self.array(1)[0])
    self.seen: list[set[str]] = []

  def array(self, seed: int, *lead: int) -> np.ndarray:
    x = normal(100 + seed, *lead, *SHAPE)
    return x if self.law.kind != "int" else np.round(x * 3).astype(np.int32)

  def put(self, x: Any, cut: int | None = None) -> Tensor:
    """The same on every device, or cut along a dim by the mesh's first axis."""
    return Tensor(x).shard(self.mesh, P(*[None] * cut, self.mesh.names[0]) if cut is not None else P()).realize()

  def placed(self, x: np.ndarray, spmd: tuple[Any, ...] = (None,)) -> Tensor:
    lead = (spmd * x.ndim)[: x.ndim - len(SHAPE)]
    return Tensor(x).shard(self.mesh, P(*lead, *self.spec)).realize()

  # ---- ours

  def owing(self, x: Tensor) -> Tensor:
    return self.debt.make(x, self.put)

  def __call__(self, x: Tensor) -> Tensor:
    """The law, of an element."""
    return self.of_debt(self.owing(x))

  def of_debt(self, t: Tensor) -> Tensor:
    y = self.law.f(t, self.c)
    self.seen.append(owed(y, self.place))
    return y

  def on_device(self, a: Tensor) -> Tensor:
    """The law, in a `shard_map`."""
    assert self.debt.inside is not None
    return self.law.f(self.debt.inside(a, self.put), self.c)

  @functools.cached_property
  def over_devices(self) -> Callable[[Tensor], Tensor]:
    return shard_map(self.on_device, self.mesh, self.spec, P())

  def loss(self, y: Tensor) -> Tensor:
    y = y.cast("float64")
    w = self.put(weights(y.shape))
    return (y.square() * w).sum() + ((y * w).sum() + 1).square()

  def alone(self, x: Tensor) -> Tensor:
    """A loss of the law."""
    return self.loss(self(x))

  def tail(self, x: Tensor) -> Tensor:
    """One number: a reduction that what the result owes can wait for."""
    after = self.law.after("line")
    by = Ops[next(iter(after)).split(":")[0]] if after else self.law.by
    y = self.law.f(self.owing(x), self.c)
    return TAIL[by](y) if by is not Ops.ADD else y.sum(dtype=y.dtype)

  @property
  def after(self) -> set[str]:
    return self.law.after(self.place)

  # ---- numpy's

  def parts(self, x: np.ndarray) -> list[np.ndarray]:
    n = self.mesh.shape[0]
    return [self.debt.part(block, i) for i, block in enumerate(np.split(x, n))]

  def total(self, x: np.ndarray) -> np.ndarray:
    return functools.reduce(FOLD[self.law.by], self.parts(x))

  def value(self, x: np.ndarray) -> np.ndarray:
    return self.law.value(self.total(x), self.c_of)

  def wrong(self, x: np.ndarray) -> np.ndarray:
    """The operation on every part, then the reduction."""
    made = [self.law.value(p, self.c_of) for p in self.parts(x)]
    return functools.reduce(FOLD[self.law.by], made)

  @functools.cached_property
  def c_of(self) -> np.ndarray:
    return self.c.numpy()

  def loss_of(self, x: np.ndarray, wrong: bool = False) -> float:
    f = self.law.slope or self.law.value
    parts = self.parts(x)
    if wrong:
      y = functools.reduce(FOLD[self.law.by], [f(p, self.c_of) for p in parts])
    else:
      y = f(functools.reduce(FOLD[self.law.by], parts), self.c_of)
    return loss(y)

  def slope(self, x: np.ndarray, wrong: bool = False) -> np.ndarray:
    """The derivative of the loss by an element, by differences."""
    return differences(lambda e: self.loss_of(e, wrong), x)

  def close_slopes(self, got: Tensor, x: np.ndarray) -> None:
    """The derivatives by an element, or by each of many, are those that numpy's values have."""
    close(got, self.slope(x) if x.ndim == len(SHAPE) else stack(self.slope, x), self.law.tol)

  def slope_at(self, t: np.ndarray) -> np.ndarray:
    """By what owes."""
    f = self.law.slope or self.law.value
    return differences(lambda e: loss(f(e, self.c_of)), t)


def loss(y: np.ndarray) -> float:
  """Every element counts for itself and with the others, so that none is lost, and none with its sign."""
  w = weights(y.shape)
  return float((y * y * w).sum() + ((y * w).sum() + 1) ** 2)


def weights(shape: Any) -> np.ndarray:
  return np.cos(np.arange(math.prod(shape))).reshape(shape)


def differences(loss: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
  out = np.zeros(x.shape)
  for at in np.ndindex(*x.shape):
    step = np.zeros(x.shape)
    step[at] = 1e-6
    out[at] = (loss(x + step) - loss(x - step)) / 2e-6
  return out


def owed(y: Tensor, place: str) -> set[str]:
  """What a value owes, and over which axes of the mesh."""
  device = y.uop.device
  if not isinstance(device, Sharding):
    return set()
  axes: dict[str, str] = {}
  for p in device.partial:
    here = "".join(AXES[a][place] for a in p.sub_axes)
    axes[p.op.name] = "".join(sorted(axes.get(p.op.name, "") + here))
  return {f"{op}:{over}" for op, over in axes.items()}


def close(got: Tensor, want: np.ndarray, tol: float = 1e-6) -> None:
  want = np.asarray(want, np.float64)
  scale = max(1.0, float(np.abs(want).max(initial=0)))
  np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=0, atol=tol * scale)


def differs(x: np.ndarray, y: np.ndarray, tol: float = 0.01) -> bool:
  return not np.allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=tol, atol=tol)


def moved(*ys: Tensor) -> list[tuple[str, float]]:
  return sorted((r.kind, r.payload) for r in explain(*ys).rows if r.kind != "copy")


def assert_as_often(case: Case, many: list[tuple[str, float]], one: list[tuple[str, float]]) -> None:
  """As much travels for each of many elements as for one; where what owes is cut too, at most (indices along a cut dim
  may be mapped together)."""
  if case.place == "line":
    assert many == times(MANY, one)
  assert len(many) <= len(one) and sum(n for _, n in many) <= MANY * sum(n for _, n in one)


def times(n: int, moves: list[tuple[str, float]]) -> list[tuple[str, float]]:
  """The same moves, of so many elements at once."""
  return [(kind, n * payload) for kind, payload in moves]


# ---------------------------------------------------------------- what is put around it

Program = Callable[[Case], None]
PROGRAMS: dict[str, Program] = {}


def program(name: str) -> Callable[[Program], Program]:
  return lambda f: PROGRAMS.setdefault(name, f)


def stack(f: Callable[[np.ndarray], np.ndarray], xs: np.ndarray) -> np.ndarray:
  return np.stack([f(x) for x in xs])


@program("plain")
def plain(case: Case) -> None:
  x = case.array(0)
  t = case.placed(x)
  y = case(t)
  close(y, case.value(x))
  assert owed(y, case.place) == case.after
  tol = 1e-4 if y.dtype == dtypes.float16 else 0.01  # a rounding more or less
  assert differs(case.wrong(x), case.value(x), tol) != case.law.commutes, "a wrong schedule would not be seen"
  if case.place == "line" and case.law.kind != "step":
    one, debt = y.dtype.itemsize, 8 * t.dtype.itemsize
    travels = one if case.law.one_number and DEFER.value else debt
    assert moved(case.tail(t)) == [("all_reduce", travels)]


@program("vmap")
def mapped(case: Case) -> None:
  """Inside and outside it owes what it does alone, and as much travels for each element."""
  x = case.array(1, MANY)
  y = vmap(case)(case.placed(x))
  close(y, stack(case.value, x))
  assert case.seen == [case.after] == [owed(y, case.place)]
  assert moved(vmap(case.tail)(case.placed(x))) == times(MANY, moved(case.tail(case.placed(x[0]))))


@program("jit(vmap)")
def captured(case: Case) -> None:
  """What owes inside is whole outside, replay after replay."""
  f = TinyJit(vmap(case))
  for seed in range(3):
    x = case.array(seed, MANY)
    close(f(case.placed(x)), stack(case.value, x))


@program("vmap(vmap), spmd_axis_name")
def mapped_twice(case: Case) -> None:
  """Elements are cut over one axis of the mesh, and owe over it; the outer map's dim is cut over the other."""
  x = case.array(2, 2, MANY)
  inner = vmap(lambda e: case(e.shard(case.mesh, P("a"))))
  y = vmap(inner, spmd_axis_name="b")(Tensor(x).shard(case.mesh).realize())
  close(y, stack(lambda xs: stack(case.value, xs), x))
  assert case.seen == [owed(y, "grid")] == [case.law.after("a")]
  assert y.device.cut(0) == (case.mesh.sub_axis("b"),)  # names are those of whoever placed so last


@program("jit(grad)")
def captured_gradient(case: Case) -> None:
  f = TinyJit(grad(case.alone))
  for seed in (2, 1, 0):
    x = case.array(seed)
    case.close_slopes(f(case.placed(x)), x)
  if not case.law.commutes and case.law.slope is None and case.law.name != "floor":  # which is flat
    assert differs(case.slope(x, wrong=True), case.slope(x)), "a wrong schedule would not be seen"


@program("vmap(grad)")
def gradients_of_each(case: Case) -> None:
  x = case.array(1, MANY)
  g = vmap(grad(case.alone))(case.placed(x))
  assert case.seen == [case.after]
  case.close_slopes(g, x)
  assert_as_often(case, moved(g), moved(grad(case.alone)(case.placed(x[0]))))


@program("grad(vmap)")
def gradient_of_all(case: Case) -> None:
  x = case.array(1, MANY)
  g = grad(lambda t: vmap(case.alone)(t).sum())(case.placed(x))
  assert case.seen == [case.after]
  case.close_slopes(g, x)
  assert_as_often(case, moved(g), moved(grad(case.alone)(case.placed(x[0]))))


@program("jit(vmap(grad))")
def captured_gradients(case: Case) -> None:
  f = TinyJit(vmap(value_and_grad(case.alone)))
  for seed in range(3):
    x = case.array(seed, MANY)
    losses, g = f(case.placed(x))
    close(losses, stack(case.loss_of, x), case.law.tol)
    case.close_slopes(g, x)


@program("shard_map")
def on_devices(case: Case) -> None:
  """A collective pays; where it does is decided as of any other reduction."""
  x = case.array(0)
  t = case.placed(x)
  close(case.over_devices(t), case.value(x))
  ((kind, payload),) = moved(TAIL[case.law.by](case.over_devices(t).cast("float64")))
  assert kind == "all_reduce" and payload <= 64


@program("grad(shard_map)")
def gradient_on_devices(case: Case) -> None:
  x = case.array(0)
  g = grad(lambda t: case.loss(case.over_devices(t)))(case.placed(x))
  case.close_slopes(g, x)
  assert {kind for kind, _ in moved(g)} <= {"all_reduce"}


@program("vmap(shard_map)")
def on_devices_mapped(case: Case) -> None:
  x = case.array(1, MANY)
  y = vmap(case.over_devices)(case.placed(x))
  close(y, stack(case.value, x))
  assert moved(y) == times(MANY, moved(case.over_devices(case.placed(x[0]))))


@program("vmap(grad(shard_map))")
def gradients_on_devices_mapped(case: Case) -> None:
  x = case.array(1, MANY)
  f = grad(lambda t: case.loss(case.over_devices(t)))
  case.close_slopes(vmap(f)(case.placed(x)), x)


def summed(y: Tensor) -> Tensor:
  return y.cast("float64").sum()


@program("scan")
def in_a_loop(case: Case) -> None:
  """In a step it owes what it does alone; what goes from step to step is whole."""
  x = case.array(1, MANY)
  f = lambda s, e: (s + summed(y := case(e)), y)  # noqa: E731
  total, ys = scan(f, case.put(np.zeros(())), case.placed(x))
  assert case.seen == [case.after]
  assert not owed(total, case.place) and not owed(ys, case.place)
  want = stack(case.value, x)
  close(ys, want)
  close(total, want.sum(dtype=np.float64), 1e-5)
  one = case.placed(x[0])
  assert moved(total) == sorted(MANY * moved(summed(case(one))))
  assert moved(ys) == sorted(MANY * moved(case(one)))


@program("grad(scan)")
def gradient_of_a_loop(case: Case) -> None:
  x = case.array(1, MANY)
  g = grad(lambda t: scan(lambda s, e: (s + case.alone(e), None), case.put(np.zeros(())), t)[0])(case.placed(x))
  case.close_slopes(g, x)


@program("scan(shard_map)")
def on_devices_in_a_loop(case: Case) -> None:
  x = case.array(1, MANY)
  f = lambda s, e: (s + summed(y := case.over_devices(e)), y)  # noqa: E731
  total, ys = scan(f, case.put(np.zeros(())), case.placed(x))
  want = stack(case.value, x)
  close(ys, want)
  close(total, want.sum(dtype=np.float64), 1e-5)
  assert moved(ys) == sorted(MANY * moved(case.over_devices(case.placed(x[0]))))


@program("grad(scan(shard_map))")
def gradient_on_devices_in_a_loop(case: Case) -> None:
  x = case.array(1, MANY)
  f = lambda s, e: (s + case.loss(case.over_devices(e)), None)  # noqa: E731
  case.close_slopes(grad(lambda t: scan(f, case.put(np.zeros(())), t)[0])(case.placed(x)), x)


@program("checkpoint")
def in_a_checkpoint(case: Case) -> None:
  x = case.array(0)
  y = checkpoint(case)(case.placed(x))
  assert case.seen == [case.after]
  # what follows an op may pay before it, where that is fewer bytes: so does a checkpoint, as any other op that keeps
  assert owed(y, case.place) == owed(case(case.placed(x)).detach(), case.place)
  close(y, case.value(x))
  assert moved(checkpoint(case.tail)(case.placed(x))) == moved(case.tail(case.placed(x)))


@program("grad(checkpoint)")
def gradient_of_a_checkpoint(case: Case) -> None:
  x = case.array(0)
  t = case.placed(x)
  g = grad(checkpoint(case.alone))(t)
  case.close_slopes(g, x)
  assert moved(g) == moved(grad(case.alone)(t))


@program("vmap of what owes")
def mapped_over_what_owes(case: Case) -> None:
  """The debt was there before the map, and is inside."""
  x = case.array(1, MANY)
  t = vmap(case.owing)(case.placed(x))
  y = vmap(case.of_debt)(t)
  assert case.seen == [case.after if not case.law.found else set()]
  assert owed(y, case.place) == case.after
  close(y, stack(case.value, x))


@program("scan of what owes")
def in_a_loop_what_owes(case: Case) -> None:
  """Each step reads memory, and that owes nothing."""
  x = case.array(1, MANY)
  ys = scan(lambda s, e: (s, case.of_debt(e)), case.put(np.zeros(())), vmap(case.owing)(case.placed(x)))[1]
  close(ys, stack(case.value, x))


@program("jit of what owes")
def captured_on_what_owes(case: Case) -> None:
  f = TinyJit(case.of_debt)
  for seed in range(3):
    x = case.array(seed)
    close(f(case.owing(case.placed(x))), case.value(x))


@program("grad(checkpoint) by what owes")
def gradient_by_what_owes(case: Case) -> None:
  x = case.array(0)
  g = grad(checkpoint(lambda t: case.loss(case.of_debt(t))))(case.owing(case.placed(x)))
  assert case.seen == [case.after]
  close(g, case.slope_at(case.total(x)), case.law.tol)


# ---------------------------------------------------------------- and what is not

NO_DERIVATIVE = "integers and comparisons have no derivatives"
NO_COLLECTIVE = "there is no collective that multiplies"
LINE_ONLY = "a function of one device's parts says for which mesh it is: the first one's"
GRID_ONLY = "the maps' dim and the elements are cut over an axis each"
IN_TURN = "derivatives are taken at one place, of one row on the line, of the next on the grid"
JIT_ONCE = "a capture replays what its function gave, and that is run at both places"


def without(law: Law, program: str, place: str) -> str | None:
  """Why a row is not run in a program at a place; None where it is."""
  if "grad" in program and law.kind != "float":
    return NO_DERIVATIVE
  if "shard_map" in program:
    return NO_COLLECTIVE if DEBTS[law.debt].inside is None else LINE_ONLY if place != "line" else None
  if "spmd" in program:
    return GRID_ONLY if place != "grid" else None
  if "jit" in program:
    return JIT_ONCE if place != "grid" else None
  return IN_TURN if "grad" in program and place != [*PLACES][LAWS.index(law) % 2] else None


RUN = [(law, name) for law in LAWS for name in PROGRAMS if any(without(law, name, p) is None for p in PLACES)]


@pytest.mark.parametrize("law, name", RUN, ids=[f"{law.debt}: {law.name}-{name}" for law, name in RUN])
def test_law(law: Law, name: str) -> None:
  for place in PLACES:
    if without(law, name, place) is None:
      PROGRAMS[name](Case(law, place))


AT_ONCE = [row for i, row in enumerate(RUN) if i % 3 == 0]  # each row in a third of the programs


@pytest.mark.parametrize("law, name", AT_ONCE, ids=[f"{law.debt}: {law.name}-{name}" for law, name in AT_ONCE])
def test_law_where_nothing_is_deferred(law: Law, name: str) -> None:
  places = [p for p in PLACES if without(law, name, p) is None]
  with Context(DEFER=0):
    PROGRAMS[name](Case(law, places[LAWS.index(law) // 2 % len(places)]))
