"""Deciding and building are two things: the map says where each node is and what all moves cost; the graph that is
built from it holds that."""

import pytest

from tinygrad import Tensor, dtypes
from tinygrad.debug.report import as_realized
from tinygrad.device import Mesh, P
from tinygrad.helpers import Context
from tinygrad.sharding import cast_sinking
from tinygrad.sharding.place import Placer, bytes_of, place
from tinygrad.sharding.placements import Placements, build_placed
from tinygrad.uop import Ops

MESH = Mesh(tuple(f"NULL:{i}" for i in range(4)), (4,), ("d",))
HALF = dtypes.bfloat16


def leaf(*shape, spec, dtype=dtypes.float32):
  return Tensor.empty(*shape, dtype=dtype).shard(MESH, P(*spec)).realize()


def halves():
  """A sum that is kept in halves: what is partial is float32."""
  return leaf(512, 64, spec=(None, "d"), dtype=HALF) @ leaf(64, 256, spec=("d",), dtype=HALF)


PROGRAMS = {
  "two sums": lambda: leaf(64, 8, spec=(None, "d")) @ leaf(8, 32, spec=("d",)) + leaf(64, 32, spec=(None, "d")).sum(0),
  "a sum of halves": halves,
  "halves that are cut": lambda: halves().shard(MESH, P("d")),
  "nothing partial": lambda: leaf(64, 8, spec=("d",)) + 1,
}


@pytest.mark.parametrize("defer", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_built_costs_what_the_map_says(name, defer):
  with Context(DEFER=defer):
    placements = place(as_realized([PROGRAMS[name]().uop]))
    assert placements.nbytes == bytes_of(build_placed(placements).toposort())


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_node_is_where_the_map_says(name):
  placements = place(as_realized([PROGRAMS[name]().uop]))
  before = {(u.op, u.dtype, u.shape, placements[u]) for u in placements.order if u.op is not Ops.MOVE}
  after = {(u.op, u.dtype, u.shape, u.device) for u in build_placed(placements).toposort() if u.op is not Ops.MOVE}
  sunk = {(u.op, u.dtype, u.shape) for way in placements.casts.values() for u in way.links}
  assert {x for x in after - before if x[:3] not in sunk} == set()


def test_the_placer_fills_a_map_and_builds_nothing():
  order = as_realized([PROGRAMS["two sums"]().uop]).toposort()
  decided = Placer(order).run()
  assert isinstance(decided, Placements) and all(u in decided.runs or u in decided.dropped for u in order)
  built = build_placed(decided)
  assert decided[order[-1]] == built.device


def test_a_sunk_cast_is_priced(monkeypatch):
  sink = as_realized([halves().uop])
  placements = place(sink)
  (cast,) = placements.casts.values()
  assert cast.saved == 512 * 256 * 3 / 4 * (2 * 4 - 4 - 2)
  monkeypatch.setattr(cast_sinking, "LARGE", 1 << 60)
  assert place(sink).nbytes == placements.nbytes + cast.saved
