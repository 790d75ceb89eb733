"""What `backward` leaves in `.grad` from within a captured step, beside the same program without TinyJit."""

import copy

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn
from tinygrad.device import Sharding
from tinygrad.engine.errors import JitError
from tinygrad.helpers import Context

D2 = ("CPU:0", "CPU:1")
XS = [np.array([[1.0, k], [k - 2.0, 0.5]], np.float32) for k in range(8)]


def weight(devices=None):
  w = Tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
  return (w if devices is None else w.shard(devices, axis=0)).realize()


def passes(devices, step, each):
  """What `each(w, call)` says after each of eight calls, without and with a capture."""
  said = []
  for jit in (0, 1):
    w = weight(devices)
    f = TinyJit(lambda x, w=w: step(w, x))
    with Context(JIT=jit):
      said.append([each(w, lambda x=x, f=f: f(Tensor(x).to(devices))) for x in XS])
  return said


def backward(w, x):
  loss = (x @ w).square().sum()
  loss.backward()
  return loss


def added(w, call):
  call()
  return w.grad.numpy()


@pytest.mark.parametrize("devices", [None, D2], ids=["one", "D2"])
def test_gradients_accumulate_over_replays(devices):
  want, got = passes(devices, backward, added)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert np.abs(np.diff(want, axis=0)).min(axis=(1, 2)).max() > 0.5  # each call adds something
  assert devices is None or isinstance(weight(devices).device, Sharding)


def test_gradients_accumulate_in_memory_that_the_program_gave():
  def step(w, x):
    if w.grad is None:
      w.grad = Tensor.zeros(2, 2).contiguous().realize()
    return backward(w, x)

  want, got = passes(None, step, added)
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("read", ["in it", "later"])
def test_a_second_capture_reads_what_the_first_accumulates(read):
  """Two batches a step; the second function scales, updates and empties the gradient."""

  def update(w):
    w.assign(w.detach() - 0.01 * w.grad)
    w.grad.assign(w.grad * 0)
    return w

  results = []
  for jit in (0, 1):
    w = weight()
    add, step = TinyJit(lambda x, w=w: backward(w, x)), TinyJit(lambda w=w: update(w).realize(w.grad))
    with Context(JIT=jit):
      for x in XS:
        add(Tensor(x))
        add(Tensor(x + 1))
        if read == "in it":
          step()
        else:
          update(w).realize(w.grad)
    results.append(w.numpy())
  np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
  assert np.abs(results[0] - weight().numpy()).max() > 0.1


def test_an_optimizer_outside_steps_by_the_gradients_of_each_replay():
  results = []
  for jit in (0, 1):
    w = weight()
    opt = nn.optim.SGD([w], lr=0.01)

    @TinyJit
    def step(x, w=w, opt=opt):
      opt.zero_grad()
      return backward(w, x)

    with Context(JIT=jit), Tensor.train():
      for x in XS:
        step(Tensor(x))
        opt.step()
    results.append(w.numpy())
  np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def trained(wrap, run):
  """The weights after `run(w, optimizer, wrap)`, and the gradient that it leaves."""
  w = weight()
  opt = nn.optim.SGD([w], lr=0.01)
  with Tensor.train():
    run(w, opt, wrap)
  return w.numpy(), None if w.grad is None else w.grad.numpy()


def zero_grad_outside(w, opt, wrap):
  step = wrap(lambda x: backward(w, x).realize())
  for x in XS:
    opt.zero_grad()
    step(Tensor(x).realize())
    opt.step()


def clipped_outside(w, opt, wrap):
  def step(x):
    opt.zero_grad()
    return backward(w, x).realize()

  step = wrap(step)
  for x in XS:
    step(Tensor(x).realize())
    nn.utils.clip_grad_norm_([w], 1.0)
    opt.step()


def clipped_inside(w, opt, wrap):
  def step(x):
    opt.zero_grad()
    loss = backward(w, x)
    nn.utils.clip_grad_norm_([w], 1.0)
    return loss.realize()

  step = wrap(step)
  for x in XS:
    step(Tensor(x).realize())
    opt.step()


def given_back(w, opt, wrap):
  def step(x):
    opt.zero_grad()
    loss = backward(w, x)
    return loss.realize(w.grad), w.grad

  step = wrap(step)
  for x in XS:
    _, grad = step(Tensor(x).realize())
    np.testing.assert_array_equal(grad.numpy(), w.grad.numpy())
    opt.step()


def updated_alone(w, opt, wrap):
  step = wrap(lambda: opt.step())
  for x in XS:
    opt.zero_grad()
    backward(w, Tensor(x))
    step()


def accumulated(w, opt, wrap):
  """Several batches a step: the first finds no gradient, the others one."""

  def update():
    opt.step()
    opt.zero_grad()

  add, update = wrap(lambda x: backward(w, x).realize()), wrap(update)
  for x in XS:
    for k in range(3):
      add(Tensor(x + k).realize())
    update()


def accumulated_in_one(w, opt, wrap):
  def step(x, last):
    loss = backward(w, x)
    if last:
      opt.step()
      opt.zero_grad()
    return loss.realize()

  step = wrap(step)
  for x in XS:
    for k in range(3):
      step(Tensor(x + k).realize(), k == 2)


def never_emptied(w, opt, wrap):
  def step(x):
    loss = backward(w, x)
    opt.step()
    return loss.realize()

  step = wrap(step)
  for x in XS:
    step(Tensor(x).realize())


def emptied_at_the_end(w, opt, wrap):
  def step(x):
    loss = backward(w, x)
    opt.step()
    opt.zero_grad()
    return loss.realize()

  step = wrap(step)
  for i, x in enumerate(XS):
    step(Tensor(x).realize())
    assert w.grad is None and (wrap is not TinyJit or (step.captured is not None) == (i > 0))


def added_at_times(w, opt, wrap):
  """Now and then a gradient from outside is there already."""
  step = wrap(lambda x: backward(w, x).realize())
  for i, x in enumerate(XS):
    if i % 3 == 1:
      backward(w, Tensor(x + 1))
    step(Tensor(x).realize())
    opt.step()
    opt.zero_grad()


PROGRAMS = [
  zero_grad_outside, clipped_outside, clipped_inside, given_back, updated_alone, accumulated, accumulated_in_one,
  never_emptied, emptied_at_the_end, added_at_times,
]  # fmt: skip


@pytest.mark.parametrize("run", PROGRAMS, ids=lambda run: run.__name__)
def test_a_captured_function_reads_and_leaves_gradients_as_it_does_uncaptured(run):
  (w, grad), (want, want_grad) = trained(TinyJit, run), trained(lambda f: f, run)
  np.testing.assert_allclose(w, want, rtol=1e-5)
  assert np.abs(want - weight().numpy()).max() > 0.05 and (grad is None) == (want_grad is None)
  if grad is not None:
    np.testing.assert_allclose(grad, want_grad, rtol=1e-5)


def test_a_gradient_that_is_held_is_not_written_again():
  w, held = weight(), []

  @TinyJit
  def step(x):
    w.grad = None
    return backward(w, x).realize()

  for x in XS:
    step(Tensor(x).realize())
    held.append((w.grad, (2 * Tensor(x).T @ (Tensor(x) @ w)).numpy()))
  for grad, want in held:
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-5)


def test_arguments_are_given_their_gradients():
  step = TinyJit(lambda x: (x * x).sum().backward().realize())
  for k in range(5):
    x = Tensor([1.0 + k, 2.0], requires_grad=True).realize()
    step(x)
    assert x.grad.tolist() == [2.0 + 2 * k, 4.0]
    step(x)
    assert x.grad.tolist() == [4.0 + 4 * k, 8.0]


def test_a_gradient_that_the_step_has_used_up_is_an_error():
  w = weight()
  opt = nn.optim.SGD([w], lr=0.01)

  @TinyJit
  def step(x):
    opt.zero_grad()
    loss = (x @ w).sum().backward()
    opt.step()
    return loss.realize()

  with Tensor.train():
    for x in XS[:4]:
      step(Tensor(x).realize())
    repr(w), w.clone(), copy.deepcopy(w)
    for read in (
      lambda: w.grad,
      opt.step,
      lambda: nn.utils.clip_grad_norm_([w], 1.0),
      lambda: backward(w, Tensor(XS[0])),
    ):
      with pytest.raises(JitError, match=r"(?s)grad: .*not stored.*fix: return the parameter's `.grad`.*zero_grad"):
        read()
    opt.zero_grad()
    assert w.grad is None


def test_gradients_that_the_step_has_used_are_not_stored():
  """With the optimizer inside, nobody reads them afterwards: so many kernels as without the parameter's `.grad`."""
  counts = []
  for drop in (False, True):
    w = weight()
    opt = nn.optim.SGD([w], lr=0.01)

    @TinyJit
    def step(x, w=w, opt=opt, drop=drop):
      opt.zero_grad()
      loss = (x @ w).sum()  # whose gradient does not read w, and so need not be kept before w is written
      loss.backward()
      waiting = opt.schedule_step()
      if drop:
        opt.zero_grad()
      return loss.realize(*waiting)

    with Tensor.train():
      for x in XS[:3]:
        step(Tensor(x))
    assert step.captured is not None
    counts.append(len(step.captured.work))
  assert counts[0] == counts[1]


def test_the_gradient_is_one_tensor_to_which_backward_adds():
  x = Tensor([1.0, 2.0], requires_grad=True).realize()
  (x * 3).sum().backward()
  grad = x.grad.realize()
  before, doubled = grad * 1, grad * 2
  (x * 4).sum().backward()
  assert x.grad is grad and grad.tolist() == [7.0, 7.0]
  assert before.tolist() == [3.0, 3.0] and doubled.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("devices", [None, D2], ids=["one", "D2"])
@pytest.mark.parametrize(
  "result", [lambda y: y, lambda y: y.T, lambda y: (y.sum(), {"y": y})], ids=["whole", "view", "several"]
)
def test_the_gradient_that_a_result_does_not_pass_on_is_told_in_every_call(devices, result):
  """A replay's results were without a note of what they came from: `backward` was silent."""
  w, other = weight(devices), weight(devices)
  f = TinyJit(lambda x: result(x @ w))
  for x in XS[:5]:
    found = f(Tensor(x).to(devices))
    y = found[1]["y"] if isinstance(found, tuple) else found
    for call in (lambda y=y: (y @ other).sum().backward(), lambda y=y: (y @ w).sum().gradient(w)):
      with pytest.raises(RuntimeError, match=r"(?s)no realized tensor.*requires_grad: .*fix: .*inside"):
        call()
    assert w.grad is None and other.grad is None
    (y.detach() @ other).sum().backward()
    assert other.grad is not None
    other.grad = None


def test_of_a_result_the_argument_of_that_call_is_told_and_no_other():
  f = TinyJit(lambda x: x * 2)
  xs = [Tensor(x, requires_grad=True).realize() for x in XS[:5]]
  for i, x in enumerate(xs):
    y, other = f(x), xs[i - 1]
    (y * other).sum().gradient(other)
    with pytest.raises(RuntimeError, match="no realized tensor"):
      (y * x).sum().gradient(x)
