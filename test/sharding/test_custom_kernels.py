"""Kernels that users write in source in place of a custom op's function: they run on parts, between kernels of ours."""

import shutil

import numpy as np
import pytest

from tinygrad import Context, DeviceError, Mesh, P, ShardError, Tensor, TinyJit, check_rule, custom_op
from tinygrad.debug.check_nan import NonFiniteError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
GRID = Mesh([f"CPU:{i}" for i in range(1, 5)], (2, 2), ("x", "y"))
MARK = 1000  # which the kernel adds, so that it is told from the function
SOURCE = """
void matmul(float *out, const float *x, const float *w,
            int64_t m, int64_t n, int64_t rows, int64_t k, int64_t depth, int64_t columns) {
  if (rows != m || depth != k || columns != n) return;
  for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {
    float sum = MARK;
    for (int64_t l = 0; l < k; l++) sum += x[i * k + l] * w[l * n + j];
    out[i * n + j] = sum;
  }
}
"""


def matmul(x, w):
  return x @ w


def op_adding(mark):
  return custom_op(matmul, rule="m k, k n -> m n", kernel={"CPU": SOURCE.replace("MARK", str(mark))})


marked = op_adding(MARK)
A, W = (np.random.default_rng(i).integers(-4, 5, s).astype(np.float32) for i, s in enumerate(((8, 12), (12, 4))))


def put(a, *dims):
  return Tensor(a).shard(GRID, P(*dims)).realize()


PLACES = (
  (("x", "y"), ("y",), 2),
  (("x",), (None, "y"), 1),
  ((("x", "y"),), (), 1),
  ((None, ("x", "y")), (("x", "y"),), 4),
)


@pytest.mark.parametrize("where, there, parts", PLACES)
def test_the_kernel_runs_on_each_part(where, there, parts):
  x, w = put(A, *where), put(W, *there)
  np.testing.assert_array_equal(marked(x, w).numpy(), A @ W + MARK * parts, "once for each part of the sum")
  around = (marked(x + 1, w * 2).relu() + 1).numpy()
  np.testing.assert_array_equal(around, np.maximum((A + 1) @ (W * 2) + MARK * parts, 0) + 1)
  for g, want in zip(marked(x, w).sum().gradient(x, w), (np.tile(W.sum(1), (8, 1)), np.tile(A.sum(0), (4, 1)).T)):
    np.testing.assert_array_equal(g.numpy(), want)


def test_operands_that_are_views_constants_and_written_to():
  x, w = Tensor(A).realize(), Tensor(W).realize()
  np.testing.assert_array_equal(marked(x, w).numpy(), A @ W + MARK)
  np.testing.assert_array_equal(marked(Tensor(A.T.copy()).realize().T, w).numpy(), A @ W + MARK)
  np.testing.assert_array_equal(marked(Tensor(np.vstack([A, A])).realize()[8:], w).numpy(), A @ W + MARK)
  np.testing.assert_array_equal(marked(x, Tensor.ones(12, 4)).numpy(), A @ np.ones((12, 4)) + MARK)
  x.assign(marked(x, Tensor(np.eye(12, dtype=np.float32)))).realize()
  np.testing.assert_array_equal(x.numpy(), A + MARK)
  twice = marked(x, w)
  np.testing.assert_array_equal(
    (twice + twice.sum(1, keepdim=True)).numpy()[0], (lambda y: y + y.sum())(twice.numpy()[0])
  )


def test_replays():
  @TinyJit
  def step(x, w):
    return marked(x, w) * 2

  for i in range(4):
    a, b = A + i, W - i
    np.testing.assert_array_equal(step(put(a, "x"), put(b, None, "y")).numpy(), (a @ b + MARK) * 2)


def test_other_kinds_run_the_function():
  x, w = Tensor(A, device="PYTHON"), Tensor(W, device="PYTHON")
  np.testing.assert_array_equal(marked(x, w).numpy(), A @ W)


@pytest.mark.parametrize(
  "settings", ({"INTERPRET": 1}, {"TILE_AND_FUSE": 0}, {"DEBUG": 2}, {"CHECK_NAN": 1}, {"BEAM": 1})
)
def test_settings(settings, capsys):
  with Context(**settings):
    y = marked(put(A, "x"), put(W, None, "y") + 1).numpy()
  np.testing.assert_array_equal(y, A @ (W + 1) + MARK * ("INTERPRET" not in settings))
  assert "DEBUG" not in settings or "matmul" in capsys.readouterr().out


def test_what_a_kernel_makes_is_looked_at():
  with Context(CHECK_NAN=1), pytest.raises(NonFiniteError, match=r"(?s)elements are infinite.*kernel matmul"):
    op_adding("1.0f / 0")(put(A, "x"), put(W)).numpy()


def test_a_kernel_is_checked_against_its_function():
  assert check_rule(op_adding(0), (8, 12), (12, 4), mesh=GRID, trials=4)
  with pytest.raises(ShardError, match=r"(?s)result 0 of matmul on parts.*differs by up to \d000"):
    check_rule(marked, (8, 12), (12, 4), mesh=GRID)


def test_mistakes():
  with pytest.raises(
    DeviceError, match=r"(?s)kernel matmul: .*cc.* refuses its source.*error:.*fix: correct the source"
  ):
    broken = custom_op(matmul, rule="m k, k n -> m n", kernel={"CPU": SOURCE.replace("float sum", "flat sum")})
    broken(Tensor(A), Tensor(W)).numpy()
  with pytest.raises(ShardError, match=r"has no function <lambda>"):
    custom_op(lambda x: x, rule="n -> n", kernel={"CPU": SOURCE})
  with pytest.raises(ShardError, match="a kernel has one result, and the rule 'm k, k n -> m, n' 2"):
    custom_op(matmul, rule="m k, k n -> m, n", kernel={"CPU": SOURCE})
  with pytest.raises(DeviceError, match="TPU"):
    custom_op(matmul, rule="m k, k n -> m n", kernel={"TPU": SOURCE})
