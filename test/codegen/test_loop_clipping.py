"""Loops that end early where a condition leaves nothing to do in the rest: numerics/idle_loops.py."""

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen import row_blocks
from tinygrad.codegen.nests import NestSchedule
from tinygrad.helpers import PROCESS, Context, GlobalCounters
from tinygrad.numerics import idle_loops
from tinygrad.schedule import row_groups
from tinygrad.uop import AxisKind
from tinygrad.uop.affine import Affine, affine

RNG = np.random.default_rng(3)


def arrays(length, heads=3, dim=64, count=4):
  return [RNG.standard_normal((heads, length, dim)).astype(np.float32) for _ in range(count)]


def attention(q, k, v, g, mask):
  """The causal attention's value, and its gradients in q, k and v."""
  q, k, v = (Tensor(x).realize() for x in (q, k, v))
  out = q.scaled_dot_product_attention(k, v, **mask(q.shape[1]))
  grads = (out * Tensor(g).realize()).sum().gradient(q, k, v)
  Tensor.realize(out, *grads)
  return [x.numpy() for x in (out, *grads)]


def reference(q, k, v, g, keep):
  q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
  scale = 1 / np.sqrt(q.shape[-1])
  scores = np.where(keep, q @ k.transpose(0, 2, 1) * scale, -np.inf)
  p = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e9))
  p /= np.maximum(p.sum(-1, keepdims=True), 1e-9)
  dp = g @ v.transpose(0, 2, 1)
  ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
  return p @ v, ds @ k, ds.transpose(0, 2, 1) @ q, p.transpose(0, 2, 1) @ g


def deviation(given, mask, keep):
  return max(np.abs(a - b).max() for a, b in zip(attention(*given, mask), reference(*given, keep)))


CAUSAL = lambda n: {"is_causal": True}  # noqa: E731


@pytest.mark.parametrize("length", [64, 200, 450, 513])
def test_causal_attention(length):
  assert deviation(arrays(length), CAUSAL, np.tril(np.ones((length, length), bool))) < 1e-5


@pytest.mark.parametrize("shift", [-1, 0, 70])
def test_other_diagonals(shift):
  """Keys up to i + shift; without a key for row 0, whose values and gradients are zeros."""
  n = 200
  keep = np.tril(np.ones((n, n), bool), shift)
  given = arrays(n)

  def mask(n):
    rows, columns = Tensor.arange(n).reshape(n, 1), Tensor.arange(n).reshape(1, n)
    return {"attn_mask": columns <= rows + shift}

  for a, b in zip(attention(*given, mask), reference(*given, keep), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def limits(f):
  """The limits found in the kernels that computing `f` takes, as (constant, coefficients)."""
  found = []
  with pytest.MonkeyPatch.context() as patch, PROCESS.anew():
    loop_limits = idle_loops.loop_limits

    def noted(stores, rows):
      out = loop_limits(stores, rows)
      found.extend((x.const, *x.terms.values()) for x in (affine(at, {}) for at in out.values()))
      return out

    patch.setattr(idle_loops, "loop_limits", noted)
    with Context(CPU_THREADS=1):
      f()
  return found


def test_what_ends_early():
  """The scores, their maximum, exponentials, sums and products with v; nothing where there is no mask, or one that
  tells a loop's iterations one by one."""
  q, k, v = (Tensor(x).realize() for x in arrays(128, count=3))
  assert limits(lambda: q.scaled_dot_product_attention(k, v, is_causal=True).realize()) == [(1, 1)] * 6
  assert limits(lambda: q.scaled_dot_product_attention(k, v).realize()) == []
  some = Tensor(RNG.random((128, 128)) < 0.5).realize()
  assert limits(lambda: q.scaled_dot_product_attention(k, v, some).realize()) == []


def kernels_of_attention(kind, width, causal):
  q, k, v = (Tensor.empty(4, 256, width, dtype=kind) for _ in range(3))
  GlobalCounters.reset()
  q.scaled_dot_product_attention(k, v, is_causal=causal).realize()
  return GlobalCounters.kernel_count


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_what_a_mask_leaves_idle_is_one_kernel(kind, width, fresh):
  """However wide the heads: products with scores in memory would be of all keys. (Mutant: nothing is idle.)"""
  assert kernels_of_attention(kind, width, True) == 1
  if width == 256:
    fresh.setattr(row_groups, "loop_limits", lambda *_: {})
    with PROCESS.anew():
      assert kernels_of_attention(kind, width, True) > 1


def normalised(x):
  """Where the mask does not hold, something is added."""
  n = len(x)
  t = Tensor(x).realize()
  y = Tensor.ones(n, n, dtype="bool").tril().where(t.exp(), 1.0)
  return (y / y.sum(1, keepdim=True)).numpy()


def want(x):
  y = np.where(np.tril(np.ones(x.shape, bool)), np.exp(x), 1.0)
  return y / y.sum(1, keepdims=True)


def test_masks_within_a_block():
  """Rows are whole triangles here: where a sum may end depends on a loop inside of them."""
  x = RNG.standard_normal((16, 150, 150)).astype(np.float32)
  keep = np.tril(np.ones((150, 150), bool))

  t = Tensor(x).realize()
  y = Tensor.ones(150, 150, dtype="bool").tril().where(t.exp(), 0.0)
  got, want = (y / y.sum((1, 2), keepdim=True)).numpy(), np.where(keep, np.exp(x), 0)
  np.testing.assert_allclose(got, want / want.sum((1, 2), keepdims=True), rtol=1e-4, atol=1e-6)


def test_sums_over_rows_begin_whole():
  """Gradients in k and v are sums over blocks of rows; 7 heads, in blocks that do not divide them."""
  assert deviation(arrays(96, heads=7, dim=16), CAUSAL, np.tril(np.ones((96, 96), bool))) < 1e-5


def test_masked_values_that_count():
  x = RNG.standard_normal((300, 300)).astype(np.float32)
  np.testing.assert_allclose(normalised(x), want(x), rtol=1e-5)


def test_mutant_everything_adds_nothing(fresh):
  fresh.setattr(idle_loops, "adds_nothing", lambda f, known: True)
  x = RNG.standard_normal((300, 300)).astype(np.float32)
  assert np.abs(normalised(x) / want(x) - 1).max() > 0.01


@pytest.mark.parametrize("mutant", ["a chunk less", "stale memory is read"])
def test_laws_kill_mutants(mutant, fresh):
  if mutant == "a chunk less":
    chunks = row_blocks.chunks
    fresh.setattr(row_blocks, "chunks", lambda r, limit, *at: chunks(r, limit.plus(Affine(-64)), *at))
  else:  # what is stored ends early, and what is summed does not
    made = NestSchedule.__init__

    def of_parallel(nest, label, stores, around, limits, *more):
      made(nest, label, stores, around, {r: x for r, x in limits.items() if r.arg[1] is not AxisKind.REDUCE}, *more)

    fresh.setattr(NestSchedule, "__init__", of_parallel)
  assert not deviation(arrays(450), CAUSAL, np.tril(np.ones((450, 450), bool))) < 1e-3


@pytest.mark.parametrize("rows", [16, 32])
def test_a_running_sum_within_a_loop_that_ends_early(rows):
  """What is on the first lanes is simplified, with the loop around it: its end has to be in normal form before."""
  x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
  got = Tensor(x).realize().cumsum(0) @ (Tensor.arange(8) <= 3)
  np.testing.assert_allclose(got.numpy(), x.cumsum(0)[:, :4].sum(1), rtol=1e-5, atol=1e-5)
