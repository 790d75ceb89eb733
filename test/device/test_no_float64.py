"""A device that lacks float64 (Metal's, many of OpenCL's): said where such a tensor is made, needed by nothing else.

Here CPU:1 and CPU:2 say so of themselves.
"""

import dataclasses
import inspect

import numpy as np
import pytest

import tinygrad.codegen
from tinygrad import Device, Tensor, dtypes


@pytest.fixture(autouse=True)
def lacking(monkeypatch):
  for name in ("CPU:1", "CPU:2"):
    monkeypatch.setattr(Device[name], "target", dataclasses.replace(Device[name].target, float64=False))

  def lower(ast, target, *rest, do=tinygrad.codegen.lower_kernel):
    linear = do(ast, target, *rest)
    assert target.float64 or not [u for u in linear if u.dtype.scalar() is dtypes.float64]
    return linear

  monkeypatch.setattr(tinygrad.codegen, "lower_kernel", lower)


MAKERS = {
  "made": lambda: Tensor(np.ones(3), device="CPU:1"),
  "asked for": lambda: Tensor([1.0, 2.0], dtype=dtypes.float64, device="CPU:1"),
  "cast": lambda: Tensor([1.0, 2.0], device="CPU:1").double(),
  "moved": lambda: Tensor(np.ones(3)).to("CPU:1"),
  "sharded": lambda: Tensor(np.ones(4)).shard(("CPU:1", "CPU:2"), axis=0),
  "default": lambda: Tensor.zeros(3, dtype="float64", device="CPU:2"),
}


@pytest.mark.parametrize("how", MAKERS)
def test_a_float64_tensor_is_refused_at_the_users_line(how):
  with pytest.raises(TypeError, match=r"float64: CPU:[12] has no float64(.|\n)*operand 0: float64(.|\n)*fix: use") as e:
    MAKERS[how]()
  frame = next(f for f in e.traceback if str(f.path) == __file__ and f.name == "<lambda>")
  assert frame.lineno + 1 == inspect.getsourcelines(MAKERS[how])[1]


def test_other_devices_and_types_are_not_concerned():
  assert Tensor(np.ones(3)).double().sum().item() == 3
  x = Tensor(np.ones(4, np.float32), device="CPU:1")
  assert (x + 1).shard(("CPU:1", "CPU:2"), axis=0).sin().sum().dtype is dtypes.float32
  assert x.to("CPU").double().numpy().dtype == np.float64


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integer_powers_are_exact_without_float64(dtype):
  x, y = np.meshgrid(np.arange(0 if dtype in (np.uint8, np.uint64) else -6, 7), [0, 1, 2, 3, 5, 7, 40, 62, 63])
  x, y = x.astype(dtype), y.astype(dtype)
  with np.errstate(over="ignore"):
    want = np.power(x, y)
  got = (Tensor(x, device="CPU:1") ** Tensor(y, device="CPU:1")).numpy()
  np.testing.assert_array_equal(got, want)
  assert got.dtype == want.dtype
  units = np.array([-1, 0, 1], np.int32)
  np.testing.assert_array_equal((Tensor(units) ** Tensor.full((3,), 101, dtype="int32")).numpy(), [-1, 0, 1])


def test_negative_powers_of_integers_round_towards_zero():
  x, y = np.array([-3, -2, -1, -1, 1, 2, 3], np.int32), np.array([-1, -3, -3, -2, -4, -1, -2], np.int32)
  np.testing.assert_array_equal((Tensor(x) ** Tensor(y)).numpy(), [0, 0, -1, 1, 1, 0, 0])
