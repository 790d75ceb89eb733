"""Kernels that share rows are one kernel on a grid, too: random programs of rows, scheduled for a grid and run thread
by thread on the machine of test_grid.py, which sees races; the oracle is numpy, step by step."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from test_grid import Race, Thread, simulate

from extra import gpu_model
from tinygrad import Tensor
from tinygrad.codegen import group_rows, linearize, lower, lower_kernel
from tinygrad.codegen.heuristics import gpu
from tinygrad.codegen.nests import NestSchedule, Room
from tinygrad.codegen.primitives import tensorize
from tinygrad.device import Target
from tinygrad.device.cores import F16
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.helpers import Context
from tinygrad.numerics import own_memory, streaming
from tinygrad.schedule import row_groups
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.loops import LoopIds
from tinygrad.uop.node import stored

GRID = Target("GRID", vector_registers=96, scratch=48 << 10, threads=True, intensity=8)
SMALL = Target("SMALL", vector_registers=32, scratch=4 << 10, threads=True, intensity=1 << 20)


def random_program(seed, x, y):
  """Values [R, C] and [R, 1], each made of earlier ones; of Tensors, or of arrays: what they share is written once."""
  rng, values = random.Random(seed), [x, y]
  keep = {"axis": 1, "keepdims": True} if isinstance(x, np.ndarray) else {"axis": 1, "keepdim": True}
  for _ in range(rng.randint(2, 6)):
    a, b = rng.choice(values), rng.choice(values)
    match rng.randrange(6):
      case 0:
        new = a + b
      case 1:
        new = a * b
      case 2:
        new = a.sum(**keep)
      case 3:
        new = a.max(**keep)
      case 4:
        new = a - b.max(**keep)
      case _:
        new = (a * b).sum(**keep) / 8
    values.append(new if isinstance(x, np.ndarray) else new.contiguous())
  return values[2:]


def run(tensors, target, given):
  """What the schedule's kernels leave in memory for the tensors, and the kernels. `given`: buffer -> array."""
  written = dict.fromkeys(u for t in tensors for u in t.uop.toposort() if u.op is Ops.ASSIGN)
  made = [stored(t.uop, "CPU") for t in tensors]
  sink, originals, _ = canonical(UOp.sink(*written, *made))
  schedule = create_schedule(localize(sink), True, target)
  buffers = [originals[-1 - b.arg.uid] for b in schedule.buffers]
  memory = [given[b].flatten() if b in given else np.full(math.prod(b.arg.shape), 77, np.float32) for b in buffers]
  memory += [np.full(t.nbytes // 4, 77, np.float32) for t in schedule.temps]
  for item in schedule.items:
    out, *others = [memory[s] for s in item.slots]
    simulate(lower_kernel(item.kernel, target), others, out, {}, kind=Computer)
  return [memory[buffers.index(u.src[0].base)] for u in made], [item.kernel for item in schedule.items]


UNARY = {Ops.EXP: np.exp, Ops.LOG: np.log, Ops.RECIP: np.reciprocal, Ops.NEG: np.negative, Ops.NOT: np.logical_not}


class Computer(Thread):
  """A thread that knows functions, which are not taken apart for it."""

  def one(self, u):
    if u.op in UNARY:
      with np.errstate(all="ignore"):
        self.values[u] = tuple(UNARY[u.op](np.float32(x)).item() for x in self.lanes(u.src[0]))
    else:
      super().one(u)


@pytest.mark.parametrize(
  ("rows", "columns", "kind", "lanes"),
  [
    (8192, 768, dtypes.bfloat16, 32),
    (8192, 768, dtypes.float32, 64),
    (8192, 4096, dtypes.bfloat16, 256),
    (65536, 256, dtypes.bfloat16, 16),
    (512, 768, dtypes.bfloat16, 256),
    (8192, 20, dtypes.float32, 8),
  ],
)
def test_lanes_of_a_row_have_enough_to_store_each(rows, columns, kind, lanes):
  """And are more only where all rows' threads are then as many as run at once. (Mutants: as many as have two elements;
  a lane stores 8 bytes.)"""
  gpu_of = gpu_model.GPUS["sm_90a"]
  with gpu_model.as_null(gpu_of):
    x, up = (gpu_model.empty(rows, columns, dtype=kind) for _ in range(2))
    ast, *_ = gpu_model.kernels_of(lambda: ((out := x.layernorm()), *out.gradient(x, gradient=up)))
    linear = lower_kernel(ast, gpu_model.target_of(gpu_of))
  first = next(u for u in linear if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL)
  assert first.src[0] is index(lanes)


SHAPES = [(3, 5), (8, 17), (17, 8), (130, 4), (2, 70)]


def check(seed, target):
  """The kernels of a random program, which give what numpy gives."""
  shape = SHAPES[seed % len(SHAPES)]
  x, y = (np.random.default_rng(seed + i).uniform(-1, 1, shape).astype(np.float32) for i in range(2))
  a, b = Tensor(x).to("CPU").realize(), Tensor(y).to("CPU").realize()
  got, kernels = run(random_program(seed, a, b), target, {a.uop.base: x, b.uop.base: y})
  for have, want in zip(got, random_program(seed, x.astype(np.float64), y.astype(np.float64)), strict=True):
    np.testing.assert_allclose(have.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
  return kernels


@pytest.fixture
def small(monkeypatch):
  """Few rows are enough for one kernel."""
  monkeypatch.setattr(row_groups, "LEAST_ROWS", 1)


@pytest.mark.parametrize("target", [GRID, SMALL], ids=lambda t: t.name)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_of_rows(seed, target, small, monkeypatch):
  if seed % 2:
    monkeypatch.setattr(Target, "busy", 256)  # several rows a group
  check(seed, target)


@pytest.mark.parametrize("seed", range(6))
def test_without_optimisations_a_group_is_one_thread_with_one_row(seed, small):
  with Context(NOOPT=1):
    kernels = check(seed, GRID)
    for ast in (k for k in kernels if len(k.src) > 1):
      assert not any(u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL for u in lower_kernel(ast, GRID))


def seen(*wrong):
  """The seed of a program that shows a fault."""
  for seed in range(40):
    try:
      check(seed, SMALL)
    except wrong:
      return seed
  return None


def test_without_barriers_threads_race(small, monkeypatch):
  monkeypatch.setattr(lower, "with_barriers", lambda nests, grid: itertools.chain.from_iterable(nests))
  assert seen(Race, AssertionError) is not None


def test_rows_beyond_the_last_are_written_before_they_are_read(small, monkeypatch):
  monkeypatch.setattr(Target, "busy", 256)
  monkeypatch.setattr(group_rows, "is_given", lambda memory: True)
  assert seen(Race) is not None


def normalised_in_place(x):
  total = x.sum(1, keepdim=True).contiguous()
  largest = x.max(1, keepdim=True).contiguous()
  x.assign((x / total).contiguous())
  return [x * largest, total, x]


def test_what_was_read_before_a_write_is_known_after_it(small):
  x = np.random.default_rng(0).uniform(1, 2, (20, 6)).astype(np.float32)
  a = Tensor(x).to("CPU").realize()
  memory = a.uop.base
  got, _ = run(normalised_in_place(a), GRID, {memory: x})
  now = x / x.sum(1, keepdims=True)
  for have, want in zip(got, (now * x.max(1, keepdims=True), x.sum(1), now)):
    np.testing.assert_allclose(have, want.ravel(), rtol=1e-5)


def momentum(p, m, g):
  m.assign(m * 0.5 + g)
  p.assign(p - m)
  return [p, m]


def test_what_is_computed_in_place_is_not_computed_again(small):
  p, m, g = (np.random.default_rng(i).uniform(-1, 1, (12, 5)).astype(np.float32) for i in range(3))
  tensors = [Tensor(x).to("CPU").realize() for x in (p, m, g)]
  memory = [t.uop.base for t in tensors]
  got, kernels = run(momentum(*tensors), GRID, dict(zip(memory, (p, m, g))))
  for have, want in zip(got, (p - (m * 0.5 + g), m * 0.5 + g)):
    np.testing.assert_allclose(have, want.ravel(), rtol=1e-5)
  assert any(len(k.src) > 1 for k in kernels)


def tensor(*shape):
  return Tensor(np.zeros(shape, np.float32)).to("CPU").realize()


def kernels_of(*tensors, target=GRID):
  sink = canonical(UOp.sink(*(stored(t.uop, "CPU") for t in tensors)))[0]
  return [i.kernel for i in create_schedule(localize(sink), True, target).items]


@pytest.mark.parametrize("shape", [(512, 100), (130, 5000), (16, 64)])
def test_what_works_on_the_same_rows_is_one_kernel(shape):
  x = tensor(*shape)
  for f in (Tensor.softmax, Tensor.log_softmax, Tensor.layernorm, lambda x: x.logsumexp(1)):
    (kernel,) = kernels_of(f(x))
    assert len(kernel.src) == 1, "sums of a row are in registers"
  assert len(kernels_of(x + 1, (x + 1).softmax())) == 1


def test_small_kernels_that_have_nothing_in_common_are_launched_together():
  xs = [tensor(40, 30) for _ in range(5)]
  (kernel,) = kernels_of(*(x * (i + 2) for i, x in enumerate(xs)))
  assert len(kernel.src) == 5
  assert len(kernels_of(xs[0] * 2, tensor(40, 31) * 2)) == 2, "of another size"
  assert len(kernels_of(xs[0].sum(0), xs[1].sum(0))) == 2, "each of its threads would do both sums"
  large = [tensor(1 << 10, 1 << 10) for _ in range(2)]
  assert len(kernels_of(*(x * 2 for x in large))) == 2


def test_few_long_rows_keep_kernels_that_fill_the_grid():
  assert len(kernels_of(tensor(16, 1 << 20).softmax())) > 1


def test_a_contraction_is_tiled_as_a_whole():
  x, w = tensor(512, 256), tensor(256, 256)
  assert len(kernels_of((x @ w).softmax())) == 2


def test_values_that_pass_between_threads_are_in_local_memory_as_far_as_that_goes():
  def scratch(columns):
    x = tensor(256, columns)
    y = (x.sum(1, keepdim=True) + x.max(1, keepdim=True)).exp() * x
    kernels = kernels_of(y.contiguous().softmax())
    return [u.arg.size for k in kernels for u in k.toposort() if u.op is Ops.PARAM and u.arg.slot < 0]

  assert scratch(64) == [64]
  assert scratch(1 << 14) == []


# ---------------------------------------------------------------- streaming reductions


@pytest.fixture
def whole(monkeypatch):
  """Functions are as they stand in the kernel."""
  monkeypatch.setattr(lower, "decompose_stores", lambda kernel, target: kernel)


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def attended(shape, keys, mask=None, scale=1.0):
  """(what is scheduled, what numpy makes of it, the memory given)"""
  rng = np.random.default_rng(keys)
  q, k, v = (rng.standard_normal((*shape[:-2], n, shape[-1])).astype(np.float32) for n in (shape[-2], keys, keys))
  q *= scale
  tensors = [Tensor(x).to("CPU").realize() for x in (q, k, v)]
  given = {t.uop.base: x for t, x in zip(tensors, (q, k, v))}
  scores, want = tensors[0] @ tensors[1].transpose(-2, -1), q.astype(np.float64) @ k.swapaxes(-1, -2)
  if mask is not None:
    m = Tensor(mask).to("CPU").realize()
    given[m.uop.base] = mask
    scores, want = scores + m, want + mask
  return scores, want, tensors[2], v.astype(np.float64), given


EAGER = replace(GRID, intensity=2)  # a contraction over few elements, too, is only joined where it streams


def agrees(tensor, want, given, kernels=1, target=EAGER):
  (got,), made = run([tensor], target, given)
  assert len(made) == kernels
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-4, atol=1e-5)
  return made


def memory_of_rows(kernel):
  return sum({u: u.arg.size for u in kernel.toposort() if u.op is Ops.PARAM and u.arg.slot < 0}.values())


@pytest.mark.parametrize("target", [EAGER, replace(SMALL, intensity=2)], ids=lambda t: t.name)
@pytest.mark.parametrize("keys", [32, 48, 64, 160])
@pytest.mark.parametrize("shape", [(20, 8), (2, 9, 12)])
def test_attention_is_one_kernel_that_sees_its_keys_once(shape, keys, target, whole):
  scores, s, v, w, given = attended(shape, keys)
  agrees(scores.softmax() @ v, softmax(s) @ w, given, target=target)


def test_memory_of_attention_is_the_same_for_any_number_of_keys(whole):
  sizes = []
  for keys in (128, 256, 1024):
    scores, _, v, _, _ = attended((64, 16), keys)
    (kernel,) = kernels_of(scores.softmax() @ v)
    sizes.append(memory_of_rows(kernel))
  assert sizes[0] == sizes[1] == sizes[2]


def masks(keys):
  """What is added to scores: at first nothing is seen; a row that sees one key; large steps up and down; nothing, and
  then what is so far below 0 that exp of the way there is infinite."""
  unseen = np.zeros((20, keys), np.float32)
  unseen[:, : keys // 2 + 3] = -np.inf
  one = np.full((20, keys), -np.inf, np.float32)
  one[np.arange(20), np.arange(20) * 3 % keys] = 0
  steps = np.cumsum(np.full((20, keys), 7, np.float32), axis=1)
  return [unseen, one, steps, -steps, unseen - 300]


@pytest.mark.parametrize("number", range(5))
def test_maxima_that_change_on_the_way(number, whole):
  keys = 64
  scores, s, v, w, given = attended((20, 8), keys, masks(keys)[number])
  agrees(scores.softmax() @ v, softmax(s) @ w, given)


def all_there_are(rows, most, *_):
  """Of rows a group has as many as it may."""
  return most


ON_CORES = replace(EAGER, scratch=100 << 10, cores=(F16,))


def weighted(rows, keys, wide, heads=1):
  """softmax(q kᵀ) v of halves: (it, what numpy makes of it, the memory given)"""
  rng = np.random.default_rng(keys + wide)
  shapes = (heads, rows, wide), (heads, keys, wide), (heads, keys, wide)
  q, k, v = (rng.standard_normal(s).astype(np.float16) for s in shapes)
  tensors = [Tensor(x).to("CPU").realize() for x in (q, k, v)]
  scores = tensors[0].dot(tensors[1].transpose(-2, -1), dtype=dtypes.float32) / 4
  out = scores.softmax().half().dot(tensors[2], dtype=dtypes.float32)
  want = softmax(q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / 4) @ v
  return out, want, {t.uop.base: x for t, x in zip(tensors, (q, k, v))}


@pytest.mark.parametrize(("rows", "keys", "wide", "products"), [(40, 64, 32, 16), (32, 128, 32, 32)])
def test_products_of_a_group_run_on_cores(rows, keys, wide, products, whole, monkeypatch):
  """Both of them, in one kernel; of rows that are not there, too."""
  monkeypatch.setattr(group_rows, "team_rows", all_there_are)
  out, want, given = weighted(rows, keys, wide)
  (got,), (kernel,) = run([out], ON_CORES, given)
  assert sum(u.op is Ops.MMA for u in lower_kernel(kernel, ON_CORES)) == products
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-3, atol=2e-3)


def test_what_cores_take_is_kept_as_narrow_as_it_is(whole):
  """The weights of a block, between exp and the product."""
  kernel = kernels_of(weighted(64, 128, 32)[0], target=ON_CORES)[0]
  kinds = [u.dtype for u in kernel.toposort() if u.op is Ops.PARAM and u.arg.slot < 0 and u.arg.size > 1]
  assert kinds.count(dtypes.float16) == 1


def test_what_a_lane_writes_the_others_have_read(whole, monkeypatch):
  """Of a row's total so far, when they have met to add to it."""
  monkeypatch.setattr(group_rows, "team_rows", all_there_are)
  monkeypatch.setattr(own_memory, "MOST", 0)  # of which each has one of its own otherwise
  out, _, given = weighted(64, 128, 32)
  monkeypatch.setattr(linearize.Linearizer, "read_first", lambda *_: None)
  with pytest.raises(Race, match="is written by thread"):
    run([out], ON_CORES, given)


@pytest.mark.parametrize(
  ("dtype", "scratch", "copies"), [("float32", 1000, 1), ("float64", 1000, 0), ("float64", 1100, 1)]
)
def test_columns_are_copied_ahead_where_two_blocks_of_their_type_have_room(dtype, scratch, copies):
  """Of 64 columns: 512 bytes of float32, 1024 of float64."""
  kind, ids = getattr(dtypes, dtype), LoopIds()
  block, row, column = (
    ids.loop(index(n), k) for n, k in ((4, AxisKind.REDUCE), (32, AxisKind.LOOP), (64, AxisKind.LOOP))
  )
  grid = {name: ids.loop(index(n), AxisKind.LOCAL) for name, n in (("lanes", 4), ("threads", 16))}
  read = UOp.new(Ops.PARAM, kind, (), ParamArg(1, 256)), block * 64 + column
  written = UOp.new(Ops.PARAM, kind, (), ParamArg(0, 2048)), row * 64 + column
  there, where = (UOp.new(Ops.INDEX, kind, x) for x in (read, written))
  store = UOp.new(Ops.STORE, dtypes.void, (where, UOp.new(Ops.LOAD, kind, (there,)), block, row, column))
  room = Room(replace(ON_CORES, scratch=scratch), ids, gpu.schedule_gpu, {}, [], {written[0]}, grid, row)
  NestSchedule("0", (store,), {block}, {}, room, 0).scheduled_stores()
  assert sum(x.name == "stage" for x in room.steps["0"]) == copies


def test_fragments_of_another_core_are_seen_in_a_group(whole, monkeypatch):
  monkeypatch.setattr(group_rows, "team_rows", all_there_are)
  out, want, given = weighted(32, 64, 32)
  real = tensorize.elements_of_lane
  turned = replace(F16.a, lanes=F16.a.lanes[::-1])
  monkeypatch.setattr(tensorize, "elements_of_lane", lambda f, *more: real(turned if f is F16.a else f, *more))
  (got,), _ = run([out], ON_CORES, given)
  assert np.abs(got.reshape(want.shape) - want).max() > 0.1


def test_what_stays_in_local_memory_lies_right_behind_the_rest(whole, monkeypatch):
  """A group takes what it needs, however much there is."""
  monkeypatch.setattr(group_rows, "team_rows", all_there_are)
  (kernel,) = kernels_of(weighted(64, 128, 32)[0], target=ON_CORES)
  ends = {
    max(u.arg[0] + u.arg[2] for u in lower_kernel(kernel, replace(ON_CORES, scratch=n << 10)) if u.op is Ops.SCRATCH)
    for n in (100, 200)
  }
  assert len(ends) == 1 and ends.pop() < 64 << 10


def test_what_comes_of_the_same_law(whole):
  """Losses of a projection, whose logits are never stored; expectations."""
  scores, s, _, _, given = attended((40, 8), 96)
  highest, total = s.max(-1), np.exp(s - s.max(-1, keepdims=True)).sum(-1)
  agrees(scores.logsumexp(-1), np.log(total) + highest, given)
  weight = np.random.default_rng(0).uniform(size=(96,)).astype(np.float32)
  w = Tensor(weight).to("CPU").realize()
  given = given | {w.uop.base: weight}
  agrees((scores.softmax() * w).sum(-1), softmax(s) @ weight, given)
  agrees(scores.logsumexp(-1) - (scores * w).sum(-1), np.log(total) + highest - s @ weight, given)
  agrees(scores.softmax().square().sum(-1), (softmax(s) ** 2).sum(-1), given)


def test_weights_that_are_rounded_on_the_way(whole):
  scores, s, v, w, given = attended((20, 8), 64)
  (got,), made = run([scores.softmax().half().matmul(v.half(), dtype=dtypes.float32)], EAGER, given)
  assert len(made) == 1
  np.testing.assert_allclose(got.reshape(20, 8), softmax(s) @ w, rtol=5e-3, atol=5e-3)


def test_what_is_written_before_it_is_read_again_is_not_put_off(whole):
  """The total of a row goes to memory that what is summed next comes from."""
  scores, s, _, _, given = attended((40, 8), 96)
  memory = Tensor(np.zeros((40, 1), np.float32)).to("CPU").realize()
  given = given | {memory.uop.base: np.zeros((40, 1), np.float32)}
  memory.assign(scores.sum(-1, keepdim=True))
  (got, _), _ = run([(scores * memory).sum(-1), memory], EAGER, given)
  np.testing.assert_allclose(got, (s * s.sum(-1, keepdims=True)).sum(-1), rtol=1e-3, atol=1e-3)


def test_what_needs_a_total_of_all_elements_takes_another_sweep(whole, monkeypatch):
  scores, s, v, w, given = attended((40, 8), 96)
  y, want = (scores - scores.max(-1, keepdim=True)) @ v, (s - s.max(-1, keepdims=True)) @ w
  agrees(y, want, given)
  sizes = set()
  for keys in (128, 256):
    longer, _, w, _, _ = attended((40, 8), keys)
    (kernel,) = kernels_of((longer - longer.max(-1, keepdim=True)) @ w, target=EAGER)
    sizes.add(memory_of_rows(kernel))
  assert len(sizes) == 1, "blocks of scores, for any number of keys"
  monkeypatch.setattr(streaming, "SWEEPS", 1)
  agrees(y, want, given, kernels=3)


def test_what_has_no_such_law_is_computed_in_other_ways(whole):
  scores, s, _, _, given = attended((40, 8), 96)
  agrees(
    scores.log_softmax(),
    s - s.max(-1, keepdims=True) - np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)),
    given,
    kernels=2,
  )


def without_growth(patch):
  patch.setattr(streaming, "grown", lambda total, before, after, c: total)


def from_zero(patch):
  real = streaming.grown
  patch.setattr(streaming, "grown", lambda total, before, after, c: real(total, before + 0.0, after, c))


def infinite_pivots(patch):
  patch.setattr(streaming, "pivot", lambda total: total)


@pytest.mark.parametrize(("mutant", "number"), [(without_growth, 2), (infinite_pivots, 0), (from_zero, 4)])
def test_a_mutant_of_the_law_is_seen(mutant, number, whole, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    test_maxima_that_change_on_the_way(number, None)


def test_a_group_alone_holds_its_rows_in_registers_as_each_of_many_does():
  """A loop over one group is none: stores that it does not enclose would be under a condition."""

  def held(heads):
    q, k, v = (gpu_model.empty(1, heads, n, 32, dtype=dtypes.bfloat16) for n in (16, 64, 64))
    (kernel,) = gpu_model.kernels_of(lambda: q.scaled_dot_product_attention(k, v))
    linear = lower_kernel(kernel, gpu_model.target_of(gpu_model.GPUS["sm_80"]))
    return sum(own_memory.is_own(u) for u in linear)

  with gpu_model.as_null(gpu_model.GPUS["sm_80"]):
    assert held(1) == held(8) > 0
