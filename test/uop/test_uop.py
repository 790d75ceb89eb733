"""Nodes: interning, exact constants, graphs deeper than the stack, rewriting."""

import gc
import math
import pickle

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop import AxisKind, Move, Ops, ParamArg, UOp, map_arg, print_graph
from tinygrad.uop.node import _table
from tinygrad.uop.rewrite import on_sources, rebuild, rewrite, substitute, substitute_free
from tinygrad.uop.spec import SpecError, check_graph

F = dtypes.float32


def test_equal_nodes_are_the_same_object():
  x = UOp.buffer((3,), F, "CPU")
  assert x.alu(Ops.ADD, x) is x.alu(Ops.ADD, x)
  assert UOp.const(F, 1.0) is UOp.const(F, 1) and UOp.const(dtypes.int32, 1) is not UOp.const(dtypes.bool, True)


def test_constants_are_told_apart_by_their_bits():
  assert UOp.const(F, 0.0) is not UOp.const(F, -0.0)
  assert UOp.const(F, math.nan) is UOp.const(F, math.nan)
  for value in (-math.nan, math.nan):  # of one sign, whichever has come first: code does not depend on it
    assert math.copysign(1, UOp.const(F, value).arg) == 1
  x = UOp.buffer((3,), F, "CPU")
  assert x.pad([(1, 1)], 0.0) is not x.pad([(1, 1)], -0.0)


def test_nodes_die_with_their_last_user():
  x = UOp.buffer((3,), F, "CPU")
  y = x * 3.25
  before = len(_table)
  del y
  gc.collect()
  assert len(_table) < before


def test_graphs_deeper_than_the_stack():
  u = x = UOp.buffer((2,), F, "CPU")
  for _ in range(20_000):
    u = UOp.new(Ops.NEG, F, (u,))
  assert u.shape == (2,) and u.device == "CPU" and len(u.toposort()) == 20_001
  flip = {Ops.NEG: lambda u: u.src[0].src[0] if u.src[0].op is Ops.NEG else None}
  assert rewrite(u, flip) is x


def test_substitute_reaches_symbolic_dims():
  n, m = UOp.variable("n", 1, 8), UOp.variable("m", 1, 8)
  x = UOp.buffer((8,), F, "CPU").shrink([(0, n)]) * 2.0
  y = substitute(x, {n: m})
  assert y.shape == (m,) and substitute(x, {n: UOp.const(dtypes.index, 3)}).shape == (3,)
  assert map_arg((1, (n, 2)), lambda v: m) == (1, (m, 2))


def doubled(u, times):
  """A graph of 2**times paths."""
  for _ in range(times):
    u = UOp.new(Ops.ADD, u.dtype, (u, u))
  return u


def test_every_rewrite_is_linear_in_nodes():
  x, y = (UOp.buffer((2,), F, "CPU") for _ in range(2))
  calls = []

  def make(u, src):
    calls.append(u)
    return y if u is x else on_sources(u, src)

  want = doubled(y, 60)
  assert rebuild(doubled(x, 60), make) is want and len(calls) == 61
  assert substitute(doubled(x, 60), {x: y}) is substitute_free(doubled(x, 60), {x: y}) is want
  sub = {Ops.SUB: lambda u: UOp.new(Ops.ADD, u.dtype, u.src)}
  for _ in range(60):
    x = UOp.new(Ops.SUB, F, (x, x))
  assert rewrite(x, sub).op is Ops.ADD and len(rewrite(x, sub).toposort()) == 61


def test_what_is_cut_or_known_is_not_looked_below():
  x, y = (UOp.buffer((2,), F, "CPU") for _ in range(2))
  inner = x.alu(Ops.EXP)
  outer = inner.alu(Ops.ADD, inner.alu(Ops.NEG))
  seen = []

  def make(u, src):
    seen.append(u.op)
    return on_sources(u, src)

  memo = {}
  assert rebuild(outer, make, memo, lambda u: y if u is inner else None) is y.alu(Ops.ADD, y.alu(Ops.NEG))
  assert seen == [Ops.NEG, Ops.ADD] and memo[inner] is y
  assert rebuild(outer, make, memo) is memo[outer] and len(seen) == 2
  assert rebuild(outer, make) is outer  # nothing changed: the same object


def test_a_fold_binds_its_ranges():
  """sum over r of (r + s) + r: the r inside of the FOLD is its own, s and the r beside it are free."""
  r, s, t = (UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 4),), (i, AxisKind.REDUCE)) for i in range(3))
  fold = lambda x, r=r: UOp.new(Ops.FOLD, dtypes.index, (x, r), Ops.ADD)  # noqa: E731
  u = fold(r.alu(Ops.ADD, s)).alu(Ops.ADD, r)
  one, two = (UOp.const(dtypes.index, n) for n in (1, 2))
  assert substitute_free(u, {r: one, s: two}).simplified is fold(r.alu(Ops.ADD, two)).alu(Ops.ADD, one)
  assert substitute(u, {r: t}).simplified is fold(t.alu(Ops.ADD, s), t).alu(Ops.ADD, t)  # the loop itself is another
  assert substitute_free(u, {r: one, s: two}, lambda v: v.op is Ops.FOLD).simplified is fold(r.alu(Ops.ADD, s)).alu(
    Ops.ADD, one
  )


def test_pickle_keeps_identity():
  x = UOp.const(F, 2.5)
  assert pickle.loads(pickle.dumps(x)) is x


def test_spec_2_checks_every_node_at_creation():
  a, b = UOp.const(F, 1.0), UOp.const(dtypes.int32, 1)
  with Context(SPEC=2), pytest.raises(SpecError, match="ADD"):
    UOp.new(Ops.ADD, F, (a, b), "wrong dtypes")
  with Context(SPEC=2), pytest.raises(SpecError, match="number of elements differs"):
    UOp.new(Ops.RESHAPE, F, (UOp.buffer((4,), F, "CPU"),), (5,))


def test_a_stage_refuses_foreign_ops():
  with Context(SPEC=1), pytest.raises(SpecError, match="IOTA in a kernel"):
    check_graph(UOp.iota(4), "kernel")


def test_a_move_is_no_op_of_the_local_view_nor_a_shard_of_the_global_one():
  x = UOp.buffer((4,), F, "CPU")
  moved = UOp.new(Ops.MOVE, F, (x,), Move("CPU:1", True))
  shard = UOp.new(Ops.SHARD, F, (x,), (4,))
  with Context(SPEC=2):
    check_graph(moved, "tensor"), check_graph(shard, "local")
    with pytest.raises(SpecError, match="MOVE in the local view"):
      check_graph(moved, "local")
    with pytest.raises(SpecError, match="SHARD in the global view"):
      check_graph(shard, "tensor")


def test_a_buffer_knows_the_users_line():
  x, y = (
    UOp.buffer((4,), F, "CPU"),
    UOp.buffer((4,), F, "CPU"),
  )
  file, line = x.origin
  assert file == __file__ and y.origin == (file, line + 1)
  assert UOp.buffer((4,), F, "CPU", origin=("elsewhere.py", 7)).origin == ("elsewhere.py", 7)


def test_a_kernel_has_loops_conditions_and_alternatives_where_they_belong():
  """Each rule of kernels, broken once."""
  memory = UOp.new(Ops.PARAM, F, (), ParamArg(0, 8))
  zero, yes = UOp.const(dtypes.index, 0), UOp.const(dtypes.bool, True)

  def at(*offsets):
    return UOp.new(Ops.INDEX, F, (memory, *offsets))

  value = UOp.new(Ops.LOAD, F, (at(zero),))
  sound = UOp.new(Ops.LOAD, F, (at(zero, yes), UOp.const(F, 0.0)))
  check_graph(UOp.sink(UOp.new(Ops.STORE, dtypes.void, (at(zero), sound))), "kernel")
  for fault, u in {
    "INDEX by": at(UOp.const(dtypes.int32, 0)),
    "without an alternative": UOp.new(Ops.LOAD, F, (at(zero, yes),)),
    "over nothing": UOp.new(Ops.FOLD, F, (value,), Ops.ADD),
    "a STORE over": UOp.new(Ops.STORE, dtypes.void, (at(zero), value, zero)),
  }.items():
    with Context(SPEC=1), pytest.raises(SpecError, match=fault):
      check_graph(u, "kernel")
    with Context(SPEC=0):
      check_graph(u, "kernel")


def test_printing_names_every_node():
  text = print_graph(UOp.buffer((3,), F, "CPU") + 1.0)
  assert "BUFFER" in text and "float32[3]" in text and "ADD" in text


def test_variables_hold_their_bounds():
  n = UOp.variable("n", 1, 8)
  with pytest.raises(ValueError, match=r"n = 9 is outside its bounds \[1, 8\]"):
    n.bind(9)
  for lo, hi in ((3, 2), (1.5, 8), (1, "8")):
    with pytest.raises(ValueError, match="(?s)Variable.*lower bound is above.*fix: "):
      UOp.variable("n", lo, hi)
  for value in (2.5, "2", None):  # 2.5 was 2
    with pytest.raises(ValueError, match=rf"(?s)n = {value} is outside its bounds \[1, 8\], or no integer.*fix: "):
      n.bind(value)
  assert n.bind(np.int64(2)) is n.bind(2)


def test_a_variable_of_a_type_that_holds_its_bounds():
  for dtype in (dtypes.int32, "int8", dtypes.uint8, dtypes.index):
    assert UOp.variable("i", 1, 9, dtype=dtype) is UOp.variable("i", 1, 9)
  with pytest.raises(ValueError, match=r"int8 does not hold its bounds(.|\n)*fix: "):
    UOp.variable("i", 1, 300, "int8")
  with pytest.raises(ValueError, match="uint8 does not hold"):
    UOp.variable("i", -1, 3, "uint8")
  with pytest.raises(TypeError, match=r"an integer, not dtypes.float32(.|\n)*fix: "):
    UOp.variable("i", 1, 3, dtypes.float32)


def test_variables_and_tensors_on_either_side():
  n, t, x = UOp.variable("i", 1, 9).bind(3), Tensor([1, 2, 7]), np.array([1, 2, 7])
  for f in (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: a < b,
    lambda a, b: a > b,
    lambda a, b: a <= b,
    lambda a, b: a >= b,
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a & b,
    lambda a, b: a | b,
    lambda a, b: a ^ b,
  ):
    np.testing.assert_allclose(f(n, t).numpy(), f(3, x), rtol=1e-6)
    np.testing.assert_allclose(f(t, n).numpy(), f(x, 3), rtol=1e-6)
