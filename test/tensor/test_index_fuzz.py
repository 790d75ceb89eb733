"""Reads, writes and gradients through random indices, beside numpy's own."""

import numpy as np
import pytest

from tinygrad import Context, Tensor


def random_index(rng, shape):
  """(integers for numpy, the rest of the index for it, the whole index for a Tensor): integers, slices of any step,
  None, an ellipsis, integer arrays that broadcast together, masks of one or more dims. An integer is a view here, as
  in PyTorch, also beside arrays, where numpy counts it as one of them."""
  first: list = [slice(None)] * len(shape)
  theirs, ours = [], []
  length = int(rng.integers(1, 4))  # of the arrays
  dim, dots = 0, False

  def put(a, b=None):
    theirs.append(a)
    ours.append(a if b is None else b)

  while dim < len(shape):
    n = shape[dim]
    kind = rng.choice(
      ["int", "slice", "none", "dots", "array", "list", "mask"], p=[0.15, 0.3, 0.1, 0.1, 0.2, 0.05, 0.1]
    )
    if kind == "int" and n:
      first[dim] = int(rng.integers(-n, n))
      ours.append(first[dim])
    elif kind == "slice":
      ends = [None if rng.random() < 0.3 else int(rng.integers(-n - 1, n + 2)) for _ in range(2)]
      put(slice(*ends, int(rng.choice([-3, -2, -1, 1, 1, 1, 2, 3]))))
    elif kind == "none":
      put(None)
      continue
    elif kind == "dots" and not dots:
      put(Ellipsis)
      dots, dim = True, dim + int(rng.integers(0, len(shape) - dim + 1))
      continue
    elif kind == "array" and n:
      x = rng.integers(-n, n, [(length,), (1,), (2, length), (2, 1), ()][rng.integers(5)])
      put(x, Tensor(x.astype(rng.choice(["int32", "int64"]))) if rng.random() < 0.7 or not x.ndim else x)
    elif kind == "list" and n:
      put([int(i) for i in rng.integers(-n, n, length)])
    elif kind == "mask":
      rank = int(rng.integers(1, len(shape) - dim + 1))
      m = np.zeros(shape[dim : dim + rank], bool)
      m.reshape(-1)[rng.permutation(m.size)[:length]] = True
      if m.sum() != length:
        continue
      put(m, Tensor(m) if rng.random() < 0.7 else m)
      dim += rank - 1
    else:
      continue
    dim += 1
    if not dots and rng.random() < 0.15:
      break
  if not dots and rng.random() < 0.2:
    put(Ellipsis)
  return (*first, Ellipsis), tuple(theirs), tuple(ours)


@pytest.mark.parametrize("seed", range(8))
def test_reads_writes_and_gradients_are_numpys(seed):
  rng = np.random.default_rng(seed)
  with Context(INTERPRET=int(seed > 0)):  # the first compiled
    for _ in range(25):
      shape = tuple(int(n) for n in rng.integers(0, 5, rng.integers(1, 4)))
      x = rng.integers(-9, 9, shape).astype(np.float32)
      first, theirs, ours = random_index(rng, shape)
      note = f"x{list(shape)}[{ours}]"
      want = x[first][theirs]
      t = Tensor(x)
      got = t[ours]
      assert got.shape == want.shape, f"{note}: {got.shape}, numpy's {want.shape}"
      np.testing.assert_array_equal(got.numpy(), want, note)
      if want.size:
        w = rng.integers(-3, 4, want.shape).astype(np.float32)
        grad = np.zeros_like(x)
        np.add.at(grad[first], theirs, w)
        np.testing.assert_array_equal((t[ours] * Tensor(w)).sum().gradient(t)[0].numpy(), grad, note)
      dims = list(want.shape)
      for i in range(len(dims)):  # what broadcasts to the indexed shape
        dims[i] = 1 if rng.random() < 0.3 else dims[i]
      v = rng.integers(10, 99, dims[int(rng.integers(0, len(dims) + 1)) :]).astype(np.float32)
      y, u = x.copy(), Tensor(x).contiguous()
      if rng.random() < 0.5:
        u.realize()
      y[first][theirs] = v
      u[ours] = Tensor(v) if rng.random() < 0.7 else v
      np.testing.assert_array_equal(u.numpy(), y, f"{note} = {v}")
