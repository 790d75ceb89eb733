"""Random programs with captured functions and state, beside the interpreter, which runs each line at once.

    python -m extra.fuzz_captured --seconds 600
    PLAN_CACHE=0 CPU_THREADS=1 python -m extra.fuzz_captured --seed 5061 --count 1
    DEV=CL python -m extra.fuzz_captured --device CL

A program is text: functions that are captured (`TinyJit`), each of which reads, writes in parts and at places that
variables say, shifts, exchanges and differentiates state and arguments, adds to gradients, uses and empties them, and
draws random numbers; and a main part, which calls them again and again with new tensors, results of earlier calls,
views, the same tensor twice or the state itself, with other values of variables, and which does the same between the
calls, replaces state, keeps what it has computed and takes views, some of it again with other numbers. It is run on one
device or cut over up to four, in float32, float64, float16 or bfloat16; whatever memory it gets, and scratch memory, is
not a number before. The oracle runs the same text with nothing captured, in float64 on one device of the interpreter,
and realises every line before the next. After each call, or at the end, everything that has a name must be what it is
there. Programs with the seeds that follow --seed run until the time is over; each that fails is printed, with as few
lines as it takes (--whole: all). Exit status: 0 if all agreed, else 1.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import random
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from extra.fuzz_programs import POISONED, options, poison, seeds
from tinygrad import Context, Device, Tensor, TinyJit, Variable, dtypes, nn, scan
from tinygrad.device import Mesh, P
from tinygrad.dtype import to_dtype, to_numpy_dtype
from tinygrad.engine.errors import JitError
from tinygrad.helpers import PROCESS
from tinygrad.nn.state import get_state_dict
from tinygrad.runtime import cpu
from tinygrad.transforms.step_gradients import UNKEPT

# of a value's greatest element, after one call
ROUGH = {"float64": 1e-6, "float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}
ROWS, COLUMNS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 128), (1, 3, 8, 16, 31, 32, 64, 65, 100, 128, 192)
LENGTHS = (8, 12, 33, 64, 100)  # of caches
LARGEST = 1e3  # number that is compared
SMALL = 0.25  # what smaller numbers are measured by: sums of which terms cancel are no better than these
HELD = 1 << 22  # bytes of fresh memory at most that is filled: more is seldom, and takes its time

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Script:
  """A program: what makes its state, each function's head and lines, and the main part."""

  dtype: str
  state: tuple[str, ...]
  functions: tuple[tuple[str, tuple[str, ...], str], ...]  # (how it is captured and its head, lines, what it returns)
  main: tuple[str, ...]
  placements: tuple[Any, ...]
  settings: tuple[tuple[str, int], ...]
  each: bool  # whether values are looked at after each call
  again: bool  # run twice, the second time with plans that the disk keeps

  def __str__(self) -> str:
    said = (
      f"# {self.dtype} over {self.placements}, {dict(self.settings)}, looks {'often' if self.each else 'at the end'}"
    )
    functions = [f"{head}\n" + "".join(f"  {x}\n" for x in (*lines, last)) for head, lines, last in self.functions]
    return "\n".join([said, *self.state, *functions, *self.main])


class Invalid(Exception):
  """The oracle refuses the program too."""


# ---------------------------------------------------------------- the two worlds


class World:
  """What the names of a program's text mean on devices."""

  exact = False

  def __init__(self, script: Script, device: str) -> None:
    self.script, self.device = script, device
    self.wide = "float64" if script.dtype == "float64" else "float32"
    self.looks: list[dict[str, np.ndarray]] = []
    self.m = types.SimpleNamespace()
    self.names: dict[str, Any] = {
      "m": self.m,
      "Tensor": Tensor,
      "TinyJit": TinyJit,
      "scan": scan,
      "nn": nn,
      "F": self.float(script.dtype),
      "G": self.float(self.wide),
      "dtypes": dtypes,
      "attend": attend,
      **{name: getattr(self, name) for name in ("new", "at", "bind", "grads", "fit", "training", "uniform", "module")},
      **{name: getattr(self, name) for name in ("backward", "clip", "step", "graded")},
    }

  def float(self, name: str) -> Any:
    return to_dtype(name)

  def new(self, seed: int, shape: Shape, dtype: str, where: int, how: str = "memory") -> Tensor:
    """Numbers that the seed draws: of a float type about 1, else below `dtype`'s number of rows."""
    made = np.random.default_rng(seed)
    if dtype.startswith("int"):
      kind, below = dtype.split("<")
      values, d = made.integers(0, int(below), shape), to_dtype(kind)
    else:
      d = self.names[dtype]
      narrow = to_dtype(self.script.dtype if dtype == "F" else self.wide)
      values = made.standard_normal(shape).astype(to_numpy_dtype(narrow))
    t = self.at(Tensor(values.astype(to_numpy_dtype(d)), dtype=d, device="PYTHON" if self.exact else None), where)
    return t if how == "lazy" and not self.exact else t.contiguous().realize() if how == "memory" else t.realize()

  def at(self, t: Tensor, where: int) -> Tensor:
    placement = self.script.placements[where]
    if isinstance(placement, str):
      return t.to(placement)
    mesh, axes = placement
    if isinstance(mesh, Mesh):
      return t.shard(mesh, P(*axes[: t.ndim]))
    return t.shard(mesh, axes if axes is None or axes < t.ndim else None)

  def bind(self, name: str, most: int, value: int) -> Any:
    return Variable(name, 0, most).bind(value)

  def grads(self, loss: Callable[..., Tensor], *targets: Tensor) -> Tensor:
    """The first one's gradient."""
    return loss().gradient(*targets)[0]

  def fit(self, optimizer: Any, loss: Callable[[], Tensor]) -> None:
    with Tensor.train():
      optimizer.zero_grad()
      loss().backward()
      optimizer.step()

  def backward(self, loss: Callable[[], Tensor]) -> None:
    loss().backward()

  def clip(self, optimizer: Any) -> None:
    if any(p.grad is not None for p in optimizer.params):
      nn.utils.clip_grad_norm_(optimizer.params, 1.0)

  def step(self, optimizer: Any) -> None:
    if all(p.grad is not None for p in optimizer.params):
      with Tensor.train():
        optimizer.step()

  def graded(self, p: Tensor) -> Tensor:
    return p.detach() * 0 if p.grad is None else p.grad.detach()

  def training(self, f: Callable[[], Tensor]) -> Tensor:
    with Tensor.train():
      return f()

  def module(self, made: Any, where: int) -> Any:
    """Its weights in the program's type, at a place."""
    for t in get_state_dict(made).values():
      moved = self.at(t.to("PYTHON") if self.exact else t, where)
      kind = self.names["F"] if dtypes.is_float(t.dtype) else t.dtype
      t.replace(moved.cast(kind).contiguous().realize())
    return made

  def uniform(self, *shape: int) -> Tensor:
    return self.at(Tensor.rand(*shape, dtype=dtypes.float32).cast(self.names["F"]), 0)

  def named(self) -> dict[str, Tensor]:
    """All that has a name, and gradients."""
    found = get_state_dict({k: v for k, v in {**vars(self.m), **self.names}.items() if is_shown(k)})
    for k, p in enumerate(self.m.opt.params if hasattr(self.m, "opt") else ()):
      if p._grad is not None:
        found[f"gradient{k}"] = p._grad
    return {k: t for k, t in found.items() if not k.endswith(".lr")}

  def look(self) -> None:
    self.looks.append({k: UNKEPT if t is UNKEPT else values(t) for k, t in self.named().items()})

  def text(self, line: str) -> list[str]:
    return [line]

  def run(self, before: Callable[[], None]) -> None:
    """All of it; `before` each line of the main part."""
    for line in self.script.state:
      exec(line, self.names)
    for head, lines, last in self.script.functions:
      body = [f"  {x}" for line in lines for x in self.text(line)]
      exec("\n".join([self.head(head), *body, f"  {last}"]), self.names)
    for line in self.script.main:
      before()
      for x in self.text(line):
        exec(x, self.names)
      if self.script.each and "# call" in line:
        self.look()
    self.look()

  def head(self, head: str) -> str:
    return head


class Exact(World):
  """The oracle: in float64, and each line at once. `seen`: what the devices showed at each look; state goes on from
  that, so that what a call adds to an error is compared."""

  exact = True

  def __init__(self, script: Script, seen: Sequence[dict[str, np.ndarray]]) -> None:
    super().__init__(script, "PYTHON")
    self.seen, self.faults = seen, list[str]()
    self.names.update(now=self.now, settle=self.settle, given=self.given)

  def float(self, name: str) -> Any:
    return dtypes.float64

  def at(self, t: Tensor, where: int) -> Tensor:
    return t.to("PYTHON")

  def bind(self, name: str, most: int, value: int) -> Any:
    return value

  def head(self, head: str) -> str:
    return "@given\n" + head.split("\n")[-1]

  def given(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """f, whose arguments are realised first, as those of what is captured are."""

    def call(*args: Any) -> Any:
      Tensor.realize(*[x for x in args if isinstance(x, Tensor)])
      return f(*args)

    return call

  def now(self, t: Tensor) -> Tensor:
    """A value, computed."""
    return t.clone().realize()

  def settle(self) -> None:
    """What has been assigned, is done."""
    if found := list(self.named().values()):
      Tensor.realize(*found)

  def text(self, line: str) -> list[str]:
    name, is_value, _ = line.partition(" = ")
    if is_value and name.isidentifier() and "# call" not in line and "# view" not in line:
      return [line, f"{name} = now({name})"]
    return [line, "settle()"]

  def look(self) -> None:
    super().look()
    if len(self.looks) > len(self.seen):  # it has failed there
      return
    if not self.faults and not all(
      np.abs(x).max(initial=0) <= LARGEST for x in self.looks[-1].values() if x.dtype.kind == "f"
    ):
      raise Invalid("numbers grow")
    mine, theirs = self.looks[-1], self.seen[len(self.looks) - 1]
    rough = ROUGH[self.script.dtype] * (1 if self.script.each else 20)
    if more := [k for k in theirs if k.startswith("gradient") and k not in mine]:
      self.faults.append(f"look {len(self.looks)}: {more} should not be")
    for k, x in mine.items():
      if theirs.get(k) is UNKEPT:
        continue
      self.faults += [f"look {len(self.looks)}: {k} {why}" for why in differs(theirs.get(k), x, rough)]
    for k, t in self.named().items():
      if is_memory(t) and k in theirs and theirs[k] is not UNKEPT and theirs[k].shape == t.shape:
        t.assign(Tensor(theirs[k].astype(to_numpy_dtype(t.dtype)), device="PYTHON")).realize()


def is_shown(name: str) -> bool:
  return name == "opt" or name == "bn" or (name[0] in "abrsvwxi" and name[1:].isdigit())


def is_memory(t: Tensor) -> bool:
  return t.uop.op.name == "BUFFER" and t.follows


def values(t: Tensor) -> np.ndarray:
  x = t.numpy()
  return x.astype(np.float64) if x.dtype.kind not in "iub" else x


def differs(got: np.ndarray | None, want: np.ndarray, rough: float) -> Iterator[str]:
  if got is None or got.shape != want.shape:
    yield f"is {None if got is None else got.shape}, not {want.shape}"
  elif want.dtype.kind in "iub":
    if (wrong := int((got != want).sum())) > 0:
      yield f"has {wrong} wrong whole numbers of {want.size}"
  else:
    error = float(np.abs(got - want).max(initial=0)) / max(float(np.abs(want).max(initial=0)), SMALL)
    if not error <= rough:
      where = np.argwhere(~(np.abs(got - want) <= rough * max(np.abs(want).max(), SMALL)))
      yield f"is {error:.1e} off, at {len(where)} of {want.size} from {where[0].tolist() if len(where) else '?'} on"


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
  """(r, c), (n, c), (n, c) -> (r, c), in heads."""
  split = [x.reshape(x.shape[0], heads, -1).transpose(0, 1) for x in (q, k, v)]
  scores = split[0] @ split[1].transpose(1, 2) * (q.shape[1] / heads) ** -0.5
  return (scores.softmax(-1) @ split[2]).transpose(0, 1).reshape(q.shape[0], q.shape[1])


# ---------------------------------------------------------------- what is written


@dataclass(frozen=True)
class Name:
  text: str
  shape: Shape
  kind: str  # F, G or I<n, whose numbers are below n
  what: str  # state, memory, value or view


@dataclass(frozen=True)
class Function:
  number: int
  inputs: list[Shape]
  symbolic: bool
  results: list[Name]
  text: tuple[str, tuple[str, ...], str]


class Writer:
  """Draws a program."""

  def __init__(self, seed: int, device: str, devices: int) -> None:
    self.rng = random.Random(seed)
    self.seeds, self.numbers = itertools.count(seed * 1000 + 1), itertools.count()
    self.placements = self.drawn_placements(device, devices)
    self.r, self.c, self.d = self.pick(*ROWS), self.pick(*COLUMNS), self.pick(*COLUMNS)
    self.length, self.chunk = self.pick(*LENGTHS), self.pick(1, 1, 2, self.pick(3, 4, 8))
    self.most = self.length - self.chunk  # of the variable n
    self.scope: list[Name] = []
    self.earlier: list[tuple[str, list[Name]]] = []  # lines that are not captured, and what they name
    self.symbolic, self.captured = False, False
    self.returned = set[str]()  # names

  def pick(self, *xs: Any) -> Any:
    return self.rng.choice(xs)

  def chance(self, p: float) -> bool:
    return self.rng.random() < p

  def drawn_placements(self, device: str, devices: int) -> tuple[Any, ...]:
    if devices == 1:
      return (device,)
    names = tuple(f"{device}:{i}" for i in range(devices))
    out: list[Any] = [(names, None), (names, 0), (names, 1)]
    if devices == 4:
      mesh = Mesh(names, (2, 2), ("a", "b"))
      out += [(mesh, ("a", "b")), (mesh, ("b",)), (mesh, (None, "a")), (mesh, (("a", "b"),))]
    return tuple(self.rng.sample(out, 3))

  def place(self) -> int:
    return self.rng.randrange(len(self.placements))

  # ---- expressions

  def names(self, test: Callable[[Name], bool]) -> list[Name]:
    return [x for x in self.scope if test(x)]

  def read(self, x: Name) -> str:
    return x.text if x.kind == "F" else f"{x.text}.cast(F)" + (f" * {1 / int(x.kind[2:])}" if x.kind[0] == "I" else "")

  def leaf(self, shape: Shape) -> str:
    if self.chance(0.03):
      return f"uniform{shape}"
    if same := self.names(lambda x: x.shape == shape):
      x = self.pick(*same)
      return f"({self.read(x)})" if x.kind[0] == "I" else self.read(x)
    if len(shape) == 2 and (turned := self.names(lambda x: x.shape == shape[::-1] and x.kind == "F")):
      return f"{self.pick(*turned).text}.T"
    larger = self.names(
      lambda x: len(x.shape) == len(shape) and x.kind == "F" and all(a >= b for a, b in zip(x.shape, shape))
    )
    if larger:
      x = self.pick(*larger)
      begins = [self.rng.randint(0, a - b) for a, b in zip(x.shape, shape)]
      return f"{x.text}[{', '.join(f'{i}:{i + n}' for i, n in zip(begins, shape))}]"
    if len(shape) == 1 and (
      rows := self.names(lambda x: len(x.shape) == 2 and x.shape[1] == shape[0] and x.kind == "F")
    ):
      x = self.pick(*rows)
      return f"{x.text}[{self.rng.randrange(x.shape[0])}]"
    x = self.pick(*self.names(lambda x: len(x.shape) == 2 and x.kind == "F"))
    one = f"{x.text}[:1, :1]" if len(shape) == 2 else f"{x.text}[0, :1]"
    return f"{one}.expand{shape}"

  def expr(self, shape: Shape, depth: int) -> str:
    if depth <= 0 or self.chance(0.15):
      return self.leaf(shape)
    forms = (self.arithmetic, self.arithmetic, self.moved) + (
      (self.product, self.product, self.of_rows) if len(shape) == 2 else (self.reduced, self.reduced)
    )
    if self.symbolic:
      forms = (*forms, self.of_cache, self.of_cache)
    return self.pick(*forms)(shape, depth - 1)

  def arithmetic(self, shape: Shape, depth: int) -> str:
    a, b = self.expr(shape, depth), self.expr(shape, depth - self.pick(0, 1, 2))
    return self.pick(
      f"({a} * 0.5 + {b})",
      f"({a}).tanh()",
      f"({a}).maximum({b})",
      f"(({a}) > ({b})).where({a}, {b})",
      f"(({a}).tanh() * {b})",
      f"({a} - {b} * 0.3)",
      f"({a}).relu()",
      f"({a}).contiguous()",
      f"({a}).detach()",
      f"at({a}, {self.place()})",
      f"({a}).tanh().cast(G).sin().cast(F)",
    )

  def moved(self, shape: Shape, depth: int) -> str:
    n, a = shape[0], self.expr(shape, depth)
    i = self.rng.randint(0, n)
    forms = [f"({a}).flip(0)", f"({a}).roll({i}, 0)", f"({a})[{i}:].cat(({a})[:{i}])"]
    if len(shape) == 2:
      forms += [
        f"({a}).pad(((1, 0), (0, 0)))[:-1]",
        f"({a}).reshape(-1).reshape{shape}",
        f"({a})[:, ::2].cat(({a})[:, 1::2], dim=1)",
      ]
      if index := self.names(lambda x: x.kind == f"I<{n}" and x.shape == (n,)):
        forms += [f"({a})[{self.pick(*index).text}]"] * 3
    return self.pick(*forms)

  def product(self, shape: Shape, depth: int) -> str:
    k = self.pick(self.r, self.c, self.d, self.length)
    return f"(({self.expr((shape[0], k), depth)}) @ ({self.expr((k, shape[1]), depth)}) * {k**-0.5:.4f})"

  def of_rows(self, shape: Shape, depth: int) -> str:
    a = self.expr(shape, depth)
    axis = self.pick(0, 1)
    return self.pick(
      f"({a}).softmax({axis})",
      f"(({a}) - ({a}).detach().max({axis}, keepdim=True))",
      f"(({a}) - ({a}).mean({axis}, keepdim=True))",
      f"(({a}) * (({a}).square().mean({axis}, keepdim=True) + 0.1).rsqrt())",
      f"(({a}).cumsum({axis}) * {1 / shape[axis]:.4f})",
      f"(({a}) * 0.5 + {self.expr((shape[1],), depth)})",
    )

  def reduced(self, shape: Shape, depth: int) -> str:
    n = self.pick(self.r, self.d, self.length)
    a = self.expr((n, shape[0]), depth)
    return self.pick(
      f"(({a}).sum(0) * {n**-0.5:.4f})", f"({a}).detach().max(0)", f"({a})[{self.rng.randrange(n)}]", f"({a}).mean(0)"
    )

  def of_cache(self, shape: Shape, depth: int) -> str:
    """What depends on the variable n."""
    caches = self.names(lambda x: x.what == "state" and x.shape == (self.length, shape[-1]) and x.kind == "F")
    rows = self.names(lambda x: len(x.shape) == 2 and x.shape[0] == self.length and x.kind == "F")
    if not caches:
      return f"({self.pick(*rows).text}[n, :1].expand{shape} * 0.5 + {self.leaf(shape)})" if rows else self.leaf(shape)
    x, a = self.pick(*caches).text, self.expr(shape, depth)
    if len(shape) == 1:
      return self.pick(
        f"{x}[n]",
        f"{x}[:n + 1].mean(0)",
        f"({x}[:n + 1].detach().max(0) + {a})",
        f"({x}[n:n + {self.chunk}].sum(0) * 0.5)",
      )
    heads = self.pick(*[h for h in (1, 2, 4) if shape[1] % h == 0])
    forms = [
      f"(({a}) @ {x}[:n + 1].T * {shape[1] ** -0.5:.4f}).softmax(-1) @ {x}[:n + 1]",
      f"attend({a}, {x}[:n + {self.chunk}], {x}[:n + {self.chunk}], {heads})",
      f"(({a}) + {x}[n])",
      f"(({a}) * (at(Tensor.arange({shape[0]}), {self.place()}) <= n).reshape(-1, 1).cast(F))",
      f"({x}[:n + 1].mean(0, keepdim=True) + {a})",
    ]
    return f"({self.pick(*forms)})"

  # ---- lines

  def fresh(self, letter: str) -> str:
    return f"{letter}{next(self.numbers)}"

  def target(self) -> Name | None:
    found = self.names(lambda x: x.what in ("state", "memory", "view"))
    return self.pick(*found) if found else None

  def cast(self, x: Name, text: str) -> str:
    """A value as it is written to x."""
    return text if x.kind == "F" else f"({text}).cast(G)"

  def lines(self) -> list[str]:
    kinds = (
      self.a_value,
      self.a_value,
      self.a_view,
      self.assigned,
      self.assigned,
      self.added,
      self.in_part,
      self.in_part,
      self.shifted,
      self.exchanged,
      self.descent,
      self.counted,
    )
    if self.symbolic:
      kinds = (*kinds, self.at_place, self.at_place, self.at_place)
    if self.captured:
      kinds = (*kinds, self.modules, self.gradients, self.scanned, self.realized)
    return list(self.pick(*kinds)())

  def a_value(self) -> Iterator[str]:
    shape = self.pick((self.r, self.c), (self.r, self.d), (self.c,), (self.length, self.c))
    name = self.fresh("v")
    yield f"{name} = {self.expr(shape, 3)} * 1"
    self.scope.append(Name(name, shape, "F", "value"))

  def a_view(self) -> Iterator[str]:
    """Of memory, which goes on to be the same."""
    found = self.names(lambda x: x.what in ("state", "memory") and len(x.shape) == 2 and x.kind != "I")
    if found:
      x, name = self.pick(*found), self.fresh("w")
      n, k = x.shape
      i = self.rng.randrange(n)
      j = self.rng.randint(i + 1, n)
      text, shape = self.pick(
        (f"[{i}:{j}]", (j - i, k)), (".T", (k, n)), (".flip(1)", (n, k)), (f"[{i}]", (k,)), (".reshape(-1)", (n * k,))
      )
      yield f"{name} = {x.text}{text}  # view"
      self.scope.append(Name(name, shape, x.kind, "view"))

  def assigned(self) -> Iterator[str]:
    x = self.target()
    if x is not None and x.kind[0] != "I":
      yield f"{x.text}.assign({self.cast(x, self.expr(x.shape, 3))})"

  def added(self) -> Iterator[str]:
    x = self.target()
    if x is not None and x.kind[0] != "I":
      yield self.pick(f"{x.text} *= 0.75", f"{x.text} += {self.cast(x, f'({self.expr(x.shape, 2)}) * 0.25')}")

  def in_part(self) -> Iterator[str]:
    x = self.target()
    if x is None or x.kind[0] == "I":
      return
    n = x.shape[0]
    i = self.rng.randrange(n)
    j = self.rng.randint(i + 1, n)
    parts = [(f"[{i}:{j}]", (j - i, *x.shape[1:])), ("[::2]", ((n + 1) // 2, *x.shape[1:]))]
    if len(x.shape) == 2:
      k = x.shape[1]
      a = self.rng.randrange(k)
      b = self.rng.randint(a + 1, k)
      parts += [
        (f"[{i}]", (k,)),
        (f"[:, {a}:{b}]", (n, b - a)),
        (f"[{i}:{j}, {a}:{b}]", (j - i, b - a)),
        (f"[:, {a}]", (n,)),
      ]
    part, shape = self.pick(*parts)
    value = self.cast(x, self.expr(shape, 2))
    yield f"{x.text}{part} = {value}"

  def at_place(self) -> Iterator[str]:
    """Written to a cache where the variable says."""
    x = self.pick(*self.names(lambda x: x.what == "state" and len(x.shape) == 2 and x.shape[0] == self.length))
    part, shape = self.pick((f"[n:n + {self.chunk}]", (self.chunk, x.shape[1])), ("[n]", (x.shape[1],)))
    yield f"{x.text}{part} = {self.cast(x, self.expr(shape, 2))}"

  def shifted(self) -> Iterator[str]:
    found = self.names(
      lambda x: x.what in ("state", "memory") and len(x.shape) == 2 and x.shape[0] > 1 and x.kind[0] != "I"
    )
    if found:
      x = self.pick(*found)
      row = f"{self.cast(x, self.expr((x.shape[1],), 2))}.reshape(1, -1)"
      yield self.pick(
        f"{x.text}[1:] = {x.text}[:-1]",
        f"{x.text}[:-1] = {x.text}[1:]",
        f"{x.text}.assign({x.text}[1:].cat({row}))",
        f"{x.text}.assign({x.text}.flip(0))",
      )

  def exchanged(self) -> Iterator[str]:
    by_shape: dict[Any, list[Name]] = {}
    for x in self.names(lambda x: x.what in ("state", "memory")):
      by_shape.setdefault((x.shape, x.kind), []).append(x)
    pairs = [xs for xs in by_shape.values() if len(xs) > 1]
    if pairs:
      a, b = self.rng.sample(self.pick(*pairs), 2)
      name = self.fresh("v")
      yield f"{name} = {a.text} * 1"
      yield f"{a.text}.assign({b.text})"
      yield f"{b.text}.assign({name})"

  def descent(self) -> Iterator[str]:
    scope, self.scope = self.scope, self.names(lambda x: x.what != "value")  # gradients flow through those that wait
    name, x = self.fresh("v"), self.expr((self.r, self.c), 2)
    self.scope = scope
    more = self.pick("", ".softmax(-1)", ".tanh()", ".relu()")
    loss = f"(({x}) @ m.s0 * {self.c**-0.5:.4f} + m.s1){more}.square().sum() * {1 / self.r:.4f}"
    yield f"{name} = grads(lambda: {loss}, m.s0, m.s1)"
    self.scope.append(Name(name, (self.c, self.d), "F", "value"))
    if self.chance(0.7):
      yield f"m.s0.assign(m.s0 - {name} * 0.1)"

  def counted(self) -> Iterator[str]:
    x = self.pick(*self.names(lambda x: x.kind[0] == "I"))
    if x.what in ("state", "memory"):
      n = x.kind[2:]
      choices = [
        f"{x.text}.assign(({x.text} * 3 + 1) % {n})",
        f"{x.text}.assign(({x.text} + 1) % {n})",
        f"{x.text}[:1] = {x.text}[-1:]",
      ]
      yield self.pick(*choices)

  def modules(self) -> Iterator[str]:
    if self.chance(0.5):
      name, x = self.fresh("v"), self.expr((self.r, self.c), 2)
      r, c = self.r, self.c
      yield f"{name} = training(lambda: m.bn(({x}).reshape({r}, {c}, 1, 1)).reshape({r}, {c}))"
      self.scope.append(Name(name, (r, c), "F", "value"))
    else:
      x, y = self.expr((self.r, self.c), 2), self.expr((self.r, self.d), 1)
      made = f"({x}) @ m.opt.params[0] * {self.c**-0.5:.4f} + m.opt.params[1]"
      yield f"fit(m.opt, lambda: ({made} - ({y})).square().mean())"

  def gradients(self) -> Iterator[str]:
    """What adds to gradients, reads, uses and empties them."""
    first, name = self.chance(0.4), self.fresh("v")
    if first:
      yield "m.opt.zero_grad()"
    if first or self.chance(0.7):
      x, y = self.expr((self.r, self.c), 2), self.expr((self.r, self.d), 1)
      made = f"({x}) @ m.opt.params[0] * {self.c**-0.5:.4f} + m.opt.params[1]"
      yield f"backward(lambda: ({made} - ({y})).square().mean())"
    if self.chance(0.3):
      yield "clip(m.opt)"
    if self.chance(0.3):
      yield f"{name} = graded(m.opt.params[1]) * 1"
      self.scope.append(Name(name, (self.d,), "F", "value"))
    if self.chance(0.4):
      yield "step(m.opt)"
    if self.chance(0.3):
      yield "m.opt.zero_grad()"

  def replaced(self) -> Iterator[str]:
    """Of state that no function returns: a replay gives a tensor of its own over the same memory."""
    x = self.pick(*self.names(lambda x: x.what == "state" and x.kind == "F" and x.text not in self.returned))
    yield f"{x.text}.replace(({self.expr(x.shape, 1)}).detach() * 1)"

  def scanned(self) -> Iterator[str]:
    name, a, b = self.fresh("v"), self.expr((self.c,), 1), self.expr((self.r, self.c), 2)
    first = self.chance(0.5)
    yield f"{name} = scan(lambda h, x: ((h * 0.5 + x).tanh(), h + x), {a} * 1, {b})[{1 - first}]"
    self.scope.append(Name(name, (self.c,) if first else (self.r, self.c), "F", "value"))

  def realized(self) -> Iterator[str]:
    found = self.names(lambda x: x.what == "value" and x.text[0] == "v")
    if found:
      yield f"{self.pick(*found).text}.realize()"

  # ---- functions and the main part

  def state(self) -> list[str]:
    shapes = {"s0": (self.c, self.d), "s1": (self.d,), "s2": (self.length, self.c), "s3": (self.r, self.c)}
    shapes["s4"] = self.pick(shapes["s2"], shapes["s3"])
    kinds = dict.fromkeys(shapes, "F") | {"s4": self.pick("F", "G"), "i0": f"I<{self.r}", "i1": "I<7"}
    shapes |= {"i0": (self.r,), "i1": (1,)}
    self.scope = [Name(f"m.{k}", shape, kinds[k], "state") for k, shape in shapes.items()]
    out = [self.made(f"m.{k}", shape, kinds[k], "memory") for k, shape in shapes.items()]
    out.append(f"m.bn = module(nn.BatchNorm({self.c}, eps=0.1), {self.place()})")
    out += [self.made("p0", (self.c, self.d), "F", "memory"), self.made("p1", (self.d,), "F", "memory")]
    rate = self.pick("SGD([p0, p1], lr=0.1)", "SGD([p0, p1], lr=0.1, momentum=0.9)", "Adam([p0, p1], lr=0.05, eps=0.5)")
    return [*out, f"m.opt = nn.optim.{rate}"]

  def made(self, name: str, shape: Shape, kind: str, how: str) -> str:
    dtype = kind.replace("I", self.pick("int32", "int64")) if kind[0] == "I" else kind
    return f"{name} = new({next(self.seeds)}, {shape}, {dtype!r}, {self.place()}, {how!r})"

  def function(self, number: int, earlier: list[Function]) -> Function:
    state = self.scope
    inputs = [
      self.pick((self.r, self.c), (self.r, self.d), (self.c,), (self.chunk, self.c))
      for _ in range(self.pick(1, 2, 2, 3))
    ]
    self.symbolic = self.chance(0.6)
    args = [Name(f"x{next(self.numbers)}", shape, "F", "memory") for shape in inputs]
    self.scope = [*state, *args]
    lines: list[str] = []
    self.captured = True
    for _ in range(self.pick(1, 2, 3, 4, 6)):
      if earlier and self.chance(0.2):
        lines += self.nested(self.pick(*earlier))
      lines += self.lines()
    lines += self.a_value()
    results = self.results(args)
    if self.symbolic and self.chance(0.3):
      lines.append("y = m.s2[:n + 1] * 2")
    said = ", ".join([x.text for x in results] + ["y"] * (lines[-1][:1] == "y"))
    heads = "@TinyJit" if self.chance(0.9) else "@TinyJit(prune=True)"
    head = f"{heads}\ndef f{number}({', '.join([x.text for x in args] + ['n'] * self.symbolic)}):"
    made = Function(number, inputs, self.symbolic, results, (head, tuple(lines), f"return ({said},)"))
    self.scope, self.symbolic, self.captured = state, False, False
    return made

  def results(self, args: list[Name]) -> list[Name]:
    values = self.names(lambda x: x.what == "value")
    out = values[-1:] + self.rng.sample(values[:-1], min(len(values) - 1, self.pick(0, 1, 2)))
    if self.chance(0.3):
      out.append(self.pick(*self.names(lambda x: x.what in ("view", "state") and x.kind == "F")))
      self.returned.add(out[-1].text)
    if self.chance(0.15):
      out.append(self.pick(*args))
    return out

  def nested(self, f: Function) -> Iterator[str]:
    if f.symbolic and not self.symbolic:
      return
    name = self.fresh("v")
    given = [f"{self.expr(shape, 1)} * 1" for shape in f.inputs] + ["n"] * f.symbolic
    yield f"{name} = f{f.number}({', '.join(given)})[0]"
    self.scope.append(Name(name, f.results[0].shape, "F", "value"))

  def main(self, functions: list[Function]) -> list[str]:
    out, plain = list[str](), dict.fromkeys(range(len(functions)), 0)
    for shape in sorted({s for f in functions for s in f.inputs}):
      out += self.another(shape)
      if len(shape) == 2 and self.chance(0.5):
        out += self.another((3 * shape[0], shape[1]))
    for _ in range(self.pick(6, 8, 10, 12)):
      for _ in range(self.pick(0, 0, 1, 1, 2)):
        out += self.between()
      out += self.call(self.pick(*functions), plain)
    return out

  def another(self, shape: Shape) -> Iterator[str]:
    name = self.fresh("a")
    how = self.pick("memory", "memory", "realized", "lazy")
    yield self.made(name, shape, "F", how)
    self.scope.append(Name(name, shape, "F", "value" if how == "lazy" else "memory"))

  def call(self, f: Function, plain: dict[int, int]) -> Iterator[str]:
    given: list[str] = []
    # what was captured with state as an argument takes it for that alone: first it has other arguments of this kind
    late = plain[f.number] > 2
    state = aliases = late and len(self.placements) == 1 and self.chance(0.15)
    twice = late and self.chance(0.3)
    for shape in f.inputs:
      fit = [x for x in self.scope if x.shape == shape and x.kind == "F"]
      found, own = [x for x in fit if x.what in ("memory", "value")], [x for x in fit if x.what == "state"]
      fresh = [x for x in found if x.text not in given]
      if aliases and own:
        given.append(self.pick(*own).text)
        aliases = False
      elif not state and (part := self.part(shape)) and self.chance(0.5):
        given.append(part)
      elif not fresh or self.chance(0.3):
        yield from self.another(shape)
        given.append(self.scope[-1].text)
      else:
        given.append(self.pick(*(found if twice and not state else fresh)).text)
    plain[f.number] += not any("[" in x for x in given)
    value = self.pick(0, self.most, *(self.rng.randint(0, self.most) for _ in range(2)))
    name, n = self.fresh("r"), [f"bind('n', {self.most}, {value})"]
    yield f"{name} = f{f.number}({', '.join(given + n * f.symbolic)})  # call"
    for i, x in enumerate(f.results):
      if x.what == "value" and self.chance(0.6):
        yield f"b{name[1:]}{i} = {name}[{i}]  # view"
        self.scope.append(Name(f"b{name[1:]}{i}", x.shape, "F", "memory"))
    if self.chance(0.4):
      yield f"del {name}"

  def part(self, shape: Shape) -> str | None:
    """Some rows of larger memory."""
    found = self.names(lambda x: x.what == "memory" and x.kind == "F" and x.shape[1:] == shape[1:] and x.shape > shape)
    if not found:
      return None
    x = self.pick(*found)
    begin = self.rng.randint(0, x.shape[0] - shape[0])
    return f"{x.text}[{begin}:{begin + shape[0]}]"

  def between(self) -> list[str]:
    """Lines that are not captured, which may come again."""
    scope = list(self.scope)
    lines = self.one_between()
    self.earlier += [(x, [n for n in scope if re.search(rf"\b{n.text}\b", x)]) for x in lines if "#" not in x]
    return lines

  def again(self) -> Iterator[str]:
    """An earlier line with other numbers."""
    found = [line for line, names in self.earlier if all(n in self.scope for n in names)]
    if not found:
      return
    shapes = {x.text: x.shape for x in self.scope}

    def begin(m: re.Match[str]) -> str:
      i = self.rng.randint(0, shapes[m[1]][0] - int(m[3]) + int(m[2])) if m[1] in shapes else int(m[2])
      return f"{m[1]}[{i}:{i + int(m[3]) - int(m[2])}"

    line = re.sub(r"([\w.]+)\[(\d+):(\d+)", begin, self.pick(*found))
    line = re.sub(r"(?<=[*+-] )\d\.\d+\b", lambda m: f"{float(m[0]) * self.rng.uniform(0.5, 1):.3f}", line)
    name, _, value = line.partition(" = ")
    if name.isidentifier() and value:
      old = next((x for x in self.scope if x.text == name), None)
      if old is None or old.what != "value":
        return
      new = self.fresh("v")
      self.scope.append(dataclasses.replace(old, text=new))
      line = f"{new} = {value}"
    yield line

  def one_between(self) -> list[str]:
    """What is done between two calls."""
    match self.rng.randrange(15):
      case 0 | 1:
        return list(self.a_value())
      case 2:
        return list(self.a_view())
      case 3:
        return list(self.assigned())
      case 4:
        return list(self.in_part())
      case 5:
        found = self.names(lambda x: x.text[0] in "abvw")
        if len(found) > 3:
          x = self.pick(*found)
          self.scope.remove(x)
          return [f"del {x.text}"]
      case 6:
        found = self.names(lambda x: x.text[0] in "av")
        if len(found) > 1:
          a = self.pick(*found)
          b = self.pick(*[x for x in found if x.shape == a.shape and x.what == a.what])
          return [f"{a.text}, {b.text} = {b.text}, {a.text}  # view"] if a is not b else []
      case 8 | 9 | 10:
        return list(self.again())
      case 11 | 12 | 13:
        return list(self.gradients())
      case 14:
        return list(self.replaced())
      case _:
        return list(self.exchanged())
    return []


def written(seed: int, device: str = "CPU") -> Script:
  rng = random.Random(seed)
  devices = rng.choice((1, 1, 1, 2, 3, 4))
  w = Writer(seed, device, devices)
  dtype = w.pick("float32", "float32", "float32", "float64", "float16", "bfloat16")
  state = w.state()
  functions: list[Function] = []
  for i in range(w.pick(1, 2, 2, 3)):
    functions.append(w.function(i, functions))
  settings = {
    "PLAN_CACHE": w.pick(0, 0, 1),
    "QUICK_CODE": w.pick(0, 0, 1),
    "CPU_THREADS": w.pick(0, 1, 2),
    "BEAM": int(w.chance(0.01)),
  }
  each = dtype in ("float16", "bfloat16") or w.chance(0.6)
  again = settings["PLAN_CACHE"] == 1 and w.chance(0.5)
  texts = tuple(f.text for f in functions)
  return Script(
    dtype, tuple(state), texts, tuple(w.main(functions)), w.placements, tuple(settings.items()), each, again
  )


# ---------------------------------------------------------------- running


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
  """Fresh memory of processors is not a number."""
  inner = cpu.CPU.alloc

  def alloc(self: Any, nbytes: int) -> Any:
    handle = inner(self, nbytes)
    if type(handle) is cpu.Memory and handle.owner is None and nbytes <= HELD:
      self.synchronize()
      ctypes.memset(handle.address, 0xFF, handle.nbytes)
    return handle

  cpu.CPU.alloc = alloc  # type: ignore[method-assign]
  try:
    yield
  finally:
    cpu.CPU.alloc = inner  # type: ignore[method-assign]


def on_devices(script: Script) -> World:
  first = script.placements[0]
  names = [first] if isinstance(first, str) else first[0].devices if isinstance(first[0], Mesh) else first[0]
  world = World(script, names[0])

  def before() -> None:
    for name in names:
      Device[name].synchronize()  # what is queued has its scratch memory
      poison(Device[name], POISONED >> 4)

  with Context(**dict(script.settings)), poisoned():
    world.run(before)
  return world


def faults(script: Script) -> list[str]:
  """What is wrong with a program, if anything. Raises: Invalid if it is none."""
  gc.collect()  # an earlier program is not to have a part in this one
  problem, looks = "", list[dict[str, np.ndarray]]()
  for _ in range(1 + script.again):
    if script.again:
      PROCESS.forget()
    Tensor.manual_seed(7)
    try:
      looks = on_devices(script).looks
    except Exception as e:
      if isinstance(e, JitError) and "has used this gradient" in str(e):
        raise Invalid(str(e)) from e
      problem = f"{type(e).__name__}: {e}"
      break
  Tensor.manual_seed(7)
  oracle = Exact(script, looks)
  try:
    oracle.run(lambda: None)
  except Exception as e:
    if problem or isinstance(e, Invalid):
      raise Invalid(f"{problem} | {e}") from e
    raise
  return [problem] if problem else oracle.faults


def kind_of(found: list[str]) -> str:
  return found[0].split(":")[0] if found and not found[0].startswith("look") else "values"


def with_part(tree: Any, whole: ast.AST, part: ast.AST) -> Any:
  """The tree with `part` where `whole` stands."""
  if tree is whole:
    return part
  if isinstance(tree, list):
    return [with_part(x, whole, part) for x in tree]
  if not isinstance(tree, ast.AST):
    return tree
  return type(tree)(**{k: with_part(v, whole, part) for k, v in ast.iter_fields(tree)}, lineno=1, col_offset=0)


def simpler(line: str) -> Iterator[str]:
  """The line with a part of an expression in the place of that expression."""
  code, mark, comment = line.partition("  # ")
  tree = ast.parse(code)
  value = getattr(tree.body[0], "value", None)
  for u in ast.walk(value) if isinstance(value, ast.expr) else ():
    parts = [x for x in ast.iter_child_nodes(u) if isinstance(x, ast.expr)]
    shown = u is value and code.startswith("v")  # which stays a value, not a name of another
    for part in parts if isinstance(u, ast.BinOp | ast.Call | ast.Subscript) and not shown else ():
      inner = part.value if isinstance(part, ast.Attribute) and isinstance(u, ast.Call) else part
      yield ast.unparse(with_part(tree, u, inner)) + mark + comment


def shrink(script: Script, found: list[str], seconds: float) -> tuple[Script, list[str]]:
  """With as few lines, and these as short, as fail in the same way."""
  end, smaller = time.monotonic() + seconds, True
  while smaller:
    smaller = False
    for one in candidates(script):
      if time.monotonic() > end:
        return script, found
      with contextlib.suppress(Exception):
        if (again := faults(one)) and kind_of(again) == kind_of(found):
          script, found, smaller = one, again, True
          break
  return script, found


def candidates(script: Script) -> Iterator[Script]:
  for size in (8, 4, 2, 1):
    for i in range(0, len(script.main), size):
      yield dataclasses.replace(script, main=script.main[:i] + script.main[i + size :])
  for k, (head, lines, last) in enumerate(script.functions):
    for i in range(len(lines)):
      for instead in ((), *((x,) for x in simpler(lines[i]))):
        fewer = (head, lines[:i] + instead + lines[i + 1 :], last)
        yield dataclasses.replace(script, functions=(*script.functions[:k], fewer, *script.functions[k + 1 :]))
  for i, line in enumerate(script.main):
    for x in simpler(line):
      yield dataclasses.replace(script, main=(*script.main[:i], x, *script.main[i + 1 :]))
  for i in range(len(script.state)):
    yield dataclasses.replace(script, state=script.state[:i] + script.state[i + 1 :])


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_captured", __doc__, "CPU, CL")
  parser.add_argument("--whole", action="store_true", help="print failing programs as they were drawn")
  asked = parser.parse_args(arguments)
  done = failed = invalid = 0
  for seed in seeds(asked):
    done += 1
    script = written(seed, asked.device)
    try:
      found = faults(script)
    except Invalid as e:
      found, invalid = [], invalid + 1
      if asked.count == 1:
        print(f"{script}\n# no program: {e}")
    if found:
      failed += 1
      if not asked.whole:
        script, found = shrink(script, found, 60)
      print(f"# --seed {seed} --count 1\n{script}\n# {'; '.join(found[:4])}\n", flush=True)
  print(f"{done} programs from --seed {asked.seed} on {asked.device}, {failed} failed, {invalid} are none")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
