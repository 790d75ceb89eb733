"""Bytes on the wire, against what XLA's partitioner moves for the same programs (test/data/collectives.json, measured
with JAX; see its origin). The programs are those of extra/collectives.py."""

import json

import numpy as np
import pytest

from extra import collectives
from tinygrad import P, Sharding, Tensor
from tinygrad.helpers import DEFER
from tinygrad.sharding import explain
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

CASES = {c["case"]: c for c in json.loads(collectives.DATA.read_text())["cases"]}
# reduced at once, a reduction cannot wait for the smaller tensor that is to come; the gradient of a lookup in a cut
# table reduces the looked-up rows under both
MORE_THAN_ENOUGH = {"k3"} if DEFER.value else {"d", "d2", "k3"}


def test_every_case_has_a_program():
  assert set(CASES) == set(collectives.PROGRAMS)


@pytest.mark.parametrize("name", CASES)
def test_no_more_bytes_than_xla_and_no_more_than_enough(name):
  moved = collectives.count(name)
  assert moved.wire <= CASES[name]["xla_wire"], moved
  if name not in MORE_THAN_ENOUGH:
    assert moved.wire <= CASES[name]["enough_wire"], moved


def test_the_table_is_printed_and_its_verdict_is_the_status(capsys, tmp_path):
  fewer = [c for c in CASES.values() if c["enough_wire"] < c["xla_wire"]]
  reached = len(fewer) - len(MORE_THAN_ENOUGH)
  assert collectives.main([]) == (0 if reached >= collectives.ENOUGH else 1)
  assert f"{len(CASES)} of {len(CASES)} move at most XLA's bytes" in capsys.readouterr().out
  less = {"cases": [{**CASES["g7"], "xla_wire": 28671}]}
  (tmp_path / "less.json").write_text(json.dumps(less))
  assert collectives.main([str(tmp_path / "less.json")]) == 1
  assert "MORE THAN XLA" in capsys.readouterr().out


def test_the_table_can_fail():
  """A weight cut the wrong way round moves more than the case allows."""
  leaf = collectives.leaf
  wrong = collectives.mlp(leaf(64, 256), leaf(256, 1024, cut=("x",)), leaf(1024, 256, cut=(None, "x")))
  assert explain(wrong).wire > CASES["a"]["xla_wire"]


def test_a_reduction_that_is_read_at_a_cut_is_scattered():
  cut = Sharding(collectives.LINE, P("x"))
  assert [m.kind for m in explain(collectives.product().to(cut))] == ["reduce_scatter"]
  both = collectives.product()
  assert [m.kind for m in explain(both, both.to(cut))] == ["all_reduce"]  # it is needed whole


@pytest.mark.parametrize("tokens, wire", [(P(), 0), (P("x"), 7 / 8 * 16 * 6 * 4)])
def test_the_gradient_of_a_lookup_comes_cut_as_its_table(tokens, wire):
  """Each device scatters into its own rows what all have; of tokens that are cut, into all rows, whose sums meet."""
  rows, at = Sharding(collectives.LINE, P("x")), Sharding(collectives.LINE, tokens)
  rng = np.random.default_rng(0)
  table, index, weight = (rng.integers(0, 12, shape).astype(np.int32) for shape in ((16, 6), (8,), (8, 6)))
  t = Tensor(table.astype(np.float32)).shard(rows).realize()
  i, w = (Tensor(x).shard(at).realize() for x in (index, weight.astype(np.float32)))
  g = (t[i] * w).sum().gradient(t)[0]
  moved = explain(g)
  assert g.device == rows and moved.wire == wire, moved


def test_each_device_scatters_into_its_own_rows():
  rows, whole = (Sharding(collectives.LINE, p) for p in (P("x"), P()))
  t, i, w = (
    Tensor.empty(*shape).shard(at).realize() for shape, at in (((13, 6), rows), ((8,), whole), ((8, 6), whole))
  )
  g = (t[i.int()] * w).sum().gradient(t)[0]
  (u,) = (u for u in localize(UOp.sink(g.uop)).toposort() if u.op is Ops.SCATTER)
  assert u.max_shape == (2, 6)  # of 13 rows on eight devices


def test_elements_of_ones_own_rows_by_index_move_nothing():
  """The other dims of what is picked from are those of the index: no device needs another's rows, nor has its gradient
  anything for them."""
  devices = ("CPU:0", "CPU:1")
  x = Tensor(np.arange(48, dtype=np.float32).reshape(6, 8)).shard(devices, axis=0).realize()
  index = Tensor(np.arange(-12, 12).reshape(6, 4) % 13 - 5).shard(devices, axis=0).realize()
  picked = x.gather(1, index)
  (slope,) = (picked * picked).sum().gradient(x)
  assert explain(picked).wire == explain(slope).wire == 0
  assert explain(x.flatten()[index]).wire > 0  # of places in all of it, each device has some
  np.testing.assert_array_equal(picked.numpy(), np.take_along_axis(x.numpy(), index.numpy() % 8, 1))
