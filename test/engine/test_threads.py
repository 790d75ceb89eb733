"""Threads of one program: what one of them captures or traces is its own affair."""

import sys
import threading

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, dtypes, vmap
from tinygrad.engine import program_order as order_module
from tinygrad.engine.program_order import program_order
from tinygrad.engine.realize import realize
from tinygrad.helpers import PROCESS
from tinygrad.sharding.replacement import Replacement
from tinygrad.uop import Ops, UOp
from tinygrad.uop import node as node_module


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


def test_one_captured_step_is_called_by_several_threads():
  """As by the threads of a server: a call binds its arguments where the step's compiled calls read them, so the next
  one waits for it; the first call of a kind, the capture and replays."""
  step, wrong, together = TinyJit(lambda x: (x * 2 + 1).realize()), [], threading.Barrier(4, timeout=60)

  def run(k):
    together.wait()
    for i in range(100):
      x = float(1000 * k + i)
      if (got := step(Tensor([x])).item()) != 2 * x + 1:
        wrong.append((x, got))

  threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
  for t in threads:
    t.start()
  for t in threads:
    t.join(60)
  assert not wrong, wrong[:4]
  assert step.cnt == 400


def test_tensors_come_and_go_while_changes_are_looked_through():
  """By another thread, or a collection of garbage, between two steps of the walk."""
  kept = [Tensor([1.0])]
  since, lasting = program_order.now, [Tensor([float(k)]) for k in range(3)]

  class Number(int):
    def __lt__(self, other):
      kept.clear()
      return int(self) < other

  assert [*map(id, program_order.changed(Number(since)))] == [*map(id, reversed(lasting))]
  assert not kept


def test_what_is_assigned_while_another_thread_looks_through_the_tensors(monkeypatch):
  """A realize gives the tensors that hold what it made their memory, and leaves the others what they stand for now."""
  memory = Tensor([1.0]).realize()
  root = memory * 3
  its = memory + 1
  node, of = its.uop, Replacement.of

  def meanwhile(self, u):
    v = of(self, u)
    if u is node:
      its.assign([9.0])
    return v

  monkeypatch.setattr(Replacement, "of", meanwhile)
  root.realize()
  assert its.uop is not node and its.tolist() == [9.0]


def test_two_threads_that_need_one_assignment_do_it_once(monkeypatch):
  memory, got, threads = Tensor([1.0]).realize(), [], []
  memory.assign(memory + 1)

  def slowly(*roots, **kwargs):
    if not threads:
      threads.append(threading.Thread(target=lambda: got.append(memory.tolist())))
      threads[0].start()
      threads[0].join(0.5)
    return realize(*roots, **kwargs)

  monkeypatch.setattr(order_module, "realize", slowly)
  assert memory.tolist() == [2.0]
  threads[0].join(60)
  assert got == [[2.0]] and memory.tolist() == [2.0]


def test_a_node_that_two_threads_make_at_once_is_one(monkeypatch):
  made, numbers = [], node_module._numbers

  class Meanwhile:
    def __next__(self):
      if not made:
        made.append(None)
        made[0] = UOp.new(Ops.VARIABLE, dtypes.index, (), ("made_twice", 0, 1))
      return next(numbers)

  monkeypatch.setattr(node_module, "_numbers", Meanwhile())
  one = UOp.new(Ops.VARIABLE, dtypes.index, (), ("made_twice", 0, 1))
  assert one is made[0] is UOp.new(Ops.VARIABLE, dtypes.index, (), ("made_twice", 0, 1))


def test_a_replay_leaves_what_other_threads_have_assigned_elsewhere_to_them():
  """What lies in memory that the step uses has to be there; else they may just be about to add to it."""
  mine, its = Tensor([1.0]).realize(), Tensor([2.0]).realize()
  step = TinyJit(lambda x: x + its)
  for k in range(3):
    assert step(Tensor([float(k)])).tolist() == [k + 2.0]

  def work():
    mine.assign(mine + 1)
    its.assign(its + 5)

  thread = threading.Thread(target=work)
  thread.start()
  thread.join(60)
  assert step(Tensor([1.0])).tolist() == [8.0]
  assert mine.uop.op is Ops.AFTER and its.uop.op is Ops.BUFFER
  mine.assign(mine + 1)  # of this thread: so the chain does not grow with the replays
  step(Tensor([1.0]))
  assert mine.uop.op is Ops.BUFFER and mine.tolist() == [3.0]


def test_a_capture_leaves_to_another_what_that_one_is_about_to_capture():
  """What a capture waits for is what was assigned before it, not what another thread assigns within its own step."""
  total, memory = Tensor([1.0]).realize(), Tensor([5.0]).realize()

  def work():
    memory.assign(memory * 2)
    step = TinyJit(lambda x: x + 1)
    for k in range(3):
      assert step(Tensor([float(k)])).tolist() == [k + 1.0]

  def captured(meanwhile):
    calls = iter((lambda: None, meanwhile))

    @TinyJit
    def step(x):
      total.assign(total + x)
      next(calls)()
      return x * 2

    return [(step(Tensor([float(k)])).tolist(), total.tolist()) for k in range(4)]

  assert beside(work, captured) == [([0.0], [1.0]), ([2.0], [2.0]), ([4.0], [4.0]), ([6.0], [7.0])]
  assert memory.tolist() == [10.0]


@pytest.mark.parametrize("maker", ["the replaying thread", "a third"])
def test_what_a_replay_writes_to_has_been_read_while_another_thread_captures(maker):
  """By values that are younger than the other's step, and no part of it. (Mutant of `settle`: what is younger is left
  alone, whoever has made it.)"""
  memory, got = Tensor([5.0]).realize(), []

  @TinyJit
  def write(x):
    memory.assign(memory + x)
    return x * 2

  def value():
    got.append(memory * 10)

  def work():
    for _ in range(4):
      if maker == "a third":
        beside(value, lambda meanwhile: meanwhile())
      else:
        value()
      write(Tensor([1.0]))

  @TinyJit
  def step(x):
    if not got:
      beside(work, lambda meanwhile: meanwhile())
    return x * 3

  assert [step(Tensor([float(k)])).tolist() for k in range(3)] == [[0.0], [3.0], [6.0]]
  assert [v.tolist() for v in got] == [[50.0], [60.0], [70.0], [80.0]]


def test_what_another_thread_assigns_while_one_captures_is_no_part_of_that():
  """Else it is done by who captures, in the middle of the other's step, and each change of it captures anew."""
  its, late, count = Tensor([5.0]).realize(), Tensor([1.0]) + 1, []

  def work():
    for t in (its, late.realize()):
      t.assign(t * 2)

  @TinyJit
  def step(x):
    count.append(x)
    if len(count) == 2:
      beside(work, lambda meanwhile: meanwhile())
    return x * 2

  assert [step(Tensor([float(k)])).tolist() for k in range(2)] == [[0.0], [2.0]]
  first = step.captured
  assert its.uop.op is Ops.AFTER and late.uop.op is Ops.AFTER and first is not None
  its.replace(Tensor([3.0]))
  assert step(Tensor([2.0])).tolist() == [4.0] and step.captured is first and late.tolist() == [4.0]


def test_the_numbers_of_slices_are_those_of_a_threads_own_capture():
  """Another thread captures a step of its own meanwhile, with equal numbers: it goes on with variables."""
  x = Tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]).realize()
  paused, go, got = threading.Event(), threading.Event(), []

  def step(pause):
    @TinyJit
    def f(v):
      y = v * 3
      pause(f)
      return y

    return f

  def waits(f):
    if f.cnt == 2:
      paused.set()
      go.wait(60)

  def starts(f):
    if f.cnt == 2 and not got and not paused.is_set():
      thread.start()
      paused.wait(60)

  def work():
    f = step(waits)
    got.extend(f(x[k : k + 2]).tolist() for k in range(1, 6))

  thread, mine = threading.Thread(target=work), step(starts)
  want = [[3.0 * 2**k, 6.0 * 2**k] for k in range(6)]
  assert [mine(x[k : k + 2]).tolist() for k in range(3)] == want[:3]
  go.set()
  thread.join(60)
  assert [mine(x[k : k + 2]).tolist() for k in range(6)] == want and got == want[1:]


def together(count, work):
  """Runs `work(i)` in `count` threads at once, which take turns after every few bytecodes."""
  errors, gate, interval = [], threading.Barrier(count), sys.getswitchinterval()

  def run(i):
    try:
      gate.wait(60)
      work(i)
    except Exception as e:
      errors.append(e)

  sys.setswitchinterval(1e-6)
  try:
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(60)
  finally:
    sys.setswitchinterval(interval)
  assert not errors and not any(t.is_alive() for t in threads), errors


def test_a_first_call_keeps_what_it_has_assigned_while_another_thread_captures():
  """What reads it is not made yet: run by another thread, the assignment would happen twice."""
  total = Tensor([1.0]).realize()

  def work():
    step = TinyJit(lambda x: x + 1)
    for k in range(3):
      assert step(Tensor([float(k)])).tolist() == [k + 1.0]

  def first(meanwhile):
    @TinyJit
    def step(x):
      total.assign(total + x)
      seen = total.uop
      meanwhile()
      assert total.uop is seen
      return total * 1

    return step(Tensor([2.0])).tolist(), total.tolist()

  assert beside(work, first) == ([3.0], [3.0])


def test_a_capture_within_a_first_call_has_its_own_beginning():
  total, count = Tensor([0.0]).realize(), Tensor([0.0]).realize()

  @TinyJit
  def inner(x):
    count.assign(count + 1)
    return x + count

  @TinyJit
  def outer(x):
    total.assign(total + x)
    return inner(x) + inner(x) + inner(x) + total

  assert [outer(Tensor([1.0])).tolist() for _ in range(2)] == [[10.0], [20.0]]
  assert (total.tolist(), count.tolist(), program_order.steps) == ([2.0], [6.0], [])


def test_tables_lose_values_while_other_threads_add_to_them():
  table = PROCESS.table()
  values = [object() for _ in range(300)]

  def work(i):
    for k, value in enumerate(values):
      table[i, k] = value if i else k
      if not i:
        PROCESS.drop([value])

  together(3, work)
  PROCESS.drop(values)
  assert len(table) == 300 and all(i == 0 for i, _ in table)
  table.clear()
