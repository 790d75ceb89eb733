"""TinyJit: capture, replay, and every part of its key."""

import collections
import copy
import dataclasses
import functools
import os
import pickle
import random
import re
import sys

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, Variable, dtypes, function, nn
from tinygrad.device import Device, Mesh, P, Sharding
from tinygrad.engine import compile as engine
from tinygrad.engine.errors import JitError
from tinygrad.function import tensors_in
from tinygrad.helpers import Context, GlobalCounters

D2 = ("CPU:0", "CPU:1")


def replayed(jit, *calls):
  """The results of the calls; the last one must have been a replay that ran no Python."""
  return [jit(*args).numpy() for args in calls]


def python_calls(f, *args):
  """How many functions, of Python or C, a call of f enters."""
  entered = []
  with Context(SPEC=1):  # 2 checks every node
    sys.setprofile(lambda frame, event, arg: entered.append(event) if event in ("call", "c_call") else None)
    try:
      result = f(*args)  # noqa: F841 (it is not dropped before the count is over)
    finally:
      sys.setprofile(None)
  return len(entered) - 1  # the last is setprofile


def test_a_replay_enters_as_few_functions_for_twenty_kernels_as_for_two():
  """Every kernel reads the input, every other one the variable, and both are new in the calls that are counted."""
  x = [Tensor(np.full((4, 4), k, np.float32)).realize() for k in range(6)]
  n = [Variable("n", 1, 9).bind(k + 1) for k in range(6)]
  counts = []
  for kernels in (2, 20):

    @TinyJit
    def step(x, n, kernels=kernels):
      h = x
      for i in range(kernels):
        h = (h @ x * (n if i % 2 else 0.1)).contiguous()
      return h

    for k in range(4):
      step(x[k], n[k])
    assert len(step.captured.work) == kernels
    same = python_calls(step, x[3], n[3])
    counts.append((same, python_calls(step, x[4], n[3]), python_calls(step, x[4], n[4])))
    a = want = np.full((4, 4), 4.0)
    for i in range(kernels):
      want = want @ a * (6 if i % 2 else 0.1)
    np.testing.assert_allclose(step(x[4], n[5]).numpy(), want, rtol=1e-4)
  assert counts[0] == counts[1]


def test_a_value_that_a_step_has_read_stays_what_it_is():
  """The step computes it anew, of memory that is then written to."""
  memory, x = Tensor([1.0, 2.0]).realize(), Tensor([0.5, 0.5]).realize()
  value = memory * 10
  step = TinyJit(lambda x: x + value)
  for k in range(5):
    assert step(x).tolist() == [10.5, 20.5]
    if k > 1:
      memory.assign(Tensor([7.0, k]))
  assert value.tolist() == [10.0, 20.0] and memory.tolist() == [7.0, 4.0]


@pytest.mark.parametrize("how", ["replace", "shard_", "load_state_dict", "new lazy weights"])
def test_a_step_follows_tensors_that_it_writes_to_other_memory(how):
  model = nn.Linear(2, 1, bias=False)
  if how != "new lazy weights":
    model.weight.realize()
  step = TinyJit(
    lambda x: model(x).realize(model.weight.assign(model.weight * 2)) if how != "new lazy weights" else model(x)
  )
  x = Tensor([[1.0, 1.0]]).realize()
  for _ in range(3):
    step(x)
  if how == "shard_":
    model.weight.shard_(("CPU:0", "CPU:1")).assign([[1.0, 2.0]]).realize()
    x.shard_(("CPU:0", "CPU:1"))
  elif how == "replace":
    model.weight.replace(Tensor([[1.0, 2.0]]))
  else:
    nn.state.load_state_dict(model, {"weight": Tensor([[1.0, 2.0]])}, verbose=False)
  got = [(step(x).item(), model.weight.tolist()) for _ in range(3)]
  grows = how != "new lazy weights"
  assert got == [(3.0 * 2**k, [[2.0 ** (k + 1), 2.0 ** (k + 2)]]) if grows else (3.0, [[1.0, 2.0]]) for k in range(3)]


def test_a_replay_enters_few_functions():
  """On more devices each adds what hands its list over, and no more."""
  x = Tensor(np.ones((8, 8), np.float32)).realize()
  counts = []
  for devices in (1, 2, 4):
    y = x if devices == 1 else x.shard(tuple(f"CPU:{i}" for i in range(devices)), axis=0).realize()
    step = TinyJit(lambda x: (x @ x).relu() * 0.1)
    for _ in range(4):
      step(y)
    tries = []
    for _ in range(5):  # how much of the earlier work can be let go of is the threads' doing
      for i in range(devices):
        Device[f"CPU:{i}"].synchronize()
      tries.append(python_calls(step, y))
    counts.append(min(tries))
  assert counts[0] <= 60 and counts[2] - counts[1] <= 2 * 8


def test_a_value_that_was_made_last_before_a_capture_is_none_of_its_own():
  """It is computed before the memory that it reads is written, by the capture alone."""
  state = Tensor([3.0]).realize()

  @TinyJit
  def exchange(x):
    old = state * 1
    state.assign(x)
    x.assign(old)

  first, second = Tensor([10.0]).realize(), Tensor([20.0]).realize()
  exchange(first)
  value = state * 7
  exchange(second)
  assert value.tolist() == [70.0] and state.tolist() == [20.0]
  value.assign(Tensor([5.0])).realize()
  exchange(Tensor([30.0]).realize())
  assert value.tolist() == [5.0] and len(exchange.captured.work) == 3


def ctrl_c():
  raise KeyboardInterrupt


def test_a_replay_that_is_interrupted_leaves_nothing_half_changed(monkeypatch):
  """Whatever the next call is given, it reads and writes that. (Mutant: what was given is noted first.)"""
  f = TinyJit(lambda x, y: x * 10 + y)
  a, b, c, d = (Tensor([float(k)]).realize() for k in (1, 2, 3, 4))
  for _ in range(3):
    f(a, b)
  put = f.captured.put
  for stop in (0, 1, 2):
    for following in ((a, b), (c, d), (c, b), (a, d)):
      held = f(a, b)  # its memory is to be replaced too
      rest = iter([put] * stop)
      monkeypatch.setattr(f.captured, "put", lambda key, x, rest=rest: put(key, x) if next(rest, None) else ctrl_c())
      with pytest.raises(KeyboardInterrupt):
        f(c, d)
      monkeypatch.undo()
      assert f(*following).item() == following[0].item() * 10 + following[1].item()
      assert held.item() == 12


@pytest.mark.parametrize("seed", range(20))
def test_results_that_are_held_are_never_written_again(seed):
  """Whichever are dropped before and between, and given back as arguments."""
  rng = random.Random(seed)
  f = TinyJit(lambda x, y: (x * 10 + y, x - y))
  values = {k: Tensor([float(k)]).realize() for k in range(4)}
  held = []  # (result, its value)
  for _ in range(40):
    given = [rng.choice([*values.items()]) for _ in range(2)]
    if held and rng.random() < 0.3:
      t, value = rng.choice(held)
      given[rng.randrange(2)] = value, t
    (x, tx), (y, ty) = given
    results = list(zip(f(tx, ty), (x * 10 + y, x - y)))
    held += [r for r in results if rng.random() < 0.4 and abs(r[1]) < 1e4]
    results = None
    held = [h for h in held if rng.random() < 0.8]
    for t, value in held:
      assert t.item() == value


def test_a_variable_whose_replacement_is_interrupted(monkeypatch):
  f = TinyJit(lambda x, n: x * n)
  x, n = Tensor([10.0]).realize(), Variable("n", 1, 9)
  for k in (1, 2, 3):
    f(x, n.bind(k))
  put = f.captured.put
  for following, new in ((3, 4), (5, 3), (4, 4)):  # what stood there, another, what was being put there
    for step in (put, lambda key, x: None):  # interrupted after it is done, and before
      monkeypatch.setattr(f.captured, "put", lambda key, x, step=step: step(key, x) or ctrl_c())
      with pytest.raises(KeyboardInterrupt):
        f(x, n.bind(new))
      monkeypatch.undo()
      assert f(x, n.bind(following)).item() == 10 * following
      f(x, n.bind(9))


def test_a_new_input_is_read_from_every_device():
  """Each device multiplies its rows with the rows of all. (Mutant: only the first device's address is replaced.)"""
  f = TinyJit(lambda x: x @ x)
  for k in range(5):
    a = np.arange(16, dtype=np.float32).reshape(4, 4) + k
    for devices in (D2, ("CPU:0", "CPU:1", "CPU:2", "CPU:3")):
      x = Tensor(a).shard(devices, axis=0).realize()
      np.testing.assert_array_equal(f(x).numpy(), a @ a)


def test_views_lazy_and_realized_arguments_share_what_they_can():
  """A lazy argument is captured as the buffer that it becomes; a view apart, and what it shows is read."""
  f = TinyJit(lambda x: x * 2 + 1)
  base = np.arange(12, dtype=np.float32).reshape(3, 4)
  whole = Tensor(base).realize()
  for k in range(4):
    np.testing.assert_array_equal(f(Tensor(base[k % 3]) + k).numpy(), (base[k % 3] + k) * 2 + 1)
    np.testing.assert_array_equal(f((Tensor(base[0]) + k).realize()).numpy(), (base[0] + k) * 2 + 1)
  assert len(f.states) == 1
  for k in (0, 1, 2, 0, 1, 2):
    np.testing.assert_array_equal(f(whole[k]).numpy(), base[k] * 2 + 1)


def test_a_variable_given_twice_must_have_one_value():
  f = TinyJit(lambda x, n, m: x * n + m)
  x, n = Tensor([1.0]).realize(), Variable("n", 1, 9)
  for k in (2, 3, 4):
    assert f(x, n.bind(k), n.bind(k)).item() == 2 * k
  with pytest.raises(ValueError, match="bound to 2 and to 3"):
    f(x, n.bind(2), n.bind(3))


def test_positional_and_keyword_arguments_are_told_apart():
  f = TinyJit(lambda *args, **kwargs: args[0] * 2 if not kwargs else args[0] * 3 + kwargs["y"])
  x, y = Tensor([1.0]).realize(), Tensor([5.0]).realize()
  for _ in range(4):
    assert (f(x, y).item(), f(x, y=y).item(), f(x, {"y": y}).item()) == (2, 8, 2)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_captured_step_is_replayed_in_a_forked_child():
  f = TinyJit(lambda x: x @ x + 1)
  for size in (2, 300):  # one that the caller runs, and one for the device's threads
    x = Tensor(np.ones((size, size), np.float32)).realize()
    for _ in range(3):
      f(x)
    x.numpy()
    child = os.fork()
    if child == 0:
      os._exit(0 if (f(x).numpy() == size + 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (f(x).numpy() == size + 1).all()


def test_replay_computes_new_values_without_running_the_function():
  ran = []

  @TinyJit
  def f(x, y):
    ran.append(1)
    return (x * y + 1.0).relu().sum(axis=1)

  rng = np.random.default_rng(0)
  for _ in range(6):
    a, b = rng.standard_normal((3, 4), dtype=np.float32), rng.standard_normal((3, 4), dtype=np.float32)
    np.testing.assert_allclose(f(Tensor(a), Tensor(b)).numpy(), np.maximum(a * b + 1, 0).sum(1), rtol=1e-5)
  assert len(ran) == 2 and f.captured is not None


def test_a_held_result_that_other_devices_read_too():
  """It lies on one device, and moves for each replay; those that add it up for themselves read it there."""
  total = Tensor.ones(1).shard(D2, None).reshape(1).max(0)

  @TinyJit
  def f(x):
    zeros = x.zeros_like()
    half = zeros * 0.5
    total.assign(total * 0.5 + half.sum())
    return half, zeros

  held = [f(Tensor.ones(2, 3).realize()) for _ in range(4)]
  assert total.item() == 1 / 16 and all((a + b).sum().item() == 0 for a, b in held)


def test_a_result_that_is_held_is_not_overwritten():
  f = TinyJit(lambda x: (x + 1.0, x * 2.0))
  held = [f(Tensor([float(i)])) for i in range(6)]
  assert [(a.item(), b.item()) for a, b in held] == [(i + 1, 2 * i) for i in range(6)]


def test_what_is_derived_from_a_result_holds_it():
  f = TinyJit(lambda x: x + 1.0)
  lazy = [f(Tensor([float(i), 5.0]))[:1] * 10 for i in range(5)]
  assert [t.item() for t in lazy] == [10.0 * (i + 1) for i in range(5)]
  before = f(Tensor([7.0, 8.0]))
  parts = Tensor.from_shards([before, f(Tensor([1.0, 2.0]))], Sharding(D2, 0))
  del before
  for i in range(3):
    f(Tensor([float(i), 0.0]))
  np.testing.assert_array_equal(parts.numpy(), [8, 9, 2, 3])


def test_the_memory_of_a_dropped_result_is_used_again():
  f = TinyJit(lambda x: x + 1.0)
  x = Tensor(np.zeros(1000, np.float32)).realize()
  f(x)
  f(x)
  used, addresses = GlobalCounters.mem_used, set()
  f(x)
  for _ in range(5):
    addresses.add(id(f.captured.made[0].memory))
    f(x)
  assert len(addresses) == 1 and GlobalCounters.mem_used == used


@pytest.mark.parametrize("where", ["CPU", "PYTHON"])
def test_a_result_is_the_next_argument(where):
  """Replayed in place, flip would read what it has just written."""
  f = TinyJit(lambda x: x.flip(0) * 2)
  x, want = Tensor([1.0, 2.0, 3.0, 4.0]).to(where), np.arange(1.0, 5.0)
  for _ in range(6):
    x, want = f(x), want[::-1] * 2
    np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("where", [None, 0], ids=["one", "D2"])
def test_a_state_that_is_the_argument_too_is_one_memory(where, late):
  """Captured with other arguments, the step is captured anew for that; and both go on."""
  w = Tensor([1.0, 2.0, 3.0, 4.0])
  w = (w if where is None else w.shard(D2, where)).realize()

  def step(x):
    y = x * 10 if late else None
    w.assign(w + x.flip(0))
    return y if late else x * 10 + w

  f = TinyJit(step)
  want = np.arange(1.0, 5.0)
  for k in (1, 2, 3, None, 4, None, None, 5, None):
    given = w if k is None else Tensor([float(k), 0.0, 0.0, 1.0]).to(w.device).realize()
    before = want if k is None else np.array([k, 0.0, 0.0, 1.0])
    want = want + before[::-1]
    read = want if k is None else before
    np.testing.assert_array_equal(f(given).numpy(), before * 10 if late else read * 10 + want)
    np.testing.assert_array_equal(w.numpy(), want)
  assert len(f.states) == 2 and all(s.captured is not None for s in f.states.values())


def test_a_view_of_the_state_as_the_argument():
  w = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
  other, want = Tensor([5.0, 6.0, 7.0, 8.0]).realize(), np.arange(1.0, 5.0)
  f = TinyJit(lambda x: (w.assign(w + 1), x * 10)[1])
  for k in range(9):
    given, a = (w[1:3], want[1:3] + 1) if k in (3, 5, 6, 8) else (other[1:3], np.array([6.0, 7.0]))
    np.testing.assert_array_equal(f(given).numpy(), a * 10)
    want = want + 1
    np.testing.assert_array_equal(w.numpy(), want)


def test_an_argument_that_is_written_and_read_as_a_weight():
  """The step writes to its argument, and reads its weight: where they are one, in the order of the program."""
  w, x = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 20.0]).realize()

  @TinyJit
  def f(x):
    x.assign(x + 100)
    return w * 2

  for k in range(7):
    given, before = (w, w.numpy()) if k in (3, 4, 6) else (x, x.numpy())
    got = f(given).numpy()
    np.testing.assert_array_equal(given.numpy(), before + 100)
    np.testing.assert_array_equal(got, w.numpy() * 2)


def test_training_is_part_of_the_key():
  f = TinyJit(lambda x: x * (2.0 if Tensor.training else 3.0))
  for k in range(4):
    with Tensor.train(bool(k % 2)):
      assert [f(Tensor([1.0])).item() for _ in range(3)] == [2.0 if k % 2 else 3.0] * 3


def test_the_default_device_and_float_are_part_of_the_key():
  g = TinyJit(lambda n: Tensor.ones(n).contiguous())
  for k in range(4):
    with Context(DEV=f"CPU:{k % 2}", DEFAULT_FLOAT=("float32", "float64")[k % 2]):
      for _ in range(3):
        made = g(2)
        assert (made.device, made.dtype.name) == (("CPU", "CPU:1")[k % 2], ("float32", "float64")[k % 2])


def test_random_numbers_are_new_in_every_replay():
  f = TinyJit(lambda x: x * Tensor.rand(4))
  drawn = [tuple(f(Tensor([1.0])).tolist()) for _ in range(6)]
  assert len(set(drawn)) == 6


def test_results_that_a_replay_cannot_renew_are_an_error():
  with pytest.raises(JitError, match=r"returns 3 of type int, which a replay would repeat unchanged"):
    TinyJit(lambda x: {"a": x + 1, "b": [3]})(Tensor([1.0]))
  f = TinyJit(lambda x: (x + 1, None))
  assert [f(Tensor([float(i)]))[0].item() for i in range(4)] == [1, 2, 3, 4]


def test_an_array_that_is_no_tensor_is_an_error():
  with pytest.raises(JitError, match=r"fix: give Tensor\(array\)"):
    TinyJit(lambda x, a: x + Tensor(a))(Tensor([1.0]), np.ones(1, np.float32))


def test_named_tuples_and_unhashable_objects():
  Pair = collections.namedtuple("Pair", "a b")

  @dataclasses.dataclass
  class Scale:  # compares by value, so it has no hash
    by: float

  f = TinyJit(lambda p, s: Pair(p.a * s.by, p.b))
  two, three = Scale(2.0), Scale(3.0)
  for k in range(4):
    for s in (two, three):
      got = f(Pair(Tensor([float(k)]), Tensor([1.0])), s)
      assert isinstance(got, Pair) and (got.a.item(), got.b.item()) == (k * s.by, 1.0)


def increment(x):
  return x + 1


class Jitted:
  """A model that has its captured step as an attribute, as programs do."""

  def __init__(self):
    self.layer = nn.Linear(2, 2)
    self.step = TinyJit(self.forward)

  def forward(self, x):
    return self.layer(x).realize()


def test_a_copy_of_a_captured_step_captures_anew():
  """Of a method it is the copied object's; a pickle holds the function, and what was captured stays."""
  model, x = Jitted(), Tensor([[1.0, 2.0]]).realize()
  calls = [model.step(x).numpy() for _ in range(3)]
  other = copy.deepcopy(model)
  other.layer.weight.assign(other.layer.weight * 2).realize()
  for _ in range(3):
    np.testing.assert_array_equal(other.step(x).numpy(), other.forward(x).numpy())
  np.testing.assert_array_equal(model.step(x).numpy(), calls[0])
  assert np.abs(other.step(x).numpy() - calls[0]).max() > 0.01 and model.step.captured is not other.step.captured
  step = TinyJit(increment)
  for k in range(3):
    step(Tensor([float(k)]))
  again = pickle.loads(pickle.dumps(step))
  assert [again(Tensor([float(k)])).item() for k in range(4)] == [1, 2, 3, 4] and again.captured is not None


@TinyJit
def decorated(x):
  return x + 1.0


def test_a_decorated_function_is_pickled_by_its_name():
  """Which is the step's: `pickle` found another object under it. A copy captures anew, as of every step."""
  decorated.reset()
  assert pickle.loads(pickle.dumps(decorated)) is decorated
  assert pickle.loads(pickle.dumps({"step": decorated}))["step"] is decorated
  for again in (copy.copy(decorated), copy.deepcopy(decorated)):
    assert again is not decorated and [again(Tensor([float(k)])).item() for k in range(3)] == [1, 2, 3]
  assert decorated.captured is None


def test_decorator_with_arguments():
  @TinyJit(prune=True)
  def f(x):
    return x + 1.0

  assert isinstance(f, TinyJit)
  assert [f(Tensor([float(i)])).item() for i in range(4)] == [1, 2, 3, 4]


def test_function():
  w = Tensor([2.0]).realize()

  @function
  def square(x):
    return x * x

  x = Tensor([3.0])
  square(x).sum().backward()
  assert x.grad.item() == 6.0
  assert function(allow_implicit=True)(lambda x: x * w)(x).item() == 6.0
  assert [t.item() for t in function(lambda xs, k: (xs[0] + k, xs[1]))([x, w], 1)] == [4.0, 2.0]
  with pytest.raises(RuntimeError, match=r"reads 1 buffers that are no arguments\n  float32\[1\] on CPU"):
    function(lambda x: x * w)(x)
  with pytest.raises(RuntimeError, match="returns list"):
    function(lambda x: [x])(x)


class Model:
  def __init__(self):
    self.first, self.norm = nn.Linear(4, 3), nn.BatchNorm(3)
    self.more = {"scale": [Tensor.ones(3).contiguous().realize()]}
    nn.state.load_state_dict(self, nn.state.get_state_dict(self), verbose=False)

  @function
  def __call__(self, x):
    return (self.norm(self.first(x)) * self.more["scale"][0]).dropout(0.5)

  def plainly(self, x):
    return (self.norm(self.first(x)) * self.more["scale"][0]).dropout(0.5)


def test_function_on_a_model():
  """Its weights are its arguments, and numbers may be drawn; gradients are those without the decorator."""
  model, x = Model(), Tensor.rand(6, 4).realize()
  results = []
  for call in (model, model.plainly):
    with Tensor.train():
      Tensor.manual_seed(1)
      y = call(x)
    weights = [model.first.weight, model.more["scale"][0]]
    results.append([y.numpy(), *(g.numpy() for g in y.square().sum().gradient(*weights))])
  for ours, plain in zip(*results):
    np.testing.assert_array_equal(ours, plain)
  assert np.abs(results[0][1]).max() > 0


def test_function_finds_what_get_state_dict_finds():
  held = {"a": [Tensor.rand(2).realize()], "b": Model()}
  found = {id(t) for t in tensors_in(((), held))}
  assert found == {id(t) for t in nn.state.get_parameters(held)}
  held["again"] = held  # an object may refer back to its owner
  assert {id(t) for t in tensors_in(held)} == found


def test_function_still_refuses_what_is_hidden():
  hidden = Tensor.rand(4).realize()
  with pytest.raises(RuntimeError, match="reads 1 buffers that are no arguments"):
    function(lambda self, x: self.first(x + hidden))(Model(), Tensor.rand(2, 4))


@pytest.mark.parametrize("devices", [1, 2])
def test_function_with_a_gradient_of_its_own(devices):
  """A sign whose gradient passes where |x| < 1, beside numpy; the plain function of the same value keeps its own."""
  passing = function(lambda x, k: x * k, grad_fxn=lambda g, x, k: (g * (x.abs() < 1), None))
  a = np.array([-2.0, -0.5, 0.25, 3.0], np.float32)
  x, k = Tensor(a), Tensor([2.0, 3.0, 4.0, 5.0])
  if devices > 1:
    x, k = (t.shard(("CPU:0", "CPU:1"), 0) for t in (x, k))
  y, plain = passing(x, k), x * k
  np.testing.assert_array_equal(y.numpy(), a * [2, 3, 4, 5])
  np.testing.assert_array_equal((y * 3).sum().gradient(x)[0].numpy(), 3.0 * (np.abs(a) < 1))
  np.testing.assert_array_equal((plain * 3).sum().gradient(x)[0].numpy(), [6, 9, 12, 15])
  np.testing.assert_array_equal((y * 3).sum().gradient(k)[0].numpy(), [0, 0, 0, 0])
  both = (y.detach() * 5 + y + plain).sum().gradient(x)[0]
  np.testing.assert_array_equal(both.numpy(), (np.abs(a) < 1) + [2.0, 3, 4, 5])
  x.realize()  # what takes the place of an input is an input
  np.testing.assert_array_equal((y * 3).sum().gradient(x)[0].numpy(), 3.0 * (np.abs(a) < 1))


def test_a_gradient_of_its_own_of_two_results_and_a_model():
  layer = nn.Linear(2, 2, bias=False)
  x = Tensor([[1.0, 2.0]])
  f = function(lambda layer, x: (layer(x), x + 1), grad_fxn=lambda g, h, w, x: (w * 0 + g.sum(), h * 10))
  y, z = f(layer, x)
  gw, gx = (y * 2 + z * 3).sum().gradient(layer.weight, x)
  np.testing.assert_array_equal(gw.numpy(), np.full((2, 2), 4.0))
  np.testing.assert_array_equal(gx.numpy(), [[30.0, 30.0]])


def test_a_gradient_of_its_own_compiles_once():
  step = TinyJit(lambda x: f(x).sum().gradient(x)[0].realize())
  f = function(lambda x: x.exp(), grad_fxn=lambda g, x: g * 7)
  for k in range(4):
    np.testing.assert_array_equal(step(Tensor([float(k), 1.0]).realize()).numpy(), [7.0, 7.0])
  plans = []
  for k in range(3):
    f(Tensor([float(k), 1.0]).realize()).realize()
    plans.append(len(engine._plans))
  assert plans[1] == plans[2]


def test_a_gradient_of_its_own_has_to_fit():
  f = function(lambda x: x * 2, grad_fxn=lambda g, x: (g, g))
  with pytest.raises(RuntimeError, match=r"2 gradients for 1 inputs(.|\n)*fix: return tensors of \[1\], or None"):
    f(x := Tensor([1.0])).sum().gradient(x)


def test_another_shape_dtype_or_placement_is_captured_anew():
  f = TinyJit(lambda x: (x * 2).sum())
  x = np.arange(8)
  for array in (x.astype(np.float32), x.astype(np.float32).reshape(2, 4), x.astype(np.int32), x[:4].astype(np.float32)):
    for _ in range(4):
      assert f(Tensor(array)).item() == 2 * array.sum()
  for s in (Sharding(D2, 0), Sharding(D2), Sharding(D2[::-1], 0)):
    for k in range(4):
      assert f(Tensor((x + k).astype(np.float32)).shard(s)).item() == 2 * (x + k).sum()


def test_device_order_is_part_of_the_key():
  """Replaying a capture for (0, 1) on (1, 0) would swap the halves."""
  f = TinyJit(lambda x: x + 0.0)
  for k in range(4):
    for order in (D2, D2[::-1]):
      a = np.arange(4, dtype=np.float32) + k
      np.testing.assert_array_equal(f(Tensor(a).shard(order, axis=0)).numpy(), a)


def test_aliased_arguments_are_part_of_the_key():
  f = TinyJit(lambda x, y: x - y)
  for k in range(4):
    a = Tensor([float(k + 5)]).realize()
    assert f(a, a).item() == 0
    assert f(a, Tensor([1.0])).item() == k + 4


def test_python_arguments_are_part_of_the_key():
  f = TinyJit(lambda x, n: x * n)
  for k in range(4):
    for n in (2, 3):
      assert f(Tensor([1.0 + k]), n).item() == (1 + k) * n


def test_nested_and_keyword_arguments():
  f = TinyJit(lambda xs, *, y: [xs[0] + y, {"sum": xs[0] + xs[1][0]}])
  for k in range(4):
    a, (b) = f([Tensor([1.0 * k]), (Tensor([2.0]),)], y=Tensor([3.0]))
    assert a.item() == k + 3 and b["sum"].item() == k + 2


def test_variable():
  f = TinyJit(lambda x, n: x[:n].sum() * 1.0)
  x = Tensor(np.arange(10, dtype=np.float32)).realize()
  ran = f.fxn
  for n in (3, 7, 1, 10, 4):
    assert f(x, Variable("n", 1, 10).bind(n)).item() == np.arange(n).sum()
  assert f.captured is not None and f.fxn is ran and len(f.states) == 1


def test_symbolic_result_follows_the_variable():
  f = TinyJit(lambda x, n: x[:n] + 1.0)
  x = Tensor(np.arange(6, dtype=np.float32)).realize()
  for n in (2, 5, 3):
    out = f(x, Variable("n", 1, 6).bind(n))
    np.testing.assert_array_equal(out.numpy(), np.arange(n) + 1)


def test_weights_assigned_in_place():
  w = Tensor([1.0, 2.0]).realize()

  @TinyJit
  def step(x):
    w.assign(w + x)
    return w.realize()

  total = np.array([1.0, 2.0])
  for k in range(5):
    total += k
    np.testing.assert_array_equal(step(Tensor([float(k), float(k)])).numpy(), total)
    np.testing.assert_array_equal(w.numpy(), total)


def test_an_input_returned_as_it_is():
  f = TinyJit(lambda x, y: (x + y, y))
  for k in range(4):
    s, y = f(Tensor([1.0]), Tensor([float(k)]))
    assert (s.item(), y.item()) == (k + 1, k)


rate, steps = 1.0, 0


def test_numbers_around_the_function_are_read_in_each_call():
  """Of its module, and of the functions around it; those that it sets are its own side effects."""
  global rate
  calls, scale, text = 0, 1, "add"

  @TinyJit
  def f(x):
    nonlocal calls
    global steps
    calls, steps = calls + 1, steps + 1
    return ((lambda y: y * scale)(x) + rate if text == "add" else x * rate).realize()

  x = Tensor([3.0]).realize()
  for rate in (1.0, 2.0, 2.0, 2.0, 1.0, 1.0, -0.0, 0.0):
    y = f(x)
    assert y.item() == 3.0 + rate
  assert calls == steps == 6  # twice of a kind: of 0.0 and -0.0 once each as yet
  assert str(f(x * 0 - 0.0).item()) == "0.0"
  scale = 2
  assert f(x).item() == 6.0
  text = "mul"
  assert [f(x).item() for _ in range(3)] == [0.0] * 3
  rate = 1.0


@pytest.mark.parametrize(
  "wrap", [lambda f: f, functools.partial, Tensor.train(), TinyJit], ids=["f", "partial", "train", "jit"]
)
def test_numbers_around_a_function_that_is_wrapped(wrap):
  factor = 1
  f = TinyJit(wrap(lambda x: (x * factor).realize()))
  for factor in (1, 1, 1, 2, 2, 1):
    assert f(Tensor([2.0]).realize()).item() == 2 * factor


def test_reading_a_value_inside_is_an_error():
  f = TinyJit(lambda x: x + x.sum().item())
  f(Tensor([1.0]))
  with pytest.raises(JitError, match="return the Tensor from the function and read it outside"):
    f(Tensor([1.0]))
  assert (Tensor([1.0]) + 1).item() == 2.0  # capture is over


def test_nothing_captured_is_an_error():
  f = TinyJit(lambda x: None)
  f(Tensor([1.0]))
  with pytest.raises(JitError, match="nothing was computed"):
    f(Tensor([1.0]))


def test_reset_and_method_and_switch():
  class Model:
    def __init__(self):
      self.w, self.ran = Tensor([3.0]).realize(), 0

    @TinyJit
    def __call__(self, x):
      self.ran += 1
      return x * self.w

  a, b = Model(), Model()
  b.w = Tensor([5.0]).realize()
  for k in range(4):
    assert a(Tensor([1.0 + k])).item() == 3 * (1 + k)
    assert b(Tensor([1.0 + k])).item() == 5 * (1 + k)
  assert a.ran == b.ran == 2
  Model.__call__.reset()
  a(Tensor([1.0]))
  assert a.ran == 3
  with Context(JIT=0):
    for _ in range(3):
      a(Tensor([1.0]))
  assert a.ran == 6


def test_ever_new_kinds_of_arguments_are_warned_of(monkeypatch):
  monkeypatch.setattr("tinygrad.engine.jit.KEPT_STATES", 4)
  step, x = TinyJit(lambda x, rate: x * rate), Tensor([1.0, 2.0])
  for k in range(4):
    assert step(x, k / 8).tolist() == [k / 8, k / 4]
  with pytest.warns(UserWarning, match="more than 4 kinds of arguments(.|\n)*fix: .*Tensors") as told:
    assert step(x, 0.625).tolist() == [0.625, 1.25]
  assert told[0].filename == __file__ and len(step.states) == 4


def test_jit_inside_jit_is_a_part_of_it():
  inner = TinyJit(lambda x: x * 2.0)
  f = TinyJit(lambda x: inner(x) + 1.0)
  for k in range(5):
    assert f(Tensor([float(k)])).item() == 2 * k + 1


@pytest.mark.parametrize("jit", [0, 1])
def test_arguments_of_a_jit_inside_a_jit_are_realized_as_in_every_other_call(jit):
  """What they were computed from is another Tensor's business: no gradient goes on through them."""
  s = Tensor([1.0, 2.0, 3.0]).realize()
  inner = TinyJit(lambda x: ((x * 3).sum() * s).sum().gradient(s)[0] * 1)
  outer = TinyJit(lambda a: inner(s.flip(0) + a))
  with Context(JIT=jit):
    for a in (0.0, 0.0, 0.0, 1.0):
      np.testing.assert_array_equal(outer(Tensor([a])).numpy(), [18 + 9 * a] * 3)


@pytest.mark.parametrize("placed", [lambda t: t, lambda t: t.shard(D2, axis=0)], ids=["one", "two"])
def test_a_value_older_than_the_step_is_not_taken_for_an_equal_one_that_the_step_computes(placed):
  """It has to be computed before the step writes to what it reads; the step, which computes the same, computes it in
  each replay from what is there then. Mutant: an older value is computed under its own node."""
  a = placed(Tensor([1.0, 2.0])).realize()
  b = placed(Tensor([3.0, 4.0])).realize()

  @TinyJit
  def exchange(x):
    doubled = a * 2
    a.assign(b)
    b.assign(doubled)
    return x + 1

  x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
  for k in range(6):
    kept = a * 2 if k else None
    exchange(Tensor([float(k)]))
    if kept is not None:
      np.testing.assert_array_equal(kept.numpy(), 2 * x)
    x, y = y, 2 * x
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal(b.numpy(), y)


def test_sharded_matmul_and_the_count_of_kernels():
  mesh = Mesh(D2, names=("tp",))
  rng = np.random.default_rng(1)
  w = rng.standard_normal((6, 4), dtype=np.float32)
  ws = Tensor(w).shard(mesh, P("tp", None)).realize()
  f = TinyJit(lambda x: (x @ ws).relu())
  for k in range(4):
    x = rng.standard_normal((3, 6), dtype=np.float32)
    GlobalCounters.reset()
    np.testing.assert_allclose(
      f(Tensor(x).shard(mesh, P(None, "tp"))).numpy(), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5
    )
    if k == 0:
      plain = GlobalCounters.kernel_count
    assert GlobalCounters.kernel_count == plain


def test_a_replay_has_its_place_in_the_order_of_the_program():
  """What was computed from the state before a call keeps its value, what was assigned to it is seen; neither is a
  part of the step, whenever it was captured."""
  state, x = Tensor([1.0, 2.0]).realize(), Tensor([1.0, 1.0]).realize()
  step = TinyJit(lambda x: state.assign(state + x).mul(1).realize())
  want, kept = np.array([1.0, 2.0]), []
  for _ in range(5):
    kept.append((state * 10, want * 10))
    state.assign(state + 100)
    want = want + 101
    np.testing.assert_array_equal(step(x).numpy(), want)
  for later, then in kept:
    np.testing.assert_array_equal(later.numpy(), then)
  np.testing.assert_array_equal(state.numpy(), want)


STATES = {
  "realized": lambda: Tensor([1.0, 2.0, 3.0, 4.0]).realize(),
  "lazy": lambda: Tensor([1.0, 2.0, 3.0, 4.0]),
  "number": lambda: Tensor.full((4,), 3.0),
  "computed": lambda: Tensor.arange(4).float() + 1,
  "halves": lambda: Tensor([1.0, 2.0, 3.0, 4.0]).shard(D2, 0).realize(),
  "copies": lambda: Tensor([1.0, 2.0, 3.0, 4.0]).shard(D2, None).realize(),
}


def assigned_steps():
  """Functions of three states and an argument, Tensors or arrays."""

  def whole(w, v, u, x):
    y = x * 2
    w.assign(w * 0.5 + y)
    return y

  def several(w, v, u, x):
    y = x * 2
    w.assign(w * 0.5 + y)
    v.assign(v + w)
    u.assign(v - u)
    return y

  def part(w, v, u, x):
    w[1:3] = w[0:2] + x[1:3]
    v[2:] = x[:2]
    return x + 1

  def nothing(w, v, u, x):
    w.assign(w + x)

  def swapped(w, v, u, x):
    old = w + 0.5
    w.assign(v + x)
    v.assign(old)
    return x * 3 + w

  def twice(w, v, u, x):
    w.assign(w + x)
    y = w * 2
    w.assign(w + y)
    return y + v

  return [whole, several, part, nothing, swapped, twice]


class Held(np.ndarray):
  """An array that is assigned to as a Tensor is."""

  def assign(self, x):
    self[...] = np.asarray(x).copy()
    return self


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("step", assigned_steps(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_what_a_step_assigns_and_does_not_return_is_replayed(step, state, read):
  """The same function of tensors and of arrays, with states that are read after each call, or only in the end."""
  states = [STATES[state]() for _ in range(3)]
  arrays = [t.numpy().copy().view(Held) for t in states]
  f = TinyJit(lambda x: step(*states, x))
  for k in range(5):
    a = np.array([k, 1.0, -k, 2.0], np.float32)
    got, want = f(Tensor(a).to(states[0].device)), step(*arrays, a)
    if want is not None:
      np.testing.assert_array_equal(got.numpy(), want)
    if read or k == 4:
      for t, b in zip(states, arrays):
        np.testing.assert_array_equal(t.numpy(), b)
  assert f.captured is not None


def write(x, i):
  x[i] = i + 1.0


def replace(x, i):
  x.replace(Tensor([1.0, 2.0, 3.0]) * (i + 1))


@pytest.mark.parametrize(
  "change",
  [
    write,
    lambda x, i: x.assign(x * 2 + i),
    replace,
    lambda x, i: nn.state.load_state_dict([x], {"0": Tensor([3.0, 1.0, float(i)])}, verbose=False),
  ],
  ids=["setitem", "assign", "replace", "load_state_dict"],
)
@pytest.mark.parametrize(
  "make",
  [
    lambda: Tensor.zeros(3),
    lambda: Tensor.zeros(3).contiguous(),
    lambda: Tensor([0.0, 0.0, 0.0]),
    lambda: Tensor(np.zeros(3, "float32")) + 1,
  ],
  ids=["constant", "contiguous", "list", "computed"],
)
def test_a_replay_reads_what_is_written_to_a_value_that_the_step_closes_over(make, change):
  state, python = make(), []

  @TinyJit
  def step(x):
    python.append(0)
    return (state * x).sum() + state[1]

  for i in (0, 1, 2, 0, 1, 2):
    change(state, i)
    want = 3 * state.numpy().sum() + state.numpy()[1]
    np.testing.assert_allclose(step(Tensor([3.0])).numpy(), want, rtol=1e-6)
  assert len(python) <= 3 or change is replace  # then the value is memory, of which replays know


@pytest.mark.parametrize("before", [lambda a: a * 2, lambda a: a + 1, lambda a: a.sum().reshape(1).expand(3)])
def test_a_value_computed_of_an_argument_before_the_step_stays_what_it_was(before):
  first = Tensor([1.0, 2.0, 3.0]).realize()
  want, state = before(first).numpy(), Tensor([0.0, 0.0, 0.0])
  state.replace(before(first))

  @TinyJit
  def step(x):
    return x + state * 10

  for x in (first, first, Tensor([5.0, 6.0, 7.0]), Tensor([-1.0, 0.0, 1.0])):
    np.testing.assert_allclose(step(x).numpy(), x.numpy() + want * 10)
  assert step.captured is not None


@pytest.mark.parametrize("rebound", [False, True])
def test_a_value_computed_of_what_the_step_writes_stays_what_it_was(rebound):
  """Mutant: what was read from outside is noted after it was computed, so that it passes for a part of the step."""
  state, values = Tensor([1.0]).realize(), [Tensor([3.0]).realize()]

  @TinyJit
  def step(x):
    state.assign(values[0] + 1)
    return x * 1

  x = Tensor([0.0]).realize()
  step(x)
  if rebound:
    values[0] = state * 10
  else:
    values[0].replace(state * 10)
  for _ in range(4):
    step(x)
    assert state.tolist() == [41.0]
  assert step.captured is not None


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("value", [lambda s: s * 1, lambda s: (s + 0).detach(), lambda s: Tensor([512.0]) / 2])
def test_state_that_has_no_memory_when_a_step_is_captured_is_written_in_every_call(value, calls):
  state, want = Tensor([1024.0]).realize(), 1024.0

  @TinyJit
  def step(x):
    state.assign(state * 0.5)
    return x * 1

  x = Tensor([1.0]).realize()
  for _ in range(calls):
    step(x)
    want *= 0.5
  state.replace(value(state))
  want = state.detach().item()
  for _ in range(5):
    step(x)
    want *= 0.5
  assert state.item() == want and step.captured is not None


@dataclasses.dataclass(frozen=True)
class Scale:
  by: float


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (Scale(1), Scale(1.0)), ({1: 2}, {1.0: 2}), (True, 1)])
def test_equal_arguments_that_differ_are_told_apart(one, other):
  def f(x, z):
    scale = z.by if isinstance(z, Scale) else next(iter(z)) if isinstance(z, dict) else z
    return (x * scale).cast(dtypes.float32), x * 1 if isinstance(scale, bool) else x * 2

  step, x = TinyJit(f), Tensor([1], dtype=dtypes.int32).realize()
  for z in (one, one, one, other, other, other, one):
    for got, want in zip(step(x, z), f(x, z), strict=True):
      assert got.dtype is want.dtype and str(got.tolist()) == str(want.tolist())


def test_what_was_assigned_before_is_no_part_of_the_step():
  w, v, want = Tensor([1.0]).realize(), Tensor([1.0]).realize(), 1.0
  f = TinyJit(lambda x: (w.assign(w * 2 + x), x + 1)[1])
  for k in range(5):
    w.assign(w + 10)
    v.assign(v + 1)
    assert f(Tensor([float(k)])).item() == k + 1
    want = (want + 10) * 2 + k
  assert (w.item(), v.item()) == (want, 6)


def test_running_statistics_of_a_captured_step():
  """As eagerly; of a model that nothing has realized."""
  rng = np.random.default_rng(2)
  batches = [rng.standard_normal((5, 3, 2, 2), dtype=np.float32) for _ in range(5)]
  models = [nn.BatchNorm(3), nn.BatchNorm(3)]
  captured = TinyJit(lambda x: models[0](x).relu())
  with Tensor.train():
    for a in batches:
      eager = models[1](Tensor(a)).relu().numpy()
      np.testing.assert_allclose(captured(Tensor(a)).numpy(), eager, rtol=1e-5, atol=1e-6)
      for name, t in nn.state.get_state_dict(models[0]).items():
        np.testing.assert_allclose(t.numpy(), nn.state.get_state_dict(models[1])[name].numpy(), rtol=1e-5, atol=1e-6)
  assert models[0].num_batches_tracked.item() == 5


def test_a_view_is_a_step_too():
  turned = TinyJit(lambda x, y: (x.reshape(2, 3).T, y, x[1:3]))
  for k in range(4):
    x, y = (Tensor((np.arange(6) + k * n).astype(np.float32)).realize() for n in (1, 10))
    a, b, c = turned(x, y)
    np.testing.assert_array_equal(a.numpy(), (np.arange(6) + k).reshape(2, 3).T)
    np.testing.assert_array_equal(b.numpy(), np.arange(6) + 10 * k)
    np.testing.assert_array_equal(c.numpy(), np.arange(6)[1:3] + k)


def test_an_argument_that_is_given_back_is_that_tensor():
  """As without TinyJit: assigned to, or as it was; a view of it, and what it has been made to stand for, are others."""

  def step(x, y, z):
    z.replace(z + 1)
    return {"x": x.assign(x + y), "y": [y, y], "view": y.reshape(2, 1), "z": z}

  f = TinyJit(step)
  x, want = Tensor([1.0, 2.0]).realize(), np.array([1.0, 2.0])
  for i in range(5):
    y, z = Tensor([float(i), 1.0]).realize(), Tensor([3.0, 4.0]).realize()
    out = f(x, y, z)
    want = want + [i, 1]
    assert out["x"] is x and out["y"][0] is y and out["y"][1] is y and out["view"] is not y
    assert (out["z"] is z) == (i < 2) and out["z"].tolist() == [4, 5] and out["view"].tolist() == [[i], [1]]
    np.testing.assert_array_equal(x.numpy(), want)


# ---------------------------------------------------------------- memory of a step


def memory_within(jit):
  """What lies between the kernels of a captured step, and means nothing afterwards."""
  return {id(m): m for w in jit.captured.work for m in w.memory if m.passing}


def test_equal_graphs_in_a_step_have_one_memory_for_what_is_within():
  eye = Tensor.eye(64).contiguous().realize()

  def of(count):
    @TinyJit
    def step(x):
      for _ in range(count):
        x = ((x @ eye + 1).contiguous() @ eye).contiguous().realize()
      return x

    x = Tensor(np.arange(4096, dtype=np.float32).reshape(64, 64)).realize()
    with Context(TILE_AND_FUSE=0):
      for i in range(4):
        np.testing.assert_array_equal(step(x + i).numpy(), x.numpy() + i + count)
    return sum(m.nbytes_per_device for m in memory_within(step).values() if m.shape != (64, 64))

  assert of(6) == of(2) > 0


def test_what_a_step_realises_and_drops_passes_and_what_is_seen_does_not():
  kept = []

  @TinyJit
  def step(x):
    dropped = (x * 2).contiguous().realize()
    seen = (dropped + 1).contiguous().realize()
    kept[:] = [seen]
    return (seen * seen).contiguous()

  x = Tensor([1.0, 2.0]).realize()
  for i in range(4):
    np.testing.assert_array_equal(step(x + i).numpy(), ((x.numpy() + i) * 2 + 1) ** 2)
  written = [w.memory[0] for w in step.captured.work]
  assert [m.passing for m in written] == [True, False, False]
  np.testing.assert_array_equal(kept[0].numpy(), [9.0, 11.0])  # of the last call: nobody else has written there


def test_memory_that_was_there_before_the_step_stays():
  """A table that the function drops in the call that is captured is read by every replay."""
  tables = [Tensor([3.0, 4.0]).contiguous().realize() for _ in range(2)]

  @TinyJit
  def step(x):
    return (x * (tables.pop() if tables else 0)).contiguous()

  x = Tensor([1.0, 2.0]).realize()
  assert [step(x + i).numpy().tolist() for i in range(3)] == [[3.0, 8.0], [6.0, 12.0], [9.0, 16.0]]
  assert not memory_within(step)


def test_what_was_computed_of_an_argument_before_the_step_writes_to_it_keeps_its_value():
  """Also where the step was called with other arguments in between: `earlier` had changed by then."""
  step = TinyJit(lambda x, y: x.assign(x * 2 + y).realize())
  one = Tensor([1.0]).realize()
  for _ in range(3):
    step(Tensor([1.0]).realize(), one)
  a, b = Tensor([1.0]).realize(), Tensor([10.0]).realize()
  earlier, of_what_is_read = b + 1, one + 5
  step(a, one)
  later = b + 2
  step(a, one)
  step(b, one)
  assert (earlier.tolist(), later.tolist(), b.tolist(), a.tolist()) == ([11.0], [12.0], [21.0], [7.0])
  assert of_what_is_read.tolist() == [6.0]


@pytest.mark.parametrize(
  ("step", "beyond"),
  [
    (lambda x, n: x[:n].sum(), "(0, 15) is not inside [0, 10]"),
    (lambda x, n: x[n] * 2, "(15, 16) is not inside [0, 10]"),
    (lambda x, n: x.shrink(((n - 1, n + 1),)) * 2, "(14, 16) is not inside [0, 10]"),
    (lambda x, n: x[:8].shrink(((0, n),)).pad(((0, 10 - n),)) * 2, "(0, 15) is not inside [0, 8]"),
    (lambda x, n: x.__setitem__(n, 7) or x.realize(), "(15, 16) is not inside [0, 10]"),
  ],
)
def test_a_variable_that_leaves_the_dim_is_refused_in_a_replay_too(step, beyond):
  """It read, and wrote, what lies behind the memory."""
  v, f = Variable("n", 1, 20), TinyJit(step)
  want = [step(Tensor.arange(10).clone().realize(), v.bind(k)).tolist() for k in (3, 4, 5)]
  got = []
  for k in (3, 4, 5):
    x = Tensor.arange(10).clone().realize()
    got.append(f(x, v.bind(k)).tolist())
    assert k == 3 or f.captured is not None
  with pytest.raises(ValueError, match=f"with n = 15 the range {re.escape(beyond)}\n    in test_jit.py(.|\n)*fix: "):
    f(x, v.bind(15))
  assert got == want and f(Tensor.arange(10).clone().realize(), v.bind(5)).tolist() == want[2]


def test_a_variable_that_cannot_leave_the_dim_is_not_looked_at():
  v, f = Variable("n", 1, 10), TinyJit(lambda x, n: x[:n].sum())
  for k in (3, 4):
    f(Tensor.arange(10).clone().realize(), v.bind(k))
  assert f.captured.limits == []


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_an_argument_that_holds_itself_is_told(kind):
  given = [Tensor([1.0])] if kind == "list" else {0: Tensor([1.0])}
  given.append(given) if kind == "list" else given.update({1: given})
  with pytest.raises(JitError, match="holds itself\n  fix: "):
    TinyJit(lambda t: t[0] * 2)(given)
