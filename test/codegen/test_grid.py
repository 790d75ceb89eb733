"""Grids of threads: every kernel's linear code is run here thread by thread, and its use of local memory is watched."""

import importlib.util
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store
from test_random_kernels import Case

from tinygrad.codegen import lower_kernel
from tinygrad.codegen.heuristics import gpu as grid_plan
from tinygrad.device import Device, Target
from tinygrad.device.cores import SwizzledTile
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.renderer import cstyle, dialects
from tinygrad.runtime import cuda
from tinygrad.tuning import search
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import affine

has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("nvidia") is not None
GRID = Target("GRID", vector_registers=96, scratch=48 << 10, threads=True)
SMALL = Target("SMALL", vector_registers=32, scratch=8 << 10, threads=True)


# ---------------------------------------------------------------- a machine for linear code

BINARY: dict[Ops, Any] = {
  Ops.ADD: lambda x, y: x + y,
  Ops.SUB: lambda x, y: x - y,
  Ops.MUL: lambda x, y: x * y,
  Ops.FDIV: lambda x, y: x / y,
  Ops.MAX: max,
  Ops.MIN: min,
  Ops.IDIV: lambda x, y: x // y,  # of what is not negative, here
  Ops.MOD: lambda x, y: x % y,
  Ops.CMPLT: lambda x, y: x < y,
  Ops.CMPEQ: lambda x, y: x == y,
  Ops.CMPNE: lambda x, y: x != y,
  Ops.AND: lambda x, y: x & y,
  Ops.OR: lambda x, y: x | y,
  Ops.SHR: lambda x, y: x >> y,
}


BARRIER, TOGETHER = "barrier", "barrier of the cluster"


class Race(Exception):
  """Two threads met at one place of local memory between two barriers, and one of them wrote."""


class Group:
  """The local memory of a work group, and who came where since the last barrier; of other groups of its cluster, since
  the last of theirs. A group that ends has no memory any more."""

  def __init__(self) -> None:
    self.cluster = [self]
    self.ended = False
    self.new = set[int]()  # places that were written since the cluster's last barrier,
    self.shown = set[int]()  # and those that other groups have read
    self.memory: dict[int, Any] = {}
    self.readers: dict[int, set[int]] = {}
    self.writers: dict[int, set[int]] = {}
    self.given: dict[int, tuple[tuple[Any, ...], ...]] = {}  # by thread: what others of its warp read of it

  def next_phase(self) -> None:
    self.readers, self.writers = {}, {}

  def read_from_beside(self, at: int) -> Any:
    if self.ended or at in self.new or at not in self.memory:
      raise Race(f"byte {at} of another group is read, which may not be there")
    self.shown.add(at)
    return self.memory[at]

  def read(self, at: int, thread: int) -> Any:
    if self.writers.get(at, {thread}) != {thread}:
      raise Race(f"byte {at} is read by thread {thread} and written by {self.writers[at]}")
    self.readers.setdefault(at, set()).add(thread)
    if at not in self.memory:
      raise Race(f"byte {at} is read by thread {thread} before anybody has written it")
    return self.memory[at]

  def write(self, at: int, value: Any, thread: int) -> None:
    for who in (self.readers, self.writers):
      if who.get(at, {thread}) != {thread}:
        raise Race(f"byte {at} is written by thread {thread} and used by {who[at]}")
    if at in self.shown:
      raise Race(f"byte {at} is written by thread {thread} and used by another group")
    self.new.add(at)
    self.writers[at] = {thread}
    self.memory[at] = value


class Thread:
  """One thread of one group; `run` stops at every barrier."""

  def __init__(
    self,
    linear: Sequence[UOp],
    buffers: list[np.ndarray],
    group: Group,
    place: tuple[int, int, int],
    variables: dict[str, int],
  ) -> None:
    self.linear, self.buffers, self.group = linear, buffers, group
    self.number, self.rank, self.thread = place
    self.values: dict[UOp, tuple[Any, ...]] = {}
    self.registers: dict[UOp, tuple[Any, ...]] = {}
    self.own: dict[tuple[UOp, int], Any] = {}
    self.variables = variables
    self.begun: list[UOp] = []  # copies, in the places that they had when they began
    self.under_way: list[list[Any]] = []
    self.products: list[Any] = []  # that read the group's memory, and have not come yet
    self.rng = random.Random(self.thread)
    self.ends: dict[int, int] = {}
    opened = []
    for i, u in enumerate(linear):
      if u.op is Ops.RANGE:
        opened.append(i)
      elif u.op is Ops.ENDRANGE:
        self.ends[opened.pop()] = i

  def lanes(self, u: UOp, count: int = 1) -> tuple[Any, ...]:
    xs = (u.arg,) * u.dtype.count if u.op is Ops.CONST else self.values[u]
    return xs * count if len(xs) == 1 else xs

  def run(self, first: int = 0, last: int | None = None, left: int | None = None) -> Iterator[str]:
    """From one op to another; `left`: what LOCAL ranges further in have to tell of this thread's number."""
    i, left = first, self.thread if left is None else left
    while i < (len(self.linear) if last is None else last):
      u = self.linear[i]
      if u.op is Ops.BARRIER:
        while isinstance(u.arg, int) and len(self.under_way) > u.arg:
          self.arrive(self.under_way.pop(0))
        yield TOGETHER if u.arg == "cluster" else BARRIER
      elif u.op is Ops.COMMIT:
        self.under_way.append(self.begun)
        self.begun = []
      elif u.op is Ops.MMA:
        yield from self.product(u)
      elif u.op is Ops.SHUFFLE:
        self.group.given[self.thread] = (self.lanes(u.src[0]),)
        yield u.op.name
        self.values[u] = self.group.given[self.thread ^ u.arg][0]
        yield u.op.name
      elif u.op is Ops.LOAD and u.arg is not None:
        yield from self.fragments(u)
      elif u.op is Ops.RANGE:
        end = self.lanes(u.src[0])[0]
        numbers: Sequence[int] = range(end)
        inner = left
        if u.arg[1] in (AxisKind.GLOBAL, AxisKind.CLUSTER):
          numbers = (self.number if u.arg[1] is AxisKind.GLOBAL else self.rank,)
        elif u.arg[1] is AxisKind.LOCAL:
          numbers, inner = (left % end,), left // end
        for n in numbers:
          self.values[u] = (n,)
          yield from self.run(i + 1, self.ends[i], inner)
        i = self.ends[i]
      else:
        self.one(u)
      i += 1

  def product(self, u: UOp) -> Iterator[str]:
    """What this lane has of a product on a core, from what all lanes of its warp have of the operands."""
    core, warp = u.arg, self.thread // u.arg.lanes * u.arg.lanes
    if core.late:
      yield from self.late_product(u, self.thread - warp)
      return
    self.group.given[self.thread] = tuple(self.lanes(s) for s in u.src[1:])
    yield u.op.name
    of_a, of_b, out = core.a.places(), core.b.places(), list(self.lanes(u.src[0]))
    for r in range(len(out)):
      row, column = core.d.at(self.thread - warp, r)
      for k in range(core.k):
        (p, i), (q, j) = of_a[row, k], of_b[k, column]
        out[r] += float(self.group.given[warp + p][0][i]) * float(self.group.given[warp + q][1][j])
    self.values[u] = tuple(out)
    yield u.op.name

  def fragments(self, u: UOp) -> Iterator[str]:
    """Each lane of 32 has named eight neighbours, 32 rows of four matrices, and gets two of each: of the row of its
    number over four, or, turned, of that column."""
    ((at, _), *_), memory = self.values[u.src[0]], u.src[0].src[0]
    self.group.given[self.thread] = (at,)
    yield u.op.name
    (line, pair), warp, out = divmod(self.thread % 32, 4), self.thread // 32 * 32, []
    for matrix in range(4):
      for beside in (2 * pair, 2 * pair + 1):
        row, column = (beside, line) if u.arg == "turned" else (line, beside)
        out.append(self.read(memory, self.group.given[warp + 8 * matrix + row][0] + column))
    self.values[u] = tuple(out)
    yield u.op.name

  def late_product(self, u: UOp, lane: int) -> Iterator[str]:
    """One whose operands lie in the group's memory, or A in registers: they are read when the next product is begun, or
    the results are waited for, and not before."""
    self.group.given[self.thread], gained = tuple(self.values[s] for s in u.src[1:]), np.zeros(u.arg.d.length)
    yield u.op.name
    if self.products:
      core, lanes, memories = self.products.pop()
      a, b = lanes[lane]
      held = None if isinstance(core.a, SwizzledTile) else core.a.places()
      for r in range(core.d.length):
        row, column = core.d.at(lane, r)
        for k in range(core.k):
          if held is None:
            x = self.read(memories[0], a[0][0] + core.a.place(row, k, core.k))
          else:
            x = lanes[held[row, k][0]][0][held[row, k][1]]
          gained[r] += float(x) * float(self.read(memories[1], b[0][0] + core.b.place(column, k, core.k)))
    if u.src[1:]:
      first = self.thread - lane
      lanes = [self.group.given[first + i] for i in range(u.arg.lanes)]
      self.products.append((u.arg, lanes, [s.src[0] if s.op is Ops.INDEX else None for s in u.src[1:]]))
    self.values[u] = tuple(np.asarray(self.lanes(u.src[0])) + gained)
    yield u.op.name

  def copy(self, to: UOp, source: UOp) -> None:
    copies = [(to.src[0], self.values[to], source.src[0], self.values[source])]
    if self.rng.random() < 0.5:
      self.arrive(copies)
    else:
      self.begun += copies

  def arrive(self, copies: Sequence[tuple[UOp, Any, UOp, Any]]) -> None:
    for memory, places, source, sources in copies:
      for (at, valid), (there, exists) in zip(places, sources, strict=True):
        if valid:
          self.write(memory, at, self.read(source, there) if exists else 0)

  def one(self, u: UOp) -> None:
    n = u.dtype.count
    match u.op:
      case Ops.PARAM | Ops.SCRATCH | Ops.ACC | Ops.PEER:
        self.values[u] = (None,)
      case Ops.VARIABLE:
        self.values[u] = (self.variables[u.arg[0]],)
      case Ops.INDEX:
        base = self.lanes(u.src[1])
        offsets = base if len(base) == n else tuple(base[0] + i for i in range(n))
        if n > 1 and len(base) == 1:
          assert base[0] % n == 0, "a vector is aligned"
        self.values[u] = tuple(zip(offsets, self.lanes(u.src[2], n) if len(u.src) > 2 else (True,) * n, strict=True))
      case Ops.LOAD if u.src[0].op is Ops.ACC:
        self.values[u] = self.registers[u.src[0]]
      case Ops.LOAD:
        other = self.lanes(u.src[1], n) if len(u.src) > 1 else (0,) * n
        self.values[u] = tuple(
          self.read(u.src[0].src[0], at) if valid else x
          for (at, valid), x in zip(self.values[u.src[0]], other, strict=True)
        )
      case Ops.STORE if u.src[0].op is Ops.ACC:
        self.registers[u.src[0]] = self.lanes(u.src[1], u.src[0].dtype.count)
      case Ops.STORE:
        for (at, valid), x in zip(self.values[u.src[0]], self.lanes(u.src[1]), strict=True):
          if valid:
            self.write(u.src[0].src[0], at, x)
      case Ops.COPY:  # takes place at any time until it is waited for
        self.copy(*u.src)
      case Ops.VECTORIZE | Ops.EXTRACT:
        xs = tuple(x for s in u.src for x in self.lanes(s))
        xs = tuple(xs[i] for i in u.arg) if u.op is Ops.EXTRACT else xs
        self.values[u] = xs if len(xs) == n else xs * n
      case Ops.WHERE:
        self.values[u] = tuple(x if c else y for c, x, y in zip(*(self.lanes(s, n) for s in u.src), strict=True))
      case Ops.CAST:
        kind = to_numpy_dtype(u.dtype.scalar()) if u.dtype.scalar() is not dtypes.index else np.int64
        self.values[u] = tuple(
          kind.type(x).item() if isinstance(kind, np.dtype) else int(x) for x in self.lanes(u.src[0])
        )
      case _:
        self.values[u] = tuple(BINARY[u.op](x, y) for x, y in zip(*(self.lanes(s, n) for s in u.src), strict=True))

  def read(self, memory: UOp, at: int) -> Any:
    if memory.op is Ops.PEER:
      (number,), memory = self.lanes(memory.src[1]), memory.src[0]
      return self.group.cluster[number].read_from_beside(memory.arg[0] + at * memory.dtype.itemsize)
    if memory.op is Ops.SCRATCH:
      assert 0 <= at * memory.dtype.itemsize < memory.arg[2], "within its local memory"
      if memory.arg[0] < 0:
        return self.own[memory, at]
      return self.group.read(memory.arg[0] + at * memory.dtype.itemsize, self.thread)
    assert 0 <= at < memory.arg.size, "within its buffer"
    return self.buffers[memory.arg.slot].ravel()[at].item()

  def write(self, memory: UOp, at: int, value: Any) -> None:
    if memory.op is Ops.SCRATCH:
      assert 0 <= at * memory.dtype.itemsize < memory.arg[2], "within its local memory"
      if memory.arg[0] < 0:
        self.own[memory, at] = value
        return
      self.group.write(memory.arg[0] + at * memory.dtype.itemsize, value, self.thread)
      return
    assert 0 <= at < memory.arg.size, "within its buffer"
    self.buffers[memory.arg.slot][at] = value


def simulate(
  linear: Sequence[UOp], arrays: Sequence[np.ndarray], out: np.ndarray, variables: dict[str, int], seed=0, kind=Thread
):
  """Slot 0 after the kernel: the clusters one after the other; the groups of one, and the threads of a group, in any
  order from barrier to barrier. Raises Race; and AssertionError where a thread is at another barrier than the rest."""
  rng = random.Random(seed)
  sizes = {k: [u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is k] for k in AxisKind}
  for number in range(math.prod(sizes[AxisKind.GLOBAL])):
    cluster = [Group() for _ in range(math.prod(sizes[AxisKind.CLUSTER]))]
    threads = {}
    for rank, group in enumerate(cluster):
      group.cluster = cluster
      places = ((number, rank, t) for t in range(math.prod(sizes[AxisKind.LOCAL])))
      threads[group] = [kind(linear, [out, *arrays], group, place, variables).run() for place in places]
    waiting = list[Group]()
    while threads:
      group = rng.choice([g for g in threads if g not in waiting])
      rng.shuffle(threads[group])
      here = {next(t, "end") for t in threads[group]}
      assert len(here) == 1, "all threads of a group come to a barrier"
      if here == {BARRIER}:
        group.next_phase()
      elif here == {TOGETHER}:
        waiting.append(group)
      elif here == {"end"}:
        group.ended = True
        if group.shown:
          raise Race("a group ends while another may read its memory")
        del threads[group]
      assert not waiting or len(threads) == len(cluster), "all groups of a cluster come to its barrier"
      if len(waiting) == len(cluster):
        for group in waiting:
          group.next_phase()
          group.new, group.shown = set(), set()
        waiting = []
  return out


def check(ast: UOp, arrays: Sequence[np.ndarray], variables: dict[str, int] | None = None, target: Target = GRID):
  """The kernel's linear code gives what numpy gives; the code."""
  linear = lower_kernel(ast, target)
  first = ast.src[0].src[0].src[0]
  out = np.full(first.arg.size, 77).astype(to_numpy_dtype(first.dtype))
  got = simulate(linear, arrays, out, variables or {})
  np.testing.assert_allclose(got, evaluate(ast, arrays, variables), rtol=1e-4, atol=1e-4)
  return linear


def normal(*shape, dtype=np.float32):
  return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def matmul(m, n, k, a="mk", b="kn", dtype=np.float32):
  sizes = {"m": m, "n": n, "k": k}
  ranges = {"m": loop(m, 0), "n": loop(n, 1), "k": reduce(k, 2)}
  arrays = [normal(*(sizes[c] for c in order), dtype=dtype) for order in (a, b)]
  x, y = (
    load(i + 1, array, dot((ranges[order[0]], sizes[order[1]]), (ranges[order[1]], 1)))
    for i, (array, order) in enumerate(zip(arrays, (a, b)))
  )
  value = fold(Ops.ADD, op(Ops.MUL, x, y), ranges["k"])
  return sink(store(dot((ranges["m"], n), (ranges["n"], 1)), value, ranges["m"], ranges["n"], size=m * n)), arrays


@pytest.fixture
def eager(monkeypatch):
  """Small kernels are planned as if they were large: they have enough outputs for tiles and for local memory."""
  monkeypatch.setattr(Target, "busy", 1)


def count(linear, *ops):
  return sum(u.op in ops for u in linear)


LAYOUTS = [("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("km", "nk")]


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize(
  ("sizes", "target"), [((24, 20, 16), GRID), ((17, 13, 11), GRID), ((7, 34, 37), SMALL), ((36, 40, 33), SMALL)]
)
def test_matmul_through_local_memory(eager, sizes, target, layouts):
  assert count(check(*matmul(*sizes, *layouts), target=target), Ops.BARRIER) >= 2


@pytest.mark.parametrize("sizes", [(3, 4, 5), (17, 29, 18), (5, 12, 3), (64, 1, 100)])
@pytest.mark.parametrize("target", [GRID, SMALL])
def test_what_one_store_has_written_another_one_reads_anew(sizes, target):
  """As an optimizer's do: momentum, which is read and written, and parameters by it."""
  kernel, (x, y) = matmul(*sizes, "km", "kn")
  ((where, gradient, *ranges),) = (s.src for s in kernel.src)
  start = normal(*sizes[:2])
  momentum, parameters = (load(slot, start, where.src[1]) for slot in (3, 0))
  new = op(Ops.ADD, op(Ops.MUL, momentum, UOp.const(dtypes.float32, 0.5)), gradient)
  first = store(where.src[1], new, *ranges, size=start.size, slot=3)
  second = store(where.src[1], op(Ops.SUB, parameters, momentum), *ranges, size=start.size)
  arrays, out = [x, y, start.copy().ravel()], np.full(start.size, 77, np.float32)
  got = simulate(lower_kernel(sink(first, second), target), arrays, out, {})
  want = start * 0.5 + x.T @ y
  np.testing.assert_allclose(arrays[2], want.ravel(), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(got, 77 - want.ravel(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(3, 4, 5), (17, 29, 18), (33, 40, 31), (64, 1, 100), (5, 3, 300)])
def test_what_a_tile_is_reduced_from_is_written_for_all_of_it(sizes):
  """As in the gradient of an attention: a store's reduction, of all elements of a tile, reads what one before wrote."""
  kernel, (x, y) = matmul(*sizes, "km", "kn")
  ((where, product, *ranges),) = (s.src for s in kernel.src)
  size, k = sizes[0] * sizes[1], reduce(sizes[2], 7)
  start = np.full(size, np.nan, np.float32)
  terms = op(Ops.MUL, load(3, start, where.src[1]), load(1, x, dot((k, sizes[0]), (ranges[0], 1))))
  first = store(where.src[1], product, *ranges, size=size, slot=3)
  second = store(where.src[1], fold(Ops.ADD, terms, k), *ranges, size=size)
  got = simulate(lower_kernel(sink(first, second), GRID), [x, y, start], np.zeros(size, np.float32), {})
  np.testing.assert_allclose(got, (x.T @ y * x.sum(0)[:, None]).ravel(), rtol=1e-4, atol=1e-4)


def test_an_uncooperative_target_reads_device_memory(eager):
  target = Target("POCL", vector_registers=64, scratch=48 << 10, threads=True, cooperates=False)
  assert count(check(*matmul(24, 20, 16), target=target), Ops.BARRIER, Ops.SCRATCH) == 0


def without(linear: list[UOp], number: int) -> list[UOp]:
  """The linear code without one of its barriers."""
  at = [i for i, u in enumerate(linear) if u.op is Ops.BARRIER][number]
  return linear[:at] + linear[at + 1 :]


def runs(linear, arrays, size):
  return simulate(linear, arrays, np.zeros(size, np.float32), {})


@pytest.mark.parametrize("layouts", LAYOUTS[:2])
def test_both_barriers_of_a_block_are_needed(eager, layouts):
  ast, arrays = matmul(16, 16, 128, *layouts)  # several whole blocks
  linear = lower_kernel(ast, SMALL)
  assert count(linear, Ops.BARRIER) == 2
  runs(linear, arrays, 256)
  for number in range(2):
    with pytest.raises(Race, match="is (read|written) by thread"):
      runs(without(linear, number), arrays, 256)


def normalised(rows, columns):
  """Like a softmax: two reductions of a row, and then the row."""
  x = normal(rows, columns)
  i, j, k = loop(rows, 0), loop(columns, 1), reduce(columns, 2)

  def at(r):
    return load(1, x, dot((i, columns), (r, 1)))

  top = fold(Ops.MAX, at(k), k)
  total = fold(Ops.ADD, op(Ops.MUL, op(Ops.SUB, at(k), top), at(k)), k)
  value = op(Ops.FDIV, op(Ops.SUB, at(j), top), total)
  return sink(store(dot((i, columns), (j, 1)), value, i, j, size=rows * columns)), [x]


@pytest.mark.parametrize("columns", [64, 70, 101])
def test_lanes_that_share_a_row(columns):
  ast, arrays = normalised(3, columns)
  linear = check(ast, arrays)
  barriers = count(linear, Ops.BARRIER)
  assert barriers > 4
  stores = {n for code, n in counts(linear) if code is Ops.STORE}
  assert stores == {1, math.gcd(4, columns)}, "rows are written as vectors, local memory is not"
  for number in range(1, barriers - 1):  # the first has nothing before it
    with pytest.raises(Race):
      runs(without(linear, number), arrays, 3 * columns)


WARPS = replace(GRID, name="WARPS", warp=32)


def row_sums(rows, columns, code=Ops.ADD):
  x = normal(rows, columns)
  i, k = loop(rows, 0), reduce(columns, 1)
  value = fold(code, load(1, x, dot((i, columns), (k, 1))), k)
  return sink(store(i, value, i, size=rows)), [x]


@pytest.mark.parametrize("code", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize(("rows", "columns"), [(3, 64), (2, 1024), (5, 300), (1, 4100)])
def test_lanes_of_a_warp_read_each_other_s_registers(rows, columns, code):
  """One exchange between warps is left, where there are several: two barriers."""
  ast, arrays = row_sums(rows, columns, code)
  linear = check(ast, arrays, target=WARPS)
  lanes = next(u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL)
  assert count(linear, Ops.SHUFFLE) == math.gcd(lanes, 32).bit_length() - 1 > 0
  assert count(linear, Ops.BARRIER) == (2 if lanes > 32 else 0) < count(lower_kernel(ast, GRID), Ops.BARRIER)


@pytest.mark.parametrize("target", [GRID, WARPS], ids=["GRID", "WARPS"])
@pytest.mark.parametrize(("blocks", "length"), [(96, 4), (4, 96), (70, 70)])
def test_lanes_share_one_of_two_sums_that_are_nested(blocks, length, target):
  """Lanes that have a part of the outer one each have another inner one: they do not add these up together."""
  x, scales = normal(3, blocks, length), normal(3, blocks)
  i, j, k = loop(3, 0), reduce(blocks, 1), reduce(length, 2)
  inner = fold(Ops.ADD, load(1, x, dot((i, blocks * length), (j, length), (k, 1))), k)
  value = fold(Ops.ADD, op(Ops.MUL, inner, load(2, scales, dot((i, blocks), (j, 1)))), j)
  linear = check(sink(store(i, value, i, size=3)), [x, scales], target=target)
  assert any(u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL for u in linear)


@pytest.mark.parametrize("target", [GRID, WARPS], ids=["GRID", "WARPS"])
@pytest.mark.parametrize("columns", [40_003, 3 * 48 * 256 + 1])
def test_a_long_sum_of_lanes_ends_where_it_ends(columns, target):
  """In blocks of many iterations all elements are there; what follows them is more than there is."""
  check(*row_sums(1, columns), target=target)


@pytest.mark.parametrize("columns", [64, 70, 101, 700])
def test_rows_that_lanes_normalise_by_shuffles(columns):
  check(*normalised(3, columns), target=WARPS)


def loads_of_a_thread(linear):
  """Of device memory: (elements that each load reads, how often it is done)"""
  times, found = [1], []
  for u in linear:
    if u.op is Ops.RANGE:
      times.append(times[-1] * (1 if u.arg[1] in cstyle.THREADS else u.src[0].arg))
    elif u.op is Ops.ENDRANGE:
      times.pop()
    elif u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].src[0].op is Ops.PARAM:
      found.append((u.dtype.count, times[-1]))
  return found


FEW = replace(WARPS, name="FEW", vector_registers=12, group=64)  # 4 words of a row in each thread, or 8 of 64


@pytest.mark.parametrize(("columns", "beside"), [(64, 4), (256, 4), (300, 4), (298, 2), (301, 1), (510, 2)])
def test_a_row_that_fits_registers_is_loaded_once(columns, beside):
  """By softmax three times over, if it were not kept."""
  ast, arrays = normalised(2, columns)
  found = loads_of_a_thread(check(ast, arrays, target=FEW))
  lanes = min(64, 1 << (math.ceil(columns / 4) - 1).bit_length())
  assert found == [(beside, 1)] * math.ceil(columns / beside / lanes)


@pytest.mark.parametrize("columns", [520, 577])
def test_a_row_that_is_too_long_for_registers_is_loaded_in_each_pass(columns):
  ast, arrays = normalised(1, columns)
  found = loads_of_a_thread(check(ast, arrays, target=FEW))
  assert len(found) >= 3 and sum(n * times for n, times in found) >= 3 * columns / 64


CLUSTERS = replace(FEW, name="CLUSTERS", cluster=4)


@pytest.mark.parametrize(("columns", "groups"), [(512, 1), (520, 2), (577, 2), (1024, 2), (1025, 4), (2047, 4)])
def test_a_row_that_fits_the_groups_of_a_cluster_is_loaded_once(columns, groups):
  """They have its parts in their registers, and tell one another what these amount to."""
  linear = check(*normalised(2, columns), target=CLUSTERS)
  assert sum(n * times for n, times in loads_of_a_thread(linear)) <= 8
  assert math.prod(u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.CLUSTER) == groups
  assert len([u for u in linear if u.op is Ops.BARRIER and u.arg == "cluster"]) == 3 * (groups > 1)


def test_a_row_that_fits_no_cluster_is_one_group_s():
  linear = check(*normalised(1, 2049), target=CLUSTERS)
  assert not any(u.op is Ops.RANGE and u.arg[1] is AxisKind.CLUSTER for u in linear)


def test_each_barrier_of_a_cluster_is_needed():
  """Before what another group has written is read, in one part of memory and then in another; and before it ends."""
  ast, arrays = normalised(2, 600)
  linear = lower_kernel(ast, CLUSTERS)
  barriers = [n for n, u in enumerate(u for u in linear if u.op is Ops.BARRIER) if u.arg == "cluster"]
  assert len(barriers) == 3
  runs(linear, arrays, 1200)
  for number, told in zip(barriers, ["may not be there", "may not be there", "may (not|read)"], strict=True):
    with pytest.raises(Race, match=told):
      runs(without(linear, number), arrays, 1200)


@pytest.mark.parametrize("columns", [200, 203])
def test_a_row_is_kept_from_one_reduction_to_the_next(columns):
  """Nothing else is computed with it; and a second operand, of which all rows read the same, is no part of it."""
  x, w, i, j, k = normal(3, columns), normal(columns), loop(3, 0), reduce(columns, 1), reduce(columns, 2)
  top = fold(Ops.MAX, load(1, x, dot((i, columns), (j, 1))), j)
  weighted = op(Ops.MUL, op(Ops.SUB, load(1, x, dot((i, columns), (k, 1))), top), load(2, w, k))
  linear = check(sink(store(i, fold(Ops.ADD, weighted, k), i, size=3)), [x, w], target=FEW)
  lanes, beside = 64, math.gcd(4, columns)
  assert loads_of_a_thread(linear) == [(beside, 1)] * 2 * math.ceil(columns / beside / lanes)


def test_what_one_pass_reads_is_no_row_to_keep():
  """A sum is one of blocks, however many registers there are; and columns stay neighbouring threads."""
  linear = check(*row_sums(2, 1024), target=FEW)
  assert max(times for _, times in loads_of_a_thread(linear)) > 1
  x, i, j, k = normal(256, 8), loop(8, 0), loop(256, 1), reduce(256, 2)
  total = fold(Ops.MAX, load(1, x, dot((k, 8), (i, 1))), k)
  value = op(Ops.SUB, load(1, x, dot((j, 8), (i, 1))), total)
  linear = check(sink(store(dot((j, 8), (i, 1)), value, j, i, size=2048)), [x], target=FEW)
  lanes = next(u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL and u.src[0].arg > 8)
  assert sum(n * times for n, times in loads_of_a_thread(linear)) == 2 * 4 * 256 / lanes


@pytest.mark.parametrize(
  ("rows", "columns", "dtype", "beside", "line"),
  [(256, 32, np.float32, 4, 4), (300, 30, np.float32, 2, 8), (256, 33, np.float32, 1, 16), (256, 64, np.int8, 16, 4)],
)
def test_sums_of_columns_read_vectors_of_neighbours_several_at_once(rows, columns, dtype, beside, line):
  """A group reads lines of memory, or half of one: `line` threads side by side, and of each `beside` columns."""
  x, i, k = (np.arange(rows * columns) % 7).astype(dtype), loop(columns, 0), reduce(rows, 1)
  value = fold(Ops.MAX, load(1, x, dot((k, columns), (i, 1))), k)
  linear = check(sink(store(i, value, i, size=columns)), [x], target=replace(GRID, units=1, group=64))
  threads, lanes = (u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL)
  loads = loads_of_a_thread(linear)
  assert {n for n, _ in loads} == {beside} and threads == line and threads * lanes == 64
  assert sum(n for _, n in loads) == math.ceil(rows / lanes / len(loads)) * len(loads)
  assert len(loads) == (4 if rows >= 16 * lanes and beside <= 8 else 1)


def test_threads_are_neighbours_in_what_most_elements_are_of():
  """Numbers of rows are contiguous along the other loop; however many there are, they are few beside a matrix."""
  n, i, j = 256, loop(256, 0), loop(256, 1)
  matrix, rows = normal(n, n), [normal(n) for _ in range(5)]
  value = load(1, matrix, dot((i, n), (j, 1)))
  for slot, x in enumerate(rows, 2):
    value = op(Ops.ADD, value, load(slot, x, i))
  linear = lower_kernel(sink(store(dot((i, n), (j, 1)), value, i, j, size=n * n)), GRID)
  where = next(u.src[0] for u in linear if u.op is Ops.STORE and u.src[0].op is Ops.INDEX)
  (threads,) = (u for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL)
  assert affine(where.src[1], {}).terms[threads] == 1


def test_a_lane_that_reads_a_wrong_register_is_seen():
  ast, arrays = row_sums(3, 64)
  linear = [u.replace(arg=1) if u.op is Ops.SHUFFLE else u for u in lower_kernel(ast, WARPS)]
  known = dict(zip(lower_kernel(ast, WARPS), linear))
  wrong = [u.replace(src=tuple(known.get(s, s) for s in u.src)) for u in linear]
  with pytest.raises((AssertionError, KeyError)):
    np.testing.assert_allclose(runs(wrong, arrays, 3), evaluate(ast, arrays), rtol=1e-4, atol=1e-4)


def test_a_thread_that_skips_a_barrier_is_caught(eager):
  ast, arrays = matmul(16, 16, 16)
  linear = lower_kernel(ast, SMALL)
  lane = next(u for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL)
  barrier = next(i for i, u in enumerate(linear) if u.op is Ops.BARRIER)
  some = UOp.new(Ops.RANGE, dtypes.index, (lane,), (999, AxisKind.LOOP))  # thread 0 never enters it
  end = UOp.new(Ops.ENDRANGE, dtypes.void, (some,))
  with pytest.raises((Race, AssertionError), match="come to a barrier|by thread"):
    runs([*linear[:barrier], some, linear[barrier], end, *linear[barrier + 1 :]], arrays, 256)


def test_batches_prologues_epilogues_and_masks(eager):
  a, b, bias = normal(2, 9, 14), normal(2, 14, 12), normal(12)
  g, m, n, k = loop(2, 0), loop(9, 1), loop(12, 2), reduce(14, 3)
  inside = op(Ops.CMPLT, op(Ops.ADD, m, k), num(16))
  x = load(1, a, dot((g, 126), (m, 14), (k, 1)), inside)
  x = op(Ops.SUB, x, op(Ops.MUL, x, x))
  y = op(Ops.MUL, load(2, b, dot((g, 168), (k, 12), (n, 1))), UOp.const(dtypes.float32, 0.5))
  value = op(
    Ops.MAX, op(Ops.ADD, fold(Ops.ADD, op(Ops.MUL, x, y), k), load(3, bias, n)), UOp.const(dtypes.float32, 0.0)
  )
  linear = check(sink(store(dot((g, 108), (m, 12), (n, 1)), value, g, m, n, size=216)), [a, b, bias], target=SMALL)
  assert count(linear, Ops.BARRIER) >= 2
  first, second = (n for n, u in enumerate(linear) if u.op is Ops.BARRIER)  # around the copying
  within = linear[first:second]
  assert count(within, Ops.SUB) == count(linear, Ops.SUB) > 0, "the group computes the prologue once"


@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_through_local_memory(eager, padding):
  n, ci, co, height, width = 2, 3, 6, 5, 8
  x, w = normal(n, ci, height, width), normal(co, ci, 3, 3)
  oh, ow = height - 2 + 2 * padding, width - 2 + 2 * padding
  b, o, h, q = loop(n, 0), loop(co, 1), loop(oh, 2), loop(ow, 3)
  c, kh, kw = reduce(ci, 4), reduce(3, 5), reduce(3, 6)
  y, z = op(Ops.SUB, op(Ops.ADD, h, kh), num(padding)), op(Ops.SUB, op(Ops.ADD, q, kw), num(padding))

  def within(v, end):
    return op(Ops.AND, op(Ops.CMPLT, num(-1), v), op(Ops.CMPLT, v, num(end)))

  valid = op(Ops.AND, within(y, height), within(z, width)) if padding else None
  at = dot((b, ci * height * width), (c, height * width), (y, width), (z, 1))
  weight = load(2, w, dot((o, ci * 9), (c, 9), (kh, 3), (kw, 1)))
  value = fold(Ops.ADD, op(Ops.MUL, load(1, x, at, valid), weight), c, kh, kw)
  out = dot((b, co * oh * ow), (o, oh * ow), (h, ow), (q, 1))
  linear = check(sink(store(out, value, b, o, h, q, size=n * co * oh * ow)), [x, w], target=SMALL)
  assert count(linear, Ops.BARRIER) >= 2


def test_elements_are_where_numbers_say_that_a_group_has_copied(eager):
  """x[i, place], where place is the number beside which `order` has j: the rows of a sort on a grid."""
  rows, n = 8, 32
  i, j, k = loop(rows, 0), loop(n, 1), reduce(n, 2)
  order = np.stack([np.random.default_rng(r).permutation(n) for r in range(rows)]).astype(np.int32)
  numbers, x = np.tile(np.arange(n), (rows, 1)), normal(rows, n)
  same = op(Ops.CMPEQ, load(1, order, dot((i, n), (k, 1))), UOp.new(Ops.CAST, dtypes.int32, (j,)))
  number = load(2, numbers, dot((i, n), (k, 1)))
  place = fold(Ops.ADD, op(Ops.WHERE, same, number, UOp.const(number.dtype, 0)), k)
  at = op(Ops.ADD, dot((i, n)), UOp.new(Ops.CAST, dtypes.index, (place,)))
  ast = sink(store(dot((i, n), (j, 1)), load(3, x, at), i, j, size=rows * n))
  assert count(check(ast, [order, numbers, x]), Ops.BARRIER) >= 2


@pytest.mark.parametrize("value", [0, 1, 16, 21])
def test_dynamic_ends(eager, value):
  x, y = normal(20, 21), normal(21, 20)
  end = UOp.variable("n", 0, 21)
  i, j, k = loop(20, 0), loop(20, 1), reduce(end, 2)
  product = op(Ops.MUL, load(1, x, dot((i, 21), (k, 1))), load(2, y, dot((k, 20), (j, 1))))
  ast = sink(store(dot((i, 20), (j, 1)), fold(Ops.ADD, product, k), i, j, size=400))
  assert count(check(ast, [x, y], {"n": value}, SMALL), Ops.BARRIER) >= 2
  i, j, k = loop(op(Ops.SUB, end, num(1)), 0), loop(20, 1), reduce(20, 2)
  product = op(Ops.MUL, load(1, y, dot((k, 20), (i, 1))), load(2, y, dot((j, 20), (k, 1))))
  ast = sink(store(dot((i, 20), (j, 1)), fold(Ops.MAX, product, k), i, j, size=400))
  assert count(check(ast, [y, y], {"n": max(value, 1)}, SMALL), Ops.BARRIER) >= 2


def known_late(columns):
  """What decoding a token computes with n keys of 64 numbers, n known when it runs: scores, the largest of them, and
  what they weight; each over [3, n]."""
  n = UOp.variable("n", 0, columns)
  q, x, w = normal(3, 64), normal(3, columns, 64), normal(3, columns)
  h, j, d, k = loop(3, 0), loop(n, 1), loop(64, 1), reduce(n, 2)
  r = reduce(64, 2)
  score = op(Ops.MUL, load(1, q, dot((h, 64), (r, 1))), load(2, x, dot((h, 64 * columns), (j, 64), (r, 1))))
  scores = sink(store(dot((h, columns), (j, 1)), fold(Ops.ADD, score, r), h, j, size=3 * columns)), [q, x]
  value = fold(Ops.MAX, load(1, w, dot((h, columns), (k, 1))), k)
  highest = sink(store(h, value, h, size=3)), [w]
  value = op(Ops.MUL, load(1, w, dot((h, columns), (k, 1))), load(2, x, dot((h, 64 * columns), (k, 64), (d, 1))))
  weighted = sink(store(dot((h, 64), (d, 1)), fold(Ops.ADD, value, k), h, d, size=192)), [w, x]
  return scores, highest, weighted


@pytest.mark.parametrize("value", [0, 1, 31, 32, 200])
def test_lanes_share_reductions_whose_lengths_are_known_late(value):
  for ast, arrays in known_late(200):
    linear = check(ast, arrays, {"n": value}, WARPS)
    lanes = [u.src[0].arg for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL]
    assert math.prod(lanes) >= 32


def test_what_is_read_once_along_memory_is_read_by_lanes_side_by_side():
  """As keys by the scores of one query: a group that copies the query would have each thread read a key of its own."""
  (ast, _), *_ = known_late(1 << 16)
  linear = lower_kernel(ast, WARPS)
  assert count(linear, Ops.SHUFFLE) and {n for n, _ in loads_of_a_thread(linear)} == {4}


# ---------------------------------------------------------------- how much memory is read


def traffic(linear: Sequence[UOp]) -> tuple[float, int]:
  """(elements of device memory that are loaded for each multiplication, accesses to local memory that are vectors)"""
  times, loads, products, vectors = [1], 0, 0, 0
  for u in linear:
    if u.op is Ops.RANGE:
      times.append(times[-1] * (u.src[0].arg if u.arg[1] is AxisKind.REDUCE else 1))
    elif u.op is Ops.ENDRANGE:
      times.pop()
    elif u.op is Ops.LOAD and u.src[0].op is Ops.INDEX:
      local = u.src[0].src[0].op is Ops.SCRATCH
      loads += 0 if local else times[-1] * u.dtype.count
      vectors += local and u.dtype.count == 4
    elif u.op is Ops.MUL and u.dtype is dtypes.float32:
      products += times[-1]
  return loads / products, vectors


def large(n, layouts):
  """A matmul of which only the code is looked at."""
  zeros = [np.zeros((n, n), np.float32)] * 2
  i, j, k = loop(n, 0), loop(n, 1), reduce(n, 2)
  strides = {"mk": ((i, n), (k, 1)), "km": ((k, n), (i, 1)), "kn": ((k, n), (j, 1)), "nk": ((j, n), (k, 1))}
  x, y = (load(s + 1, z, dot(*strides[c])) for s, (z, c) in enumerate(zip(zeros, layouts)))
  return sink(store(dot((i, n), (j, 1)), fold(Ops.ADD, op(Ops.MUL, x, y), k), i, j, size=n * n))


def planned(ast):
  """The grid that the heuristic lays out."""
  with pytest.MonkeyPatch.context() as patch:
    plan_grid, found = grid_plan.plan_grid, []
    patch.setattr(grid_plan, "plan_grid", lambda nest: found.append(plan_grid(nest)) or found[-1])
    lower_kernel(ast, GRID)
  return found[0]


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("n", [1024, 4096])
def test_loads_fall_by_the_tile_of_the_group(n, layouts):
  ast = large(n, layouts)
  plan = planned(ast)
  extents = [threads * plan.copies[r] for r, threads in plan.shared]
  loads, vectors = traffic(lower_kernel(ast, GRID))
  assert loads == pytest.approx(sum(1 / e for e in extents))
  assert loads <= (1 / 64 + 1 / 128 if n == 1024 else 2 / 128) and vectors
  alone = Target("ALONE", vector_registers=96, scratch=48 << 10, threads=True, cooperates=False)
  assert traffic(lower_kernel(ast, alone))[0] >= (10 if n == 1024 else 15) * loads
  memory = {u: u.arg[0] + u.arg[2] for u in lower_kernel(ast, GRID) if u.op is Ops.SCRATCH}
  assert len(memory) == 2 and max(memory.values()) <= GRID.scratch
  assert math.prod(threads for _, threads in plan.shared) == (128 if n == 1024 else 256)


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_a_large_contraction_fits_the_registers_of_a_gpu(layouts):
  """Two work groups of 256 threads share the 65536 registers of a multiprocessor, and nothing is spilled."""
  nvrtc = importlib.import_module("cuda.bindings.nvrtc")
  source = cstyle.render(lower_kernel(large(4096, layouts), cuda.TARGET), "mm", dialects.CUDA).source
  _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"mm", 0, [], [])
  (status,) = nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=sm_90", b"--ptxas-options=-v"])
  assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
  _, length = nvrtc.nvrtcGetProgramLogSize(program)
  log = bytes(length)
  nvrtc.nvrtcGetProgramLog(program, log)
  (registers,) = re.findall(r"Used (\d+) registers", log.decode())
  assert 64 < int(registers) <= 128
  assert "0 bytes spill stores, 0 bytes spill loads" in log.decode()


# ---------------------------------------------------------------- vectors


def counts(linear: Sequence[UOp]) -> set[tuple[Ops, int]]:
  """The lengths of the accesses to memory."""
  return {
    (u.op, (u.src[1] if u.op is Ops.STORE else u).dtype.count)
    for u in linear
    if u.op in (Ops.LOAD, Ops.STORE) and u.src[0].op is Ops.INDEX
  }


@pytest.mark.parametrize(
  ("n", "shift", "dtype", "want"),
  [
    (512, 0, np.float32, {(Ops.LOAD, 4), (Ops.STORE, 4)}),
    (512, 4, np.float32, {(Ops.LOAD, 4), (Ops.STORE, 4)}),
    (516, 0, np.float32, {(Ops.LOAD, 4), (Ops.STORE, 4)}),  # not all threads have an element
    (512, 1, np.float32, {(Ops.LOAD, 1), (Ops.STORE, 4)}),  # not aligned
    (513, 0, np.float32, {(Ops.LOAD, 1), (Ops.STORE, 1)}),  # the last vector would reach beyond the end
    (512, 0, np.float64, {(Ops.LOAD, 2), (Ops.STORE, 2)}),  # 16 bytes
    (512, 0, np.int8, {(Ops.LOAD, 4), (Ops.STORE, 4)}),
  ],
)
def test_elements_side_by_side_are_vectors_where_they_are_aligned(eager, n, shift, dtype, want):
  x = (np.arange(n + 8) % 100).astype(dtype)
  i = loop(n, 0)
  value = load(1, x, op(Ops.ADD, i, num(shift)))
  assert counts(check(sink(store(i, op(Ops.ADD, value, UOp.const(value.dtype, 1)), i, size=n)), [x])) == want


def test_a_vector_is_loaded_under_one_condition_or_not_at_all(eager):
  x = normal(2, 256)
  i, j = loop(2, 0), loop(256, 1)
  for inside, want in ((op(Ops.CMPLT, j, num(13)), 1), (op(Ops.CMPLT, i, num(1)), 4)):
    value = load(1, x, dot((i, 256), (j, 1)), inside, UOp.const(dtypes.float32, 2.5))
    linear = check(sink(store(dot((i, 256), (j, 1)), value, i, j, size=512)), [x])
    assert counts(linear) == {(Ops.LOAD, want), (Ops.STORE, 4)}


SEARCHED = {
  "product": matmul(13, 12, 24),
  "turned": matmul(12, 9, 20, "km", "nk"),
  "sums of rows": row_sums(5, 83),
  "softmax": normalised(5, 70),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_every_grid_that_a_search_may_try_gives_the_same_results(eager, name):
  """Threads in any order, with races seen."""
  (ast, arrays), rng = SEARCHED[name], random.Random(name)
  want, start = evaluate(ast, arrays), search.Planner(GRID, {})
  here, seen = start, set()
  for _ in range(6):
    linear = lower_kernel(ast, GRID, 1, here)
    got = simulate(linear, arrays, np.full(want.size, 77, np.float32), {})
    np.testing.assert_allclose(got, want.reshape(-1), rtol=1e-4, atol=1e-4, err_msg=str(here.changes))
    seen.add(tuple(here.changes.items()))
    here = start.with_changes(rng.choice([*here.variations()]))
  assert len(seen) > 3


# ---------------------------------------------------------------- on a device


@pytest.fixture
def opencl(monkeypatch):
  """An OpenCL device whose threads work together, whatever the device is."""
  device = Device["CL"]
  monkeypatch.setattr(device, "target", replace(device.target, cooperates=True))
  monkeypatch.setattr(type(Device), "DEFAULT", "CL")


@pytest.mark.needs("CL")
@pytest.mark.parametrize("seed", range(24))
def test_random_kernels_in_local_memory(eager, opencl, seed):
  case = Case(1000 + seed)
  names = sorted(u.arg[0] for u in case.ast.toposort() if u.op is Ops.VARIABLE)
  got = run(case.ast, case.arrays, [case.variables[n] for n in names])
  want = evaluate(case.ast, case.arrays, case.variables)
  scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.needs("CL")
@pytest.mark.parametrize("sizes", [(1000, 1023, 130), (300, 257, 100), (1, 1, 50), (1000, 3, 64), (70, 90, 11)])
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_matmuls_of_odd_sizes(opencl, sizes, layouts):
  ast, arrays = matmul(*sizes, *layouts)
  np.testing.assert_allclose(run(ast, arrays), evaluate(ast, arrays), rtol=1e-4, atol=1e-4)
