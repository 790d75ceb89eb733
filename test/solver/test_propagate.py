"""Hints in, placements out: values, placements and bytes of programs whose inputs are annotated and whose weights are
not."""

import numpy as np
import pytest

from tinygrad import OPEN, Mesh, P, ShardError, Sharding, Tensor, custom_op, propagate
from tinygrad.device import ShardTypeError
from tinygrad.sharding import explain

D4 = tuple(f"CPU:{i}" for i in range(4))
M1, M2 = Mesh(D4, names=("x",)), Mesh(D4, (2, 2), ("dp", "tp"))
RNG = np.random.default_rng(0)


def at(mesh, *spec):
  return Sharding(mesh, P(*spec))


def whole(*shape):
  """Small whole numbers, on one device, and the same as an array of doubles."""
  array = RNG.integers(-3, 4, shape).astype(np.float32)
  return Tensor(array).realize(), array


def equal(t, want):
  np.testing.assert_array_equal(t.numpy(), want)


# ---------------------------------------------------------------- the examples of the seeds, by hints alone


def test_data_parallel():
  (x, a), (w, b) = whole(8, 16), whole(16, 32)
  y = x.constrain(P("dp")) @ w
  propagate(y, mesh=M2)
  assert x.device == at(M2, "dp") and w.device == at(M2) and y.device == at(M2, "dp")
  assert not explain(y).rows
  equal(y, a @ b)


def test_tensor_parallel_by_columns():
  (x, a), (w, b) = whole(8, 16), whole(16, 32)
  y = (x @ w).constrain(P(None, "tp"))
  propagate(y, mesh=M2)
  assert x.device == at(M2) and w.device == at(M2, None, "tp") and y.device == at(M2, None, "tp")
  assert not explain(y).rows
  equal(y, a @ b)


def test_tensor_parallel_by_rows_owes_one_all_reduce():
  (x, a), (w1, b), (w2, c) = whole(8, 16), whole(16, 32), whole(32, 16)
  h = (x @ w1).relu().constrain(P(None, "tp"))
  y = h @ w2
  propagate(y, mesh=M2)
  assert w1.device == at(M2, None, "tp") and w2.device == at(M2, "tp") and y.device == at(M2)
  (row,) = explain(y).rows
  assert (row.kind, row.axes, row.payload) == ("all_reduce", ("tp",), 8 * 16 * 4)
  equal(y, (a @ b).clip(0) @ c)


def test_data_and_tensor_parallel_together():
  (x, a), (w1, b), (w2, c) = whole(8, 16), whole(16, 32), whole(32, 16)
  y = (x.constrain(P("dp", OPEN)) @ w1).relu().constrain(P(OPEN, "tp")) @ w2
  propagate(y, mesh=M2)
  assert [t.device for t in (x, w1, w2, y)] == [at(M2, "dp"), at(M2, None, "tp"), at(M2, "tp"), at(M2, "dp")]
  (row,) = explain(y).rows
  assert (row.kind, row.axes, row.payload) == ("all_reduce", ("tp",), 4 * 16 * 4)
  equal(y, (a @ b).clip(0) @ c)


# ---------------------------------------------------------------- backward, and what follows what


def test_a_cut_that_is_asked_for_at_the_end_reaches_the_work_before_it():
  (x, a), (w1, b), (w2, c) = whole(8, 16), whole(16, 32), whole(32, 16)
  y = ((x @ w1).relu() @ w2).shard(M1, P("x"))
  propagate(y, mesh=M1)
  assert x.device == at(M1, "x") and w1.device == at(M1) and w2.device == at(M1)
  assert not explain(y).rows
  equal(y, (a @ b).clip(0) @ c)


def test_gradients_and_the_optimizers_state_follow_the_weights():
  (x, a), (w, b) = whole(8, 16), whole(16, 32)
  w.requires_grad = True
  m = Tensor.zeros(16, 32).contiguous().realize()
  h = (x @ w).constrain(P("dp", "tp"))
  h.sum().backward()
  m.assign(m * 0.5 + w.grad)
  w.assign(w - m)
  propagate(w, m, h, mesh=M2)
  assert w.device == m.device == w.grad.device == at(M2, None, "tp")
  w.realize(m)
  g = a.T @ np.ones((8, 32), np.float32)
  equal(m, g)
  equal(w, b - g)
  assert w.device == m.device == at(M2, None, "tp")


def test_a_sum_of_a_product_that_is_cut_where_it_is_summed_owes_one_reduction():
  """Not one for the product and one for the sum of it."""
  (x, a), (w, b) = whole(8, 16), whole(16, 8)
  total = (x.constrain(P(None, "x")) @ w).sum()
  propagate(total, mesh=M1)
  assert w.device == at(M1, "x")
  (row,) = explain(total).rows
  assert (row.kind, row.payload) == ("all_reduce", 4)
  equal(total, (a @ b).sum())


def test_the_backward_pass_of_a_cut_product_is_cut():
  """Columns: the gradient of the weight needs nothing, that of the input one reduction. Nobody holds a whole weight."""
  (x, a), (w, b) = whole(8, 16), whole(16, 8)
  y = (x @ w).constrain(P(None, "x"))
  gx, gw = (y * y).sum().gradient(x, w)
  propagate(y, gx, gw, mesh=M1)
  assert w.device == gw.device == at(M1, None, "x")
  assert [(row.kind, row.payload) for row in explain(gx, gw).rows] == [("all_reduce", 8 * 16 * 4)]
  equal(gw, a.T @ (2 * (a @ b)))
  equal(gx, 2 * (a @ b) @ b.T)


def test_a_custom_op_takes_part_by_its_rule():
  product = custom_op(lambda x, y: x @ y, rule="b m k, b k n -> b m n")
  (x, a), (w, b) = whole(4, 8, 8), whole(4, 8, 8)
  y = product(x, w).constrain(P("dp", OPEN, "tp"))
  propagate(y, mesh=M2)
  assert x.device == at(M2, "dp") and w.device == at(M2, "dp", None, "tp") and not explain(y).rows
  equal(y, a @ b)


def test_nothing_said_nothing_is_cut():
  (x, a), (w, b) = whole(4, 4), whole(4, 4)
  y = x @ w
  propagate(y, mesh=M2)
  assert x.device == w.device == y.device == at(M2)
  equal(y, a @ b)


def test_a_higher_priority_far_away_comes_before_a_lower_one_close_by():
  (x, a), (w, b) = whole(8, 8), whole(8, 8)
  h = x.constrain(P("x"), priority=1)
  for _ in range(4):
    h = h + 1
  y = (h * w).constrain(P(OPEN, OPEN))
  z = (y + 1).constrain(P(None, "x"), priority=0)
  propagate(z, mesh=M1)
  assert w.device == y.device == z.device == at(M1, None, "x") and x.device == at(M1, "x")
  equal(z, (a + 4) * b + 1)


def test_an_axis_that_is_replicated_cuts_nothing_there():
  (x, a), (w, b) = whole(8, 8), whole(8, 8)
  h = (x.constrain(P("dp", OPEN)) + w).constrain(P(OPEN, OPEN), replicated=("dp",))
  propagate(h, mesh=M2)
  assert x.device == at(M2, "dp") and h.device == at(M2)
  equal(h, a + b)


def test_sub_axes_and_dims_that_are_split_and_joined():
  mesh = Mesh([f"CPU:{i}" for i in range(8)], names=("x",))
  x, a = whole(32, 2)
  y = x.constrain(P("x")).reshape(4, 16).sum(1)
  z = x.reshape(64)
  propagate(y, z, mesh=mesh)
  assert x.device == at(mesh, "x") and y.device == at(mesh, "x:(1)4") and z.device == at(mesh, "x")
  equal(y, a.reshape(4, 16).sum(1))
  equal(z, a.reshape(64))


def test_a_group_is_placed_alike():
  (x, a), (k, b), (v, c) = whole(8, 8), whole(8, 8), whole(8, 8)
  y = (x.constrain(P("dp")) + k.constrain(group="kv")).sum()
  z = v.constrain(group="kv").sum()
  propagate(y, z, mesh=M2)
  assert k.device == v.device == at(M2, "dp")
  equal(z, c.sum())
  equal(y, (a + b).sum())


def test_a_barrier_stops_cuts():
  for way, placed in (("both", "dp"), ("backward", "dp"), ("forward", None), ("none", None)):
    (x, a), (w, b) = whole(8, 8), whole(8, 8)
    y = x.constrain(propagate=way) + w.constrain(P("dp", OPEN))
    propagate(y, mesh=M2)
    assert x.device == at(M2, placed), way
    equal(y, a + b)


def test_a_sum_that_is_reduced_here_is_not_put_off():
  (x, a), (w, b) = whole(8, 8), whole(8, 8)
  for reduced, partial in (((), True), (("tp",), False)):
    y = (x.constrain(P(None, "tp")) @ w).constrain(reduced=reduced)
    propagate(y, mesh=M2)
    assert bool(y.uop.device.partial) == partial
    equal(y, a @ b)


def test_views_of_memory_stay_views():
  x, a = whole(8, 8)
  v = x[2:4]
  y = x.constrain(P("dp")) + 1
  propagate(y, mesh=M2)
  x.assign(x * 0).realize()
  equal(v, np.zeros((2, 8)))
  equal(y, a + 1)


def test_a_placement_that_the_user_has_given_stays():
  (x, a), (w, b) = whole(8, 16), whole(16, 8)
  w = w.shard(M2, P("tp")).realize()
  y = x @ w
  propagate(y, mesh=M2)
  assert w.device == at(M2, "tp") and x.device == at(M2, None, "tp") and y.device == at(M2)
  equal(y, a @ b)


def test_what_is_sent_to_one_device_stays_there():
  x, a = whole(8, 8)
  y = (x.constrain(P("dp")) + 1).sum(1).to("CPU:3")
  z = y * 2
  propagate(z, mesh=M2)
  assert y.device == z.device == "CPU:3" and x.device == at(M2, "dp")
  equal(z, (a + 1).sum(1) * 2)


def test_host_data_goes_where_it_is_used():
  a = RNG.integers(0, 9, (8, 4)).astype(np.float32)
  x = Tensor(a)
  y = x.constrain(P("dp")) + 1
  propagate(y, mesh=M2)
  assert x.device == y.device == at(M2, "dp")
  equal(y, a + 1)


def test_what_cannot_be_is_said_with_the_hints_line():
  x, _ = whole(8, 8)
  hinted = x.constrain(P("pd"))  # here
  with pytest.raises(ShardError, match=r"constrain\(P\('pd', None\)\): 'pd' is no axis(.|\n)*P\(\"pd\"\)\)  # here"):
    propagate(hinted + 1, mesh=M2)
  with pytest.raises(ShardTypeError, match="propagate: mesh=None is no Mesh(.|\n)*fix: "):
    propagate(x, mesh=None)
  one, two = x.constrain(P("dp"), group=1), (x + 1).constrain(P(None, "dp"), group=1)
  with pytest.raises(
    ShardError, match=r"hints that disagree: P\('dp', None\) and P\(None, 'dp'\)(.|\n)*group=1\) in (.|\n)*fix: "
  ):
    propagate(one, two, mesh=M2)


# ---------------------------------------------------------------- why


def test_a_hint_on_what_the_user_has_put_elsewhere_is_told():
  """(Mutant seen: it was said to be at any device.)"""
  there = Mesh(("CPU:2", "CPU:3"), names=("d",))
  z = whole(4, 8)[0].shard(there, P("d")).exp().constrain(P(None, "d"))
  said = str(propagate(z, mesh=Mesh(("CPU:0", "CPU:1"), names=("d",))))
  assert 'at CPU:2-3, dim 0 over "d", where the user has put it: a hint on this mesh is nothing to it' in said
  assert z.device.spec == P("d")


def test_each_cut_is_explained_by_a_hint_its_line_and_the_ops_between():
  (x, _), (w1, _), (w2, _) = whole(8, 16), whole(16, 32), whole(32, 16)
  x = x.constrain(P("dp", OPEN))  # rows
  h = (x @ w1).relu().constrain(P(OPEN, "tp"))  # hidden
  y = h @ w2
  said = propagate(y, mesh=M2)
  (first,) = said.why(w2)
  assert first.dim == 0 and first.line.endswith("# hidden") and [u.op.name for u in first.via] == ["REDUCE"]
  (second,) = said.why(y)
  assert second.dim == 0 and second.line.endswith("# rows") and len(second.via) > 2
  text = str(said)
  assert "dim 0: constrain(P('?', 'tp')) in test_propagate.py:" in text
  assert "by way of contraction" in text and 'at CPU:0-3, dim 0 over "dp", dim 1 over "tp"' in text
  assert said.why(whole(2, 2)[0]) == []


def test_the_moves_are_explained_by_the_users_lines():
  (x, _), (w1, _), (w2, _) = whole(8, 16), whole(16, 32), whole(32, 16)
  h = (x.constrain(P("dp", OPEN)) @ w1).constrain(P(OPEN, "tp"))
  y = h @ w2
  propagate(y, mesh=M2)
  (row,) = explain(y).rows
  assert "test_propagate.py" in row.where and row.axes == ("tp",)


def test_placements_have_the_names_of_the_mesh_they_were_decided_on():
  x, _ = whole(8, 8)
  other = Mesh(D4, (2, 2), ("a", "b"))
  Sharding(other, P("a"))
  y = x.constrain(P("dp"))
  propagate(y + 1, mesh=M2)
  assert x.device.spec == P("dp") and x.device.mesh is M2


def test_a_constant_with_a_hint_is_made_where_that_wants_it():
  x = Tensor.ones(8, 8).constrain(P("dp"))
  y = x + 1
  propagate(y, mesh=M2)
  assert x.device == y.device == at(M2, "dp")
  equal(y, np.full((8, 8), 2.0))
  with M2:
    assert Tensor.zeros(8, 8).constrain(P(None, "tp")).realize().device == at(M2, None, "tp")


def test_on_a_mesh_of_one_device_everything_goes_there():
  x, a = whole(4, 4)
  y = x.constrain(P("x")) + 1
  propagate(y, mesh=Mesh(("CPU:1",), names=("x",)))
  assert x.device == y.device == "CPU:1"
  equal(y, a + 1)


def test_what_was_placed_by_the_user_stays_when_a_second_propagation_comes():
  """Even where nothing had to move for it."""
  x, a = whole(8, 8)
  y = (x + 1).shard(M2, P("dp"))
  propagate(y, mesh=M2)
  assert x.device == y.device == at(M2, "dp")
  w, b = whole(8, 8)
  z = w.shard(M2, P()).realize() * 2
  y = z.shard(M2, P("dp"))
  propagate(y, mesh=M2)
  propagate(y, mesh=M2)
  assert y.device == at(M2, "dp")
  equal(y, b * 2)


def test_values_of_a_group_have_as_many_dims():
  x, y = whole(8, 8)[0].constrain(group="g"), whole(8)[0].constrain(group="g")
  with pytest.raises(ShardError, match=r"one group differ in their number of dims: \[8, 8\] and \[8\]"):
    propagate(x, y, mesh=M2)


def test_placing_again_changes_nothing():
  """A move that was made for a hint is no placement of the user's; a constant with a hint, and a product whose moves
  are implied, are seen as before."""
  (x, a), (w, b) = whole(8, 8), whole(8, 8)
  ones = Tensor.ones(8, 8).constrain(P("dp", "tp"))
  hinted = (x.constrain(P(None, "dp"), propagate="none") @ x.T).constrain(P("tp"), propagate="backward")
  y = ((hinted @ w) - ones * 2).T
  want = ((a @ a.T) @ b - 2).T
  propagate(y, mesh=M2)
  once = [t.device for t in (x, w, hinted, y)]
  propagate(y, mesh=M2)
  assert [t.device for t in (x, w, hinted, y)] == once
  equal(y, want)
