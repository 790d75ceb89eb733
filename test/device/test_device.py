"""`Device`: the default, names, and what is there."""

import subprocess
import sys

import pytest

from tinygrad import Context, Device, DeviceError, Tensor
from tinygrad.helpers import DEV


def test_default_is_assigned_or_a_context():
  assert Device.DEFAULT == "CPU"
  with Context(DEV="CPU:1"):
    assert Device.DEFAULT == "CPU:1" and Tensor([1.0]).realize().device == "CPU:1"
  assert Device.DEFAULT == "CPU"
  try:
    Device.DEFAULT = "cpu:2"
    assert Device.DEFAULT == DEV.value == "CPU:2"
    assert Tensor.ones(3).contiguous().realize().device == "CPU:2" and Device.canonicalize(None) == "CPU:2"
    assert Device.default is Device["CPU:2"]
  finally:
    DEV.value = ""


def run(code, **environment):
  done = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


@pytest.mark.parametrize(
  "environment, want",
  [({}, "CPU"), ({"DEV": "CPU:3"}, "CPU:3"), ({"PYTHON": "1"}, "PYTHON"), ({"GPU": "CPU", "DEV": "GPU:1"}, "CPU:1")],
)
def test_environment(environment, want):
  assert run("from tinygrad import Device; print(Device.DEFAULT)", **environment) == want


def test_gpu_names_run_where_the_environment_says():
  code = "from tinygrad import *; x = Tensor([1., 2.]).shard(('GPU:0', 'GPU:1'), 0); print((x * 2).tolist(), x.device)"
  assert run(code, GPU="CPU") == "[2.0, 4.0] Sharding(CPU:0-1: x)"


def test_names():
  assert [Device.canonicalize(n) for n in ("cpu", "CPU:0", "cpu:3", "null:7")] == ["CPU", "CPU", "CPU:3", "NULL:7"]
  with pytest.raises(DeviceError, match="unknown device 'TPU'"):
    Device.canonicalize("TPU")
  with pytest.raises(DeviceError, match="a device is named by a string"):
    Device.canonicalize(3)


def test_available_devices():
  found = list(Device.get_available_devices())
  assert "CPU" in found and not {"NULL", "PYTHON", "NPY", "DISK"} & set(found)
