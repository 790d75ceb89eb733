"""Methods of PyTorch and NumPy that are called otherwise here: the error's fix does what they do."""

import pickle
import re

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.mixin.foreign_names import FOREIGN_NAMES

X = np.array([[0.5, -1.25, 2.0], [3.0, 0.0, -0.75]], np.float32)
Y = np.array([[1.5, 0.25, 2.0], [0.5, 2.0, 4.0]], np.float32)
INDEX, EDGES = np.array([1, 0]), np.array([-1.0, 0.25, 2.0], np.float32)
GAP = np.array([[1, np.nan, 2], [3, 4, np.nan]], np.float32)
INDICES = np.array([[0, 2, 2], [1, 1, 0]])


def added():
  out = X.copy()
  for (i, j), k in np.ndenumerate(INDICES):
    out[i, k] += Y[i, j]
  return out


# by name what NumPy gives, and what is otherwise than above
WANT = {
  "absolute": np.absolute(X),
  "addcmul": X + 2 * Y * Y,
  "addmm": (X[:, :2] + Y @ Y.T, {"x": X[:, :2]}),
  "amax": np.amax(X, 1),
  "amin": np.amin(X, 1),
  "argwhere": np.argwhere(X),
  "astype": X.astype(np.int32),
  "bincount": np.bincount(INDEX, minlength=2),
  "bmm": (np.stack([X @ Y.T] * 2), {"x": np.stack([X] * 2), "y": np.stack([Y] * 2)}),
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
  "mm": X @ Y.T,
  "moveaxis": np.moveaxis(X, 0, 1),
  "movedim": np.moveaxis(X, 0, 1),
  "multiply": np.multiply(X, Y),
  "mv": X @ Y[0],
  "nan_to_num": (np.nan_to_num(GAP), {"x": GAP}),
  "nansum": (np.nansum(GAP, 1), {"x": GAP}),
  "narrow": X[:, 1:3],
  "negative": np.negative(X),
  "new_full": np.full((2, 3), 2, np.float32),
  "new_ones": np.ones((2, 3), np.float32),
  "new_tensor": np.array([1, 2], np.float32),
  "new_zeros": np.zeros((2, 3), np.float32),
  "norm": np.linalg.norm(X),
  "outer": np.outer(X, Y),
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
RANDOM = {"normal_", "uniform_"}


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_the_fix_does_what_the_method_does(name):
  want, other = found if isinstance(found := WANT.get(name), tuple) else (found, {})
  arrays = {"x": X, "y": Y, "index": INDEX, "edges": EDGES, **other}
  names = {k: Tensor(v) for k, v in arrays.items()}
  with pytest.raises(AttributeError) as said:
    getattr(names["x"], name)
  rule, fix = str(said.value).split("\n  fix: ")
  assert rule == f"'Tensor' object has no attribute '{name}'" and not hasattr(Tensor, name)
  code = fix.replace('"CUDA"', '"CPU:1"')  # as a machine without a GPU has it
  out = eval(code, {**names, "Tensor": Tensor, "numpy": np, "dim": 1, "n": 2, "value": 2.0, "dtype": dtypes.int32})
  if name in RANDOM:
    assert out is names["x"] and not np.array_equal(out.numpy(), X)
  else:
    here = [t.numpy() for t in out] if isinstance(out, list) else out.numpy() if isinstance(out, Tensor) else out
    np.testing.assert_allclose(here, want, rtol=1e-6, atol=1e-7)
  if name.endswith("_"):
    np.testing.assert_array_equal(names["x"].numpy(), out.numpy())


def test_every_name_has_an_oracle():
  assert WANT.keys() | RANDOM == FOREIGN_NAMES.keys()


@pytest.mark.parametrize("name", ["relu_", "add_", "clamp_", "sigmoid_", "masked_fill_"])
def test_what_works_in_place_is_an_assignment(name):
  with pytest.raises(AttributeError, match=re.escape(f"\n  fix: x.assign(x.{name[:-1]}(...))")):
    getattr(Tensor(X), name)


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
