"""Hints: what they are, what is refused, and that without a mesh they change nothing."""

import numpy as np
import pytest

from tinygrad import OPEN, Mesh, P, ShardError, Sharding, Tensor, TinyJit, propagate
from tinygrad.device import ShardTypeError, constraint
from tinygrad.sharding import explain

D2 = ("CPU:0", "CPU:1")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_hint_says_of_each_dim_its_axes_and_whether_there_may_be_more():
  hint = constraint(3, P("dp", ("tp", OPEN)), priority=(0, 1, 2), replicated="x", group="kv")
  assert hint.dims == (("dp",), ("tp",), ()) and hint.opened == (False, True, False)
  assert hint.priorities == (0, 1, 2) and hint.replicated == ("x",)
  assert hint == constraint(3, P("dp", ("tp", OPEN), None), (0, 1, 2), ("x",), (), "kv")
  assert constraint(2).opened == (True, True) and constraint(2).spec == P(OPEN, OPEN)


def test_names_become_sub_axes_when_there_is_a_mesh():
  mesh = Mesh([f"CPU:{i}" for i in range(8)], (2, 4), ("dp", "tp"))
  dims, replicated, reduced = constraint(2, P("tp:(2)2", OPEN), replicated="dp", reduced="tp:(1)2").sub_axes(mesh)
  assert dims == ((mesh.sub_axis("tp:(2)2"),), ())
  assert replicated == (mesh.sub_axis("dp"),) and reduced == (mesh.sub_axis("tp:(1)2"),)
  for spec, said in ((P("dp", "pt"), "'pt' is no axis"), (P("dp", "dp:(1)2"), '"?dp"? of .* is used twice')):
    with pytest.raises(ShardError, match=said):
      constraint(2, spec).sub_axes(mesh)
  with pytest.raises(ShardError, match="is used twice"):
    constraint(2, P("dp"), replicated="dp:(1)2").sub_axes(mesh)


@pytest.mark.parametrize(
  "given, said, fix, kind",
  [
    ({"spec": ("dp",)}, "a spec is a P, not ('dp',)", "x.constrain(P('dp'))", ShardTypeError),
    ({"spec": "dp"}, "a spec is a P, not 'dp'", "x.constrain(P('dp'))", ShardTypeError),
    ({"spec": Sharding(D2, 0)}, "a spec is a P, not Sharding(", "x.constrain(P('", ShardTypeError),  # others name it
    ({"spec": 0}, "a spec is a P, not 0", "x.constrain(P('x', OPEN))", ShardTypeError),
    ({"spec": P("d", "d")}, "constrain(P('d', 'd')): an axis is named twice", "x.constrain(P('d', None))", ShardError),
    ({"spec": P(("d", "d", OPEN))}, "an axis is named twice", "x.constrain(P(('d', '?'), None))", ShardError),
    (
      {"spec": P("d", ("e", OPEN)), "replicated": ("d", "f"), "priority": 1},
      "constrain(P('d', ('e', '?')), priority=1, replicated=('d', 'f')): an axis is named twice",
      "x.constrain(P('d', ('e', '?')), priority=1, replicated=('f',))",
      ShardError,
    ),
    ({"reduced": ("d", "d")}, "an axis is named twice", "x.constrain(P('?', '?'), reduced=('d',))", ShardError),
    ({"group": ["kv"]}, "group=['kv'] of type list cannot be told from others", 'group="kv"', ShardTypeError),
    ({"reduced": 5}, "reduced=5: names of mesh axes", 'reduced=("x",)', ShardTypeError),
    ({"spec": P("a", "b", "c")}, "P('a', 'b', 'c') has 3 dims, the tensor 2", "x.constrain(P('a', 'b'))", ShardError),
    ({"spec": P((OPEN, "a"))}, "OPEN stands behind a dim's axes", "('a', '?')", ShardError),
    ({"priority": -1}, "a number from 0 on, or one for each of the 2 dims", "priority=0", ShardError),
    ({"priority": (0, 1, 2)}, "a number from 0 on, or one for each of the 2 dims", "priority=0", ShardError),
    ({"propagate": "up"}, "propagate='up' is none of both, forward, backward, none", 'propagate="both"', ShardError),
    ({"replicated": (3,)}, "replicated=(3,): names of mesh axes", 'replicated=("x",)', ShardTypeError),
  ],
)
def test_what_is_no_hint_is_refused_at_the_users_line(given, said, fix, kind):
  with pytest.raises(kind) as e:
    Tensor(X).constrain(**given)
  assert said in str(e.value) and f"fix: {fix}" in str(e.value) and "test_constrain.py" in str(e.value)


@pytest.mark.parametrize(
  "given, said, fix",
  [
    ({"spec": P("zz")}, "P('zz', None)): 'zz' is no axis of", "x.constrain(P(None, None))"),
    ({"spec": P(("dpp", OPEN))}, "'dpp' is no axis of", "x.constrain(P(('dp', '?'), None))"),
    ({"spec": P("dp", "dp:(1)2")}, "is used twice", "x.constrain(P('dp', None))"),
    (
      {"spec": P("dp", OPEN), "replicated": "dp:(1)2", "priority": 1},
      "constrain(P('dp', '?'), priority=1, replicated=('dp:(1)2',)): ",
      "x.constrain(P('dp', '?'), priority=1)",
    ),
    ({"replicated": ("tp", "q")}, "'q' is no axis of", "x.constrain(P('?', '?'), replicated=('tp',))"),
    ({"reduced": "tpp"}, "'tpp' is no axis of", "x.constrain(P('?', '?'), reduced=('tp',))"),
  ],
)
def test_what_the_mesh_does_not_have_is_refused_in_the_words_of_the_hint_and_the_fix_works(given, said, fix):
  mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("dp", "tp"))
  x = Tensor(X).contiguous().realize()
  hinted = x.constrain(**given)  # here
  with pytest.raises(ShardError) as e:
    propagate(hinted + 1, mesh=mesh)
  rows = str(e.value).splitlines()
  assert said in rows[0] and rows[-1].startswith(f"  fix: {fix}  # ")
  assert any("x.constrain(**given)  # here" in row for row in rows[1:-1])
  fixed = eval(rows[-1].removeprefix("  fix: "), {"x": x, "P": P})
  propagate(fixed + 1, mesh=mesh)
  np.testing.assert_array_equal((fixed + 1).numpy(), X + 1)


def test_without_a_mesh_values_gradients_and_placements_are_as_without_the_hint():
  x = Tensor(X)
  y = (x.constrain(P("dp", OPEN)) * x).constrain(P(OPEN))
  np.testing.assert_array_equal(y.numpy(), X * X)
  np.testing.assert_array_equal(y.sum().gradient(x)[0].numpy(), 2 * X)
  s = Tensor(X).shard(D2, 1)
  assert s.constrain(P("dp")).device is s.device
  summed = s.constrain(P("dp")).sum(1)
  assert summed.uop.device.partial and explain(summed).wire == explain(s.sum(1)).wire
  np.testing.assert_array_equal(summed.numpy(), X.sum(1))


def test_a_hint_is_a_view_of_memory_that_is_written_through_it():
  x = Tensor(X).contiguous().realize()
  hinted = x.constrain(P("dp"))
  hinted.assign(hinted + 1).realize()
  np.testing.assert_array_equal(x.numpy(), X + 1)


def test_a_view_of_memory_with_a_hint_moves_no_more_than_the_view():
  x = Tensor(X).shard(D2, axis=1).realize()
  assert explain(x.flip(1).constrain(P())).wire == explain(x.flip(1)).wire == 0
  assert explain(x.flip(1).constrain(P()) * 2).wire > 0


def test_a_step_on_hinted_arguments_is_captured_apart():
  @TinyJit
  def step(x):
    return (x + 1).realize()

  for hint in (P("dp"), P("dp", OPEN)) * 3:
    given = Tensor(X).shard(D2).realize().constrain(hint)
    np.testing.assert_array_equal(step(given).numpy(), X + 1)
  assert len(step.states) == 2


def test_placements_refuse_an_open_dim():
  with pytest.raises(ShardError, match="'\\?' is no axis"):
    Sharding(Mesh(D2, names=("dp",)), P(OPEN))
