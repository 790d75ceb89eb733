"""Reductions by index: the kernel that steps through what is added gives what comparing with every place would."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store
from test_grid import GRID, Race, check, simulate
from test_kernels import WIDE, normal

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.share import share_out
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.numerics import scatter
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

N, D, M = 40, 24, 100  # places, elements of a row, what is added
F, I, B = dtypes.float32, dtypes.int32, dtypes.bool
rng = np.random.default_rng(0)
AT = rng.integers(-5, N + 5, M).astype(np.int32)  # some are no places
EACH = rng.integers(-5, N + 5, (M, D)).astype(np.int32)
X, Y, W = normal(M, D), normal(N, D), normal(N, D)
KEEP = rng.integers(0, 2, M).astype(np.int32)
i, d, j = loop(N, 0), loop(D, 1), reduce(M, 2)


def cast(x, dtype):
  return op(Ops.CAST, x, dtype=dtype)


def const(n, dtype=F):
  return UOp.const(dtype, n)


def chosen(condition, value, none=0.0):
  return op(Ops.WHERE, condition, value, const(none, value.dtype), dtype=value.dtype)


def only(row, value, reduction=Ops.ADD, place=i):
  """The value where the row is the place."""
  return UOp.new(Ops.ONE_HOT, value.dtype, (cast(row, dtypes.index), place, value), reduction)


def scattered(row, value, reduction=Ops.ADD, place=i, over=j):
  return fold(reduction, only(row, value, reduction, place), over)


def stored(value, *loops, offset=None):
  loops = loops or (i, d)
  return sink(store(dot((i, D), (d, 1)) if offset is None else offset, value, *loops, size=N * D))


AT_J, X_J = load(1, AT, j), load(2, X, dot((j, D), (d, 1)))
EACH_J = load(1, EACH, dot((j, D), (d, 1)))
Y_I, W_I = load(3, Y, dot((i, D), (d, 1))), load(4, W, dot((i, D), (d, 1)))
KEEP_J = op(Ops.CMPEQ, load(3, KEEP, j), const(1, I))
SUM = scattered(AT_J, X_J)
THERE = scattered(AT_J, const(True, B), Ops.MAX)
LESS = op(Ops.SUB, Y_I, op(Ops.MUL, SUM, const(0.1)))
LAST = scattered(AT_J, cast(j, I), Ops.MAX)  # the number of the last that goes to a place, below 0 where none does


def latest(number):
  """What that brings; of a place to which none goes, what is there."""
  at = cast(number, dtypes.index)
  there = op(Ops.AND, op(Ops.CMPLT, num(-1), at), op(Ops.CMPLT, at, num(M)))
  brought = load(2, X, dot((at, D), (d, 1)), there, const(0.0))
  return op(Ops.WHERE, op(Ops.CMPLT, number, const(0, I)), Y_I, brought, dtype=F)


KERNELS = {
  "rows": (stored(SUM), [AT, X]),
  "elements": (stored(scattered(EACH_J, X_J)), [EACH, X]),
  "products": (stored(scattered(AT_J, X_J, Ops.MUL)), [AT, X]),
  "maxima": (stored(scattered(AT_J, X_J, Ops.MAX)), [AT, X]),
  "minima": (stored(scattered(AT_J, X_J, Ops.MIN)), [AT, X]),
  "counts": (sink(store(i, scattered(AT_J, const(1, I)), i, size=N)), [AT]),
  "turned": (stored(SUM, d, i, offset=dot((d, N), (i, 1))), [AT, X]),
  "added to": (stored(op(Ops.ADD, Y_I, SUM)), [AT, X, Y]),
  "subtracted": (stored(LESS), [AT, X, Y]),
  "where there": (stored(op(Ops.WHERE, THERE, SUM, Y_I, dtype=F)), [AT, X, Y]),
  "two sums": (stored(op(Ops.ADD, SUM, scattered(AT_J, const(1.0)))), [AT, X]),
  "a condition": (stored(scattered(AT_J, chosen(KEEP_J, X_J))), [AT, X, KEEP]),
  "what the place has": (stored(scattered(AT_J, op(Ops.MUL, X_J, Y_I))), [AT, X, Y]),
  "from 3": (stored(scattered(AT_J, X_J, place=op(Ops.ADD, i, num(3)))), [AT, X]),
  "wide": (stored(scattered(cast(AT_J, dtypes.int64), X_J)), [AT, X]),
  "the last": (sink(store(i, LAST, i, size=N)), [AT]),
  "what the last brings": (stored(latest(LAST)), [AT, X, Y]),
  "its double": (stored(op(Ops.MUL, latest(LAST), const(2.0))), [AT, X, Y]),
  "its exponential": (stored(op(Ops.EXP, latest(LAST))), [AT, X, Y]),
  "what the first brings": (stored(latest(scattered(AT_J, cast(j, I), Ops.MIN))), [AT, X, Y]),
  "what the last of the even brings": (
    stored(latest(scattered(AT_J, chosen(op(Ops.CMPEQ, op(Ops.MOD, j, num(2)), num(0)), cast(j, I), -1), Ops.MAX))),
    [AT, X, Y],
  ),
  "the last but one hundred": (
    sink(store(i, scattered(AT_J, cast(op(Ops.MUL, j, num(-1)), I), Ops.MAX), i, size=N)), [AT]),
}  # fmt: skip
SMALL = rng.integers(0, 256, M).astype(np.uint8)
LONG = loop(300, 0)
# a row of so few bits is no place from 256 on
NARROW = sink(store(LONG, scattered(load(1, SMALL, j), const(1, I), place=LONG), LONG, size=300))


def agrees(ast, arrays):
  np.testing.assert_allclose(run(ast, arrays), evaluate(ast, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_one_step_for_each_that_is_added(name):
  ast, arrays = KERNELS[name]
  agrees(ast, arrays)
  assert not any(u.op is Ops.ACC for u in lower_kernel(ast, WIDE))  # nothing is summed over all there is
  with Context(NOOPT=1):
    assert any(u.op is Ops.ACC for u in lower_kernel(ast, WIDE))
    agrees(ast, arrays)


@pytest.mark.parametrize("noopt", [0, 1])
def test_places_do_not_wrap_as_a_narrow_row_does(noopt):
  with Context(NOOPT=noopt):
    np.testing.assert_array_equal(run(NARROW, [SMALL]), np.bincount(SMALL, minlength=300))


def test_threads_share_out_rows_of_what_is_added_and_never_a_place():
  shared = share_out(stored(scattered(AT_J, X_J, over=reduce(1 << 14, 2))), 2)
  assert [r.src[0].arg for r in shared.src[0].src[2:]] == [N, D // 2]
  ast = sink(store(i, scattered(AT_J, const(1, I), over=reduce(1 << 16, 2)), i, size=N))
  assert share_out(ast, 3) is ast  # 40 places in 3 parts would overlap
  assert share_out(ast, 2) is ast  # each thread would look at every update, half of them another's, by chance


def wrong(change):
  """`by_index` with its parts changed."""
  right = scatter.by_index

  def by_index(f, loops):
    parts = right(f, loops)
    return None if parts is None else change(*parts)

  return by_index


def of_memory(value, *loops):
  """The kernel in which `value(f)` reads f from memory of an element."""
  where = UOp.new(Ops.INDEX, I, (UOp.new(Ops.PARAM, I, (), ParamArg(-1, 1)), num(0)))
  held = UOp.new(Ops.STORE, dtypes.void, (where, LAST, *loops))
  return sink(held, *stored(value(UOp.new(Ops.LOAD, I, (where,)))).src)


@pytest.mark.parametrize("name", ["the last", "what the last brings", "its double"])
def test_the_last_update_stays_and_none_looks_at_what_is_there(name):
  linear = lower_kernel(KERNELS[name][0], WIDE)
  assert not any(u.op is Ops.LOAD and u.src[0].src[0].arg.slot == 0 for u in linear)
  looks = lower_kernel(KERNELS["maxima"][0], WIDE)
  assert any(u.op is Ops.LOAD and u.src[0].src[0].arg.slot == 0 for u in looks)


def test_a_step_stores_what_is_made_of_its_number_rather_than_that():
  want = evaluate(stored(latest(LAST)), [AT, X, Y])
  np.testing.assert_array_equal(run(of_memory(latest, i, d), [AT, X, Y]), want)
  assert not any(u.op is Ops.SCRATCH for u in lower_kernel(of_memory(latest, i, d), WIDE))
  # unless that takes long: then vectors of places do it
  exponential = of_memory(lambda number: op(Ops.EXP, latest(number)), i, d)
  np.testing.assert_allclose(run(exponential, [AT, X, Y]), np.exp(want), rtol=1e-5)
  assert any(u.op is Ops.SCRATCH for u in lower_kernel(exponential, WIDE))


MUTANTS = {
  "begins with 1": ("counts", "by_index", lambda: wrong(lambda r, e, ok, x, none: (r, e, ok, x, const(1, x.dtype)))),
  "not the first": (
    "elements", "by_index", lambda: wrong(lambda r, e, ok, *x: (r, e, op(Ops.AND, ok, op(Ops.CMPLT, num(0), e)), *x))),
  "from the end": ("from 3", "by_index", lambda: wrong(lambda r, e, *rest: (r, op(Ops.SUB, num(N - 1), e), *rest))),
  "whatever is greatest": ("the last but one hundred", "rises", lambda: lambda x, over: True),
  "compared in any type": ("narrow", "holds", lambda: lambda dtype, x: True),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name, monkeypatch):
  kernel, attribute, make = MUTANTS[name]
  ast, arrays = (NARROW, [SMALL]) if kernel == "narrow" else KERNELS[kernel]
  with Context(NOOPT=int(kernel == "narrow")):
    agrees(ast, arrays)
    monkeypatch.setattr(scatter, attribute, make())
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
      agrees(ast, arrays)


@pytest.mark.parametrize("threads", [1, 100])
@pytest.mark.parametrize(
  "name",
  [
    "rows",
    "elements",
    "maxima",
    "turned",
    "added to",
    "what the place has",
    "from 3",
    "the last",
    "what the last brings",
  ],
)
def test_threads_of_a_grid_share_out_columns_and_rows(name, threads, monkeypatch):
  monkeypatch.setattr(Target, "busy", threads)
  linear = check(*KERNELS[name], target=replace(GRID, few_rows=-N))
  # nothing is summed over all there is; groups only note where there is something of theirs
  assert all(u.dtype is I for u in linear if u.op is Ops.ACC) and (name != "elements" or not noted(linear))


def noted(linear):
  """Barriers between what a group notes and what it adds, and the blocks that it notes of."""
  return [u for u in linear if u.op is Ops.BARRIER]


@pytest.mark.parametrize("threads", [1, 256])
@pytest.mark.parametrize("updates", [70, 96])
def test_groups_pass_over_blocks_of_updates_that_have_none_of_theirs(threads, updates, monkeypatch):
  """Each group looks at all of them once, its threads together, and again at those blocks alone in which there are
  any; without the barrier between the two a thread reads what another has not written."""
  monkeypatch.setattr(Target, "busy", threads)
  at, x, j = np.repeat([3, 39, 7], updates)[:updates].astype(np.int32), normal(updates, D), reduce(updates, 2)
  ast = stored(scattered(load(1, at, j), load(2, x, dot((j, D), (d, 1))), over=j))
  linear = check(ast, [at, x], target=replace(GRID, few_rows=0, group=8))
  assert noted(linear)
  memory = [u for u in linear if u.op is Ops.SCRATCH]
  assert [m.dtype for m in memory] == [I]
  blocks = -(-updates // scatter.BLOCK)
  assert blocks in {u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.REDUCE}
  unguarded = [u for u in linear if u.op is not Ops.BARRIER]
  with pytest.raises(Race):
    simulate(unguarded, [at, x], np.zeros(N * D, np.float32), {})


def test_what_a_group_notes_has_room_in_local_memory():
  j_long = reduce(1 << 20, 2)
  at = load(1, np.zeros(1 << 20, np.int32), j_long)
  i, d = loop(2000, 0), loop(D, 1)
  value = scattered(at, load(2, np.zeros((1 << 20, D), np.float32), dot((j_long, D), (d, 1))), place=i, over=j_long)
  linear = lower_kernel(sink(store(dot((i, D), (d, 1)), value, i, d, size=2000 * D)), GRID)
  (nbytes,) = (u.arg[2] for u in linear if u.op is Ops.SCRATCH)
  assert 4 * scatter.NOTES <= nbytes <= 4 * scatter.NOTES + 64


def test_a_grid_has_no_more_steps_for_more_rows():
  m = 3 * scatter.BLOCK + 16  # four blocks, and what is left over is as long as none of the loops asked for

  def updates(n, columns):
    """(threads, by block of updates how many a thread of a group looks at)."""
    i, d, j = loop(n, 0), loop(columns, 1), reduce(m, 2)
    value = scattered(load(1, AT, j), load(2, normal(m, columns), dot((j, columns), (d, 1))), place=i, over=j)
    linear = lower_kernel(sink(store(dot((i, columns), (d, 1)), value, i, d, size=n * columns)), GRID)
    ends = [(u.arg[1], u.src[0].vmax) for u in linear if u.op is Ops.RANGE]
    threads = np.prod([end for kind, end in ends if kind in (AxisKind.GLOBAL, AxisKind.LOCAL)])
    return threads, [end for kind, end in ends if end in (m, 4, scatter.BLOCK)]

  assert updates(4000, 768) == updates(64000, 768)
  threads, each = updates(4000, 768)
  assert threads <= 2 * GRID.busy and each == [scatter.BLOCK, 4, scatter.BLOCK]  # noted, and then gone through
  _, of_few = updates(GRID.few_rows, 768)
  assert 4 not in of_few and len(of_few) < len(each)  # no blocks: each row looks at all of them


@pytest.mark.parametrize("half", [False, True])
def test_a_table_is_trained_in_place(half):
  kind = np.float16 if half else np.float32
  table, rows = rng.standard_normal((1000, 64)).astype(kind), rng.integers(-1000, 1000, 500)
  weight = rng.standard_normal((500, 64)).astype(kind)
  t = Tensor(table).realize()
  g = (t[Tensor(rows)] * Tensor(weight)).sum().gradient(t)[0]
  want = np.zeros((1000, 64), np.float64)
  np.add.at(want, rows, weight.astype(np.float64))
  t.assign(t - 0.5 * g).realize()
  np.testing.assert_allclose(t.numpy(), table - 0.5 * want, rtol=2e-3 if half else 1e-5, atol=2e-3 if half else 1e-5)


def test_a_long_count_is_taken_in_parts():
  at = rng.integers(-20, 300, 100_003)
  counts = Tensor.zeros(256, dtype=dtypes.int32).scatter(0, Tensor(at), 1, reduce="add")
  np.testing.assert_array_equal(counts.numpy(), np.bincount(np.where(at < 0, at + 256, at)[at < 256], minlength=256))
  assert Device.DEFAULT == "CPU"


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scatter_into_what_it_reads(dim):
  x, at = rng.integers(0, 50, (50, 50)).astype(np.int32), rng.integers(-50, 50, (50, 50))
  v = rng.integers(0, 50, (50, 50)).astype(np.int32)

  def placed(x, at):
    out = x.copy()
    for i, j in np.ndindex(*at.shape):
      out[(at[i, j], j) if dim == 0 else (i, at[i, j])] = v[i, j]
    return out

  for index in (at, x):
    t = Tensor(x).realize()
    t.assign(t.scatter(dim, t if index is x else Tensor(at), Tensor(v))).realize()
    np.testing.assert_array_equal(t.numpy(), placed(x, index))
