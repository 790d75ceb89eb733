"""Random scripts: statements of Python over live tensors, run with this package and with the mirror in numpy
(mirror.py), which must show the same.

A script creates, computes, views, realises and reads in any order; writes to memory that lazy values read; makes
tensors like others; differentiates; steps optimizers; and captures functions. It is a list of source lines, so that one
that fails is shrunk by leaving lines out, and printed as it stands.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import inputs
import mirror
import numpy as np
from mirror import Memory, Mirror, Unclear

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, Mesh, P, ShardError, Sharding
from tinygrad.helpers import Context
from tinygrad.nn.optim import SGD
from tinygrad.sharding.outcomes import STRATEGIES

KIND = Device.DEFAULT.partition(":")[0]
SHAPES = [(), (1,), (4,), (8,), (1, 1), (3, 1), (1, 5), (2, 3), (4, 6), (8, 5), (6, 8), (5, 5), (2, 3, 4), (4, 1, 2)]
LARGEST, MOST = 300, 2000.0  # elements, and how large they may be
FLOAT = "float32"


@dataclass(frozen=True)
class Script:
  lines: tuple[str, ...]
  devices: int = 1
  defer: int = 1
  interpreted: bool = True

  def __str__(self) -> str:
    settings = f"# {self.devices} devices, DEFER={self.defer}, INTERPRET={int(self.interpreted)}"
    return "\n".join([settings, *self.lines])


@dataclass(frozen=True)
class Failure:
  """`kind`: "the values differ", or the name of the exception. `text`: what was shown, and by which line."""

  kind: str
  text: str


# ---------------------------------------------------------------- the two worlds


def minimize(optimizer: Any, loss: Tensor) -> None:
  with Tensor.train():
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def given(values: Any, how: str, where: Any, dtype: str = FLOAT) -> Tensor:
  return inputs.made(np.array(values, dtype), how, where)


def mirrored(values: Any, how: str, where: Any, dtype: str = FLOAT) -> Mirror:
  if how == "replayed":
    Memory.settle()
  return Mirror(np.array(values, dtype), dtype, lazy=how in inputs.LAZY)


def same_refusal(f: Any, *args: Tensor) -> None:
  """Where moves that nobody wrote are refused, a captured function is refused if the function itself is."""

  def refused(g: Callable[..., Any]) -> bool:
    try:
      with Context(RESHARD=0):
        Tensor.realize(*g(*args))
    except ShardError:
      return True
    return False

  assert refused(f) == refused(f.fxn), f"captured: {refused(f)}"


def replayed(f: Callable[..., Any]) -> Callable[..., Any]:
  """The mirror of a capture: arguments and results are realised."""

  def call(*args: Mirror) -> Any:
    for a in args:
      a.realize()
    Memory.settle()
    out = f(*args)
    for t in out:
      t.realize()
    return out

  return call


def world(script: Script, real: bool, shown: list[np.ndarray]) -> dict[str, Any]:
  """The names that a script uses."""
  devices = tuple(f"{KIND}:{i}" for i in range(script.devices))
  others = f"{KIND}:6", f"{KIND}:7"
  common = {
    "D": devices,
    "E": others,
    "Sharding": Sharding,
    "P": P,
    "ONE": Device.DEFAULT,
    "inf": math.inf,
    "nan": math.nan,
  }
  common["show"] = lambda x: shown.append(np.asarray(x))
  if script.devices == 4:
    common["M"] = Mesh(devices, (2, 2), ("a", "b"))
  if real:
    ours = {"Tensor": Tensor, "TinyJit": TinyJit, "Context": Context, "given": given}
    return {**common, **ours, "SGD": SGD, "minimize": minimize, "same_refusal": same_refusal}
  theirs = {"Tensor": Mirror, "TinyJit": replayed, "Context": lambda **_: contextlib.nullcontext(), "given": mirrored}
  theirs["same_refusal"] = lambda *_: None
  return {**common, **theirs, "SGD": mirror.SGD, "minimize": mirror.SGD.minimize}


def run(script: Script, real: bool) -> list[tuple[int, np.ndarray]]:
  """What each line shows: (its number, a value)."""
  shown: list[np.ndarray] = []
  names = world(script, real, shown)
  out: list[tuple[int, np.ndarray]] = []
  for i, line in enumerate(script.lines):
    exec(line, names)
    out += [(i, x) for x in shown]
    shown.clear()
  return out


def attempt(script: Script) -> Failure | None:
  """How a script fails; None if it agrees with the mirror. Raises Unclear if nothing is said about what it does."""
  with np.errstate(all="ignore"):
    wanted = run(script, real=False)
  try:
    with Context(DEFER=script.defer, INTERPRET=int(script.interpreted), TRAINING=0):
      got = run(script, real=True)
  except Exception as e:  # whatever it is, it is told with the script
    return Failure(type(e).__name__, str(e))
  for (i, x), (_, want) in zip(got, wanted, strict=True):
    if not agrees(x, want):
      return Failure("the values differ", f"{script.lines[i]} shows\n{x}\nand should show\n{want}")
  return None


def agrees(x: np.ndarray, want: np.ndarray) -> bool:
  if x.shape != want.shape:
    return False
  scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
  tolerance = 0 if want.dtype.kind in "iu" else 1e-4 * scale
  return np.allclose(x.astype(np.float64), want.astype(np.float64), rtol=0, atol=tolerance, equal_nan=True)


# ---------------------------------------------------------------- drawing one


class Writer:
  """Writes a script from a seed, with the mirror's values at hand."""

  def __init__(self, seed: int, steps: int, interpreted: bool) -> None:
    self.rng = random.Random(seed)
    devices = self.rng.choice((1, 1, 2, 4, 4, 3))
    self.base = Script((), devices, self.rng.choice((0, 1, 1)), interpreted)
    self.lines: list[str] = []
    self.shown: list[np.ndarray] = []
    self.names = world(self.base, False, self.shown)
    self.numbers = itertools.count()
    self.whole = self.rng.random() < 0.6  # values are whole numbers
    self.optimizers: list[str] = []
    self.leaves: list[str] = []
    self.captures = False  # these lines are of a function that is captured: each replay would draw other numbers
    Mirror.manual_seed(seed)
    self.attempt(f"Tensor.manual_seed({seed})")
    for _ in range(self.rng.randint(1, 3)):
      self.until(self.input)
    for _ in range(steps):
      self.until(self.step)
    last = self.rng.sample(self.live, min(len(self.live), 6))
    if self.rng.random() < 0.5:
      self.attempt(f"Tensor.realize({', '.join(last)})")
    for t in (*last, *[n for n in self.names if n[0] == "p" and isinstance(self.names[n], Mirror)]):
      self.attempt(f"show({t}.numpy())")

  @property
  def script(self) -> Script:
    return Script(tuple(self.lines), self.base.devices, self.base.defer, self.base.interpreted)

  # ---- lines

  @property
  def live(self) -> list[str]:
    return [n for n, t in self.names.items() if n[0] == "t" and isinstance(t, Mirror) and not t.stale]

  def __getitem__(self, name: str) -> Mirror:
    value: Mirror = self.names[name]
    return value

  def name(self) -> str:
    return f"t{next(self.numbers)}"

  def until(self, f: Callable[[], bool]) -> None:
    while not f():
      pass

  def attempt(self, line: str) -> bool:
    """Adds the line, if the mirror knows what it does and the new values are neither too many nor too large."""
    before = set(self.names)
    with np.errstate(all="ignore"):
      try:
        exec(line, self.names)
        new = [n for n in self.names.keys() - before if isinstance(self.names[n], Mirror)]
        fits = all(self.fits(self[n].value) for n in new)
      except Unclear:
        fits, new = False, []
    if not fits:
      for n in new:
        del self.names[n]
      return False
    self.lines.append(line)
    return True

  def fits(self, x: np.ndarray) -> bool:
    return x.size <= LARGEST and bool(np.isfinite(x).all()) and float(np.abs(x).max(initial=0)) <= MOST

  def pick(self, wanted: Callable[[Mirror], bool] = lambda t: True) -> str | None:
    """A live tensor, rather a late one."""
    found = [n for n in self.live if wanted(self[n])]
    if not found:
      return None
    return found[-1] if self.rng.random() < 0.4 else self.rng.choice(found)

  def step(self) -> bool:
    (kind,) = self.rng.choices(list(STEPS), list(STEPS.values()))
    return kind(self)

  # ---- inputs

  def array(self, shape: tuple[int, ...]) -> list[Any]:
    size = math.prod(shape)
    values = [self.rng.randint(-3, 4) if self.whole else round(self.rng.uniform(-2, 2), 3) for _ in range(size)]
    out: list[Any] = np.array(values, np.float64).reshape(shape).tolist()
    return out

  def where(self, ndim: int) -> str:
    """A placement, as it is written."""
    rng, n = self.rng, self.base.devices
    if n == 1 or rng.random() < 0.3:
      return "ONE"
    if n == 4 and rng.random() < 0.3:
      axes = rng.sample(["'a'", "'b'", *["None"] * ndim], ndim)
      return f"Sharding(M, P({', '.join(axes)}))"
    return f"Sharding(D, {rng.choice([None, *range(ndim)])})"

  def given(self, shape: tuple[int, ...]) -> str:
    ways = list(inputs.ways(np.zeros(shape)))
    return f"given({self.array(shape)}, {self.rng.choice(ways)!r}, {self.where(len(shape))})"

  def input(self) -> bool:
    rng = self.rng
    shape = rng.choice(SHAPES)
    made = [self.given(shape)] * 3
    made.append(f"Tensor.full({shape}, {rng.randint(-2, 3)}., device={self.where(len(shape))})")
    made.append(f"Tensor.ones(*{shape}, device={self.where(len(shape))})")
    if not self.whole:
      made.append(f"Tensor.rand(*{shape}, device={self.where(len(shape))})")
    if len(shape) == 1:
      made.append(f"Tensor.arange(0, {shape[0]}, dtype='float32', device={self.where(1)})")
    self.leaves.append(self.name())
    return self.attempt(f"{self.leaves[-1]} = {rng.choice(made)}")

  # ---- computing

  def other(self, x: str) -> str:
    """An operand for x: a tensor that broadcasts with it, or a number."""
    shape = self[x].shape
    wide = [n for n in self.live if broadcasts(self[n].shape, shape)]
    if wide and self.rng.random() < 0.7:
      return self.rng.choice(wide)
    return str(self.rng.choice((-2, -1, 1, 2, 3) if self.whole else (0.3, -0.7, 1.5, 2)))

  def binary(self) -> bool:
    if (x := self.pick()) is None:
      return False
    y, op = self.other(x), self.rng.choice("++-**m/")
    right = f"{x}.maximum({y})" if op == "m" else f"{x} / {self.rng.choice((2, -4))}" if op == "/" else f"{x} {op} {y}"
    return self.attempt(f"{self.name()} = {right}")

  def unary(self) -> bool:
    if (x := self.pick()) is None:
      return False
    return self.attempt(f"{self.name()} = {self.rng.choice((f'-{x}', f'{x}.relu()', f'{x}.square()', f'{x}.clone()'))}")

  def reduce(self) -> bool:
    if (x := self.pick()) is None:
      return False
    axis = self.rng.choice([None, *range(self[x].ndim)])
    op = self.rng.choice(("sum", "sum", "sum", "max", "max", "min", "mean"))
    keep = ", keepdim=True" if axis is not None and self.rng.random() < 0.4 else ""
    return self.attempt(f"{self.name()} = {x}.{op}({'' if axis is None else axis}{keep})")

  def matmul(self) -> bool:
    x = self.pick(lambda t: t.ndim == 2)
    if x is None:
      return False
    n = self[x].shape[1]
    y = self.pick(lambda t: t.ndim == 2 and t.shape[0] == n)
    if y is None or self.rng.random() < 0.5:
      y = self.name()
      self.attempt(f"{y} = {self.given((n, self.rng.choice((1, 3, 4, 8, 15))))}")
    return self.attempt(f"{self.name()} = {x} @ {y}")

  def scan(self) -> bool:
    x = self.pick(lambda t: t.ndim > 0)
    return x is not None and self.attempt(f"{self.name()} = {x}.cumsum({self.rng.randrange(self[x].ndim)})")

  def cat(self) -> bool:
    x = self.pick(lambda t: t.ndim > 0)
    if x is None:
      return False
    y = self.pick(lambda t: t.shape == self[x].shape)
    return self.attempt(f"{self.name()} = {x}.cat({y}, dim={self.rng.randrange(self[x].ndim)})")

  # ---- views and places

  def view(self) -> bool:
    if (x := self.pick()) is None:
      return False
    rng, shape = self.rng, self[x].shape
    found = [f"{x}.detach()", f"{x}.reshape({', '.join(map(str, self.another_shape(shape)))})"]
    if shape:
      order = rng.sample(range(len(shape)), len(shape))
      found += [
        f"{x}[{self.index(shape)}]",
        f"{x}.permute({str(order)[1:-1]})",
        f"{x}.flip({rng.randrange(len(shape))})",
      ]
    if 1 in shape:
      found.append(f"{x}.expand({', '.join(str(rng.randint(1, 4) if n == 1 else n) for n in shape)})")
    return self.attempt(f"{self.name()} = {rng.choice(found)}")

  def another_shape(self, shape: tuple[int, ...]) -> list[int]:
    """A shape of as many elements."""
    size, out = math.prod(shape), []
    while size > 1 and len(out) < 2:
      n = self.rng.choice([k for k in range(1, size + 1) if size % k == 0])
      out.append(n)
      size //= n
    out.append(size)
    if self.rng.random() < 0.3:
      out.insert(0, 1)
    return out

  def index(self, shape: tuple[int, ...]) -> str:
    """A basic index: slices and numbers of some leading dims."""
    out = []
    for n in shape[: self.rng.randint(1, len(shape))]:
      a = self.rng.randrange(n)
      b = self.rng.randint(a + 1, n)
      out.append(self.rng.choice((f"{a}:{b}", f"{a}:{b}", str(a), ":")))
    return ", ".join(out)

  def place(self) -> bool:
    if (x := self.pick()) is None:
      return False
    rng, ndim = self.rng, self[x].ndim
    found = [f"{x}.contiguous()"]
    if self.base.devices > 1:
      found += [f"{x}.shard(D, {rng.choice([None, *range(ndim)])})"] * 2
    return self.attempt(f"{self.name()} = {rng.choice(found)}")

  # ---- tensors like others

  def like(self) -> bool:
    if (x := self.pick()) is None:
      return False
    k, t = self.rng.randrange(5), self.name()
    if k == 0:  # its content means nothing until it is written
      value = self.pick(lambda y: y.shape == self[x].shape)
      return self.attempt(f"{t} = {x}.empty_like().assign({value})")
    made = ("zeros_like()", "ones_like()", "full_like(3)", "rand_like()")[k - 1]
    return (k != 4 or not (self.whole or self.captures)) and self.attempt(f"{t} = {x}.{made}")

  # ---- memory

  def realize(self) -> bool:
    if (x := self.pick()) is None:
      return False
    y = self.pick()
    return self.attempt(f"{x}.realize({'' if self.rng.random() < 0.7 else y})")

  def read(self) -> bool:
    """Any value in any of the ways in which a host reads."""
    if (x := self.pick()) is None:
      return False
    ways = [f"{x}.numpy()", f"{x}.tolist()"] + [f"{x}.item()"] * 3 * (self[x].at.size == 1)
    if (self[x].value == np.round(self[x].value)).all():  # or rounding would decide what 0 times inf is
      ways.append(f"({x}.sum() {self.rng.choice(('/ 0', '* inf', '* 0', '+ nan', '- inf', '* nan'))}).numpy()")
    return self.attempt(f"show({self.rng.choice(ways)})")

  def assign(self) -> bool:
    x = self.pick(lambda t: t.writable)
    if x is None:
      return False
    shape = self[x].shape
    y = self.pick(lambda t: broadcasts(t.shape, shape)) or str(self.rng.randint(-2, 3))
    return self.attempt(f"{x}.assign({self.rng.choice((y, y, f'{y} + 1', f'{x} + {y}'))})")

  def swap(self) -> bool:
    """Two tensors take each other's values, by way of a value that was computed before."""
    x = self.pick(lambda t: t.writable)
    if x is None:
      return False
    y = self.pick(lambda t: t.writable and t.shape == self[x].shape and t.memory is not self[x].memory)
    if y is None:
      return False
    t = self.name()
    first = f"{t} = {x}{self.rng.choice((' + 10', '.clone()', ' * 2'))}"
    return self.attempt(first) and self.attempt(f"{x}.assign({y} + 20)") and self.attempt(f"{y}.assign({t})")

  def overwrite(self) -> bool:
    x = self.pick(lambda t: t.ndim > 0 and t.writable)
    if x is None:
      return False
    index = self.rng.choice((self.index(self[x].shape), ":"))
    shape = self[x].at[eval(f"np.s_[{index}]")].shape
    y = self.pick(lambda t: broadcasts(t.shape, shape))
    value = str(self.rng.randint(-2, 5)) if y is None or self.rng.random() < 0.4 else y
    return self.attempt(f"{x}[{index}] = {value}")

  # ---- differentiation

  def gradient(self) -> bool:
    x = self.pick(lambda t: t.memory.lazy)
    if x is None:
      return False
    targets = self.rng.sample(self.live, len(self.live))
    weight = self.rng.choice((1, 2, -1))
    return any(self.attempt(f"{self.name()}, = ({x} * {weight}).sum().gradient({t})") for t in targets[:6] if t != x)

  def optimizer(self) -> bool:
    """A step of an optimizer, which is made first where no other has been; it may have several parameters."""
    rng = self.rng
    if not self.optimizers or rng.random() < 0.3:
      chosen = [n for n in self.live if not self[n].memory.lazy and self[n].at.size == self[n].memory.data.size]
      memories = {id(self[n].memory): n for n in chosen if self[n].node is self[n].memory.node}
      params = rng.sample(list(memories.values()), min(len(memories), rng.choice((1, 2, 2))))
      if rng.random() < 0.3:  # a parameter on other devices, with which nothing else can be computed
        params.append(f"p{next(self.numbers)}")
        at = rng.choice(("E[0]", "Sharding(E, 0)", "Sharding(E, None)"))
        self.attempt(f"{params[-1]} = given({self.array((6,))}, 'realized', {at})")
      if not params:
        return False
      name = f"opt{len(self.optimizers)}"
      self.attempt(f"{name} = SGD([{', '.join(params)}], lr={rng.choice((1, 0.5))}, momentum={rng.choice((0.0, 0.5))})")
      self.optimizers.append(name)
    name, loss = rng.choice(self.optimizers), self.name()
    params = [self.name_of(p) for p in self.names[name].params]
    terms = [f"({p} * {self.other(p)}).sum()" if p[0] == "t" else f"{p}.square().sum().to(ONE)" for p in params]
    return self.attempt(f"{loss} = {' + '.join(terms)}") and self.attempt(f"minimize({name}, {loss})")

  def name_of(self, t: Mirror) -> str:
    return next(n for n, v in self.names.items() if v is t)

  # ---- captures

  def jit(self) -> bool:
    """A function is captured and called three times, with fresh inputs and under settings that change."""
    rng = self.rng
    shapes = [rng.choice(SHAPES), rng.choice(SHAPES)]
    with_state = self.pick(lambda t: not t.memory.lazy and t.writable and t.node is t.memory.node)
    inner = Writer.__new__(Writer)
    inner.__dict__.update(self.__dict__)
    inner.lines, inner.names, inner.captures = [], dict(self.names), True
    for n in self.live:
      del inner.names[n]
    args = [self.name(), self.name()]
    inner.leaves = list(args)
    for n, shape in zip(args, shapes):
      inner.names[n] = Mirror(np.array(self.array(shape)), FLOAT)
    for _ in range(rng.randint(1, 5)):
      inner.until(lambda: rng.choice(INSIDE)(inner))
    made = [n for n in inner.live if n not in args and inner[n].memory.lazy] or None
    if made is None:
      return False
    sure = self.name()  # more than a view of an argument
    inner.attempt(f"{sure} = {rng.choice(made)} * 0.5")
    results = [sure, rng.choice(made)] if rng.random() < 0.7 else [sure]
    stateful = with_state is not None and rng.random() < 0.5
    if stateful:
      inner.lines.append(
        f"{with_state}.assign({with_state} * 0.5 + {results[0]}.sum()){rng.choice(('', '.realize()'))}"
      )
    f = f"f{next(self.numbers)}"
    body = "\n  ".join([*inner.lines, f"return {', '.join(results)},"])
    self.attempt(f"@TinyJit\ndef {f}({', '.join(args)}):\n  {body}")
    ways = [(rng.choice(inputs.ways(np.zeros(s))), self.where(len(s))) for s in shapes]

    def values() -> str:
      return ", ".join(f"given({self.array(s)}, {how!r}, {at})" for s, (how, at) in zip(shapes, ways))

    for _ in range(3):
      call = f"{', '.join(self.name() for _ in results)}, = {f}({values()})"
      settings = f"DEFER={rng.choice((0, 1))}, STRATEGY={rng.choice(STRATEGIES)!r}"
      if not self.attempt(f"with Context({settings}): {call}" if rng.random() < 0.3 else call):
        return False
    return stateful or self.attempt(f"same_refusal({f}, {values()})")


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
  return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape[::-1], to[::-1]))


STEPS: dict[Callable[[Writer], bool], int] = {
  Writer.input: 3,
  Writer.binary: 6,
  Writer.unary: 2,
  Writer.reduce: 6,
  Writer.matmul: 2,
  Writer.scan: 1,
  Writer.cat: 1,
  Writer.view: 4,
  Writer.place: 2,
  Writer.like: 3,
  Writer.realize: 4,
  Writer.read: 4,
  Writer.assign: 3,
  Writer.swap: 1,
  Writer.overwrite: 3,
  Writer.gradient: 3,
  Writer.optimizer: 1,
  Writer.jit: 1,
}
INSIDE = (
  *[Writer.binary] * 3, Writer.unary, *[Writer.reduce] * 2, Writer.matmul, Writer.view, Writer.place, Writer.like,
  Writer.gradient, Writer.realize,
)  # fmt: skip
"""What a captured function may hold."""


def written(seed: int, steps: int = 12, interpreted: bool = True) -> Script:
  """The script of a seed."""
  return Writer(seed, steps, interpreted).script


# ---------------------------------------------------------------- shrinking


def smaller(script: Script) -> Iterator[Script]:
  """Scripts with fewer lines, the boldest first."""
  n = len(script.lines)
  for size in (n // 2, n // 4, 2, 1):
    for i in reversed(range(0, n, size or 1)):
      yield Script(script.lines[:i] + script.lines[i + size :], script.devices, script.defer, script.interpreted)


def fails_alike(script: Script, failure: Failure) -> Failure | None:
  """How a part of a script fails, if it does in the same way."""
  try:
    again = attempt(script)
  except (Unclear, NameError, AttributeError, TypeError):  # a line that it needs is gone
    return None
  return again if again is not None and again.kind == failure.kind else None


def shrink(script: Script, failure: Failure, tries: int = 300) -> tuple[Script, Failure]:
  """A part of the script that fails in the same way, none of whose own parts does (or the tries are used up)."""
  candidates = smaller(script)
  for _ in range(tries):
    if (candidate := next(candidates, None)) is None:
      break
    if (again := fails_alike(candidate, failure)) is not None:
      script, failure, candidates = candidate, again, smaller(candidate)
  return script, failure


def check(seed: int, steps: int = 12, interpreted: bool = True) -> None:
  """The script of a seed shows what the mirror does. Raises AssertionError with a small part of it that does not."""
  script = written(seed, steps, interpreted)
  failure = attempt(script)
  if failure is not None:
    script, failure = shrink(script, failure)
    raise AssertionError(f"seed {seed}: {failure.kind}: {failure.text}\n{script}")
