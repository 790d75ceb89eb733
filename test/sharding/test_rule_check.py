"""`check_rule` passes what is true of a custom op, and names what is not; and it notices wrong rules of sharding."""

import dataclasses
import random
import re

import numpy as np
import pytest

from tinygrad import Mesh, ShardError, Tensor, check_rule, custom_op
from tinygrad.rule_check import is_close
from tinygrad.transforms import custom, factor_rule

GRID = Mesh([f"CPU:{i}" for i in range(1, 5)], (2, 2), ("x", "y"))


def product(x, w):
  return x @ w


def softmax(x):
  return x.softmax(-1)


def running(x):
  return x.cumsum(1)


def backwards(x):
  return x.flip(1).cumsum(1)


def placed(x):
  return x + Tensor.arange(x.shape[1])


def biased(x, w, b):
  return x @ w + b


def largest(x):
  return x.max(1)


def added(x, y):
  return x + y.sum(1, keepdim=True)


def fixed(x):
  return x.reshape(8, 12) * 2


def clamped(x, w):
  return (x @ w).relu()


MATMUL, ONE = ((8, 12), (12, 4)), ((8, 12),)
TRUE = (
  (product, "m k, k n -> m n", {}, MATMUL),
  (product, "!m k, !k n -> m n", {}, MATMUL),
  (product, "... k, k n -> ... n", {}, ((2, 8, 12), (12, 4))),
  (clamped, "m !k, k n -> m n", {}, MATMUL),
  (softmax, "m !k -> m k", {}, ONE),
  (running, "m !k -> m k", {}, ONE),
  (largest, "m k -> m", {"partial": "max"}, ONE),
  (largest, "m k -> m", {"partial": None}, ONE),
  (lambda x: x.reshape(x.shape[0], -1, 3).sum(2), "m (h d) -> m h", {"h": 4}, ONE),
  (lambda x, w: (x @ w, x * 2), "m k, k n -> m n, m k", {}, MATMUL),
  (lambda x: x.round(), "m k -> m k", {"gradient": lambda g, x: g * x}, ONE),
)


@pytest.mark.parametrize("fn, rule, more, shapes", TRUE)
def test_what_is_true_passes(fn, rule, more, shapes):
  assert check_rule(custom_op(fn, rule=rule, **more), *shapes, mesh=GRID, trials=6) > 12


def test_operands_as_they_are():
  pick, rows = custom_op(lambda x, i: x[i], rule="!n k, m -> m k"), Tensor([3, 0, 7, 7])
  assert check_rule(pick, (8, 4), rows, trials=4) > 8


FALSE = (
  (softmax, "m k -> m k", {}, ONE, r"\(k over x\).*up to 0\.\d+; fn mixes elements of operand 0 along k", "!k"),
  (running, "m k -> m k", {}, ONE, "fn mixes elements of operand 0 along k", "!k"),
  (backwards, "m k -> m k", {}, ONE, "fn mixes elements of operand 0 along k", "!k"),
  (added, "m k, m k -> m k", {}, ((8, 4), (8, 4)), "fn mixes elements of operand 1 along k", "!k"),
  (placed, "m k -> m k", {}, ONE, "what it does with the whole", "!k"),
  (largest, "m k -> m", {}, ONE, "k is reduced, and parts of the result are not joined by that", 'partial="max"'),
  (product, "m k, k n -> m n", {"partial": "max"}, MATMUL, "k is reduced", 'partial="sum"'),
  (clamped, "m k, k n -> m n", {}, MATMUL, "k is reduced", "partial=None, or !k"),
  (biased, "m k, k n, n -> m n", {}, (*MATMUL, (4,)), "operand 2 without it counts in each", "partial=None"),
  (fixed, "m k -> m k", {}, ONE, "does not run on parts", "!m, if fn needs that whole"),
  (product, "m k, j n -> m n", {}, MATMUL, r"does not run on parts.*\(k over x\)", "!k"),
)  # fmt: skip


@pytest.mark.parametrize("fn, rule, more, shapes, said, fix", FALSE)
def test_what_is_false_is_named(fn, rule, more, shapes, said, fix):
  with pytest.raises(ShardError) as e:
    check_rule(custom_op(fn, rule=rule, **more), *shapes, mesh=GRID)
  text = str(e.value)
  head, _, advised = text.partition("fix: ")
  assert re.search(said, head, re.DOTALL) and advised.startswith(fix), text
  assert fn.__name__ in head and "operand 0: float32[8, " in head and "test_rule_check.py" in head


def test_a_false_gradient_is_named():
  op = custom_op(lambda x: x * x, rule="m k -> m k")
  half = custom_op(lambda x: x * x, rule="m k -> m k", gradient=lambda g, x: g * x * np.float32(x.uop.axis is None))
  assert check_rule(op, (8, 4), mesh=GRID, trials=2)
  with pytest.raises(ShardError, match="the gradient by operand 0 of"):
    check_rule(half, (8, 4), mesh=GRID)


def test_a_true_rule_is_not_refused_for_rounding():
  """Products beyond 2**24 are whole numbers, and rounded; a gradient that equals share adds up thirds."""
  x = Tensor(np.random.default_rng(0).choice([3.0, -5.0, 7.0], (24, 4)).astype(np.float32))
  assert check_rule(custom_op(lambda x: x.prod(0), rule="m n -> n", partial="prod"), x, mesh=GRID, trials=4) > 8
  one, third = np.array([1.0, 3.0], np.float32), np.array([0.99999994, 3.0], np.float32)
  assert is_close(third, one, exact=False) and not is_close(third, one)
  assert not is_close(np.array([1.01, 3.0], np.float32), one, exact=False)
  assert is_close(np.array([np.inf, 2.5], np.float32), np.array([np.inf, 2.5], np.float32))


def test_what_cannot_be_checked():
  with pytest.raises(TypeError, match=r"(?s)check_rule: <function .*> is no custom op.*fix: check_rule\(custom_op"):
    check_rule(softmax, (8,))
  op = custom_op(lambda x: x * 2, rule="m -> m")
  with pytest.raises(ShardError, match="says 1 operands, and there are 2"):
    check_rule(op, (8,), (8,))
  with pytest.raises(TypeError, match="returns 3 of type int"):
    check_rule(custom_op(lambda x: 3, rule="m -> m"), (8,))


def test_nothing_to_compare():
  with pytest.raises(ShardError, match="no factor of '!m -> m' can be cut"):
    check_rule(custom_op(lambda x: x, rule="!m -> m"), (8,))


# ---------------------------------------------------------------- mutants: wrong code, which the comparison notices


def without(field):
  """Factors that say nothing of this."""
  right = factor_rule.BoundRule.factors
  return lambda *given: dataclasses.replace(right(*given), **{field: frozenset()})


def of_parts(rule, result, source, reducible):
  """The derivative of a maximum taken on parts."""
  return TURNED(rule, result, source, True)


def one_less(derivative, nodes):
  g = MADE(derivative, nodes)
  return g * 0 if derivative.i else g


TURNED, MADE = factor_rule.FactorRule.turned, custom.Derivative.__call__
MUTANTS = {
  "factors that may not be cut are": (factor_rule.BoundRule, "factors", without("blocked"), softmax, "m !k -> m k", {}),
  "what is reduced is whole": (factor_rule.BoundRule, "factors", without("contracted"), product, "m k, k n -> m n", {}),
  "parts are uneven": (factor_rule.BoundRule, "factors", without("even"), running, "m !k -> m k", {}),
  "gradients of maxima of parts": (factor_rule.FactorRule, "turned", of_parts, largest, "m k -> m", {"partial": "max"}),
  "gradients by one operand are lost": (custom.Derivative, "__call__", one_less, product, "m k, k n -> m n", {}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(monkeypatch, name):
  where, attribute, wrong, fn, rule, more = MUTANTS[name]
  shapes = {product: MATMUL, running: ((6, 12),)}.get(fn, ONE)
  assert check_rule(custom_op(fn, rule=rule, **more), *shapes, mesh=GRID)
  monkeypatch.setattr(where, attribute, wrong)
  with pytest.raises((ShardError, AssertionError, ValueError)):
    check_rule(custom_op(lambda *xs: fn(*xs), rule=rule, **more), *shapes, mesh=GRID)


# ---------------------------------------------------------------- laws: rules by chance, of which einsum is the oracle


def rule_by_chance(chance):
  """(rule, sizes by keyword, einsum's text, shapes, function): products of one to three operands, some dims of two
  factors, of which the minor one is not cut, others not cut at all."""
  sizes = {x: chance.choice((1, 2, 3, 4, 6, 8)) for x in "abcde"}
  sources = ["".join(chance.sample("abcde", chance.randint(1, 3))) for _ in range(chance.randint(1, 3))]
  named = "".join(dict.fromkeys("".join(sources)))
  result = "".join(chance.sample(named, chance.randint(0, len(named))))
  whole = {x for x in named if chance.random() < 0.2}
  joined = [len(s) > 1 and chance.random() < 0.3 for s in sources]
  for s, j in zip(sources, joined):
    whole |= {s[-1]} if j else set()

  def dims(s, j):
    names = [f"!{x}" if x in whole else x for x in s]
    return " ".join([*names[:-2], f"({names[-2]} {names[-1]})"] if j else names)

  shapes = [tuple(sizes[x] for x in s) for s in sources]
  shapes = [(*s[:-2], s[-2] * s[-1]) if j else s for s, j in zip(shapes, joined)]
  minor = {s[-1] for s, j in zip(sources, joined) if j}
  lasts = [sizes[s[-1]] for s in sources]

  def fn(*xs):
    parts = [x.reshape(*x.shape[:-1], -1, n) if j else x for x, j, n in zip(xs, joined, lasts)]
    return Tensor.einsum(f"{','.join(sources)}->{result}", *parts)

  text = f"{', '.join(map(dims, sources, joined))} -> {dims(result, False)}"
  return text, {x: sizes[x] for x in minor}, shapes, fn


@pytest.mark.parametrize("seed", range(24))
def test_rules_by_chance_hold_of_einsum(seed):
  text, sizes, shapes, fn = rule_by_chance(random.Random(seed))
  try:
    check_rule(custom_op(fn, rule=text, **sizes), *shapes, mesh=GRID, trials=3, seed=seed)
  except ShardError as e:
    assert "can be cut over" in str(e), f"{text} {sizes} {shapes}\n{e}"  # nothing was to be compared
