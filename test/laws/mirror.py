"""`Tensor` in a few lines of numpy, for scripts that hold no more than what stands here: what each statement means
(docs/assignment.md), done at once, on one device.

Memory is a flat array, and a tensor the positions of its elements in it; a value has memory of its own.
Floats are float64, whatever the type is called. Gradients go backwards over the nodes that the operations leave.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np


class Unclear(Exception):
  """A script does something of which it is not said what comes out."""


class Memory:
  """`lazy`: not there yet; to write to a tensor gives it other memory then. `node`: what depends on the content."""

  def __init__(self, data: np.ndarray, lazy: bool, node: Node) -> None:
    self.data, self.lazy, self.node = data, lazy, node

  def renew(self) -> None:
    """What depends on it from now on depends on what has been written."""
    self.node.gone = True
    self.node = Node(self.node.shape)
    self.node.written = True
    Memory.written.add(self)

  written: ClassVar[weakref.WeakSet[Memory]] = weakref.WeakSet()

  @staticmethod
  def settle() -> None:
    """Before a captured function runs, what was assigned happens, and what waits for that is realised."""
    for memory in [*Memory.written]:
      if memory.node.written:
        memory.renew()


class Node:
  """A value for differentiation: what it was made of, each with the derivative's product with a cotangent."""

  def __init__(self, shape: tuple[int, ...], *sources: tuple[Node, Callable[[np.ndarray], np.ndarray]]) -> None:
    self.shape, self.sources = shape, sources
    self.heir: Node | None = None  # once realised: whether what was computed before knows it or its sources is open
    self.perhaps: Node | None = None  # which it may be: it is not said whether there was anything to do
    self.gone = False  # memory as it was before a write: who reads it may have been realised for that
    self.written = False  # assigned, and not realised since: whether it knows where that came from is open

  @property
  def perhaps_realised(self) -> bool:
    """Whether it was computed from what has an heir, by what may be nothing: x * 1, a sum over a dim of one."""
    size = math.prod(self.shape)
    return any(s.heir is not None or s.perhaps_realised for s, _ in self.sources if math.prod(s.shape) == size)


class Family:
  """The views of one memory, and tensors of which it is not said whether they are."""

  def __init__(self) -> None:
    self.members: weakref.WeakSet[Mirror] = weakref.WeakSet()


Pair = tuple[Any, Callable[[np.ndarray], np.ndarray]]


def unbroadcast(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  g = g.sum(tuple(range(g.ndim - len(shape))))
  thin = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
  return g.sum(thin, keepdims=True) if thin else g


def near(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Equal up to rounding: what ties for a maximum."""
  return np.isclose(x, y, rtol=1e-6, atol=1e-9)


def part_of_more(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """How much of a maximum's cotangent a gets."""
  return np.where(near(a, b), 0.5, a > b)


def part_of_best(x: np.ndarray, best: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
  ties = near(x, best)
  return ties / ties.sum(axes, keepdims=True)


def spreading(places: np.ndarray, shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
  """From the cotangent of a view, whose elements are at these places of a value of that shape, to the value's."""

  def spread(g: np.ndarray) -> np.ndarray:
    out = np.zeros(math.prod(shape))
    np.add.at(out, places.reshape(-1), g.reshape(-1))
    return out.reshape(shape)

  return spread


class Mirror:
  seed, calls = 0, 0
  requires_grad = False

  def __init__(self, value: Any, dtype: str, lazy: bool = True, sources: Sequence[Pair] = ()) -> None:
    value = np.asarray(value, np.float64 if dtype.startswith("float") else dtype)
    node = Node(value.shape, *((x.node, f) for x, f in sources))
    self._be(Memory(value.reshape(-1).copy(), lazy, node), np.arange(value.size).reshape(value.shape), dtype, Family())

  def _be(self, memory: Memory, at: np.ndarray, dtype: str, family: Family) -> Mirror:
    self.memory, self.at, self.dtype, self.family = memory, at, dtype, family
    self.stale = self.detached = self.vague = False
    self.whole = True  # no step to it was anything else than the memory itself: what is flipped twice is a view
    self.look: Node | None = None  # a view's node
    self.cut: tuple[Node, Node] | None = None  # of what is detached: the memory's, its own
    family.members.add(self)
    return self

  # ---- what it is

  @property
  def shape(self) -> tuple[int, ...]:
    return self.at.shape

  @property
  def ndim(self) -> int:
    return self.at.ndim

  @property
  def value(self) -> np.ndarray:
    if self.stale:
      raise Unclear("perhaps the same tensor as one that was written to, perhaps a value from before that")
    return self.memory.data[self.at]

  @property
  def node(self) -> Node:
    """What depends on it: for a view of memory, on the memory's content as it is now."""
    root = self.memory.node
    if self.detached:
      if self.cut is None or self.cut[0] is not root:
        self.cut = root, Node(self.shape)
      return self.cut[1]
    if self.whole:
      return root
    if self.look is None or self.look.sources[0][0] is not root:
      self.look = Node(self.shape, (root, spreading(self.at, root.shape)))
    return self.look

  @property
  def writable(self) -> bool:
    """Whether it is said what a write does: not where elements share memory."""
    return not self.detached and (self.memory.lazy or np.unique(self.at).size == self.at.size)

  # ---- values

  def _other(self, y: Any) -> Mirror:
    return y if isinstance(y, Mirror) else Mirror(y, self.dtype)

  def _binary(self, y: Any, f: Any, dx: Any, dy: Any) -> Mirror:
    y = self._other(y)
    a, b = self.value, y.value
    with np.errstate(all="ignore"):
      out = f(a, b)
      both = (self, lambda g: unbroadcast(g * dx(a, b), a.shape)), (y, lambda g: unbroadcast(g * dy(a, b), b.shape))
    return Mirror(out, self.dtype, sources=both)

  def __add__(self, y: Any) -> Mirror:
    return self._binary(y, np.add, lambda a, b: 1.0, lambda a, b: 1.0)

  def __sub__(self, y: Any) -> Mirror:
    return self._binary(y, np.subtract, lambda a, b: 1.0, lambda a, b: -1.0)

  def __mul__(self, y: Any) -> Mirror:
    return self._binary(y, np.multiply, lambda a, b: b, lambda a, b: a)

  def __truediv__(self, y: Any) -> Mirror:
    return self._binary(y, np.true_divide, lambda a, b: 1 / b, lambda a, b: -a / b / b)

  def maximum(self, y: Any) -> Mirror:
    return self._binary(y, np.maximum, part_of_more, lambda a, b: 1 - part_of_more(a, b))

  def __neg__(self) -> Mirror:
    return self * -1

  def square(self) -> Mirror:
    return self * self

  def relu(self) -> Mirror:
    positive = self.value > 1e-9
    return Mirror(np.where(positive, self.value, 0), self.dtype, sources=[(self, lambda g: g * positive)])

  def cast(self, dtype: str) -> Mirror:
    return Mirror(self.value, dtype, sources=[(self, lambda g: g)])

  def detach(self) -> Mirror:
    t = self._view(lambda a: a)
    t.detached = True
    return t

  def clone(self) -> Mirror:
    return Mirror(self.value, self.dtype, sources=[(self, lambda g: g)])

  # ---- reductions

  def _reduced(self, f: Any, axis: int | None, keepdim: bool, slope: Any) -> Mirror:
    x, axes = self.value, tuple(range(self.ndim)) if axis is None else (axis,)
    kept = f(x, axis=axes, keepdims=True)
    source = self, lambda g: g.reshape(kept.shape) * slope(x, kept, axes)
    return Mirror(kept if keepdim else f(x, axis=axes), self.dtype, sources=[source])

  def sum(self, axis: int | None = None, keepdim: bool = False) -> Mirror:
    return self._reduced(np.sum, axis, keepdim, lambda x, m, axes: np.ones_like(x))

  def mean(self, axis: int | None = None, keepdim: bool = False) -> Mirror:
    return self._reduced(np.mean, axis, keepdim, lambda x, m, axes: np.full(x.shape, m.size / x.size))

  def max(self, axis: int | None = None, keepdim: bool = False) -> Mirror:
    return self._reduced(np.max, axis, keepdim, part_of_best)

  def min(self, axis: int | None = None, keepdim: bool = False) -> Mirror:
    return self._reduced(np.min, axis, keepdim, part_of_best)

  def __matmul__(self, y: Mirror) -> Mirror:
    a, b = self.value, y.value
    return Mirror(a @ b, self.dtype, sources=[(self, lambda g: g @ b.T), (y, lambda g: a.T @ g)])

  def cumsum(self, axis: int) -> Mirror:
    source = self, lambda g: np.flip(np.cumsum(np.flip(g, axis), axis), axis)
    return Mirror(np.cumsum(self.value, axis), self.dtype, sources=[source])

  # ---- views

  def _view(self, f: Callable[[np.ndarray], np.ndarray]) -> Mirror:
    assert self.value is not None
    if self.memory.lazy:  # a view of a value is a value
      places = f(np.arange(self.at.size).reshape(self.shape))
      t = Mirror(self.value.reshape(-1)[places], self.dtype, sources=[(self, spreading(places, self.shape))])
      if t.shape == self.shape and (np.diff(places.reshape(-1)) == 1).all():
        t.memory.node = self.node  # it differs from it in nothing
    else:
      t = object.__new__(Mirror)._be(self.memory, np.array(f(self.at)), self.dtype, self.family)
      t.whole = self.whole and np.array_equal(t.at, self.at)
    t.detached = self.detached
    return t._vague(self.family) if self.vague else t

  def _elsewhere(self) -> Mirror:
    """Itself where it is there, else a value: a write to either makes the other unclear."""
    t = self.clone()._vague(self.family)
    t.node.perhaps = self.node
    return t

  def _vague(self, family: Family) -> Mirror:
    self.family, self.vague = family, True
    family.members.add(self)
    return self

  def reshape(self, *shape: int) -> Mirror:
    return self._view(lambda a: a.reshape(shape))

  def permute(self, *order: int) -> Mirror:
    return self._moved(lambda a: a.transpose(order), order != tuple(range(self.ndim)))

  def expand(self, *shape: int) -> Mirror:
    return self._view(lambda a: np.broadcast_to(a, shape))

  def _moved(self, f: Callable[[np.ndarray], np.ndarray], moves: bool = True) -> Mirror:
    """Elements in another order. Nothing says whether what `moves` dims of one element is the tensor itself."""
    places = np.arange(self.at.size).reshape(self.shape)
    if moves and np.array_equal(f(places), places):
      raise Unclear("only dims of one element are moved")
    return self._view(f)

  def flip(self, axis: int) -> Mirror:
    return self._moved(lambda a: np.flip(a, axis))

  def __getitem__(self, index: Any) -> Mirror:
    return self._view(lambda a: a[index])

  def cat(self, y: Mirror, dim: int) -> Mirror:
    n, a, b = self.shape[dim], self.value, y.value
    parts = (self, lambda g: np.split(g, [n], dim)[0]), (y, lambda g: np.split(g, [n], dim)[1])
    return Mirror(np.concatenate([a, b], dim), self.dtype, sources=parts)

  def shard(self, devices: Any, axis: Any = None) -> Mirror:
    return self._elsewhere()

  def to(self, device: Any) -> Mirror:
    return self._elsewhere()

  def contiguous(self) -> Mirror:
    return self.clone()

  # ---- memory

  def realize(self, *others: Mirror) -> Mirror:
    for t in (self, *others):
      t.memory.node.written = False
      if t.memory.lazy:
        value, node = t.value, Node(t.shape)
        node.perhaps = newest(t.node.heir or t.node.perhaps)
        same: Node | None = t.node
        while same is not None:
          same.heir, same = node, same.perhaps
        t.memory, t.at = Memory(value.reshape(-1).copy(), False, node), np.arange(value.size).reshape(t.shape)
        t.detached = False
        for m in t.family.members if t.vague else ():  # what may be this tensor may have memory now
          m.vague = True
    return self

  def assign(self, y: Any) -> Mirror:
    y = self._other(y)
    self._write(self.at, np.broadcast_to(y.value, self.shape))
    return self

  def __setitem__(self, index: Any, y: Any) -> None:
    y = self._other(y)
    at = self.at[index]
    self._write(at, np.broadcast_to(y.value, at.shape))

  def _write(self, at: np.ndarray, value: np.ndarray) -> None:
    assert self.value is not None
    if self.memory.lazy:
      data = self.memory.data.copy()
      data[at] = value
      for m in self.family.members:
        m.stale |= m is not self
      self.family.members.discard(self)
      memory = Memory(data[self.at].reshape(-1), True, Node(self.shape))
      memory.renew()
      self._be(memory, np.arange(self.at.size).reshape(self.shape), self.dtype, Family())
      return
    self.memory.data[at] = value
    self.memory.renew()
    for m in self.family.members:
      m.stale |= m.memory is not self.memory

  # ---- what the host reads

  def numpy(self) -> np.ndarray:
    return self.value.copy()

  def tolist(self) -> Any:
    return self.value.tolist()

  def item(self) -> Any:
    return self.value.item()

  # ---- creation

  @staticmethod
  def full(shape: tuple[int, ...], value: float, dtype: str = "float32", **kwargs: Any) -> Mirror:
    return Mirror(np.full(shape, value, np.float64), dtype)

  @staticmethod
  def ones(*shape: int, dtype: str = "float32", **kwargs: Any) -> Mirror:
    return Mirror(np.ones(shape), dtype)

  @staticmethod
  def arange(start: int, stop: int, dtype: str = "float32", **kwargs: Any) -> Mirror:
    return Mirror(np.arange(start, stop), dtype)

  @staticmethod
  def manual_seed(seed: int) -> None:
    Mirror.seed, Mirror.calls = seed, 0

  @staticmethod
  def rand(*shape: int, **kwargs: Any) -> Mirror:
    Mirror.calls += 1
    return Mirror(uniform(Mirror.seed, Mirror.calls - 1, shape), "float32")

  def rand_like(self) -> Mirror:
    return Mirror.rand(*self.shape)

  def zeros_like(self) -> Mirror:
    return Mirror(np.zeros(self.shape), self.dtype)

  def ones_like(self) -> Mirror:
    return Mirror(np.ones(self.shape), self.dtype)

  def full_like(self, value: float) -> Mirror:
    return Mirror(np.full(self.shape, value), self.dtype)

  def empty_like(self) -> Mirror:
    return Mirror(np.zeros(self.shape), self.dtype, lazy=False)

  # ---- differentiation

  def gradient(self, *targets: Mirror) -> list[Mirror]:
    found = cotangents(self.node, [t.node for t in targets])
    if any(g is None for g in found):
      raise Unclear("nothing flows to a target")
    grads = [Mirror(g, t.dtype) for g, t in zip(found, targets, strict=True)]
    for g in grads:
      g.node.written = True  # it has derivatives of its own, which are not computed here
    return grads


def below(nodes: Sequence[Node], without: Node | None = None) -> set[Node]:
  """What the nodes were computed from, looking through all but one node."""
  found: set[Node] = set()
  while nodes:
    nodes = [s for n in nodes if n is not without for s, _ in n.sources if s not in found]
    found.update(nodes)
  return found - {without}


def newest(node: Node | None) -> Node | None:
  """What has been realised of it last."""
  while node is not None and node.heir is not None:
    node = node.heir
  return node


def cotangents(root: Node, targets: Sequence[Node]) -> list[np.ndarray | None]:
  """The derivatives of a scalar by each target; None where it does not depend on it. Unclear where a value on the way
  has been realised, or its memory written, since."""
  order: list[Node] = []
  reaches: dict[Node, bool] = {}

  def visit(n: Node) -> bool:
    if n not in reaches:
      below = [visit(s) for s, _ in n.sources]
      reaches[n] = n in targets or any(below)
      if n.gone or n.written or (n.heir is not None and (n in targets or n.heir in targets or any(below))):
        raise Unclear("a value on the way to a target has been realised or written")
      if n in targets and n.perhaps_realised:
        raise Unclear("a target may be the same value as one that has been realised")
      order.append(n)
    return reaches[n]

  visit(root)
  for t in targets:
    if below([t]) & below([root], without=t):
      raise Unclear("what a target was computed from is also used otherwise, perhaps for an equal value")
  for n in order:
    if n.perhaps and n.perhaps not in below([n]) and n.perhaps in order and not {n, n.perhaps}.isdisjoint(targets):
      raise Unclear("a target may be the same memory as another value")
  grads = {root: np.ones(root.shape)}
  for n in reversed(order):
    if n in grads:
      for s, f in n.sources:
        if reaches[s]:
          grads[s] = grads.get(s, 0) + f(grads[n])
  return [grads.get(t) for t in targets]


class SGD:
  """w -= lr * b with b = momentum * b + gradient."""

  def __init__(self, params: list[Mirror], lr: float, momentum: float = 0.0) -> None:
    self.params, self.lr, self.momentum = params, lr, momentum
    self.b = [np.zeros(p.shape) for p in params]

  def minimize(self, loss: Mirror) -> None:
    grads = cotangents(loss.node, [p.node for p in self.params])
    if any(g is None for g in grads):
      raise Unclear("nothing flows to a parameter")
    for i, (p, g) in enumerate(zip(self.params, grads, strict=True)):
      self.b[i] = self.momentum * self.b[i] + g
      p.assign(Mirror(p.value - self.lr * self.b[i], p.dtype)).realize()


def uniform(seed: int, call: int, shape: tuple[int, ...]) -> np.ndarray:
  """Floats in [0, 1) by Threefry-2x32-20 under the key (seed, call) (Salmon et al. 2011, table 2): the upper 24 bits of
  the first word at the counters (0, 0), (1, 0), …"""
  rotations = (13, 15, 26, 6, 17, 29, 16, 24)
  size = math.prod(shape)
  with np.errstate(over="ignore"):
    k0, k1 = np.uint32(seed), np.uint32(call)
    keys = [k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA)]
    x, y = np.arange(size, dtype=np.uint32) + k0, np.zeros(size, np.uint32) + k1
    for i in range(20):
      r = rotations[i % 8]
      x = x + y
      y = (y << np.uint32(r) | y >> np.uint32(32 - r)) ^ x
      if i % 4 == 3:
        j = i // 4 + 1
        x, y = x + keys[j % 3], y + keys[(j + 1) % 3] + np.uint32(j)
  return (x >> np.uint32(8)).astype(np.float64).reshape(shape) / 2**24
