"""Methods of PyTorch and NumPy that are called otherwise here: the error's fix does what they do."""

import math
import pickle
import re

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.mixin.foreign_names import BY_NUMPY, FOREIGN_NAMES, FOREIGN_PARAMETERS, NO_COUNTERPART

X = np.array([[0.5, -1.25, 2.0], [3.0, 0.0, -0.75]], np.float32)
Y = np.array([[1.5, 0.25, 2.0], [0.5, 2.0, 4.0]], np.float32)
INDEX, EDGES = np.array([1, 0]), np.array([-1.0, 0.25, 2.0], np.float32)
GAP = np.array([[1, np.nan, 2], [3, 4, np.nan]], np.float32)
INDICES = np.array([[0, 2, 2], [1, 1, 0]])
Z, MASK = X[::-1].copy(), X > 0.25
SQUARE = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.5]], np.float32)  # symmetric, and positive
PART = np.array([[0.25, 0.5], [0.75, 0.125]], np.float32)
EXTREME = np.array([[np.nan, np.inf, -np.inf], [1, 2, 3]], np.float32)
IMAGE = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
WHOLE = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
VECTORS = np.array([[1.0, 2, 3], [0, 1, -1]], np.float32), np.array([[2.0, 0, 1], [3, 3, 1]], np.float32)
STEPS = np.array([[-1.0, 1.0]], np.float32)


def huber(d):
  return np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5).mean()


def added_columns(y):
  out = X.copy()
  for k, i in enumerate(INDEX):
    out[:, i] += y[:, k]
  return out


def columns(y):
  out = X.copy()
  out[:, INDEX] = y
  return out


def masked():
  out = X.copy()
  out[MASK] = Y.reshape(-1)[: MASK.sum()]
  return out


def shuffled(image):
  b, c, h, w = image.shape
  return image.reshape(b, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(b, c // 4, h * 2, w * 2)


def grid_of(theta):
  at = (np.arange(2) * 2 + 1) / 2 - 1
  rows, cols = np.meshgrid(at, at, indexing="ij")
  return np.stack((cols, rows, np.ones((2, 2))), -1) @ theta.transpose(0, 2, 1)[:, None]


def pooled(axes):
  return IMAGE.reshape(1, 2, 2, 2, 2, 2).mean(axes)


THETA = np.array([[[1.0, 0.5, 0.25], [0.0, 2.0, -1.0]]], np.float32)
KERNEL = np.ones((1, 2, 2), np.float32)
ARCS = np.array([[0.5, -0.25, 0.75]], np.float32)
CHANNELS = IMAGE.reshape(1, 2, 16)
BLOCKS = np.arange(128, dtype=np.float32).reshape(1, 8, 4, 4)


def added():
  out = X.copy()
  for (i, j), k in np.ndenumerate(INDICES):
    out[i, k] += Y[i, j]
  return out


# by name what NumPy gives, and what is otherwise than above
WANT = {
  "addr": (X[:2, :2] + np.outer(Y[0, :2], Z[0, :2]), {"x": X[:2, :2], "y": Y[0, :2], "z": Z[0, :2]}),
  "diagonal_scatter": (np.array([[1.5, -1.25], [3.0, 0.25]]), {"x": X[:, :2], "y": Y[0, :2]}),
  "dsplit": (np.dsplit(IMAGE[0], 2), {"x": IMAGE[0]}),
  "fill_diagonal_": (np.array([[2.0, -1.25], [3.0, 2.0]], np.float32), {"x": X[:, :2]}),
  "hsplit": (np.hsplit(X[:, :2], 2), {"x": X[:, :2]}),
  "imag": X.imag,
  "is_complex": False,
  "is_contiguous": True,
  "is_nonzero": (True, {"x": X[0, :1]}),
  "is_signed": True,
  "is_sparse": False,
  "nanmedian": (np.array([1.0, 3.0]), {"x": GAP}),  # PyTorch's, the lower of two in the middle
  "pin_memory": X,
  "select_scatter": (np.concatenate((X[:, :2], Y[:, :1]), 1), {"y": Y[:, 0]}),
  "slice_scatter": (np.concatenate((X[:, :2], Y[:, :1]), 1), {"y": Y[:, :1]}),
  "stride": [12, 4],
  "to_dense": X,
  "trapz": (X[:, 0] + 2 * X[:, 1] + X[:, 2]) / 2,
  "trapezoid": (X[:, 0] + 2 * X[:, 1] + X[:, 2]) / 2,
  "vander": (np.vander(X[0], 2), {"x": X[0]}),
  "vsplit": np.vsplit(X, 2),
  "absolute": np.absolute(X),
  "H": X.T,
  "adaptive_avg_pool2d": (pooled((3, 5)), {"x": IMAGE}),
  "addcdiv": (X + 2 * Y / (Z + 5), {"z": Z + 5}),
  "addcmul": X + 2 * Y * Z,
  "addmm": (X[:, :2] + Y @ Z.T, {"x": X[:, :2], "z": Z.T}),
  "addmv": (X[:, 0] + Y @ Z[0], {"x": X[:, 0], "z": Z[0]}),
  "adjoint": X.T,
  "affine_grid": (grid_of(THETA), {"x": THETA}),
  "aminmax": [X.min(), X.max()],
  "arccos": (np.arccos(ARCS), {"x": ARCS}),
  "arccosh": (np.arccosh(ARCS + 1.5), {"x": ARCS + 1.5}),
  "arcsin": (np.arcsin(ARCS), {"x": ARCS}),
  "arcsinh": np.arcsinh(X),
  "arctan": np.arctan(X),
  "arctan2": (np.arctan2(X, Y - 1), {"y": Y - 1}),
  "arctanh": (np.arctanh(ARCS), {"x": ARCS}),
  "atan2": (np.arctan2(X, Y - 1), {"y": Y - 1}),
  "avg_pool1d": (CHANNELS.reshape(1, 2, 8, 2).mean(-1), {"x": CHANNELS}),
  "avg_pool3d": (IMAGE.reshape(1, 1, 2, 2, 2, 2, 2).mean((2, 4, 6)).reshape(1, 1, 2, 2), {"x": IMAGE}),
  "baddbmm": (np.stack([X[:, :2] + Y @ Z.T] * 2), {"x": X[:, :2], "y": np.stack([Y] * 2), "z": np.stack([Z.T] * 2)}),
  "binary_cross_entropy": (-np.log([0.25, 0.5, 0.25, 0.125]).mean(), {"x": PART, "y": np.eye(2)}),
  "binary_cross_entropy_with_logits": (np.log1p(np.exp(-PART)).mean(), {"x": PART, "y": np.ones((2, 2))}),
  "bitwise_left_shift": (WHOLE << 1, {"x": WHOLE, "y": np.ones_like(WHOLE)}),
  "bitwise_right_shift": (WHOLE >> 1, {"x": WHOLE, "y": np.ones_like(WHOLE)}),
  "broadcast_to": (np.broadcast_to(X[:1], (2, 3)), {"x": X[:1]}),
  "byte": (np.abs(X).astype(np.uint8), {"x": np.abs(X)}),
  "cdist": np.sqrt(((X[:, None] - Y[None]) ** 2).sum(-1)),
  "char": X.astype(np.int8),
  "conj": X,
  "conv1d": (CHANNELS.sum(1)[:, None, 1:] + CHANNELS.sum(1)[:, None, :-1], {"x": CHANNELS, "y": KERNEL}),
  "conv3d": (IMAGE[None].sum(1, keepdims=True), {"x": IMAGE[None], "y": np.ones((1, 1, 1, 1, 1))}),
  "corrcoef": np.corrcoef(X),
  "cosine_similarity": (X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1),
  "cov": np.cov(X),
  "cross": (np.cross(*VECTORS), dict(zip("xy", VECTORS))),
  "deg2rad": np.deg2rad(X),
  "diag_embed": np.stack([np.diag(row) for row in X]),
  "diagflat": np.diagflat(X),
  "dist": np.linalg.norm(X - Y),
  "embedding": X[INDEX],
  "erfc": np.vectorize(math.erfc)(X),
  "fft": (np.fft.fft(X), {}),
  "fill": np.full_like(X, 2),
  "fix": np.fix(X),
  "fliplr": np.fliplr(X),
  "flipud": np.flipud(X),
  "float_power": (np.float_power(np.abs(X), Y), {"x": np.abs(X)}),
  "fmax": (np.fmax(GAP, Y), {"x": GAP}),
  "fmin": (np.fmin(GAP, Y), {"x": GAP}),
  "ger": np.outer(X, Y),
  "get_device": "CPU",
  "glu": (X[:, :1] / (1 + np.exp(-X[:, 1:2])), {"x": X[:, :2]}),
  "greater_equal": np.greater_equal(X, Y),
  "hardshrink": np.where(np.abs(X) > 2, X, 0),
  "heaviside": np.heaviside(X, Y),
  "huber_loss": huber(X - Y),
  "index_add": (added_columns(Y[:, :2]), {"y": Y[:, :2]}),
  "index_copy": (columns(Y[:, :2]), {"y": Y[:, :2]}),
  "index_fill": columns(2),
  "indices": X.argmax(1),
  "inner": np.inner(X, Y),
  "is_cpu": "CPU",
  "is_cuda": "CPU",
  "is_leaf": None,
  "isin": (np.isin(X, PART), {"y": PART}),
  "isneginf": (np.isneginf(EXTREME), {"x": EXTREME}),
  "isposinf": (np.isposinf(EXTREME), {"x": EXTREME}),
  "itemsize": 4,
  "kl_div": ((PART * np.log(PART / 0.5)).mean(), {"x": np.log(np.full((2, 2), 0.5)), "y": PART}),
  "kron": np.kron(X, Y),
  "kthvalue": np.sort(X, 1)[:, 1],
  "l1_loss": np.abs(X - Y).mean(),
  "layer_norm": (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5),
  "ldexp": X * 2**Y,
  "less_equal": np.less_equal(X, Y),
  "lgamma": (np.vectorize(math.lgamma)(Y), {"x": Y}),
  "logaddexp2": np.logaddexp2(X, Y),
  "logit": (np.log(PART / (1 - PART)), {"x": PART}),
  "mH": X.T,
  "masked_scatter": masked(),
  "matrix_power": (SQUARE @ SQUARE, {"x": SQUARE}),
  "max_pool1d": (CHANNELS[:, :, 1::2], {"x": CHANNELS}),
  "max_pool3d": (IMAGE[:, 1:, 1::2, 1::2], {"x": IMAGE}),
  "mse_loss": ((X - Y) ** 2).mean(),
  "msort": np.sort(X, 0),
  "nanmean": (np.nanmean(GAP, 1), {"x": GAP}),
  "ndimension": 2,
  "nelement": 6,
  "not_equal": np.not_equal(X, Y),
  "pairwise_distance": np.linalg.norm(X - Y + 1e-6, axis=-1),
  "pixel_shuffle": (shuffled(BLOCKS), {"x": BLOCKS}),
  "pixel_unshuffle": (BLOCKS, {"x": shuffled(BLOCKS)}),
  "positive": X,
  "prelu": np.where(X > 0, X, 2 * X),
  "quantile": np.quantile(X, 0.3),
  "rad2deg": np.rad2deg(X),
  "real": X,
  "register_hook": 2 * X,
  "rfft": (np.fft.rfft(X), {}),
  "rms_norm": X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-6),
  "rot90": np.rot90(X),
  "scatter_": (
    np.put_along_axis(scattered := X.copy(), INDICES[:, :1], Y[:, :1], 1) or scattered,
    {"index": INDICES[:, :1], "y": Y[:, :1]},
  ),
  "array_split": np.array_split(X, 2, 1),
  "mode": (np.array([1.0, 2.0]), {"x": np.array([[3.0, 1.0, 3.0, 1.0], [2.0, 2.0, 0.0, 5.0]])}),
  "put": (np.put(filled := X.copy(), INDEX, Y[0, :2]) or filled, {"y": Y[0, :2]}),
  "renorm": X * np.minimum(2 / np.linalg.norm(X, axis=0), 1),
  "tensor_split": np.array_split(X, 2, 1),
  "signbit": np.signbit(X),
  "sinc": np.sinc(X),
  "smooth_l1_loss": huber(X - Y),
  "softshrink": np.sign(X) * np.maximum(np.abs(X) - 2, 0),
  "split_with_sizes": [X[:, :1], X[:, 1:]],
  "take_along_dim": (np.take_along_axis(X, INDICES, 1), {"index": INDICES}),
  "tanhshrink": X - np.tanh(X),
  "tensordot": np.tensordot(X, Y, ([1], [1])),
  "threshold": np.where(X > 2, X, 0),
  "upsample": (np.full((1, 2, 8, 8), 5.0), {"x": np.full((1, 2, 4, 4), 5.0)}),
  "values": X,
  "xlogy": np.where(X == 0, 0, X * np.log(Y)),
  "amax": np.amax(X, 1),
  "amin": np.amin(X, 1),
  "argwhere": np.argwhere(X),
  "astype": X.astype(np.int32),
  "bincount": np.bincount(INDEX, minlength=2),
  "bmm": (np.stack([X @ Y.T] * 2), {"x": np.stack([X] * 2), "y": np.stack([Y.T] * 2)}),
  "block_until_ready": X,
  "bucketize": np.searchsorted(EDGES, X),
  "clamp_max": np.minimum(X, 2),
  "clamp_min": np.maximum(X, 2),
  "copy": X,
  "copy_": Y,
  "count_nonzero": np.count_nonzero(X, 1),
  "cpu": X,
  "cuda": X,
  "diff": np.diff(X),
  "dim": 2,
  "divide": np.divide(X, Y),
  "equal": np.array_equal(X, Y),
  "expand_as": (np.broadcast_to(X[:1], Y.shape), {"x": X[:1]}),
  "expm1": np.expm1(X),
  "fill_": np.full_like(X, 2),
  "floor_divide": np.floor_divide(X, Y),
  "frac": np.modf(X)[0],
  "greater": np.greater(X, Y),
  "hypot": np.hypot(X, Y),
  "index_select": np.take(X, INDEX, 1),
  "less": np.less(X, Y),
  "log1p": (np.log1p(Y), {"x": Y}),
  "logical_and": np.logical_and(X, Y),
  "logical_or": np.logical_or(X, Y),
  "logical_xor": np.logical_xor(X, Y),
  "mT": np.swapaxes(X, -2, -1),
  "median": np.median(X, 1),
  "mm": (X @ Y.T, {"y": Y.T}),
  "moveaxis": np.moveaxis(X, 0, 1),
  "movedim": np.moveaxis(X, 0, 1),
  "multiply": np.multiply(X, Y),
  "mv": (X @ Y[0], {"y": Y[0]}),
  "nan_to_num": (np.nan_to_num(EXTREME), {"x": EXTREME}),
  "nansum": (np.nansum(GAP, 1), {"x": GAP}),
  "narrow": X[:, 1:3],
  "negative": np.negative(X),
  "new_full": np.full((2, 3), 2, np.float32),
  "new_ones": np.ones((2, 3), np.float32),
  "new_tensor": np.array([1, 2], np.float32),
  "new_zeros": np.zeros((2, 3), np.float32),
  "norm": np.linalg.norm(X, axis=1),
  "outer": np.outer(X, Y),
  "ptp": np.ptp(X, 1),
  "ravel": np.ravel(X),
  "remainder": np.remainder(X, Y),
  "reshape_as": X,
  "scatter_add": (added(), {"index": INDICES}),
  "searchsorted": (np.searchsorted(EDGES, X), {"x": EDGES, "y": X}),
  "select": X[:, 2],
  "sgn": np.sign(X),
  "subtract": np.subtract(X, Y),
  "swapaxes": np.swapaxes(X, 0, 1),
  "swapdims": np.swapaxes(X, 0, 1),
  "t": X.T,
  "take": np.take(X, INDEX),
  "take_along_axis": (np.take_along_axis(X, INDICES, 1), {"index": INDICES}),
  "tile": np.tile(X, (2, 1)),
  "trace": (np.trace(X[:, :2]), {"x": X[:, :2]}),
  "true_divide": np.true_divide(X, Y),
  "type": X.astype(np.int32),
  "type_as": X,
  "unbind": list(X.T),
  "unique": np.unique(X),
  "vdot": np.vdot(X, Y),
  "view_as": X,
  "zero_": np.zeros_like(X),
}
NUMPYS = {
  "cholesky": np.linalg.cholesky(SQUARE),
  "det": np.linalg.det(SQUARE),
  "eigh": np.linalg.eigvalsh(SQUARE),
  "histc": np.histogram(SQUARE, 2)[0],
  "inv": np.linalg.inv(SQUARE),
  "inverse": np.linalg.inv(SQUARE),
  "logdet": np.log(np.linalg.det(SQUARE)),
  "lstsq": np.linalg.solve(SQUARE, X.T),
  "pinverse": np.linalg.inv(SQUARE),
  "slogdet": np.log(np.linalg.det(SQUARE)),
  "solve": np.linalg.solve(SQUARE, X.T),
}
# of 0.5, as tables of them have it: psi(1/2) = -gamma - 2 log 2, erf(0.4769362762) = 1/2
SCIPYS = {
  "digamma": (0.5, -1.9635100260),
  "erfinv": (0.5, 0.4769362762),
  "matrix_exp": ([[0.0, 1.0], [0.0, 0.0]], [[1, 1], [0, 1]]),
}
RANDOM = {"normal_", "log_normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_", "gumbel_softmax"}
GRAPH = {"grad_fn", "new_empty", "retain_grad"}  # tested below
ARRAYS = {"x": X, "y": Y, "z": Z, "index": INDEX, "edges": EDGES, "mask": MASK}
OTHERS = {"Tensor": Tensor, "numpy": np, "math": math, "dtypes": dtypes, "dim": 1, "n": 2, "q": 0.3}


def named(other):
  """What a fix may name: tensors, and numbers."""
  names = {k: Tensor(v) for k, v in (ARRAYS | other).items()}
  names["loss"] = names["x"].square().sum() if names["x"].is_floating_point() else None
  return {**names, **OTHERS, "value": 2.0, "dtype": dtypes.int32}


def fix_of(x, name):
  with pytest.raises(AttributeError) as said:
    getattr(x, name)
  rule, fix = str(said.value).split("\n  fix: ")
  assert rule == f"'Tensor' object has no attribute '{name}'" and not hasattr(Tensor, name)
  return fix


def check(got, want):
  if isinstance(got, (list, tuple)):
    for g, w in zip(got, want, strict=True):
      check(g, w)
  elif isinstance(got, str) or got is None:
    assert got == want
  else:
    here = got.numpy() if isinstance(got, Tensor) else got
    np.testing.assert_allclose(here, want, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("name", sorted(FOREIGN_NAMES.keys() - RANDOM - GRAPH))
def test_the_fix_does_what_the_method_does(name):
  want, other = found if isinstance(found := WANT.get(name), tuple) else (found, {})
  names = named(other)
  code = fix_of(names["x"], name).replace('"CUDA"', '"CPU:1"')  # as a machine without a GPU has it
  out = eval(code, names)
  check(out, want)
  if name.endswith("_"):
    np.testing.assert_array_equal(names["x"].numpy(), out.numpy())


@pytest.mark.parametrize("name", sorted(NUMPYS))
def test_what_numpy_computes(name):
  names = named({"x": SQUARE, "y": X.T})
  code = fix_of(names["x"], name)
  assert code.endswith("  # computed by numpy: no gradient flows through it")
  np.testing.assert_allclose(eval(code, names).numpy(), NUMPYS[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(SCIPYS))
def test_what_scipy_computes(name):
  x, want = SCIPYS[name]
  code = fix_of(Tensor(x), name)
  assert code.endswith("  # computed by scipy: no gradient flows through it")
  scipy = pytest.importorskip("scipy", reason="scipy is not installed: pip install scipy")
  known = {"scipy": scipy, "Tensor": Tensor, "x": Tensor(x)}
  np.testing.assert_allclose(eval(code, known).numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_ones(name):
  names = named({"x": np.full((2000,), 0.25, np.float32)})
  code = fix_of(names["x"], name)
  out = eval(code, names)
  values = out.numpy()
  assert (out is names["x"]) == name.endswith("_")
  if name.startswith("bernoulli"):
    assert set(np.unique(values)) == {0, 1} and abs(values.mean() - (0.5 if name.endswith("_") else 0.25)) < 0.05
  else:
    values = np.log(values) if name == "log_normal_" else values
    mean = {"normal_": 0, "log_normal_": 0, "uniform_": 0.5, "exponential_": 1, "gumbel_softmax": 1 / 2000}[name]
    assert abs(values.mean() - mean) < 0.15 and len(np.unique(values)) > 1000


def test_what_is_known_of_the_graph():
  x = Tensor(X)
  assert eval(fix_of(x, "grad_fn"), {"x": x}) is x.uop
  assert eval(fix_of(x, "new_empty"), {"x": x, "Tensor": Tensor}).shape == (2, 3)
  y = x.requires_grad_() * 2
  eval(fix_of(y, "retain_grad"), {"x": y})
  y.square().sum().backward()
  np.testing.assert_allclose(y.grad.numpy(), 4 * X)
  assert eval(fix_of(x, "is_leaf"), {"x": x}) is True


def test_every_name_has_an_oracle():
  assert WANT.keys() | RANDOM | GRAPH == FOREIGN_NAMES.keys()
  assert NUMPYS.keys() | SCIPYS.keys() == BY_NUMPY.keys()


@pytest.mark.parametrize("name", sorted(NO_COUNTERPART))
def test_what_has_no_counterpart_says_so(name):
  assert fix_of(Tensor(X), name) == f"nothing does the same in a line: {NO_COUNTERPART[name]}"


@pytest.mark.parametrize("name", ["log1p", "expm1"])
def test_small_numbers_keep_their_digits(name):
  x = np.array([*(s * 10.0**-e for e in range(18) for s in (1, -0.999)), 0.0, 300.0, np.inf, np.nan])
  x = x if name == "log1p" else np.array([*x, -50.0, -800.0, -np.inf, 1000.0])
  with np.errstate(all="ignore"):
    want = getattr(np, name)(x)
  names = named({"x": x})
  np.testing.assert_allclose(eval(fix_of(names["x"], name), names).numpy(), want, rtol=1e-14)
  small = x[:36]
  plain = np.log(1 + small) if name == "log1p" else np.exp(small) - 1
  assert (np.abs(plain - want[:36]) / np.abs(want[:36])).max() > 0.01  # the short form loses them


# ---------------------------------------------------------------- parameters


def refused(call):
  with pytest.raises(TypeError) as said:
    call()
  rule, fix = str(said.value).split("\n  fix: ")
  return rule, fix


WITH = {
  "n": 1,
  "alpha": 2,
  "axes": (1, 0),
  "dim": 1,
  "size": (2, 3),
  "scale_factor": 2,
  "scale": 0.5,
  "p": 0.0,
  "device": "CPU:1",
}
ON_CLASS = {"normal", "ones", "rand", "randint", "randn", "zeros"}


@pytest.mark.parametrize(
  "name, given", [(n, g) for n, fixes in FOREIGN_PARAMETERS.items() for g in fixes if g[0] != "*"]
)
def test_parameters_of_pytorch(name, given):
  x = Tensor(IMAGE if name == "interpolate" else X)
  names = named({"x": x.numpy()}) | WITH | {"x": x, "loss": x.square().sum()}
  of = Tensor if name in ON_CLASS else names["loss"] if name == "backward" else x
  args = {"interpolate": ((8, 8),), "scaled_dot_product_attention": (x, x)}.get(name, ())
  rule, fix = refused(lambda: getattr(of, name)(*args, **{given: True}))
  assert rule == f"{name}() got an unexpected keyword argument '{given}'"
  out = eval(fix, names)
  match name, given:
    case _, "alpha":
      np.testing.assert_allclose(out.numpy(), X + (2 if name == "add" else -2) * names["y"].numpy(), rtol=1e-6)
    case _, "size":
      assert out.shape == (2, 3)
    case "interpolate", _:
      assert out.shape == (1, 2, 8, 8)
    case "to", "dtype":
      assert out.dtype is dtypes.int32
    case "to", _:
      assert out.device == "CPU:1"
    case _, "out" | "dtype":
      x = X.astype(np.int32) if given == "dtype" else X
      want = getattr(np, name)(x, 1, **({"ddof": 1} if name in ("std", "var") else {}))
      np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)
    case "max" | "min", _:
      want = (getattr(X, name)(1), getattr(X, f"arg{name}")(1))
      assert [t.tolist() for t in out] == [y.tolist() for y in want]
    case "nonzero", _:
      assert [t.tolist() for t in out] == [i.tolist() for i in X.nonzero()]
    case "round", _:
      np.testing.assert_allclose(out.numpy(), X.round(1), rtol=1e-6)
    case "transpose", _:
      np.testing.assert_array_equal(out.numpy(), X.T)
    case "dropout", _:
      np.testing.assert_array_equal(out.numpy(), X)
    case "backward", "retain_graph":
      names["loss"].backward()  # once more
      np.testing.assert_allclose(x.grad.numpy(), 4 * X)
    case "backward", _:
      np.testing.assert_allclose(out[0].sum().gradient(x)[0].numpy(), np.full_like(X, 2))
    case _:
      scores = 0.5 * X @ Y.T
      weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
      np.testing.assert_allclose(out.numpy(), weights @ Z, rtol=1e-5)


@pytest.mark.parametrize("name", ["normal", "randint"])
def test_a_shape_that_comes_last(name):
  rule, fix = refused(lambda: getattr(Tensor, name)(0, 10, (2, 3)))
  assert rule == f"{name}() takes the shape first" and eval(fix, {"Tensor": Tensor}).shape == (2, 3)
  assert getattr(Tensor, name)(2, 3, 4).shape == (2, 3, 4)


def test_a_type_beside_a_device():
  x = Tensor(X)
  rule, fix = refused(lambda: x.to("CPU:1", dtypes.int32))
  out = eval(fix, {"x": x, "device": "CPU:1", "dtype": dtypes.int32})
  assert rule == "to() takes one argument" and (out.device, out.dtype) == ("CPU:1", dtypes.int32)


def test_what_is_put_at_an_index():
  x = Tensor(X)
  for name, of in (("index_put", "y"), ("index_put_", "x")):
    code = fix_of(x, name).removeprefix("nothing does the same in a line: ").partition(";")[0]
    names = {"x": Tensor(X), "index": (0, 1), "value": 7.0}
    exec(code.replace(", and then ", "\n"), names)
    want = X.copy()
    want[0, 1] = 7
    np.testing.assert_array_equal(names[of].numpy(), want)
    np.testing.assert_array_equal(names["x"].numpy(), want if of == "x" else X)


def test_a_slope_by_pytorchs_name():
  np.testing.assert_array_equal(Tensor(X).leaky_relu(negative_slope=0.25).numpy(), np.where(X > 0, X, 0.25 * X))
  with pytest.raises(TypeError, match="leave one of them out"):
    Tensor(X).leaky_relu(neg_slope=0.5, negative_slope=0.25)


def test_a_parameter_that_nobody_has_is_pythons_error():
  with pytest.raises(TypeError, match=r"unexpected keyword argument 'nope'$"):
    Tensor(X).dropout(nope=1)


@pytest.mark.parametrize("mode", ["bilinear", "trilinear"])
def test_linear_of_any_rank(mode):
  with pytest.raises(ValueError, match='is called "linear" for any number of dims\n  fix: mode="linear"'):
    Tensor(IMAGE).interpolate((8, 8), mode=mode)


@pytest.mark.parametrize("name", ["relu_", "add_", "clamp_", "masked_fill_", "tril_", "cumsum_"])
def test_what_works_in_place_is_an_assignment(name):
  with pytest.raises(AttributeError, match=re.escape(f"\n  fix: x.assign(x.{name[:-1]}(...))")):
    getattr(Tensor(X), name)


def test_in_place_by_another_name():
  x = Tensor(X)
  assert eval(fix_of(x, "logit_"), {"x": x}) is x
  names = named({"x": PART})
  eval(fix_of(names["x"], "logit_"), names)
  np.testing.assert_allclose(names["x"].numpy(), np.log(PART / (1 - PART)), rtol=1e-5)


@pytest.mark.parametrize("name", ["sum_", "reshape_", "nothing", "__nothing__"])
def test_other_names_are_what_they_were(name):
  with pytest.raises(AttributeError, match=rf"^'Tensor' object has no attribute '{name}'$") as said:
    getattr(Tensor(X), name)
  assert said.value.name == name and not hasattr(Tensor(X), name)


def test_an_error_within_a_property_is_its_own(monkeypatch):
  monkeypatch.setattr(Tensor, "amax", property(lambda self: self.uop.nothing), raising=False)
  with pytest.raises(AttributeError, match="a UOp has no attribute 'nothing'"):
    Tensor(X).amax  # noqa: B018


def test_what_is_half_made_has_no_endless_search():
  assert not hasattr(Tensor.__new__(Tensor), "nothing")
  with pytest.raises(AttributeError):
    Tensor.__new__(Tensor).uop  # noqa: B018
  assert pickle.loads(pickle.dumps(Tensor(X))).tolist() == X.tolist()


def test_all_dims_where_two_are_taken():
  x = Tensor(IMAGE)
  for call in (lambda: x.transpose(0, 2, 3, 1), lambda: x.transpose((0, 2, 3, 1))):
    rule, fix = refused(call)
    assert rule == "transpose() exchanges two dims"
    np.testing.assert_array_equal(eval(fix, {"x": x}).numpy(), IMAGE.transpose(0, 2, 3, 1))
  assert x.transpose().shape == (2, 1, 4, 4) and x.transpose(2, 1).shape == (1, 4, 2, 4)


def test_an_update_that_leaves_the_tensor_as_it_is():
  x = Tensor(X)
  with pytest.raises(AttributeError, match=r"'at'\n  fix: nothing does the same in a line: y = x.clone\(\)"):
    x.at[0]
  (y := x.clone())[0] = 9  # as the fix says
  assert y[0].tolist() == [9, 9, 9] and x.tolist() == X.tolist()


def give(x):
  x.data = x.detach() * 3.0


def give_product(x):
  x.data *= 3.0


def write_row(x):
  x.data[0] = 3.0


@pytest.mark.parametrize(
  "ask, fix, want",
  [
    (give, "x.assign(y)", Y),
    (give_product, "x.assign(x.detach().mul(y))", X * Y),
    (write_row, "x[index] = value", np.stack([X[0] * 0 + 2, X[1]])),
    (lambda x: x.data.copy_(x), "x.assign(y)", Y),  # a target network's weights
    (lambda x: x.data.clamp_(-1, 1), "x.assign(x.clamp(...))", X.clip(-1, 1)),  # a critic's
    (lambda x: 0.9 * x.data, "x.detach()", X),
    (lambda x: x.data - 1.0, "x.detach()", X),
    (lambda x: x.data[0], "x.detach()", X),
    (lambda x: x.data > 0, "x.detach()", X),
    (lambda x: x.data.shape, "x.detach().shape", (2, 3)),
  ],
)
def test_what_pytorch_does_with_data_is_an_error_with_what_does_it_here(ask, fix, want):
  """There `x.data` is a tensor, which programs write to; here it is a method that gives the memory."""
  x, y = Tensor(X, requires_grad=True), Tensor(Y)
  with pytest.raises((AttributeError, TypeError), match="x.data is no tensor") as e:
    ask(x)
  assert str(e.value).partition("fix: ")[2] == fix
  values = {"x": x, "y": y, "index": 0, "value": 2.0}
  code = fix.replace("...", "-1, 1")
  if " = " in code:
    exec(code, values)
  got = x if " = " in code else eval(code, values)
  check(got, want)
  assert x.data().tolist() == x.tolist()


def test_of_no_tensor_data_is_the_method():
  assert Tensor.data.__name__ == "data" and not hasattr(Tensor(X).data, "no_such")
