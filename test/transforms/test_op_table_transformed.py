"""Every method of the op table under transforms. Over many elements at once: what a loop over the elements gives, with
gradients around the map and within it. Forward: the tangent of a number is the product of its gradient with the
direction."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Tensor, grad, jvp
from tinygrad.helpers import Context
from tinygrad.transforms import batching
from tinygrad.transforms.vmap import vmap
from tinygrad.uop import Ops

sys.path.append(str(Path(__file__).parents[1] / "ops"))
import op_table

MANY = 3
# the shape of the result is that of the values, or the values are read to find it
READS_VALUES = {"masked_select", "nonzero", "unique", "bincount", "item", "tolist"}
NAMES = [n for n in dict.fromkeys(r.name for r in op_table.ROWS) if n not in READS_VALUES]


def elements(case, i):
  """The operands of element i: the same numbers in another order, so that they are in the function's domain."""
  return [x if given else np.roll(x, i) for x, given in zip(case.arrays, case.given)]


def mapped_cases(name):
  for number, r in enumerate(op_table.ROWS):
    if r.name == name and r.inputs[0]:
      for case in op_table.cases(number, r):
        if case.dtype == r.dtypes[0] and not case.view and "special" not in case.key and not all(case.given):
          yield case


def results(out):
  return list(out) if isinstance(out, (tuple, list)) else [out]


def loss_of(outs):
  floats = [o for o in outs if o.is_floating_point()]
  return sum((o.float() * Tensor(op_table.weights(o.shape))).sum() for o in floats) if floats else None


def with_gradients(case, xs):
  """(results, gradients by the operands that are mapped) of one element."""
  outs = results(case.row.ours(*xs))
  loss = loss_of(outs) if case.grad else None
  leaves = [x for x, given in zip(xs, case.given) if not given]
  return outs, [] if loss is None else loss.gradient(*leaves)


def of_each(name, case):
  """(the operands over all elements, in_axes, results and gradients of each element)."""
  axes = tuple(None if given else 0 for given in case.given)
  kinds = [None if given else case.dtype for given in case.given]
  each = [[Tensor(x, dtype=kind) for x, kind in zip(elements(case, i), kinds)] for i in range(MANY)]
  many = [xs[0] if axis is None else Tensor.stack(*xs).contiguous() for axis, xs in zip(axes, zip(*each))]
  return many, axes, [with_gradients(case, xs) for xs in each]


@pytest.mark.parametrize("name", NAMES)
def test_a_map_is_a_loop(name):
  with Context(INTERPRET=1):
    for case in mapped_cases(name):
      many, axes, want = of_each(name, case)
      outs, inside = vmap(lambda *xs, case=case: with_gradients(case, xs), in_axes=axes)(*many)
      for k, (got, loop) in enumerate(zip([*outs, *inside], zip(*[[*o, *g] for o, g in want]), strict=True)):
        close(got, loop, f"{case.key}: {k}")


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_a_map_is_a_loop(name):
  with Context(INTERPRET=1):
    for case in mapped_cases(name):
      many, axes, want = of_each(name, case)
      losses = vmap(lambda *xs, case=case: loss_of(results(case.row.ours(*xs))), axes)(*many) if want[0][1] else None
      if losses is not None:
        found = losses.sum().gradient(*[x for x, axis in zip(many, axes) if axis == 0])
        for k, (got, loop) in enumerate(zip(found, zip(*[grads for _, grads in want]), strict=True)):
          close(got, loop, f"{case.key}: gradient {k}")


@pytest.mark.parametrize("name", NAMES)
def test_forward_is_reverse_transposed(name):
  with Context(INTERPRET=1):
    for case in mapped_cases(name):
      if not case.grad:
        continue
      given = [Tensor(x, dtype=None if g else case.dtype) for x, g in zip(case.arrays, case.given)]
      leaves = [x for x, g in zip(given, case.given) if not g]
      directions = [Tensor(np.cos(np.arange(x.numel())).reshape(x.shape), dtype=case.dtype) for x in leaves]

      def loss(*some, case=case, given=given):
        each = iter(some)
        found = loss_of(results(case.row.ours(*[x if g else next(each) for x, g in zip(given, case.given)])))
        return Tensor.zeros(()) if found is None else found

      value, ahead = (t.numpy() for t in jvp(loss, leaves, directions))
      back = sum((g * v).sum().numpy() for g, v in zip(grad(loss, range(len(leaves)))(*leaves), directions))
      if np.isfinite(value):  # not the mean of nothing
        tol = 5e-3 if name in ("half", "bfloat16") else 2e-4  # which round gradients and tangents on their ways
        np.testing.assert_allclose(ahead, back, rtol=tol, atol=tol / 10, err_msg=case.key)


def close(got, loop, where):
  want = np.stack([x.numpy() for x in loop])
  assert got.shape == want.shape, where
  np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-6, err_msg=where)


def test_an_axis_that_is_not_moved_is_noticed(monkeypatch):
  monkeypatch.setitem(batching.ARGS, Ops.REDUCE, lambda arg, k, lead: arg)
  with pytest.raises((AssertionError, ValueError)):
    test_a_map_is_a_loop("sum")
