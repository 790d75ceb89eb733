"""Bytes on the wire, against what XLA's partitioner moves for the same programs (test/data/collectives.json, measured
with JAX; see its origin)."""

import json
import math
from pathlib import Path

import pytest

from tinygrad.device import Mesh, P, Sharding
from tinygrad.dtype import dtypes
from tinygrad.gradient import compute_gradient
from tinygrad.sharding import explain
from tinygrad.uop.ops import Ops, UOp

CASES = {
  c["case"]: c for c in json.loads((Path(__file__).parents[1] / "data" / "collectives.json").read_text())["cases"]
}
LINE = Mesh([f"NULL:{i}" for i in range(8)], (8,), ("x",))
GRID = Mesh([f"NULL:{i}" for i in range(8)], (2, 4), ("dp", "tp"))


def leaf(*shape, cut=(), mesh=LINE, dtype=dtypes.float32):
  return UOp.buffer(shape, dtype, Sharding(mesh, P(*cut)))


def matmul(a, b):
  (*rows, k), n = a.shape, b.shape[1]
  wide = (*rows, k, n)
  product = a.reshape((*rows, k, 1)).expand(wide) * b.reshape((1,) * len(rows) + (k, n)).expand(wide)
  return product.r(Ops.ADD, (len(rows),)).reshape((*rows, n))


def relu(x):
  return x.maximum(0.0)


def mean_square(y):
  return ((y * y).r(Ops.ADD, tuple(range(y.ndim))) * (1.0 / math.prod(y.shape))).reshape(())


def mlp(x, w1, w2):
  return matmul(relu(matmul(x, w1)), w2)


def trained(loss, weights):
  """The weights after a step of SGD."""
  return [w - g * 0.1 for w, g in zip(weights, gradients(loss, weights))]


def gradients(loss, weights):
  found = compute_gradient(loss, loss.const_like(1.0), weights)
  return [found[w] for w in weights]


def attention():
  b, t, d, h, hd = 4, 64, 256, 8, 32
  x = leaf(b, t, d)
  wq, wk, wv = (leaf(d, h, hd, cut=(None, "x")) for _ in range(3))
  wo = leaf(h, hd, d, cut=("x",))

  def heads(w):
    return matmul(x, w.reshape((d, h * hd))).reshape((b, t, h, hd)).permute((0, 2, 1, 3))

  q, k, v = heads(wq), heads(wk), heads(wv)
  scores = (
    q.reshape((b, h, t, 1, hd)).expand((b, h, t, t, hd)) * k.reshape((b, h, 1, t, hd)).expand((b, h, t, t, hd))
  ).r(Ops.ADD, (4,))
  weights = softmax(scores.reshape((b, h, t, t)))
  out = (
    weights.reshape((b, h, t, t, 1)).expand((b, h, t, t, hd)) * v.reshape((b, h, 1, t, hd)).expand((b, h, t, t, hd))
  ).r(Ops.ADD, (3,))
  joined = out.reshape((b, h, t, hd)).permute((0, 2, 1, 3)).reshape((b, t, h * hd))
  return [matmul(joined, wo.reshape((h * hd, d)))]


def softmax(x):
  axis = (x.ndim - 1,)
  e = (x - x.r(Ops.MAX, axis).expand(x.shape)).alu(Ops.EXP)
  return e / e.r(Ops.ADD, axis).expand(x.shape)


def layernorm(x):
  n, axis = x.shape[-1], (x.ndim - 1,)
  d = x - (x.r(Ops.ADD, axis) * (1 / n)).expand(x.shape)
  return d / ((d * d).r(Ops.ADD, axis) * (1 / n) + 1e-5).alu(Ops.SQRT).expand(x.shape)


def case_a():
  return [mlp(leaf(64, 256), leaf(256, 1024, cut=(None, "x")), leaf(1024, 256, cut=("x",)))]


def case_a_grad():
  w1, w2 = leaf(256, 1024, cut=(None, "x")), leaf(1024, 256, cut=("x",))
  return gradients(mean_square(mlp(leaf(64, 256), w1, w2)), [w1, w2])


def case_b():
  w1, w2 = leaf(256, 1024), leaf(1024, 256)
  loss = mean_square(mlp(leaf(512, 256, cut=("x",)), w1, w2))
  return [loss, *gradients(loss, [w1, w2])]


def a_matmul_b():
  return matmul(leaf(128, 1024, cut=(None, "x")), leaf(1024, 128, cut=("x",)))


def case_e(batch=64):
  w1, w2 = leaf(256, 1024, cut=("x",)), leaf(1024, 256, cut=("x",))
  return trained(mean_square(mlp(leaf(batch, 256, cut=("x",)), w1, w2)), [w1, w2])


def case_f():
  x = leaf(8, 32, 256, cut=("dp",), mesh=GRID)
  w1, w2 = leaf(256, 1024, cut=(None, "tp"), mesh=GRID), leaf(1024, 256, cut=("tp",), mesh=GRID)
  return trained(mean_square(x + mlp(layernorm(x), w1, w2)), [w1, w2])


def embedding():
  table = leaf(4096, 256, cut=("x",))
  return table, table.gather(leaf(64, dtype=dtypes.int32))


def case_k3():
  table, rows = embedding()
  return gradients(mean_square(rows), [table])


def case_l():
  x = leaf(64, 1024, cut=(None, "x"))
  g, b = (leaf(1024, cut=("x",)).reshape((1, 1024)).expand((64, 1024)) for _ in range(2))
  return [layernorm(x) * g + b]


def convolution():
  """NHWC, a 3x3 window by WINDOW along both image dims, the batch cut."""
  n, h, c, o = 8, 32, 16, 32
  x = leaf(n, h, h, c, cut=("x",)).pad(((0, 0), (1, 1), (1, 1), (0, 0)))
  x = x.reshape((n, 34, 34, c, 1, 1)).expand((n, 34, 34, c, 3, 3)).window(1, 4, 1, 1, h).window(2, 5, 1, 1, h)
  w = leaf(3, 3, c, o).permute((2, 0, 1, 3)).reshape((1, 1, 1, c, 3, 3, o)).expand((n, h, h, c, 3, 3, o))
  return [(x.reshape((*x.shape, 1)).expand((n, h, h, c, 3, 3, o)) * w).r(Ops.ADD, (3, 4, 5)).reshape((n, h, h, o))]


PROGRAMS = {
  "a": case_a,
  "a_grad": case_a_grad,
  "b": case_b,
  "c": attention,
  "d": lambda: [a_matmul_b().r(Ops.ADD, (0, 1))],
  "d2": lambda: [a_matmul_b() + a_matmul_b()],
  "d3": lambda: [a_matmul_b().copy_to_device(Sharding(LINE, 0))],
  "e": case_e,
  "e2": lambda: case_e(4096),
  "f": case_f,
  "g1": lambda: [leaf(1024, 64, cut=("x",)).permute((1, 0))],
  "g2": lambda: [leaf(32, 512, cut=(None, "x")).reshape((32, 16, 32))],
  "g3": lambda: [leaf(16, 64, 32, cut=("x",)).reshape((1024, 32))],
  "g4": lambda: [leaf(16, 64, 32, cut=(None, "x")).reshape((1024, 32)).copy_to_device(Sharding(LINE, 0))],
  "g5": lambda: [leaf(1024, cut=("x",)).reshape((4, 256))],
  "g8": lambda: [(leaf(1024, cut=("x",)).reshape((4, 256)) * 2.0).reshape((1024,))],
  "g7": lambda: [leaf(1024, 64, cut=("x",)).copy_to_device(Sharding(LINE, 1))],
  "h": lambda: [UOp.cat([leaf(1024, 64, cut=("x",)), leaf(1024, 64, cut=("x",))], 0)],
  "h2": lambda: [UOp.cat([leaf(1024, 64, cut=("x",)), leaf(1024, 64, cut=("x",))], 1)],
  "i": lambda: [leaf(1024, 64, cut=("x",)).shrink(((0, 512), (0, 64)))],
  "i2": lambda: [leaf(1024, 64, cut=("x",)).shrink(((0, 512), (0, 64)))],
  "j": lambda: [softmax(leaf(64, 4096, cut=(None, "x")))],
  "k": lambda: [embedding()[1]],
  "k3": case_k3,
  "l": case_l,
  "m1": lambda: [relu(leaf(64, 4096, cut=(None, "x")).r(Ops.MAX, (1,)))],
  "m2": lambda: [relu(a_matmul_b())],
  "m5": convolution,
}
# where a reduction is settled before its consumer is known (DEFER=0), more travels than would suffice, though no more
# than XLA moves
SETTLED_AT_ONCE = {"d", "d2", "k3"}
# scalars (a loss, a mean) are counted here and not in the table
SCALARS = 64


def test_every_case_but_cumsum_is_covered():
  assert set(CASES) - set(PROGRAMS) == {"m4"}  # cumsum is the Tensor's


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_more_bytes_than_xla(name):
  moved = sum(m.wire for m in explain(*PROGRAMS[name]()))
  assert moved <= CASES[name]["xla_wire"] + SCALARS
  if name not in SETTLED_AT_ONCE:
    assert moved <= CASES[name]["enough_wire"] + SCALARS


def test_the_table_can_fail():
  """A weight cut the wrong way round moves more than the case allows."""
  wrong = mlp(leaf(64, 256), leaf(256, 1024, cut=("x",)), leaf(1024, 256, cut=(None, "x")))
  assert sum(m.wire for m in explain(wrong)) > CASES["a"]["xla_wire"]


def test_a_debt_that_is_read_at_a_cut_is_scattered():
  assert [m.kind for m in explain(a_matmul_b().copy_to_device(Sharding(LINE, 0)))] == ["reduce_scatter"]
  both = a_matmul_b()
  assert [m.kind for m in explain(both, both.copy_to_device(Sharding(LINE, 0)))] == ["all_reduce"]  # it is needed whole
