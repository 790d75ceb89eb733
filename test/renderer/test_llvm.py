"""What LLVM is given, where it is known to compile some form of it wrongly."""

import dataclasses
import itertools
import re
import sys
from pathlib import Path

import llvmlite.binding as binding
import numpy as np
import pytest

from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen import lower_kernel
from tinygrad.numerics import cuts
from tinygrad.renderer import llvm
from tinygrad.renderer.streamed import streamed_stores
from tinygrad.uop import Ops, ParamArg, UOp

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))
from codegen_kernels import launch, load, loop, num, op, reduce, run, sink, store

NARROWING = [(a, b) for a, b in itertools.permutations((dtypes.int64, dtypes.int32, dtypes.int16, dtypes.int8), 2)]
NARROWING = [(a, b) for a, b in NARROWING if a.itemsize > b.itemsize]
LENGTHS = (1, 5, 9, 17, 33, 41, 43, 65, 81, 129)


def folded(source):
  """The IR with what is constant as constants."""
  binding.initialize_native_target()
  binding.initialize_native_asmprinter()
  machine = binding.Target.from_default_triple().create_target_machine()
  module, passes = binding.parse_assembly(source), binding.create_new_module_pass_manager()
  passes.add_sroa_pass()
  passes.add_sccp_pass()
  passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
  return str(module)


def of_one_lane(source):
  """The masked stores of which LLVM knows that one lane takes part."""
  stores = [line for line in folded(source).splitlines() if "call void @llvm.masked.store" in line]
  return [line for line in stores if len(re.findall("i1 true", line)) == 1 and "i1 false" in line]


def cast_of(a, b, n, *lengths):
  loops = [loop(m, i) for i, m in enumerate((*lengths, n))]
  x = load(1, np.zeros(n, a.name), loops[-1])
  place = loops[-1]
  for r in loops[:-1]:
    place = op(Ops.ADD, place, op(Ops.MUL, r, loops[-1].src[0]))
  return sink(store(place, op(Ops.CAST, x, dtype=b), *loops, size=n * int(np.prod(lengths))))


@pytest.mark.parametrize("vector_bytes", (16, 32, 64))
def test_no_masked_store_is_of_one_lane_that_is_known(vector_bytes):
  """LLVM 22 with AVX-512: a masked store of one known lane, of what was converted to a narrower integer, writes the
  wide element. Mutant: the renderer knows no mask."""
  target = dataclasses.replace(Device["CPU"].target, vector_bytes=vector_bytes)
  linear = [lower_kernel(cast_of(a, b, n, 2), target) for a, b in NARROWING for n in LENGTHS]
  for code in linear:
    assert of_one_lane(llvm.render(code, "kernel").source) == []
  with pytest.MonkeyPatch.context() as m:
    m.setattr(llvm.LLVMRenderer, "lanes_of", lambda self, u: None)
    assert any(of_one_lane(llvm.render(code, "kernel").source) for code in linear)


@pytest.mark.parametrize("a, b", NARROWING, ids=lambda d: d.name)
def test_what_is_beside_a_narrowed_row_is_left_alone(a, b):
  for n in LENGTHS:
    x = Tensor((np.arange(1, n + 1) << b.bitsize).astype(a.name)).realize()
    np.testing.assert_array_equal(x.stack(x + 1).cast(b).numpy(), np.stack([np.zeros(n), np.ones(n)]).astype(b.name))


def test_each_second_element_is_read_by_two_loads_of_neighbours(monkeypatch):
  i, j, k = loop(8, 0), loop(64, 1), reduce(3, 2)
  at = op(Ops.SUB, op(Ops.ADD, op(Ops.MUL, j, num(2)), k), num(1))
  x = load(1, np.zeros(8 * 128, np.float32), op(Ops.ADD, op(Ops.MUL, i, num(128)), at), op(Ops.CMPLT, num(-1), at))
  value = UOp.new(Ops.FOLD, x.dtype, (op(Ops.MUL, x, load(2, np.zeros(3, np.float32), k)), k), Ops.ADD)
  ast = sink(store(op(Ops.ADD, op(Ops.MUL, i, num(64)), j), value, i, j, size=8 * 64))
  target = dataclasses.replace(Device["CPU"].target, vector_bytes=32)
  assert "masked.gather" not in llvm.render(lower_kernel(ast, target), "kernel").source
  monkeypatch.setattr(llvm.LLVMRenderer, "every_other", lambda self, u, mask, other: None)
  assert "masked.gather" in llvm.render(lower_kernel(ast, target), "kernel").source


def test_places_beside_each_other_share_one_that_is_computed():
  """Four vectors, a constant apart, in each of two buffers: two computed places, and no sum for each vector."""
  i = loop(640, 0)
  x = np.arange(640, dtype=np.float32)
  kernel = sink(store(i, op(Ops.ADD, load(1, x, i), load(1, x, i)), i, size=640))
  linear = lower_kernel(kernel, dataclasses.replace(Device["CPU"].target, vector_bytes=64))
  source = llvm.render(linear, "kernel").source
  places = re.findall(r"getelementptr float, ptr (%v\d+), i64 (\S+)", source)
  assert len([n for _, n in places if n.startswith("%")]) == len({p for p, n in places if n.startswith("%")}) == 2
  assert sorted(int(n) for _, n in places if not n.startswith("%")) == [16, 16, 32, 32, 48, 48]
  assert not re.search(r"= add i64 %v\d+, (16|32|48)\b", source)


def rows_looked_up(other, columns=64):
  """Rows of a table of 10, and of others `other`."""
  rows, table = (
    np.array([3, -1, 9, 10, 0, 1 << 40], np.int64),
    np.random.default_rng(0).random((10, columns), np.float32),
  )
  i, d = loop(len(rows), 0), loop(columns, 1)
  row = op(Ops.CAST, load(1, rows, i), dtype=dtypes.index)
  there = op(Ops.AND, op(Ops.CMPLT, num(-1), row), op(Ops.CMPLT, row, num(10)))
  place = op(Ops.ADD, op(Ops.MUL, row, num(columns)), d)
  value = load(2, table, place, there, UOp.const(dtypes.float32, other))
  out = op(Ops.ADD, op(Ops.MUL, i, num(columns)), d)
  want = np.full((len(rows), columns), other, np.float32)
  known = (rows >= 0) & (rows < 10)
  want[known] = table[rows[known]]
  return sink(store(out, value, i, d, size=want.size)), [rows, table], want.flatten()


@pytest.mark.parametrize("other", [0.0, -0.0, 7.0])
def test_neighbours_under_one_condition_are_there_or_zeros_together(other):
  """One choice of where a row is for all of its vectors; none of their values where zeros are what is wanted."""
  ast, arrays, want = rows_looked_up(other)
  target = dataclasses.replace(Device["CPU"].target, vector_bytes=32)
  source = llvm.render(lower_kernel(ast, target), "kernel").source
  loads = re.findall(r"= load <8 x float>", source)
  choices = re.findall(r"= select i1 %v\d+, ptr %v\d+, ptr @zeros", source)
  assert (len(loads), len(choices)) == (4, 1)
  values = re.findall(r"= select i1 %v\d+, <8 x float>", source)
  assert len(values) == (0 if str(other) == "0.0" else 4)
  got = run(ast, arrays)
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("columns", [256, 1024])
def test_no_neighbour_is_beyond_the_zeros(columns, monkeypatch):
  ast, arrays, want = rows_looked_up(0.0, columns)
  monkeypatch.setattr(llvm, "_ZEROS", 64)  # a vector or two
  np.testing.assert_array_equal(run(ast, arrays), want)
  target = dataclasses.replace(Device["CPU"].target, vector_bytes=32)
  source = llvm.render(lower_kernel(ast, target), "kernel").source
  assert len(re.findall(r"ptr @zeros", source)) == 3  # the first with the second, the third, the fourth


def test_a_place_within_a_loop_that_may_not_run_is_none_behind_it():
  """Mutant: places outlive their loop, and the module is not well-formed."""
  n, one = UOp.variable("n", 0, 9), UOp.const(dtypes.float32, 1.0)
  memory = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(0, 20))
  offsets = [op(Ops.ADD, n, num(k)) for k in (3, 4, 1)]
  first, second, behind = (op(Ops.INDEX, memory, x, dtype=dtypes.float32) for x in offsets)
  r = reduce(n, 0)
  stores = [op(Ops.STORE, place, one, dtype=dtypes.void) for place in (first, second, behind)]
  within = [offsets[0], first, stores[0], offsets[1], second, stores[1], op(Ops.ENDRANGE, r, dtype=dtypes.void)]
  source = llvm.render([memory, n, one, r, *within, offsets[2], behind, stores[2]], "kernel").source
  binding.parse_assembly(source).verify()
  assert len(re.findall(r"getelementptr float, ptr %v\d+, i64 %", source)) == 2


def test_a_loop_of_at_most_one_iteration_is_a_condition():
  """It never jumps back, and LLVM has no count to find out: a reduction by index has such a loop for each update."""
  row, update, at = loop(64, 0), reduce(100, 1), np.arange(100, dtype=np.int64)
  one = UOp.new(
    Ops.ONE_HOT,
    dtypes.int32,
    (op(Ops.CAST, load(1, at, update), dtype=dtypes.index), row, UOp.const(dtypes.int32, 1)),
    Ops.ADD,
  )
  kernel = sink(store(row, UOp.new(Ops.FOLD, dtypes.int32, (one, update), Ops.ADD), row, size=64))
  linear = lower_kernel(kernel, Device["CPU"].target)
  source = llvm.render(linear, "kernel").source
  binding.parse_assembly(source).verify()
  loops = [u for u in linear if u.op is Ops.RANGE]
  assert sum(u.src[0].op is Ops.CONST for u in loops) == len(re.findall(r"\.more = icmp", source)) == len(loops) - 1


def linear_copy(rows, columns, dtype, in_place=False, step=1):
  """A kernel that doubles a matrix, and its memory or another's: rows of `columns` elements, `step` rows apart."""
  size = rows * columns * step
  x = np.zeros(size, np.dtype(dtype.name))
  i, j = loop(rows, 0), loop(columns, 1)
  at = op(Ops.ADD, op(Ops.MUL, i, num(columns * step)), j)
  value = load(0 if in_place else 1, x, at)
  return lower_kernel(sink(store(at, op(Ops.ADD, value, value), i, j, size=size)), Device["CPU"].target)


@pytest.mark.parametrize(
  ("rows", "columns", "dtype", "options", "past"),
  [
    (4096, 2048, dtypes.float32, {}, True),
    (4096, 4096, dtypes.int16, {}, True),
    (4096, 1008, dtypes.float64, {"step": 2}, True),  # whole lines, with gaps
    (4096, 2047, dtypes.float32, {}, False),  # small
    (4096, 2049, dtypes.float32, {}, False),  # rows that end within lines
    (4096, 2048, dtypes.float32, {"in_place": True}, False),
  ],
)
def test_whole_lines_of_large_memory_go_past_the_caches(rows, columns, dtype, options, past):
  linear = linear_copy(rows, columns, dtype, **options)
  stores = [u for u in linear if u.op is Ops.STORE]
  assert streamed_stores(linear) == (set(stores) if past else set())
  source = llvm.render(linear, "k").source
  assert ("!nontemporal" in source) is past and ("fence" in source) is past


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.float64])
def test_memory_that_begins_within_a_line(dtype):
  """An array of a user's: the processor faults where a store past the caches is within a line. (Mutant: every store
  goes past them.)"""
  device, size = Device["CPU"], (33 << 20) // dtype.itemsize
  x = np.random.default_rng(0).integers(-99, 99, size).astype(dtype.name)
  linear = linear_copy(1, size, dtype)
  assert streamed_stores(linear) or dtype is dtypes.float16  # of which narrow vectors fill no line
  program = device.compile(device.render(linear, "k"), "k")
  whole = np.zeros(size + 64, dtype.name)
  start = -whole.ctypes.data % 64 // dtype.itemsize
  for first in (start, start + 1):
    out = whole[first : first + size]
    launch(device, program, [device.wrap(out), device.wrap(x)])
    device.synchronize()
    np.testing.assert_array_equal(out, x + x)
    assert not whole[:first].any() and not whole[first + size :].any()
    out[:] = 0


@pytest.mark.parametrize(("end", "seldom"), [(3, True), (61, True), (1000, False)])
def test_what_lanes_seldom_read_is_read_if_any_does(end, seldom, monkeypatch):
  """As the row's end that `roll` brings to its front, where that loop is not cut, as a thread's share is not. (Mutant:
  it is read if no lane needs it.)"""
  x, y = (np.random.default_rng(i).normal(size=2000).astype(np.float32) for i in range(2))
  i = loop(2000, 0)
  inside = op(Ops.CMPLT, i, num(end))
  front = load(1, x, op(Ops.ADD, i, num(2000 - end)), inside, UOp.const(dtypes.float32, 0.0))
  kernel = sink(store(i, op(Ops.ADD, front, load(2, y, i)), i, size=2000))
  want = np.pad(x[-end:], (0, 2000 - end)) + y
  np.testing.assert_array_equal(run(kernel, [x, y]), want)
  monkeypatch.setattr(cuts, "changes_of", lambda r, nodes: set())
  source = llvm.render(lower_kernel(kernel, Device["CPU"].target), "kernel").source
  assert ("llvm.vector.reduce.or" in source) is seldom
  np.testing.assert_array_equal(run(kernel, [x, y]), want)


@pytest.mark.parametrize("name", ["bfloat16", "fp8e4m3", "fp8e5m2", "half"])
def test_where_a_load_is_never_valid_a_narrow_float_is_zero(name):
  """The loops of both windows are unrolled: some places are known to lie outside."""
  x = Tensor.ones(1, 1, 4).cast(name).contiguous().realize()
  windows = x.pad((1, 1))._pool((2,), 2, 1)  # (1, 1, 3, 2)
  x.requires_grad = True
  (windows.float() * Tensor([1.0, 2.0, 3.0]).reshape(3, 1)).sum().backward()
  y = x.pad((1, 1)).unfold(2, 2, 2).sum(-1)
  np.testing.assert_array_equal(y.float().numpy(), [[[1, 2, 1]]])
  np.testing.assert_array_equal(x.grad.float().numpy(), [[[1, 2, 2, 3]]])
