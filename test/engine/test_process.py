"""What a process keeps can be forgotten, and set aside."""

from tinygrad import Tensor
from tinygrad.engine import compile
from tinygrad.helpers import PROCESS
from tinygrad.helpers.process import Process


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
