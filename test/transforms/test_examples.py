"""The examples of `shard_map`, against the model in one place: values, gradients, and what travels."""

from pathlib import Path

import numpy as np
import pytest

from examples import experts, pipeline, ring_attention
from tinygrad import Mesh, P, Tensor, TinyJit, shard_map
from tinygrad.debug.report import report
from tinygrad.uop import UOp

EXAMPLES = Path(__file__).parents[2] / "examples"
rng = np.random.default_rng(0)
DEVICES = tuple(f"CPU:{i}" for i in range(4))


def random(*shape, scale=1.0):
  return Tensor((rng.normal(size=shape) * scale).astype(np.float32)).realize()


def moves(*ts):
  rows = report(UOp.sink(*[t.uop for t in ts])).rows
  return {kind: sum(r.wire for r in rows if r.kind == kind) for kind in {r.kind for r in rows} - {"copy"}}


def same(parallel, plain, mesh, specs, out, given):
  """Values and gradients by all that are given agree; what was computed in parallel."""
  placed = [t.shard(mesh, s).realize() for t, s in zip(given, specs)]
  f = shard_map(parallel, mesh, tuple(specs), out)
  y, want = f(*placed), plain(*given)
  np.testing.assert_allclose(y.numpy(), want.numpy(), rtol=2e-4, atol=2e-5)
  weights = random(*want.shape)
  found = (f(*placed) * weights.shard(mesh, out)).sum().gradient(*placed)
  for g, w, t in zip(found, (plain(*given) * weights).sum().gradient(*given), placed):
    assert g.device == t.device
    np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=2e-3, atol=2e-4)
  jitted = TinyJit(f)
  for _ in range(3):
    np.testing.assert_allclose(jitted(*placed).numpy(), want.numpy(), rtol=2e-4, atol=2e-5)
  return f(*placed)


def test_ring_attention():
  spec = P(None, None, "sp")
  given = [random(2, 3, 32, 8) for _ in range(3)]
  mesh = Mesh(DEVICES, names=("sp",))
  y = same(ring_attention.ring_attention, ring_attention.attention, mesh, [spec] * 3, spec, given)
  block = 2 * 3 * 8 * 8 * 4
  assert moves(y) == {"permute": 2 * 3 * block}  # keys and values, to three other devices


def test_pipeline():
  given = [random(4, 8, 8, scale=0.3), random(6, 2, 8)]
  y = same(pipeline.pipeline, pipeline.model, Mesh(DEVICES, names=("pp",)), [P("pp"), P()], P(), given)
  ticks, activation = 6 + 4 - 1, 2 * 8 * 4
  assert moves(y)["permute"] == (ticks - 1) * activation  # what the last tick hands on nobody reads


def test_experts():
  given = [random(32, 8), random(8, 8), random(8, 8, 16, scale=0.3), random(8, 16, 8, scale=0.3)]
  specs, mesh = [P("ep"), P(), P("ep"), P("ep")], Mesh(DEVICES, names=("ep",))
  y = same(experts.parallel_mixture(capacity=8), experts.mixture, mesh, specs, P("ep"), given)
  boxes = 8 * 8 * 8 * 4  # of one device: experts, capacity, width
  assert moves(y) == {"all_to_all": 2 * boxes * 3 / 4}


@pytest.mark.parametrize("name", ["ring_attention", "pipeline", "experts"])
def test_an_example_is_short(name):
  assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80
