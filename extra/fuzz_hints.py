"""Random programs with random hints, placed by `propagate` on random meshes, and what must hold for each of them:

  values     values and gradients are those of the same program without hints, on one device
  cuts       a hinted value has the cuts that it was given, a closed dim no others
  order      placements do not depend on the order in which outputs are given
  stated     to state where values are (leaves, outputs, gradients: all of them, and one) changes no placement, no bytes
  last       nor does it in a round after all others
  twice      to propagate once more changes nothing
  unhinted   without hints everything is replicated, and nothing moves
  bytes      no more bytes move than in the same program with the leaves placed so, hints on leaves alone
  bound      the bound by which graphs are compared is no less than what moves when `place` decides again
  between    (only where it is asked for: docs/solver.md) `stated`, of one value after the other, where that is read;
             without gradients
  after_all  (the same) `last`, of these

    SPEC=2 python -m extra.fuzz_hints [--first 0] [--programs 1000] [--laws values,cuts] [--show SEED]

A program has 1 to 3 leaves of small whole numbers (lazy, realised, or placed by the user; some with hints), up to 9 ops
with hints on some of their results, up to 3 outputs, some placed by the user, and mostly the gradients of the leaves.
What fails is printed by law and seed; `--show` prints one program's hints and graph as they were decided. The exit
status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinygrad import OPEN, Context, Mesh, P, Sharding, Tensor, propagate
from tinygrad.device import spec_of
from tinygrad.helpers import prod, tqdm
from tinygrad.propagation import Propagation
from tinygrad.sharding import explain
from tinygrad.sharding.outcomes import is_partial
from tinygrad.sharding.place import Placer
from tinygrad.solver import build, prices
from tinygrad.solver.axes import common, within_axes
from tinygrad.uop import Ops, UOp, print_graph

ONE, TWO = ("a",), ("a", "b")
MESHES = [
  (2, None, ONE),
  (4, (2, 2), TWO),
  (6, (2, 3), TWO),
  (4, None, ONE),
  (3, None, ONE),
  (6, None, ONE),
  (5, None, ONE),
]
SHAPES = ((8, 8), (8,), (4, 8), (6, 4, 2), (5, 8))
MOST = 4000  # elements of a value
LAST = 3  # a priority after all others

Binary = Callable[[Tensor, Tensor], Tensor]
BINARY: dict[str, Binary] = {
  "add": lambda x, y: x + y,
  "sub": lambda x, y: x - y * 2,
  "mul": lambda x, y: (x * y).clip(-9, 9),
  "maximum": lambda x, y: x.maximum(y),
  "where": lambda x, y: (x > y).where(x, y),
}


@dataclass
class Program:
  """What a seed makes: the same with and without hints, but for these."""

  seed: int
  hinted: bool  # with hints and placements
  on_leaves: bool = False  # with hints on leaves alone, nothing placed by the user
  in_rounds: bool = True  # hints have priorities
  places: Sequence[Any] = ()  # where leaves and indices are put, rather than what is said of them
  differentiated: bool = True  # with gradients, by chance
  stated: Mapping[int, Any] = field(default_factory=dict)  # of some values, by their numbers, where they are,
  stated_in: int = 0  # and in which round
  mesh: Mesh = field(init=False)
  memory: list[Tensor] = field(default_factory=list)
  leaves: list[Tensor] = field(default_factory=list)
  outputs: list[Tensor] = field(default_factory=list)
  gradients: list[Tensor] = field(default_factory=list)
  said_of: int = 0  # how many values there are so far

  def __post_init__(self) -> None:
    self.rng, self.hints = random.Random(self.seed), random.Random(self.seed)
    self.data = np.random.default_rng(self.seed)
    n, shape, names = self.rng.choice(MESHES)
    self.mesh = Mesh([f"CPU:{i}" for i in range(n)], shape, names)
    self.leaves = [self.put(self.leaf()) for _ in range(self.rng.randint(1, 3))]
    self.values = [self.said(x, 0.3, self.hinted or self.on_leaves) for x in self.leaves]
    for _ in range(self.rng.randint(2, 9)):
      value = self.op(self.rng.choice(self.values))
      if value is not None and prod(value.shape) <= MOST and value.ndim <= 4:
        self.values.append(self.said(value, 0.4, self.hinted))
    self.outputs = [self.output(self.rng.choice(self.values)) for _ in range(self.rng.randint(1, 3))]
    if self.rng.random() < 0.6 and self.differentiated:
      loss = sum((y.float().sum() for y in self.outputs), Tensor(0.0))
      for x in self.leaves:
        x.requires_grad = True
      reached = {x for x in self.leaves if x.uop in loss.uop.toposort()}
      self.gradients = list(loss.gradient(*[x for x in self.leaves if x in reached])) if reached else []

  @property
  def tensors(self) -> list[Tensor]:
    return [*self.outputs, *self.gradients, *self.leaves]

  def put(self, x: Tensor) -> Tensor:
    """A leaf or an index, noted, where it is to be."""
    at = self.places[len(self.memory)] if self.places else None
    self.memory.append(x.shard(at).realize() if isinstance(at, Sharding) else x)
    return self.memory[-1]

  def leaf(self) -> Tensor:
    rng = self.rng
    shape, kind = rng.choice(SHAPES), rng.randrange(3)
    x, spec = Tensor(self.data.integers(-3, 4, shape).astype(np.float32)), self.spec(len(shape), may_open=False)
    if kind == 2 and self.hinted:
      return x.shard(self.mesh, spec).realize()
    return x.realize() if kind else x

  def said(self, x: Tensor, chance: float, wanted: bool) -> Tensor:
    """A value, by chance with a hint; the same chances are taken where none is wanted."""
    hinted = self.hint(x) if self.hints.random() < chance else x
    x, at, self.said_of = hinted if wanted else x, self.stated.get(self.said_of), self.said_of + 1
    return x.constrain(spec_of(self.mesh, at.dims), priority=self.stated_in) if isinstance(at, Sharding) else x

  def output(self, x: Tensor) -> Tensor:
    spec = self.spec(x.ndim, may_open=False)
    return x.shard(self.mesh, spec) if self.hints.random() < 0.15 and self.hinted else x

  def propagate(self, turned: bool = False) -> Propagation:
    """Places the program; `turned`: outputs given in the other order."""
    given = (self.gradients[::-1], self.outputs[::-1]) if turned else (self.outputs, self.gradients)
    return propagate(*given, mesh=self.mesh)

  def propagate_stating(self, at: Mapping[int, Any], priority: int = 0) -> Propagation:
    """Places the program with closed hints that say where some of its tensors are, by their numbers."""
    said = [
      self.tensors[i].constrain(spec_of(self.mesh, placement.dims), priority=priority)
      for i, placement in at.items()
      if isinstance(placement, Sharding)
    ]
    return propagate(self.outputs, self.gradients, said, mesh=self.mesh)

  @property
  def wire(self) -> float:
    """The bytes that move for outputs and gradients, as placed. (* 2: views do not move.)"""
    return explain(*[t * 2 for t in self.outputs + self.gradients]).wire

  def spec(self, rank: int, may_open: bool = True) -> P:
    rng, names = self.hints, list(self.mesh.names)
    rng.shuffle(names)
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in names:
      if rank and rng.random() < 0.6:
        dims[rng.randrange(rank)].append(name)
    return P(*(tuple(d) + (OPEN,) if may_open and rng.random() < 0.5 else tuple(d) or None for d in dims))

  def hint(self, x: Tensor) -> Tensor:
    rng = self.hints
    said: dict[str, Any] = {"spec": None if rng.random() < 0.15 else self.spec(x.ndim)}
    if rng.random() < 0.3:
      priority = rng.choice((rng.randint(0, LAST - 1), [rng.randint(0, LAST - 1) for _ in x.shape]))
      said |= {"priority": priority} if self.in_rounds else {}
    if rng.random() < 0.15 and not self.on_leaves:
      said["propagate"] = rng.choice(("forward", "backward", "none"))
    if rng.random() < 0.15:
      used = {name for entry in said["spec"] or () for name in entry or ()}
      said["replicated"] = [name for name in self.mesh.names if name not in used][:1]
    if rng.random() < 0.15:
      said["reduced"] = self.mesh.names[:1]
    if rng.random() < 0.15:
      said = {"spec": None, "group": x.ndim}
    return x.constrain(**said)

  def op(self, x: Tensor) -> Tensor | None:
    rng = self.rng
    kind = rng.choice((*BINARY, "matmul", "take", "cat", *(("move",) * 5), *(("reduce",) * 3)))
    y = rng.choice(self.values)
    if kind in BINARY:
      fits = all(1 in (m, n) or m == n for m, n in zip(reversed(x.shape), reversed(y.shape)))
      return BINARY[kind](x, y if fits else x)
    if kind == "matmul":
      fit = [z for z in self.values if x.ndim == z.ndim == 2 and z.shape[0] == x.shape[1]]
      return (x @ rng.choice(fit)).clip(-20, 20) if fit else None
    if not x.ndim:
      return None
    if kind == "take":
      return x[self.put(Tensor(self.data.integers(0, x.shape[0], (4,)).astype(np.int32)))]
    axis = rng.randrange(x.ndim)
    if kind == "cat":
      return Tensor.cat(x, x + 1, dim=axis)
    return self.moved(x, axis) if kind == "move" else self.reduced(x, axis)

  def reduced(self, x: Tensor, axis: int) -> Tensor:
    match self.rng.randrange(3):
      case 0:
        return x.sum(axis, keepdim=self.rng.random() < 0.5).clip(-50, 50)
      case 1:
        return x.max(axis, keepdim=self.rng.random() < 0.5)
    if self.on_leaves or self.places:  # the algorithm of a cumsum follows where its source is when it is written
      return x.min(axis)
    return x.cumsum(axis).clip(-50, 50)

  def moved(self, x: Tensor, axis: int) -> Tensor:
    rng = self.rng
    match rng.randrange(6):
      case 0:
        return x.transpose(0, -1)
      case 1:
        n = math.prod(x.shape)
        rows = rng.choice([i for i in range(1, n + 1) if n % i == 0])
        return x.reshape(rows, n // rows)
      case 2:
        return x.pad(tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in x.shape))
      case 3:
        starts = [rng.randint(0, n // 2) for n in x.shape]
        return x.shrink(tuple((a, rng.randint(a + 1, n)) for a, n in zip(starts, x.shape)))
      case 4:
        return x.flip(axis)
    return x.unsqueeze(0).expand(rng.choice((2, 4)), *x.shape)


class Case:
  """A seed's program as laws look at it: it is placed once for all of them."""

  def __init__(self, seed: int) -> None:
    self.seed = seed

  @functools.cached_property
  def placed(self) -> Placed:
    return Placed(Program(self.seed, True))

  def again(self, at: Mapping[int, Any], priority: int) -> str:
    """What to state where some values are changes."""
    again = Program(self.seed, True)
    again.propagate_stating(at, priority)
    if said := differing("stated", self.placed.devices, devices(again.tensors)):
      return said
    return "" if again.wire == self.placed.wire else f"stated: {again.wire} bytes move, not {self.placed.wire}"


class Placed:
  """A program, placed; `given`: where leaves were; `devices`: where all tensors are before anything is computed."""

  def __init__(self, program: Program) -> None:
    self.program, self.given = program, devices(program.leaves)
    self.found = program.propagate()
    self.devices, self.wire = devices(program.tensors), program.wire
    self.sink = UOp.sink(*[t.uop for t in program.tensors])


def values(case: Case) -> str:
  want = [t.numpy() for t in Program(case.seed, False).tensors]
  p = case.placed.program
  for x, before in zip(p.leaves, case.placed.given):
    if before != "CPU" and x.device != before:
      return f"a leaf that the user placed at {before} is at {x.device}"
  for t, there, expected in zip(p.tensors, case.placed.devices, want, strict=True):
    np.testing.assert_allclose(t.numpy(), expected, rtol=1e-5, atol=1e-5)  # a gradient of max may be a third
    if t.device != there:
      return f"a tensor that showed {there} is at {t.device} when it is read"
  return ""


def cuts(case: Case) -> str:
  p, found = case.placed.program, case.placed.found
  for u, at in [(u, found.answer[u]) for u in found.answer.asked.order] + [
    (u, v.device) for v, u in found.before.items()
  ]:
    if u.op is not Ops.CONSTRAIN or not isinstance(at, Sharding):
      continue
    for i, (said, is_open) in enumerate(zip(u.arg.sub_axes(p.mesh)[0], u.arg.opened)):
      said, there = within_axes(said, p.mesh), within_axes(at.cut(i), p.mesh)
      if common(said, there) != said or not (is_open or said == there):
        return f"{u.arg} is at {at}"
  return ""


def differing(what: str, before: Sequence[Any], after: Sequence[Any]) -> str:
  """Which of two lists of placements differ."""
  return "; ".join(f"{what}: {x} is {y}" for x, y in zip(before, after, strict=True) if x != y)


def devices(tensors: Sequence[Tensor]) -> list[Any]:
  return [t.device for t in tensors]


def order(case: Case) -> str:
  turned = Program(case.seed, True)
  turned.propagate(turned=True)
  return differing("turned", case.placed.devices, devices(turned.tensors))


def stated(case: Case, priority: int = 0) -> str:
  placed = dict(enumerate(case.placed.devices))  # a constant is another program's, too
  one = random.Random(case.seed).choice(list(placed))
  return case.again(placed, priority) or case.again({one: placed[one]}, priority)


def stated_last(case: Case) -> str:
  return stated(case, LAST)


def between(case: Case, priority: int = 0) -> str:
  p = Program(case.seed, True, differentiated=False)
  p.propagate()
  read, wire = UOp.sink(*[t.uop for t in p.outputs]).toposort(), p.wire
  for i, x in enumerate(p.values):
    if x.uop in read:
      again = Program(case.seed, True, differentiated=False, stated={i: x.device}, stated_in=priority)
      again.propagate()
      if said := differing(f"value {i} stated", devices(p.tensors), devices(again.tensors)):
        return said
      if again.wire != wire:
        return f"value {i} stated: {again.wire} bytes move, not {wire}"
  return ""


def after_all(case: Case) -> str:
  return between(case, LAST)


def twice(case: Case) -> str:
  p = Program(case.seed, True, in_rounds=False)  # where a hint of a later round has moved a value, it is there then
  p.propagate()
  once = devices(p.tensors)
  p.propagate()
  return differing("twice", once, devices(p.tensors))


def unhinted(case: Case) -> str:
  p = Program(case.seed, False)
  propagate(p.tensors, mesh=p.mesh)
  if (moved := explain(*p.outputs, *p.gradients).wire) != 0:
    return f"{moved} bytes move"
  found = devices([t for t in p.tensors if t.uop.device is not None])  # a gradient may be a constant
  return differing("unhinted", [Sharding(p.mesh, P())] * len(found), found)


def no_more_bytes(case: Case) -> str:
  p = Program(case.seed, False, on_leaves=True)
  p.propagate()
  by_hooks = Program(case.seed, False, places=devices(p.memory))
  return f"{p.wire} bytes move, by hooks {by_hooks.wire}" if p.wire > by_hooks.wire else ""


def bounded(case: Case) -> str:
  order = build.without_hints(case.placed.sink).toposort()
  if not any(is_partial(u.device) for u in order):
    return ""  # `place` decides nothing again
  with Context(RESHARD=1):
    anew = Placer(order).run()
    most, moved = prices.bytes_at_most(anew), prices.bytes_as_placed(anew)
  return "" if moved <= most or math.isclose(moved, most) else f"{moved} bytes move, at most {most}"  # sums round


LAWS: dict[str, Callable[[Case], str]] = {
  "values": values,
  "cuts": cuts,
  "order": order,
  "stated": stated,
  "last": stated_last,
  "twice": twice,
  "unhinted": unhinted,
  "bytes": no_more_bytes,
  "bound": bounded,
}
ALL_LAWS = LAWS | {"between": between, "after_all": after_all}


def check(seed: int, law: str = "values") -> str:
  """What is wrong with a program; "" if nothing is."""
  return checked(Case(seed), law)


def checked(case: Case, law: str) -> str:
  try:
    return ALL_LAWS[law](case)
  except Exception as e:  # whatever it is, it is the finding
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
  parser.add_argument("--programs", type=int, default=1000, help="how many (1000)")
  parser.add_argument("--show", type=int, metavar="SEED", help="print what was decided for one program")
  parser.add_argument(
    "--laws", default=",".join(LAWS), help="which, with commas between (all but `between` and `after_all`)"
  )
  args = parser.parse_args()
  laws = args.laws.split(",")
  if wrong := [law for law in laws if law not in ALL_LAWS]:
    parser.error(f"no law: {', '.join(wrong)}; there are {', '.join(ALL_LAWS)}")
  with Context(INTERPRET=1):
    if args.show is not None:
      p = Program(args.show, True)
      print(p.mesh, p.propagate(), sep="\n")
      print(print_graph(UOp.sink(*[t.uop for t in p.outputs + p.gradients])))
      said = [f"{law}: {check(args.show, law) or 'holds'}" for law in laws]
      print(*said, sep="\n")
      return any(not line.endswith(": holds") for line in said)
    failed = 0
    for seed in tqdm(range(args.first, args.first + args.programs), desc="programs"):
      case = Case(seed)
      found = [f"\nseed {seed}: {law}: {said}" for law in laws if (said := checked(case, law))]
      failed += bool(found)
      print(*found, sep="", end="", flush=True)
  print(f"{args.programs - failed} programs agree, {failed} do not")
  return bool(failed)


if __name__ == "__main__":
  sys.exit(main())
