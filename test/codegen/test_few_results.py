"""What a grid does with few results, and with operands that lie otherwise than threads and cores read: sums in parts of
their terms, a matrix that is read once for few rows, squares that are turned in local memory, images with channels
innermost. Run thread by thread on the machine of test_grid.py; the oracle is numpy, whole."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, op, reduce, sink, store
from test_cores import CORES
from test_grid import simulate
from test_group_rows import GRID, Computer
from test_primitives import kind_of

from extra import gpu_model
from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.heuristics import gpu
from tinygrad.engine.canonical import canonical
from tinygrad.nn.block_formats import FORMATS
from tinygrad.numerics import layouts, split_sums
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp
from tinygrad.uop.loops import reductions
from tinygrad.uop.node import stored

PARTED = replace(GRID, intensity=1 << 20, group=16, units=8)  # kernels are one only where they have to be


@pytest.fixture
def small(monkeypatch):
  """What is large, and long, is so from a few on."""
  for name, value in {
    "BLOCK": 16,
    "ACROSS": 4,
    "LEAST_ROWS": 2,
    "FEW": 64,
    "LEAST": 3,
    "WHOLE": 1,
    "LAUNCH": 1,
  }.items():
    monkeypatch.setattr(split_sums, name, value)


def on_grid(make, given, target, rows=True):
  """What the kernels of `make` of tensors leave, thread by thread, and these; those that share `rows` are one."""
  tensors = [Tensor(x).to("CPU").realize() for x in given]
  known = {t.uop.base: x for t, x in zip(tensors, given)}
  result = make(*tensors)
  sink, originals, _ = canonical(UOp.sink(stored(result.uop, "CPU")))
  schedule = create_schedule(localize(sink), rows, target)
  found = [(originals[-1 - b.arg.uid], b) for b in schedule.buffers]
  memory = [known[b].flatten() if b in known else np.full(x.size, 77, kind_of(x.dtype)) for b, x in found]
  memory += [np.full(t.nbytes, 0xFF, np.uint8) for t in schedule.temps]  # floats that are none
  for item in schedule.items:
    params = {u.arg.slot: u for u in item.kernel.toposort() if u.op is Ops.PARAM}
    out, *others = [memory[s].view(kind_of(params[i].dtype)) for i, s in enumerate(item.slots)]
    simulate(lower_kernel(item.kernel, target), others, out, {}, kind=Computer)
  return memory[schedule.items[-1].slots[0]].view(kind_of(result.dtype)), [i.kernel for i in schedule.items]


def arrays(*shapes, kind=np.float32):
  rng = np.random.default_rng(len(shapes))
  return [rng.uniform(-1, 1, s).astype(kind) for s in shapes]


def windows(x, k=3):
  """(b, c, h, w) -> (b, c, h - k + 1, w - k + 1, k, k)"""
  return np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))


def conv(x, w):
  return np.einsum("bchwij,ocij->bohw", windows(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))), w)


# (of tensors, of arrays, their shapes, kernels)
PARTS = {
  "product": (lambda x, y: x @ y, np.matmul, [(5, 24), (24, 4)], 2),
  "by rows": (lambda x, y: x @ y.T, lambda x, y: x @ y.T, [(5, 24), (4, 24)], 2),
  "of a batch": (lambda x, y: x @ y, np.matmul, [(2, 3, 24), (2, 24, 4)], 2),
  "weights' gradient": (lambda x, y: x.T @ y, lambda x, y: x.T @ y, [(24, 5), (24, 4)], 2),
  "turned": (lambda x, y: (x @ y).T.contiguous(), lambda x, y: (x @ y).T, [(5, 24), (24, 4)], 2),
  "and what follows": (
    lambda x, y, b: ((x @ y + b) * 2).relu(), lambda x, y, b: ((x @ y + b) * 2).clip(0),
    [(5, 24), (24, 4), (4,)], 2),
  "convolution": (lambda x, w: x.conv2d(w, padding=1), conv, [(1, 6, 3, 3), (3, 6, 3, 3)], 2),
  "columns": (lambda x: x.sum(0), lambda x: x.sum(0), [(48, 4)], 2),
  "largest of columns": (lambda x: x.max(0) + 1, lambda x: x.max(0) + 1, [(48, 4)], 2),
  "a row": (lambda x, y: x @ y, np.matmul, [(1, 24), (24, 4)], 2),  # is a sum of columns
  "a prime number of terms": (lambda x, y: x @ y, np.matmul, [(5, 23), (23, 4)], 1),
  "rows": (lambda x: x.sum(1), lambda x: x.sum(1), [(4, 48)], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_reduction_to_few_results_is_one_of_parts_of_its_terms(name, small):
  make, numpy, shapes, number = PARTS[name]
  got, kernels = on_grid(make, given := arrays(*shapes), PARTED)
  want = numpy(*(x.astype(np.float64) for x in given))
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
  assert len(kernels) == number


def test_whole_numbers_are_summed_in_parts(small):
  given = [np.random.default_rng(0).integers(-9, 9, shape).astype(np.int32) for shape in ((5, 48), (48, 4))]
  got, kernels = on_grid(lambda x, y: x @ y, given, PARTED)
  np.testing.assert_array_equal(got.reshape(5, 4), given[0] @ given[1])
  assert len(kernels) == 2


@pytest.mark.parametrize("name", ["sum", "max", "prod"])
def test_halves_are_rounded_when_all_parts_are_known(name, small):
  """(Mutant: parts are of the type of the result.)"""
  (halves,) = given = [arrays((480, 4))[0].astype(np.float16) / 8 + (1 if name == "prod" else 0)]
  own = {} if name == "max" else {"dtype": dtypes.float16}  # else it is a sum of floats that is rounded
  got, kernels = on_grid(lambda x: getattr(x, name)(0, **own), given, PARTED)
  exact = getattr(halves.astype(np.float64), name)(0)
  np.testing.assert_array_equal(got, exact.astype(np.float16))
  assert len(kernels) == 2


def test_a_part_of_one_iteration_has_no_loop():
  """Cores found no operands of a sum over a loop on which its terms did not depend."""
  x, y = arrays((8, 6, 300), (6, 300))
  i, j, k = loop(8, 0), reduce(6, 1), reduce(300, 2)
  products = op(Ops.MUL, load(1, x, dot((i, 1800), (j, 300), (k, 1))), load(2, y, dot((j, 300), (k, 1))))
  kernel = sink(store(i, fold(Ops.ADD, products, j, k), i, size=8))
  for parts in (3, 6):
    first, _ = split_sums.terms_in_parts(kernel, split_sums.CutTerms(j, 6 // parts), 3)
    (f,) = reductions(first.src)
    assert len(f.src) == (3 if parts < 6 else 2) and {*f.src[1:]} <= f.src[0].loops


def parts_of(each, kernel, given):
  """What is left of a product of 5 rows and 4 columns in parts of so many terms."""
  r = reductions(kernel.src)[0].src[1]
  first, second = split_sums.terms_in_parts(kernel, split_sums.CutTerms(r, each), 3)
  some = evaluate(first, given)
  return evaluate(second, [*given, some.astype(np.float32)]), first


@pytest.mark.parametrize("each", [64, 16, 10, 7])
def test_the_last_part_may_have_fewer_terms(each, monkeypatch):
  """Nothing is read beyond the end, so cores may sum what is 0 there. (Mutants: what lies there is added.)"""
  given = arrays((5, 23), (23, 4), kind=np.float16)
  i, j, r = loop(5, 0), loop(4, 1), reduce(23, 2)
  x, y = (load(q + 1, given[q], at) for q, at in enumerate((dot((i, 23), (r, 1)), dot((r, 4), (j, 1)))))
  wide = [UOp.new(Ops.CAST, dtypes.float32, (u,)) for u in (x, y)]
  kernel = sink(store(dot((i, 4), (j, 1)), fold(Ops.ADD, op(Ops.MUL, *wide), r), i, j, size=20))
  got, first = parts_of(each, kernel, given)
  np.testing.assert_allclose(got.reshape(5, 4), given[0].astype(np.float32) @ given[1].astype(np.float32), rtol=1e-5)
  assert all(u.op is not Ops.WHERE for u in first.toposort())
  monkeypatch.setattr(split_sums, "is_zero_beyond", lambda *_: False)
  got, first = parts_of(each, kernel, given)
  np.testing.assert_allclose(got.reshape(5, 4), given[0].astype(np.float32) @ given[1].astype(np.float32), rtol=1e-5)
  monkeypatch.setattr(split_sums, "as_far_as", lambda x, at, end: x)
  with pytest.raises((AssertionError, IndexError)):
    got, _ = parts_of(each, kernel, given)
    np.testing.assert_allclose(got.reshape(5, 4), given[0].astype(np.float32) @ given[1].astype(np.float32), rtol=1e-5)


def test_cores_take_parts_of_a_vocabulary():
  """Its rows begin anywhere, and no number of parts has as many of its words."""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    x, y = (gpu_model.empty(*shape, dtype=dtypes.bfloat16) for shape in ((1024, 50257), (50257, 768)))
    first, _ = gpu_model.kernels_of(lambda: x @ y)
    assert len(reductions(first.src)[0].loops) == 3
    linear = lower_kernel(first, Device["NULL"].target)
  assert {u.arg.late for u in linear if u.op is Ops.MMA} == {True}
  assert not any(u.op is Ops.MUL and u.dtype.scalar() is dtypes.float32 for u in linear)


def all_terms(monkeypatch):
  real = split_sums.substitute_free
  monkeypatch.setattr(split_sums, "substitute_free", lambda x, m: real(x, m) if x.op is Ops.STORE else x)


def in_one_place(monkeypatch):
  real = split_sums.row_major
  monkeypatch.setattr(split_sums, "row_major", lambda digits: real(digits[1:]))


@pytest.mark.parametrize("mutant", [all_terms, in_one_place])
def test_a_mutant_of_the_parts_is_seen(mutant, small, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    test_a_reduction_to_few_results_is_one_of_parts_of_its_terms("product", None)


def test_a_product_that_keeps_a_grid_busy_has_no_parts():
  assert len(on_grid(lambda x, y: x @ y, arrays((5, 24), (24, 4)), PARTED)[1]) == 1


@pytest.mark.parametrize(("terms", "parts"), [(2048, 1), (8192, 1), (50304, 2), (1 << 20, 2)])
def test_a_product_with_a_block_for_most_multiprocessors_has_parts_where_it_is_long(terms, parts):
  """96 blocks of results of 132: two parts take over what the others do not do. (Mutants: never; whatever it costs.)"""
  results = 2048 * 768
  task = split_sums.Task(96, 2 * results * terms // split_sums.BALANCE_OF_CORES, True)
  assert task.parts(4 * results, 132) == parts
  assert task._replace(blocks=132).parts(4 * results, 132) == 1


# ---- few rows by a matrix


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 11])
@pytest.mark.parametrize("turned", [False, True])
def test_few_rows_times_a_matrix(rows, turned, monkeypatch):
  monkeypatch.setattr(gpu, "FEW", 4)
  monkeypatch.setattr(gpu, "TOGETHER", 16)
  x, y = given = arrays((rows, 32), (56, 32) if turned else (32, 56))
  got, _ = on_grid(lambda x, y: x @ (y.T if turned else y), given, replace(PARTED, group=64, units=1))
  want = x.astype(np.float64) @ (y.T if turned else y)
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 8), (5, 16), (3, 21), (2, 49), (7, 63)])
def test_short_rows_are_shared_among_lanes(shape):
  (x,) = given = arrays(shape)
  got, _ = on_grid(lambda x: x.sum(1), given, PARTED)
  np.testing.assert_allclose(got, x.astype(np.float64).sum(1), rtol=1e-5)


# ---- weights in blocks, by a vector


def steps_of(name, target):
  """By which the nests of its kernel are scheduled."""
  kind, notes = FORMATS[name], list[str]()
  raw = np.zeros((64, 512 // kind.weights, kind.nbytes), np.uint8)
  given = [Tensor(x).to("CPU").realize() for x in (raw, np.ones(512, np.float32))]
  sink, *_ = canonical(UOp.sink(stored((kind.tensor(given[0]) @ given[1]).uop, "CPU")))
  (item,) = create_schedule(localize(sink), True, target).items

  def noted(nest):
    gpu.schedule_gpu(nest)
    notes[:] = [str(step) for steps in nest.room.steps.values() for step in steps]

  lower_kernel(item.kernel, target, heuristic=noted)
  return notes


def test_lanes_have_all_of_what_they_read_once(monkeypatch):
  """Both halves of a byte; and all lanes have some of a row's scales. (Mutants: neither.)"""
  target = replace(GRID, group=64)
  steps = steps_of("Q4_K", target)
  assert {"unroll('k2')", "join('i0', 'i1')"} <= {*steps}
  monkeypatch.setattr(gpu, "loops_again", lambda *_: [])
  assert "unroll('k2')" not in steps_of("Q4_K", target)
  monkeypatch.setattr(gpu.Primitives, "joined", lambda self, order, *rest: (self.names[order[-1]], *rest))
  assert not any(step.startswith("join") for step in steps_of("Q4_K", target))


@pytest.mark.parametrize("outs", [3, 17])
def test_what_lanes_read_under_a_condition(outs):
  """Of the gradient of a convolution with a stride, rows beside which there is a kernel: others are 0. One of them is
  all that is read of memory of a row, by the lane that has written it, and others read none."""
  w, up = given = arrays((outs, 1, 1, 5), (1, outs, 3, 2))
  x = Tensor.zeros(1, 1, 6, 7, device="CPU").contiguous().realize()
  got, _ = on_grid(lambda w, up: x.conv2d(w, stride=2).gradient(x, gradient=up)[0], given, GRID)
  want = np.zeros((6, 7))
  for i, j in np.ndindex(3, 2):
    want[2 * i, 2 * j : 2 * j + 5] += np.einsum("o,ok->k", up[0, :, i, j].astype(np.float64), w[:, 0, 0])
  np.testing.assert_allclose(got.reshape(6, 7), want, rtol=1e-5, atol=1e-6)


# ---- what is turned in local memory


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(32, 32), (33, 70), (40, 3, 35), (34, 2, 5, 40)])
def test_squares_are_turned(shape, kind, monkeypatch):
  (x,) = given = arrays(shape, kind=kind)
  turned, real = list[UOp](), gpu.schedule_turned
  monkeypatch.setattr(gpu, "schedule_turned", lambda *args: turned.append(args[0].kernel) or real(*args))
  got, kernels = on_grid(lambda x: (x.transpose(0, -1) * 2).contiguous(), given, replace(GRID, group=64))
  want = np.swapaxes(x, 0, -1) * 2
  np.testing.assert_array_equal(got.reshape(want.shape), want)
  assert len(turned) == len(kernels) == 1


def test_rows_that_stay_rows_and_short_columns_are_not_turned(monkeypatch):
  monkeypatch.setattr(gpu, "schedule_turned", None)
  (x,) = given = arrays((34, 3, 33))
  for axes in ((1, 0, 2), (0, 2, 1)):
    got, _ = on_grid(lambda x, axes=axes: (x.permute(axes) + 1).contiguous(), given, replace(GRID, group=64))
    np.testing.assert_array_equal(got, (x.transpose(axes) + 1).flatten())


# ---- convolutions on cores


def on_cores(make, given):
  got, kernels = on_grid(make, given, CORES, rows=False)
  return got, [any(u.op is Ops.MMA for u in lower_kernel(k, CORES)) for k in kernels]


def test_a_convolution_runs_on_cores_with_channels_innermost(monkeypatch):
  monkeypatch.setattr(layouts, "REUSED", 32)
  x, w = given = arrays((16, 32, 1, 2), (16, 32, 1, 3), kind=np.float16)
  got, cores = on_cores(lambda x, w: x.conv2d(w, padding=(0, 1), dtype=dtypes.float32), given)
  wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (0, 0), (1, 1)))
  want = sum(np.einsum("bchw,och->bohw", wide[..., i : i + 2], w[..., i].astype(np.float64)) for i in range(3))
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-3, atol=1e-3)
  assert cores == [False, False, True]  # both operands are copied before


def test_a_product_whose_operands_lie_along_its_loops_is_left_alone():
  given = arrays((32, 32), (32, 32), kind=np.float16)
  for make in (lambda x, y: x @ y, lambda x, y: x.T @ y, lambda x, y: x @ y.T):
    assert on_cores(lambda x, y, make=make: make(x, y).float(), given)[1] == [True]
