"""Loops of a kernel: no two become one node, however many there are."""

import itertools

from tinygrad import dtypes
from tinygrad.schedule import loops
from tinygrad.schedule.loops import tidy
from tinygrad.schedule.row_groups import single
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.loops import LoopIds


def loop(number, end):
  return UOp.new(Ops.RANGE, dtypes.index, (index(end),), (number, AxisKind.LOOP))


def kernel(at, *loops):
  """out[0] = x[at] for all of the loops."""
  out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 20)) for slot in range(2))
  value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, at)),))
  where = UOp.new(Ops.INDEX, dtypes.float32, (out, index(0)))
  return UOp.sink(UOp.new(Ops.STORE, dtypes.void, (where, value, *loops)))


def split_beside(other):
  """The loops that are left of one that is split into 16 and 2, and of one of 16 steps numbered `other`."""
  r, s = loop(5, 32), loop(other, 16)
  made = tidy(kernel((r + 1) // 2 + (r + 1) % 2 * 1000 + s * 7000, r, s)).src[0].src[2:]
  assert all(r.op is Ops.RANGE for r in made)
  return [int(r.src[0].arg) for r in dict.fromkeys(made)]


def test_the_parts_of_a_loop_are_none_of_the_kernels_others(monkeypatch):
  """Whatever the numbers of these: small ones, and those that a formula of numbers and steps may hit."""
  assert all(split_beside(other) == [16, 2, 16] for other in (0, 1, 6, 21, 1005, 2005))
  monkeypatch.setattr(LoopIds, "__init__", lambda self, *taken: setattr(self, "ids", itertools.count()))  # a mutant
  assert any(split_beside(other) != [16, 2, 16] for other in (0, 1, 6))


def lengths(at, *over):
  """The loops of a kernel in its normal form, by lengths."""
  return [int(r.src[0].arg) for r in tidy(kernel(at, *over)).src[0].src[2:]]


def test_a_loop_that_divisions_read_from_its_end_is_turned(monkeypatch):
  """It then splits where they divide it; what is read both ways stays as it is, and a reduction keeps its order."""
  r, k = loop(0, 32), UOp.new(Ops.RANGE, dtypes.index, (index(32),), (0, AxisKind.REDUCE))
  back, falling = r * -1 + 31, k * -1 + 31
  assert lengths(back // 2 + back % 2 * 1000, r) == [16, 2]
  both = kernel(back // 3 + r // 3 * 1000, r)
  assert loops.reverse_ranges(both) is both
  assert lengths(falling // 2 + falling % 2 * 1000, k) == [32]
  (store,) = tidy(kernel(back // 3, r)).src
  assert store.src[1].src[0].src[1] is store.src[2] // 3
  monkeypatch.setattr(loops, "reverse_ranges", lambda sink: sink)  # a mutant
  assert lengths(back // 2 + back % 2 * 1000, r) == [32]


def test_kernels_of_many_loops_share_none_until_they_are_joined():
  """Loops alike in end and kind, as those of an unrolled recurrence: 300 in each of 20 kernels."""
  ids, seen = LoopIds(), set()
  loops = [loop(i, 2) for i in range(300)]
  at = index(0)
  for r in loops:
    at = UOp.new(Ops.ADD, dtypes.index, (at, r))
  ast = kernel(at, *loops)
  for _ in range(20):
    rows = single(ast, (0, 1), ids).rows
    assert len(set(rows)) == 300 and seen.isdisjoint(rows)
    seen.update(rows)


def test_new_loops_are_above_all_that_the_kernels_have():
  a, b = loop(3, 8), loop(70, 8)
  ids = LoopIds(kernel(a, a), kernel(b, b))
  new = [ids.loop(index(8), AxisKind.LOOP) for _ in range(3)]
  assert len({a, b, *new}) == 5 and [r.arg[0] for r in new] == [71, 72, 73]
  copied = ids.copies(kernel(a + b, b, a))
  assert [copied[r].arg[0] for r in (a, b)] == [74, 75]  # in the order that they had


def scattered(at, row, *loops):
  """out[a·24 + b] = the sum of the x[i] whose row is `at`: a SCATTER over one loop of 50."""
  out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 20)) for slot in range(2))
  i = UOp.new(Ops.RANGE, dtypes.index, (index(50),), (9, AxisKind.REDUCE))
  value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, i)),))
  one = UOp.new(Ops.ONE_HOT, dtypes.float32, (row(i), at, value), Ops.ADD)
  where = UOp.new(Ops.INDEX, dtypes.float32, (out, loops[0] * 24 + loops[1]))
  return UOp.sink(
    UOp.new(Ops.STORE, dtypes.void, (where, UOp.new(Ops.FOLD, dtypes.float32, (one, i), Ops.ADD), *loops))
  )


def test_places_of_updates_join_loops_as_indices_of_memory_do():
  """Two loops that are a row together, of which a step for each update then is one; not where updates are of the inner
  one alone, or read a loop. Mutant: they pin their loops, and every update is looked at for each iteration of the
  outer one."""
  a, b = loop(0, 30), loop(1, 24)
  lengths = lambda made: [int(r.src[0].arg) for r in tidy(made).src[0].src[2:]]  # noqa: E731
  assert lengths(scattered(a * 24 + b, lambda i: i * 7, a, b)) == [720]
  assert lengths(scattered(a * 24 + b + 5, lambda i: i * 7, a, b)) == [720]
  assert lengths(scattered(b, lambda i: i * 7, a, b)) == [30, 24]
  assert lengths(scattered(a * 24 + b, lambda i: i * 7 + a, a, b)) == [30, 24]
