"""Matrix cores: whatever product a core can do, by whatever legal steps, it computes the same; fragments are what PTX
says; and what the heuristic makes of a product.

The oracles: the numpy interpreter of codegen_kernels.py. `Machine` does what a scheduled kernel says, lane by lane, and
`simulate` runs the linear code's threads, which have of one another what a warp shares.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, sink, store
from test_grid import Race, count, simulate
from test_primitives import Machine, close, nest_of, scheduled

from extra import gpu_model
from tinygrad import Device, Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.heuristics import cores
from tinygrad.codegen.heuristics.cores import Product as ProductPlan
from tinygrad.codegen.heuristics.cores import schedule_product
from tinygrad.codegen.heuristics.gpu import schedule_fill, schedule_gpu
from tinygrad.codegen.linearize import Linearizer
from tinygrad.codegen.nests import NestSchedule, Staged
from tinygrad.codegen.primitives import IllegalStep, rebind, tensorize
from tinygrad.debug.estimate import estimate
from tinygrad.device import Target
from tinygrad.device.cores import BF16, F16, TF32, WARPGROUP, Core, Fragment, SwizzledTile, cuda_cores
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.numerics import products
from tinygrad.numerics.fragments import narrowed
from tinygrad.schedule import fuse
from tinygrad.uop import AxisKind, Ops, UOp

CORES = Target("CORES", vector_registers=96, scratch=100 << 10, threads=True, cores=(F16, TF32))


# ---- cores as data


@pytest.mark.parametrize("core", [BF16, F16, TF32], ids=str)
def test_the_lanes_of_a_warp_have_each_element_once(core):
  for fragment, rows, columns in ((core.a, core.m, core.k), (core.b, core.k, core.n), (core.d, core.m, core.n)):
    assert set(fragment.places()) == {(i, j) for i in range(rows) for j in range(columns)}
    assert core.lanes * fragment.length == rows * columns


def test_fragments_are_those_of_the_ptx_isa():
  """The formulas of its tables, with groupID = lane >> 2 and threadID_in_group = lane % 4."""
  for lane in range(32):
    group, within = lane >> 2, lane % 4
    for i in range(8):  # m16n8k16, a0 … a7
      row = group if i in (0, 1, 4, 5) else group + 8
      assert F16.a.at(lane, i) == (row, within * 2 + (i & 1) + (0 if i < 4 else 8))
    for i in range(4):
      assert F16.b.at(lane, i) == (within * 2 + (i & 1) + (0 if i < 2 else 8), group)
      assert F16.d.at(lane, i) == TF32.d.at(lane, i) == (group if i < 2 else group + 8, within * 2 + (i & 1))
      assert TF32.a.at(lane, i) == (group if i in (0, 2) else group + 8, within if i < 2 else within + 4)
    for i in range(2):
      assert TF32.b.at(lane, i) == (within if i == 0 else within + 4, group)


def test_what_a_capability_has():
  assert cuda_cores((7, 5)) == () and cuda_cores((8, 0)) == cuda_cores((10, 0)) == (BF16, F16, TF32)
  assert cuda_cores((9, 0)) == (*WARPGROUP, BF16, F16, TF32)


@pytest.mark.parametrize("core", WARPGROUP, ids=str)
def test_the_lanes_of_four_warps_have_each_element_once(core):
  """PTX ISA, "Register fragments and shared memory matrix layouts": a warp has 16 rows, a lane 2 neighbours of 2."""
  assert set(core.d.places()) == {(i, j) for i in range(64) for j in range(core.n)}
  for lane, register in ((0, 0), (37, 2), (127, core.n // 2 - 1)):
    warp, group, within = lane // 32, lane % 32 // 4, lane % 4
    row = 16 * warp + group + 8 * (register // 2 % 2)
    assert core.d.at(lane, register) == (row, register // 4 * 8 + within * 2 + register % 2)


@pytest.mark.parametrize("core", [c for c in WARPGROUP if isinstance(c.a, Fragment)], ids=str)
def test_what_four_warps_hold_of_a_result_is_what_they_take_as_an_operand(core):
  """Of as many columns: from register to register. PTX ISA, as above: in steps of 16 along k as m16n8k16 has it."""
  result = next(c.d for c in WARPGROUP if c.n == core.k)
  for lane in range(128):
    assert [core.a.at(lane, i) for i in range(core.a.length)] == [result.at(lane, i) for i in range(result.length)]
    for i in range(core.a.length):
      row, column = F16.a.at(lane % 32, i % 8)
      assert core.a.at(lane, i) == (row + lane // 32 * 16, column + i // 8 * 16)


@pytest.mark.parametrize("along_k", [True, False])
def test_a_tile_lies_as_128_byte_swizzle_has_it(along_k):
  """The bits of an address: of the chunk of 16 bytes, exclusive or those of the row of 128 bytes (PTX ISA, "Swizzling
  modes"); rows follow one another, behind those of 64 columns those of the next."""
  places = {}
  for side in range(128):
    for k in range(64):
      row, column = (side, k) if along_k else (k, side)
      address = row * 128 + column % 64 * 2 + column // 64 * 64 * 128
      assert SwizzledTile(along_k).place(side, k, 64) * 2 == address ^ (address >> 7 & 7) << 4
      places[SwizzledTile(along_k).place(side, k, 64)] = side, k
  assert sorted(places) == [*range(128 * 64)]


def test_what_a_product_of_blocks_takes():
  """By hand, of 4096 rows and columns on 132 multiprocessors: of 192 x 256, 352 groups read 57,344 bytes each of what
  all share; of 128 x 256, eight warps of the twelve that are needed sum for four turns of 512 groups."""
  wide, narrow = (next(c for c in WARPGROUP if (c.n, c.k) == (n, 64)) for n in (256, 128))
  assert (wide.teams, narrow.teams) == (3, 4)
  assert wide.cycles(3, 352, 132, 1) == 352 * 57344 / (132 * 32) > 3 * (192 * 256 * 64 / 2048)
  assert wide.cycles(2, 512, 132, 1) == 4 * (128 * 256 * 64 / 2048) * 12 / 8
  # of one turn: four warpgroups copy 384 rows of 128 bytes, and read 256 and four times 128
  assert narrow.cycles(4, 16, 132, 1) == (384 + 256 + 4 * 128) * 128 / 128


# ---- kernels and steps that are drawn


class Product:
  """Σ f(x[i, k])·g(y[k, j]), with what comes before and after it drawn, of any layout."""

  def __init__(self, seed: int, core: Core) -> None:
    rng = self.rng = random.Random(seed)
    m, n, k = rng.randint(2, 20), rng.randint(2, 12), rng.randint(10, 36)
    self.i, self.j, self.k = loop(m, 0), loop(n, 1), reduce(k, 2)
    kind = np.float16 if core is F16 else np.float32
    numbers = np.random.default_rng(seed)
    self.arrays = [numbers.integers(-4, 5, size).astype(kind) for size in ((m, k), (k, n), (m, n))]
    x, y = (
      self.operand(slot, rows, columns)
      for slot, rows, columns in ((1, (self.i, m), (self.k, k)), (2, (self.k, k), (self.j, n)))
    )
    if rng.random() < 0.5:
      x, y = y, x
    value = fold(Ops.ADD, op(Ops.MUL, x, y), self.k)
    if rng.random() < 0.5:
      value = op(Ops.ADD, value, self.wide(load(3, self.arrays[2], dot((self.i, n), (self.j, 1)))))
    self.ast = sink(store(dot((self.i, n), (self.j, 1)), value, self.i, self.j, size=m * n))

  @staticmethod
  def wide(x: UOp) -> UOp:
    return x if x.dtype is dtypes.float32 else UOp.new(Ops.CAST, dtypes.float32, (x,))

  def operand(self, slot: int, rows: tuple[UOp, int], columns: tuple[UOp, int]) -> UOp:
    (r, many), (c, across), rng = rows, columns, self.rng
    at = dot((r, across), (c, 1)) if rng.random() < 0.5 else dot((c, many), (r, 1))
    valid = op(Ops.CMPLT, op(Ops.ADD, r, c), num(rng.randint(1, many + across))) if rng.random() < 0.3 else None
    return self.wide(load(slot, self.arrays[slot - 1], at, valid))


def plain(m: int, n: int, k: int) -> tuple[UOp, list[np.ndarray]]:
  i, j, r = loop(m, 0), loop(n, 1), reduce(k, 2)
  arrays = [np.random.default_rng(m).integers(-4, 5, s).astype(np.float16) for s in ((m, k), (k, n))]
  x, y = load(1, arrays[0], dot((i, k), (r, 1))), load(2, arrays[1], dot((r, n), (j, 1)))
  value = fold(Ops.ADD, op(Ops.MUL, Product.wide(x), Product.wide(y)), r)
  return sink(store(dot((i, n), (j, 1)), value, i, j, size=m * n)), arrays


class Steps:
  """A heuristic: legal steps that lead to a core, in any sizes, with operands staged or not."""

  def __init__(self, seed: int, core: Core) -> None:
    self.rng, self.core, self.tail = random.Random(seed), core, ("peel", "mask")[seed % 2]

  def __call__(self, nest: NestSchedule) -> None:
    if nest.fill is not None:
      schedule_fill(nest, nest.fill)
      return
    rng, core = self.rng, self.core
    a = nest.analyse()
    (item,) = (i for i in a.items if i.fold is not None)
    x, y = (narrowed(s, core.operand) for s in item.fold.src[0].src)
    x, y = (x, y) if nest.names["i0"] in a.deps[x] else (y, x)
    nest.narrow(core.name)
    numbers = [next(i for i, (u, *_) in enumerate(nest.operands) if u is s) for s in (x, y)]
    rows, columns = ("i0", "i1") if rng.random() < 0.5 else ("i1", "i0")
    warps, tiles = rng.choice((1, 2)), (rng.choice((1, 2)), rng.choice((1, 2)))
    nest.launch(core.lanes * warps)
    nest.split(rows, core.m * tiles[0] * warps, "clamp")
    nest.split(columns, core.n * tiles[1], "clamp")
    nest.split("k0", core.k * rng.choice((1, 2)), self.tail)
    nest.pipeline(rng.choice((1, 2, 3)))
    if "k0.i" in nest.names:
      self.stage(nest, numbers)
      self.on_core(nest, rows, columns)
    nest.bind("groups", f"{rows}.o", f"{columns}.o")
    last = f"{rows}.i.i.lane" if f"{rows}.i.i.lane" in nest.names else ""
    if last:
      nest.bind("threads", f"{rows}.i.o.i", last)
    else:
      nest.split(f"{rows}.i", core.lanes * warps, "clamp")
      nest.bind("threads", f"{rows}.i.i")
    nest.within("groups", "threads")

  def stage(self, nest: NestSchedule, numbers: Sequence[int]) -> None:
    for name, number in zip(("i0.i", "i1.i"), numbers):
      if self.rng.random() < 0.7:
        o, i = self.rng.sample(((name,), ("k0.i",)), 2)
        nest.stage(Staged(number, o, i, self.rng.choice((0, 40)), (i, o)))

  def on_core(self, nest: NestSchedule, rows: str, columns: str) -> None:
    nest.split(f"{rows}.i", self.core.m)
    nest.split(f"{columns}.i", self.core.n)
    nest.split("k0.i", self.core.k)
    nest.tensorize(self.core.name, f"{rows}.i.i", f"{columns}.i.i", "k0.i.i")
    if f"{rows}.i.o" in nest.names:
      nest.split(f"{rows}.i.o", len_of(nest.grid["threads"]) // self.core.lanes)
    for name in (f"{rows}.i.o.o", f"{columns}.i.o"):
      if name in nest.names and self.rng.random() < 0.7:
        nest.unroll(name)


def len_of(r: UOp) -> int:
  return int(r.src[0].arg)


# ---- the law


@pytest.mark.parametrize(("core", "seed"), [(F16, 7), (F16, 13), (TF32, 0), (TF32, 4)], ids=str)
def test_a_product_on_a_core_says_what_it_said(core, seed):
  case = Product(seed, core)
  close(Machine(scheduled(case.ast, Steps(seed, core), CORES), case.arrays, {}).out, evaluate(case.ast, case.arrays))


def ran(case: Product, core: Core, seed: int) -> np.ndarray:
  out = np.full(case.ast.src[0].src[0].src[0].arg.size, 77, np.float32)
  return simulate(lower_kernel(case.ast, CORES, 1, Steps(seed, core)), case.arrays, out, {})


@pytest.mark.parametrize("core", [F16, TF32], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_the_threads_of_a_product_on_a_core_do_what_it_said(core, seed):
  case = Product(seed, core)
  close(ran(case, core, seed), evaluate(case.ast, case.arrays))


def turned(fragment: Fragment) -> Fragment:
  return replace(fragment, lanes=fragment.lanes[::-1])


@pytest.mark.parametrize("part", ["a", "b", "d"])
def test_lanes_that_hold_other_elements_are_seen(part, monkeypatch):
  """The kernel lays a fragment out otherwise than the core does."""
  case, real = Product(3, F16), tensorize.elements_of_lane
  wrong = getattr(F16, part)
  close(ran(case, F16, 3), want := evaluate(case.ast, case.arrays))
  monkeypatch.setattr(tensorize, "elements_of_lane", lambda f, *more: real(turned(f) if f is wrong else f, *more))
  with pytest.raises(AssertionError, match="Not equal to tolerance"):
    close(ran(case, F16, 3), want)


def copied() -> tuple[Product, list[UOp]]:
  """A product whose operands are copied three blocks ahead."""
  case = Product(0, F16)
  ast, arrays = plain(32, 16, 96)
  case.ast, case.arrays = ast, arrays
  return case, lower_kernel(ast, CORES)


def runs(case: Product, linear: Sequence[UOp], seed: int = 0) -> np.ndarray:
  return simulate(linear, case.arrays, np.full(case.ast.src[0].src[0].src[0].arg.size, 77, np.float32), {}, seed)


def test_copies_are_waited_for_and_what_they_overwrite_has_been_read():
  case, linear = copied()
  assert count(linear, Ops.COPY) > 2 and count(linear, Ops.COMMIT) == len({*range(3)})
  close(runs(case, linear), want := evaluate(case.ast, case.arrays))
  for i, u in enumerate(linear):
    if u.op is Ops.BARRIER and u.arg is not None:
      later = [*linear[:i], u.replace(arg=u.arg + 1), *linear[i + 1 :]]
      with pytest.raises((Race, AssertionError), match=r"by thread|Not equal"):
        close(runs(case, later), want)
      with pytest.raises((Race, AssertionError), match=r"by thread|Not equal"):
        close(runs(case, [*linear[:i], *linear[i + 1 :]]), want)


# ---- cores that read a group's memory


HELD = Fragment(F16.a.lanes, ((4, 0, 16), *F16.a.registers))


def late_core(x: bool | None, y: bool) -> Core:
  """As those of four warps, but small; x is None: A is in registers."""
  a = HELD if x is None else SwizzledTile(x)
  return Core("late.m16n8k64", 16, 8, 64, dtypes.float16, a, SwizzledTile(y), F16.d)


def tiles(core: Core, block: tuple[int, int], stages: int, tile: bool = True):
  def steps(nest: NestSchedule) -> None:
    if nest.fill is not None:
      schedule_fill(nest, nest.fill)
      return
    a = nest.analyse()
    (item,) = (i for i in a.items if i.fold is not None)
    m, n, k = (nest.names[name] for name in ("i0", "i1", "k0"))
    placed = []
    for x, side, held in zip(item.fold.src[0].src, ("i0", "i1"), (core.a, core.b)):
      if isinstance(held, Fragment):
        continue
      along_k = held.along_k
      o, i = ((f"{name}.i",) for name in ((side, "k0") if along_k else ("k0", side)))
      placed.append(Staged(next(i for i, (u, *_) in enumerate(nest.operands) if u is x), o, i, 0, (i, o), 8, tile))
    schedule_product(nest, ProductPlan(core, (m, n, k), block, (core.m, core.n), core.k, tuple(placed), stages))

  return steps


def of_layout(m: int, n: int, k: int, x: bool | None, y: bool) -> tuple[UOp, list[np.ndarray]]:
  i, j, r = loop(m, 0), loop(n, 1), reduce(k, 2)
  arrays = [np.random.default_rng(k).integers(-4, 5, s).astype(np.float16) for s in ((m, k), (k, n))]
  at_x, at_y = dot((i, k), (r, 1)) if x else dot((r, m), (i, 1)), dot((j, k), (r, 1)) if y else dot((r, n), (j, 1))
  value = fold(
    Ops.ADD, op(Ops.MUL, *(Product.wide(load(q + 1, arrays[q], at)) for q, at in enumerate((at_x, at_y)))), r
  )
  return sink(store(dot((i, n), (j, 1)), value, i, j, size=m * n)), arrays


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("x", "y"), [*itertools.product((True, False, None), (True, False))])
def test_a_core_reads_tiles_in_any_layout(x, y, stages):
  core = late_core(x, y)
  target = replace(CORES, cores=(core,))
  ast, arrays = of_layout(16, 8, 128 if stages == 2 else 320, x, y)
  linear, want = lower_kernel(ast, target, 1, tiles(core, (16, 8), stages)), evaluate(ast, arrays)
  assert count(linear, Ops.MMA) == 2, "one begins products, one waits for the last"
  assert (count(linear, Ops.COPY) > 0) == (stages > 2)
  for seed in range(3):
    close(simulate(linear, arrays, np.full(128, 77, np.float32), {}, seed), want)
  if stages == 2 and x is None and not y:
    close(Machine(scheduled(ast, tiles(core, (16, 8), stages), target), arrays, {}).out, want)


def in_blocks(stages: int, reading: int) -> tuple[list[UOp], list[np.ndarray], np.ndarray]:
  """(linear code of a product on a late core, its operands, its values)"""
  core = late_core(True, True)
  ast, arrays = of_layout(32, 16, 64 * 6, True, True)
  planned = tiles(core, (32, 8), stages)

  class Piped(NestSchedule):
    pipeline = lambda self, *_: NestSchedule.pipeline(self, stages, reading)  # noqa: E731

  def steps(nest: NestSchedule) -> None:
    nest.__class__ = Piped
    planned(nest)

  return lower_kernel(ast, replace(CORES, cores=(core,)), 1, steps), arrays, evaluate(ast, arrays)


@pytest.mark.parametrize(("stages", "reading"), [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)])
def test_a_product_has_come_before_what_it_reads_is_filled(stages, reading, monkeypatch):
  """Where no other block is left, each iteration waits for its own. (Mutant: nothing waits.)"""
  linear, arrays, want = in_blocks(stages, reading)
  ends = [i for i, u in enumerate(linear) if u.op is Ops.ENDRANGE and u.src[0].arg[1] is AxisKind.REDUCE]
  waits = [i for i, u in enumerate(linear) if u.op is Ops.MMA and len(u.src) == 1]
  assert [i < ends[-1] for i in waits] == [reading == 1 or stages == 1]
  for seed in range(3):
    close(simulate(linear, arrays, np.full(512, 77, np.float32), {}, seed), want)
  if reading == 1 or stages == 1:
    monkeypatch.setattr(Linearizer, "reads_what_is_filled_next", lambda self, f: False)
    linear, *_ = in_blocks(stages, reading)
    with pytest.raises((Race, AssertionError), match=r"by thread|Not equal"):
      for seed in range(3):
        close(simulate(linear, arrays, np.full(512, 77, np.float32), {}, seed), want)


def test_products_that_are_not_waited_for_are_seen():
  core = late_core(True, True)
  ast, arrays = of_layout(32, 16, 64 * 6, True, True)
  linear = lower_kernel(ast, replace(CORES, cores=(core,)), 1, tiles(core, (32, 8), 3))
  (last,) = (u for u in linear if u.op is Ops.MMA and len(u.src) == 1)
  moved = {last: last.src[0]}
  cut = []
  for u in linear:
    if u is not last:
      src = tuple(moved.get(s, s) for s in u.src)
      moved[u] = u if src == u.src else u.replace(src=src)
      cut.append(moved[u])
  with pytest.raises(AssertionError, match="Not equal"):
    close(simulate(cut, arrays, np.full(512, 77, np.float32), {}), evaluate(ast, arrays))


def test_an_operand_that_lies_otherwise_is_refused():
  core = late_core(True, True)
  ast, _ = of_layout(32, 16, 128, True, True)
  with pytest.raises(
    IllegalStep, match=r"core late\.m16n8k64 reads its operands in a group's memory\n  fix: stage both"
  ):
    lower_kernel(ast, replace(CORES, cores=(core,)), 1, tiles(core, (32, 8), 2, False))


HOPPER = replace(CORES, scratch=227 << 10, units=4, cores=cuda_cores((9, 0)))


@pytest.mark.parametrize(("sizes", "name"), [((64, 64, 192), "wgmma.m64n64k64"), ((96, 64, 64), "m16n8k16")])
def test_products_of_whole_blocks_read_tiles(sizes, name):
  ast, arrays = plain(*sizes)
  linear = lower_kernel(ast, HOPPER)
  assert {u.arg.name.rpartition(".float16")[0] for u in linear if u.op is Ops.MMA} == {name}
  close(simulate(linear, arrays, np.full(sizes[0] * sizes[1], 77, np.float32), {}), evaluate(ast, arrays))


def in_words(linear: list[UOp]) -> bool:
  """Whether a group's memory is filled by words at least."""
  fills = [u for u in linear if u.op in (Ops.STORE, Ops.COPY) and u.src[0].src and u.src[0].src[0].op is Ops.SCRATCH]
  return all(u.src[0].dtype.itemsize * u.src[0].dtype.count >= 4 for u in fills)


def sums(linear: list[UOp]) -> int:
  """Products that no core sums."""
  return sum(u.op is Ops.MUL and u.dtype.scalar() is dtypes.float32 for u in linear)


LAYOUTS = [(True, True), (True, False), (False, True), (False, False)]
OF_HOPPER, OF_AMPERE = (HOPPER, "wgmma.m64n64k64"), (CORES, "m16n8k16")


@pytest.mark.parametrize(("x", "y"), LAYOUTS)
@pytest.mark.parametrize("sizes", [(67, 65, 131), (66, 70, 130), (72, 64, 136)])
def test_cores_sum_all_of_a_product_of_any_sizes(sizes, x, y):
  """Of rows that begin at two bytes, four and sixteen, and with a last block of the sum that is not whole."""
  m, n, k = sizes
  ast, _ = of_layout(*sizes, x, y)
  for target, core in (OF_HOPPER, OF_AMPERE):
    linear = lower_kernel(ast, target)
    assert {u.arg.name.rpartition(".float16")[0] for u in linear if u.op is Ops.MMA} == {core}
    assert sums(linear) == 0 and in_words(linear)
    copies = [u.src[1].dtype.count for u in linear if u.op is Ops.COPY]
    along = [k if x else m, k if y else n]
    assert {*copies} == {max(c for c in (1, 2, 4, 8) if r % c == 0) for r in along if r % 2 == 0}


@pytest.mark.parametrize(("sizes", "x", "y", "how"), [((67, 65, 131), True, False, 0), ((34, 33, 67), False, True, 1)])
def test_a_product_of_any_sizes_says_what_it_said(sizes, x, y, how):
  ast, arrays = of_layout(*sizes, x, y)
  linear = lower_kernel(ast, (HOPPER, CORES)[how])
  close(simulate(linear, arrays, np.full(sizes[0] * sizes[1], 77, np.float32), {}), evaluate(ast, arrays))


def test_what_lies_beyond_the_last_block_is_not_multiplied(monkeypatch):
  """(Mutant: a last block is read as far as the others.)"""
  ast, arrays = of_layout(34, 33, 67, True, True)
  monkeypatch.setattr(rebind, "gated", lambda where, gate: where)
  monkeypatch.setattr(rebind, "is_zero_beyond", lambda *_: True)
  with pytest.raises((AssertionError, IndexError)):
    close(simulate(lower_kernel(ast, CORES), arrays, np.full(34 * 33, 77, np.float32), {}), evaluate(ast, arrays))


def test_an_operand_that_is_not_0_where_it_is_not_read_leaves_a_last_block_to_lanes(monkeypatch):
  """(Mutant: both are taken for 0 there.)"""
  i, j, r, (_, arrays) = loop(32, 0), loop(16, 1), reduce(67, 2), plain(32, 16, 67)
  there, one = op(Ops.CMPLT, r, num(60)), UOp.const(dtypes.float16, 1)
  x, y = (load(q + 1, arrays[q], at, there, one) for q, at in enumerate((dot((i, 67), (r, 1)), dot((r, 16), (j, 1)))))
  value = fold(Ops.ADD, op(Ops.MUL, Product.wide(x), Product.wide(y)), r)
  ast, out = sink(store(dot((i, 16), (j, 1)), value, i, j, size=512)), np.full(512, 77, np.float32)
  linear = lower_kernel(ast, CORES)
  assert count(linear, Ops.MMA) > 0 and sums(linear) > 0
  close(simulate(linear, arrays, out, {}), evaluate(ast, arrays))
  for module in (cores, products):
    monkeypatch.setattr(module, "is_zero_unread", lambda x: True)
  with pytest.raises(AssertionError, match="Not equal"):
    close(simulate(lower_kernel(ast, CORES), arrays, out, {}), evaluate(ast, arrays))


# ---- what is refused


def on(core: str, m: str = "i0", n: str = "i1"):
  def steps(nest: NestSchedule) -> None:
    for name, size in ((m, 16), (n, 8), ("k0", 16)):
      nest.split(name, size, "clamp")
    nest.tensorize(core, f"{m}.i", f"{n}.i", "k0.i")

  return steps


def lanes_apart(nest: NestSchedule) -> None:
  on(F16.name)(nest)
  nest.launch(64)
  nest.bind("groups", "i0.o", "i1.o")
  nest.split("k0.o", 2)
  nest.split("i0.i.lane", 16)
  nest.bind("threads", "i0.i.lane.i", "i0.i.lane.o")


def unsplit(nest: NestSchedule) -> None:
  nest.tensorize(F16.name, "i0", "i1", "k0")


def not_summed(nest: NestSchedule) -> None:
  for name, size in (("i0", 16), ("i1", 8), ("k0", 16)):
    nest.split(name, size)
  nest.tensorize(F16.name, "i0.i", "i1.i", "i0.i")


def halves(k: int = 32, kind: type = np.float16) -> UOp:
  i, j, r = loop(32, 0), loop(16, 1), reduce(k, 2)
  arrays = [np.zeros((32, k), kind), np.zeros((k, 16), kind)]
  x, y = load(1, arrays[0], dot((i, k), (r, 1))), load(2, arrays[1], dot((r, 16), (j, 1)))
  value = fold(Ops.ADD, op(Ops.MUL, Product.wide(x), Product.wide(y)), r)
  return sink(store(dot((i, 16), (j, 1)), value, i, j, size=512))


REFUSED = {
  "no core": (halves(), on("m8n8k4.none"), r"CORES has no core m8n8k4\.none\n  fix: one of its Target"),
  "sizes": (halves(), unsplit, r"loop \d+ has not the 16 iterations of core m16n8k16\.float16\n  fix: split it by 16"),
  "type": (halves(kind=np.float32), on(F16.name), r"core m16n8k16\.float16 sums products of float16s.*\n  fix: stage"),
  "a condition": (halves(40), on(F16.name), r"sums products of .*\n  fix: stage its operands without a condition"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_core_cannot_do_is_refused(name):
  ast, steps, message = REFUSED[name]
  with pytest.raises(IllegalStep, match=message):
    steps(nest_of(ast, CORES))


def test_lanes_are_threads_side_by_side():
  nest = nest_of(halves(), CORES)
  on(F16.name)(nest)
  nest.launch(64)
  nest.bind("groups", "i1.o")
  nest.bind("threads", "i0.i.lane", "i0.o")
  with pytest.raises(IllegalStep, match=r"the lanes of core .* are not threads side by side\n  fix: bind them last"):
    nest.within("groups", "threads")


def test_a_core_sums_over_a_loop_of_a_reduction():
  nest = nest_of(halves(), CORES)
  for name, size in (("i0", 16), ("i1", 8), ("k0", 16)):
    nest.split(name, size)
  ast = nest.kernel
  with pytest.raises(IllegalStep, match=r"nothing is summed over loop \d+\n  fix: name a reduction's loop"):
    nest.settle()
    loops = [nest.loop(name) for name in ("i0.i", "i1.i", "i0.i")]
    tensorize.tensorize(nest.kernel, F16, tuple(loops), nest.room.ids)
  assert ast is not nest.kernel


# ---- what the heuristic makes of it


def test_operands_stay_narrow_and_f32_stays_exact():
  linear = lower_kernel(halves(), CORES)
  assert count(linear, Ops.MMA) > 0 and {u.dtype for u in linear if u.op is Ops.SCRATCH} == {dtypes.float16}
  single = halves(kind=np.float32)
  assert count(lower_kernel(single, CORES), Ops.MMA) == 0
  with Context(ALLOW_TF32=1):
    assert count(lower_kernel(single, CORES), Ops.MMA) > 0


@pytest.mark.parametrize("sizes", [(32, 16, 32), (48, 20, 45), (17, 33, 64)])
def test_the_heuristic_keeps_the_meaning(sizes):
  ast, arrays = plain(*sizes)
  linear = lower_kernel(ast, CORES)
  assert count(linear, Ops.MMA) > 0
  close(simulate(linear, arrays, np.full(sizes[0] * sizes[1], 77, np.float32), {}), evaluate(ast, arrays))


def test_the_heuristic_says_what_the_kernel_said():
  ast, arrays = plain(32, 16, 32)
  close(Machine(scheduled(ast, schedule_gpu, CORES), arrays, {}).out, evaluate(ast, arrays))


def training_step():
  """The gradients of a transformer's layer, with weights and values of bfloat16."""
  dim, heads, tokens = 256, 4, 128

  def weight(*shape):
    return gpu_model.empty(*shape, dtype=dtypes.bfloat16)

  x = weight(2, tokens, dim)
  shapes = (dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim)
  qkv, out, up, down = weights = [weight(*s) for s in shapes]
  q, k, v = ((x.layernorm() @ qkv).reshape(2, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)[i] for i in range(3))
  y = x + q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(2, tokens, dim) @ out
  y = y + (y.layernorm() @ up).gelu() @ down
  return Tensor.stack(*[g.sum() for g in y.float().square().mean().gradient(*weights)])


def parted_step():
  """The same of a layer that makes queries, keys, values, and what is between two linear layers, by matrices of their
  own: the gradient of what these read is a sum of products, and so is the result."""
  weights = [gpu_model.empty(256, 256, dtype=dtypes.bfloat16) for _ in range(6)]
  q, k, v, out, gate, up = weights
  x = gpu_model.empty(2, 128, 256, dtype=dtypes.bfloat16)
  y = x.layernorm()
  heads = [(y @ w).reshape(2, 128, 4, 64).transpose(1, 2) for w in (q, k, v)]
  mixed = heads[0].scaled_dot_product_attention(*heads[1:], is_causal=True).transpose(1, 2).reshape(2, 128, 256)
  y = x + mixed @ out + (y @ gate).silu() @ up
  return Tensor.stack(*[g.sum() for g in y.float().square().mean().gradient(x, *weights)])


def products_without_cores(step):
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    found = [(ast, estimate(ast).products) for ast in gpu_model.kernels_of(step)]
    products = [ast for ast, counted in found if max((n for _, n in counted), default=0) > 1 << 22]
    assert len(products) > 12
    target = Device["NULL"].target
    return sum(all(u.op is not Ops.MMA for u in lower_kernel(ast, target)) for ast in products)


def test_every_product_of_a_training_step_runs_on_cores(monkeypatch):
  assert products_without_cores(training_step) == products_without_cores(parted_step) == 0
  monkeypatch.setattr(fuse, "is_second", lambda u, uses, first: False)
  assert products_without_cores(parted_step) > 0
  monkeypatch.setattr(fuse, "narrowest", lambda u: u)
  assert products_without_cores(training_step) > 4
