"""Transforms of functions over numpy, by what they mean: loops of calls, threads over blocks, central differences.

The oracle of extra/fuzz_transforms.py. A structure is an array, None, or a tuple or dict of structures.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

Function = Callable[..., Any]
STEP = 2e-3
TIE = 1e-8
# f'(0) of f at these numbers of steps, exact for polynomials of degree 6
STENCIL = {-3: -1 / 60, -2: 3 / 20, -1: -3 / 4, 1: 3 / 4, 2: -3 / 20, 3: 1 / 60}
POLICIES = ("nothing_saveable", "everything_saveable", "dots_saveable")
MOST_CALLS, MOST_STEPS = 30000, 40
SWITCHES = 20  # as many calls as a thread costs


class Unsure(Exception):
  """What the oracle cannot tell: a comparison changes within a difference, or it takes too long."""


class Course:
  """What a call has decided (comparisons, orders of elements) and held constant; `draft`: derivatives are any
  numbers, which tell shapes. `lanes`: of which elements and steps it is, and of how many; `drawn`: the random numbers
  of all of them, by the line that draws."""

  decisions: list[bytes] = []
  stops: list[np.ndarray] = []
  replay: Iterator[np.ndarray] | None = None
  calls = 0
  draft = False
  lanes: tuple[tuple[int, int], ...] = ()
  drawn: dict[int, np.ndarray] = {}
  draw: Callable[..., np.ndarray] = np.random.default_rng(0).random


def leaves(tree: Any, path: str = "") -> list[tuple[str, np.ndarray]]:
  """The arrays of a structure, each with how it is reached."""
  if isinstance(tree, (tuple, dict)):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [found for k, x in items for found in leaves(x, f"{path}[{k!r}]")]
  return [] if tree is None else [(path, tree)]


def mapped(f: Function, tree: Any, *others: Any) -> Any:
  if isinstance(tree, tuple):
    return tuple([mapped(f, *xs) for xs in zip(tree, *others, strict=True)])
  if isinstance(tree, dict):
    return {k: mapped(f, x, *(o[k] for o in others)) for k, x in tree.items()}
  return None if tree is None else f(tree, *others)


def apart(x: Any) -> None:
  """Unsure where such a difference is as good as 0, so that rounding decides what is greater."""
  if np.asarray(x).dtype.kind == "f" and np.abs(np.asarray(x)).min(initial=1) < TIE:
    raise Unsure("two numbers are as good as equal")


def above(x: Any, y: Any) -> Any:
  apart(x - y)
  return decided(x > y)


def argsort(x: Any, d: int) -> Any:
  apart(np.diff(np.sort(x, d), axis=d))
  return decided(np.argsort(x, d, kind="stable"))


def argmax(x: Any, d: int) -> Any:
  apart(np.diff(np.sort(x, d), axis=d))
  return decided(np.argmax(x, d))


def decided(x: Any) -> Any:
  Course.decisions.append(np.asarray(x).tobytes())
  return x


# ---------------------------------------------------------------- loops


def spread(axes: Any, tree: Any) -> Any:
  """An axis for each array of a structure, None is written as -9."""
  if isinstance(tree, (tuple, dict)):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    of = {k: spread(axes[k] if isinstance(axes, (tuple, dict)) else axes, x) for k, x in items}
    return of if isinstance(tree, dict) else tuple(of.values())
  return None if tree is None else -9 if axes is None else axes


def vmap(f: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
  def over_many(*args: Any) -> Any:
    axes = spread(in_axes, args)
    n = next(x.shape[a] for (_, x), (_, a) in zip(leaves(args), leaves(axes), strict=True) if a != -9)
    picked: Function = lambda i: mapped(lambda x, a: x if a == -9 else np.take(x, i, a), args, axes)  # noqa: E731
    each = [in_lane(i, n, f, picked(i)) for i in range(n)]
    if not n:
      each = [none_of(f, mapped(lambda x, a: x if a == -9 else an_element(x, a), args, axes))]
      return mapped(lambda a, y: y if a == -9 else np.stack([y], a).take([], a), spread(out_axes, each[0]), each[0])
    return mapped(lambda a, *ys: ys[0] if a == -9 else np.stack(ys, a), spread(out_axes, each[0]), *each)

  return over_many


def an_element(x: np.ndarray, axis: int = 0) -> np.ndarray:
  """The first element along a dim, or what would be one."""
  return np.take(x, 0, axis) if x.shape[axis] else np.ones(np.delete(x.shape, axis), x.dtype)


def none_of(f: Function, args: Any) -> Any:
  """What a function of elements of which there are none returns; only shapes and types count."""
  return in_lane(0, 0, lambda *xs: called(f, xs, apart=True)[0], args)


def in_lane(i: int, n: int, f: Function, args: Any) -> Any:
  """The i-th of n calls."""
  outer, Course.lanes = Course.lanes, (*Course.lanes, (i, n))
  try:
    return f(*args)
  finally:
    Course.lanes = outer


def noise(line: int, shape: Sequence[int]) -> np.ndarray:
  """Random numbers: those that one call for all elements and steps around it would draw."""
  counts = [n for _, n in Course.lanes]
  if line not in Course.drawn:
    Course.drawn[line] = Course.draw((*counts, *shape))
  return np.zeros(shape) if 0 in counts else Course.drawn[line][tuple([i for i, _ in Course.lanes])]


def scan(f: Function, init: Any, xs: Any = None, length: Any = None, reverse: bool = False, unroll: int = 1) -> Any:
  n = leaves(xs)[0][1].shape[0] if length is None else length
  carry, ys = init, [None] * n
  for i in reversed(range(n)) if reverse else range(n):
    carry, ys[i] = in_lane(i, n, f, (carry, mapped(lambda x, i=i: x[i], xs)))
  if not n:
    return carry, mapped(lambda y: np.stack([y])[:0], none_of(f, (carry, mapped(an_element, xs)))[1])
  return carry, mapped(lambda *each: np.stack(each), *ys)


def while_loop(condition: Function, body: Function, carry: Any) -> Any:
  for _ in range(MOST_STEPS):
    if not decided(condition(carry)):
      return carry
    carry = body(carry)
  raise Unsure("a loop goes on and on")


def cond(condition: Any, yes: Function, no: Function, *operands: Any) -> Any:
  return (yes if decided(condition) else no)(*operands)


def lanes(n: int, way: str, name: str, stages: Sequence[Any]) -> Function:
  """Functions of a block of the first argument and of the others, and between them collectives."""

  def over_blocks(x: Any, *others: Any) -> Any:
    blocks = np.split(x, n)
    for stage in stages:
      blocks = COLLECTIVES[stage](blocks) if isinstance(stage, str) else Talk().of(stage, blocks, others)
    return np.concatenate(blocks)

  return over_blocks


class Abandoned(BaseException):
  """Another device has failed, so that nothing more will be said."""


class Talk:
  """A function on blocks, a thread for each, of which one runs at a time, in turn: each until it says something."""

  now: Talk | None = None

  def of(self, f: Function, blocks: Sequence[np.ndarray], others: Any) -> list[Any]:
    if not speaks(f.__code__):
      return [in_lane(i, len(blocks), f, (x, *others)) for i, x in enumerate(blocks)]
    Course.calls += 0 if Course.draft else SWITCHES * len(blocks)
    n, outer = len(blocks), (Talk.now, Course.lanes)
    self.lanes = [(*Course.lanes, (i, n)) for i in range(n)]
    self.turns, self.back = [threading.Semaphore(0) for _ in range(n)], threading.Semaphore(0)
    self.said: list[tuple[str, Any] | None] = [None] * n
    self.heard: list[Any] = list(blocks)
    self.failed: BaseException | None = None
    threads = [threading.Thread(target=self.device, args=(i, f, others), daemon=True) for i in range(n)]
    for thread in threads:
      thread.start()
    Talk.now = self
    try:
      while self.round() and self.failed is None:
        self.heard = COLLECTIVES[self.said[0][0]]([x for _, x in self.said])
    finally:
      Talk.now, Course.lanes = outer
    if self.failed is not None:
      raise self.failed
    return self.heard

  def round(self) -> bool:
    """Whether all wait to hear something."""
    self.said = [None] * len(self.turns)
    for i, turn in enumerate(self.turns):
      self.at, Course.lanes = i, self.lanes[i]
      turn.release()
      self.back.acquire()
      self.lanes[i] = Course.lanes
    assert self.failed is not None or len({said and said[0] for said in self.said}) == 1
    return self.said[0] is not None

  def device(self, i: int, f: Function, others: Any) -> None:
    self.turns[i].acquire()
    try:
      if self.failed is None:
        self.heard[i] = f(self.heard[i], *others)
    except BaseException as e:
      self.failed = self.failed or e
    self.back.release()

  def say(self, what: str, x: Any) -> Any:
    i = self.at
    self.said[i] = what, x
    self.back.release()
    self.turns[i].acquire()
    if self.failed is not None:
      raise Abandoned
    return self.heard[i]


def speaks(code: CodeType) -> bool:
  """Whether something is said in a function, or in those in it."""
  return "say" in code.co_names or any(speaks(c) for c in code.co_consts if isinstance(c, CodeType))


def say(x: Any, what: str, name: str, n: int) -> Any:
  """A collective; where nobody is there, as if all said the same."""
  return COLLECTIVES[what]([x] * n)[0] if Talk.now is None else Talk.now.say(what, x)


COLLECTIVES: dict[str, Callable[[list[np.ndarray]], list[np.ndarray]]] = {
  "psum": lambda xs: [np.sum(xs, 0)] * len(xs),
  "pmean": lambda xs: [np.mean(xs, 0)] * len(xs),
  "pmax": lambda xs: [maximum_of(np.stack(xs), 0)] * len(xs),
  "pmin": lambda xs: [-maximum_of(-np.stack(xs), 0)] * len(xs),
  "all_gather": lambda xs: [np.stack(xs)] * len(xs),
  "all_gather tiled": lambda xs: [np.concatenate(xs)] * len(xs),
  "psum_scatter": lambda xs: list(np.split(np.sum(xs, 0), len(xs))),
  "all_to_all": lambda xs: [np.concatenate(p) for p in zip(*(np.split(x, len(xs), x.ndim - 1) for x in xs))],
  "ppermute": lambda xs: xs[-1:] + xs[:-1],
  "axis_index": lambda xs: [x * (i + 1) for i, x in enumerate(xs)],
}

# ---------------------------------------------------------------- derivatives


def called(
  f: Function, args: Any, replay: list[np.ndarray] | None = None, apart: bool = False
) -> tuple[Any, list[bytes], list[np.ndarray]]:
  """(what f returns, what it has decided, what it has held constant), the last as another call has, if given. `apart`:
  nobody is told of these."""
  outer = Course.decisions, Course.stops, Course.replay
  Course.decisions, Course.stops, Course.calls = [], [], Course.calls + 1
  if Course.calls > MOST_CALLS:
    raise Unsure("too many calls")
  if apart:
    Course.replay = None
  elif replay is not None and Course.replay is None:
    Course.replay = iter(replay)
  try:
    out, decisions, stops = f(*args), Course.decisions, Course.stops
  finally:
    Course.decisions, Course.stops, Course.replay = outer
  if not apart:
    Course.decisions += decisions
    Course.stops += stops
  return out, decisions, stops


def is_float(x: Any) -> bool:
  return np.asarray(x).dtype.kind == "f"


def pushed(f: Function, args: Any, base: Any, directions: Any) -> Any:
  """The derivative in a direction, which is None where arguments are constant."""
  out, decisions, stops = base
  total = mapped(np.zeros_like, out)
  if Course.draft:
    return mapped(lambda x: x + np.random.default_rng(x.size).normal(size=x.shape) if is_float(x) else x, total)
  for k, weight in STENCIL.items():
    moved = mapped(lambda x, t, k=k: x + k * STEP * t if is_float(x) else x, args, directions)
    y, others, _ = called(f, moved, stops)
    if others != decisions:
      raise Unsure("a comparison changes within a difference")
    total = mapped(lambda s, z, w=weight: s + z * (w / STEP) if is_float(z) else s, total, y)
  return total


def inside(n: int, way: str, name: str, what: str, f: Function) -> Function:
  """What each device differentiates: the sum of all that they compute, by its own block; or in its own direction."""

  def over_blocks(x: Any, *others: Any) -> Any:
    made = lambda x: Talk().of(f, np.split(x, n), others)  # noqa: E731
    if what == "grad":
      return grad(lambda x: np.sum(made(x)))(x)
    return jvp(lambda x: np.concatenate(made(x)), (x,), (x * 0.5 + 1,))[1]

  return over_blocks


def numbered(tree: Any) -> Any:
  each = itertools.count()
  return mapped(lambda _: next(each), tree)


def jacobian(f: Function, argnums: Any = 0) -> Function:
  """Structured as the result, in it as the argument; None by what is no float."""

  def of(*args: Any) -> Any:
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    by = tuple([args[i] for i in numbers])
    some = lambda *xs: f(*(dict(zip(numbers, xs)).get(i, a) for i, a in enumerate(args)))  # noqa: E731
    base, columns = called(some, by), []
    zero = mapped(np.zeros_like, by)
    for i, (_, x) in enumerate(leaves(by)):
      found = []
      for e in np.eye(x.size).reshape(x.size, *x.shape) if is_float(x) else ():
        direction = mapped(lambda z, n, e=e, i=i: e if n == i else z, zero, numbered(zero))
        found.append(pushed(some, by, base, direction))
      if is_float(x) and not x.size:
        found = [mapped(np.zeros_like, base[0])]
      columns.append(mapped(lambda *ys, x=x: derived(ys, x), *found) if found else None)

    def at(path: Sequence[Any]) -> Any:
      def leaf(x: Any) -> Any:
        y: Any = next(each)
        for k in path if y is not None else ():
          y = y[k]
        return y

      each = iter(columns)
      made = mapped(leaf, by)
      return made[0] if isinstance(argnums, int) else made

    return placed(base[0], at)

  return of


def derived(columns: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
  """The derivatives by each element of x, of which there may be none."""
  return np.stack(columns, -1)[..., : x.size].reshape(*columns[0].shape, *x.shape)


def placed(tree: Any, at: Callable[[Sequence[Any]], Any], path: tuple[Any, ...] = ()) -> Any:
  if isinstance(tree, tuple):
    return tuple([placed(x, at, (*path, i)) for i, x in enumerate(tree)])
  if isinstance(tree, dict):
    return {k: placed(x, at, (*path, k)) for k, x in tree.items()}
  return at(path)


def jvp(f: Function, primals: Any, tangents: Any, has_aux: bool = False) -> Any:
  if has_aux:
    return *jvp(lambda *xs: f(*xs)[0], primals, tangents), f(*primals)[1]
  base = called(f, primals)
  return base[0], pushed(f, primals, base, tangents)


def linearize(f: Function, *primals: Any) -> Any:
  base = called(f, primals)
  return base[0], lambda *tangents: pushed(f, primals, base, tangents)


def vjp(f: Function, *primals: Any, has_aux: bool = False) -> Any:
  if has_aux:
    return *vjp(lambda *xs: f(*xs)[0], *primals), f(*primals)[1]

  def pull(g: Any) -> Any:
    def weighed(*xs: Any) -> Any:
      parts = [np.sum(y * c) for (_, y), (_, c) in zip(leaves(f(*xs)), leaves(g), strict=True) if is_float(y)]
      return np.sum(parts)

    return jacobian(weighed, tuple(range(len(primals))))(*primals)

  return f(*primals), pull


def value_and_grad(f: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
  value = lambda *args: np.reshape(f(*args)[0] if has_aux else f(*args), ())  # noqa: E731
  return lambda *args: (f(*args), jacobian(value, argnums)(*args))


def grad(f: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
  both = value_and_grad(f, argnums, has_aux)

  def gradient(*args: Any) -> Any:
    value, found = both(*args)
    return (found, value[1]) if has_aux else found

  return gradient


def pulled(made: Any) -> Any:
  """(result, derivatives, and what else there is) of what `vjp` gives, of cotangents like the result."""
  out, pull, *aux = made
  return out, pull(mapped(lambda y: y * 0.5 + 1, out)), *aux


def hessian(f: Function, argnums: Any = 0) -> Function:
  return jacobian(jacobian(f, argnums), argnums)


def hvp(f: Function, primals: Any, tangents: Any) -> Any:
  found = jvp(grad(f, tuple(range(len(primals)))), primals, tangents)[1]
  return found[0] if len(primals) == 1 else found


def filled(x: Any, shape: Sequence[int]) -> Any:
  return np.full(shape, np.sum(x))


def stop_gradient(tree: Any) -> Any:
  def leaf(x: np.ndarray) -> np.ndarray:
    y = x if Course.replay is None else next(Course.replay, None)
    if y is None:
      raise Unsure("a call holds more constant than the one beside it")
    Course.stops.append(y)
    return y

  return mapped(leaf, tree)


def scaled(x: Any, c: float, way: str) -> Any:
  """x, with the derivative c."""
  return stop_gradient(x) + c * (x - stop_gradient(x))


# ---------------------------------------------------------------- operations


def maximum_of(x: np.ndarray, d: int) -> np.ndarray:
  return np.take_along_axis(x, np.expand_dims(decided(np.argmax(x, d)), d), d).squeeze(d)


def sorted_(x: np.ndarray, d: int) -> np.ndarray:
  return np.take_along_axis(x, decided(np.argsort(x, d, kind="stable")), d)


def exponents(x: np.ndarray, d: int) -> Any:
  return np.exp(x - x.max(d, keepdims=True, initial=-1))


def convolved(x: np.ndarray, w: np.ndarray) -> Any:
  """Of each row by a kernel: (.., n), (k,) -> (.., n - k + 1)."""
  k = len(w)
  return np.sum([x[..., i : x.shape[-1] - k + 1 + i] * w[i] for i in range(k)], 0)


def windows(x: np.ndarray, k: int, stride: int, padding: int, dilation: int = 1, fill: float = 0) -> np.ndarray:
  """Of k elements each, over the last dim: (.., n) -> (.., o, k). Raises: ValueError for a short row."""
  count = (x.shape[-1] + 2 * padding - dilation * (k - 1) - 1) // stride + 1
  if x.shape[-1] < k or count < 1:
    raise ValueError("a short row")
  wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(padding, padding)], constant_values=fill)
  return np.asarray(wide[..., np.arange(count)[:, None] * stride + np.arange(k) * dilation])


def pooled(x: np.ndarray, k: int, stride: int, padding: int, way: str) -> Any:
  if way == "mean":
    return windows(x, k, stride, padding).mean(-1)
  return maximum_of(windows(x, k, stride, padding, fill=-np.inf), -1)


def strided(x: np.ndarray, stride: int, padding: int, dilation: int, w: np.ndarray) -> Any:
  return windows(x, len(w), stride, padding, dilation) @ w


def widened(x: np.ndarray, stride: int, w: np.ndarray) -> np.ndarray:
  """Each element times the kernel, `stride` apart: (.., n), (k,) -> (.., (n - 1) * stride + k)."""
  span = (x.shape[-1] - 1) * stride + 1
  out = np.zeros((*x.shape[:-1], span + len(w) - 1))
  for j in range(len(w)):
    out[..., j : j + span : stride] += x * w[j]
  return out


def scattered(x: np.ndarray, d: int, i: np.ndarray, y: np.ndarray) -> np.ndarray:
  out = x.copy()
  at: list[Any] = list(np.indices(i.shape))
  at[d] = i
  np.add.at(out, tuple(at), y)
  return out


def smeared(x: np.ndarray) -> np.ndarray:
  out = x.copy()
  out[1:] = x[1:] * 0.5 + x[:-1]
  return out


def replaced_at(x: np.ndarray, k: int, y: Any) -> np.ndarray:
  out = x.copy()
  out[k] = y
  return out


PLAIN: dict[str, Any] = {
  **{f.__name__: f for f in (vmap, scan, while_loop, cond, lanes, say, jvp, linearize, vjp, grad, value_and_grad)},
  **{f.__name__: f for f in (hessian, hvp, stop_gradient, scaled, pulled, mapped, noise, filled, inside)},
  **{f.__name__: f for f in (pooled, strided, widened)},
  "jacfwd": jacobian, "jacrev": jacobian, "checkpoint": lambda f, policy: f,
  **dict.fromkeys(("own_vjp", "own_jvp", "replayed"), lambda f: f), "smeared": smeared, **dict.fromkeys(POLICIES),
  **{name: getattr(np, name) for name in "sin cos tanh exp log tril".split()},
  "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: x * decided(x > 0),
  "abs": lambda x: x * decided(np.sign(x)), "maximum": lambda x, y: np.where(decided(x > y), x, y),
  "minimum": lambda x, y: np.where(decided(x < y), x, y), "where": np.where, "above": above,
  "total": np.sum, "sum": np.sum, "mean": np.mean, "var": lambda x, d: np.var(x, d),
  "max": maximum_of, "min": lambda x, d: -maximum_of(-x, d), "prod": np.prod, "cumsum": np.cumsum,
  "cumprod": np.cumprod, "sort": sorted_, "argsort": argsort,
  "argmax": argmax, "flip": np.flip, "full": np.full, "any": np.any,
  "logsumexp": lambda x, d: np.log(np.sum(np.exp(x), d)),
  "softmax": lambda x, d: exponents(x, d) / exponents(x, d).sum(d, keepdims=True), "swap": np.swapaxes,
  "reshape": np.reshape, "part": lambda x, d, a, b: np.take(x, range(a, b), d), "at": lambda x, d, i: np.take(x, i, d),
  "pick": lambda x, i, j: x[i, j],
  "padded": lambda x, d: np.pad(x, [(1, 1) if k == d else (0, 0) for k in range(x.ndim)]),
  "cat": lambda x, y, d: np.concatenate([x, y], d), "stack": lambda x, y, d: np.stack([x, y], d),
  "along": lambda x, d, i: np.take_along_axis(x, i, d), "scattered": scattered, "roll": np.roll, "conv": convolved,
  "one_hot": lambda i, n: (i[..., None] == np.arange(n)).astype(np.float64), "put": replaced_at,
  "repeated": lambda x, n: np.repeat(x[None], n, 0), "real": lambda i: np.asarray(i, np.float64),
  "whole": lambda b: np.asarray(b, np.int64),
  "fit": lambda x, shape: np.full(shape, np.sum(x) * 0.1),
}  # fmt: skip
