"""`cond` against the function that is chosen."""

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, cond, grad, jvp, scan, vmap

w = Tensor(np.arange(1.0, 4.0), dtype="float64")


def yes(x):
  return {"y": x.log() * w, "n": x.sum()}


def no(x):
  return {"y": x * 2, "n": x.sum() * 0}


def chosen(x):
  return cond(x.sum() > 0, yes, no, x)


def total(x):
  out = chosen(x)
  return out["y"].sum() + out["n"]


POSITIVE, NEGATIVE = (Tensor(np.array(a), dtype="float64") for a in ([1.0, 2.0, 0.5], [-1.0, -2.0, 0.0]))


def test_values_and_derivatives_are_those_of_the_one_that_is_chosen():
  np.testing.assert_allclose(chosen(POSITIVE)["y"].numpy(), yes(POSITIVE)["y"].numpy())
  np.testing.assert_allclose(chosen(NEGATIVE)["y"].numpy(), NEGATIVE.numpy() * 2)
  np.testing.assert_allclose(grad(total)(POSITIVE).numpy(), w.numpy() / POSITIVE.numpy() + 1)
  np.testing.assert_allclose(grad(total)(NEGATIVE).numpy(), [2, 2, 2])  # not the logarithm's nan
  np.testing.assert_allclose(jvp(total, (NEGATIVE,), (NEGATIVE,))[1].item(), NEGATIVE.numpy().sum() * 2)
  np.testing.assert_allclose(total(POSITIVE).gradient(w)[0].numpy(), np.log(POSITIVE.numpy()))
  second = grad(lambda x: (grad(total)(x) ** 2).sum())(POSITIVE)
  want = grad(lambda x: ((w / x + 1) ** 2).sum())(POSITIVE)
  np.testing.assert_allclose(second.numpy(), want.numpy())


def test_each_element_and_each_replay_chooses():
  both = Tensor.stack(POSITIVE, NEGATIVE)
  want = np.stack([grad(total)(x).numpy() for x in (POSITIVE, NEGATIVE)])
  np.testing.assert_allclose(vmap(grad(total))(both).numpy(), want)
  np.testing.assert_allclose(grad(lambda t: vmap(total)(t).sum())(both).numpy(), want)
  step = TinyJit(grad(total))
  for x in (POSITIVE, NEGATIVE, NEGATIVE, POSITIVE):
    np.testing.assert_allclose(step(x.contiguous().realize()).numpy(), grad(total)(x).numpy())
  sums = scan(lambda c, x: (c + total(x), None), Tensor(0.0, dtype="float64"), both)[0]
  np.testing.assert_allclose(sums.item(), total(POSITIVE).item() + total(NEGATIVE).item())


@pytest.mark.parametrize(
  "call, error, says",
  [
    (lambda x: cond(x > 0, yes, no, x), TypeError, "one bool, not bool"),
    (lambda x: cond(True, yes, no, x), TypeError, r"not True(?s:.*)fix: Tensor\(True\)"),
    (
      lambda x: cond(x.sum() > 0, lambda t: t, lambda t: t[:2], x),
      ValueError,
      r"float64\[3\] on CPU, the other float64\[2\]",
    ),
    (lambda x: cond(x.sum() > 0, lambda t: t, lambda t: t.int(), x), ValueError, "the other int32"),
  ],
)
def test_what_is_refused(call, error, says):
  with pytest.raises(error, match=says):
    call(POSITIVE)


def test_a_choice_by_a_choice_among_what_reads_nothing():
  """What the first chooses by is read by its derivative alone."""

  def chosen(x):
    first = cond(x.sum() > 0, lambda t: Tensor(3.0), lambda t: Tensor(4.0), x.tanh())
    return cond(first > 3.5, lambda: Tensor(1.0), lambda: Tensor(2.0))

  x = Tensor([[1.0, 2.0], [-3.0, 1.0]])
  assert vmap(chosen)(x).tolist() == [2.0, 1.0]
  assert vmap(grad(chosen))(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
