"""Products, convolutions and pooling against numpy, with their gradients."""

import numpy as np
import pytest
from tensor_oracle import close, normal

from tinygrad import GlobalCounters, Tensor, dtypes
from tinygrad.uop import Ops


def test_dot_types():
  a, b = Tensor.ones(2, 3, dtype=dtypes.float16), Tensor.ones(3, 2, dtype=dtypes.float16)
  assert (a @ b).dtype is dtypes.float16
  assert a.dot(b, dtype=dtypes.float32).dtype is dtypes.float32
  assert (a @ b.float()).dtype is dtypes.float32
  close(Tensor([[1, 2]]) @ Tensor([[3], [4]]), [[11]])


def test_half_products_are_summed_in_float32():
  x = np.ones((1, 4096), np.float16)
  assert (Tensor(x) @ Tensor(x.T)).item() == 4096


@pytest.mark.parametrize(
  "formula",
  ["ij,jk,kl->il", "i,j,k->kij", "i,ij,j", "bi,oij,bj->bo", "ij,ij,ij->j", "ii,ij,jk->k", "...i,ij,j...->..."],
)
def test_einsum_of_many_operands_takes_two_at_a_time(formula):
  sizes = {"b": 2, "i": 3, "j": 4, "k": 5, "l": 6, "o": 7}
  shapes = [[sizes[c] for c in name.replace("...", "bl")] for name in formula.split("->")[0].split(",")]
  xs = [normal(k, shape) for k, shape in enumerate(shapes)]
  got = Tensor.einsum(formula, *map(Tensor, xs))
  close(got, np.einsum(formula, *xs))


def test_a_chain_of_products_never_has_all_its_dims_at_once():
  n = 11
  xs = [normal(k, (n, n)) for k in range(4)]
  got = Tensor.einsum("ab,bc,cd,de->ae", *map(Tensor, xs))
  close(got, xs[0] @ xs[1] @ xs[2] @ xs[3])
  assert {np.prod(u.src[0].shape) for u in got.uop.toposort() if u.op is Ops.REDUCE} == {n**3}


def conv(x, w, stride=1, dilation=1, pads=None, groups=1):
  """Cross-correlation by the definition, any rank."""
  rank = w.ndim - 2
  x = np.pad(x, ((0, 0), (0, 0), *(pads or ((0, 0),) * rank)))
  stride, dilation = (np.broadcast_to(v, rank) for v in (stride, dilation))
  out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation)]
  y = np.zeros((x.shape[0], w.shape[0], *out))
  cin, per = w.shape[1], w.shape[0] // groups
  for o in range(w.shape[0]):
    part = x[:, o // per * cin : (o // per + 1) * cin]
    for at in np.ndindex(*out):
      window = tuple(slice(a * s, a * s + d * (k - 1) + 1, d) for a, s, d, k in zip(at, stride, dilation, w.shape[2:]))
      y[(slice(None), o, *at)] = (part[(slice(None), slice(None), *window)] * w[o]).sum(tuple(range(1, rank + 2)))
  return y


def test_conv_bias_and_padding_forms():
  x, w, b = normal(1, (1, 2, 4, 4)), normal(2, (3, 2, 3, 3)), normal(3, (3,))
  want = conv(x, w, pads=((1, 1), (2, 2))) + b.reshape(1, 3, 1, 1)
  close(
    Tensor(x, dtype="float32").conv2d(Tensor(w, dtype="float32"), Tensor(b, dtype="float32"), padding=(1, 2)),
    want,
    1e-4,
  )


@pytest.mark.parametrize(
  "options",
  [{}, {"stride": 2}, {"padding": 1}, {"stride": 2, "output_padding": 1}, {"dilation": 2}, {"groups": 2}],
  ids=str,
)
def test_conv_transpose_is_the_adjoint(options):
  """<conv_transpose(x), y> == <x, conv(y)> for every y."""
  groups = options.get("groups", 1)
  x, w = normal(1, (2, 4, 3, 3)), normal(2, (4, 6 // groups, 2, 2))
  got = Tensor(x).conv_transpose2d(Tensor(w), **options).numpy()
  pads = ((options.get("padding", 0),) * 2,) * 2
  y = normal(3, got.shape)
  back = conv(y, w, options.get("stride", 1), options.get("dilation", 1), pads, groups)
  assert back.shape == x.shape
  np.testing.assert_allclose((got * y).sum(), (x * back).sum(), rtol=1e-6)


def added_up(x, w, stride, dilation, pads, more):
  """A transposed convolution by its definition: each element of x times the weights, added where they land."""
  rank = w.ndim - 2
  sizes = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation)]
  y = np.zeros((x.shape[0], w.shape[1], *(n + m for n, m in zip(sizes, more))))
  for at in np.ndindex(*x.shape[2:]):
    for k in np.ndindex(*w.shape[2:]):
      place = tuple(at[i] * stride[i] + k[i] * dilation[i] for i in range(rank))
      y[(slice(None), slice(None), *place)] += x[(slice(None), slice(None), *at)] @ w[(slice(None), slice(None), *k)]
  cut = (slice(before, n - after) for n, (before, after) in zip(y.shape[2:], pads))
  return y[(slice(None), slice(None), *cut)]


@pytest.mark.parametrize("seed", range(24))
def test_conv_transpose_of_any_phases(seed):
  """Strides, weights and paddings by chance: phases have fewer weights than others, none, or another first input."""
  rng = np.random.default_rng(seed)
  while True:
    rank = int(rng.integers(1, 4))
    sizes, kernel, stride, dilation, more = (
      rng.integers(low, high, rank).tolist() for low, high in ((1, 6), (1, 6), (1, 5), (1, 3), (0, 3))
    )
    pads = rng.integers(0, 4, (rank, 2)).tolist()
    x, w = rng.standard_normal((2, 2, *sizes)), rng.standard_normal((2, 3, *kernel))
    want = added_up(x, w, stride, dilation, pads, more)
    if 0 not in want.shape:
      break
  padding = [p for pair in reversed(pads) for p in pair]
  got = Tensor(x).conv_transpose2d(Tensor(w), None, 1, stride, dilation, padding, more)
  assert got.shape == want.shape
  np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-9)


def test_conv_transpose_multiplies_no_zeros():
  """9 weights for four neighbours of the result, of 3 x 3 and stride 2: not the 16 of one convolution for all."""
  x, w = Tensor.empty(1, 8, 16, 16), Tensor.empty(8, 8, 3, 3)
  GlobalCounters.reset()
  x.conv_transpose2d(w, stride=2, padding=1).realize()
  assert GlobalCounters.global_ops < 1.2 * 2 * 8 * 8 * 16 * 16 * 9


def test_pooling_of_integers_and_ceil_mode():
  x = np.arange(25).reshape(1, 1, 5, 5)
  close(Tensor(x).max_pool2d(), [[[[6, 8], [16, 18]]]])
  close(Tensor(x).max_pool2d(ceil_mode=True), [[[[6, 8, 9], [16, 18, 19], [21, 23, 24]]]])
  close(
    Tensor(x.astype(np.float32)).avg_pool2d(ceil_mode=True),
    [[[[3.0, 5.0, 6.5], [13.0, 15.0, 16.5], [20.5, 22.5, 24.0]]]],
  )
  values, places = Tensor(x).max_pool2d(return_indices=True)
  close(places, [[[[6, 8], [16, 18]]]])


def test_newton_schulz_orthogonalises():
  x = normal(1, (4, 3)).astype(np.float32)
  q = Tensor(x).newton_schulz(15, (1.5, -0.5)).numpy()
  np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-3)


@pytest.mark.parametrize("mode,shift", [("nearest", 0.0), ("nearest-exact", 0.5)])
def test_the_nearest_of_whole_times_is_a_repeat(mode, shift):
  for times in range(2, 60):  # of some the product with float32(1 / times) is less than the whole number
    x, place = normal(0, (3,)), np.arange(3 * times, dtype=np.float32)
    want = x[np.floor((place + np.float32(shift)) * np.float32(1 / times)).astype(int)]
    np.testing.assert_array_equal(Tensor(x).interpolate((3 * times,), mode).numpy(), want, err_msg=f"{times}")
  x = Tensor(normal(1, (2, 3, 5))).realize()
  y = x.interpolate((6, 20), mode)
  assert Ops.GATHER not in {u.op for u in y.uop.toposort()}
  GlobalCounters.reset()
  dx = (y * y).sum().gradient(x)[0].realize()
  assert GlobalCounters.kernel_count == 1
  close(dx, 2 * 8 * x.numpy(), 1e-5)


ERRORS = [
  (lambda: Tensor.ones(2, 3) @ Tensor.ones(2, 3), ValueError,
   r"dot: the last dim of operand 0(.|\n)*float32\[2, 3\](.|\n)*fix: transpose"),
  (lambda: Tensor.ones(2, 3) @ 2, TypeError, "needs a tensor, got int"),
  (lambda: Tensor(1.0) @ Tensor(1.0), ValueError, "at least one dim"),
  (lambda: Tensor.ones(2, 2, 3) @ Tensor.ones(3, 3, 2), ValueError, "leading dims must broadcast"),
  (lambda: Tensor.einsum("ij,jk->ik", Tensor.ones(2, 3)), ValueError, "names 2 operands"),
  (lambda: Tensor.einsum("ij,jk->ik", Tensor.ones(2, 3), Tensor.ones(2, 3)), ValueError,
   "is 3 in one operand and 2 in another"),
  (lambda: Tensor.einsum("ij->ik", Tensor.ones(2, 3)), ValueError, "is in no operand"),
  (lambda: Tensor.ones(1, 3, 4, 4).conv2d(Tensor.ones(2, 2, 3, 3)), ValueError, "x must have 1 \\* 2 channels"),
  (lambda: Tensor.ones(1, 2, 4).conv2d(Tensor.ones(2, 2, 3, 3)), ValueError, "of as many dims"),
  (lambda: Tensor.ones(1, 2, 2, 2).conv2d(Tensor.ones(2, 2, 3, 3)), ValueError, "longer than dim 2"),
  (lambda: Tensor.ones(1, 2, 4, 4).conv2d(Tensor.ones(2, 2, 3, 3), padding=(1, 1, 1)), ValueError, "padding"),
  (lambda: Tensor.ones(4).max_pool2d(), ValueError, "at least 2 dims"),
  (lambda: Tensor.ones(1, 1, 4).interpolate((2,), "cubic"), ValueError, "unknown mode"),
]  # fmt: skip


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call()
