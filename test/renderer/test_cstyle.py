"""The C dialects: Metal's sources are golden (a Mac runs them, any machine compares them), CUDA's are compiled."""

import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pytest
from c_kernels import GRID, KERNELS, fold, kernel, load, num, ranged, vectors

from tinygrad import Tensor, Variable
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.check import check_linear
from tinygrad.device import Device, Rendered
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import Context
from tinygrad.renderer import cstyle, dialects
from tinygrad.runtime import cuda
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

GOLDEN = Path(__file__).parent.parent / "data" / "metal"
GRIDS = {  # groups, and threads of each
  "all_reduce": (1, (64, 1, 1)), "integers": (1, (128, 1, 1)), "matmul": (45, (64, 1, 1)),
  "narrow_floats": (4, (256, 1, 1)), "softmax": (10, (64, 4, 1)), "window": (1, (64, 1, 1)),
}  # fmt: skip
DIALECTS = {"opencl": dialects.OPENCL, "cuda": dialects.CUDA, "metal": dialects.METAL}
has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("nvidia") is not None


def rendered(name: str, dialect: dialects.Dialect) -> Rendered:
  return cstyle.render(lower_kernel(KERNELS[name](), GRID), name, dialect)


def source(name: str, dialect: dialects.Dialect) -> str:
  return rendered(name, dialect).source


@pytest.mark.parametrize("name", KERNELS)
def test_metal_sources_are_what_they_were(name):
  """`UPDATE_GOLDEN=1` writes them anew; look at the difference before you commit it."""
  got, path = source(name, dialects.METAL), GOLDEN / f"{name}.metal"
  if os.environ.get("UPDATE_GOLDEN"):
    path.write_text(got)
  assert got == path.read_text()


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_sources_compile(name, arch):
  assert cuda.compile_source(source(name, dialects.CUDA), name, arch)[:4] == b"\x7fELF"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_know_their_grid_and_name_nothing_of_another_dialect(name, dialect):
  text, launch = rendered(name, DIALECTS[dialect]).source, rendered(name, DIALECTS[dialect]).launch
  assert (launch.groups[0], launch.threads) == GRIDS[name] and launch.groups[1:] == (1, 1)
  own = {"opencl": "__global", "cuda": "blockIdx", "metal": "device"}
  for other, word in own.items():
    found = re.search(rf"\b{word}\b", text.partition("{")[2] if word == "device" else text)
    assert other == dialect or found is None, (dialect, word)


def test_every_thread_of_a_group_comes_to_its_barriers():
  """No barrier stands behind a condition or in a loop that only some threads run."""
  for name in KERNELS:
    depth, conditional = 0, []
    for line in source(name, dialects.CUDA).splitlines():
      if "__syncthreads" in line:
        assert not any(conditional), name
      if line.rstrip().endswith("{") or line.strip().startswith("{"):
        depth += 1
        conditional.append(line.strip().startswith("if"))
      if line.strip() == "}":
        depth -= 1
        if conditional:
          conditional.pop()


# (type, lanes, how far the load is shifted, lanes of one access to memory)
VECTORS = [
  (dtypes.float32, 4, 0, 4),
  (dtypes.float32, 2, 2, 2),
  (dtypes.float32, 4, 2, 2),
  (dtypes.float32, 8, 4, 4),
  (dtypes.int64, 4, 0, 2),
  (dtypes.float64, 2, 0, 2),
  (dtypes.uint16, 4, 4, 4),
  (dtypes.bool, 4, 0, 4),
  (dtypes.uint8, 4, 3, 1),
  (dtypes.int8, 3, 0, 1),
]


@pytest.mark.parametrize(("dtype", "lanes", "shift", "width"), VECTORS)
def test_neighbours_are_read_and_written_as_vectors_where_they_are_aligned(dtype, lanes, shift, width):
  linear = vectors(dtype, lanes, 32, shift, size=48)
  check_linear(linear)
  for name, dialect in DIALECTS.items():
    if name == "metal" and dtype is dtypes.float64:
      continue
    text = cstyle.render(linear, "vectors", dialect).source
    loads = re.findall(r"\w+?(\d) w\d+ = ", text)
    assert loads.count(str(width)) >= (lanes // width if width > 1 else 0), text
    assert width > 1 or not re.search(r"w\d+ = [^;]*p1", text), "an access that is not aligned"
    if name == "cuda" and has_nvrtc:
      assert cuda.compile_source(text, "vectors", "sm_90")[:4] == b"\x7fELF"


@pytest.mark.needs("CL")
@pytest.mark.parametrize(("dtype", "lanes", "shift", "width"), VECTORS)
def test_vectors_compute_what_lanes_do(dtype, lanes, shift, width):
  size, count, kind = 48, 24, to_numpy_dtype(dtype)
  device = Device["CL"]
  program = device.compile(device.render(vectors(dtype, lanes, count, shift, size), "vectors"), "vectors")
  x = np.random.default_rng(0).integers(0, 2 if dtype is dtypes.bool else 50, size + 8).astype(kind)
  out = np.full(size, 1, kind)
  memory = [device.alloc(a.nbytes) for a in (out, x)]
  for m, a in zip(memory, (out, x)):
    device.copyin(m, memoryview(a.view(np.uint8)))
  device.submit_all([device], [device.batch([device.bind(program, memory)])])
  got = np.zeros_like(out)
  device.copyout(memoryview(got.view(np.uint8)), memory[0])
  for m, a in zip(memory, (out, x)):
    device.free(m, a.nbytes)
  np.testing.assert_array_equal(got[:count], (x[shift : shift + count] * 2).astype(kind))
  np.testing.assert_array_equal(got[count:], out[count:])


@pytest.mark.parametrize(("size", "bits"), [(1 << 20, 32), ((1 << 31) - 4096, 32), (1 << 31, 64), (1 << 33, 64)])
def test_indices_have_32_bits_where_all_of_a_kernel_fit(size, bits):
  i = ranged(size, 0)
  linear = lower_kernel(kernel(size, i, load(1, dtypes.float32, size, i), i), GRID)
  text = cstyle.render(linear, "copy", dialects.CUDA).source
  assert ("long long" not in text.partition("copy(")[2]) == (bits == 32), text


def test_an_index_that_is_read_from_memory_as_64_bits_stays_so():
  i, k = ranged(64, 0), ranged(1 << 20, 1, AxisKind.REDUCE)
  row = load(2, dtypes.int64, 64, i).cast(dtypes.index)
  for at, bits in ((row, 64), (i, 32)):
    ast = kernel(64, i, fold(Ops.ADD, load(1, dtypes.float32, 1 << 30, at * (1 << 20) + k), k), i)
    text = cstyle.render(lower_kernel(ast, GRID), "rows", dialects.OPENCL).source
    assert ("(long r" in text or "const long r" in text) == (bits == 64), text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_kernel_declares_how_many_threads_a_group_has(dialect):
  text, threads = source("softmax", DIALECTS[dialect]), rendered("softmax", DIALECTS[dialect]).launch.threads
  bound = {
    "opencl": f"reqd_work_group_size{threads}",
    "cuda": "__launch_bounds__(256) softmax",
    "metal": "[[max_total_threads_per_threadgroup(256)]] kernel void softmax",
  }
  assert bound[dialect] in text


def test_metal_has_no_double():
  for name in KERNELS:
    assert "double" not in (GOLDEN / f"{name}.metal").read_text()
  with pytest.raises(KeyError):
    cstyle.ctype(dtypes.float64, dialects.METAL)


# ---------------------------------------------------------------- names

# Words of C, C++, OpenCL C and Metal; what sources call their own things; what is no name in C at all.
WORDS = (
  """int float double bool char short long half void if for while return static const struct union register volatile
  class template typename namespace new this using auto kernel device constant threadgroup thread group thread_ grid
  global local private read_only vec float4 uint3 size_t ushort asm inline restrict main printf NULL true false nullptr
  threadIdx blockIdx barrier as_type metal scratch turn turn_at p0 p1 p2 n0 n1 n0_at v1 v2 r1 a1 s1 w1
  bits_of_float float_of_bits sqrt floor max min""".split()
  + ["two words", "π", "x-1", "9", "a.b", "名前", "//", '"', ""]
)
NAMES = [tuple(WORDS[i : i + 4]) for i in range(0, len(WORDS), 4)]


def named(names: tuple[str, ...]) -> list[UOp]:
  """p0[i] = p1[i] + Σ 10^k * variable k, in the order of the names"""
  i = ranged(50, 0)
  value = load(1, dtypes.int32, 50, i)
  for k, name in enumerate(names):
    value = value + Variable(name, 0, 9).cast(dtypes.int32) * 10**k
  return lower_kernel(kernel(50, i, value, i), GRID)


@pytest.mark.parametrize("names", NAMES)
def test_a_variable_may_have_any_name(names):
  """No name of a user's is a word of a source: it is the same for all of them."""
  own = sorted(range(len(names)), key=lambda k: names[k])
  for dialect in DIALECTS.values():
    text = cstyle.render(named(names), "named", dialect).source
    plain = tuple(f"x{own.index(k)}" for k in range(len(names)))
    assert text == cstyle.render(named(plain), "named", dialect).source


@pytest.mark.needs("CL")
@pytest.mark.parametrize("names", NAMES)
def test_variables_of_any_name_have_their_values(names):
  out = Tensor(np.arange(50, dtype=np.int32), device="CL")
  for k, name in enumerate(names):
    out = out + Variable(name, 0, 9).bind(k + 1) * 10**k
  want = np.arange(50) + sum((k + 1) * 10**k for k in range(len(names)))
  np.testing.assert_array_equal(out.numpy(), want)


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
def test_variables_compile_for_cuda():
  text = cstyle.render(named(WORDS[:2]), "named", dialects.CUDA).source
  assert cuda.compile_source(text, "named", "sm_90a")[:4] == b"\x7fELF"


# ---------------------------------------------------------------- parts of peers


def gather(devices: int, each: int) -> UOp:
  """p0[k * each + i] = p1[k][i]: what every device holds, on each"""
  k, i = ranged(devices, 0), ranged(each, 1)
  table = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(1, each, peers=True))
  peer = UOp.new(Ops.PEER, dtypes.float32, (table, k))
  value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (peer, i)),))
  return kernel(devices * each, k * each + i, value, k, i)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_device_begins_with_its_own_part(dialect):
  found = cstyle.render(lower_kernel(gather(4, 1 << 14), GRID), "gather", DIALECTS[dialect])
  groups = found.launch.groups[0]
  assert found.launch.turned == groups > 4
  assert re.search(rf"r\d+ = \(\w[\w ]*\)\(.* \+ .*turn.*\) % {groups}U", found.source), found.source
  assert rendered("softmax", DIALECTS[dialect]).launch.turned == 0


# ---------------------------------------------------------------- what compilers are told


def test_pointers_are_alone_where_no_table_leads_to_the_same_memory():
  for name, word in (("cuda", " __restrict__ p"), ("opencl", " restrict p")):
    for of in KERNELS:
      head = re.search(rf"{of}\((.*?)\) {{", source(of, DIALECTS[name]))[1]
      pointers = len(re.findall(r"\* ?\w* ?p\d", head))
      assert pointers and head.count(word) == (0 if of == "all_reduce" else pointers), head


def test_what_is_read_again_is_not_said_to_be_alone():
  """A thread reads what another has stored: a compiler that is told of no other pointer moves that over a barrier."""
  i, j, k, x = ranged(64, 0), ranged(4, 1), ranged(4, 2), dtypes.float32
  here, there = (UOp.new(Ops.ADD, dtypes.index, (UOp.new(Ops.MUL, dtypes.index, (i, num(4))), r)) for r in (j, k))
  first, again = kernel(256, here, load(2, x, 256, here), i, j), kernel(256, there, load(0, x, 256, there), i, k)
  index, *rest = again.src[0].src
  other = index.replace(src=(index.src[0].replace(arg=ParamArg(1, 256)), there))
  again = again.src[0].replace(src=(other, *rest))
  for dialect, word in ((dialects.CUDA, "__restrict__"), (dialects.OPENCL, "restrict")):
    text = cstyle.render(lower_kernel(UOp.sink(first.src[0], again), GRID), "k", dialect).source
    assert re.findall(rf" {word} p(\d)", text) == ["1", "2"], text


def sums(columns: int) -> str:
  """Of rows, by a thread each."""
  i, k = ranged(64, 0), ranged(columns, 1, AxisKind.REDUCE)
  at = UOp.new(Ops.ADD, dtypes.index, (UOp.new(Ops.MUL, dtypes.index, (i, num(columns))), k))
  with Context(NOOPT=1):
    ast = kernel(64, i, fold(Ops.ADD, load(1, dtypes.float32, 64 * columns, at), k), i)
    return cstyle.render(lower_kernel(ast, GRID), "sums", dialects.CUDA).source


def test_a_long_body_is_not_written_out(monkeypatch):
  assert "#pragma unroll" in sums(cstyle.UNROLLED)
  monkeypatch.setattr(cstyle, "WRITTEN_OUT", 2 * cstyle.UNROLLED)
  assert "#pragma unroll" not in sums(cstyle.UNROLLED)


def test_short_loops_with_none_within_are_written_out():
  short, long = sums(cstyle.UNROLLED), sums(cstyle.UNROLLED + 1)
  assert "#pragma unroll" in short and "#pragma unroll" not in long
  for text in (short, long, *(source(of, dialects.CUDA) for of in KERNELS)):
    lines = text.splitlines()
    for i, line in enumerate(lines):
      if (loop := re.match(r"( *)for \(.* < (\w+);", line)) is not None:
        end = next(k for k in range(i, len(lines)) if lines[k] == loop[1] + "}")
        outer = any("for (" in inside for inside in lines[i + 1 : end])
        short = loop[2].isdigit() and int(loop[2]) <= cstyle.UNROLLED and not outer
        assert (lines[i - 1].strip() == "#pragma unroll") == short, line
