"""The passes of codegen/lower.py, one by one: those that no file of their own tests (decompose, dots, share)."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, sink, store

from tinygrad.codegen import loop_clipping
from tinygrad.codegen.decompose import decompose_alone
from tinygrad.codegen.loop_clipping import clip_loops, loop_limits
from tinygrad.codegen.lower import drop_unit_ranges, linearizer, lower_kernel, passes
from tinygrad.codegen.plan import LoopNest
from tinygrad.codegen.row_blocks import all_rows, blocks_of_rows, parts_of, shared_rows
from tinygrad.codegen.scatter import nests_of, with_row_memory
from tinygrad.codegen.share import share_out
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import affine
from tinygrad.uop.loop_ids import LoopIds

X = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
CPU = Target("CPU", 64, 32, 1 << 20, shares=True)


def ranges(kernel):
  return {u for u in kernel.toposort() if u.op is Ops.RANGE}


def test_unit_ranges_are_zero():
  """Loops and reductions of one iteration; a reduction that has no range left is its value."""
  i, one, k = loop(64, 0), loop(1, 1), reduce(1, 2)
  x = load(1, X[:, 0], dot((i, 1), (one, 7), (k, 3)))
  ast = sink(store(dot((i, 1), (one, 64)), fold(Ops.ADD, x, k), i, one, size=64))
  out = drop_unit_ranges(ast)
  assert ranges(out) == {i} and out.src[0].src[1].op is Ops.LOAD and out.src[0].src[2:] == (i,)
  np.testing.assert_array_equal(evaluate(out, [X[:, 0]]), evaluate(ast, [X[:, 0]]))
  assert drop_unit_ranges(out) is out


def masked_rows(n=64):
  """Of each row i the sum over columns up to i: in memory of its own, what is masked, and then its sum."""
  i, j, k = loop(n, 0), loop(n, 1), reduce(n, 2)
  kept = op(Ops.CMPLT, j, op(Ops.ADD, i, num(1)))
  row = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(-1, n))
  value = op(Ops.WHERE, kept, load(1, X, dot((i, 96), (j, 1))), UOp.const(dtypes.float32, 0))
  first = UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, dtypes.float32, (row, j)), value, i, j))
  there = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (row, k)),))
  return sink(first, store(i, fold(Ops.ADD, there, k), i, size=n)), (i, j, k)


def test_loops_have_limits():
  """Both loops over columns end after that of the row's number; a kernel of one store is as it was."""
  ast, (i, j, k) = masked_rows()
  stores, limits = parts_of(clip_loops(ast))
  assert stores == ast.src
  assert {x.src[0]: affine(x.src[1], {}).terms for x in limits} == {j: {i: 1}, k: {i: 1}}
  alone = sink(ast.src[1])
  assert clip_loops(alone) is alone


@pytest.mark.parametrize("rows, threads", [(1024, 2), (1000, 3), (1024, 512)])
def test_limits_go_where_the_loops_go(rows, threads):
  """A thread's rows begin at its piece: what was found of the whole kernel is what would be found of its share."""
  kernel = clip_loops(masked_rows(rows)[0])
  share = drop_unit_ranges(share_out(kernel, threads))
  stores, limits = parts_of(share)
  assert share is not kernel and len(limits) == 2
  assert {x.src[0]: affine(x.src[1], {}) for x in limits} == loop_limits(stores, all_rows(stores))


@pytest.mark.parametrize("threads", [1, 2])
def test_limits_are_found_once(threads, monkeypatch):
  found = []
  monkeypatch.setattr(loop_clipping, "loop_limits", lambda *a: found.append(loop_limits(*a)) or found[-1])
  ends = [u.src[0] for u in lower_kernel(masked_rows(1024)[0], CPU, threads) if u.op is Ops.RANGE]
  assert len(found) == 1 and len(found[0]) == 2
  assert any(end.op is not Ops.CONST for end in ends)


def added_by_index(times=2, n=40):
  """So many times what goes to place i."""
  i, d, j = loop(n, 0), loop(8, 1), reduce(100, 2)
  at = np.arange(100, dtype=np.int32) * 7 % n
  row = UOp.new(Ops.CAST, dtypes.index, (load(1, at, j),))
  value = UOp.new(
    Ops.ONE_HOT, dtypes.float32, (row, i, load(2, np.ones(800, np.float32), dot((j, 8), (d, 1)))), Ops.ADD
  )
  total = fold(Ops.ADD, value, j)
  total = total if times == 1 else op(Ops.MUL, total, UOp.const(dtypes.float32, times))
  return sink(store(dot((i, 8), (d, 1)), total, i, d, size=8 * n))


def test_scatters_are_set_apart():
  """The sums get memory of the rows, and a store of their own; of loops, only those over rows are both stores'."""
  ast = added_by_index()
  sums, rest = with_row_memory(ast, CPU).src
  memory = sums.src[0].src[0]
  assert memory.arg.slot < 0 and sums.src[1].op is Ops.FOLD
  assert memory in rest.toposort() and not any(u.op is Ops.ONE_HOT for u in rest.toposort())
  assert shared_rows((sums, rest)) == ast.src[0].src[2:3]
  for target in (Target("CPU", 64, 32, 0), Target("GPU", threads=True, scratch=1 << 16)):  # no memory for it; not loops
    assert with_row_memory(ast, target) is ast


def test_only_a_kernel_of_one_store_is_decomposed_whole():
  ast, _ = masked_rows()
  assert decompose_alone(ast, True) is ast
  i = loop(64, 0)
  alone = sink(store(i, UOp.new(Ops.EXP, dtypes.float32, (load(1, X[:, 0], i),)), i, size=64))
  assert not any(u.op is Ops.EXP for u in decompose_alone(alone, True).toposort())


def test_rows_are_nests_in_loops():
  """A loop over blocks of rows: in it a nest for each store, whose loops end by the block's last row."""
  ast, (i, j, k) = masked_rows()
  ids = LoopIds(ast)
  (around,) = blocks_of_rows(clip_loops(ast), replace(CPU, cache=1 << 14), ids)
  counter = ids.loop(around.count, AxisKind.LOOP)
  first, second = around.body(counter)
  assert first.ends.keys() == second.ends.keys() == {j, k} and counter in first.ends[j].toposort()
  assert first.memory == second.memory and first.stores[0].src[0].src[0] in first.memory
  assert first.taken * around.count.arg == 64 * 64 * 4  # the masked row is memory of the block's rows
  assert i not in first.stores[0].toposort()


def test_scatters_are_nests_in_loops():
  """Each place begins, then each update adds to its own; inside of a loop that ends early they are compared."""
  sums = added_by_index(1).src
  begin, around = nests_of(LoopNest(sums))
  assert begin.stores[0].src[1].op is Ops.CONST and around.count.arg == 100
  (dense,) = nests_of(LoopNest(sums, ends={loop(1, 99): num(1)}))
  assert not any(u.op is Ops.ONE_HOT for u in dense.stores[0].toposort())


@pytest.mark.parametrize("threads", [1, 4])
def test_lowering_is_the_passes_and_then_the_linearizer(threads):
  for ast in (masked_rows()[0], added_by_index()):
    kernel = ast
    for lower in passes(CPU, threads):
      kernel = lower(kernel)
      assert kernel.op is Ops.SINK and kernel.src[0].op is Ops.STORE
    assert linearizer(CPU, None)(kernel) == lower_kernel(ast, CPU, threads)
