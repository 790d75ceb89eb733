"""Programs of extra/fuzz_transforms.py: drawn line by line, and run over numpy meanwhile, so that shapes are known."""

from __future__ import annotations

import copy
import itertools
import random
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from extra.plain_transforms import COLLECTIVES, PLAIN, POLICIES, Course, Talk, Unsure, an_element, leaves, mapped

LARGEST, ELEMENTS = 30.0, 48  # of a value that is computed
MODES = ("called", "apart", "captured", "captured", "donated", "interpreted", "cut")
# x, y, m: floats and bools of one shape, z a number, t of two dims or more, w a matrix; d a dim of x and
# n its length; i, j: indices, k any integers, b bools
OPERATIONS = """
sin({x}) | cos({x}) | tanh({x}) | exp({x} * 0.3) | sigmoid({x}) | relu({x}) | abs({x}) | -{x} | {x} * 0.7 + 0.1
log({x} * {x} + 1.5) | ({x} * {x} + 1) ** 0.5 | {x} * {x} * 0.3 | {x} * {y} * 0.5 | {x} + {y} | {x} - {y}
{x} / (1 + {y} * {y}) | maximum({x}, {y}) | minimum({x}, {y}) | where({m}, {x}, {y}) | where({m}, {x}, 0.0)
where(above({x}, 0.1), log(where(above({x}, 0.1), {x}, 1.0)), {y}) | total({x}) | sum({x}, {d}) | mean({x}, {d})
max({x}, {d}) | min({x}, {d}) | prod({x} * 0.5 + 1, {d}) | var({x}, {d}) | logsumexp({x}, {d}) | softmax({x}, {d})
cumsum({x}, {d}) | cumprod({x} * 0.5 + 1, {d}) | sort({x}, {d}) | flip({x}, {d}) | swap({x}, 0, {d}) | roll({x}, 1, {d})
reshape({x}, (-1,)) | reshape({x}, (-1, {n})) | part({x}, {d}, 1, {n}) | part({x}, {d}, 0, 1) | padded({x}, {d})
at({x}, {d}, {i} % {n}) | at({x}, {d}, {k} % {n}) | cat({x}, {y}, {d}) | stack({x}, {y}, {d}) | {x} @ {w} | tril({t})
{x} @ swap({x}, -1, -2) | along({x}, {d}, argsort({y}, {d})) | scattered({x}, {d}, argsort({y}, {d}), {y})
pick({x}, {i} % {n}, {j} % 2) | pick({x}, {i} % {n}, 0) | conv({x}, {v}) | put({x}, 0, 0.5)
put({x}, 0, {z}) | put({x}, {i} % {n}, 0.5) | put({x}, {k} % {n}, {z}) | smeared({x})
{x} * {z} | any({m}, {d}) | repeated({x}, 2) | real({k}) * 0.3 + {z}
one_hot({k} % 3, 3) * 0.5 | where({b}, {z}, 0.2) | stop_gradient({x}) * {x}
scaled({x}, 0.5, "vjp") | scaled({x}, 2.0, "jvp") | where(above(cumsum({x}, {d}), {y}), {x} * 2, {y})
scattered({x} * 0, {d}, whole({m}) % {n}, {y}) | along({x}, {d}, whole({m}) % {n}) | real({m}) * {x}
above({x}, {y}) | above({x}, 0.2) | ~{b} | argmax({x}, {d}) | argsort({x}, {d}) | {k} * 2 + 1 | {i} + {j}
{k} % 3 | {k} // 2 | cumsum({i}, 0) | whole({m}) | at({i}, 0, {j} % 2) | flip({i}, 0)
noise({q}, {x}.shape) + {x} * 0.5 | where(above(noise({q}, {x}.shape), 0.5), {x}, 0.0)
"""
# of whole numbers, which narrow types hold
EXACT = """
-{x} | {x} * {y} | {x} + {y} | {x} - {y} | where({m}, {x}, {y}) | where({m}, {x}, 0.0) | total({x}) | sum({x}, {d})
where(above({x}, 0.5), {x} * {y}, {y}) | cumsum({x}, {d}) | flip({x}, {d}) | swap({x}, 0, {d}) | roll({x}, 1, {d})
reshape({x}, (-1,)) | reshape({x}, (-1, {n})) | part({x}, {d}, 1, {n}) | part({x}, {d}, 0, 1) | padded({x}, {d})
at({x}, {d}, {i} % {n}) | at({x}, {d}, {k} % {n}) | cat({x}, {y}, {d}) | stack({x}, {y}, {d}) | {x} @ {w} | tril({t})
{x} @ swap({x}, -1, -2) | pick({x}, {i} % {n}, {j} % 2) | pick({x}, {i} % {n}, 0) | conv({x}, {v}) | put({x}, 0, 2.0)
put({x}, 0, {z}) | put({x}, {i} % {n}, -1.0) | put({x}, {k} % {n}, {z}) | smeared({x} * 2) | {x} * {z} | any({m}, {d})
repeated({x}, 2) | real({k}) + {z} | one_hot({k} % 3, 3) | where({b}, {z}, 2.0) | stop_gradient({x}) * {x}
scaled({x}, 3.0, "vjp") | scaled({x}, 2.0, "jvp") | where(above(cumsum({x}, {d}), {y} + 0.5), {x} * 2, {y})
scattered({x} * 0, {d}, whole({m}) % {n}, {y}) | along({x}, {d}, whole({m}) % {n}) | real({m}) * {x}
above({x}, {y} + 0.5) | above({x}, 0.5) | ~{b} | {k} * 2 + 1 | {i} + {j} | {k} % 3 | {k} // 2 | cumsum({i}, 0)
whole({m}) | at({i}, 0, {j} % 2) | flip({i}, 0)
"""
# over the last dim; what narrow types hold are sums of products
WINDOWS = """
pooled({x}, 2, 2, 0, "mean") | pooled({x}, 3, 2, 1, "mean") | pooled({x}, 2, 1, 1, "max") | pooled({x}, 2, 2, 0, "max")
pooled({x}, 3, 2, 1, "max") | strided({x}, 2, 0, 1, {v}) | strided({x}, 2, 1, 1, {v}) | strided({x}, 3, 2, 2, {v})
strided({x}, 1, 2, 2, {v}) | widened({x}, 2, {v}) | widened({x}, 3, {v})
"""
WINDOWED = 500_000  # the first seed whose programs have these, too

Specs = Any  # a structure of arrays, of which shapes and types count
Finish = Callable[["Body", str], str]  # of a function and its first parameter: what it returns


REFUSED = (ValueError, IndexError, TypeError, Unsure)  # by numpy, or the oracle


class Rejected(Exception):
  """A line that cannot be drawn here, or that makes what is too large."""


@dataclass(frozen=True)
class Line:
  name: str
  text: str
  functions: tuple[Function, ...] = ()
  value: Any = None


@dataclass(frozen=True)
class Function:
  name: str
  parameters: tuple[str, ...]
  lines: tuple[Line, ...]
  result: str

  def __str__(self) -> str:
    body = "\n".join([*map(rendered, self.lines), f"return {self.result}"])
    return f"def {self.name}({', '.join(self.parameters)}):\n{textwrap.indent(body, '  ')}"


def rendered(line: Line) -> str:
  return "\n".join([*map(str, line.functions), f"{line.name} = {line.text}"])


@dataclass(frozen=True)
class Around:
  """What stands around a line: how many functions, derivatives; whether one is taken in reverse, or forward; on how
  many devices it is, whom collectives reach, and as what axis; whether random numbers may be drawn, and whether it is
  within a `shard_map`."""

  depth: int = 0
  differences: int = 0
  reverse: bool = False
  forward: bool = False
  axis: tuple[str, int] | None = None
  draws: bool = True
  devices: bool = False


def fits(test: str, x: np.ndarray) -> bool:
  """Whether it is of a kind, and has so many dims if these are said: "f0"."""
  return bool(x.dtype.kind == test[0] and (len(test) == 1 or x.ndim == int(test[1])))


class Body:
  """A function that is being drawn: its lines are run over numpy as they come, so that shapes are known."""

  def __init__(self, maker: Program, outer: Body | None, around: Around, closed: bool = False) -> None:
    self.maker, self.rng, self.around = maker, maker.rng, around
    self.space: dict[str, Any] = dict(maker.space if outer is None or closed else outer.space)
    self.values: list[tuple[str, Any]] = list(maker.outside if outer is None or closed else outer.values)
    self.lines: list[Line] = []

  def know(self, name: str, value: Any) -> None:
    self.space[name] = value
    self.values += [(path, np.asarray(x)) for path, x in leaves(value, name)]

  def add(self, text: str, *functions: Function) -> str:
    """A line, and the name of its value. Raises: Rejected for what numpy refuses, and large values."""
    try:
      for f in functions:
        exec(str(f), self.space)
      value = eval(text, self.space)
    except REFUSED as e:
      raise Rejected(str(e)) from e
    for _, x in leaves(value):
      large = np.abs(np.asarray(x, float)).max(initial=0)
      if not (self.maker.least <= np.size(x) <= ELEMENTS and np.all(np.isfinite(x)) and large < LARGEST):
        raise Rejected("large")
    name = self.maker.name("v")
    self.lines.append(Line(name, text, functions, value))
    self.know(name, value)
    return name

  def some(self, test: Callable[[Any], bool]) -> tuple[str, Any]:
    """One of the values for which that holds, rather a late one."""
    if not (found := [v for v in self.values if test(v[1])]):
      raise Rejected("no such value")
    return found[-1 - min(int(self.rng.expovariate(0.35)), len(found) - 1)]

  def floats(self, test: Callable[[Any], bool] = lambda x: True) -> tuple[str, Any]:
    return self.some(lambda x: x.dtype.kind == "f" and test(x))

  def operation(self) -> None:
    text = self.rng.choice(self.maker.operations)
    names: dict[str, Any] = {}
    if used := set(re.findall(r"\{(\w)\}", text)) & set("xymdnwv"):
      kind = "f" if "x" in used else "b"
      names["x"], x = self.some(lambda x: x.dtype.kind == kind and (x.ndim > 0 or not used & set("dn")))
      names["y"] = self.floats(lambda y: y.shape == x.shape)[0] if "y" in used else ""
      names["m"] = self.some(lambda y: y.shape == x.shape and y.dtype.kind == "b")[0] if "m" in used else ""
      names["w"] = self.floats(lambda y: y.ndim == 2 and y.shape[:1] == x.shape[-1:])[0] if "w" in used else ""
      names["v"] = (
        self.floats(lambda y: y.ndim == 1 and 0 < y.size <= x.shape[-1:][0])[0] if "v" in used and x.ndim else ""
      )
      d = 0 if "pick" in text or "put" in text else self.rng.randrange(max(x.ndim, 1))
      names |= {"d": d, "n": x.shape[d] if x.ndim else 1}
      if x.ndim and not re.search(r"\b(part|padded|at)\(", text) and self.rng.random() < 0.3:
        names["d"] = d - x.ndim
    if "{t}" in text:
      names["t"] = self.floats(lambda x: x.ndim >= 2)[0]
    for kind, test in (("z", "f0"), ("i", "i1"), ("j", "i1"), ("k", "i"), ("b", "b")):
      if f"{{{kind}}}" in text:
        names[kind] = self.some(partial(fits, test))[0]
    if "{q}" in text:
      if not self.around.draws:
        raise Rejected("random numbers")
      names["q"] = next(self.maker.names)
    if text.startswith("scaled") and "vjp" in text and self.around.forward:
      self.refused("custom_vjp forward")
    self.add(text.format(**names))

  def draw(self, count: int) -> None:
    """So many lines, of which some call transforms."""
    chance = (0.6, 0.35, 0.15, 0.0)[min(self.around.depth, 3)]
    for _ in range(count):
      for _ in range(20):
        kept = self.maker.refusals.copy()
        try:
          if self.around.axis and self.rng.random() < 0.3:
            name, n = self.around.axis
            self.add(f"say({self.floats()[0]}, {self.rng.choice(list(COLLECTIVES))!r}, {name!r}, {n})")
          elif self.rng.random() < chance:
            self.rng.choice(TRANSFORMS)(self)
          else:
            self.operation()
          break
        except Rejected:
          self.maker.refusals = kept

  def refused(self, reason: str) -> None:
    """What is about to be drawn may be refused here: seldom."""
    if self.rng.random() < 0.9:
      raise Rejected(reason)
    self.maker.refusals.add(reason)

  def made(self) -> list[str]:
    return [path for line in self.lines for path, x in leaves(line.value, line.name)]

  def function(
    self, parameters: Sequence[Specs], finish: Finish, around: Around | None = None, closed: bool = False
  ) -> Function:
    """A function of such arguments, of which `finish` says what it returns."""
    around = around or self.around
    inner = Body(self.maker, self, replace(around, depth=around.depth + 1), closed)
    names = [self.maker.name("p") for _ in parameters]
    for name, p in zip(names, parameters):
      inner.know(name, p)
    inner.draw(self.rng.randint(2, 4))
    result = finish(inner, names[0])
    try:
      eval(result, inner.space)
    except REFUSED as e:
      raise Rejected(str(e)) from e
    return Function(self.maker.name("f"), tuple(names), tuple(inner.lines), result)

  def late(self, kinds: str = "f") -> str:
    """What has just been computed, if there is something of the kind."""
    made = set(self.made())
    found = [p for p, x in self.values if p in made and x.dtype.kind in kinds]
    return self.rng.choice(found[-3:]) if found else self.some(lambda x: x.dtype.kind in kinds)[0]

  def structure(
    self, count: int, test: Callable[[Any], bool] = lambda x: True, kinds: str = "f", apart: bool = False
  ) -> tuple[str, Specs]:
    """So many values, in a tuple or dict if there are more than one. `apart`: not one twice, which is one place to
    derivatives."""
    found = [self.some(lambda x: x.dtype.kind in kinds and test(x)) for _ in range(count)]
    if count == 1:
      return found[0]
    if apart and found[0][1] is found[1][1]:
      raise Rejected("twice the same")
    if self.rng.random() < 0.5:
      return f"({', '.join(t for t, _ in found)},)", tuple([x for _, x in found])
    return "{" + ", ".join(f"{k!r}: {t}" for k, (t, _) in zip("ab", found)) + "}", dict(
      zip("ab", [x for _, x in found])
    )


# ---------------------------------------------------------------- what functions return


def free(b: Body, p: str) -> str:
  """A Tensor, or two in a tuple or dict."""
  made = [b.late("fffib") for _ in range(b.rng.choice((1, 1, 2)))]
  return made[0] if len(made) == 1 else b.rng.choice(("({}, {})", "{{'a': {}, 'b': {}}}")).format(*made)


def floating(b: Body, p: str) -> str:
  made = [b.late() for _ in range(b.rng.choice((1, 1, 2)))]
  return made[0] if len(made) == 1 else b.rng.choice(("({}, {})", "{{'a': {}, 'b': {}}}")).format(*made)


def number(b: Body, p: str) -> str:
  return " + ".join([f"total({b.late()})" for _ in range(b.rng.randint(1, 2))])


def like(want: Specs, b: Body, carry: str = "") -> str:
  """What is shaped so; of a carry, what stays small."""
  if isinstance(want, tuple):
    return "(" + "".join(f"{like(x, b, carry and f'{carry}[{i}]')}, " for i, x in enumerate(want)) + ")"
  if isinstance(want, dict):
    return "{" + ", ".join(f"{k!r}: {like(x, b, carry and f'{carry}[{k!r}]')}" for k, x in want.items()) + "}"
  if want.dtype.kind != "f":
    return f"({carry} + 1) % 5" if want.dtype.kind == "i" else f"~{carry}"
  name = b.late()
  fit = "fit" if b.maker.dtype == "float64" else "filled"
  fitted = name if dict(b.values)[name].shape == want.shape else f"{fit}({name}, {want.shape})"
  if carry and fit == "filled":
    return f"{fitted} - {carry}"
  return f"tanh({carry} * 0.6 + {fitted} * 0.5)" if carry else fitted


# ---------------------------------------------------------------- transforms


def lengths_at(x: np.ndarray, n: int) -> list[int]:
  """The dims of that length, counted from the front or from the end."""
  return [k for i, m in enumerate(x.shape) if m == n for k in (i, i, i - x.ndim)]


def mapped_call(b: Body) -> None:
  _, x = b.some(lambda x: x.ndim > 0)
  n = b.rng.choice(x.shape)
  texts, parameters, axes = [], [], []
  for k in range(b.rng.randint(1, 3)):
    whole = k > 0 and b.rng.random() < 0.3
    test: Callable[[Any], bool] = (lambda x: True) if whole else (lambda x: n in x.shape)
    text, value = b.structure(b.rng.choice((1, 1, 2)), test, "fffib")
    of = mapped(lambda x, w=whole: -9 if w else b.rng.choice(lengths_at(x, n)), value)
    one = len({a for _, a in leaves(of)}) == 1 and b.rng.random() < 0.5
    texts.append(text)
    axes.append(leaves(of)[0][1] if one else of)
    parameters.append(mapped(lambda x, a: x if a == -9 else an_element(x, a), value, of))
  f = b.function(parameters, free)
  out: Any = b.rng.choice((0, 0, 0, -1))
  if f.result[0] in "({" and b.rng.random() < 0.4:
    out = {"(": (0, -1), "{": {"b": 0, "a": -1}}[f.result[0]]
  said = repr(tuple(axes)).replace("-9", "None")
  b.add(f"vmap({f.name}, {said}, {out})({', '.join(texts)})", f)


def scanned(b: Body) -> None:
  init, first = b.structure(b.rng.choice((1, 1, 2)), lambda x: True, "fffi")
  length, xs, each = "", "None", None
  if b.rng.random() < 0.75:
    _, x = b.some(lambda x: x.ndim > 0 and x.shape[0] <= 5)
    xs, stacked = b.structure(b.rng.choice((1, 2)), lambda y: y.shape[:1] == x.shape[:1], "fffib")
    each = mapped(an_element, stacked)
  else:
    length = f", length={b.rng.randint(b.maker.least, 4)}"
  unrolled = b.rng.random() < 0.3  # then numbers are drawn by blocks
  more = ", reverse=True" * (b.rng.random() < 0.4) + f", unroll={b.rng.randint(2, 3)}" * unrolled
  ys: Finish = lambda inner, p: inner.rng.choice(("None", p, free(inner, p), free(inner, p)))  # noqa: E731
  around = replace(b.around, draws=b.around.draws and not unrolled)
  f = b.function((first, each), lambda inner, p: f"({like(first, inner, p)}, {ys(inner, p)})", around)
  b.add(f"scan({f.name}, {init}, {xs}{length}{more})", f)


def looped(b: Body) -> None:
  if b.around.reverse:
    b.refused("while_loop in reverse")
  text, value = b.structure(b.rng.choice((1, 1, 2)), lambda x: True, "fffi")
  start = b.some(lambda x: x.dtype.kind == "i" and x.ndim == 0)[0] if b.rng.random() < 0.5 else "full((), 0)"
  leaf, alone = leaves(value)[0], replace(b.around, axis=None, draws=False)
  carry = (value, np.array(0))
  holds = b.rng.choice(("{}[1] < 3", f"({{}}[1] < 4) & above(total({{}}[0]{leaf[0]}), -0.4)"))
  condition = Function(b.maker.name("f"), ("c",), (), holds.replace("{}", "c"))
  f = b.function((carry,), lambda inner, p: f"({like(value, inner, f'{p}[0]')}, {p}[1] + 1)", alone)
  if b.maker.mode == "donated":
    b.maker.refusals |= {"while_loop between assignments", "while_loop in a graph"}
  if re.search(r"scan|while_loop", str(f)):
    b.maker.refusals.add("loops in a captured while_loop")
  b.add(f"while_loop({condition.name}, {f.name}, ({text}, {start}))", condition, f)


def chosen(b: Body) -> None:
  text, value = b.structure(b.rng.choice((1, 2)), lambda x: True, "fffib")
  _, want = b.structure(b.rng.choice((1, 2)), lambda x: True)
  condition = b.rng.choice((f"above(total({b.floats()[0]}), 0.1)", f"any({b.some(lambda x: x.dtype.kind == 'b')[0]})"))
  alone = replace(b.around, axis=None, draws=False)
  f, g = (b.function((value,), lambda inner, p: like(want, inner), alone) for _ in range(2))
  b.add(f"cond({condition}, {f.name}, {g.name}, {text})", f, g)


def kept(b: Body) -> None:
  text, value = b.structure(b.rng.choice((1, 2)), lambda x: True, "fffib")
  f = b.function((value,), free)
  b.add(f"checkpoint({f.name}, {b.rng.choice(POLICIES)})({text})", f)


def replayed(b: Body) -> None:
  """Captured in a call with other numbers, and replayed; called as it is where a transform, or a capture, is around."""
  given = [b.structure(b.rng.choice((1, 1, 2)), lambda x: True, "fffib") for _ in range(b.rng.randint(1, 2))]
  f = b.function([x for _, x in given], free, replace(b.around, draws=False))
  b.add(f"replayed({f.name})({', '.join(t for t, _ in given)})", f)


def own_rule(b: Body) -> None:
  way = b.rng.choice(("own_vjp", "own_jvp"))
  if way == "own_vjp" and b.around.forward:
    b.refused("custom_vjp forward")
  given = [b.structure(b.rng.choice((1, 1, 2)), apart=True) for _ in range(b.rng.randint(1, 2))]
  around = replace(b.around, reverse=b.around.reverse or way == "own_vjp", forward=b.around.forward or way == "own_jvp")
  around = replace(around, draws=False, axis=None)
  f = b.function([x for _, x in given], floating, around, closed=True)
  b.add(f"{way}({f.name})({', '.join(t for t, _ in given)})", f)


def over_devices(b: Body) -> None:
  n = b.maker.devices
  x_text, x = b.floats(lambda y: y.ndim > 0 and y.shape[0] % n == 0)
  others = [b.some(lambda x: x.dtype.kind in "fi") for _ in range(b.rng.randint(0, 2))]
  blocks, stages, functions = np.split(x, n), [], []
  space, name = dict(b.space), f"d{b.around.depth}"
  way = "vmap" if b.around.devices else b.rng.choice(("shard_map", "vmap"))
  around = replace(b.around, axis=(name, n), devices=b.around.devices or way == "shard_map")
  try:
    for k in range(b.rng.randint(1, 3)):
      if k:
        stages.append(b.rng.choice(list(COLLECTIVES)))
        blocks = COLLECTIVES[stages[-1]](blocks)
      f = b.function(
        [blocks[0], *(x for _, x in others)], lambda inner, p: inner.floats(lambda y: y.ndim > 0)[0], around
      )
      exec(str(f), space)
      blocks = Talk().of(space[f.name], blocks, [x for _, x in others])
      functions.append(f)
      stages.append(f.name)
  except REFUSED as e:
    raise Rejected(str(e)) from e
  said = [repr(s) if s in COLLECTIVES else s for s in stages]
  b.add(
    f"lanes({n}, {way!r}, {name!r}, ({', '.join(said)},))({', '.join([x_text, *(t for t, _ in others)])})", *functions
  )


def differentiated(b: Body) -> None:
  what = b.rng.choice(DERIVATIVES)
  reverse, forward = (
    what not in ("jvp", "linearize", "jacfwd"),
    what in ("jvp", "linearize", "jacfwd", "hessian", "hvp"),
  )
  differences = b.around.differences + (2 if what in ("hessian", "hvp") else 1)
  if differences > 3:
    raise Rejected("too many differences")
  small: Callable[[Any], bool] = lambda x: x.size <= (6 if differences == 1 else 4)  # noqa: E731
  mixed = "fffi" if what in ("grad", "value_and_grad", "aux", "jacfwd", "jacrev") else "f"
  given = [
    b.structure(b.rng.choice((1, 1, 2)), small, mixed if k else "f", apart=True) for k in range(b.rng.randint(1, 2))
  ]
  values, texts = [x for _, x in given], ", ".join(t for t, _ in given)
  around = replace(
    b.around,
    differences=differences,
    reverse=b.around.reverse or reverse,
    forward=b.around.forward or forward,
    axis=None,
  )
  finish: Finish = number if what in ("grad", "value_and_grad", "aux", "hessian", "hvp") else floating
  if aux := what == "aux" or (what in ("vjp", "jvp") and b.rng.random() < 0.3):
    first = finish
    finish = lambda inner, p: f"({first(inner, p)}, {free(inner, p)})"  # noqa: E731
  f = b.function(values, finish, around)
  b.maker.differences = max(b.maker.differences, differences)
  by = [k for k, x in enumerate(values) if isinstance(x, (tuple, dict)) or x.dtype.kind == "f"]
  argnums = b.rng.choice([by[0], by[-1], tuple(by)])
  ways = ("cos(x)", "x", "x * 0 + 1")[int(b.maker.dtype != "float64") :]
  directions = "(" + "".join(f"mapped(lambda x: {b.rng.choice(ways)}, {t}), " for t, _ in given) + ")"
  if what == "aux":
    what = b.rng.choice(("grad", "value_and_grad"))
  b.add(called_text(what, f.name, texts, argnums, directions, ", has_aux=True" * aux), f)


def differentiated_on_devices(b: Body) -> None:
  """Each device takes the derivative, of what it computes with the others."""
  n, name, what = b.maker.devices, f"d{b.around.depth}", b.rng.choice(("grad", "jvp"))
  way = "vmap" if b.around.devices else b.rng.choice(("shard_map", "vmap"))
  if b.around.differences > 1:
    raise Rejected("too many differences")
  text, x = b.floats(lambda y: y.ndim > 0 and y.shape[0] % n == 0 and y.size <= 6)
  others = [b.some(lambda x: x.dtype.kind in "fi") for _ in range(b.rng.randint(0, 2))]
  around = replace(
    b.around, differences=b.around.differences + 1, axis=(name, n), devices=b.around.devices or way == "shard_map",
    reverse=b.around.reverse or what == "grad", forward=b.around.forward or what == "jvp",
  )  # fmt: skip
  some: Finish = lambda inner, p: inner.floats(lambda y: y.ndim > 0)[0]  # noqa: E731
  f = b.function([np.split(x, n)[0], *(x for _, x in others)], number if what == "grad" else some, around)
  b.maker.differences = max(b.maker.differences, around.differences)
  b.add(f"inside({n}, {way!r}, {name!r}, {what!r}, {f.name})({', '.join([text, *(t for t, _ in others)])})", f)


def called_text(what: str, f: str, texts: str, argnums: Any, directions: str, aux: str) -> str:
  match what:
    case "jvp":
      return f"jvp({f}, ({texts},), {directions}{aux})"
    case "hvp":
      return f"hvp({f}, ({texts},), {directions})"
    case "linearize":
      return f"linearize({f}, {texts})[1](*{directions})"
    case "vjp":
      return f"pulled(vjp({f}, {texts}{aux}))"
  return f"{what}({f}, {argnums}{aux})({texts})"


DERIVATIVES = "grad value_and_grad aux vjp jvp linearize jacfwd jacrev hessian hvp".split()
TRANSFORMS: tuple[Callable[[Body], None], ...] = (
  mapped_call, mapped_call, scanned, scanned, looped, chosen, kept, own_rule, over_devices, replayed,
  differentiated_on_devices,
  differentiated, differentiated, differentiated,
)  # fmt: skip


class Program:
  """By a seed: a text, what it reads, and how it is run."""

  def __init__(self, seed: int) -> None:
    self.rng = rng = random.Random(seed)
    self.seed, self.names, self.differences, self.refusals = seed, itertools.count(), 0, set[str]()
    self.mode = rng.choice(MODES)
    self.crossed = self.mode == "cut" and seed % 2 == 1  # over the two axes of a mesh of four devices, unevenly too
    # of every `shard_map`: values of others do not mix
    self.devices = (2, 4)[self.crossed] if self.mode == "cut" else rng.choice((2, 4))
    self.dtype = rng.choice(("float64",) * 4 + ("float32", "float16", "bfloat16"))
    self.operations = re.split(r" \| |\n", (OPERATIONS if self.dtype == "float64" else EXACT).strip())
    if seed >= WINDOWED:
      windows = re.split(r" \| |\n", WINDOWS.strip())
      self.operations += [x for x in windows if self.dtype == "float64" or not x.startswith("pooled")]
    self.least = int(rng.random() < 0.7)  # elements that a value has, and steps
    made = np.random.default_rng(seed)

    def draw() -> np.ndarray:
      lengths = (1, 2, 3, 4, 4) if self.least else (0, 0, 1, 1, 2, 3)
      return numbers(tuple([rng.choice(lengths) for _ in range(rng.choice((0, 1, 1, 2, 2)))]))

    def numbers(shape: Any) -> np.ndarray:
      return made.normal(size=shape) if self.dtype == "float64" else made.integers(-2, 3, shape).astype(float)

    self.sets = [[draw() for _ in range(rng.randint(2, 3))]]
    self.sets += [
      [numbers(x.shape) for x in self.sets[0]] for _ in range(3 if self.mode in ("captured", "donated") else 0)
    ]
    n = rng.choice((2, 3, 4))
    self.given: dict[str, np.ndarray] = {"w": numbers((rng.choice((2, 3, 4)), 4)), "u": numbers(n)}
    self.given |= {"i": made.integers(0, 4, n), "k": made.integers(0, 3, ()), "m": made.integers(0, 2, n) > 0}
    self.outside = list(self.given.items())
    self.space = {**PLAIN, **self.given}
    Course.draft, Course.calls, Course.drawn = True, 0, {}
    try:
      with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # means of nothing
        self.main = self.drawn()
    finally:
      Course.draft = False
    if self.mode not in ("captured", "donated") and "replayed(" not in str(self.main):  # which may read any loop
      self.refusals.discard("loops in a captured while_loop")

  def drawn(self) -> Function:
    body = Body(self, None, Around())
    names = tuple(f"x{i}" for i in range(len(self.sets[0])))
    for name, x in zip(names, self.sets[0]):
      body.know(name, x)
    body.draw(self.rng.randint(3, 6))
    return Function("program", names, tuple(body.lines), f"({''.join(f'{p}, ' for p in body.made())})")

  def name(self, kind: str) -> str:
    return f"{kind}{next(self.names)}"

  def variant(self, **changes: Any) -> Program:
    other = copy.copy(self)
    vars(other).update(changes)
    return other

  def __str__(self) -> str:
    shapes = {name: x.shape for name, x in (*self.given.items(), *zip(self.main.parameters, self.sets[0]))}
    return f"# {self.mode}, {self.dtype} of {shapes}\n{self.main}"
