"""CHECK_NAN=1: the op, the device and the user's line of the first NaN or infinity."""

import re
import sys

import numpy as np
import pytest

from tinygrad import Context, Device, Tensor, TinyJit
from tinygrad.debug import check_nan as module
from tinygrad.debug.check_nan import NonFiniteError
from tinygrad.uop import buffer_of

D2 = ("CPU:1", "CPU:2")


def line() -> int:
  return sys._getframe(1).f_lineno


@pytest.fixture(autouse=True)
def on():
  with Context(CHECK_NAN=1):
    yield


def placed(values, where):
  a = np.array(values, np.float32)
  return Tensor(a).realize() if where is None else Tensor(a).shard(D2, where).realize()


@pytest.mark.parametrize("interpret", (0, 1))
@pytest.mark.parametrize("where", (None, 0, 1))
def test_the_error_names_op_device_and_lines(where, interpret):
  x = placed([[1.0, 2.0, 3.0], [4.0, 5.0, -6.0], [7.0, 8.0, 9.0]], where)
  y, made = x.log(), line()
  z = y * 2.0
  realized = line() + 2
  with Context(INTERPRET=interpret), pytest.raises(NonFiniteError) as e:
    z.realize()
  text = str(e.value)
  device = "CPU" if where is None else D2[1] if where == 1 else D2[0]
  assert re.search(rf"1 of \d elements are NaN, on {device} \(", text)
  assert f"log at test_check_nan.py:{made}: y, made = x.log(), line()" in text
  assert f"realized at test_check_nan.py:{realized}: z.realize()" in text
  if interpret:
    assert text.startswith("log: ")


def test_a_later_line_with_the_same_computation_is_named():
  good, bad = Tensor([1.0, 2.0]).realize(), Tensor([1.0, -2.0]).realize()
  good.log().realize()
  here = line() + 2
  with pytest.raises(NonFiniteError) as e:
    bad.log().realize()
  assert f"log at test_check_nan.py:{here}: " in str(e.value)


def test_infinity_and_the_first_kernel_of_several():
  x = Tensor([1e30, 1.0]).realize()
  y, made = (x * x).sum().contiguous(), line()
  with pytest.raises(NonFiniteError, match=rf"1 of 1 elements are infinite, on CPU(.|\n)*test_check_nan.py:{made}"):
    (y - y).exp().realize()


def test_what_was_not_written_is_not_looked_at():
  """Padding of uneven parts holds anything, and so does memory beside a view that is assigned to."""
  x = placed(np.ones((5, 3)), 0)
  y = (x + 1).realize()
  handle = buffer_of(y.uop).handle(1)
  np.frombuffer(Device[D2[1]].view(handle), np.float32).reshape(3, 3)[2:] = np.nan  # behind the 2 valid rows
  y.assign(y * 2).realize()
  np.testing.assert_array_equal(y.numpy(), np.full((5, 3), 4))
  with Context(CHECK_NAN=0):
    w = Tensor([np.nan, 1.0, 2.0]).realize()
  w[1:].assign(Tensor([3.0, 4.0]) * 1.5)
  w.realize()
  with pytest.raises(NonFiniteError, match="1 of 3 elements"):
    w.assign(w * 2.0).realize()


def test_integers_and_finite_values_pass():
  assert (Tensor([1, 2, 3]) // 2).tolist() == [0, 1, 1]
  x = placed(np.ones((7, 5)), 1)
  assert x.softmax(1).sum().item() == pytest.approx(7)


def test_a_replay_is_checked():
  @TinyJit
  def f(x: Tensor) -> Tensor:
    return x.sqrt().sum()

  for _ in range(3):
    f(placed([1.0, 4.0, 9.0], 0))
  with pytest.raises(NonFiniteError, match="sqrt(.|\n)*realized at test_check_nan.py"):
    f(placed([1.0, 4.0, -9.0], 0))


def test_off_nothing_is_looked_at(monkeypatch):
  monkeypatch.setattr(module, "check_kernel", lambda *_: pytest.fail("looked at"))
  with Context(CHECK_NAN=0):
    assert np.isnan((Tensor([-1.0]).realize()).log().numpy()).all()
