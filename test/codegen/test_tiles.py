"""What the heuristic for processors makes of reductions: tiles that fit the registers, and loops in an order in which
little memory is read anew."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from codegen_kernels import dot, fold, loop, op, reduce, sink, store

from tinygrad.codegen import lower_kernel
from tinygrad.codegen.analysis.accesses import Access
from tinygrad.codegen.heuristics import cpu
from tinygrad.codegen.heuristics.cpu import Tile, pieces_of
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops, ParamArg, UOp

REGISTERS = {16: 16, 32: 16, 64: 32}  # by the bytes of one: SSE, AVX2, AVX-512


def read(slot, size, *terms):
  param = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, size))
  return UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (param, dot(*terms))),))


def convolution(images, channels, width, outputs, kernel, stride):
  """Of padded images by outputs×channels×kernel×kernel weights."""
  n = (width - kernel) // stride + 1
  b, o, y, x = (loop(m, i) for i, m in enumerate((images, outputs, n, n)))
  c, i, j = (reduce(m, 4 + k) for k, m in enumerate((channels, kernel, kernel)))
  plane = width * width
  pixel = (b, channels * plane), (y, stride * width), (x, stride), (c, plane), (i, width), (j, 1)
  weight = (o, channels * kernel**2), (c, kernel**2), (i, kernel), (j, 1)
  value = op(Ops.MUL, read(1, images * channels * plane, *pixel), read(2, outputs * channels * kernel**2, *weight))
  at = dot((b, outputs * n * n), (o, n * n), (y, n), (x, 1))
  return sink(store(at, fold(Ops.ADD, value, c, i, j), b, o, y, x, size=images * outputs * n * n))


def product(m, n, k, transposed=False):
  i, j, r = loop(m, 0), loop(n, 1), reduce(k, 2)
  b = read(2, k * n, (j, k), (r, 1)) if transposed else read(2, k * n, (r, n), (j, 1))
  return sink(
    store(dot((i, n), (j, 1)), fold(Ops.ADD, op(Ops.MUL, read(1, m * k, (i, k), (r, 1)), b), r), i, j, size=m * n)
  )


KERNELS = {
  "3x3": convolution(8, 64, 58, 64, 3, 1),
  "3x3 of each second": convolution(8, 64, 58, 128, 3, 2),
  "7x7": convolution(4, 3, 230, 64, 7, 2),
  "of few": convolution(8, 256, 16, 256, 3, 1),
  "product": product(1024, 1024, 1024),
  "transposed": product(512, 768, 640, True),
}


def lowered(kernel, nbytes):
  target = dataclasses.replace(Device["CPU"].target, vector_bytes=nbytes, vector_registers=REGISTERS[nbytes])
  return lower_kernel(kernel, target)


def most_held(linear):
  """How many vectors the innermost loops need at once: sums, and what is read for them."""
  most, begin = 0, None
  for at, u in enumerate(linear):
    if u.op is Ops.RANGE:
      begin = at
    elif u.op is Ops.ENDRANGE and begin is not None:
      body, begin = linear[begin:at], None
      sums = {s for x in body if x.op is Ops.STORE for s in x.src[:1]}
      read = [x for x in body if x.op in (Ops.LOAD, Ops.VECTORIZE) and x.dtype.count > 1 and x.src[0] not in sums]
      spans = [(body.index(x), max(i for i, y in enumerate(body) if x in y.src)) for x in read]
      most = max([most, *(len(sums) + sum(a <= t < b for a, b in spans) for t in range(len(body)))])
  return most


@pytest.mark.parametrize("nbytes", REGISTERS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_tile_fits_the_registers(name, nbytes):
  assert 0 < most_held(lowered(KERNELS[name], nbytes)) <= REGISTERS[nbytes]


def test_the_law_of_registers_sees_copies_in_another_order(monkeypatch):
  """Mutant: what is held for all copies of the other loop is what there is more of."""
  monkeypatch.setattr(cpu, "as_registers", lambda tile: (tile.lanes > 1, tile.copies))
  monkeypatch.setattr(cpu, "live_registers", lambda x, copies: 1)
  assert any(most_held(lowered(k, 32)) > REGISTERS[32] for k in KERNELS.values())


def lines_read(strides, over, tiles, itemsize=4, line=64):
  """How many lines a tile reads in a run of a reduction, on average over where memory may begin."""
  steps = [[i * s for i in range(r.src[0].arg if r in over else tiles.get(r, Tile()).size)] for r, s in strides.items()]
  begins = range(0, line, itemsize)
  places = {sum(at) for at in itertools.product(*steps)}
  return sum(len({(p * itemsize + begin) // line for p in places}) for begin in begins) / len(begins)


@pytest.mark.parametrize(
  "strides, copies",
  [
    ({"y": 1}, (1, 8)),
    ({"y": 2, "k": 1}, (7, 1)),
    ({"x": 58, "y": 1, "c": 3364, "i": 58, "k": 1}, (3, 8)),
    ({"x": 116, "y": 2, "c": 3364, "i": 58, "k": 1}, (2, 7)),
    ({"x": 576, "c": 9, "i": 3, "k": 1}, (4, 8)),
    ({"x": -1, "k": 100}, (6, 8)),
  ],
)
def test_the_lines_that_a_tile_reads(strides, copies):
  """By counting each. Rows that some copies share with others are estimated as their own: twice as many at most."""
  loops = {"x": loop(60, 0), "y": loop(56, 1), "c": reduce(64, 2), "i": reduce(3, 3), "k": reduce(3, 4)}
  over = tuple(loops[name] for name in "cik")
  tiles = {loops[name]: Tile(n) for name, n in zip("xy", copies, strict=True)}
  by_loop = {loops[name]: step for name, step in strides.items()}
  want = lines_read(by_loop, over, tiles)
  pieces, nbytes = pieces_of(Access(by_loop, 4, frozenset()), over, tiles)
  assert want * 0.9 <= pieces * (1 + nbytes / 64) <= 2 * want + 1


def test_weights_that_fit_a_cache_are_read_by_the_innermost_loop():
  """Of images that are read with gaps a tile reads more lines than of packed weights: it stays, weights pass by. In a
  product both are read in a row, and the panel stays."""

  def innermost(name):
    plans = []
    with pytest.MonkeyPatch.context() as m:
      m.setattr(cpu, "realise", lambda nest, plan, was=cpu.realise: (plans.append(plan), was(nest, plan)))
      lowered(KERNELS[name], 32)
    plan = next(p for p in plans if p.panels)
    return plan.tiles[plan.order[-1]].lanes

  assert innermost("3x3 of each second") == 8
  assert innermost("product") == 1


def loads_an_operation(linear):
  """What the innermost loop with the most multiplications of vectors reads for each of them."""
  bodies, begin = [], None
  for at, u in enumerate(linear):
    if u.op is Ops.RANGE:
      begin = at
    elif u.op is Ops.ENDRANGE and begin is not None:
      bodies.append(linear[begin:at])
      begin = None
  products = [sum(u.op is Ops.MUL and u.dtype.count > 1 for u in body) for body in bodies]
  body = bodies[products.index(max(products))]
  sums = {s for u in body if u.op is Ops.STORE for s in u.src[:1]}
  return sum(u.op is Ops.LOAD and u.src[0] not in sums for u in body) / max(products)


@pytest.mark.parametrize("nbytes", REGISTERS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_tile_loads_little_for_each_operation(name, nbytes):
  """Two loads for three multiplications: what a processor does at a time."""
  assert loads_an_operation(lowered(KERNELS[name], nbytes)) < 0.7


def test_the_law_of_loads_sees_tiles_of_one_vector(monkeypatch):
  """Mutant: loads count as much beyond what a processor keeps up with as before."""
  monkeypatch.setattr(cpu, "LOADS", 99)
  monkeypatch.setattr(cpu, "JUMP", 0)
  assert any(loads_an_operation(lowered(k, 32)) > 1 for k in KERNELS.values())
