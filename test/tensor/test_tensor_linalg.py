"""Products, convolutions and pooling against numpy, with their gradients."""

import numpy as np
import pytest
from tensor_oracle import check, close, normal

from tinygrad import Tensor, dtypes

DOT = [
  ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
  ((1, 2, 3), (4, 3, 2)),
  ((2, 1, 2, 3), (5, 3, 1)), ((1, 1), (1, 1)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize("a,b", DOT)
def test_dot(a, b):
  check(lambda x, y: x @ y, lambda x, y: x @ y, normal(1, a), normal(2, b))


def test_dot_types():
  a, b = Tensor.ones(2, 3, dtype=dtypes.float16), Tensor.ones(3, 2, dtype=dtypes.float16)
  assert (a @ b).dtype is dtypes.float16
  assert a.dot(b, dtype=dtypes.float32).dtype is dtypes.float32
  assert (a @ b.float()).dtype is dtypes.float32
  close(Tensor([[1, 2]]) @ Tensor([[3], [4]]), [[11]])


def test_half_products_are_summed_in_float32():
  x = np.ones((1, 4096), np.float16)
  assert (Tensor(x) @ Tensor(x.T)).item() == 4096


def test_linear():
  x, w, b = normal(1, (4, 3)), normal(2, (3, 2)), normal(3, (2,))
  check(lambda x, w, b: x.linear(w, b), lambda x, w, b: x @ w + b, x, w, b)
  check(lambda x, w: x.linear(w), lambda x, w: x * w, normal(1, (4, 3)), normal(2, (3,)))


EINSUM = [
  ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk", (2, 3, 4), (2, 4, 2)), ("ii->i", (3, 3)), ("ii", (3, 3)),
  ("ij->ji", (2, 3)), ("ij->", (2, 3)),
  ("i,j->ij", (2,), (3,)), ("...ij,...jk->...ik", (2, 2, 3), (3, 2)), ("ij,ij,ij->j", (2, 3), (2, 3), (2, 3)),
  ("bhqd,bhkd->bhqk", (1, 2, 3, 2), (1, 2, 4, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUM, ids=lambda c: c[0])
def test_einsum(case):
  formula, *shapes = case
  check(
    lambda *t: Tensor.einsum(formula, *t),
    lambda *x: np.einsum(formula, *x),
    *(normal(i, s) for i, s in enumerate(shapes)),
  )


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


CONV = [
  {"x": (1, 2, 4, 5), "w": (3, 2, 2, 3)},
  {"x": (2, 1, 5, 5), "w": (1, 1, 3, 3), "padding": 1, "pads": ((1, 1), (1, 1))},
  {"x": (1, 2, 5, 5), "w": (2, 2, 2, 2), "stride": 2},
  {"x": (1, 2, 5, 5), "w": (2, 2, 2, 2), "dilation": 2},
  {"x": (1, 4, 3, 3), "w": (4, 2, 2, 2), "groups": 2},
  {"x": (1, 2, 3, 3), "w": (2, 1, 2, 2), "groups": 2},
  {"x": (1, 1, 4, 4), "w": (1, 1, 2, 2), "stride": (1, 2), "dilation": (2, 1), "padding": (1, 0, 0, 2),
   "pads": ((0, 2), (1, 0))},
  {"x": (2, 2, 6), "w": (3, 2, 3)},
  {"x": (1, 1, 3, 3, 3), "w": (2, 1, 2, 2, 2)}, {"x": (1, 1, 1, 1), "w": (1, 1, 1, 1)},
]  # fmt: skip


@pytest.mark.parametrize("case", CONV, ids=str)
def test_conv(case):
  x, w = normal(1, case["x"]), normal(2, case["w"])
  common = {k: case[k] for k in ("stride", "dilation", "groups") if k in case}
  check(
    lambda a, b: a.conv2d(b, padding=case.get("padding", 0), **common),
    lambda a, b: conv(a, b, pads=case.get("pads"), **common),
    x,
    w,
    tol=1e-4,
  )


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


def windows(x, k, s, d=1, pads=(0, 0), fill=0.0):
  """(.., positions_h, positions_w, kh, kw) of the last two dims."""
  x = np.pad(x, (*((0, 0),) * (x.ndim - 2), (pads[0],) * 2, (pads[1],) * 2), constant_values=fill)
  h, w = ((n - d * (m - 1) - 1) // t + 1 for n, m, t in zip(x.shape[-2:], k, s))
  out = np.empty((*x.shape[:-2], h, w, *k))
  for i, j in np.ndindex(h, w):
    out[..., i, j, :, :] = x[
      ..., i * s[0] : i * s[0] + d * (k[0] - 1) + 1 : d, j * s[1] : j * s[1] + d * (k[1] - 1) + 1 : d
    ]
  return out


def test_pooling():
  x = normal(7, (1, 2, 5, 6))
  check(lambda t: t.max_pool2d(), lambda v: windows(v, (2, 2), (2, 2)).max((-2, -1)), x)
  check(lambda t: t.avg_pool2d(), lambda v: windows(v, (2, 2), (2, 2)).mean((-2, -1)), x)
  check(lambda t: t.max_pool2d((3, 2), 1), lambda v: windows(v, (3, 2), (1, 1)).max((-2, -1)), x)
  check(lambda t: t.max_pool2d((2, 2), 2, 2), lambda v: windows(v, (2, 2), (2, 2), 2).max((-2, -1)), x)
  check(
    lambda t: t.max_pool2d(3, 2, padding=1), lambda v: windows(v, (3, 3), (2, 2), 1, (1, 1), -np.inf).max((-2, -1)), x
  )
  check(lambda t: t.avg_pool2d(3, 2, padding=1), lambda v: windows(v, (3, 3), (2, 2), 1, (1, 1)).mean((-2, -1)), x)
  check(
    lambda t: t.avg_pool2d(3, 2, padding=1, count_include_pad=False),
    lambda v: np.nanmean(windows(v, (3, 3), (2, 2), 1, (1, 1), np.nan), (-2, -1)),
    x,
  )


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


def test_interpolate():
  x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
  close(Tensor(x).interpolate((8,), "nearest"), np.repeat(x, 2, -1))
  close(Tensor(x).interpolate((7,), align_corners=True), np.linspace(0, 3, 7).reshape(1, 1, 7).astype(np.float32))
  close(Tensor(x).interpolate((2,)), np.array([[[0.5, 2.5]]], np.float32))


def test_newton_schulz_orthogonalises():
  x = normal(1, (4, 3)).astype(np.float32)
  q = Tensor(x).newton_schulz(15, (1.5, -0.5)).numpy()
  np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-3)


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
