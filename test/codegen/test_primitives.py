"""Primitives: whatever legal steps a nest is scheduled by, it computes the same; steps that are not legal are refused.

The oracles are the numpy interpreter of codegen_kernels.py, for code that runs, and `Machine`, which does what a
scheduled kernel says, in plain Python, before there is any code of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import codegen_kernels
import ml_dtypes
import numpy as np
import pytest
import test_random_kernels
from codegen_kernels import (
  FUNCTIONS,
  dot,
  evaluate,
  fold,
  identity_of,
  load,
  loop,
  num,
  op,
  reduce,
  run,
  sink,
  store,
  words_times_words,
)
from steps import growth, steps
from test_kernels import matmul
from test_passes import X, masked_rows
from test_random_kernels import Case

from tinygrad.codegen import lower_kernel, nests
from tinygrad.codegen.analysis.accesses import rereads
from tinygrad.codegen.heuristics.cpu import schedule_cpu
from tinygrad.codegen.heuristics.gpu import schedule_gpu
from tinygrad.codegen.lower import passes
from tinygrad.codegen.nests import Heuristic, NestSchedule, Room, ScheduleStep, Staged
from tinygrad.codegen.primitives import IllegalStep, rebind, split, stage
from tinygrad.device import Device, Target
from tinygrad.device.cores import SwizzledTile
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.numerics import dots, idle_loops
from tinygrad.uop import RANGES_FROM, AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import affine
from tinygrad.uop.loops import LoopIds
from tinygrad.uop.rewrite import on_sources, rebuild, substitute_free

CPU = Target("primitives", 64, 32, scratch=1 << 20)
LARGE = replace(CPU, scratch=1 << 27)  # for whatever operands are staged whole
GRID = Target("GRID", vector_registers=64, scratch=32 << 10, threads=True, cooperates=True)
REGISTERS = (AxisKind.UPCAST, AxisKind.VECTOR)
Env = dict[UOp, int]


def kind_of(dtype: DType) -> type:
  return np.dtype(to_numpy_dtype(dtype)).type


# ---- what a scheduled kernel says


class Machine:
  """Does what a kernel says: stores in their order, neighbours in the loops that they share; what one has read, the
  next in the same loops knows, unless that memory, by its node, has been written since. Memory that waits for stores
  (AFTER) is filled by these where what they depend on has changed, or what they read has been written. Threads of a
  group have the same scratch memory."""

  def __init__(self, kernel: UOp, arrays: Sequence[np.ndarray], variables: dict[str, int], fill: float = 77) -> None:
    out = next(s.src[0].src[0] for s in reversed(kernel.src) if s.src[0].src[0].op is Ops.PARAM)
    self.arrays = [np.full(out.arg.size, fill).astype(kind_of(out.dtype)), *(a.ravel() for a in arrays)]
    self.variables, self.kernel = variables, kernel
    self.scratch = np.full(1 << 20, 0xC5, np.uint8)  # what is read before it is written shows
    self.filled: dict[tuple[UOp, ...], tuple[tuple[int, ...], frozenset[UOp]]] = {}
    self.frees: dict[UOp, tuple[UOp, ...]] = {}
    self.read: dict[UOp, frozenset[UOp]] = {}
    self.effects([(s, s.src[2:]) for s in kernel.src], {})

  @property
  def out(self) -> np.ndarray:
    return self.arrays[0]

  def effects(self, stores: Sequence[tuple[UOp, tuple[UOp, ...]]], env: Env) -> None:
    for r, pending in itertools.groupby(stores, lambda s: s[1][0] if s[1] else None):
      group = list(pending)
      if r is None:
        self.leaf([s for s, _ in group], env)
        continue
      for i in range(int(self.value(r.src[0], env, {}))):
        self.effects([(s, loops[1:]) for s, loops in group], {**env, r: i})

  def leaf(self, stores: Sequence[UOp], env: Env) -> None:
    memo: dict[UOp, object] = {}
    for s in stores:
      x, at = self.value(s.src[1], env, memo), self.place(s.src[0], env, memo)
      if at is not None:
        self.memory(s.src[0].src[0], env)[at] = x
      written = s.src[0].src[0]
      memo = {u: v for u, v in memo.items() if written not in self.reads(u)}
      self.filled = {k: f for k, f in self.filled.items() if written not in f[1]}

  def reads(self, root: UOp) -> frozenset[UOp]:
    for u in root.toposort(lambda u: u not in self.read):
      found = frozenset[UOp]().union(*(self.read[s] for s in u.src))
      self.read[u] = found | {u.src[0]} if u.op is Ops.INDEX else found
    return self.read[root]

  def memory(self, m: UOp, env: Env) -> np.ndarray:
    if m.op is Ops.AFTER:
      self.fill(m, env)
      m = m.src[0]
    if m.op is Ops.PARAM:
      return self.arrays[m.arg.slot]
    return self.scratch[m.arg[0] :].view(kind_of(m.dtype))

  def fill(self, after: UOp, env: Env) -> None:
    stores, now = after.src[1:], tuple(env[r] for r in self.free(after))
    if (found := self.filled.get(stores)) is None or found[0] != now:
      around = {r for r in env if r.arg[1] is AxisKind.GLOBAL}
      self.effects([(s, tuple(r for r in s.src[2:] if r not in around)) for s in stores], env)
      written = {s.src[0].src[0] for s in stores}
      self.filled[stores] = now, frozenset[UOp]().union(*(self.reads(s.src[1]) for s in stores)) - written

  def free(self, root: UOp) -> tuple[UOp, ...]:
    """The loops whose iteration a value depends on."""
    for u in root.toposort(lambda u: u not in self.frees):
      found = dict.fromkeys(r for s in u.src for r in self.frees[s])
      bound = u.src[RANGES_FROM[u.op] :] if u.op in RANGES_FROM else ()
      self.frees[u] = (u,) if u.op is Ops.RANGE else tuple(r for r in found if r not in bound)
    return self.frees[root]

  def place(self, where: UOp, env: Env, memo: dict[UOp, object]) -> int | None:
    """The element, or None where the condition does not hold."""
    if len(where.src) > 2 and not self.value(where.src[2], env, memo):
      return None
    return int(self.value(where.src[1], env, memo))

  def value(self, u: UOp, env: Env, memo: dict[UOp, object]):
    if u not in memo:
      memo[u] = self.compute(u, env, memo)
    return memo[u]

  def compute(self, u: UOp, env: Env, memo: dict[UOp, object]):
    match u.op:
      case Ops.CONST:
        return u.arg if u.dtype is dtypes.index else kind_of(u.dtype)(u.arg)
      case Ops.RANGE:
        return env[u]
      case Ops.VARIABLE:
        return self.variables[u.arg[0]]
      case Ops.FOLD:
        return self.fold(u, env)
      case Ops.MMA:
        return self.product(u, env, memo)
      case Ops.LOAD:
        if (at := self.place(u.src[0], env, memo)) is None:
          return self.value(u.src[1], env, memo) if len(u.src) > 1 else kind_of(u.dtype)(0)
        memory = self.memory(u.src[0].src[0], env)
        assert 0 <= at < len(memory), f"element {at} of {len(memory)} is read"
        return memory[at]
      case Ops.CAST:
        return kind_of(u.dtype)(self.value(u.src[0], env, memo))
      case Ops.BITCAST:
        return np.asarray(self.value(u.src[0], env, memo)).view(kind_of(u.dtype))[()]
      case Ops.DOT:
        x, y = (self.value(s, env, memo) for s in u.src[:2])
        return words_times_words(x, y, u.arg.scalar())
      case Ops.WHERE:  # both are computed, so what is read in vain is there, too
        condition, x, y = (self.value(s, env, memo) for s in u.src)
        return x if condition else y
    with np.errstate(all="ignore"):
      return FUNCTIONS[u.op](*(self.value(s, env, memo) for s in u.src))

  def product(self, u: UOp, env: Env, memo: dict[UOp, object]):
    """An element of a product on a core: what it is made of, other lanes have."""
    core, (a, b, lane, element) = u.arg, u.src[:4]
    (thread,) = {r for r in lane.toposort() if r.op is Ops.RANGE}
    here = self.value(lane, env, memo)
    row, column = core.d.at(here, self.value(element, env, memo))
    loops, total = (u.src[4:][: len(core.a.registers)], u.src[4:][len(core.a.registers) :]), np.float64(0)
    of_a, of_b = (None if isinstance(x, SwizzledTile) else x.places() for x in (core.a, core.b))

    def operand(x: UOp, held, side: int, k: int, own, found):
      if found is None:  # from where it begins
        return self.memory(x.src[0].src[0], env)[self.place(x.src[0], env, memo) + held.place(side, k, core.k)]
      where, register = found
      digits = dict(zip(own, np.unravel_index(register, [int(r.src[0].arg) for r in own])))
      there = {**env, thread: env[thread] - here + where, **{r: int(n) for r, n in digits.items()}}
      return self.value(x, there, {})

    for k in range(core.k):
      x = operand(a, core.a, row, k, loops[0], of_a and of_a[row, k])
      total += np.float64(x) * np.float64(operand(b, core.b, column, k, loops[1], of_b and of_b[k, column]))
    return kind_of(u.dtype)(total)

  def fold(self, u: UOp, env: Env):
    kind = np.float64 if u.dtype is dtypes.float32 else kind_of(u.dtype)
    total = kind(identity_of(u.arg, u.dtype))

    def run(loops: Sequence[UOp], env: Env) -> None:
      nonlocal total
      if not loops:
        total = FUNCTIONS[u.arg](total, kind(self.value(u.src[0], env, {})))
        return
      for i in range(int(self.value(loops[0].src[0], env, {}))):
        run(loops[1:], {**env, loops[0]: i})

    with np.errstate(all="ignore"):
      run(u.src[1:], env)
    return kind_of(u.dtype)(total)


# ---- schedules that are drawn


class Drawn:
  """A heuristic: legal steps in any number and order, by a random generator. `steps`: by nest, what it has done."""

  def __init__(self, seed: int) -> None:
    self.rng, self.steps = random.Random(seed), dict[str, list[ScheduleStep]]()
    self.joins = random.Random(-seed)
    self.loops_of_fills: dict[str, list[str]] = {}

  def __call__(self, nest: NestSchedule) -> None:
    rng = self.rng
    self.steps = nest.room.steps
    nest.analyse()
    if rng.random() < 0.3 and not nest.blocked:
      self.accumulate(nest)
    if self.joins.random() < 0.3:
      self.join(nest)
    for _ in range(rng.randint(0, 3)):
      self.split(nest)
    if rng.random() < 0.5:
      self.reorder(nest)
    if rng.random() < 0.6:
      self.stage(nest)
    for _ in range(rng.randint(0, 2)):
      self.split(nest)
    self.marks(nest)
    if rng.random() < 0.2:
      self.stage(nest)
    if rng.random() < 0.5:
      nest.write_out()

  def loops(self, nest: NestSchedule) -> list[str]:
    return [n for n, r in nest.names.items() if r.arg[1] not in REGISTERS]

  def join(self, nest: NestSchedule) -> None:
    """Some of the parallel loops, or of one reduction's, in any order, of lengths that are known."""
    found = [f.src[1:] for f in folds(nest) if not any({*f.src[1:]} & {*g.src[1:]} for g in folds(nest) if g is not f)]
    loops = self.joins.choice([nest.parallel, *found])
    names = [n for n, r in nest.names.items() if r in loops and r.src[0].op is Ops.CONST and r not in nest.limited]
    if (number := self.joins.randint(0, len(names))) > 1:
      nest.join(*self.joins.sample(names, number))

  def split(self, nest: NestSchedule) -> None:
    if names := [n for n in self.loops(nest) if n.count(".") < 3]:
      name = self.rng.choice(names)
      size = self.size(nest, nest.names[name], (1, 2, 3, 4, 5, 7, 8, 16, 17))
      n, kind = nest.names[name].src[0], nest.names[name].arg[1]
      overlap = n.op is Ops.CONST and n.arg >= size and kind is not AxisKind.REDUCE and not rereads(nest.kernel.src)
      nest.split(name, size, self.rng.choice(("peel", "mask", "clamp", *["overlap"] * overlap)))

  def size(self, nest: NestSchedule, r: UOp, sizes: Sequence[int], *times: int) -> int:
    """Of a block: where the loop may end early, one of which its chunk is a multiple, or the chunk so many times."""
    if (chunk := nest.chunks.get(r)) is None:
      return self.rng.choice(sizes)
    return self.rng.choice([*(n for n in sizes if chunk % n == 0), *(chunk * n for n in times)])

  def reorder(self, nest: NestSchedule) -> None:
    for kind in ("i", "k"):
      names = [n for n in self.loops(nest) if n.startswith(kind)]
      self.rng.shuffle(names)
      nest.reorder(*names[: self.rng.randint(0, len(names))])

  def stage(self, nest: NestSchedule) -> None:
    """An operand that is not yet, over the loops of registers that it depends on, and any others. In those that it does
    not span it is filled; so they stay loops."""
    before = [x.args[0].operand for x in nest.steps if x.name == "stage"]
    if numbers := [n for n in range(len(nest.operands)) if n not in before]:
      number = self.rng.choice(numbers)
      names = [n for n, r in nest.names.items() if r.arg[1] in REGISTERS or self.rng.random() < 0.7]
      self.rng.shuffle(names)
      within = self.rng.randint(0, len(names))
      nest.stage(Staged(number, tuple(names[within:]), tuple(names[:within])))
      self.loops_of_fills[nest.label] = [n for n, r in nest.names.items() if r in around_fills(nest.kernel)]

  def accumulate(self, nest: NestSchedule) -> None:
    """A reduction of the nest's own loops alone, all of a length that is known."""
    inner = {f for f in folds(nest) for g in folds(nest) if g is not f and f in g.toposort()}
    for f in folds(nest):
      dims = [r for r in nest.parallel if r in f.toposort()]
      if f not in inner and all(r.src[0].op is Ops.CONST for r in (*dims, *f.src[1:])):
        name = nest.name_of(f.src[1])
        length = self.size(nest, f.src[1], (1, 2, 3, 5, 16), 1, 2)
        nest.accumulate(name, length, *map(nest.name_of, dims))
        return

  def marks(self, nest: NestSchedule) -> None:
    """Short loops in registers, of which one is a vector."""
    vector, copies = self.rng.random() < 0.6, 1
    for name in self.rng.sample(names := self.loops(nest), len(names)):
      r = nest.names[name]
      if r in nest.limited or any(f"{name}.".startswith(f"{x}.") for x in self.loops_of_fills.get(nest.label, ())):
        continue
      if r.src[0].op is not Ops.CONST or not 0 < (n := r.src[0].arg) <= 16 or self.rng.random() < 0.3:
        continue
      if vector and n in (2, 4, 8, 16):
        vector = False
        nest.vectorize(name)
      elif copies * n <= 32:
        copies *= n
        nest.unroll(name)


def folds(nest: NestSchedule) -> list[UOp]:
  return nests.folds_of(nest.kernel.src)


def around_fills(kernel: UOp) -> set[UOp]:
  """The loops in which memory is filled anew."""
  out = set[UOp]()
  for u in kernel.toposort():
    if u.op is Ops.AFTER:
      bound = {
        r for x in u.toposort() for r in (x.src[2:] if x.op is Ops.STORE else x.src[1:] if x.op is Ops.FOLD else ())
      }
      out |= {r for r in u.toposort() if r.op is Ops.RANGE} - bound
  return out


def again(steps: dict[str, list[ScheduleStep]]) -> Heuristic:
  """A heuristic that does what another has noted."""

  def heuristic(nest: NestSchedule) -> None:
    nest.analyse()
    for step in list(steps[nest.label]):
      getattr(nest, step.name)(*step.args)

  return heuristic


def scheduled(ast: UOp, heuristic: Heuristic, target: Target = CPU) -> UOp:
  """The kernel before it is made linear."""
  for lower in passes(target, 1, heuristic):
    ast = lower(ast)
  return ast


def close(got: np.ndarray, want: np.ndarray) -> None:
  scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale)


def small(seed: int) -> Case:
  """A random kernel of few iterations, which Python can do one by one."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(test_random_kernels, "SIZES", (1, 2, 3, 4, 5, 6))
    for tried in itertools.count(seed * 1000):
      case = Case(tried)
      if np.prod([max(u.src[0].vmax, 1) for u in case.ast.toposort() if u.op is Ops.RANGE]) < 1000:
        return case


# ---- the law


def executed(case: Case, heuristic: Heuristic) -> np.ndarray:
  names = sorted(u.arg[0] for u in case.ast.toposort() if u.op is Ops.VARIABLE)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Device["CPU"], "target", LARGE)
    patch.setattr(Device["CPU"], "arenas", [])
    patch.setattr(codegen_kernels, "lower_kernel", lambda ast, target: lower_kernel(ast, target, 1, heuristic))
    return run(case.ast, case.arrays, [case.variables[n] for n in names])


@pytest.mark.parametrize("seed", range(160))
def test_a_scheduled_kernel_says_what_it_said(seed):
  case = small(seed)
  got = Machine(scheduled(case.ast, Drawn(seed)), case.arrays, case.variables).out
  close(got, evaluate(case.ast, case.arrays, case.variables))


@pytest.mark.parametrize("seed", range(80))
def test_the_code_of_a_scheduled_kernel_does_what_it_said(seed):
  case = Case(seed)
  close(executed(case, Drawn(seed)), evaluate(case.ast, case.arrays, case.variables))


@pytest.mark.parametrize("seed", range(40))
def test_steps_are_data_that_give_the_same_code_again(seed):
  ast, drawn = Case(seed).ast, Drawn(seed)
  linear = lower_kernel(ast, LARGE, 1, drawn)
  assert lower_kernel(ast, LARGE, 1, again(dict(drawn.steps))) == linear


@pytest.mark.parametrize("block", [0, 3])
def test_what_a_heuristic_has_noted_gives_the_same_code_again(block):
  """Blocks of a reduction, and after them what their results go into."""
  kept = dict[str, list[ScheduleStep]]()

  def heuristic(nest: NestSchedule) -> None:
    kept.update(nest.room.steps)
    if block and not nest.blocked and nest.analyse().main is not None:
      nest.accumulate("k0", block, "i0", "i1")
    schedule_cpu(nest)

  ast = matmul(14, 11, 10)[0]
  linear = lower_kernel(ast, CPU, 1, heuristic)
  assert lower_kernel(ast, CPU, 1, again(kept)) == linear


def rows_in_chunks(patch: pytest.MonkeyPatch, seed: int, chunk: int) -> None:
  """Rows whose loops end early, in blocks; memory of a row is read by the store after, as far as it has been filled."""
  for module in (nests, idle_loops):
    patch.setattr(module, "CHUNK", chunk)
  ast, _ = masked_rows(13)
  want = np.tril(np.ones((13, 13))) * X[:13, :13]
  got = Machine(scheduled(ast, Drawn(seed), replace(CPU, cache=1 << 12)), [X], {}).out
  close(got, want.sum(1).astype(np.float32))


@pytest.mark.parametrize("chunk", [64, 4, 1])
@pytest.mark.parametrize("seed", range(20))
def test_stores_that_share_rows_are_scheduled_each_for_itself(seed, chunk, monkeypatch):
  rows_in_chunks(monkeypatch, seed, chunk)


WORDS = replace(CPU, features=("avx512bf16",), vendor="AMD", cache=1 << 12)


def masked_products(n: int, columns: int) -> tuple[UOp, list[np.ndarray]]:
  """Of each row the first i + 1 elements of x, in memory of its own, by a matrix: in bfloat16, so in words."""
  x, y = (
    np.random.default_rng(n).integers(-8, 9, shape).astype(ml_dtypes.bfloat16) for shape in ((n, n), (n, columns))
  )
  i, j, c, k = loop(n, 0), loop(n, 1), loop(columns, 2), reduce(n, 3)
  kind, wide = dtypes.bfloat16, dtypes.float32
  kept = op(Ops.CMPLT, j, op(Ops.ADD, i, num(1)))
  row = UOp.new(Ops.PARAM, kind, (), ParamArg(-1, n))
  value = op(Ops.WHERE, kept, load(1, x, dot((i, n), (j, 1))), UOp.const(kind, 0))
  first = UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, kind, (row, j)), value, i, j))
  there = UOp.new(Ops.LOAD, kind, (UOp.new(Ops.INDEX, kind, (row, k)),))
  terms = [UOp.new(Ops.CAST, wide, (u,)) for u in (there, load(2, y, dot((k, columns), (c, 1))))]
  product = fold(Ops.ADD, op(Ops.MUL, *terms), k)
  return sink(first, store(dot((i, columns), (c, 1)), product, i, c, size=n * columns)), [x, y]


def sums_in_words(n: int, columns: int) -> None:
  ast, (x, y) = masked_products(n, columns)
  kernel = scheduled(ast, schedule_cpu, WORDS)
  assert any(u.op is Ops.DOT for u in kernel.toposort())
  got = Machine(kernel, [x, y], {}).out.reshape(n, columns)
  np.testing.assert_array_equal(got, np.tril(x.astype(np.float32)) @ y.astype(np.float32))


@pytest.mark.parametrize("n, columns, chunk", [(64, 16, 2), (34, 17, 4), (36, 16, 8)])
def test_sums_in_words_end_where_the_rest_was_not_computed(n, columns, chunk, monkeypatch):
  """However a word is made of what lies in memory: beyond the end that is nobody's. (Mutant: they end elsewhere.)"""
  for module in (nests, idle_loops):
    monkeypatch.setattr(module, "CHUNK", chunk)
  sums_in_words(n, columns)
  monkeypatch.setattr(dots, "affine", lambda u, memo: affine(u, memo).scaled(2))
  with pytest.raises(AssertionError):
    sums_in_words(n, columns)


def sums_without_an_end(patch: pytest.MonkeyPatch) -> None:
  """Blocks of a reduction go on to where it would end if nothing were idle."""
  in_blocks = stage.accumulate
  patch.setattr(nests, "accumulate", lambda *a: in_blocks(*a[:4], None, *a[5:]))


def chains_without_an_end(patch: pytest.MonkeyPatch) -> None:
  """Short reductions are written out, whether or not they end early."""
  patch.setattr(NestSchedule, "is_fixed", lambda self, r: r.arg[1] in rebind.IN_REGISTERS)


def blocks_of_any_size(patch: pytest.MonkeyPatch) -> None:
  """A block may go beyond the chunk in which its loop ends."""
  patch.setattr(NestSchedule, "check_chunks", lambda *_: None)
  patch.setattr(Drawn, "size", lambda self, nest, r, sizes, *times: self.rng.choice(sizes))


@pytest.mark.parametrize("mutant", [sums_without_an_end, chains_without_an_end, blocks_of_any_size])
def test_what_goes_on_beyond_an_end_is_seen(mutant, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    for seed in range(20):
      rows_in_chunks(monkeypatch, seed, 4)


@pytest.mark.parametrize("seed", range(60))
def test_a_grid_says_what_the_kernel_said(seed):
  """Groups one after the other, of which threads fill memory together before one of them reads it."""
  case = small(seed)
  got = Machine(scheduled(case.ast, schedule_gpu, GRID), case.arrays, case.variables).out
  close(got, evaluate(case.ast, case.arrays, case.variables))


# ---- what it kills


def product() -> tuple[UOp, list[np.ndarray]]:
  return matmul(7, 6, 11)[:2]


def every_primitive(nest: NestSchedule) -> None:
  """Of the product of 7 x 11 by 11 x 6: a last block of each kind."""
  if nest.label == "0":
    nest.analyse()
    nest.split("i0", 4, "peel")
    nest.split("i1", 4, "mask")
    nest.split("k0", 4, "mask")
    nest.reorder("i1.o", "i0.o", "i0.i")
    for operand in range(2):
      nest.stage(Staged(operand, ("k0.o", "k0.i"), ("i0.i", "i1.i")))
    nest.vectorize("i1.i")
    nest.unroll("k0.i")
    nest.write_out()


def rest_lost(patch: pytest.MonkeyPatch) -> None:
  real = split.split_loop

  def lossy(*args):
    versions, loops = real(*args)
    return (versions[:-1] if loops["t"] is not None else versions), loops

  patch.setattr(split, "split_loop", lossy)


def mask_dropped(patch: pytest.MonkeyPatch) -> None:
  real = split.split_loop

  def unmasked(*args):
    versions, loops = real(*args)
    return [replace(v, gate=None) for v in versions], loops

  patch.setattr(split, "split_loop", unmasked)


def filled_too_far_out(patch: pytest.MonkeyPatch) -> None:
  """Memory is filled for the first iteration of the loops that it does not span, and so once."""
  real = nests.stage_panels

  def once(kernel, panels, ids):
    free = {r for p in panels for r in p.operand.toposort() if r.op is Ops.RANGE}.difference(*(p.loops for p in panels))
    first = {r: num(0) for r in free}
    out = real(kernel, panels, ids)
    fills = [u for u in out.toposort() if u.op is Ops.AFTER]
    made = {u: u.replace(src=(u.src[0], *(substitute_free(s, first) for s in u.src[1:]))) for u in fills}
    return rebuild(out, on_sources, made)

  patch.setattr(nests, "stage_panels", once)


def load_not_gated(patch: pytest.MonkeyPatch) -> None:
  real = rebind.gated
  patch.setattr(rebind, "gated", lambda where, gate: where if where.src[0].arg.slot else real(where, gate))


def blocks_beside_one_another(patch: pytest.MonkeyPatch) -> None:
  """An outer loop that steps by one iteration less than a block has."""
  real = split.at
  patch.setattr(split, "at", lambda base, *terms: real(base, *((r, max(c - 1, 1)) for r, c in terms)))


@pytest.mark.parametrize(
  "mutant", [rest_lost, mask_dropped, filled_too_far_out, load_not_gated, blocks_beside_one_another]
)
def test_a_mutant_is_seen(mutant, monkeypatch):
  ast, arrays = product()
  want = evaluate(ast, arrays)
  close(Machine(scheduled(ast, every_primitive), arrays, {}).out, want)
  mutant(monkeypatch)
  with pytest.raises(AssertionError, match=r"Not equal to tolerance|element \d+ of \d+ is read"):
    close(Machine(scheduled(ast, every_primitive), arrays, {}).out, want)


def test_memory_within_a_reduction_is_not_that_of_what_is_filled_outside():
  """One operand is filled for each iteration of k0.o, the other before: both are read together."""

  def heuristic(nest: NestSchedule) -> None:
    if nest.label == "0":
      nest.analyse()
      nest.split("k0", 4, "mask")
      nest.stage(Staged(0, ("k0.i", "i0", "i1")))
      nest.stage(Staged(1, ("k0.o", "k0.i", "i0", "i1")))

  ast, arrays = product()
  close(Machine(scheduled(ast, heuristic), arrays, {}).out, evaluate(ast, arrays))


def test_parts_of_an_operand_are_filled_where_their_own_loops_are_open():
  """In a block of a reduction: the part in i1.i for each i1.o, that in i1.t, which is in no such loop, by itself."""

  def heuristic(nest: NestSchedule) -> None:
    nest.analyse()
    if nest.label == "0":
      nest.accumulate("k0", 16, "i0", "i1")
    elif nest.label == "0.block":
      nest.split("i1", 4)
      for operand in range(2):
        nest.stage(Staged(operand, ("k0", "i0", "i1.i")))

  ast, arrays = matmul(3, 10, 32)
  want = evaluate(ast, arrays)
  close(Machine(scheduled(ast, heuristic), arrays, {}).out, want)
  case = Case(0)
  case.ast, case.arrays, case.variables = ast, arrays, {}
  close(executed(case, heuristic), want)


# ---- what is refused


def nest_of(ast: UOp, target: Target = CPU) -> NestSchedule:
  room = Room(target, LoopIds(ast), lambda nest: None, {}, [], set())
  nest = NestSchedule("0", ast.src, (), {}, room, 0)
  nest.analyse()
  return nest


def of_variable_length() -> UOp:
  n = UOp.variable("n", 1, 9)
  i, k = loop(n, 0), reduce(n, 1)
  x = load(1, np.zeros(99, np.float32), dot((i, 9), (k, 1)))
  return sink(store(i, fold(Ops.ADD, op(Ops.MUL, x, load(2, np.zeros(9, np.float32), k)), k), i, size=9))


def in_registers(nest: NestSchedule) -> None:
  for name in ("i0", "i1"):
    nest.unroll(name)
  nest.stage(Staged(0, ("k0",)))


def registers_after(nest: NestSchedule) -> None:
  nest.stage(Staged(0, ("k0",)))
  nest.stage(Staged(1, ("k0",)))
  nest.unroll("i0")
  nest.unroll("i1")
  nest.settle()


def threads(nest: NestSchedule) -> None:
  nest.launch(32)
  nest.bind("threads", "i0", "i1")


def lanes(nest: NestSchedule) -> None:
  nest.launch(1, 4)
  nest.bind("lanes", "k0")


def in_place() -> UOp:
  i = loop(9, 0)
  return sink(
    store(i, op(Ops.MUL, load(0, np.zeros(9, np.float32), i), load(1, np.zeros(9, np.float32), i)), i, size=9)
  )


SMALL, FEW, VARIABLE = product()[0], replace(CPU, scratch=64), of_variable_length()
OVERLAP = r'loop of at least as many, if nothing reads what is stored\n  fix: split it with tail="clamp"'
REFUSED = {
  "parts of a sum twice": (SMALL, CPU, lambda n: n.split("k0", 2, "overlap"), OVERLAP),
  "one block, too long": (SMALL, CPU, lambda n: n.split("i0", 8, "overlap"), OVERLAP),
  "blocks of no fixed number": (VARIABLE, CPU, lambda n: n.split("i0", 1, "overlap"), OVERLAP),
  "what is read twice": (in_place(), CPU, lambda n: n.split("i0", 2, "overlap"), OVERLAP),
  "loops of two kinds": (SMALL, CPU, lambda n: n.join("i0", "k0"), r"joined are of one kind, .*\n  fix: join others"),
  "an end that is not known": (VARIABLE, CPU, lambda n: n.join("k0", "k0"), r"of known lengths\n  fix: join others"),
  "no such loop": (SMALL, CPU, lambda n: n.split("i7", 2), r"there is no loop i7\n  fix: one of i0, i1, k0"),
  "no loop to unroll": (SMALL, CPU, lambda n: n.unroll("i0.i"), r"there is no loop i0\.i\n  fix: one of i0, i1, k0"),
  "no fixed length": (VARIABLE, CPU, lambda n: n.unroll("i0"), r"VARIABLE iterations has no fixed length\n.*split it"),
  "a vector of none": (VARIABLE, CPU, lambda n: n.vectorize("k0"), r"has no fixed length\n  fix: split it first"),
  "sums of no fixed size": (
    VARIABLE, CPU, lambda n: n.accumulate("k0", 2, "i0"), r"memory of a fixed size.*\n  fix: accumulate in registers"),
  "no room": (
    SMALL, FEW, lambda n: n.stage(Staged(0, ("i0", "i1", "k0"))),
    r"bytes do not fit in scratch memory\n.*fewer loops of"),
  "no room in a block": (
    SMALL, FEW, lambda n: n.split("k0", 4, "mask") or n.stage(Staged(0, ("k0.i", "i0", "i1"))),
    r"bytes do not fit in scratch memory\n  fix: stage fewer loops of the operand$"),
  "registers": (SMALL, CPU, in_registers, r"loop \d+ is one of registers, so .* span it\n  fix: stage it first"),
  "registers, later": (SMALL, CPU, registers_after, r"one of registers, so .* span it\n  fix: stage it"),
  "threads": (SMALL, GRID, threads, r"loops of 7 times 6 iterations, for 32 threads\n  fix: split them"),
  "no threads": (SMALL, GRID, lambda n: n.bind("threads", "i0"), r"group has no threads\n  fix: launch it with some"),
  "clusters": (
    SMALL, GRID, lambda n: n.launch(1, 4, 2), r"2 groups, of which 1 make a cluster\n  fix: launch it with fewer"),
  "lanes": (SMALL, GRID, lanes, r"loops of 11 iterations, for 4 threads\n  fix: split them"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_legal_is_refused(name):
  ast, target, done, message = REFUSED[name]
  with pytest.raises(IllegalStep, match=message):
    done(nest_of(ast, target))


def test_memory_that_is_to_span_a_loop_of_no_fixed_length_is_refused():
  nest = nest_of(VARIABLE)
  (operand,) = nest.operands[0]
  panel = stage.Panel(operand, (nest.loop("k0"),), (), 0, 0, lambda stores, limits: stores)
  with pytest.raises(IllegalStep, match=r"memory has a fixed size, and a loop .* has none\n  fix: split that loop"):
    stage.stage_panels(nest.kernel, [panel], LoopIds(VARIABLE))


@pytest.mark.parametrize(("dims", "blocks"), [(("i0", "k0.i"), 3), (("i0",), 1)])
def test_memory_has_the_blocks_that_iterations_of_one_loop_take_in_turn(dims, blocks):
  """Within two loops of a reduction there is one block, and no more is taken."""
  nest = nest_of(SMALL, GRID)
  nest.split("k0", 2, "mask")
  nest.pipeline(3)
  nest.stage(Staged(0, dims))
  (memory,) = {u for u in nest.kernel.toposort() if u.op is Ops.SCRATCH}
  assert nest.taken == memory.arg[2] == 64 * blocks


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_iterations(size):
  with pytest.raises(AssertionError, match="a block of"):
    nest_of(SMALL).split("i0", size)


# ---- what it takes


def doubled_product(n: int) -> UOp:
  """2**n paths lead from a product's result to each of its operands."""
  i, j, k = loop(14, 0), loop(12, 1), reduce(10, 2)
  x, y = (load(s, np.zeros(1000 + n, np.float32), dot((r, 10), (k, 1))) for s, r in ((1, i), (2, j)))
  for _ in range(n):
    x, y = op(Ops.MUL, x, x), op(Ops.ADD, y, y)
  value = fold(Ops.ADD, op(Ops.MUL, x, y), k)
  for _ in range(n):
    value = op(Ops.ADD, value, value)
  return sink(store(dot((i, 12), (j, 1)), value, i, j, size=168))


def test_scheduling_takes_steps_as_there_are_nodes_not_as_there_are_paths():
  assert growth(lambda n: lower_kernel(doubled_product(n), CPU, 1, every_primitive), 16) < 1.25
  assert steps(lambda: lower_kernel(doubled_product(60), CPU, 1, every_primitive)) < 2_000_000
