"""Random programs with random hints, placed by `propagate` on random meshes: their values and gradients are those of
the same programs without hints, on one device.

    SPEC=2 python -m extra.fuzz_hints [--first 0] [--programs 1000] [--show SEED]

A program has 1 to 3 leaves of small whole numbers (lazy, realised, or placed by the user), up to 9 ops with hints on
some of their results, up to 3 outputs and mostly the gradients of the leaves. What fails is printed by seed; `--show`
prints one program's hints and graph as they were decided. The exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinygrad import OPEN, Context, Mesh, P, Tensor, propagate
from tinygrad.helpers import prod, tqdm
from tinygrad.uop import UOp, print_graph

MESHES = [(2, None, ("a",)), (4, (2, 2), ("a", "b")), (6, (2, 3), ("a", "b")), (4, None, ("a",)), (3, None, ("a",))]
SHAPES = ((8, 8), (8,), (4, 8), (6, 4, 2), (5, 8))
MOST = 4000  # elements of a value

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
  hinted: bool
  mesh: Mesh = field(init=False)
  leaves: list[Tensor] = field(default_factory=list)
  outputs: list[Tensor] = field(default_factory=list)
  gradients: list[Tensor] = field(default_factory=list)

  def __post_init__(self) -> None:
    self.rng, self.hints = random.Random(self.seed), random.Random(self.seed)
    self.data = np.random.default_rng(self.seed)
    n, shape, names = self.rng.choice(MESHES)
    self.mesh = Mesh([f"CPU:{i}" for i in range(n)], shape, names)
    self.values = [self.leaf() for _ in range(self.rng.randint(1, 3))]
    self.leaves = list(self.values)
    for _ in range(self.rng.randint(2, 9)):
      value = self.op(self.rng.choice(self.values))
      if value is not None and prod(value.shape) <= MOST and value.ndim <= 4:
        said = self.hints.random() < 0.4
        self.values.append(self.hint(value) if said and self.hinted else value)
    self.outputs = [self.rng.choice(self.values) for _ in range(self.rng.randint(1, 3))]
    if self.rng.random() < 0.6:
      loss = sum((y.float().sum() for y in self.outputs), Tensor(0.0))
      for x in self.leaves:
        x.requires_grad = True
      reached = {x for x in self.leaves if x.uop in loss.uop.toposort()}
      self.gradients = list(loss.gradient(*[x for x in self.leaves if x in reached])) if reached else []

  @property
  def tensors(self) -> list[Tensor]:
    return [*self.outputs, *self.gradients, *self.leaves]

  def leaf(self) -> Tensor:
    rng = self.rng
    shape, kind = rng.choice(SHAPES), rng.randrange(3)
    x, spec = Tensor(self.data.integers(-3, 4, shape).astype(np.float32)), self.spec(len(shape), may_open=False)
    if kind == 2 and self.hinted:
      return x.shard(self.mesh, spec).realize()
    return x.realize() if kind else x

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
      said["priority"] = rng.randint(0, 2)
    if rng.random() < 0.15:
      said["propagate"] = rng.choice(("forward", "backward", "none"))
    if rng.random() < 0.15:
      used = {name for entry in said["spec"] or () for name in entry or ()}
      said["replicated"] = [name for name in self.mesh.names if name not in used][:1]
    if rng.random() < 0.15:
      said["reduced"] = self.mesh.names[:1]
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
      return x[Tensor(self.data.integers(0, x.shape[0], (4,)).astype(np.int32))]
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


def check(seed: int) -> str:
  """What is wrong with a program; "" if nothing is."""
  want = [t.numpy() for t in Program(seed, False).tensors]
  try:
    p = Program(seed, True)
    given = [x.device for x in p.leaves]
    propagate(p.outputs, p.gradients, mesh=p.mesh)
    for x, before in zip(p.leaves, given):
      if before != "CPU" and x.device != before:
        return f"a leaf that the user placed at {before} is at {x.device}"
    placed = [t.device for t in p.tensors]
    for t, there, expected in zip(p.tensors, placed, want, strict=True):
      np.testing.assert_allclose(t.numpy(), expected, rtol=1e-5, atol=1e-5)  # a gradient of max may be a third
      if t.device != there:
        return f"a tensor that showed {there} is at {t.device} when it is read"
  except Exception as e:  # whatever it is, it is the finding
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
  return ""


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
  parser.add_argument("--programs", type=int, default=1000, help="how many (1000)")
  parser.add_argument("--show", type=int, metavar="SEED", help="print what was decided for one program")
  args = parser.parse_args()
  with Context(INTERPRET=1):
    if args.show is not None:
      p = Program(args.show, True)
      print(p.mesh, propagate(p.outputs, p.gradients, mesh=p.mesh), sep="\n")
      print(print_graph(UOp.sink(*[t.uop for t in p.outputs + p.gradients])))
      return bool(check(args.show))
    failed = 0
    for seed in tqdm(range(args.first, args.first + args.programs), desc="programs"):
      if said := check(seed):
        failed += 1
        print(f"\nseed {seed}: {said}")
  print(f"{args.programs - failed} programs agree, {failed} do not")
  return bool(failed)


if __name__ == "__main__":
  sys.exit(main())
