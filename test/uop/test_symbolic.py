"""Simplification of integer expressions: equal to the plain evaluation for every value of the variables, and within
the bounds.
"""

import itertools
import random

import numpy as np
import pytest

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp, symbolic

BINARY = {
  Ops.ADD: lambda a, b: a + b,
  Ops.SUB: lambda a, b: a - b,
  Ops.MUL: lambda a, b: a * b,
  Ops.IDIV: lambda a, b: a // b,
  Ops.MOD: lambda a, b: a % b,
  Ops.MAX: max,
  Ops.MIN: min,
  Ops.CMPLT: lambda a, b: a < b,
  Ops.CMPEQ: lambda a, b: a == b,
  Ops.CMPNE: lambda a, b: a != b,
  Ops.AND: lambda a, b: a and b,
  Ops.OR: lambda a, b: a or b,
}
COMPARISONS = [Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE]


def evaluate(u, env):
  if u.op is Ops.CONST:
    return u.arg
  if u in env:
    return env[u]
  xs = [evaluate(s, env) for s in u.src]
  if u.op is Ops.WHERE:
    return xs[1] if xs[0] else xs[2]
  if u.op is Ops.NOT:
    return not xs[0]
  return -xs[0] if u.op is Ops.NEG else BINARY[u.op](*xs)


def raw(op, *src):
  """A node that is not simplified."""
  boolean = op in (*COMPARISONS, Ops.AND, Ops.OR, Ops.NOT)
  return UOp.new(op, dtypes.bool if boolean else dtypes.index, src)


def random_condition(rng, atoms, depth):
  c = raw(rng.choice(COMPARISONS), *(random_expression(rng, atoms, depth) for _ in range(2)))
  if rng.random() < 0.3:
    c = raw(rng.choice([Ops.AND, Ops.OR]), c, random_condition(rng, atoms, depth))
  return raw(Ops.NOT, c) if rng.random() < 0.2 else c


def random_expression(rng, atoms, depth):
  if depth == 0:
    return rng.choice(atoms) if rng.random() < 0.75 else symbolic.index(rng.randint(-12, 20))
  op = rng.choice([Ops.ADD, Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.NEG, Ops.WHERE])
  x = random_expression(rng, atoms, depth - 1)
  if op is Ops.NEG:
    return raw(op, x)
  if op is Ops.WHERE:
    return raw(op, random_condition(rng, atoms, 1), x, random_expression(rng, atoms, depth - 1))
  if op in (Ops.IDIV, Ops.MOD) and rng.random() < 0.2:  # by what is no constant, and never 0
    by = random_expression(rng, atoms, 1)
    return raw(op, x, raw(Ops.WHERE, raw(Ops.CMPEQ, by, symbolic.index(0)), symbolic.index(5), by))
  if op in (Ops.IDIV, Ops.MOD, Ops.MUL):
    return raw(op, x, symbolic.index(rng.choice([1, 2, 3, 4, 6, 8, 12])))
  return raw(op, x, random_expression(rng, atoms, depth - 1))


@pytest.mark.parametrize("seed", range(600))
def test_simplify_keeps_the_value_and_bounds_hold(seed):
  rng = random.Random(seed)
  sizes = [rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(3)]
  atoms = [UOp.new(Ops.RANGE, dtypes.index, (symbolic.index(n),), (i, AxisKind.LOOP)) for i, n in enumerate(sizes)]
  u = random_expression(rng, atoms, rng.randint(1, 4))
  if rng.random() < 0.3:
    u = raw(rng.choice(COMPARISONS), u, random_expression(rng, atoms, 1))
  v = symbolic.simplify(u)
  for values in itertools.product(*map(range, sizes)):
    env = dict(zip(atoms, values, strict=True))
    want = evaluate(u, env)
    assert evaluate(v, env) == want, f"{u} -> {v} at {values}"
    assert u.vmin <= want <= u.vmax and v.vmin <= want <= v.vmax


def test_flattened_indices_come_apart_again():
  n, c, h, w = (
    UOp.new(Ops.RANGE, dtypes.index, (symbolic.index(k),), (i, AxisKind.LOOP)) for i, k in enumerate((2, 3, 5, 7))
  )
  flat = n * 105 + c * 35 + h * 7 + w
  assert flat % 7 is w and flat // 7 % 5 is h and flat // 35 % 3 is c and flat // 105 is n
  assert (flat // 35) * 35 + flat % 35 is symbolic.simplify(flat)


def test_equal_sums_are_one_node():
  a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
  assert (a + b) * 3 - b is b * 2 + a * 3
  assert (a * 4 + 3) // 4 is a


def test_a_wrong_division_rule_would_show():
  """x//m must not drop a remainder that reaches m: the mutant (g*y + s)//(g*n) -> y//n without 0 <= s < g differs."""
  a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
  u = (a * 4 + b) // 8
  wrong = (a // 2).vmax
  assert evaluate(u, {a: 1, b: 9}) == 1 != 1 // 2 and wrong == 4


def test_the_bounds_of_an_unsigned_index_hold_what_it_wraps_to():
  """An index is signed, so that the greatest values of uint64 are negative ones: `0 <= row` is not known to hold.
  (Mutant: a cast keeps the bounds of what is cast.)"""
  memory = UOp.new(Ops.PARAM, dtypes.uint64, (), ParamArg(0, 4))
  row = UOp.new(Ops.LOAD, memory.dtype, (UOp.new(Ops.INDEX, memory.dtype, (memory, UOp.const(dtypes.index, 0))),))
  row = row.cast(dtypes.index)
  assert row.vmin <= np.array([2**64 - 1], np.uint64).astype(np.int64).item() <= row.vmax
  narrow = UOp.variable("n", 0, 2**32 - 1, dtypes.uint32).cast(dtypes.index)
  assert (narrow.vmin, narrow.vmax) == (0, 2**32 - 1)


FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]


@pytest.mark.parametrize("wide", [*FLOATS, dtypes.int32])
@pytest.mark.parametrize("kind", [*FLOATS[:3], dtypes.int32, dtypes.int8])
def test_a_cast_back_is_the_value_where_no_value_is_lost(kind, wide):
  """The oracle: numpy's casts of every pattern of 16 bits, or of many of 32."""
  bits = np.arange(1 << 16, dtype=np.uint32) * (1 if kind.itemsize < 4 else 65539)
  x = bits.astype({1: np.uint8, 2: np.uint16, 4: np.uint32}[kind.itemsize]).view(to_numpy_dtype(kind))
  with np.errstate(all="ignore"):
    back = x.astype(to_numpy_dtype(wide)).astype(x.dtype)
    kept = bool(((back == x) | ((back != back) & (x != x))).all())
  memory = UOp.new(Ops.PARAM, kind, (), ParamArg(0, 4))
  u = UOp.new(Ops.LOAD, kind, (UOp.new(Ops.INDEX, kind, (memory, UOp.const(dtypes.index, 1))),))
  found = symbolic.simplify(UOp.new(Ops.CAST, kind, (UOp.new(Ops.CAST, wide, (u,)),)))
  assert kept or found is not u
  assert (found is u) == (kind is wide or (kept and dtypes.is_float(kind) and dtypes.is_float(wide)))
