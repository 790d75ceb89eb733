"""Random programs of memory, views, lazy values and writes, read at random moments through random channels, beside
numpy: what is read first must not matter (docs/assignment.md says what follows a write).

The model keeps an array for each tensor: a tensor that has memory shares it with its views, as numpy's do; every other
holds a copy. Integers wrap alike on both sides, so equality is exact.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import Context
from tinygrad.mixin.base import Base
from tinygrad.uop import Ops

D2 = ("CPU:0", "CPU:1")
SHAPES = ((3, 1), (1, 3), (2, 3), (4,), (1,), (3, 2, 1))
PLACES: tuple[Any, ...] = (None, (D2, 0), (D2, None), (D2, 1))
INTERPRETED, COMPILED = (int(os.environ.get(k, n)) for k, n in (("ASSIGN_INTERPRETED", 100), ("ASSIGN_COMPILED", 20)))
STEPS = 14


@dataclass(eq=False)
class Var:
  """A tensor beside its model: the array, and whether it is memory (or a view of it) rather than a value."""

  t: Tensor
  a: np.ndarray
  memory: bool
  name: str


def whole(a: np.ndarray) -> np.ndarray:
  return np.array(a, np.int32, copy=True, order="C")


# as methods of either side; the result is a value
COMPUTED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], Any]]] = {
  "+ 3": (lambda t: t + 3, lambda a: a + 3),
  "+ 0": (lambda t: t + 0, lambda a: a),
  "* 1": (lambda t: t * 1, lambda a: a),
  "* 2": (lambda t: t * 2, lambda a: a * 2),
  "neg": (lambda t: -t, lambda a: -a),
  "relu": (lambda t: t.relu(), lambda a: np.maximum(a, 0)),
  "sum(-1)": (lambda t: t.sum(-1), lambda a: a.sum(-1, dtype=np.int32)),
  "sum(0, keepdim)": (lambda t: t.sum(0, keepdim=True), lambda a: a.sum(0, dtype=np.int32, keepdims=True)),
  "max(-1)": (lambda t: t.max(-1), lambda a: a.max(-1)),
  "min(0, keepdim)": (lambda t: t.min(0, keepdim=True), lambda a: a.min(0, keepdims=True)),
  "prod(-1)": (lambda t: t.prod(-1), lambda a: a.prod(-1, dtype=np.int32)),
  "cumsum(0)": (lambda t: t.cumsum(0), lambda a: a.cumsum(0, dtype=np.int32)),
  "contiguous": (lambda t: t.contiguous(), lambda a: a),
  "clone": (lambda t: t.clone(), lambda a: a),
  "cat alone": (lambda t: Tensor.cat(t), lambda a: a),
  "cat": (lambda t: t.cat(t + 1), lambda a: np.concatenate([a, a + 1])),
  "pad nothing": (lambda t: t.pad(((0, 0),) * t.ndim), lambda a: a),
  "repeat once": (lambda t: t.repeat((1,) * t.ndim), lambda a: a),
  "roll by nothing": (lambda t: t.roll(0, 0), lambda a: a),
  "pow 1": (lambda t: t.pow(1), lambda a: a),
  "dropout": (lambda t: t.dropout(0.5), lambda a: a),
  "bitcast": (lambda t: t.bitcast("int32"), lambda a: a),
  "flip + flip": (lambda t: t.flip(0) + t, lambda a: np.flip(a, 0) + a),
  "rows": (lambda t: t[Tensor([0, 0])], lambda a: a[[0, 0]]),
}  # fmt: skip


def views(shape: tuple[int, ...], rng: random.Random) -> list[tuple[str, Callable[[Any], Any], bool]]:
  """(name, the view as a function of either side, whether it can be written as a whole)."""
  order = list(range(len(shape)))
  rng.shuffle(order)
  start = rng.randrange(shape[0])
  stop = rng.randint(start + 1, shape[0])
  wide = (2, *shape)

  def permuted(x: Any) -> Any:
    return x.permute(order) if isinstance(x, Tensor) else x.transpose(order)

  def expanded(x: Any) -> Any:
    return x.unsqueeze(0).expand(wide) if isinstance(x, Tensor) else np.broadcast_to(x[None], wide)

  return [
    ("flat", lambda x: x.reshape(-1), True),
    ("a new dim", lambda x: x.reshape((*shape, 1)), True),
    (f"permute{order}", permuted, True),
    (f"[{start}:{stop}]", lambda x: x[start:stop], True),
    ("[-1]", lambda x: x[-1:], True),
    ("flip", lambda x: x.flip(0) if isinstance(x, Tensor) else x[::-1], True),
    ("detach", lambda x: x.detach() if isinstance(x, Tensor) else x[...], True),
    ("[::2]", lambda x: x[::2], True),
    ("expand", expanded, False),
  ]


def by_npy(t: Tensor) -> Any:
  return t.to("NPY").numpy()


def by_shards(t: Tensor) -> Any:
  """The whole put together from the parts."""
  if isinstance(t.device, str):
    return t.shards[0].numpy()
  out = np.full(t.shape, -77, np.int32)
  for i, part in enumerate(t.shards):
    out[tuple(slice(lo, hi) for lo, hi in t.device.box(i, t.shape))] = part.numpy()
  return out


CHANNELS: dict[str, Callable[[Tensor], Any]] = {
  "numpy": Tensor.numpy,
  "tolist": Tensor.tolist,
  "data": lambda t: np.asarray(t.data()),
  "items": lambda t: np.array([x.item() for x in t.flatten()]).reshape(t.shape),
  "pickle": lambda t: pickle.loads(pickle.dumps(t)).numpy(),
  "NPY": by_npy,
  "shards": by_shards,
  "twice": lambda t: (t.numpy(), t.numpy())[1],
  "computed with": lambda t: (t * 2 - t).numpy(),
}


class Machine:
  """A program while it is drawn: each step is done on both sides."""

  def __init__(self, seed: int, sharded: bool, jit: bool = False) -> None:
    self.rng, self.sharded, self.jit = random.Random(seed), sharded, jit
    self.vars: list[Var] = []
    self.text: list[str] = []
    self.names = (f"x{i}" for i in itertools.count())
    self.writable: set[Var] = set()

  def note(self, line: str) -> None:
    self.text.append(line)

  def add(self, t: Tensor, a: Any, memory: bool, how: str, writable: bool = True) -> Var:
    v = Var(t, a if memory else whole(a), memory, next(self.names))
    self.vars.append(v)
    if writable:
      self.writable.add(v)
    self.note(f"{v.name} = {how}  # {list(v.a.shape)}")
    assert tuple(t.shape) == v.a.shape, "\n".join(self.text)
    return v

  # ---- steps

  def make(self) -> None:
    shape = self.rng.choice(SHAPES)
    a = np.array([self.rng.randint(-4, 9) for _ in range(int(np.prod(shape)))], np.int32).reshape(shape)
    t, how = Tensor(a), f"Tensor({a.tolist()})"
    place = self.rng.choice(PLACES) if self.sharded else None
    if place is not None and (place[1] is None or place[1] < len(shape)):
      t, how = t.shard(*place), f"{how}.shard{place}"
    if memory := self.rng.random() < 0.7:
      t, how = t.realize(), f"{how}.realize()"
    self.add(t, a.copy(), memory, how)

  def compute(self) -> None:
    x = self.rng.choice(self.vars)
    name = self.rng.choice(list(COMPUTED))
    ours, theirs = COMPUTED[name]
    if x.a.ndim:
      self.add(ours(x.t), theirs(x.a), False, f"{x.name} -> {name}")

  def combine(self) -> None:
    x, y = self.rng.choice(self.vars), self.rng.choice(self.vars)
    if self.fits(x, y):
      self.add(x.t - y.t * 2, x.a - y.a * 2, False, f"{x.name} - {y.name} * 2")

  def look(self) -> None:
    x = self.rng.choice(self.vars)
    if x.a.ndim:
      name, f, writable = self.rng.choice(views(x.a.shape, self.rng))
      self.add(f(x.t), f(x.a), x.memory, f"view {x.name} {name}", writable and x in self.writable)

  def fits(self, x: Var, y: Var) -> bool:
    both = {v.t.device for v in (x, y) if not isinstance(v.t.device, str)}
    return x.a.shape == y.a.shape and (len(both) < 2 or len({d.devices for d in both}) == 1)

  def put(self, x: Var, value: Any) -> None:
    if x.memory:
      x.a[...] = value.copy() if isinstance(value, np.ndarray) else value
    else:
      x.a = whole(np.broadcast_to(value, x.a.shape))

  def assign(self) -> None:
    x, y = self.rng.choice(self.vars), self.rng.choice(self.vars)
    if x.memory and x not in self.writable:
      return
    if self.fits(x, y):
      self.note(f"{x.name}.assign({y.name})")
      x.t.assign(y.t)
      self.put(x, y.a)
    else:
      self.note(f"{x.name} += 1")
      x.t += 1
      self.put(x, x.a + 1)

  def overwrite(self) -> None:
    x = self.rng.choice(self.vars)
    if not x.a.ndim or (x.memory and x not in self.writable):
      return
    start = self.rng.randrange(x.a.shape[0])
    stop = self.rng.randint(start + 1, x.a.shape[0])
    number = self.rng.randint(10, 99)
    if number % 2:
      self.note(f"{x.name}[{start}:{stop}] = {number}")
      x.t[start:stop] = number
      value: Any = number
    else:
      self.note(f"{x.name}[{start}:{stop}] = {x.name}[{start}:{stop}] * 2 + {number}")
      x.t[start:stop] = x.t[start:stop] * 2 + number
      value = x.a[start:stop] * 2 + number
    if not x.memory:
      x.a = x.a.copy()
    x.a[start:stop] = value

  def swap(self) -> None:
    x, y = self.rng.choice(self.vars), self.rng.choice(self.vars)
    if x is y or not self.fits(x, y) or any(v.memory and v not in self.writable for v in (x, y)):
      return
    self.note(f"c = {x.name} + 10; {x.name}.assign({y.name} + 20); {y.name}.assign(c)")
    c, old = x.t + 10, x.a + 10
    x.t.assign(y.t + 20)
    self.put(x, y.a + 20)
    y.t.assign(c)
    self.put(y, old)

  def realize(self) -> None:
    chosen = self.rng.sample(self.vars, min(len(self.vars), self.rng.randint(1, 2)))
    self.note(f"Tensor.realize({', '.join(v.name for v in chosen)})")
    Tensor.realize(*[v.t for v in chosen])
    for v in chosen:
      v.memory = True

  def start_jit(self) -> None:
    """A step that is captured, replayed, and keeps a state that the program reads and writes too. It assigns to it
    before it reads it, afterwards, or without reading it: then nothing that it returns depends on that."""
    t, how = Tensor([1, 2, 3, 4], dtype="int32"), "the state"
    t = t.shard(D2, self.rng.choice((0, None))).realize() if self.sharded else t.realize()
    self.state = self.add(t, np.array([1, 2, 3, 4], np.int32), True, how)
    state = self.state.t

    self.reads = self.rng.choice(("before", "after", "never"))

    def step(x: Tensor) -> Tensor:
      result = x * 2 + state
      state.assign(state + x.flip(0))
      if self.reads != "before":
        result = x * 2 if self.reads == "never" else (x * 2 + state).realize()
      return result

    self.step = TinyJit(step)
    self.told = False  # the JIT has captured it with another argument like the state
    self.note(f"step: reads the state {self.reads}")

  def call_jit(self) -> None:
    given = [v for v in self.vars if self.fits(v, self.state) and not np.shares_memory(v.a, self.state.a)]
    if self.told:  # what is captured with the state as its argument would take that for an argument alone
      given += [self.state] * (1 + len(given))
    if not given:
      return
    x = self.rng.choice(given)
    self.note(f"step({x.name})")
    result, a, old = self.step(x.t), whole(x.a), whole(self.state.a)
    x.memory = True  # arguments are realized
    self.told |= self.step.captured is not None and x.t.uop.op is Ops.BUFFER and x.t.device == self.state.t.device
    self.state.a[...] = old + a[::-1]
    # the argument is memory: where it is the state, it shows what is assigned
    read = {"before": a * 2 + old, "after": x.a * 2 + self.state.a, "never": x.a * 2}[self.reads]
    self.add(result, read, True, "its result")
    self.vars.pop() if self.rng.random() < 0.5 else None

  def forget(self) -> None:
    if len(self.vars) > 2:
      v = self.vars.pop(self.rng.randrange(len(self.vars)))
      self.note(f"del {v.name}")

  def read(self, v: Var | None = None) -> None:
    v = v or self.rng.choice(self.vars)
    channel = self.rng.choice(list(CHANNELS))
    self.note(f"read {v.name} by {channel}")
    got = np.asarray(CHANNELS[channel](v.t))
    if not np.array_equal(got.reshape(v.a.shape), v.a):
      raise AssertionError("\n".join([*self.text, f"got  {got.tolist()}", f"want {v.a.tolist()}"]))

  def run(self) -> None:
    self.make()
    self.make()
    steps = [self.make, self.realize, self.forget]
    steps += [self.compute, self.look, self.assign, self.overwrite, self.read] * 3 + [self.swap, self.combine] * 2
    if self.jit:
      self.start_jit()
      steps += [self.call_jit] * 12
    for _ in range(STEPS * (1 + self.jit)):
      try:
        self.rng.choice(steps)()
      except AssertionError:
        raise
      except Exception as e:
        e.add_note("\n".join(self.text))
        raise
    self.rng.shuffle(self.vars)
    for v in self.vars:
      self.read(v)


def programs(count: int, sharded: bool, jit: bool = False) -> None:
  for seed in range(count):
    Machine(seed, sharded, jit).run()


@pytest.mark.parametrize("sharded", [False, True], ids=["one", "D2"])
def test_interpreted(sharded):
  with Context(INTERPRET=1):
    programs(INTERPRETED, sharded)


@pytest.mark.parametrize("sharded", [False, True], ids=["one", "D2"])
def test_compiled(sharded):
  programs(COMPILED, sharded)


@pytest.mark.parametrize("sharded", [False, True], ids=["one", "D2"])
def test_with_replays(sharded):
  programs(COMPILED // 4, sharded, jit=True)


def test_the_programs_find_a_replay_that_does_not_wait(monkeypatch):
  monkeypatch.setattr(program_order, "settle", lambda since, written, used: None)
  with pytest.raises(AssertionError):
    programs(COMPILED, sharded=False, jit=True)


def test_the_programs_find_a_step_that_leaves_what_it_assigns(monkeypatch):
  monkeypatch.setattr(program_order, "assigned", lambda since: [])
  with pytest.raises(AssertionError):
    programs(COMPILED, sharded=False, jit=True)


def readers_run_before(monkeypatch) -> None:
  """What waits for memory runs ahead of the root that overwrites it, instead of together with it."""
  run = program_order.run

  def one_after_the_other(asked, read=()):
    if not asked:
      run(program_order.readers({id(t): t.uop for t in read}))
    return run(asked, read)

  monkeypatch.setattr(program_order, "run", one_after_the_other)


def values_are_views(monkeypatch) -> None:
  """What simplifies to memory follows it."""
  monkeypatch.setattr(Base, "_new", Base._seen)


def views_are_values(monkeypatch) -> None:
  monkeypatch.setattr(Base, "_seen", Base._new)


def effects_happen_again(monkeypatch) -> None:
  """The value that was read keeps waiting for the writes that it has made."""
  rebase = program_order.rebase
  monkeypatch.setattr(program_order, "rebase", lambda asked, roots, made: asked and rebase(asked, roots, made))


def readers_do_not_wait(monkeypatch) -> None:
  monkeypatch.setattr(program_order, "readers", lambda roots: [])


MUTANTS = (readers_run_before, values_are_views, views_are_values, effects_happen_again, readers_do_not_wait)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_the_programs_find(mutant, monkeypatch):
  mutant(monkeypatch)
  with Context(INTERPRET=1), pytest.raises(AssertionError):
    programs(INTERPRETED, sharded=False)
