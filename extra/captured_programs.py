"""What extra.fuzz_captured runs: programs as text, drawn from tables of expressions and lines."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tinygrad.device import Mesh

ROWS, COLUMNS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 128), (1, 3, 8, 16, 31, 32, 64, 65, 100, 128, 192)
LENGTHS = (8, 12, 33, 64, 100)  # of caches
WINDOWS = (1, 2, 4)  # of a convolution

Shape = tuple[int, ...]
Table = dict[str, int]  # the drawers of one thing by their names, and how often each is taken


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


@dataclass(frozen=True)
class Name:
  text: str
  shape: Shape
  kind: str  # F, G, V (F or G, as it is replaced), I<n, whose numbers are below n, or B, of truths
  what: str  # state, memory, value, view, given (which is only read), or hole: what a function in an expression has

  @property
  def floats(self) -> bool:
    return self.kind in ("F", "G", "V")

  @property
  def follows(self) -> bool:
    return self.what in ("state", "memory", "view")


@dataclass(frozen=True)
class Function:
  number: int
  inputs: list[Shape]
  packing: str  # of what is given, in the places of {0}, {1}, …
  symbolic: bool  # takes the variable n
  numeric: bool  # takes a Python number z
  fails: bool
  results: list[Name]
  text: tuple[str, tuple[str, ...], str]

  def call(self, given: list[str], n: str, z: str) -> str:
    named = re.match(r"\w+=", self.packing)
    more = [f"n={n}" if named else n] * self.symbolic + [f"z={z}"] * self.numeric
    return f"f{self.number}({', '.join([self.packing.format(*given), *more])})"


# ---------------------------------------------------------------- tables

# of each shape
FORMS: Table = {"arithmetic": 16, "moved": 8, "of_rows": 8, "chosen": 1, "again_later": 1, "dropped": 1}
MATRICES: Table = FORMS | {"product": 16, "convolved": 3, "pooled": 1, "each_row": 2}
VECTORS: Table = FORMS | {"reduced": 16, "of_rows": 0}
WITH_VARIABLE: Table = {"of_cache": 16}
WITH_NUMBER: Table = {"by_number": 8}

# which are captured, or not
LINES: Table = {
  "a_value": 4, "a_view": 2, "assigned": 4, "added": 2, "in_part": 4, "shifted": 2, "exchanged": 2, "descent": 2,
  "counted": 3,
}  # fmt: skip
AT_VARIABLE: Table = {"at_place": 6, "view_at_place": 2}
IN_FUNCTIONS: Table = {"modules": 2, "gradients": 2, "scanned": 2, "scanned_between": 1, "looped": 2, "realized": 2}

# of the main part
BETWEEN: Table = {
  "a_value": 4, "a_view": 2, "assigned": 2, "in_part": 2, "counted": 1, "deleted": 2, "renamed": 2, "exchanged": 2,
  "again": 6, "gradients": 6, "replaced": 2, "recast": 1, "looped": 1, "mode": 1, "forgotten": 1, "attempted": 3,
  "at_place": 2,
}  # fmt: skip

OPTIMIZERS = (
  "SGD([p0, p1], lr=0.1)",
  "SGD([p0, p1], lr=0.1, momentum=0.9)",
  "SGD([p0, p1], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
  "Adam([p0, p1], lr=0.05, eps=0.5)",
  "AdamW([p0, p1], lr=0.05, eps=0.5, weight_decay=0.1)",
  "LAMB([p0, p1], lr=0.05, eps=0.5)",
  "LARS([p0, p1], lr=0.5, tcoef=0.1)",
  "Muon([p0, p1], lr=0.05)",
  "OptimizerGroup(nn.optim.Muon([p0], lr=0.05), nn.optim.AdamW([p1], lr=0.05, eps=0.5))",
)
SCHEDULES = (
  "LambdaLR(m.opt, lambda n: 0.9 ** n)",
  "MultiStepLR(m.opt, [2, 4], gamma=0.5)",
  "CosineAnnealingLR(m.opt, 8)",
  "CosineAnnealingLRWithWarmup(m.opt, 0.05, 0.01, 3, 6)",
  "OneCycleLR(m.opt, 0.05, 5.0, 10.0, 12, 0.5)",
  "OneCycleLR(m.opt, 0.05, 5.0, 10.0, 12, 0.3, anneal_strategy='cos')",
)
NUMBERS = ("1", "2", "0.5", "True", "1.0", "-1.5")
TROUBLES = ("halt", "item", "shape", "write")
# how arguments are given, and what each is called
PACKINGS: tuple[tuple[str, str, Callable[[list[str]], str]], ...] = (
  ("plain", "{x}", lambda xs: ", ".join(xs)),
  ("named", "{x}", lambda xs: ", ".join(f"{x}={x}" for x in xs)),
  ("dict", "q['{x}']", lambda xs: "{{" + ", ".join(f"'{x}': {x}" for x in xs) + "}}"),
  ("nested", "q['all'][{i}][0]", lambda xs: "{{'all': (" + "".join(f"[{x}, None], " for x in xs) + ")}}"),
)


# ---------------------------------------------------------------- what is drawn


class Drawing:
  """Numbers, and the names that there are."""

  def __init__(self, seed: int, device: str, devices: int) -> None:
    self.rng = random.Random(seed)
    self.seeds, self.numbers = itertools.count(seed * 1000 + 1), itertools.count()
    self.placements = self.drawn_placements(device, devices)
    self.r, self.c, self.d = self.pick(*ROWS), self.pick(*COLUMNS), self.pick(*COLUMNS)
    self.length, self.chunk = self.pick(*LENGTHS), self.pick(1, 1, 2, self.pick(3, 4, 8))
    self.most = self.length - self.chunk  # of the variable n
    self.scope: list[Name] = []
    self.n = ""  # the variable n, where there is one
    self.numeric = self.captured = False
    self.within = 0  # functions inside expressions
    self.still = False  # where no random numbers are drawn

  def pick(self, *xs: Any) -> Any:
    return self.rng.choice(xs)

  def chance(self, p: float) -> bool:
    return self.rng.random() < p

  def draw(self, table: Table, *given: Any) -> Any:
    return getattr(self, self.rng.choices([*table], [*table.values()])[0])(*given)

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

  def names(self, test: Callable[[Name], bool]) -> list[Name]:
    return [x for x in self.scope if test(x)]

  def fresh(self, letter: str) -> str:
    return f"{letter}{next(self.numbers)}"

  @contextlib.contextmanager
  def hole(self, text: str, shape: Shape) -> Iterator[str]:
    """Within, expressions are those of a function that is given this."""
    self.scope.append(x := Name(text, shape, "F", "hole"))
    self.within += 1
    yield text
    self.within -= 1
    self.scope.remove(x)

  @contextlib.contextmanager
  def settled_scope(self) -> Iterator[None]:
    """Within, there are no values: gradients flow through those that wait."""
    scope, self.scope = self.scope, self.names(lambda x: x.what != "value")
    yield
    self.scope = scope


class Expressions(Drawing):
  """Values of a shape, none of them large."""

  def read(self, x: Name) -> str:
    if x.kind == "F":
      return x.text
    return f"({x.text}.cast(F) * {1 / int(x.kind[2:])})" if x.kind[0] == "I" else f"{x.text}.cast(F)"

  def leaf(self, shape: Shape) -> str:
    if self.chance(0.03) and not self.still:
      return f"uniform{shape}"
    if same := self.names(lambda x: x.shape == shape):
      return self.read(self.pick(*same))
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
    if len(shape) > 2:
      return f"({self.expr((shape[0], prod(shape[1:])), depth)}).reshape{shape}"
    if depth <= 0 or self.chance(0.15):
      return self.leaf(shape)
    table = MATRICES if len(shape) == 2 else VECTORS
    table = table | (WITH_VARIABLE if self.n else {}) | (WITH_NUMBER if self.numeric else {})
    return str(self.draw(table, shape, depth - 1))

  def arithmetic(self, shape: Shape, depth: int) -> str:
    a, b = self.expr(shape, depth), self.expr(shape, depth - self.pick(0, 1, 2))
    forms = (
      f"({a} * 0.5 + {b})",
      f"({a}).tanh()",
      f"({a}).maximum({b})",
      f"(({a}) > ({b})).where({a}, {b})",
      f"(({a}).tanh() * {b})",
      f"({a} - {b} * 0.3)",
      f"({a}).relu()",
      f"({a}).contiguous()",
      f"({a}).detach()",
      f"({a}).tanh().cast(G).sin().cast(F)",
    )
    truths = self.names(lambda x: x.kind == "B" and x.shape[0] == shape[0])
    masked = [f"{x.text}.reshape({', '.join(['-1'] + ['1'] * (len(shape) - 1))}).where({a}, {b})" for x in truths]
    return str(self.pick(*forms, *masked, *([] if self.within else [f"at({a}, {self.place()})"])))

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
    return str(self.pick(*forms))

  def product(self, shape: Shape, depth: int) -> str:
    k = self.pick(self.r, self.c, self.d, self.length)
    return f"(({self.expr((shape[0], k), depth)}) @ ({self.expr((k, shape[1]), depth)}) * {k**-0.5:.4f})"

  def of_rows(self, shape: Shape, depth: int) -> str:
    a = self.expr(shape, depth)
    axis = self.pick(0, 1)
    forms = (
      f"({a}).softmax({axis})",
      f"(({a}) - ({a}).detach().max({axis}, keepdim=True))",
      f"(({a}) - ({a}).mean({axis}, keepdim=True))",
      f"(({a}) * (({a}).square().mean({axis}, keepdim=True) + 0.1).rsqrt())",
      f"(({a}).cumsum({axis}) * {1 / shape[axis]:.4f})",
      f"(({a}) * 0.5 + {self.expr((shape[1],), depth)})",
    )
    return str(self.pick(*forms))

  def reduced(self, shape: Shape, depth: int) -> str:
    n = self.pick(self.r, self.d, self.length)
    a = self.expr((n, shape[0]), depth)
    forms = (
      f"(({a}).sum(0) * {n**-0.5:.4f})",
      f"({a}).detach().max(0)",
      f"({a})[{self.rng.randrange(n)}]",
      f"({a}).mean(0)",
    )
    return str(self.pick(*forms))

  def of_cache(self, shape: Shape, depth: int) -> str:
    """What depends on the variable n."""
    n = self.n
    caches = self.names(lambda x: x.what == "state" and x.shape == (self.length, shape[-1]) and x.kind == "F")
    rows = self.names(lambda x: len(x.shape) == 2 and x.shape[0] == self.length and x.kind == "F")
    if not caches:
      return (
        f"({self.pick(*rows).text}[{n}, :1].expand{shape} * 0.5 + {self.leaf(shape)})" if rows else self.leaf(shape)
      )
    x, a = self.pick(*caches).text, self.expr(shape, depth)
    if len(shape) == 1:
      forms = [
        f"{x}[{n}]",
        f"{x}[:{n} + 1].mean(0)",
        f"({x}[:{n} + 1].detach().max(0) + {a})",
        f"({x}[{n}:{n} + {self.chunk}].sum(0) * 0.5)",
      ]
      return str(self.pick(*forms))
    heads = self.pick(*[h for h in (1, 2, 4) if shape[1] % h == 0])
    forms = [
      f"(({a}) @ {x}[:{n} + 1].T * {shape[1] ** -0.5:.4f}).softmax(-1) @ {x}[:{n} + 1]",
      f"attend({a}, {x}[:{n} + {self.chunk}], {x}[:{n} + {self.chunk}], {heads})",
      f"(({a}) + {x}[{n}])",
      f"({x}[:{n} + 1].mean(0, keepdim=True) + {a})",
    ]
    if not self.within:
      forms.append(f"(({a}) * (at(Tensor.arange({shape[0]}), {self.place()}) <= {n}).reshape(-1, 1).cast(F))")
    return f"({self.pick(*forms)})"

  def by_number(self, shape: Shape, depth: int) -> str:
    """What depends on the Python number z."""
    a, b = self.expr(shape, depth), self.expr(shape, depth)
    return str(self.pick(f"({a} * z)", f"({a} if z > 1 else {b})", f"({a} + z)", f"({a} if z is True else {b} * 0.5)"))

  def dropped(self, shape: Shape, depth: int) -> str:
    a = self.expr(shape, depth)
    return a if self.still else f"drop({a})"

  def convolved(self, shape: Shape, depth: int) -> str:
    """Images of one channel, with windows that are state."""
    a, o, (h, w) = self.expr(shape, depth), self.windows, shape
    image, one = f"({a}).reshape(1, 1, {h}, {w})", f"{self.leaf((o,))}"
    across, even = f"({a}).reshape({h}, 1, 1, {w})", (1 - h % 2, 1 - w % 2)
    forms = (
      f"{image}.conv2d(m.s6, padding=1).tanh().conv_transpose2d(m.s6, padding=1)",
      f"{image}.conv2d(m.s6, {one}, padding=1).mean(1)",
      f"{image}.conv2d(m.s6, padding=2, dilation=2).sum(1)",
      f"{across}.conv2d(m.s6, padding=1).mean(1)",
      f"{image}.conv2d(m.s6, stride=2, padding=1).conv_transpose2d(m.s6, stride=2, padding=1, output_padding={even})",
      f"{image}.expand(1, {o}, {h}, {w}).conv2d(m.s6, padding=1, groups={o}).mean(1)",
    )
    return f"({self.pick(*forms)}.reshape{shape} * 0.2)"

  def pooled(self, shape: Shape, depth: int) -> str:
    image = f"({self.expr(shape, depth)}).reshape(1, 1, {shape[0]}, {shape[1]})"
    forms = (
      f"{image}.avg_pool2d(3, stride=1, padding=1)",
      f"{image}.detach().max_pool2d(3, stride=1, padding=1)",
      f"{image}.avg_pool2d((1, 3), stride=1, padding=(0, 1))",
      f"{image}.detach().max_pool2d(2, ceil_mode=True).interpolate({shape}, mode='nearest')",
    )
    return f"{self.pick(*forms)}.reshape{shape}"

  def condition(self) -> str:
    """That numbers of floats do not decide."""
    forms = ["(m.i1.sum() % 2 == 0)", "(m.i1 > 3)", "(m.i0[0] < 3)", "m.i2[0]", "m.i2.any()", "(m.i0.max() > m.i1)"]
    return str(self.pick(*forms))

  def chosen(self, shape: Shape, depth: int) -> str:
    t, a = self.fresh("t"), self.expr(shape, depth)
    with self.hole(t, shape):
      yes, no = self.expr(shape, depth), self.expr(shape, depth)
    return f"cond({self.condition()}, lambda {t}: {yes} * 0.5, lambda {t}: {no} + 0.5, {a})"

  def again_later(self, shape: Shape, depth: int) -> str:
    """Computed again where it is differentiated."""
    t, a = self.fresh("t"), self.expr(shape, depth)
    with self.hole(t, shape):
      inner = self.expr(shape, depth)
    return f"checkpoint(lambda {t}: ({inner}).tanh())({a})"

  def each_row(self, shape: Shape, depth: int) -> str:
    t, a = self.fresh("t"), self.expr(shape, depth)
    with self.hole(t, shape[1:]):
      inner = self.expr(shape[1:], depth)
    forms = [
      f"vmap(lambda {t}: ({inner}).tanh())({a})",
      f"vmap(grad(lambda {t}: ({inner} * {t}).tanh().sum()))({a})",
      f"vmap(checkpoint(lambda {t}: {inner} * 0.5))({a})",
    ]
    if index := self.names(lambda x: x.kind[0] == "I" and x.shape == shape[:1]):
      forms.append(f"vmap(lambda {t}, i: {inner} * (i % 2))({a}, {self.pick(*index).text})")
    u = self.fresh("t")
    with self.hole(t, shape[:1]), self.hole(u, shape[:1]):
      inner = self.expr(shape[:1], depth)
    forms.append(f"vmap(lambda {t}, {u}: {inner} - {t}, (1, None), 1)({a}, {self.expr(shape[:1], 1)})")
    return str(self.pick(*forms))


class Lines(Expressions):
  """What state and values become."""

  def __init__(self, seed: int, device: str, devices: int) -> None:
    super().__init__(seed, device, devices)
    self.windows = self.pick(*WINDOWS)
    self.returned = set[str]()  # names
    self.computed = set[str]()  # values that may be memory by the time that they are returned
    self.viewed, self.lazy = set[str](), set[str]()  # state of which there are views; that may have no memory

  def target(self) -> Name:
    """Floats that are written."""
    return self.pick(*self.names(lambda x: x.follows and x.floats))

  def cast(self, x: Name, text: str) -> str:
    """A value as it is written to x."""
    return {"F": text, "G": f"({text}).cast(G)"}.get(x.kind, f"({text}).cast({x.text}.dtype)")

  def value(self, name: str, shape: Shape) -> None:
    self.scope.append(Name(name, shape, "F", "value"))

  def lines(self) -> list[str]:
    return list(self.draw(LINES | (AT_VARIABLE if self.n else {}) | (IN_FUNCTIONS if self.captured else {})))

  def a_value(self) -> Iterator[str]:
    shape = self.pick((self.r, self.c), (self.r, self.d), (self.c,), (self.length, self.c))
    name = self.fresh("v")
    yield f"{name} = {self.expr(shape, 3)} * 1"
    self.value(name, shape)

  def a_view(self) -> Iterator[str]:
    """Of memory, which goes on to be the same."""
    found = self.names(lambda x: x.what in ("state", "memory") and len(x.shape) == 2 and x.text not in self.lazy)
    x, name = self.pick(*found), self.fresh("w")
    self.viewed.add(x.text)
    n, k = x.shape
    i = self.rng.randrange(n)
    j = self.rng.randint(i + 1, n)
    text, shape = self.pick(
      (f"[{i}:{j}]", (j - i, k)), (".T", (k, n)), (".flip(1)", (n, k)), (f"[{i}]", (k,)), (".reshape(-1)", (n * k,))
    )
    yield f"{name} = {x.text}{text}  # view"
    self.scope.append(Name(name, shape, x.kind, "view"))

  def cache(self) -> Name:
    return self.pick(
      *self.names(lambda x: x.what == "state" and len(x.shape) == 2 and x.shape[0] == self.length and x.floats)
    )

  def view_at_place(self) -> Iterator[str]:
    x, name = self.cache(), self.fresh("w")
    self.viewed.add(x.text)
    yield f"{name} = {x.text}[{self.n}:{self.n} + {self.chunk}]  # view"
    self.scope.append(Name(name, (self.chunk, x.shape[1]), x.kind, "view"))

  def at_place(self) -> Iterator[str]:
    """Written to a cache where the variable says."""
    x, n = self.cache(), self.n or self.bound(self.fresh("n"))
    k = x.shape[1]
    j = self.rng.randrange(k)
    part, shape = self.pick(
      (f"[{n}:{n} + {self.chunk}]", (self.chunk, k)), (f"[{n}]", (k,)), (f"[{n}, {j}:]", (k - j,))
    )
    value = self.cast(x, self.expr(shape, 2))
    yield self.pick(f"{x.text}{part} = {value}", f"{x.text}{part} += {self.cast(x, f'({value}) * 0.25')}")

  def bound(self, name: str = "n") -> str:
    value = self.pick(0, self.most, *(self.rng.randint(0, self.most) for _ in range(2)))
    return f"bind({name!r}, {self.most}, {value})"

  def assigned(self) -> Iterator[str]:
    x = self.target()
    yield f"{x.text}.assign({self.cast(x, self.expr(x.shape, 3))})"

  def added(self) -> Iterator[str]:
    x = self.target()
    yield self.pick(f"{x.text} *= 0.75", f"{x.text} += {self.cast(x, f'({self.expr(x.shape, 2)}) * 0.25')}")

  def in_part(self) -> Iterator[str]:
    x = self.target()
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
    yield f"{x.text}{part} = {self.cast(x, self.expr(shape, 2))}"

  def shifted(self) -> Iterator[str]:
    found = self.names(lambda x: x.what in ("state", "memory") and len(x.shape) == 2 and x.shape[0] > 1 and x.floats)
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
    for x in self.names(lambda x: x.what in ("state", "memory") and x.kind != "B"):
      by_shape.setdefault((x.shape, x.kind), []).append(x)
    pairs = [xs for xs in by_shape.values() if len(xs) > 1]
    if pairs:
      a, b = self.rng.sample(self.pick(*pairs), 2)
      name = self.fresh("v")
      yield f"{name} = {a.text} * 1"
      yield f"{a.text}.assign({b.text})"
      yield f"{b.text}.assign({name})"

  def descent(self) -> Iterator[str]:
    name = self.fresh("v")
    with self.settled_scope():
      x = self.expr((self.r, self.c), 2)
    more = self.pick("", ".softmax(-1)", ".tanh()", ".relu()")
    loss = f"(({x}) @ m.s0 * {self.c**-0.5:.4f} + m.s1){more}.square().sum() * {1 / self.r:.4f}"
    target, shape = ("m.s6", (self.windows, 1, 3, 3)) if "m.s6" in loss else ("m.s0", (self.c, self.d))
    yield f"{name} = grads(lambda: {loss}, {target}, m.s1)"
    self.value(name, shape)
    if self.chance(0.7):
      yield f"{target}.assign({target} - {name} * 0.1)"

  def counted(self) -> Iterator[str]:
    """Whole numbers, and truths."""
    x = self.pick(*self.names(lambda x: x.follows and not x.floats))
    i = self.rng.randrange(x.shape[0])
    if x.kind == "B":
      forms = [
        f"{x.text}.assign(~{x.text})",
        f"{x.text}.assign((m.i0 + m.i1) % 2 == 0)" if x.shape == (self.r,) else f"{x.text}.assign(~{x.text})",
        f"{x.text}[{i}] = m.i1[0] > 2",
        f"{x.text}.assign({x.text} | {x.text}.flip(0))",
      ]
    else:
      n = x.kind[2:]
      forms = [
        f"{x.text}.assign(({x.text} * 3 + 1) % {n})",
        f"{x.text}.assign(({x.text} + 1) % {n})",
        f"{x.text}[:1] = {x.text}[-1:]",
        f"{x.text}[{i}:] = 0",
      ]
    yield self.pick(*forms)

  def modules(self) -> Iterator[str]:
    if self.chance(0.5):
      name, x = self.fresh("v"), self.expr((self.r, self.c), 2)
      r, c = self.r, self.c
      made = f"m.bn(({x}).reshape({r}, {c}, 1, 1)).reshape({r}, {c})"
      yield f"{name} = " + self.pick(f"training(lambda: {made})", f"{made} * 1")
      self.value(name, (r, c))
    else:
      yield f"fit(m.opt, lambda: {self.loss()})"

  def loss(self) -> str:
    """Of what m.opt optimizes."""
    x, y = self.expr((self.r, self.c), 2), self.expr((self.r, self.d), 1)
    made = f"({x}) @ m.opt.params[0] * {self.c**-0.5:.4f} + m.opt.params[1]"
    return f"({made} - ({y})).square().mean()"

  def gradients(self) -> Iterator[str]:
    """What adds to gradients, reads, uses and empties them."""
    first, name = self.chance(0.4), self.fresh("v")
    if first:
      yield "m.opt.zero_grad()"
    if first or self.chance(0.7):
      yield f"backward(lambda: {self.loss()})"
    if self.chance(0.3):
      yield "clip(m.opt)"
    if self.chance(0.3):
      yield f"{name} = graded(m.opt.params[1]) * 1"
      self.value(name, (self.d,))
    if self.chance(0.4):
      yield "step(m.opt)"
    if self.chance(0.3):
      yield "m.rate.step()"
    if self.chance(0.3):
      yield "m.opt.zero_grad()"

  def scanned(self) -> Iterator[str]:
    """Over the rows of a value, or of state, and with state as what is carried."""
    name, first = self.fresh("v"), self.chance(0.5)
    a, b = self.expr((self.c,), 1), self.pick(self.expr((self.r, self.c), 2), "m.s3")
    with self.hole("h", (self.c,)), self.hole("x", (self.c,)):
      step = self.pick("h * 0.5 + x", f"h * 0.5 + x * {self.expr((self.c,), 1)}", self.expr((self.c,), 2))
      y = self.pick("h + x", f"{self.expr((self.c,), 1)} * x")
    more = self.pick("", "", ", reverse=True", ", unroll=2")
    yield f"{name} = scan(lambda h, x: (({step}).tanh(), {y}), {a} * 1, {b}{more})[{1 - first}]"
    self.value(name, (self.c,) if first else (self.r, self.c))

  def scanned_between(self) -> Iterator[str]:
    """A loop between writes to what it reads."""
    yield from self.pick(self.in_part, self.assigned, self.shifted)()
    yield from self.pick(self.scanned, self.looped)()
    x, v = (
      self.pick(*self.names(lambda x: x.what == "state" and x.shape == (self.r, self.c) and x.floats)),
      self.scope[-1],
    )
    if v.shape in ((self.r, self.c), (self.c,)):
      yield f"{x.text} += {self.cast(x, f'{v.text} * 0.5')}"

  def looped(self) -> Iterator[str]:
    """As many steps as state says."""
    name, a = self.fresh("v"), self.expr((self.r, self.c), 2)
    with self.hole("c[0]", (self.r, self.c)):
      self.still = True
      body = self.expr((self.r, self.c), 2)
      self.still = False
    first = self.pick("m.i1 * 1", "m.i1 * 0 + 4", "m.i1 + 2")
    test = self.pick("c[1] < 5", "c[1] < 6", "(c[1] < 7) & (c[1] > 0)", "c[1] != 6")
    if "!=" in test:
      first = "m.i1 * 1"
    yield f"{name} = while_loop(lambda c: {test}, lambda c: (({body}).tanh(), c[1] + 1), ({a} * 1, {first}))[0]"
    self.value(name, (self.r, self.c))
    if self.captured and self.chance(0.5):
      self.computed.add(name)
      yield f"{name}.realize()"

  def realized(self) -> Iterator[str]:
    found = self.names(lambda x: x.what == "value" and x.text[0] == "v")
    if found:
      x = self.pick(*found)
      self.computed.add(x.text)
      yield f"{x.text}.realize()"


class Writer(Lines):
  """A program: state, functions and the main part."""

  def __init__(self, seed: int, device: str, devices: int) -> None:
    super().__init__(seed, device, devices)
    self.earlier: list[tuple[str, list[Name]]] = []  # lines that are not captured, and what they name
    self.functions: list[Function] = []
    self.plain: dict[Any, int] = {}  # how often a function was called with arguments that are no state, by kind of call
    self.trained = False

  def state(self) -> list[str]:
    r, c, d, length = self.r, self.c, self.d, self.length
    shapes: dict[str, Shape] = {"s0": (c, d), "s1": (d,), "s2": (length, c), "s3": (r, c)}
    shapes |= {"s4": self.pick((length, c), (r, c)), "s5": (r, c), "s6": (self.windows, 1, 3, 3)}
    kinds = dict.fromkeys(shapes, "F") | {"s4": self.pick("F", "G"), "s5": "V"}
    shapes |= {"i0": (r,), "i1": (1,), "i2": (r,), "i3": (length, c)}
    kinds |= {"i0": f"I<{r}", "i1": "I<7", "i2": "B", "i3": "I<5"}
    self.scope = [Name(f"m.{k}", shape, kinds[k], "state") for k, shape in shapes.items()]
    out = [self.made(f"m.{k}", shape, kinds[k], "memory") for k, shape in shapes.items()]
    out += self.state_within()
    out.append(f"m.bn = module(nn.BatchNorm({c}, eps=0.1), {self.place()})")
    out += [self.made("p0", (c, d), "F", "memory"), self.made("p1", (d,), "F", "memory")]
    return [*out, f"m.opt = nn.optim.{self.pick(*OPTIMIZERS)}", f"m.rate = nn.lr_scheduler.{self.pick(*SCHEDULES)}"]

  def state_within(self) -> Iterator[str]:
    """State that is a part or a view of other state."""
    i = self.rng.randrange(self.length)
    j = self.rng.randint(i + 1, self.length)
    found: list[tuple[str, Shape]] = [
      (f"m.s2[{i}:{j}]", (j - i, self.c)),
      (f"m.s2[{i}]", (self.c,)),
      ("m.s3.T", (self.c, self.r)),
      ("m.s0[:, ::2]", (self.c, (self.d + 1) // 2)),
      ("m.s3.flip(0)", (self.r, self.c)),
      (f"m.s6.reshape({self.windows}, 9)", (self.windows, 9)),
      ("m.s0.reshape(-1)", (self.c * self.d,)),
    ]
    for k, (text, shape) in enumerate(self.rng.sample(found, self.pick(0, 1, 2)), 7):
      yield f"m.s{k} = {text}"
      self.scope.append(Name(f"m.s{k}", shape, "F", "view"))

  def made(self, name: str, shape: Shape, kind: str, how: str) -> str:
    dtype = {"B": "bool", "V": "F"}.get(kind, kind)
    if kind[0] == "I":
      small = (
        ("int8", "uint8", "int16") if int(kind[2:]) < 40 else ()
      )  # three times as much and one is no more than 127
      dtype = kind.replace("I", self.pick("int32", "int64", *small))
    return f"{name} = new({next(self.seeds)}, {shape}, {dtype!r}, {self.place()}, {how!r})"

  # ---- functions

  def function(self, number: int) -> Function:
    state, made = self.scope, [(self.r, self.c), (self.r, self.d), (self.c,), (self.chunk, self.c)]
    inputs = [self.pick(*made) for _ in range(self.pick(1, 2, 2, 3))]
    symbolic, self.numeric, fails = self.chance(0.6), self.chance(0.3), self.chance(0.3)
    self.n = "n" * symbolic
    names = [self.fresh("x") for _ in inputs]
    way, called, packed = self.pick(*PACKINGS[:1] * 3, *PACKINGS[1:])
    donated = way != "named" and len(self.placements) == 1 and self.chance(0.25)
    what = "given" if donated else "memory"  # what is donated is not written, so that it is memory as it was
    args = [Name(called.format(x=x, i=i), shape, "F", what) for i, (x, shape) in enumerate(zip(names, inputs))]
    self.scope, self.captured = [*state, *args], True
    lines: list[str] = []
    for _ in range(self.pick(1, 2, 3, 4, 6)):
      if self.functions and self.chance(0.2):
        lines += self.nested(self.pick(*self.functions))
      lines += self.lines()
    if fails:
      at = self.rng.randint(0, len(lines))
      lines.insert(at, f"trouble({next(self.numbers)}, m.s3, {self.pick(*TROUBLES)!r})")
    lines += self.a_value()
    results = self.results(args)
    if self.n and self.chance(0.3):
      lines.append("y = m.s2[:n + 1] * 2")
    said = ", ".join([x.text for x in results] + ["y"] * (lines[-1][:1] == "y"))
    given = names if called == "{x}" else ["q"]
    head = f"def f{number}({', '.join(given + ['n'] * symbolic + ['z'] * self.numeric)}):"
    packing = packed(names)
    for i, x in enumerate(names):
      packing = re.sub(rf"(?<!')\b{x}\b(?![='])", f"{{{i}}}", packing)
    text = "\n".join([*self.decorators(results, donated), head]), tuple(lines), f"return ({said},)"
    function = Function(number, inputs, packing, symbolic, self.numeric, fails, results, text)
    self.scope, self.n, self.numeric, self.captured = state, "", False, False
    return function

  def decorators(self, results: list[Name], donated: bool) -> Iterator[str]:
    yield "@TinyJit" if self.chance(0.9) else "@TinyJit(prune=True)"
    made = [i for i, x in enumerate(results) if x.what == "value"]
    if donated and self.computed.isdisjoint(x.text for x in results):
      yield f"@donated({made})"

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
    if f.symbolic and not self.n:
      return
    name = self.fresh("v")
    given = [f"{self.expr(shape, 1)} * 1" for shape in f.inputs]
    yield f"{name} = {f.call(given, 'n', self.pick(*NUMBERS, *['z'] * self.numeric))}[0]"
    self.value(name, f.results[0].shape)
    self.computed.add(name)

  # ---- the main part

  def main(self) -> list[str]:
    out = list[str]()
    for shape in sorted({s for f in self.functions for s in f.inputs}):
      out += self.another(shape)
      if len(shape) == 2 and self.chance(0.5):
        out += self.another((3 * shape[0], shape[1]))
    for _ in range(self.pick(6, 8, 10, 12)):
      for _ in range(self.pick(0, 0, 1, 1, 2)):
        out += self.between()
      out += self.call(self.pick(*self.functions))
    return out

  def another(self, shape: Shape) -> Iterator[str]:
    name = self.fresh("a")
    how = self.pick("memory", "memory", "realized", "lazy")
    yield self.made(name, shape, "F", how)
    self.scope.append(Name(name, shape, "F", "value" if how == "lazy" else "memory"))

  def given(self, f: Function, late: bool) -> Iterator[str]:
    """Lines that make arguments, and last these, apart by |."""
    given: list[str] = []
    # what was captured with state as an argument takes it for that alone: first it has other arguments of this kind
    state = aliases = late and len(self.placements) == 1 and self.chance(0.15)
    twice = late and self.chance(0.3)
    for shape in f.inputs:
      fit = [x for x in self.scope if x.shape == shape and x.kind == "F"]
      found, own = [x for x in fit if x.what in ("memory", "value")], [x for x in fit if x.what == "state"]
      fresh = [x for x in found if x.text not in given]
      if aliases and own:
        given.append(self.pick(*own).text)
        aliases = False
      elif not state and (part := self.part(shape, len(given))) and self.chance(0.5):
        given.append(part)
      elif not fresh or self.chance(0.3):
        yield from self.another(shape)
        given.append(self.scope[-1].text)
      else:
        given.append(self.pick(*(found if twice and not state else fresh)).text)
    yield "|".join(given)

  def call(self, f: Function) -> Iterator[str]:
    z = self.pick(*NUMBERS)
    kind = f.number, z * f.numeric, self.trained
    *made, given = self.given(f, self.plain.get(kind, 0) > 2)
    yield from made
    self.plain[kind] = self.plain.get(kind, 0) + ("[" not in given)
    name = self.fresh("r")
    yield f"{name} = {f.call(given.split('|'), self.bound(), z)}  # call"
    for i, x in enumerate(f.results):
      if x.what == "value" and self.chance(0.6):
        yield f"b{name[1:]}{i} = {name}[{i}]  # view"
        self.scope.append(Name(f"b{name[1:]}{i}", x.shape, "F", "memory"))
    if self.chance(0.4):
      yield f"del {name}"

  def part(self, shape: Shape, number: int) -> str | None:
    """Some rows of larger memory, as an argument of that number."""
    found = self.names(lambda x: x.what == "memory" and x.kind == "F" and x.shape[1:] == shape[1:] and x.shape > shape)
    if not found:
      return None
    x = self.pick(*found)
    begin = self.rng.randint(0, x.shape[0] - shape[0])
    if self.chance(0.2):
      k = f"bind('k{number}', {x.shape[0] - shape[0]}, {begin})"
      return f"{x.text}[{k}:{k} + {shape[0]}]"
    return f"{x.text}[{begin}:{begin + shape[0]}]"

  def between(self) -> list[str]:
    """Lines that are not captured, which may come again."""
    scope = list(self.scope)
    self.n = self.bound(self.fresh("n")) if self.chance(0.2) else ""  # one computation has one value of each
    lines = list(self.draw(BETWEEN))
    self.n = ""
    self.earlier += [(x, [n for n in scope if re.search(rf"\b{n.text}\b", x)]) for x in lines if "#" not in x]
    return lines

  def deleted(self) -> Iterator[str]:
    found = self.names(lambda x: x.text[0] in "abvw")
    if len(found) > 3:
      x = self.pick(*found)
      self.scope.remove(x)
      yield f"del {x.text}"

  def renamed(self) -> Iterator[str]:
    found = self.names(lambda x: x.text[0] in "av")
    if len(found) > 1:
      a = self.pick(*found)
      b = self.pick(*[x for x in found if x.shape == a.shape and x.what == a.what])
      if a is not b:
        yield f"{a.text}, {b.text} = {b.text}, {a.text}  # view"

  def mode(self) -> Iterator[str]:
    self.trained = not self.trained
    yield f"Tensor.training = {self.trained}  # view"

  def forgotten(self) -> Iterator[str]:
    yield self.reset(self.pick(*self.functions))

  def reset(self, f: Function) -> str:
    self.plain = {k: n for k, n in self.plain.items() if k[0] != f.number}
    return f"f{f.number}.reset()  # view"

  def attempted(self) -> Iterator[str]:
    """A call that may fail within, as far as it runs the function."""
    if failing := [f for f in self.functions if f.fails]:
      f = self.pick(*failing)
      if self.chance(0.3):
        yield self.reset(f)
      *made, given = self.given(f, False)
      yield from made
      yield f"attempt(lambda: {f.call(given.split('|'), self.bound(), self.pick(*NUMBERS))})  # call"

  def replaced(self) -> Iterator[str]:
    """Of state that no function returns: a replay gives a tensor of its own over the same memory."""
    x = self.pick(*self.names(lambda x: x.what == "state" and x.kind == "F" and x.text not in self.returned))
    self.plain.clear()  # it is captured anew
    yield f"{x.text}.replace((({self.expr(x.shape, 1)}).detach() * 1){self.kept(x.text)})"

  def kept(self, name: str) -> str:
    """What gives a value that this state is to stand for memory, where there are views of it."""
    if name in self.viewed:
      return ".contiguous().realize()"
    self.lazy.add(name)
    return ""

  def recast(self) -> Iterator[str]:
    self.plain.clear()
    value = f"(m.s5.cast({self.pick('F', 'G')}) * {self.pick('1', '0.5')})"
    yield f"m.s5.replace({value}.detach(){self.kept('m.s5')})"

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


def written(seed: int, device: str = "CPU") -> Script:
  rng = random.Random(seed)
  w = Writer(seed, device, rng.choice((1, 1, 1, 2, 3, 4)))
  dtype = w.pick("float32", "float32", "float32", "float64", "float16", "bfloat16")
  state = w.state()
  for i in range(w.pick(1, 2, 2, 3)):
    w.functions.append(w.function(i))
  settings = {
    "PLAN_CACHE": w.pick(0, 0, 1),
    "QUICK_CODE": w.pick(0, 0, 1),
    "CPU_THREADS": w.pick(0, 1, 2),
    "BEAM": int(w.chance(0.01)),
  }
  each = dtype in ("float16", "bfloat16") or w.chance(0.6)
  again = settings["PLAN_CACHE"] == 1 and w.chance(0.5)
  texts = tuple(f.text for f in w.functions)
  return Script(dtype, tuple(state), texts, tuple(w.main()), w.placements, tuple(settings.items()), each, again)
