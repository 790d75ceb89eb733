"""Custom ops with a sharding rule: values, placements and bytes are those of the ops they stand for, and what a
rule says wrongly is refused."""

import functools

import numpy as np
import pytest

from tinygrad import (
  Context,
  Mesh,
  Ops,
  P,
  ShardError,
  Sharding,
  Tensor,
  TinyJit,
  Variable,
  custom_op,
  dtypes,
  function,
  propagate,
)
from tinygrad.sharding import explain

D4 = ("CPU:1", "CPU:2", "CPU:3", "CPU:4")
GRID = Mesh(D4, (2, 2), ("x", "y"))
matmul = custom_op(lambda x, w: x @ w, rule="m k, k n -> m n")
double = custom_op(lambda x: x * 2, rule="m k -> m k")


def integers(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def put(a: np.ndarray, *dims) -> Tensor:
  return Tensor(a).shard(GRID, P(*dims)).realize()


A, W = integers(0, 8, 12), integers(1, 12, 4)
PLACED = (
  (("x", "y"), ("y",), "all_reduce"),
  (("x",), (None, "y"), None),
  ((("x", "y"),), (), None),
  ((None, ("x", "y")), (("x", "y"),), "all_reduce"),
  (("x", "y"), ("x", "y"), None),
  ((), (), None),
)


@pytest.mark.parametrize("where, there, kind", PLACED)
def test_a_matmul_of_ones_own_is_the_matmul(where, there, kind):
  x, w = put(A, *where), put(W, *there)
  y, like = matmul(x, w), x @ w
  assert y.device == like.device or where == there, "of two ways that move nothing more, either"
  np.testing.assert_array_equal(y.numpy(), A @ W)
  assert explain(matmul(x, w)).wire <= explain(x @ w).wire
  if kind:
    assert [r.kind for r in explain(y)] == [kind] and y.uop.partial
  for mine, theirs in zip((y * y).sum().gradient(x, w), (like * like).sum().gradient(x, w), strict=True):
    assert mine.device == theirs.device
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_gradients_run_on_parts():
  x, w = put(A, "x"), put(W, None, "y")
  assert [r.kind for r in explain(*matmul(x, w).sum().gradient(x, w))] == ["all_reduce"] * 2


def test_explain_names_it():
  def product(x, w):
    return x @ w

  (row,) = explain(custom_op(product, rule="m k, k n -> m n")(put(A, None, "x"), put(W, "x")))
  assert row.why.startswith("product over a cut dim is partial (add)") and "test_custom.py" in row.where


def test_partial_by_another_reduction():
  a = integers(2, 4, 8)
  for name, by in (("max", np.max), ("min", np.min), ("prod", np.prod), ("sum", np.sum)):
    op = custom_op(lambda x, name=name: getattr(x, name)(1), rule="m k -> m", partial=name)
    y = op(put(a, None, ("x", "y")))
    assert y.uop.partial
    np.testing.assert_array_equal(y.numpy(), by(a, 1))


def test_a_wrong_reduction_gives_other_values():
  a = integers(2, 4, 8)
  wrong = custom_op(lambda x: x.max(1), rule="m k -> m")(put(a, None, "x")).numpy()
  assert np.abs(wrong - a.max(1)).max() > 1


def test_without_a_reduction_the_factor_is_gathered():
  a = integers(2, 4, 8)
  op = custom_op(lambda x: x.cumsum(1)[:, -1], rule="m k -> m", partial=None)
  y = op(put(a, "x", "y"))
  assert not y.uop.partial
  assert [r.kind for r in explain(op(put(a, "x", "y")))] == ["all_to_all"], "to the other factor"
  np.testing.assert_array_equal(y.numpy(), a.sum(1))


def test_the_gradient_of_a_maximum_gathers_what_it_compares():
  a = integers(2, 4, 8)
  x, whole = put(a, None, ("x", "y")), Tensor(a)
  op = custom_op(lambda x: x.max(1), rule="m k -> m", partial="max")
  np.testing.assert_array_equal(op(x).sum().gradient(x)[0].numpy(), whole.max(1).sum().gradient(whole)[0].numpy())


def test_a_factor_that_may_not_be_cut():
  a = integers(3, 3, 8, 6)
  op = custom_op(lambda x: x.softmax(-1), rule="... !k -> ... k")
  y = op(put(a, None, "x", "y"))
  assert y.device.cut(2) == ()
  np.testing.assert_allclose(y.numpy(), Tensor(a).softmax(-1).numpy(), rtol=1e-6)
  free = custom_op(lambda x: x.softmax(-1), rule="... k -> ... k")(put(a, None, "x", "y")).numpy()
  assert np.abs(free - y.numpy()).max() > 0.1, "softmax of parts differs: the test can fail"


@pytest.mark.parametrize("n", (8, 7, 5, 3, 1))
def test_parts_are_equal_or_whole(n):
  a = integers(n, n, 4)
  y = double(put(a, ("x", "y")))
  np.testing.assert_array_equal(y.numpy(), a * 2)
  assert y.uop.device.cut(0) == (Sharding(GRID, P(("x", "y"))).cut(0) if n == 8 else ())
  rest = custom_op(lambda x: x.cumsum(1), rule="m !k -> m k")(put(a, "x", "y"))
  np.testing.assert_array_equal(rest.numpy(), a.cumsum(1))


def head_sums(x: Tensor) -> Tensor:
  return x.reshape(x.shape[0], -1, 4).sum(-1)


def test_compound_factors():
  op, a = custom_op(head_sums, rule="b (h !d) -> b h", h=8), integers(4, 4, 32)
  want = a.reshape(4, 8, 4).sum(-1)
  for dims, result in ((("x", "y"), ("x", "y")), ((None, ("y", "x")), (None, ("y", "x")))):
    y = op(put(a, *dims))
    assert y.device == Sharding(GRID, P(*result)) and not explain(op(put(a, *dims))).wire
    np.testing.assert_array_equal(y.numpy(), want)
  joined = custom_op(lambda x: x.reshape(x.shape[0], -1), rule="b h d -> b (h d)")(put(a.reshape(4, 8, 4), None, "x"))
  assert joined.device == Sharding(GRID, P(None, "x"))
  np.testing.assert_array_equal(joined.numpy(), a)


def test_dims_of_one_and_dims_that_only_the_result_has():
  a = integers(5, 8, 1)
  y = custom_op(lambda x: x.expand(x.shape[0], 4), rule="m 1 -> m n")(put(a, "x"))
  assert y.device == Sharding(GRID, P("x"))
  np.testing.assert_array_equal(y.numpy(), np.broadcast_to(a, (8, 4)))
  g = custom_op(lambda x: x.expand(x.shape[0], 4), rule="m 1 -> m n")
  x = put(a, "x")
  np.testing.assert_array_equal((g(x) * put(W[:8], None, "y")).sum().gradient(x)[0].numpy(), W[:8].sum(1)[:, None])


def test_several_results():
  op = custom_op(lambda x, w: (x @ w, x.max(1)), rule="m k, k n -> m n, m", partial=None)
  x, w = put(A, "x", "y"), put(W, "y")
  y, z = op(x, w)
  np.testing.assert_array_equal(y.numpy(), A @ W)
  np.testing.assert_array_equal(z.numpy(), A.max(1))
  (y * 3).sum().backward()
  np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(3 * W.sum(1), A.shape))


# ---------------------------------------------------------------- where ops are run, and differentiated


@pytest.mark.parametrize("settings", ({"DEFER": 0}, {"STRATEGY": "basic"}, {"STRATEGY": "aggressive"}, {"TRAINING": 1}))
def test_settings(settings):
  with Context(**settings):
    x, w = put(A, "x", "y"), put(W, None, "x")
    np.testing.assert_array_equal(matmul(x, w).numpy(), A @ W)
    np.testing.assert_array_equal(matmul(x, w).sum().gradient(w)[0].numpy(), np.tile(A.sum(0)[:, None], (1, 4)))


def test_settings_of_the_call_hold_for_the_parts():
  op = custom_op(lambda x: x * 3 if Tensor.training else x, rule="m k -> m k")
  with Context(TRAINING=1):
    y = op(put(A, "x"))
  np.testing.assert_array_equal(y.numpy(), A * 3)
  with Context(NO_GRAD=1):
    matmul(put(A), put(W))
  x, w = put(A), put(W)
  np.testing.assert_array_equal(matmul(x, w).sum().gradient(w)[0].numpy(), np.tile(A.sum(0)[:, None], (1, 4)))


def test_one_device_no_device_and_the_interpreter():
  for device in ("CPU", "PYTHON"):
    np.testing.assert_array_equal(matmul(Tensor(A, device=device), Tensor(W, device=device)).numpy(), A @ W)
  there = ("PYTHON:0", "PYTHON:1")
  np.testing.assert_array_equal(matmul(Tensor(A).shard(there, 1), Tensor(W).shard(there, 0)).numpy(), A @ W)
  np.testing.assert_array_equal(double(Tensor.ones(3, 2)).numpy(), np.full((3, 2), 2))
  x = put(A, "x", "y")
  np.testing.assert_array_equal(matmul(x, Tensor(W)).numpy(), A @ W)
  row = custom_op(lambda x, y: x * y, rule="m n, n -> m n")
  np.testing.assert_array_equal(row(x, Tensor.arange(12).float()).numpy(), A * np.arange(12))


def test_a_bound_variable():
  a = integers(6, 8, 4)
  for n in (3, 5):
    rows = put(a, None, "x")[: Variable("n", 1, 8).bind(n)]
    assert double(rows).sum().item() == 2 * a[:n].sum()


def test_replays_and_neighbours():
  @TinyJit
  def step(x, w):
    y = (matmul(x + 1, w) + 1).relu()
    return y, *y.sum().gradient(x, w)

  for i in range(4):
    a, b = A + i, W - i
    y, g, _ = step(put(a, None, ("x", "y")), put(b, "y"))
    plain = Tensor(a), Tensor(b)
    want = ((plain[0] + 1) @ plain[1] + 1).relu()
    np.testing.assert_array_equal(y.numpy(), want.numpy())
    np.testing.assert_array_equal(g.numpy(), want.sum().gradient(*plain)[0].numpy())


def test_one_inside_another_and_derivatives_of_derivatives():
  nested = custom_op(lambda x, w: matmul(x, w).relu(), rule="m !k, k n -> m n")
  x, w = put(A, "x", "y"), put(W, "x")
  plain = Tensor(A), Tensor(W)
  np.testing.assert_array_equal(nested(x, w).numpy(), np.maximum(A @ W, 0))
  for mine, theirs in zip(
    nested(x, w).sum().gradient(x, w), (plain[0] @ plain[1]).relu().sum().gradient(*plain), strict=True
  ):
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
  cube = custom_op(lambda x: x * x * x, rule="m k -> m k")
  (once,) = cube(x).sum().gradient(x)
  np.testing.assert_array_equal(once.sum().gradient(x)[0].numpy(), 6 * A)


def test_an_operand_twice_and_one_of_another():
  times = custom_op(lambda x, y: x * y, rule="m k, m k -> m k")
  x = put(A, "x", "y")
  np.testing.assert_array_equal(times(x, x).sum().gradient(x)[0].numpy(), 2 * A)
  np.testing.assert_array_equal(times(x, x * 3).sum().gradient(x)[0].numpy(), 6 * A)


def test_operands_without_a_derivative():
  pick = custom_op(lambda x, i: x[i], rule="!n k, m -> m k")
  x, i = put(A, None, "x"), put(np.array([3, 3, 0, 7], np.int32), "y")
  y = pick(x, i)
  assert y.device == Sharding(GRID, P("y", "x"))
  np.testing.assert_array_equal(y.numpy(), A[[3, 3, 0, 7]])
  counts = np.bincount([3, 3, 0, 7], minlength=8)
  np.testing.assert_array_equal(y.sum().gradient(x)[0].numpy(), np.tile(counts[:, None], (1, 12)))


@pytest.mark.parametrize("partial", ("max", None))
def test_a_gradient_over_what_may_not_be_cut_is_of_the_whole(partial):
  """Each row's maximum is on one device: others must not take their own for it. (Mutant seen: `partial=None` was taken
  for a sum there.)"""
  largest = custom_op(lambda x: x.max(1), rule="m k -> m", partial=partial)
  whole = A + np.arange(12, dtype=np.float32) / 16
  want = np.zeros(A.shape, np.float32)
  want[np.arange(8), whole.argmax(1)] = 5
  cut, hinted = put(whole, None, "x"), Tensor(whole).realize()
  of_hinted = (largest(hinted.constrain(P(None, "x"))) * 5).sum().gradient(hinted)[0]
  propagate(of_hinted, mesh=GRID)
  assert hinted.device.spec == P(None, "x")
  for g in ((largest(cut) * 5).sum().gradient(cut)[0], of_hinted):
    np.testing.assert_array_equal(g.numpy(), want)


def test_a_gradient_of_ones_own():
  straight = custom_op(lambda x: x.round(), rule="m k -> m k", gradient=lambda g, x: g * (x > 0))
  x = put(A / 2, "x", "y")
  np.testing.assert_array_equal((straight(x) * 5).sum().gradient(x)[0].numpy(), 5.0 * (A > 0))
  both = custom_op(lambda x: (x * 2, x * 3), rule="m k -> m k, m k", gradient=lambda g, h, x: g * 10 + h * 100)
  y, z = both(x)
  np.testing.assert_array_equal((y + z).sum().gradient(x)[0].numpy(), np.full(A.shape, 110))
  number = custom_op(lambda x: x * 2, rule="m k -> m k", gradient=lambda g, x: 3.0)
  with pytest.raises(ShardError, match=r"(?s)gradient function <lambda> gives 3.0 of type float.*fix: return a grad"):
    number(x).sum().gradient(x)
  short = custom_op(lambda x: x * 2, rule="m k -> m k", gradient=lambda g, x: g.sum(0))
  with pytest.raises(ShardError, match=r"(?s)gradient function <lambda> gives \[12\].*fix: return a gradient"):
    short(x).sum().gradient(x)


def test_a_partial_sum_of_halves_keeps_range_and_precision():
  a = np.full((4, 8), 30000, np.float16)
  a[:, 4:] = -30000
  total = custom_op(lambda x: x.sum(1), rule="m k -> m")(put(a, None, "x"))
  assert total.dtype is dtypes.float16
  np.testing.assert_array_equal(total.numpy(), np.zeros(4))


def test_a_sum_runs_on_a_partial_result():
  x, w = put(A, None, "x"), put(W, "x")
  assert [r.payload for r in explain((matmul(x, w) * 2).sum(0))] == [4 * 4], "the reduction is put off"


@pytest.mark.parametrize("op", (matmul, lambda x, w: x @ w), ids=("custom", "own"))
def test_hints_are_propagated_through_it(op):
  x, w = Tensor(A).realize(), Tensor(W).realize()
  y = op(x.constrain(P("x", None)), w).constrain(P("x", "y"))
  propagate(y, mesh=GRID)
  assert [t.device for t in (x, w, y)] == [Sharding(GRID, P(*d)) for d in (("x",), (None, "y"), ("x", "y"))]
  np.testing.assert_array_equal(y.numpy(), A @ W)


def test_a_step_on_a_mesh():
  w = Tensor(W).realize()
  step = TinyJit(lambda x: matmul(x.constrain(P("x")), w.constrain(P(None, "y"))).relu(), mesh=GRID)
  for i in range(4):
    y = step(Tensor(A + i).realize())
    assert y.device == Sharding(GRID, P("x", "y"))
    np.testing.assert_array_equal(y.numpy(), np.maximum((A + i) @ W, 0))


def test_attention_on_heads_of_its_own():
  rule = "b h !s !d, b h !t !d, b h !t !e -> b h s e"
  op = custom_op(lambda q, k, v: q.scaled_dot_product_attention(k, v), rule=rule)
  arrays = [integers(i, 4, 4, 6, 8) for i in range(3)]
  parts, whole = [put(a, "x", "y") for a in arrays], [Tensor(a) for a in arrays]
  y, want = op(*parts), whole[0].scaled_dot_product_attention(whole[1], whole[2])
  np.testing.assert_allclose(y.numpy(), want.numpy(), rtol=1e-6, atol=1e-6)
  grads = (y * y).sum().gradient(*parts)
  assert y.device == Sharding(GRID, P("x", "y")) and not explain(*grads).wire
  for g, h in zip(grads, (want * want).sum().gradient(*whole), strict=True):
    np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-4, atol=1e-4)


def test_a_function_with_a_gradient_of_its_own_inside():
  inner = function(lambda x: x * 2, grad_fxn=lambda g, x: g * 7)
  x = put(A, "x", "y")
  (g,) = custom_op(lambda x: inner(x) + x, rule="m k -> m k")(x).sum().gradient(x)
  np.testing.assert_array_equal(g.numpy(), np.full(A.shape, 8))


def test_hints_do_not_cut_what_may_not_be_cut():
  x = Tensor(A).realize()
  y = custom_op(lambda x: x.cumsum(1), rule="m !k -> m k")(x.constrain(P(None, "x")))
  propagate(y, mesh=GRID)
  np.testing.assert_array_equal(y.numpy(), A.cumsum(1))


def test_what_a_result_is_not_made_of_is_not_reduced_in_it():
  op = custom_op(lambda x, w: (x @ w, x * 2), rule="m k, k n -> m n, m k")
  y, z = op(put(A, "x"), put(W, None, "y"))
  assert not z.uop.partial
  np.testing.assert_array_equal(y.numpy(), A @ W)
  np.testing.assert_array_equal(z.numpy(), A * 2)


def test_what_a_gradient_is_not_made_of_is_not_moved_for_it():
  x, w = put(A, "x"), put(W)
  (g,) = (matmul(x, w) * 2).sum().gradient(x)  # of w and the gradient of the result: not of x
  node = next(u for u in g.uop.toposort() if u.op is Ops.CUSTOM and "gradient" in repr(u.arg[1]))
  assert x.uop not in node.toposort() and w.uop in node.toposort()
  np.testing.assert_array_equal(g.numpy(), np.tile(2 * W.sum(1), (8, 1)))


# ---------------------------------------------------------------- mistakes


def line_of(e) -> str:
  text = str(e.value)
  assert "fix:" in text and "custom op" in text
  return text


TEXTS = {
  "one '->'": ("m k, k n", {}),
  "twice in 'm m'": ("m m -> m", {}),
  "where it says nothing": ("m k -> m, ?", {}),
  "not closed": ("(m k -> m", {}),
  "'...' in a result and in no operand": ("m -> ... m", {}),
  "no factor of the rule": ("m k -> m", {"h": 3}),
  "has a length": ("(m k) -> m", {"k": 0}),
}


@pytest.mark.parametrize("said", TEXTS)
def test_a_rule_that_says_nothing(said):
  text, sizes = TEXTS[said]
  with pytest.raises(ShardError) as e:
    custom_op(lambda x: x, rule=text, **sizes)
  assert said in line_of(e)


OPERANDS = {
  "says 2 dims of operand 0, which has 1": ("m k -> m k", lambda x: x, ((4,),)),
  "says 1 operands, and there are 2": ("m -> m", lambda *xs: xs[0], ((4,), (4,))),
  "says 3 dims of operand 0, which has 2": ("m k n -> m n", lambda x: x.sum(1).reshape(*x.shape[:3:2]), ((4, 4),)),
  "dim 1 of operand 1, which is 5: m is 4 by dim 0 of operand 0": ("m, k m -> m", lambda x, y: x, ((4,), (2, 5))),
  "a 1 is a dim of length one": ("m 1 -> m", lambda x: x.sum(1), ((4, 2),)),
  "does not tell the sizes of h and d": ("(h d) -> h", lambda x: x, ((4,),)),
  "does not fit dim 0 of result 0, which is 2": ("m k -> m", lambda x: x.sum(0)[:2], ((4, 4),)),
  "says 1 dims of result 0, which has 2": ("m k -> m", lambda x: x, ((4, 4),)),
  "says 1 results, and f returns 2": ("m -> m", lambda x: (x, x), ((4,),)),
  "'...' stands for 1 and for 2 dims": ("... k, ... k -> ... k", lambda x, y: y, ((2, 4), (1, 2, 4))),
  "reads or writes memory beside them": ("m -> m", lambda x: x + Tensor([1.0, 2, 3, 4]), ((4,),)),
}  # fmt: skip


@pytest.mark.parametrize("said", OPERANDS)
def test_operands_that_the_rule_does_not_fit(said):
  rule, f, shapes = OPERANDS[said]
  f.__name__ = "f"
  with pytest.raises(ShardError) as e:
    custom_op(f, rule=rule)(*(Tensor(integers(0, *s)) for s in shapes))
  text = line_of(e)
  assert said in text and repr(rule) in text and "test_custom.py" in text and "operand 0: float32[" in text


def test_a_function_that_does_not_run_on_parts_raises_at_the_call():
  x = put(A, "x")
  for f, said in (
    (lambda x: x.reshape(8, 12) * 2, "fails on a device's part"),
    (lambda x: x.cat(x)[:8], "makes [8, 12]"),
  ):
    op = custom_op(f, rule="m k -> m k")
    with pytest.raises(ShardError) as e:
      op(x)
    assert said in line_of(e) and "test_custom.py" in line_of(e)


@pytest.mark.parametrize("read", (lambda x: x.numpy(), lambda x: x.realize(), lambda x: x.sum().item()))
def test_nothing_is_read_while_it_is_traced(read):
  with pytest.raises(ShardError, match=r"(?s)read or realized that has none.*test_custom.py.*fix: return it"):
    custom_op(lambda x: (read(x), x)[1], rule="m k -> m k")(put(A, "x"))


MISTAKES = {
  "fn <lambda> cannot be called with operand 0: ": (lambda x, y: x, "m -> m", {}),
  "fn <lambda> cannot be called with operand 0, operand 1: ": (lambda x: x, "m, m -> m", {}),
  "gradient <lambda> cannot be called with gradient of result 0, operand 0: ": (
    lambda x: x, "m -> m", {"gradient": lambda g: g},
  ),
  "gradient <lambda> cannot be called with gradient of result 0, gradient of result 1, operand 0: ": (
    lambda x: (x, x), "m -> m, m", {"gradient": lambda g, x: g},
  ),
  "no partial=['sum']": (lambda x: x, "m -> m", {"partial": ["sum"]}),
  "kernel='void f(float *out) {}'": (lambda x: x, "m -> m", {"kernel": "void f(float *out) {}"}),
}  # fmt: skip


@pytest.mark.parametrize("said", MISTAKES)
def test_what_is_no_custom_op_is_refused_where_it_is_defined(said):
  fn, rule, more = MISTAKES[said]
  with pytest.raises(ShardError) as e:
    custom_op(fn, rule=rule, **more)
  assert said in line_of(e) and "test_custom.py" in line_of(e)


def test_functions_that_may_be_called_so_are_taken():
  x = Tensor([1.0, 4.0])
  for fn in (Tensor.sqrt, lambda *xs: xs[0].sqrt(), functools.partial(lambda power, x: x**power, 0.5)):
    np.testing.assert_array_equal(custom_op(fn, rule="m -> m")(x).numpy(), [1, 2])


def test_other_mistakes():
  with pytest.raises(ShardError, match="no partial='mean'"):
    custom_op(lambda x: x, rule="m -> m", partial="mean")
  with pytest.raises(TypeError, match="fn=3 is no function"):
    custom_op(3, rule="m -> m")
  with pytest.raises(TypeError, match="operand 0 of <lambda> is 3"):
    double(3)
  with pytest.raises(TypeError, match="returns 3 of type int"):
    custom_op(lambda x: 3, rule="m -> m")(Tensor([1.0]))
