"""Random kernels against numpy: any operands, layouts, masks, ends and epilogues, for several processors."""

import random

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store

from tinygrad.codegen.heuristics import cpu as heuristic
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops, UOp

SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 33, 48, 50)
TARGETS = (
  Target("wide", 64, 32, scratch=1 << 24),
  Target("middle", 32, 16, scratch=1 << 20),
  Target("narrow", 16, 16, scratch=1 << 16),
)


class Case:
  """One random kernel: its AST, arrays and variables."""

  def __init__(self, seed: int) -> None:
    self.rng = random.Random(seed)
    self.arrays: list[np.ndarray] = []
    self.variables: dict[str, int] = {}
    self.numbers = iter(range(100))
    outer = [self.range(loop) for _ in range(self.rng.randint(0, 3))]
    value = self.value(outer, 2)
    order = outer[:]
    self.rng.shuffle(order)
    self.sizes = {r: r.src[0].vmax for r in outer}
    offset, size = self.layout(order)
    if self.rng.random() < 0.3:
      value = op(Ops.MAX, value, self.load(outer))
    ranges = outer[:]
    self.rng.shuffle(ranges)
    self.ast = sink(store(offset, value, *ranges, size=size))

  def range(self, kind) -> UOp:
    n, number = self.rng.choice(SIZES), next(self.numbers)
    if self.rng.random() < 0.15:
      name = f"v{number}"
      self.variables[name] = self.rng.randint(0, n)
      return kind(UOp.variable(name, 0, n), number)
    return kind(n, number)

  def layout(self, ranges: list[UOp]) -> tuple[UOp, int]:
    """Row-major over `ranges`, sometimes with gaps or an offset."""
    stride, terms = self.rng.choice((1, 1, 1, 2, 3)), []
    for r in reversed(ranges):
      terms.append((r, stride))
      stride *= r.src[0].vmax
    return dot(*terms), max(stride, 1) + 2

  def load(self, ranges: list[UOp]) -> UOp:
    mine = [r for r in ranges if self.rng.random() < 0.75]
    self.rng.shuffle(mine)
    offset, size = self.layout(mine)
    if len(mine) > 1 and self.rng.random() < 0.15:  # a window
      a, b = mine[-2:]
      offset, size = op(Ops.ADD, a, b), a.src[0].vmax + b.src[0].vmax
    if self.rng.random() < 0.1:
      k = self.rng.randint(2, 9)
      offset = op(self.rng.choice((Ops.IDIV, Ops.MOD)), offset, num(k))
    self.arrays.append(np.random.default_rng(len(self.arrays)).standard_normal(size).astype(np.float32))
    valid = None
    if mine and self.rng.random() < 0.25:
      r = self.rng.choice(mine)
      offset = op(Ops.SUB, offset, num(self.rng.randint(0, 3)))
      inside = op(Ops.AND, op(Ops.CMPLT, num(-1), offset), op(Ops.CMPLT, offset, num(size)))
      valid = op(Ops.AND, inside, op(Ops.CMPLT, r, num(self.rng.randint(0, r.src[0].vmax + 2))))
    return load(len(self.arrays), self.arrays[-1], offset, valid)

  def value(self, ranges: list[UOp], depth: int) -> UOp:
    choice = self.rng.random()
    if depth == 0 or choice < 0.15:
      return self.load(ranges)
    if choice < 0.65:
      mine = [self.range(reduce) for _ in range(self.rng.randint(1, 2))]
      inner = [*ranges, *mine]
      inside = op(Ops.MUL, self.value(inner, 0), self.value(inner, depth - 1 if self.rng.random() < 0.4 else 0))
      if self.rng.random() < 0.2:
        inside = op(Ops.MAX, inside, UOp.const(dtypes.float32, 0.0))
      return fold(self.rng.choice((Ops.ADD, Ops.ADD, Ops.MAX, Ops.MIN)), inside, *mine)
    x, y = self.value(ranges, depth - 1), self.value(ranges, depth - 1)
    if choice < 0.75:
      return op(Ops.WHERE, op(Ops.CMPLT, x, y), x, UOp.const(dtypes.float32, -1.5))
    return op(self.rng.choice((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX)), x, y)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", range(80))
def test_random_kernels(seed, eager, monkeypatch):
  """`eager`: staging and blocks wherever they are possible, not only where they pay."""
  device = Device["CPU"]
  monkeypatch.setattr(device, "target", TARGETS[seed % len(TARGETS)])
  monkeypatch.setattr(device, "arenas", [])
  if eager:
    for name, value in {
      "STAGE_REUSE": 1,
      "STAGE_WORK": 0,
      "PANEL_PARTS": 1 << 11,
      "BLOCK_OUTPUTS": 1,
    }.items():
      monkeypatch.setattr(heuristic, name, value)
  case = Case(seed)
  names = sorted(u.arg[0] for u in case.ast.toposort() if u.op is Ops.VARIABLE)
  got = run(case.ast, case.arrays, [case.variables[n] for n in names])
  want = evaluate(case.ast, case.arrays, case.variables)
  scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale)
