"""Each pass of `localize` alone: a graph in, a graph out, with what it is there for gone, and the rest as it was."""

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.debug.report import as_realized
from tinygrad.device import Mesh, P
from tinygrad.sharding import localize
from tinygrad.sharding.index_maps import is_remap
from tinygrad.sharding.local_forms import LocalForms
from tinygrad.sharding.localize import COMPLETE, fold_host_copies, run_passes
from tinygrad.sharding.lower_to_local import lower_to_local
from tinygrad.sharding.view_assigns import lower_view_assigns
from tinygrad.uop import GroupOp, Ops

MESH = Mesh(tuple(f"CPU:{i}" for i in range(4)), (4,), ("d",))


def ops(sink):
  return [u.op for u in sink.toposort()]


def from_host():
  return as_realized([Tensor(np.arange(8.0)).to("CPU:1").shard(MESH, P("d")).uop])


def into_a_part():
  """The effect of a write into rows 1 to 6 of 8, of which each device has two."""
  x = Tensor.zeros(8, 3).contiguous().shard(MESH, P("d")).realize()
  x[1:7] = Tensor.ones(6, 3).shard(MESH).realize()
  return as_realized([x.uop])


def plain():
  return as_realized([(Tensor.empty(8, 4).shard(MESH, P("d")).realize() * 2).sum(1).uop])


def test_each_device_reads_its_part_of_the_host():
  sink = from_host()
  moves = [u for u in sink.toposort() if u.op is Ops.MOVE]
  assert any(u.src[0].op is Ops.MOVE for u in moves)
  (move,) = [u for u in fold_host_copies(sink).toposort() if u.op is Ops.MOVE]
  assert move.src[0].device == "NPY" and move.device == moves[-1].device


def test_a_write_into_a_part_of_a_cut_dim_is_one_of_the_whole():
  x = Tensor.zeros(8, 3).contiguous().shard(MESH, P("d")).realize()
  rows = x.uop.shrink(((1, 7), (0, 3)))
  value = Tensor.ones(6, 3).shard(MESH).realize().uop
  write = rows.assign(value)
  assert any(map(is_remap, write.toposort()))
  lowered = lower_view_assigns(as_realized([write]))
  (assign,) = [u for u in lowered.toposort() if u.op is Ops.ASSIGN]
  assert assign.src[0] is x.uop and assign.shape == (8, 3)


@pytest.mark.parametrize("program", [from_host, into_a_part, plain])
def test_all_passes_leave_no_move_and_no_placement(program):
  local = lower_to_local(run_passes(COMPLETE, program()))
  assert Ops.MOVE not in ops(local) and Ops.SHARD in ops(local)
  assert not any(map(is_remap, local.toposort()))
  assert localize.localize(program()).op is Ops.SINK


def test_passes_with_nothing_to_do_give_the_graph_itself():
  sink = plain()
  for lower in COMPLETE.values():
    assert lower(sink) is sink


def test_an_elementwise_op_is_itself_on_parts_of_its_sources():
  sink = plain()
  (u,) = [u for u in sink.toposort() if u.op is Ops.MUL]
  assert u.op in GroupOp.Elementwise
  rule = LocalForms(sink.toposort()).of(u, u.device)
  assert rule.shape == (2, 4) and rule.arg is None
