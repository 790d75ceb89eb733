"""The passes of codegen/lower.py, one by one: those that no file of their own tests (decompose, dots, share, the
primitives)."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, sink, store

from tinygrad.codegen import row_blocks
from tinygrad.codegen import share as share_module
from tinygrad.codegen.check import check_limits
from tinygrad.codegen.heuristics.cpu import schedule_cpu
from tinygrad.codegen.linearize import linear_code
from tinygrad.codegen.lower import decompose_stores, lower_kernel, passes
from tinygrad.codegen.row_blocks import block_rows, shared_reads
from tinygrad.codegen.share import share_out
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.numerics import idle_loops
from tinygrad.numerics.idle_loops import CHUNK, clip_loops, loop_limits, parts_of
from tinygrad.numerics.scatter import step_scatters, with_row_memory
from tinygrad.uop import Ops, ParamArg, UOp, substitute
from tinygrad.uop.affine import affine
from tinygrad.uop.loops import all_rows, shared_rows
from tinygrad.uop.spec import SpecError

X = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
CPU = Target("CPU", 64, 32, 1 << 20, shares=True)


def ranges(kernel):
  return {u for u in kernel.toposort() if u.op is Ops.RANGE}


def test_a_piece_of_one_iteration_is_no_loop():
  i, k = loop(8, 0), reduce(1 << 18, 1)
  total = fold(Ops.ADD, load(1, np.ones(8 << 18, np.float32), dot((i, 1 << 18), (k, 1))), k)
  share = share_out(sink(store(dot((i, 3)), total, i, size=24)), 2)
  assert ranges(share) == {k} and share.src[0].src[2:] == ()
  assert [v.arg[:3] for v in share.variables()] == [("_piece", 0, 7)]


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
  share = share_out(kernel, threads)
  stores, limits = parts_of(share)
  assert share is not kernel and len(limits) == 2
  found = loop_limits(stores, all_rows(stores))
  assert {x.src[0]: affine(x.src[1], {}) for x in limits} == {r: affine(at, {}) for r, at in found.items()}


def test_a_pass_that_forgets_a_limit_is_seen():
  """Another loop in the place of one that ends early would go on."""
  kernel = clip_loops(masked_rows()[0])
  check_limits(kernel)
  stores, limits = parts_of(kernel)
  longer = {x.src[0]: loop(64, 7 + i) for i, x in enumerate(limits)}
  check_limits(substitute(kernel, longer))
  with pytest.raises(SpecError, match=r"loop \d may end early"):
    check_limits(sink(*substitute(sink(*stores), longer).src, *limits))


@pytest.mark.parametrize("threads", [1, 2])
def test_limits_are_found_once(threads, monkeypatch):
  found = []
  monkeypatch.setattr(idle_loops, "loop_limits", lambda *a: found.append(loop_limits(*a)) or found[-1])
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


def test_all_rows_that_updates_go_to_are_one_block():
  """A block of rows looks at every update: more of them would look at each as often."""
  open_loops, around = list[UOp](), list[int]()
  for u in lower_kernel(added_by_index(n=10000), Target("CPU", 64, 32, 1 << 24, shares=True)):
    if u.op is Ops.RANGE:
      if u.src[0].op is Ops.CONST and u.src[0].arg == 100:
        around.append(len(open_loops))
      open_loops.append(u)
    elif u.op is Ops.ENDRANGE:
      open_loops.pop()
  assert around == [0]


def test_stores_are_decomposed_and_limits_stay():
  """Functions of every store are taken apart; conditions of where a loop ends are none of it."""
  ast, (_, j, _) = masked_rows()
  first, second = ast.src
  kernel = clip_loops(sink(first, second.replace(src=(second.src[0], op(Ops.EXP, second.src[1]), *second.src[2:]))))
  out = decompose_stores(kernel, CPU)
  assert out.src[0] is first and out.src[2:] == kernel.src[2:] and len(out.src) == 4
  assert not any(u.op is Ops.EXP for u in out.toposort())
  x = X[:, 0].copy()
  i = loop(64, 0)
  alone = sink(store(i, op(Ops.EXP, load(1, x, i)), i, size=64))
  got = evaluate(decompose_stores(alone, CPU), [x])
  np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)


def test_rows_are_stores_in_loops():
  """A loop over blocks of rows, the same of both stores; in it the loops over a block's rows and what is in them are
  each store's own, and end by the block's last row."""
  ast, (i, j, k) = masked_rows(256)
  stores, limits = parts_of(block_rows(clip_loops(ast), replace(CPU, cache=1 << 16)))
  first, second = stores
  (counter,) = shared_rows(stores)
  assert first.src[2] is second.src[2] is counter
  assert i not in UOp.sink(*stores).toposort()
  assert len(limits) == 2 and {x.src[0].src[0].arg for x in limits} == {256}
  for x in limits:  # in chunks, as far as the last row of the block may reach
    assert counter in x.src[1].toposort() and x.src[0] in first.toposort() + second.toposort()
    form = affine(x.src[1], {})
    assert form.const == 0 and set(form.terms.values()) == {CHUNK}
  (memory,) = {u for u in UOp.sink(*stores).toposort() if u.op is Ops.SCRATCH}
  assert first.src[0].src[0] is memory and memory in second.toposort()
  assert memory.arg[2] * counter.src[0].arg == 256 * 256 * 4  # the masked row is memory of the block's rows
  assert not any(u.op is Ops.PARAM and u.arg.slot < 0 for u in UOp.sink(*stores).toposort())


@pytest.mark.parametrize("cache, rows", [(1 << 13, 60), (1 << 14, 61), (1 << 14, 7), (1 << 22, 64)])
def test_every_row_is_in_one_block(cache, rows):
  """Where the size of a block does not divide the number of rows, the rest is one of its own."""
  ast, _ = masked_rows(rows)
  stores, _ = parts_of(block_rows(clip_loops(ast), replace(CPU, cache=cache)))
  written = list[int]()
  for s in stores:
    if s.src[0].src[0].op is Ops.PARAM:
      form, loops = affine(s.src[0].src[1], {}), s.src[2:]
      assert set(form.terms) <= set(loops)
      for numbers in np.ndindex(*(r.src[0].arg for r in loops)):
        written.append(form.const + sum(form.terms[r] * n for r, n in zip(loops, numbers)))
  assert sorted(written) == list(range(rows))


def weight_gradient(out, images, own=False):
  """What rows (o, b) have, in memory, or memory of their `own`, and for each o the sums over b of its products with
  what is the same for all o."""
  o, b, y, c, k = loop(out, 0), loop(images, 1), loop(8, 2), loop(6, 3), reduce(8, 4)
  given, other = np.ones(out * images * 8, np.float32), np.ones(images * 6 * 8, np.float32)
  row = [] if own else [(o, images * 8), (b, 8)]
  made = store(dot(*row, (y, 1)), load(2, given, dot((o, images * 8), (b, 8), (y, 1))), o, b, y, size=given.size)
  there = load(0, given, dot(*row, (k, 1)))
  product = op(Ops.MUL, there, load(3, other, dot((b, 48), (c, 8), (k, 1))))
  sums = store(dot((o, 6), (c, 1)), fold(Ops.ADD, product, b, k), o, c, size=out * 6, slot=1)
  p = there.src[0].src[0]
  kernel = sink(made, sums)
  return substitute(kernel, {p: p.replace(arg=ParamArg(-1, 8))}) if own else kernel, (o, b)


@pytest.mark.parametrize("own", [False, True])
def test_a_contraction_reads_the_same_for_some_rows(own):
  """Memory of a row's own is another for each, though no index says so."""
  ast, (o, b) = weight_gradient(64, 16, own)
  made, sums = ast.src
  assert [x for x in shared_reads(sums, (o, b)) if x] == [{o}] and not any(shared_reads(made, (o, b)))


@pytest.mark.parametrize("cache", [1 << 8, 1 << 12])
def test_a_block_has_rows_for_which_a_contraction_reads_the_same(cache, monkeypatch):
  """Further out, too: else all of it would be read for each of these. (Mutant: it is not asked which.)"""
  ast, rows = weight_gradient(64, 16)
  assert all_rows(ast.src) == rows

  def blocks():
    stores, _ = parts_of(block_rows(ast, replace(CPU, cache=cache)))
    return [r.src[0].arg for r in shared_rows(stores)]

  assert 64 // row_blocks.LEAST in blocks()
  monkeypatch.setattr(row_blocks, "shared_reads", lambda *_: [])
  assert 64 in blocks()


def sums_over_rows(heads, rows=512, n=64):
  """Of each head exp(x), a row at a time, and its sum over rows, which blocks of rows are added to in memory."""
  i, j, k, d = loop(heads, 0), loop(rows, 1), loop(n, 2), loop(n, 3)
  x = np.ones(heads * rows * n, np.float32)
  made = store(k, op(Ops.EXP, load(2, x, dot((i, rows * n), (j, n), (k, 1)))), i, j, k, size=n)
  sums = store(dot((i, n), (d, 1)), fold(Ops.ADD, load(0, x[:n], d), j), i, d, size=heads * n, slot=1)
  p = made.src[0].src[0]
  return substitute(sink(made, sums), {p: p.replace(arg=ParamArg(-1, n))})


@pytest.mark.parametrize("heads, pieces", [(9, 3), (15, 3), (16, 2)])
def test_what_is_added_up_in_memory_one_thread_adds_up(heads, pieces, monkeypatch):
  """Of 9 heads in two pieces of 5 both would begin the sums of one, and both add to them."""
  ast = sums_over_rows(heads)

  def of_threads():
    share = share_out(ast, 2)
    check_limits(block_rows(share, replace(CPU, cache=1 << 12)))
    return [v.arg.max_val + 1 for v in share.variables()]

  assert of_threads() == [pieces]
  monkeypatch.setattr(share_module, "all_rows", shared_rows)  # what is summed is not looked at
  if heads % 2:
    with pytest.raises(SpecError, match="pieces overlap, and slot 1 is read and written"):
      of_threads()
  else:
    of_threads()


@pytest.mark.parametrize(
  "rows, blocks", [(500, [15, 32, 20]), (512, [16, 32]), (50, [2, 25]), (48, [32, 16]), (47, [32, 15])]
)
def test_rows_beside_each_other_are_whole_vectors(rows, blocks):
  """Those of a contraction, of sixteen lanes: blocks that divide the rows, unless others make fewer vectors."""
  i, j, k, r = loop(rows, 0), loop(40, 1), reduce(8, 2), reduce(40, 3)
  given, other = np.ones(rows * 8, np.float32), np.ones(40 * 8, np.float32)
  product = op(Ops.MUL, load(1, given, dot((i, 8), (k, 1))), load(2, other, dot((j, 8), (k, 1))))
  made = store(dot((j, 1)), fold(Ops.ADD, product, k), i, j, size=40, slot=3)
  read = load(3, np.ones(40, np.float32), dot((r, 1)))
  kernel = sink(made, store(dot((i, 1)), fold(Ops.ADD, read, r), i, size=rows))
  kernel = substitute(kernel, {u: u.replace(arg=ParamArg(-1, 40)) for u in (made.src[0].src[0],)})
  stores, _ = parts_of(block_rows(kernel, replace(CPU, cache=1 << 12)))
  assert [n for s in stores[1::2] for n in [r.src[0].arg for r in s.src[2:]]] == blocks


def test_a_kernel_of_one_store_has_no_blocks():
  alone = sink(masked_rows()[0].src[1])
  assert block_rows(alone, CPU) is alone


def test_scatters_are_stores_in_loops():
  """Each place begins, then each update adds to its own, if it has one; in a loop that ends early they are compared."""
  ast = added_by_index(1)
  i = ast.src[0].src[2]
  begin, update = step_scatters(ast, CPU).src
  assert begin.src[1].op is Ops.CONST and begin.src[2:] == ast.src[0].src[2:]
  each, once, *columns = update.src[2:]
  assert each.src[0].arg == 100 and once.src[0].op is Ops.WHERE and [r.src[0].arg for r in columns] == [8]
  assert update.src[1].op is Ops.ADD and update.src[1].src[0].src[0] is update.src[0]  # to what is there
  early = UOp.new(Ops.CMPLT, dtypes.bool, (i, num(1)))
  dense, limit = step_scatters(sink(*ast.src, early), CPU).src
  assert limit is early and dense.src[2:] == ast.src[0].src[2:]
  assert not any(u.op is Ops.ONE_HOT for u in dense.toposort())
  updates = np.random.default_rng(0).standard_normal(800).astype(np.float32)
  at = np.arange(100, dtype=np.int32) * 7 % 40
  np.testing.assert_array_equal(evaluate(ast, [at, updates]), evaluate(sink(dense), [at, updates]))


@pytest.mark.parametrize("threads", [1, 4])
def test_lowering_is_the_passes_and_then_linearize(threads):
  for ast in (masked_rows()[0], added_by_index()):
    kernel = ast
    for lower in passes(CPU, threads, schedule_cpu):
      kernel = lower(kernel)
      assert kernel.op is Ops.SINK and kernel.src[0].op is Ops.STORE
    assert all(s.op is Ops.STORE for s in kernel.src)  # every loop ends where it has nothing left to do
    assert linear_code(kernel, CPU) == lower_kernel(ast, CPU, threads)
