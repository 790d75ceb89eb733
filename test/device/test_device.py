"""`Device`: the default, names, and what is there."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

from tinygrad import Context, Device, DeviceError, Sharding, Tensor, dtypes
from tinygrad.device import Buffer, backends
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


def run(*code, **environment):
  done = subprocess.run(
    [sys.executable, *(code if len(code) > 1 else ("-c", *code))],
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


def test_a_default_that_is_no_device_is_said_of_the_setting():
  code = "from tinygrad import *\ntry: Tensor([1.0])\nexcept DeviceError as e: print(e)"
  said = run(code, DEV="foo")
  assert said.startswith("DEV=foo: unknown device 'foo': there is no backend 'FOO'") and "fix: 'CPU:1'" in said
  with Context(DEV="CPU:x"), pytest.raises(DeviceError, match="^DEV=CPU:x: 'CPU:x' is no device name"):
    Tensor([1.0])


def test_gpu_names_run_where_the_environment_says():
  code = "from tinygrad import *; x = Tensor([1., 2.]).shard(('GPU:0', 'GPU:1'), 0); print((x * 2).tolist(), x.device)"
  assert run(code, GPU="CPU") == "[2.0, 4.0] Sharding(CPU:0-1: x)"


@pytest.mark.parametrize("named", ["FOO", "0", "GPU", "CPU:1"])
def test_a_gpu_that_is_no_backend_is_said_of_the_environment(named):
  code = "from tinygrad import *\ntry: Tensor([1.], device='GPU:1')\nexcept DeviceError as e: print(e)"
  said = run(code, GPU=named)
  assert f"GPU={named} in the environment: there is no backend {named!r}" in said
  assert "fix: unset GPU, or GPU=CPU" in said


def test_the_report_is_a_command_that_warns_of_nothing():
  said = run("-W", "error", "-m", "tinygrad.device", GPU="CPU").splitlines()
  assert said[0].startswith("CPU   yes") and said[-1] == "GPU   CPU"


WITHOUT_PACKAGES = """
import sys
sys.modules.update(dict.fromkeys(["pyopencl", "cuda", "cuda.bindings"]))  # None: cannot be imported
from tinygrad import DeviceError, Tensor
try:
  z = Tensor.arange(8).float().shard(("KIND:0", "KIND:1"), axis=0)
  print((z * z).sum().item())
except DeviceError as e:
  print(e)
"""


@pytest.mark.parametrize("kind, extra", [("CL", "opencl"), ("CUDA", "cuda")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(kind, extra):
  said = run(WITHOUT_PACKAGES.replace("KIND", kind))
  assert f"device {kind} needs the package" in said and f"fix: pip install 'tinygrad[{extra}]'" in said
  said = run(WITHOUT_PACKAGES.replace("KIND", "GPU"))
  assert "no GPU backend works here" in said and "fix: GPU=CPU in the environment" in said
  assert f"{kind}: device {kind} needs the package" in said and f"pip install 'tinygrad[{extra}]'" in said


def test_without_packages_gpu_examples_run_on_cpu_devices():
  assert run(WITHOUT_PACKAGES.replace("KIND", "GPU"), GPU="CPU") == "140.0"


def test_a_device_without_room_gives_the_others_memory_back(monkeypatch):
  first, second = Device["CPU:0"], Device["CPU:1"]
  held, given = [], []
  alloc, free = first.alloc, first.free
  monkeypatch.setattr(first, "alloc", lambda n: held.append(alloc(n)) or held[-1])
  monkeypatch.setattr(first, "free", lambda handle, n: given.append(handle) or free(handle, n))

  def full(nbytes):
    raise MemoryError(f"CPU:1: no memory for a buffer of {nbytes} bytes")

  monkeypatch.setattr(second, "alloc", full)
  before = Device.mem_used("CPU:0")
  with pytest.raises(MemoryError, match="CPU:1: no memory for a buffer of 4096 bytes"):
    Buffer(Sharding(("CPU:0", "CPU:1"), 0), (2048,), dtypes.float32).allocate()
  assert len(held) == 1 and given == held and Device.mem_used("CPU:0") == before


def test_names():
  assert [Device.canonicalize(n) for n in ("cpu", "CPU:0", "cpu:3", "null:7")] == ["CPU", "CPU", "CPU:3", "NULL:7"]
  with pytest.raises(DeviceError, match="unknown device 'TPU'"):
    Device.canonicalize("TPU")
  with pytest.raises(DeviceError, match="a device is named by a string"):
    Device.canonicalize(3)


def test_available_devices():
  found = list(Device.get_available_devices())
  assert "CPU" in found and not {"NULL", "PYTHON", "NPY", "DISK"} & set(found)


def test_a_backend_is_a_module_of_the_runtime_that_opens_devices():
  runtime = importlib.import_module("tinygrad.runtime")
  names = {m.name for m in pkgutil.iter_modules(runtime.__path__)}
  opening = {n for n in names if hasattr(importlib.import_module(f"tinygrad.runtime.{n}"), "open_device")}
  assert backends() == tuple(sorted(n.upper() for n in opening)), "a module that several share stands in SHARED"
