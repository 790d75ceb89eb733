"""Threads of one program: what one of them captures or traces is its own affair."""

import threading

import numpy as np

from tinygrad import Tensor, TinyJit, vmap


def beside(work, captured):
  """Runs `captured` in this thread, which has to call its argument in the middle; that runs `work` in another one."""
  errors = []

  def meanwhile():
    def run():
      try:
        work()
      except Exception as e:
        errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()

  result = captured(meanwhile)
  assert not errors, errors
  return result


def counted(meanwhile):
  """A step that is captured, and how many kernels it replays."""
  calls = iter((lambda: None, meanwhile))
  w = Tensor([1.0, 2.0]).realize()

  @TinyJit
  def step(x):
    next(calls)()
    y = (x * 2).realize()
    w.assign(w + y)
    return y + w

  got = [step(Tensor([float(k), 1.0])).tolist() for k in range(4)]
  return got, len(step.captured.work)


def test_other_threads_compute_and_read_while_one_captures():
  kept = []

  def work():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal((Tensor(a) @ Tensor(a.T)).numpy(), a @ a.T)
    state = Tensor([5.0]).realize()
    kept.append(state.assign(state + 1))  # waits until it is read

  want = counted(lambda: None)
  assert beside(work, counted) == want
  assert kept[0].tolist() == [6.0]  # no replay has added to it


def test_two_threads_capture_at_once():
  results, both = [], threading.Barrier(2, timeout=60)

  def run(scale):
    calls = iter((lambda: None, both.wait))

    @TinyJit
    def step(x):
      next(calls)()
      y = (x * scale).realize()
      return (y + 1).realize()

    results.append((scale, [step(Tensor([float(k)])).tolist() for k in range(4)], len(step.captured.work)))

  threads = [threading.Thread(target=run, args=(scale,)) for scale in (2.0, 3.0)]
  for t in threads:
    t.start()
  for t in threads:
    t.join(60)
  assert sorted(results) == [(s, [[k * s + 1] for k in range(4)], 2) for s in (2.0, 3.0)]


def test_a_transform_of_one_thread_is_none_of_anothers():
  """Within a vmap a write to memory outside is an error, and a TinyJit is a part of the function."""

  def traced(meanwhile):
    def f(x):
      meanwhile()
      return x * 2

    return vmap(f)(Tensor([[1.0], [2.0]])).tolist()

  def work():
    step = TinyJit(lambda x: x + 1)
    assert [step(Tensor([float(k)])).tolist() for k in range(3)] == [[1.0], [2.0], [3.0]]
    assert step.captured is not None

  assert beside(work, traced) == [[2.0], [4.0]]
