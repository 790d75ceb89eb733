"""Loops cut beside where a condition on them changes: the same values, and conditions where one part meets the next."""

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store
from test_grid import GRID
from test_kernels import WIDE, normal

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.dtype import dtypes
from tinygrad.helpers import PROCESS, Context
from tinygrad.numerics import cuts
from tinygrad.numerics.cuts import cut_loops
from tinygrad.renderer.streamed import streamed_stores
from tinygrad.runtime import native
from tinygrad.uop import Ops, UOp

ROWS = 3
i = loop(ROWS, 0)


def joined(*widths, rows=ROWS, inner=True):
  """Arrays beside each other: of each what lies before its end, else the next."""
  n = sum(widths)
  i, j = loop(rows, 0), loop(n, 1)
  arrays, value, end = [normal(rows, w) for w in widths], None, n
  for slot in reversed(range(len(widths))):
    w = widths[slot]
    end -= w
    here = op(Ops.CMPLT, j, num(end + w))
    valid = op(Ops.AND, op(Ops.CMPLT, num(end - 1), j), here)
    place = op(Ops.ADD, dot((i, w), (j, 1)), num(-end))
    part = load(1 + slot, arrays[slot], place, valid, UOp.const(dtypes.float32, 0))
    value = part if value is None else op(Ops.WHERE, here, part, value, dtype=dtypes.float32)
  assert value is not None
  where = dot((i, n), (j, 1)) if inner else dot((j, rows), (i, 1))
  return sink(store(where, value, i, j, size=rows * n)), arrays


def masked_in_loops(linear):
  """Accesses with a condition, inside of two loops."""
  depth, found = 0, 0
  for u in linear:
    depth += (u.op is Ops.RANGE) - (u.op is Ops.ENDRANGE)
    found += depth > 1 and u.op is Ops.LOAD and len(u.src[0].src) > 2
  return found


@pytest.mark.parametrize(
  "widths, ends",
  [
    ((3, 400), [16, 387]),
    ((300, 103), [288, 16, 99]),
    ((160, 160), [160, 160]),
    ((150, 150), [144, 16, 140]),
    ((100, 101, 102), [96, 16, 80, 16, 95]),
    ((1, 300, 1), [16, 272, 14]),
  ],
)
def test_conditions_are_asked_in_the_line_of_a_boundary(widths, ends, monkeypatch):
  ast, arrays = joined(*widths)
  want = evaluate(ast, arrays)
  np.testing.assert_array_equal(want.reshape(ROWS, -1), np.concatenate(arrays, 1))
  np.testing.assert_array_equal(run(ast, arrays), want)
  cut = cut_loops(ast, WIDE)
  assert [s.src[3].src[0].arg for s in cut.src] == ends and len({s.src[2] for s in cut.src}) == 1
  linear = lower_kernel(ast, WIDE)
  assert masked_in_loops(linear) == 0
  # mutant: nobody knows where they change
  monkeypatch.setattr(cuts, "changes_of", lambda r, nodes: set())
  np.testing.assert_array_equal(run(ast, arrays), want)
  assert masked_in_loops(lower_kernel(ast, WIDE))


def test_a_part_that_is_left_out_is_seen(monkeypatch):
  ast, arrays = joined(150, 150)
  right = cuts.parts_between
  monkeypatch.setattr(cuts, "parts_between", lambda *args: right(*args)[:-1])
  assert not np.array_equal(run(ast, arrays), evaluate(ast, arrays))


def several(widths):
  ast, _ = joined(*widths)
  return sink(*ast.src, ast.src[0].replace(src=(*ast.src[0].src[:2], *ast.src[0].src[2:])))


def summed():
  j, k = loop(300, 1), reduce(4, 2)
  x = load(1, normal(300, 4), dot((j, 4), (k, 1)))
  value = fold(Ops.ADD, op(Ops.WHERE, op(Ops.CMPLT, j, num(150)), x, op(Ops.NEG, x)), k)
  return sink(store(j, value, j, size=300))


@pytest.mark.parametrize(
  "ast",
  [joined(100, 100)[0], joined(80, 80, 80, 80)[0], joined(150, 150, inner=False)[0], several((150, 150)), summed()],
  ids=["short", "many parts", "across lines", "two stores", "a sum"],
)
def test_other_loops_stay_whole(ast):
  assert cut_loops(ast, WIDE) is ast


def test_neither_a_grid_nor_a_kernel_in_plain_loops_is_cut():
  ast, _ = joined(150, 150)
  assert cut_loops(ast, GRID) is ast
  with Context(NOOPT=1):
    assert cut_loops(ast, WIDE) is ast
  assert cut_loops(ast, WIDE) is not ast


def test_whole_lines_of_large_memory_go_past_the_caches_still():
  ast, _ = joined(1000, 3096, rows=3000)
  linear = lower_kernel(ast, WIDE)
  stores = [u for u in linear if u.op is Ops.STORE]
  assert len(streamed_stores(linear)) == len(stores) > 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_what_is_moved_round_and_put_together(dtype):
  x = np.random.default_rng(0).integers(0, 99, (5, 601)).astype(dtype)
  t = Tensor(x).realize()
  for k in (1, -3, 300, 600):
    np.testing.assert_array_equal(t.roll(k, 1).numpy(), np.roll(x, k, 1))
  np.testing.assert_array_equal(t.cat(t[:, :7], t, dim=1).numpy(), np.concatenate([x, x[:, :7], x], 1))
  np.testing.assert_array_equal(t[:, :-1].pad((1, 0)).numpy(), np.pad(x[:, :-1], ((0, 0), (1, 0))))
  np.testing.assert_array_equal(t.pad((0, 0, 2, 1), value=3).numpy(), np.pad(x, ((2, 1), (0, 0)), constant_values=3))
  t.assign(t.roll(2, 1)).realize()
  np.testing.assert_array_equal(t.numpy(), np.roll(x, 2, 1))


@pytest.mark.parametrize("moved", [lambda x: x.roll(300), lambda x: x[:500].pad((524, 0))])
def test_bits_do_not_depend_on_where_a_loop_is_cut(moved, monkeypatch):
  """Products that are added to are rounded alike in a part and in the whole, which chooses between them and others: as
  shorter loops are, of the same value on eight devices. (Mutant: all loops are cut.)"""
  a, b, y = (normal(1024) for _ in range(3))
  devices = tuple(f"CPU:{i}" for i in range(8))

  def differ():
    values = (moved(at(a) * at(b)) - at(y) for at in (Tensor, lambda x: Tensor(x).shard(devices, axis=0)))
    whole, parts = (v.numpy() for v in values)
    return (whole != parts).sum()

  with PROCESS.anew():
    assert differ() == 0
  monkeypatch.setattr(cuts, "sums_products", lambda nodes: False)
  with PROCESS.anew():
    assert differ() > 0 or not native.processor()[2].get("fma")
