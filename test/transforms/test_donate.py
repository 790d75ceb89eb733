"""`donate` against the function without: values, memory, and what others see of it."""

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, donate, grad, vmap
from tinygrad.helpers import GlobalCounters
from tinygrad.uop import buffer_of

rng = np.random.default_rng(0)
PLACES = [("CPU",), ("CPU:0", "CPU:1")]


def train(parameters, momentum, x):
  loss = lambda p: ((x @ p["w"]).tanh() @ p["v"]).square().sum()  # noqa: E731
  momentum = {k: momentum[k] * 0.5 + g for k, g in grad(loss)(parameters).items()}
  return loss(parameters), {k: p - 0.1 * momentum[k] for k, p in parameters.items()}, momentum


def fresh(devices):
  place = lambda x: Tensor(x).shard(devices, axis=0) if len(devices) > 1 else Tensor(x)  # noqa: E731
  arrays = {"w": rng.normal(size=(4, 4)).astype(np.float32), "v": rng.normal(size=(4, 4)).astype(np.float32)}
  state = (
    {k: place(v).contiguous() for k, v in arrays.items()},
    {k: place(0 * v).contiguous() for k, v in arrays.items()},
  )
  Tensor.realize(*(t for tree in state for t in tree.values()))
  return state


def values(*trees):
  return [t.numpy() for tree in trees for t in tree.values()]


@pytest.mark.parametrize("devices", PLACES, ids=len)
@pytest.mark.parametrize("captured", [False, True])
def test_a_step_trains_alike_in_the_memory_that_it_was_given(captured, devices):
  plain = fresh(devices)
  own = tuple({k: t.clone().realize() for k, t in tree.items()} for tree in plain)
  step = TinyJit(donate(train, (0, 1))) if captured else donate(train, (0, 1))
  memory = [buffer_of(t.uop) for tree in own for t in tree.values()]
  for i in range(5):
    x = Tensor(np.full((2, 4), i + 1, np.float32)).shard(devices) if len(devices) > 1 else Tensor.full((2, 4), i + 1.0)
    value, *plain = train(*plain, x)
    before, old = own[0]["w"] + 1, own[0]["w"]
    want = old.numpy() + 1
    got, *own = step(*own, x)
    np.testing.assert_allclose(got.item(), value.item(), rtol=1e-4)
    for a, b in zip(values(*own), values(*plain), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(before.numpy(), want)  # what was computed before keeps its value
    np.testing.assert_array_equal(old.numpy(), own[0]["w"].numpy())  # and memory shows what lies there
  Tensor.realize(*(t for tree in own for t in tree.values()))
  assert [buffer_of(t.uop) for tree in own for t in tree.values()] == memory


@pytest.mark.parametrize("captured", [False, True])
def test_what_the_function_has_written_reads_the_value(captured):
  """Mutant: what the function has written is written anew, of what lies in the donated memory."""
  state, total = Tensor([1.0, 2.0]).realize(), Tensor([0.0, 0.0]).realize()

  def f(x):
    v = x * 2
    state.assign(state + v)
    total.assign(total + state)
    return v, state * 3, total.sum()

  step = TinyJit(donate(f)) if captured else donate(f)
  for i in range(1, 4):
    x = Tensor([1.0, 1.0]).realize()
    a, b, c = step(x)
    Tensor.realize(a, b, c, state)
    assert (a.tolist(), b.tolist(), x.tolist()) == ([2, 2], [3 + 6 * i, 6 + 6 * i], [2, 2])
    assert (state.tolist(), c.item()) == ([1 + 2 * i, 2 + 2 * i], sum(3 + 4 * k for k in range(1, i + 1)))


def test_it_takes_no_more_memory():
  def peak(f):
    state = {"w": Tensor.ones(1 << 16).contiguous().realize()}
    step, found = TinyJit(f), []
    for _ in range(4):
      before = GlobalCounters.mem_used
      state = step(state)
      found.append(GlobalCounters.mem_used - before)
    return max(found)

  f = lambda s: {"w": s["w"] * 2 + 1}  # noqa: E731
  assert peak(donate(f)) == 0 and peak(f) >= 4 << 16


def test_what_follows_from_a_donated_result_is_read_where_that_lies():
  """Mutant: each value is computed beside the memory, and laid there."""

  def step(w, momentum, x):
    momentum = momentum * 0.5 + x.T @ (x @ w)
    return w - 0.1 * momentum, momentum, (momentum * 2).exp()

  x = Tensor(rng.normal(size=(8, 16)).astype(np.float32)).realize()
  plain = Tensor.ones(16, 16).contiguous().realize(), Tensor.zeros(16, 16).contiguous().realize()
  own = tuple(t.clone().realize() for t in plain)
  train = TinyJit(donate(step, (0, 1)))
  for _ in range(4):
    *plain, want = step(*plain, x)
    *own, got = train(*own, x)
    for a, b in zip((*own, got), (*plain, want), strict=True):
      np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4)
  memory = {id(m) for w in train.captured.work for m in w.memory}
  assert len(memory) == 4  # the arguments, and the exponential; the product is a kernel's own


@pytest.mark.parametrize("captured", [False, True])
def test_what_reads_both_contents_of_donated_memory_has_both(captured):
  """Mutant: a result that also reads what was there before reads the new content of the memory."""

  def step(x, y, z):
    a = x * 2 + y.flip(0)
    b = a.flip(0) + x + y
    return a, b, b * 3 + y - a + z

  f = TinyJit(donate(step, (0, 1, 2))) if captured else donate(step, (0, 1, 2))
  own = tuple(Tensor([1.0 + i, 2.0 * i, 3.0]).realize() for i in range(3))
  arrays = [t.numpy() for t in own]
  for _ in range(4):
    own = f(*own)
    x, y, z = arrays
    a = x * 2 + y[::-1]
    b = a[::-1] + x + y
    arrays = [a, b, b * 3 + y - a + z]
    for t, want in zip(own, arrays, strict=True):
      np.testing.assert_array_equal(t.numpy(), want)


def test_each_reads_what_was_there_before():
  """Mutant: a result is read where the other was."""
  x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
  step = TinyJit(donate(lambda x, y: (y * 2 + x.flip(0), x + 1), (0, 1)))
  a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
  for _ in range(4):
    x, y = step(x, y)
    a, b = b * 2 + a[::-1], a + 1
    assert (x.tolist(), y.tolist()) == (a.tolist(), b.tolist())


@pytest.mark.parametrize("captured", [False, True])
def test_what_is_given_back_as_it_is_is_not_written_to(captured):
  """Mutant: any Tensor of the shape is taken."""
  f = donate(lambda x, y: (y + 1, x, x.reshape(2, 1)), (0,))
  step = TinyJit(f) if captured else f
  x, y = Tensor([1.0, 2.0]).realize(), Tensor([5.0, 5.0]).realize()
  for _ in range(4):
    z, same, view = step(x, y)
    assert (z.tolist(), same.tolist(), view.tolist(), y.tolist()) == ([6, 6], [1, 2], [[1], [2]], [5, 5])


def test_a_result_that_stands_in_two_places_is_one_and_what_fits_none_is_left():
  x, y = Tensor([1.0, 2.0]).realize(), Tensor([5, 5]).realize()

  def f(x, y):
    z = x * 2
    return {"a": z, "b": z, "c": x.sum()}

  out = donate(f, (0, 1))(x, y)
  assert out["a"] is out["b"] is x and out["c"].item() == 3 and x.tolist() == [2, 4] and y.tolist() == [5, 5]


def test_inside_other_transforms_it_is_the_function():
  f = lambda x: x * x  # noqa: E731
  x = Tensor([1.0, 2.0]).realize()
  assert vmap(donate(f))(x).tolist() == [1, 4] and grad(lambda x: donate(f)(x).sum())(x).tolist() == [2, 4]
  assert x.tolist() == [1, 2]
