"""What a process keeps can be forgotten, and set aside."""

from tinygrad import Tensor
from tinygrad.engine import compile
from tinygrad.helpers import PROCESS
from tinygrad.helpers.process import Process
from tinygrad.runtime import native
from tinygrad.schedule import schedule


def test_a_table_begins_anew_and_comes_back():
  process = Process()
  table, calls = process.table(), []

  @process.cached
  def square(x):
    calls.append(x)
    return x * x

  table["a"] = 1
  assert [square(3), square(3)] == [9, 9] and calls == [3]
  with process.anew():
    assert table == {} and square(3) == 9 and calls == [3, 3]
    table["b"] = 2
    process.table()["c"] = 3  # of a module that is loaded within
  assert table == {"a": 1}
  process.forget()
  assert table == {}


def test_plans_are_made_again_where_nothing_is_known():
  def value():
    return (Tensor([1.0, 2.0]) * 3).tolist()

  assert value() == [3.0, 6.0] and compile._plans
  known = dict(compile._plans)
  with PROCESS.anew():
    assert not compile._plans and value() == [3.0, 6.0]
    assert len(compile._plans) == 1 and next(iter(compile._plans.values())) not in known.values()
  assert compile._plans == known


def test_a_table_forgets_the_oldest_beyond_what_it_may_hold():
  table = Process().table(16)
  for i in range(100):
    table[i] = i
    assert len(table) <= 16 and list(table) == list(range(i + 1))[-len(table) :] and len(table) >= min(i + 1, 14)
  table["a"] = 1
  for _ in range(100):
    table["a"] = 2  # what takes a value's place is no more of them
  assert len(table) >= 14 and table["a"] == 2
  sized = Process().table(16, len)
  for i in range(20):
    sized[i] = "x" * (i % 5)
    assert sum(map(len, sized.values())) <= 16
  sized["all"] = "x" * 100  # one that is too large is kept alone: who asks next may ask for it
  assert list(sized) == ["all"]


def test_new_shapes_and_numbers_do_not_grow_a_process(monkeypatch):
  tables = compile._plans, compile._programs, schedule._lowered, native._codes
  for table, most in zip(tables, (4 * 32, 4, 4, 4), strict=True):
    monkeypatch.setattr(table, "most", most)
  with PROCESS.anew():
    for n in range(100, 110):
      assert (Tensor.full((n,), n + 0.5, device="CPU").contiguous() * n).sum().item() == n * (n + 0.5) * n
      assert all(len(table) <= 4 for table in tables)
    assert all(table for table in tables)
