"""GPUs of several processes: OpenCL devices, whose bytes go through the host by MPI, and emulated ones of CUDA, between
which a double of NCCL (nccl_double.py) really moves them, when their streams come to it."""

import functools
import importlib.util
import re
from pathlib import Path

import nccl_double
import numpy as np
import pytest
from several import needs_mpi, printed, run_in

from tinygrad import Device
from tinygrad.distributed import nccl, wires

HERE = Path(__file__).parent
EMULATED = {"DEV": "EMULATED"}
pytestmark = needs_mpi
needs_compiler = pytest.mark.skipif(
  not nccl_double.cuda_emulator.has_compiler(), reason="the emulated driver compiles kernels for the host with g++"
)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
  """Where emulated kernels are kept for all processes of these tests."""
  return {"EMULATED_CODE": str(tmp_path_factory.mktemp("code"))}


@functools.cache
def alone(kind, count, **env):
  (lines,) = printed(1, HERE / "gpus.py", kind, count, **env)
  assert len(lines) == 7 and len({line.split()[-1] for line in lines}) == 7
  return lines


@pytest.mark.needs("CL")
def test_opencl_devices_of_two_processes_have_the_bits_of_one():
  assert printed(2, HERE / "gpus.py", "CL", 4) == [[*alone("CL", 4), "by MPI"]] * 2


@pytest.mark.needs("CUDA")
def test_nccl_itself_between_two_gpus():
  if Device.count("CUDA") < 2 or importlib.util.find_spec("nccl") is None:
    pytest.skip("needs two NVIDIA GPUs and NCCL: pip install 'tinygrad[cuda,mpi,nccl]'")
  assert printed(2, HERE / "gpus.py", "CUDA", 2) == [[*alone("CUDA", 2), "by NCCL"]] * 2


@needs_compiler
@pytest.mark.parametrize("count", [2, 4])
def test_what_only_moves_has_the_bits_of_the_processor(code, count):
  """In one process."""
  found, want = alone("EMULATED", count, **code), alone("CPU", count)
  assert {"moved", "halo", "whole"} <= {line.split()[0] for line in found if line in want}


@needs_compiler
@pytest.mark.parametrize("each", [1, 2])
def test_nccl_moves_bytes_and_the_bits_are_those_of_one_process(code, each):
  """With one device in each of two processes, and two: these sum first what they reach."""
  want = [*alone("EMULATED", 2 * each, **code), "by NCCL"]
  assert printed(2, HERE / "gpus.py", "EMULATED", 2 * each, **code) == [want] * 2


@needs_compiler
@pytest.mark.parametrize("mutant", ["early", "crossed"])
def test_what_would_go_wrong_with_nccl_is_noticed(code, mutant):
  """Messages that do not wait for the streams, or are received in another order."""
  _, out, _ = run_in(2, HERE / "gpus.py", "EMULATED", 4, MUTANT=mutant, **code)
  assert [line for line in alone("EMULATED", 4, **code) if line not in out], out


@needs_compiler
def test_messages_are_in_a_group(code):
  status, out, err = run_in(2, HERE / "gpus.py", "EMULATED", 4, MUTANT="lone", **code)
  assert status and "outside a group waits for what comes after it" in err, out + err


@needs_compiler
@pytest.mark.parametrize(
  "setting,word",
  [
    ({"MISSING": "nccl4py"}, r"process 1: nccl4py does not load \(.*\); pip install 'tinygrad\[nccl\]'\n"),
    ({"MISSING": "library"}, r"process 1: nccl4py finds no NCCL; pip install 'tinygrad\[nccl\]'\n"),
    ({"BUS": "shared"}, "several EMULATED devices are one GPU, of which NCCL takes each once\n"),
    ({"NCCL": "0"}, None),
  ],
)
def test_without_nccl_bytes_go_through_the_host_and_one_word_says_so(code, setting, word):
  want = [*alone("EMULATED", 4, **code), "by MPI"]
  status, out, err = run_in(2, HERE / "gpus.py", "EMULATED", 4, **setting, **code)
  assert status == 0 and all(out.count(line.split()[-1]) == 2 for line in want), out + err
  if word is None:  # the user's own
    assert "tinygrad:" not in err
  else:
    assert len(re.findall(f"tinygrad: EMULATED devices of several processes .* by MPI: {word}", err)) == 1, err


@needs_compiler
def test_an_error_of_nccl_says_what_to_do(code):
  status, out, err = run_in(2, HERE / "gpus.py", "EMULATED", 4, MISSING="link", **code)
  fix = r"\n  fix: NCCL=0 in the environment sends through the host, by MPI; NCCL_DEBUG=WARN"
  assert status and re.search(r"DistributedError: NCCL: connecting the devices failed: NCCL_ERROR.*" + fix, err), err


@needs_compiler
@pytest.mark.parametrize("each", [1, 2])
def test_between_processes_gpus_send_the_bytes_that_explain_tells(code, each):
  """However NCCL or MPI carries them, as between hosts (test_several.py)."""
  for way in ({}, {"NCCL": "0"}):
    lines = printed(2, HERE / "counted.py", "--each", each, **EMULATED, **way, **code)[0]
    found = {
      name: (int(sent), int(between), int(inside)) for name, sent, _, _, between, inside in map(str.split, lines)
    }
    assert len(found) == 5 and all(line.split()[3] == "True" for line in lines)
    assert all(sent == between > 0 for sent, between, _ in found.values())
    assert any(inside for *_, inside in found.values()) == (each > 1)


def test_a_device_that_opens_in_one_process_alone_is_an_error_in_all(tmp_path):
  (tmp_path / "some.py").write_text(
    "import os, nccl_double\nfrom tinygrad import Device, DeviceError, Tensor, distributed\n"
    "nccl_double.install(1 - int(os.environ['PMI_RANK']))\ndistributed.initialize()\n"
    "try:\n  Tensor.ones(2, device='EMULATED').realize()\nexcept DeviceError as e:\n  print(str(e).splitlines()[0])\n"
    "try:\n  Device['EMULATED:2']\nexcept DeviceError as e:\n  print(str(e).splitlines()[0])\n"
  )
  none = "there is no NVIDIA device here"
  lost = "there is no EMULATED:2: 2 processes with 1 device each have EMULATED:0 to EMULATED:1"
  assert printed(2, tmp_path / "some.py") == [[f"EMULATED does not work in process 1: {none}", lost], [none, lost]]


@pytest.mark.needs("CL")
def test_devices_in_use_before_initialize_are_an_error(tmp_path):
  (tmp_path / "late.py").write_text(
    "from tinygrad import DeviceError, Tensor, distributed\nTensor.ones(2, device='CL').realize()\n"
    "try:\n  distributed.initialize()\nexcept DeviceError as e:\n  print(str(e).splitlines()[0])\n"
  )
  want = "CL is in use already, as a device of this process alone"
  assert printed(2, tmp_path / "late.py") == [[want]] * 2


def test_runs_of_neighbours_are_messages_unless_they_are_many():
  assert wires.runs_of(slice(3, 9)) == [(3, 9)]
  assert wires.runs_of(np.array([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 6), (7, 9)]
  assert wires.runs_of(np.arange(0, 2 * wires.MOST_RUNS, 2)) is None
  assert len(wires.runs_of(np.arange(0, 2 * wires.MOST_RUNS - 2, 2))) == wires.MOST_RUNS - 1


def test_memory_is_told_as_nccl4py_takes_it():
  about = nccl.Bytes(4096, 12).__cuda_array_interface__
  assert about == {"shape": (12,), "typestr": "|u1", "data": (4096, False), "strides": None, "version": 3}
  assert [nccl.number_of(name) for name in ("CUDA", "CUDA:7")] == [0, 7]
