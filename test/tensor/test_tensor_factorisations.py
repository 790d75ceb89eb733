"""What QR and SVD promise of their factors, beyond the values of the op table."""

import numpy as np
import pytest

from tinygrad import Tensor

D2 = ("CPU:0", "CPU:1")
MATRICES = {
  "tall": np.random.default_rng(0).standard_normal((5, 3)),
  "wide": np.random.default_rng(1).standard_normal((3, 5)),
  "batch": np.random.default_rng(2).standard_normal((2, 4, 4)),
  "one rank": np.ones((6, 4)),
  "zeros": np.zeros((3, 3)),
  "tiny": np.random.default_rng(3).standard_normal((3, 3)) * 1e-30,
  "column": np.array([[3.0], [-4.0]]),
  "none": np.zeros((3, 0)),
}


def orthogonal(q):
  np.testing.assert_allclose(
    q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape[:-2] + (q.shape[-1],) * 2), atol=1e-5
  )


@pytest.mark.parametrize("name", MATRICES)
def test_factors_are_orthogonal_and_multiply_to_the_matrix(name):
  x = MATRICES[name].astype(np.float32)
  size = max(np.abs(x).max(initial=0), 1e-38)
  q, r = (t.numpy() for t in Tensor(x).qr())
  orthogonal(q)
  np.testing.assert_allclose(q @ (r / size), x / size, atol=1e-5)
  assert q.shape[-2:] == (x.shape[-2],) * 2 and r.shape == x.shape and not np.tril(r, -1).any()
  u, s, v = (t.numpy() for t in Tensor(x).svd())
  k = min(x.shape[-2:])
  orthogonal(u)
  orthogonal(v)
  assert u.shape[-1] == x.shape[-2] and v.shape[-1] == x.shape[-1] and (s >= 0).all() and (np.diff(s) <= 0).all()
  np.testing.assert_allclose((u[..., :k] * (s / size)[..., None, :]) @ v[..., :k, :], x / size, atol=1e-5)
  thin = [t.shape for t in Tensor(x).svd(full_matrices=False)]
  assert thin == [(*x.shape[:-1], k), (*x.shape[:-2], k), (*x.shape[:-2], k, x.shape[-1])]


def test_a_cut_matrix_has_the_same_factors():
  x = MATRICES["tall"][:, :2].astype(np.float32)
  q, r = Tensor(x).shard(D2, 1).qr()
  np.testing.assert_allclose(q.numpy() @ r.numpy(), x, atol=1e-5)
  np.testing.assert_allclose(Tensor(x).shard(D2, 0).svd()[1].numpy(), np.linalg.svd(x)[1], atol=1e-5)
