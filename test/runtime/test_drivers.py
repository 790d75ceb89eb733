"""Drivers that do not work, each in a process of its own: what is said of them, and that the next choice is taken."""

import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad.device import DeviceError
from tinygrad.device.registry import _packages_named

ROOT = Path(__file__).parents[2]

# What breaks, as code that comes first; what is said of it; what brings a driver that works.
MISSING = """
import sys
sys.modules["pyopencl"] = None
"""
DOES_NOT_LOAD = """
import importlib.abc, sys
class Finder(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path, target=None):
    if name == "pyopencl":
      raise ImportError("libOpenCL.so.1: cannot open shared object file")
sys.meta_path.insert(0, Finder())
"""
PATCH = """
import pyopencl as cl
calls = []
def {name}(*args, **settings):
  calls.append(args)
  {body}
cl.{where}{name} = {name}
"""
INSTALL = "fix: pip install 'tinygrad[opencl]'"
UNKNOWN = """raise cl.RuntimeError("clBuildProgram failed: error: unknown target CPU 'generic'")"""


def patch(where, body):
  *path, name = where.split(".")
  return PATCH.format(name=name, body=body, where="".join(f"{p}." for p in path))


NO_PLATFORM = patch("get_platforms", 'raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")')
NO_SUCH_DEVICE = patch("Platform.get_devices", 'raise cl.LogicError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")')
NO_COMPILER = patch("Program.build", UNKNOWN)
NO_LAUNCH = patch("enqueue_nd_range_kernel", 'raise cl.LogicError("clEnqueueNDRangeKernel failed: INVALID_KERNEL")')
WRONG = patch("enqueue_nd_range_kernel", "pass  # it says that it has run")
needs_cl = pytest.mark.needs("CL")
BROKEN = [
  pytest.param(MISSING, "needs the package 'pyopencl'", "fix: pip install 'tinygrad[opencl]'", id="package missing"),
  pytest.param(DOES_NOT_LOAD, "(libOpenCL.so.1: cannot open", "fix: pip install --force-reinstall", id="does not load"),
  pytest.param(NO_PLATFORM, "no OpenCL device with shared", INSTALL[5:], id="no platform", marks=needs_cl),
  pytest.param(NO_SUCH_DEVICE, "no OpenCL device with shared", INSTALL[5:], id="no device", marks=needs_cl),
  pytest.param(NO_COMPILER, "unknown target CPU 'generic'", INSTALL[5:], id="does not compile", marks=needs_cl),
  pytest.param(NO_LAUNCH, "INVALID_KERNEL", INSTALL[5:], id="does not launch", marks=needs_cl),
  pytest.param(WRONG, "the first kernel computed [0.0, 0.0", INSTALL[5:], id="wrong values", marks=needs_cl),
]

ASKS = """
from tinygrad import Device, DeviceError, Tensor
from tinygrad.device import print_kinds
print_kinds()
asked = len(globals().get("calls", ()))
for device in ("CL", "CL:1", "GPU:1", "GPU:1"):
  try:
    print((Tensor([1.0, 2.0], device=device) * 3).tolist())
  except DeviceError as e:
    print(f"{device} raises {str(e).splitlines()}")
assert "CL" not in Device.get_available_devices()
assert len(globals().get("calls", ())) == asked, "the driver is asked once"
"""


def run(code, *arguments, **environment):
  """What a process prints, without the disk cache: its entries are programs that were built before."""
  done = subprocess.run(
    [sys.executable, *(arguments or ("-c", code))],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([*environment.pop("path", []), str(ROOT), *sys.path])}
    | {"CACHEDIR": "/dev/null/none", "CUDA_VISIBLE_DEVICES": ""}
    | environment,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.mark.parametrize("breaks, said, fix", BROKEN)
def test_a_driver_that_does_not_work_is_told_with_what_to_install_and_asked_once(breaks, said, fix):
  out = run(breaks + ASKS).splitlines()
  (told,) = (line for line in out if line.startswith("CL    no"))
  assert said in told and "; fix: " in told and fix in told, told
  raised = [line for line in out if " raises " in line]
  assert [line.split()[0] for line in raised] == ["CL", "CL:1", "GPU:1", "GPU:1"], out
  assert all(said.split("'")[0] in line for line in raised)
  assert all("no GPU backend works here" in line and "GPU=CPU" in line for line in raised[2:])


SECOND = """
import tinygrad.runtime.cl as backend
found = backend.drivers()[0]
backend.drivers = lambda: [found, found]
real, built = backend.cl.Program.build, []
failing = 2 if "PoCL" in found[0].version else 1  # which is tried with other declarations, too
def build(self, *args, **settings):
  built.append(args)
  if len(built) <= failing:
    raise backend.cl.RuntimeError("clBuildProgram failed: unknown target CPU")
  return real(self, *args, **settings)
backend.cl.Program.build = build
from tinygrad import Tensor
z = Tensor.arange(8).float().shard(("CL:0", "CL:3"), axis=0)
print((z * z).sum().item(), len(built) > failing)
"""


@needs_cl
def test_the_next_driver_is_taken_where_the_first_does_not_compile():
  assert run(SECOND).split() == ["140.0", "True"]


@needs_cl
def test_one_physical_device_is_as_many_as_are_asked_for():
  code = "from tinygrad import Tensor; x = Tensor.arange(24).shard([f'CL:{i}' for i in range(6)], 0)\n"
  assert run(code + "print((x.sum() * 2).item())", CL_VIRTUAL="6").split() == ["552"]
  code = "from tinygrad import Device, DeviceError\ntry: Device['CL:2']\nexcept DeviceError as e: print(e)"
  assert "CL_VIRTUAL=n" in run(code, CL_VIRTUAL="1")


@needs_cl
@pytest.mark.parametrize("given", ["x", "0"])
def test_as_many_as_are_asked_for_is_a_number(given):
  code = "from tinygrad import Device\ntry: Device['CL']\nexcept ValueError as e: print(e)"
  said = run(code, CL_VIRTUAL=given)
  assert f"CL_VIRTUAL='{given}' in the environment is no int of 1 or more\n  fix: export CL_VIRTUAL=" in said


def test_without_a_driver_its_tests_are_skipped_for_one_reason_that_the_summary_names():
  one = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test/renderer/test_cstyle.py", "-k", "compute_what_lanes_do"]
  out = run("", *one, HIDE="pyopencl", path=[str(ROOT / "test" / "hidden")])
  (line,) = (line for line in out.splitlines() if line.startswith("not run: "))
  assert "tests or files: needs CL: device CL needs the package 'pyopencl'; fix: pip install" in line
  assert " skipped" in out and "passed" not in out


def test_an_import_that_fails_without_a_name_is_of_this_package():
  """As when Python ends. Mutant: the fix is to install None."""
  with (
    pytest.raises(DeviceError, match="CPU: .* \\(it ends\\)\n  fix: pip install --force-reinstall tinygrad$"),
    _packages_named("CPU"),
  ):
    raise ImportError("it ends")
