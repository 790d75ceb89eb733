"""Values to and from other libraries: arrays, DLPack, raw memory, URLs, pickles."""

import copy
import ctypes
import gzip
import pickle

import numpy as np
import pytest

from tinygrad import Device, GlobalCounters, Sharding, Tensor, dtypes

try:
  import torch
except ImportError:
  torch = None

D2 = ("CPU:0", "CPU:1")


def test_numpys_functions_take_tensors():
  x = np.array([[1.0, -2.5], [3.0, 4.0]], np.float32)
  np.testing.assert_array_equal(np.asarray(Tensor(x)), x)
  assert np.asarray(Tensor(x), dtype=np.float64).dtype == np.float64
  assert np.max(np.abs(np.asarray(Tensor(x).shard(D2, 0)))) == 4
  np.testing.assert_array_equal(np.concatenate([Tensor(x), x]), np.concatenate([x, x]))
  np.testing.assert_array_equal(np.ones((2, 2), np.float32) + np.asarray(Tensor(x)), x + 1)
  with pytest.raises(ValueError, match="from_dlpack"):
    np.asarray(Tensor(x), copy=False)


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d.fmt is not None], ids=lambda d: d.name)
def test_dlpack_shares_memory_with_numpy(dtype):
  t = (Tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype) + Tensor([0], dtype=dtype)).realize()
  a = np.from_dlpack(t)
  np.testing.assert_array_equal(a, t.numpy())
  t.assign(t * t).realize()
  np.testing.assert_array_equal(a, t.numpy())  # no copy: the write is seen
  back = Tensor.from_dlpack(a)
  assert back.dtype is dtype and back.tolist() == t.tolist()


def test_dlpack_keeps_memory_alive_and_takes_over_writable_arrays():
  a = np.from_dlpack(Tensor.arange(1000).float() + 1)
  others = [Tensor.zeros(1000).contiguous().realize() for _ in range(4)]
  np.testing.assert_array_equal(a, np.arange(1, 1001))
  x = np.arange(4, dtype=np.float32)
  t = Tensor.from_dlpack(x)
  x[0] = 9
  assert t.tolist() == [9, 1, 2, 3] and len(others) == 4
  t.assign(t + 1).realize()
  Device[t.device].synchronize()
  assert x.tolist() == [10, 2, 3, 4]
  assert Tensor.from_dlpack(x[::2]).tolist() == [10, 3]  # strided: copied
  assert Tensor.from_dlpack(x, device="CPU:1").device == "CPU:1"


@pytest.mark.skipif(torch is None, reason="needs torch, which is no dependency")
def test_a_tensor_of_torch_beside_one_is_named_by_its_package():
  x = Tensor([1.0, 2.0])
  for call in (lambda: x + torch.ones(2), lambda: torch.ones(2) + x):
    with pytest.raises(
      TypeError, match=r"add: cannot use torch.Tensor as an operand\n  fix: wrap it, e.g. Tensor\(x\)"
    ):
      call()
  assert (x + Tensor(torch.ones(2))).tolist() == [2, 3]


@pytest.mark.skipif(torch is None, reason="needs torch, which is no dependency")
def test_torch_shares_memory_both_ways():
  t = (Tensor([1.0, 2.0]) * 2).realize()
  theirs = torch.from_dlpack(t)
  theirs += 1
  assert t.tolist() == [3, 5]
  ours = Tensor.from_dlpack(theirs)
  ours.assign(ours * 2).realize()
  Device[ours.device].synchronize()
  assert theirs.tolist() == [6, 10] and theirs.data_ptr() == torch.from_dlpack(ours).data_ptr()
  assert Tensor(torch.tensor([[1, 2]])).tolist() == [[1, 2]]


def test_dlpack_refusals_say_what_to_do():
  with pytest.raises(TypeError, match=r"bfloat16 is no type of numpy(.|\n)*bitcast"):
    np.from_dlpack(Tensor([1.0], dtype="bfloat16"))
  with pytest.raises(ValueError, match=r"one CPU device(.|\n)*CPU:0-1(.|\n)*to\("):
    np.from_dlpack(Tensor([1.0, 2.0]).shard(D2, 0))


def test_from_blob_uses_the_memory():
  memory = (ctypes.c_int32 * 6)(*range(6))
  t = Tensor.from_blob(ctypes.addressof(memory), (2, 3), dtype=dtypes.int32)
  assert t.tolist() == [[0, 1, 2], [3, 4, 5]]
  t.assign(t + 10).realize()
  Device[t.device].synchronize()
  assert list(memory) == [10, 11, 12, 13, 14, 15]
  with pytest.raises(ValueError, match=r"cannot use float32\[2\](.|\n)*fix: give device"):
    Tensor.from_blob(ctypes.addressof(memory) + 1, (2,))


def test_from_url(tmp_path):
  file = tmp_path / "x.gz"
  file.write_bytes(gzip.compress(b"abc"))
  with pytest.MonkeyPatch.context() as m:
    m.setattr("tinygrad.helpers.cache_dir", str(tmp_path / "cache"))
    assert bytes(Tensor.from_url(file.as_uri(), gunzip=True).tolist()) == b"abc"
    with pytest.raises(ConnectionError, match="no-such-host"):
      Tensor.from_url("http://no-such-host.invalid/x")


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_pickle_and_deepcopy_keep_value_type_and_placement(dtype):
  t = Tensor([[0, 1], [1, 0]], dtype=dtype).shard(D2, 1)
  for u in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
    assert u.dtype is dtype and u.device is Sharding(D2, 1) and u.tolist() == [[0, 1], [1, 0]]
  x = Tensor([1.5], requires_grad=True)
  (x * 2).sum().backward()
  y = pickle.loads(pickle.dumps(x))
  assert y.requires_grad and y.grad.tolist() == [2.0] and y.is_param and not y.is_param_(False).is_param
  assert pickle.loads(pickle.dumps(Tensor.zeros(0, 3))).shape == (0, 3)
  y.assign([5.0])
  assert x.tolist() == [1.5]


def test_realize_without_counting():
  x = (Tensor([1.0]) + 1).realize()
  before = GlobalCounters.kernel_count
  (x + 1).realize(do_update_stats=False)
  assert GlobalCounters.kernel_count == before
  (x + 2).realize()
  assert GlobalCounters.kernel_count == before + 1


def test_elements_cannot_be_deleted():
  x = Tensor([1, 2])
  with pytest.raises(TypeError, match=r"does not support deleting(.|\n)*Tensor.cat"):
    del x[0]


def test_a_number_of_numpys_beside_a_tensor_gives_a_tensor_on_either_side():
  """numpy took the tensor for an array: what came out had no gradient, and so had all that was computed of it."""
  x = Tensor([1.0, 4.0], requires_grad=True)
  for number in (np.float64(2.0), np.float32(2.0), np.sqrt(4), np.int64(2)):
    for y, want in ((number * x, [2, 8]), (number - x, [1, -2]), (number / x, [2, 0.5]), (number**x, [2, 16])):
      assert isinstance(y, Tensor) and y.dtype is x.dtype and y.tolist() == want
    assert (number < x).tolist() == [False, True] and (number == x).tolist() == [False, False]
  assert (np.float64(3.0) * x).sum().gradient(x)[0].tolist() == [3.0, 3.0]
  with pytest.raises(TypeError, match=r"mul: cannot use ndarray as an operand\n  fix: wrap it, e.g. Tensor\(x\)"):
    _ = np.ones(2) * x  # as x * np.ones(2) is
  for factor in (np.ones(2), 2.0, [1.0, 2.0]):  # numpy's product had no gradient
    with pytest.raises(TypeError, match=r"dot: needs a tensor, got (ndarray|float|list)\n  fix: Tensor\(w\)"):
      _ = factor @ x
  assert isinstance(np.sin(x), np.ndarray) and np.add(np.ones(2), x).tolist() == [2.0, 5.0]  # asked for by name
