"""What the kinds of device can do is data, known before one is opened; a backend keeps to the protocol."""

import subprocess
import sys
import time

import pytest

from tinygrad.device import Capabilities, Computes, Device, backends

KINDS = {
  "CPU": Capabilities(processor=True, wraps=True, cells=True, stamps=True),
  "CL": Capabilities(copies=True),
  "CUDA": Capabilities(copies=True, nccl=True),
  "METAL": Capabilities(),
  "NULL": Capabilities(simulated=True),
  "PYTHON": Capabilities(Computes.INTERPRETED, arrays=True),
  "NPY": Capabilities(Computes.ON_HOST, arrays=True),
  "DISK": Capabilities(Computes.NOTHING, arrays=True, files=True),
}


def test_every_kind_says_what_it_can_do():
  assert {kind: Device.capabilities(kind) for kind in backends()} == KINDS
  assert [kind for kind in backends() if KINDS[kind].ordinary] == ["CL", "CPU", "CUDA", "METAL"]
  assert Device.capabilities("DISK:/a/path") is Device.capabilities("DISK")
  assert Device["CPU:1"].kind == "CPU" and not Device["CPU:1"].lost


def test_devices_that_do_not_copy_say_so():
  with pytest.raises(TypeError, match="the devices do not copy from one another"):
    Device["NPY"].copy_all([])


def test_a_stamp_is_between_what_is_before_and_after_it_in_a_list():
  with pytest.raises(TypeError, match="NPY notes no times"):
    Device["NPY"].stamp()
  device = Device["CPU:1"]
  stamps = [device.stamp() for _ in range(3)]
  start = time.perf_counter()
  device.submit_all([device], [device.batch(stamps)])
  device.synchronize()
  times = [start, *(s.seconds for s in stamps), time.perf_counter()]
  assert times == sorted(times), "by the clock of time.perf_counter"


def test_a_backend_with_a_method_left_out_is_a_type_error(tmp_path):
  """mypy sees what is missing, and what has other parameters."""
  pytest.importorskip("mypy")
  source = """
from typing import Any
from tinygrad.device import Backend
from tinygrad.runtime.npy import HostBackend
class Whole(HostBackend):
  pass
class Partly(Backend):
  def alloc(self, nbytes: int) -> Any: ...
class Other(HostBackend):
  def copyin(self, handle: Any) -> None: ...
open_whole: type[Backend] = Whole
open_partly: type[Backend] = Partly
"""
  (tmp_path / "these.py").write_text(source)
  command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(tmp_path / "these.py")]
  told = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
  wrong = {(line.split(":")[1], line.rpartition("[")[2]) for line in told if "error: " in line}
  assert wrong == {("10", "override]"), ("12", "type-abstract]")}, told


def test_the_engine_asks_before_a_device_is_opened():
  code = "from tinygrad import Device; from tinygrad.device import opened; import sys; "
  code += "print(Device.capabilities('CUDA').ordinary, Device.canonicalize('DISK:007'), opened, 'cuda' in sys.modules)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ["True", "DISK:007", "{}", "False"]
