"""OpenCL devices: PoCL's where there is no GPU. What codegen makes for a grid is checked kernel by kernel with
`DEV=CL pytest test/codegen/test_kernels.py`, sharding with `DEV=CL pytest test/laws`."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("pyopencl") is None:
  pytest.skip("OpenCL needs the extra [opencl]: pyopencl and a driver", allow_module_level=True)

from tinygrad import Tensor, TinyJit, nn
from tinygrad.device import Device, DeviceError

TWO = ("CL:0", "CL:1")


def normal(*shape):
  return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_a_sharded_row_softmax_and_its_sum_over_the_cut_dim():
  x = normal(37, 300)
  e = np.exp(x - x.max(1, keepdims=True))
  got = Tensor(x).shard(TWO, axis=0).softmax(-1).sum(0).numpy()
  np.testing.assert_allclose(got, (e / e.sum(1, keepdims=True)).sum(0), rtol=1e-5)


def test_a_matmul_whose_inner_dim_is_cut():
  a, b = normal(65, 128), normal(128, 33)
  got = Tensor(a).shard(TWO, axis=1) @ Tensor(b).shard(TWO, axis=0)
  np.testing.assert_allclose(got.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def train(devices):
  """Ten captured steps of a small network, data parallel; its losses."""
  rng = np.random.default_rng(1)
  x, y = rng.standard_normal((32, 20)).astype(np.float32), rng.integers(0, 4, 32)
  first, second = nn.Linear(20, 16), nn.Linear(16, 4)
  for layer in (first, second):
    layer.weight = Tensor(rng.standard_normal(layer.weight.shape).astype(np.float32) * 0.3, requires_grad=True)
    layer.bias = Tensor(np.zeros(layer.bias.shape, np.float32), requires_grad=True)
  state = [first.weight, first.bias, second.weight, second.bias]
  for t in state:
    t.shard_(devices)
  optimizer = nn.optim.Adam(state, lr=0.01)

  @TinyJit
  def step(x, y):
    optimizer.zero_grad()
    loss = second(first(x).relu()).sparse_categorical_crossentropy(y)
    loss.backward()
    optimizer.step()
    return loss.realize()

  with Tensor.train():
    return [
      step(
        Tensor(x).shard(devices, axis=0).realize(), Tensor(y.astype(np.int32)).shard(devices, axis=0).realize()
      ).item()
      for _ in range(10)
    ]


def test_data_parallel_training_is_the_same_as_on_cpu_devices():
  np.testing.assert_allclose(train(TWO), train(("CPU:0", "CPU:1")), rtol=1e-4)


def test_a_move_between_kinds_of_devices():
  x = normal(10, 6)
  there = Tensor(x, device="CPU").shard(("CPU:0", "CPU:1"), axis=0).to("CL:1")
  assert there.device == "CL:1"
  np.testing.assert_array_equal(there.shard(TWO, axis=1).to("CPU").numpy(), x)


def test_faults_are_typed_and_the_device_goes_on():
  with pytest.raises(DeviceError, match=r"CL:97: there are \d+ OpenCL devices"):
    Tensor(normal(3), device="CL:97").realize()
  device = Device["CL"]
  with pytest.raises(DeviceError, match="compiling broken failed"):
    device.compile("// groups (1, 1, 1) of threads (1, 1, 1)\n__kernel void broken() { nonsense }", "broken")
  with pytest.raises(MemoryError, match="fix: smaller batches"):
    device.alloc(1 << 50)
  np.testing.assert_array_equal((Tensor(normal(5), device="CL") + 1).numpy(), normal(5) + 1)
