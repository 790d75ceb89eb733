"""The cards are complete by construction, and what they say of one op agrees with itself."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.ops import custom, elementwise, kernel, movement, placement, reduce
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.cards import CARDS, Card, define

F = dtypes.float32


def test_every_op_has_a_card():
  assert [op for op in Ops if op not in CARDS] == []


def test_a_card_with_a_field_left_out_is_refused():
  fields = {f.name: None for f in dataclasses.fields(Card)}
  for name in fields:
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
      Card(**{k: v for k, v in fields.items() if k != name})


def definitions():
  """(module, call): every card's, as it is written."""
  for module in (custom, elementwise, kernel, movement, placement, reduce):
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    for node in (n for statement in body if not isinstance(statement, ast.FunctionDef) for n in ast.walk(statement)):
      name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
      if name == "Card" or name.startswith("define_"):
        yield pytest.param(module, node, id=ast.unparse(node)[:30])


@pytest.mark.parametrize("module, call", [*definitions()])
def test_each_field_of_each_card_is_missed(module, call):
  """A definition without it raises where it stands: at import."""
  assert call.keywords
  for field in call.keywords:
    others = [k for k in call.keywords if k is not field]
    without = ast.Expression(ast.Call(call.func, call.args, others))
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{field.arg}'"):
      eval(compile(ast.fix_missing_locations(without), module.__file__, "eval"), vars(module))


def test_an_op_has_one_card():
  with pytest.raises(ValueError, match="has a card already"):
    define(Ops.ADD, CARDS[Ops.ADD])


def x(*shape):
  return UOp.buffer(shape, F, "CPU")


MOVEMENT = [
  x(4, 6).reshape((2, 12)),
  x(4, 6).permute((1, 0)),
  x(1, 6).expand((4, 6)),
  x(4, 6).pad(((1, 0), (0, 2)), 3.0),
  x(4, 6).shrink(((1, 3), (0, 6))),
  x(4, 6).flip((1,)),
  UOp.cat([x(2, 6), x(3, 6)], 0),
  x(9, 3).window(0, 1, 2, 1, 4),
  x(4, 3).spread(0, 1, 2, 1, 9),
  x(4, 6).r(Ops.ADD, (1,)),
  x(5, 3).gather(UOp.buffer((2, 2), dtypes.int32, "CPU")),
  x(2, 4, 3).scatter(UOp.buffer((2, 4), dtypes.int32, "CPU"), 5, Ops.ADD),
  x(2, 4, 3).scatter(UOp.buffer((2, 4), dtypes.int32, "CPU"), 5, Ops.MAX, batch=1),
]


@pytest.mark.parametrize("u", MOVEMENT, ids=lambda u: u.op.name)
def test_shape_evaluate_and_factors_agree(u):
  card = CARDS[u.op]
  rng = np.random.default_rng(0)
  xs = [rng.integers(0, 4, s.shape).astype("int32" if s.dtype is dtypes.int32 else "float32") for s in u.src]
  assert card.evaluate(u, xs, u.shape).shape == u.shape
  f = card.factors(u)
  assert [len(dims) for dims in f.src] == [s.ndim for s in u.src] and len(f.out) == u.ndim
  if u.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND):
    for dim, n in zip(f.out, u.shape, strict=True):
      assert np.prod([f.sizes[i] for i in dim], dtype=int) == n


def adjoint_pairs():
  return [u for u in MOVEMENT if u.op in GroupOp.Movement and u.op is not Ops.PAD and len(u.src) == 1] + [
    x(4, 6).pad(((1, 0), (0, 2)))
  ]


@pytest.mark.parametrize("u", adjoint_pairs(), ids=lambda u: u.op.name)
def test_gradients_of_movement_are_adjoints(u):
  """<A x, g> = <x, A^T g> for integer-valued x and g: exact."""
  rng = np.random.default_rng(1)
  (source,) = u.src
  a, g = rng.integers(-4, 5, source.shape).astype("float32"), rng.integers(-4, 5, u.shape).astype("float32")
  leaf = UOp.buffer(u.shape, F, "CPU")
  (back,) = CARDS[u.op].gradient(leaf, u)

  def run(v, env):
    if v in env:
      return env[v]
    return CARDS[v.op].evaluate(v, [run(s, env) for s in v.src], v.shape)

  forward = run(u, {source: a})
  assert float((forward * g).sum()) == float((a * run(back, {leaf: g, source: a})).sum())


def test_window_against_its_definition():
  u = x(9, 3).window(0, 1, 2, 1, 4)
  a = np.arange(27, dtype="float32").reshape(9, 3)
  got = CARDS[u.op].evaluate(u, [a], u.shape)
  assert got.tolist() == [[a[o * 2 + k, k] for k in range(3)] for o in range(4)]


def index(*shape):
  return UOp.buffer(shape, dtypes.int32, "CPU")


@pytest.mark.parametrize(
  "source, places, op, batch, error, message",
  [
    (x(4, 3), index(3), Ops.ADD, 0, ValueError, r"scatter of \[4, 3\] by \[3\]: the updates begin with the dims of"),
    (x(4, 3), index(4), Ops.ADD, 2, ValueError, "the updates begin with the dims of the index"),
    (x(4, 3), index(4), Ops.SUB, 0, TypeError, "Ops.SUB is no reduction; use one of"),
    (x(4, 3), x(4), Ops.ADD, 0, TypeError, "by dtypes.float.*: the index must be an integer"),
  ],
)
def test_a_scatter_of_what_does_not_fit_is_refused(source, places, op, batch, error, message):
  with Context(SPEC=1):  # 2 refuses it here
    u = UOp.new(Ops.SCATTER, F, (places, source), (op, 5, batch))
  with pytest.raises(error, match=message):
    CARDS[Ops.SCATTER].dtype(u)
    CARDS[Ops.SCATTER].shape(u)


def test_a_one_hot_is_of_indices():
  with Context(SPEC=1):
    u = UOp.new(Ops.ONE_HOT, F, (UOp.const(F, 1.0),) * 3, Ops.ADD)
  with pytest.raises(TypeError, match="ONE_HOT of"):
    CARDS[Ops.ONE_HOT].dtype(u)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN])
@pytest.mark.parametrize("batch", [0, 1])
def test_scatter_reduces_as_a_loop_does(op, batch):
  rng = np.random.default_rng(0)
  at, values = rng.integers(-1, 4, (2, 6)), rng.integers(1, 5, (2, 6, 3)).astype(np.float32)
  u = x(2, 6, 3).scatter(index(2, 6), 3, op, batch)
  none = {Ops.ADD: 0.0, Ops.MUL: 1.0, Ops.MAX: -np.inf, Ops.MIN: np.inf}[op]
  want = np.full(u.shape, none, np.float32)
  function = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum}[op]
  for b, k in np.ndindex(2, 6):
    if 0 <= at[b, k] < 3:
      row = (b, at[b, k]) if batch else (at[b, k],)
      want[row] = function(want[row], values[b, k])
  np.testing.assert_array_equal(CARDS[Ops.SCATTER].evaluate(u, [at, values], u.shape), want)
