"""A value that is realised replaces its node in all that was built on it: random programs over several devices with
realises and reads in between hold the values, the placements and the gradients of the program without them."""

import contextlib

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit
from tinygrad.sharding import replacement
from tinygrad.transforms import gradient as differentiation
from tinygrad.uop import Ops, UOp

D2, D4 = ("CPU:0", "CPU:1"), ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
N = 8
LARGEST = 2.0**18  # below it sums of integers, and their parts, are exact
FLOATS = ("add", "sub", "mul", "maximum", "dot")
PROGRAMS = 20


def reduction(f, axis):
  return lambda x: getattr(x, f)(axis, keepdim=True)


UNARY = {
  "neg": lambda x: x.neg(),
  "relu": lambda x: x.relu(),
  "double": lambda x: x * 2,
  "more": lambda x: x + 1,
  "transpose": lambda x: x.transpose(0, 1),
  "flip": lambda x: x.flip(1),
  "shift": lambda x: x[1:].pad(((0, 1), (0, 0))),
  "turn": lambda x: x.reshape(2, 4, N).permute(1, 0, 2).reshape(N, N),
  "positive": lambda x: (x > 0).where(x, 1.0),
  "contiguous": lambda x: x.contiguous(),
  **{f"{f}{axis}": reduction(f, axis) for f in ("sum", "max", "min") for axis in (0, 1)},
  "total": lambda x: x.sum().reshape(1, 1),
}
BINARY = {f: lambda x, y, f=f: getattr(x, f)(y) for f in FLOATS}
READS = {
  "realize": lambda x: x.realize(),
  "numpy": lambda x: x.numpy(),
  "tolist": lambda x: x.tolist(),
  "item": lambda x: x.sum().item(),
}


class Program:
  """Steps on a growing list of 8x8 values that broadcast; drawn along with float64 arrays, which bound what they do."""

  def __init__(self, seed: int) -> None:
    self.r = np.random.default_rng(seed)
    self.leaves = [self.r.integers(-2, 3, (N, N)).astype(np.float32) for _ in range(3)]
    self.cuts = [[None, 0, 1][self.r.integers(3)] for _ in range(5)]
    self.steps = []
    with Context(DEFER=0, INTERPRET=1):
      values = self.inputs(list(map(Tensor, self.leaves)))
      while len(values) < 14:
        step = self.draw(len(values))
        made = self.apply(step, values)
        if np.abs(made.numpy()).max() < LARGEST:
          values.append(made)
          self.steps.append(step)
    self.targets = [*range(4), *map(int, self.r.choice(range(5, len(values) - 1), 3, replace=False))]

  def draw(self, n: int):
    i, j = (int(n - 1 - min(self.r.geometric(0.35) - 1, n - 1)) for _ in range(2))
    if self.r.random() < 0.4:
      return str(self.r.choice(list(BINARY))), i, j
    return str(self.r.choice(list(UNARY))), i

  def apply(self, step, values):
    name, *operands = step
    operands = [values[i] for i in operands]
    if name == "dot":
      operands = [x.expand(N, N) for x in operands]
    if name in ("flip", "shift", "turn"):
      operands = [x.expand(N, N) for x in operands]
    return (UNARY | BINARY)[name](*operands)

  def inputs(self, leaves):
    return [*leaves, Tensor.ones(N, N), Tensor.full((1, 1), 2.0)]

  def walk(self, values, devices, seed: int, ways, read: float):
    """The values of all steps. Of those that live one is read `read` of the time, in one of some ways."""
    r = np.random.default_rng(seed)
    for i, cut in enumerate(self.cuts) if devices else ():
      values[i] = values[i] if i > 2 and cut is None else values[i].shard(devices, cut)
    for step in self.steps:
      values.append(self.apply(step, values))
      while r.random() < read:
        look(r, values, ways)
    return values

  def run(self, devices, seed: int, read: float, early: bool = False):
    """(values, gradients) by number. What is realised `early`, before the gradients are built, is a leaf from then on:
    then these are others, and not compared."""
    ways = [*READS] if early else [k for k in READS if k != "realize"]
    values = self.walk(self.inputs(list(map(Tensor, self.leaves))), devices, seed, ways, read)
    shown = [x.device for x in values]
    loss = (values[-1] * values[-1]).sum() + values[-2].sum() + values[-3].max()
    grads = {}
    for i in self.targets:
      with contextlib.suppress(RuntimeError):  # the loss does not depend on it: so in every run, which is compared
        grads[i] = loss.gradient(values[i])[0]
        assert values[i].uop.device is None or grads[i].device == values[i].device
    shown += [g.device for g in grads.values()]
    lively, r = [*values, *grads.values()], np.random.default_rng(seed)
    for _ in range(3 if read else 0):
      look(r, lively, [*READS])
    assert [x.device for x in lively] == shown
    return [x.numpy() for x in values], {i: g.numpy() for i, g in grads.items()}


def look(r, values, ways) -> None:
  x = values[r.integers(len(values))]
  where = x.device
  READS[str(r.choice(ways))](x)
  assert x.device == where


def devices_of(seed: int) -> tuple[str, ...]:
  return tuple(f"CPU:{i}" for i in range(2 + seed % 3))


def check(seed: int) -> None:
  program = Program(seed)
  with Context(DEFER=0):
    values, grads = program.run(None, 0, 0.0)
  for early in (False, True):
    got, found = program.run(devices_of(seed), seed, 0.5, early)
    for i, (x, want) in enumerate(zip(got, values, strict=True)):
      np.testing.assert_array_equal(x, want, f"value {i}: {program.steps}")
    assert early or found.keys() == grads.keys(), f"gradient of a target lost: {program.steps}"
    for i, g in grads.items() if not early else ():
      np.testing.assert_allclose(found[i], g, rtol=1e-4, atol=1e-3, err_msg=f"gradient {i}: {program.steps}")


@pytest.mark.parametrize("defer", (0, 1))
@pytest.mark.parametrize("part", range(4))
def test_values_may_be_read_at_any_moment(defer, part):
  with Context(DEFER=defer, INTERPRET=1):
    for seed in range(PROGRAMS):
      check(1000 * defer + PROGRAMS * part + seed)


@pytest.mark.parametrize("defer", (0, 1))
@pytest.mark.parametrize("seed", range(4))
def test_values_may_be_realised_inside_a_captured_step(defer, seed):
  program = Program(seed)
  with Context(DEFER=defer):
    step = TinyJit(lambda *leaves: program.walk(program.inputs(leaves), devices_of(seed), seed, ["realize"], 0.5)[-3:])
    for shift in range(3):
      leaves = [np.roll(x, shift) for x in program.leaves]
      with Context(INTERPRET=1):
        want = program.walk(program.inputs(list(map(Tensor, leaves))), None, seed, ["realize"], 0.0)[-3:]
        want = [x.numpy() for x in want]
      for x, y in zip(step(*[Tensor(x).realize() for x in leaves]), want, strict=True):
        np.testing.assert_array_equal(x.numpy(), y, str(program.steps))


# ---------------------------------------------------------------- the kinds that programs above met, one by one


def test_a_constant_that_is_realised_is_brought_to_its_readers():
  for place in (D4, "CPU:1"):
    x, c = Tensor(np.arange(8, dtype=np.float32)).realize(), Tensor.full((8,), 2.0)
    x = x.shard(place, 0) if place is D4 else x.to(place)
    y, where = x * c, (x * c).device
    c.realize()
    assert y.device == where
    np.testing.assert_array_equal(y.numpy(), np.arange(8) * 2)
    (g,) = y.sum().gradient(c)
    assert g.device == c.device
    np.testing.assert_array_equal(g.numpy(), np.arange(8))


def test_what_moved_a_partial_value_is_no_view_of_its_buffer():
  x, w = (Tensor(np.ones(shape, np.float32)).shard(D2, 0).realize() for shape in ((4, 2), (2,)))
  (g,) = (x * w).sum().gradient(w)  # handed out where w is cut
  with Context(DEFER=1):
    partial = Tensor(g.uop.src[0])
    again = partial.to(partial.device)
    assert g.uop.op is again.uop.op is Ops.MOVE and g.uop.src[0] is again.uop.src[0]
  partial.realize()
  partial.assign(Tensor.zeros(*partial.shape)).realize()
  np.testing.assert_array_equal(g.numpy(), np.full(2, 4))
  np.testing.assert_array_equal(again.numpy().reshape(2), np.full(2, 4))


def test_a_target_that_was_moved_for_one_of_its_readers_gets_the_gradient_of_all():
  """The EXPAND that meets rows cut elsewhere is made again of a moved source."""
  b = Tensor(np.arange(8, dtype=np.float32)).shard(D2, 0)
  rows = Tensor(np.ones((4, 8), np.float32)).shard(D2, 0)
  e = b.reshape(1, 8).expand(4, 8)
  (g,) = ((e * 2).sum() + (e * rows * 3).sum()).gradient(e)
  np.testing.assert_array_equal(g.numpy(), np.full((4, 8), 5))


def test_a_write_of_a_replaced_value_moves_it_to_where_the_memory_is():
  memory, value = (Tensor.ones(8).shard(D2, 0).realize().uop for _ in range(2))
  write = UOp.new(Ops.ASSIGN, memory.dtype, (memory, value))
  elsewhere = Tensor.ones(8).shard(D2).realize().uop
  anew = replacement.decided_anew(write, (memory, elsewhere), None)
  assert anew.src[0] is memory and anew.src[1].device == memory.device != elsewhere.device


def test_the_programs_notice_a_value_that_is_replaced_without_deciding_again(monkeypatch):
  monkeypatch.setattr(replacement, "decided_anew", lambda u, src, arg: UOp.new(u.op, u.dtype, src, arg))
  with Context(DEFER=1, INTERPRET=1), pytest.raises(AssertionError, match="not placed for it"):
    for seed in range(PROGRAMS):
      check(1000 + seed)


def test_the_programs_notice_a_gradient_that_one_placement_of_a_value_alone_gets(monkeypatch):
  monkeypatch.setattr(
    differentiation, "occurrences", lambda order, targets: {t: [t] for t in targets if t in set(order)}
  )
  with Context(DEFER=1, INTERPRET=1), pytest.raises(AssertionError, match="gradient"):
    for seed in range(4 * PROGRAMS):
      check(1000 + seed)


@pytest.mark.parametrize("axis", (None, 0, 1))
def test_what_is_chosen_from_a_realized_value_and_another_is_compared_as_it_was(axis):
  """The greatest element is realised, then the greater of that and a value that is not is compared with where it comes
  from. (Mutant: whatever a comparison's side is chosen from is taken for something that was replaced.)"""
  a, b = np.arange(16, dtype=np.float32).reshape(4, 4) % 7, np.arange(4, dtype=np.float32).reshape(4, 1) * 2
  x = Tensor(a) if axis is None else Tensor(a).shard(D2, axis)
  x, other = (x + 1) * 0.5, Tensor(b) if axis is None else Tensor(b).shard(D2)
  greatest = x.max(1, keepdim=True)
  mask = greatest.maximum(other + 0.5) == x
  greatest.realize()
  a = (a + 1) * 0.5
  np.testing.assert_array_equal(mask.numpy(), np.maximum(a.max(1, keepdims=True), b + 0.5) == a)
