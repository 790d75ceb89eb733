"""Scripts in several processes, beside the same scripts in one; and one process that does something else."""

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from several import MPIEXEC, ROOT, command_output, launched, needs_mpi, printed, run_in

from tinygrad import Device, DeviceError, Mesh, P, ShardError, Sharding, Tensor, distributed
from tinygrad.distributed import siblings
from tinygrad.distributed.faults import process_state

HERE = Path(__file__).parent
pytestmark = needs_mpi


def own(name):
  """A script of this folder."""
  return HERE / f"{name}.py"


@functools.cache
def alone(**setting):
  (lines,) = printed(1, own("values"), 4, **setting)
  assert len(lines) == 19 and len({line.split()[-1] for line in lines}) > 16, "the values are not all the same"
  return lines


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("setting", [{}, {"INTERPRET": "1"}])
def test_values_have_the_bits_of_one_process(n, setting):
  assert printed(n, own("values"), 4, **setting) == [alone(**setting)] * n


@pytest.mark.parametrize("apart", [{"HOSTS": "2"}, {"SHARED_MEMORY": "0"}])
def test_values_are_those_bits_between_hosts_too(apart):
  assert printed(4, own("values"), 4, **apart) == [alone()] * 4


def test_what_one_process_alone_holds_is_found_in_the_next_replay():
  right = [f"{i} right" for i in range(8)]
  assert printed(2, own("holds")) == printed(1, own("holds")) * 2 == [right] * 2
  code, out, _ = run_in(2, own("holds"), "--deaf")
  assert code or "wrong" in out, "nothing would have been noticed: " + out


def test_what_runs_at_once_is_measured_by_what_is_here_and_by_the_cores(tmp_path):
  """Work of all devices together for which a thread would be woken, of which each process has a part for which none is:
  the process runs it itself; and where it has several devices, they do. More is run so where no core is left."""
  (tmp_path / "brief.py").write_text(
    "import sys\nfrom tinygrad import Device, Tensor, TinyJit, distributed\n"
    "from tinygrad.distributed import devices\n"
    "devices.cores = lambda: int(sys.argv[1])\ndistributed.initialize(1)\n"
    "step = TinyJit(lambda x: x.sum(0).shard(x.device.devices).realize())\n"
    "limit = Device['CPU'].worth_waking\nprint(limit)\n"
    "for size in (limit >> 9, limit // 17, limit >> 2):\n"
    "  x = Tensor.ones(2, size).contiguous().shard(('CPU:0', 'CPU:1'), 0).realize()\n"
    "  for _ in range(2):\n    step(x)\n"
    "  work, (_, batches) = step.captured.alone, *step.captured.alone.batches\n"
    "  print(work.ops + work.nbytes < limit, *{b.brief for b in batches})\n"
  )
  assert printed(2, tmp_path / "brief.py", 3) == [["524288", "True True", "False True", "False False"]] * 2
  assert printed(2, tmp_path / "brief.py", 2) == [["8388608", "True True", "False True", "False False"]] * 2
  assert printed(1, tmp_path / "brief.py", 2) == [["524288", "True False", "False False", "False False"]]


def counted(n, *args, **env):
  """By collective: bytes sent, `explain`'s of all devices, between hosts, inside hosts."""
  found = [line.split() for line in printed(n, own("counted"), *args, **env)[0]]
  assert [name for name, *_ in found] == ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "halo"]
  assert all(line[3] == "True" for line in found)
  return {name: tuple(map(int, (sent, *rest))) for name, sent, *rest in (line[:3] + line[4:] for line in found)}


@pytest.mark.parametrize("n", [2, 3])
def test_between_hosts_travel_the_bytes_that_explain_tells(n):
  """Counted by what MPI is given. (A device at an edge receives no halo: of all devices `explain` has the largest
  part.)"""
  found = counted(n, SHARED_MEMORY="0")
  assert all(sent == predicted for name, (sent, predicted, *_) in found.items() if name != "halo")
  assert 0 < found["halo"][0] <= found["halo"][1]
  assert all((between, inside) == (sent, 0) for sent, _, between, inside in found.values())
  whole = counted(n, "--whole", SHARED_MEMORY="0")
  assert all(sent > predicted for name, (sent, predicted, *_) in whole.items() if name in ("all_to_all", "halo"))


@pytest.mark.parametrize("hosts,near,processes", [(2, 2, 4), (2, 4, 4), (4, 2, 4), (2, 4, 8)])
@pytest.mark.parametrize("mesh", ["--line", "--grid"])
def test_sums_cross_between_hosts_once_for_each_host(hosts, near, processes, mesh):
  """However the mesh is written: of an all-reduce's payload a host receives 2 (hosts - 1) / hosts from others, and
  inside of it each device reads 2 (near - 1) / near; of a reduce-scatter's half of both."""
  payload, devices = 48 * 1024 * 4, hosts * near
  found = counted(processes, mesh, "--each", devices // processes, HOSTS=str(hosts))
  assert all(sent == between for sent, _, between, _ in found.values())
  far, inside = (hosts - 1) * payload, hosts * (near - 1) * payload
  assert found["all_reduce"][2:] == (2 * far, 2 * inside)
  assert found["reduce_scatter"][2:] == (far, inside)
  assert found["all_gather"][2:] == (far * devices, inside * near)


def test_sums_in_one_send_more_between_hosts_and_wrong_sums_are_noticed():
  """What the laws above would see: sums that are not split, and sums one after the other."""
  payload = 48 * 1024 * 4
  flat = counted(4, "--flat", HOSTS="2")
  assert [flat[name][0] for name in ("all_reduce", "reduce_scatter")] == [3 * payload, 2 * payload]
  assert flat["all_gather"] == counted(4, HOSTS="2")["all_gather"]
  code, out, err = run_in(4, own("counted"), "--sequence", HOSTS="2")
  assert code == 0 and re.search(r"all_reduce \d+ \d+ False", out), out + err


def test_processes_meet_once_in_a_step_whatever_is_sent(tmp_path):
  """Mutant: what is read of other hosts is carried by the host between two stretches, with meetings before and
  behind."""
  (tmp_path / "meets.py").write_text(
    "from tinygrad import Device, P, Mesh, Tensor, TinyJit, distributed\ndistributed.initialize()\n"
    "mesh = Mesh([f'CPU:{i}' for i in range(Device.count('CPU'))], names=('x',))\n"
    "x = Tensor.arange(4096).reshape(4, 1024).float().shard(mesh, P('x', None)).realize()\n"
    "step = TinyJit(lambda x: (x.sum(0).shard(mesh, P()).contiguous() + x).sum(0).shard(mesh, P()).realize())\n"
    "said, meet = [], Device.world.meet\n"
    "Device.world.meet = lambda what, *args: said.append(what) or meet(what, *args)\n"
    "for _ in range(3):\n  said.clear()\n  y = step(x)\n"
    "print(len(said), y[5].item())\n"
  )
  value = 4 * sum(5 + 1024 * i for i in range(4)) + sum(5 + 1024 * i for i in range(4))
  assert printed(2, tmp_path / "meets.py", HOSTS="2") == [[f"1 {value:.1f}"]] * 2
  assert printed(4, tmp_path / "meets.py", HOSTS="4") == [[f"1 {value:.1f}"]] * 4
  assert printed(4, tmp_path / "meets.py", HOSTS="2") == [[f"1 {value:.1f}"]] * 4


def test_kernels_run_beside_what_travels_between_hosts():
  """Mutants: items in the order as given; a delivery that begins only where it is needed."""
  assert printed(2, own("beside"), HOSTS="2") == [["beside 8197.0 131072.0 [True]"]] * 2


def test_times_are_shown_where_the_first_device_is_another_processs(tmp_path):
  """What a device can do at most is measured on one of this process. (Mutant: on the first one of all, whose memory
  nobody has told of here.)"""
  (tmp_path / "times.py").write_text(
    "from tinygrad import Tensor, distributed\ndistributed.initialize()\n"
    "print(Tensor.ones(8).contiguous().shard(('CPU:0', 'CPU:1'), 0).sum().item())\n"
  )
  for lines in printed(2, tmp_path / "times.py", DEBUG="2", CACHEDIR=str(tmp_path)):
    assert any("GFLOP/s (a float32 matmul)" in line for line in lines) and lines[-1] == "8.0"


def test_the_first_process_searches_for_all(tmp_path):
  """All have one code, whatever each would have found. (Mutant: each searches, on the first device of all.)"""
  (tmp_path / "beam.py").write_text(
    "from tinygrad import Tensor, TinyJit, distributed\nfrom tinygrad.tuning import search\n"
    "distributed.initialize()\nsearches, measuring = [], search.measuring\n"
    "search.measuring = lambda *args: searches.append(args[1].name) or measuring(*args)\n"
    "x = Tensor.arange(64 * 64).reshape(64, 64).float().shard(('CPU:0', 'CPU:1'), axis=0).realize()\n"
    "step = TinyJit(lambda x: (x * 0.01).exp().sum(1).realize())\n"
    "for _ in range(2):\n  y = step(x)\n"
    "print(len(searches) > 0, *[w.program.code.keys for w in step.captured.work])\nprint(y.sum().item() > 0)\n"
  )
  one, two = printed(2, tmp_path / "beam.py", BEAM="1", BEAM_SECONDS="1", CACHEDIR=str(tmp_path))
  (first, *codes), (second, *same) = (lines[-2].split() for lines in (one, two))
  assert (first, second) == ("True", "False") and codes == same and one[-1] == two[-1] == "True"


def test_three_devices_of_a_host_are_no_branch():
  """Of six on two hosts: the same bits, and what `explain` tells, by one sum over all."""
  found = counted(2, "--each", 3, HOSTS="2")
  assert all(sent == between for sent, _, between, _ in found.values())
  assert found["all_reduce"][0] == counted(2, "--each", 3, "--flat", HOSTS="2")["all_reduce"][0]


LAW = {
  2: "test_laws.py::test_sharded_equals_unsharded_compiled",
  4: "test_scripts.py::test_scripts_show_what_numpy_does_compiled",
}


@pytest.mark.parametrize("n", [2, 4])
def test_a_law_holds_in_several_processes(n):
  """All of them: `.ci/run`."""
  tests = sys.executable, "-m", "pytest", "-q", "-p", "ranks", "-p", "no:cacheprovider", f"test/laws/{LAW[n]}[40]"
  code, out, err = command_output([MPIEXEC, "-n", n, *tests])
  assert code == 0 and "1 passed" in out, out + err


def test_garbage_is_collected_at_the_same_places():
  """What a Tensor in a cycle still has to write is performed with what else is realized, as long as it is alive."""
  code, out, err = run_in(2, own("garbage"), 0, 60)
  assert code == 0 and out.count("all agree") == 2, out + err
  code, out, err = run_in(2, own("garbage"), 0, 0, "--automatic")
  assert code != 0 and "DivergedError" in out + err, "nothing would have been noticed: " + out + err


def test_a_test_that_fails_in_one_process_is_a_failure(tmp_path):
  (tmp_path / "test_one.py").write_text("import os\n\ndef test_first():\n  assert os.environ['PMI_RANK'] == '0'\n")
  tests = sys.executable, "-m", "pytest", "-q", "-p", "ranks", "-p", "no:cacheprovider", "--rootdir", tmp_path
  code, out, err = command_output([MPIEXEC, "-n", 2, *tests, tmp_path])
  assert code != 0 and "process 1: test_one.py::test_first" in err, out + err


# ---------------------------------------------------------------- names and parts


def test_names_are_global_and_each_process_has_its_part():
  first, second = printed(2, own("names"))
  assert first == ["0 of 2", "CPU CPU:1", "4 devices", "part [[0.0, 1.0], [2.0, 3.0]]", "its own 6.0", *first[5:]]
  assert second == ["1 of 2", "CPU:2 CPU:3", "4 devices", "part [[4.0, 5.0], [6.0, 7.0]]", "its own 22.0", *first[5:]]
  assert first[5:] == ["sum 28.0", "saved [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]", *first[7:]]
  errors = "\n".join(first[7:])
  assert "there is no CPU:4: 2 processes with 2 devices each have CPU:0 to CPU:3" in errors
  assert "initialize(devices=3)" in errors
  assert "this process's part of [8, 2] is [(0, 4), (0, 2)], the array has shape (3, 2)" in errors
  assert "devices of kind NULL are not spread over processes: each has its own" in errors


def test_in_one_process_nothing_changes():
  distributed.initialize(2)
  assert Device.world is None and (distributed.process_index(), distributed.process_count()) == (0, 1)
  assert Device.local("CPU")[:1] == ("CPU",) and len(Device.local("CPU")) == Device.count("CPU")
  mesh = Mesh(("CPU:0", "CPU:1", "CPU:2", "CPU:3"), (2, 2), ("a", "b"))
  array = np.arange(12, dtype=np.float32).reshape(4, 3)
  t = Tensor.from_process_local(array, Sharding(mesh, P("a", None)))
  assert (t.numpy() == array).all() and t.device == Sharding(mesh, P("a", None))
  assert (Tensor.from_process_local(array, "CPU:1").numpy() == array).all()
  with pytest.raises(ShardError, match=r"this process's part of \[5, 3\] is \[\(0, 5\), \(0, 3\)\], the array has"):
    Tensor.from_process_local(array, Sharding(mesh, P("a", None)), shape=(5, 3))


def test_mistakes_at_the_start(monkeypatch):
  with pytest.raises(ValueError, match="a process has at least one device, not 0"):
    distributed.initialize(0)
  with pytest.raises(ValueError, match="a process has at least one device, not 'two'"):
    distributed.initialize("two")
  monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
  with pytest.raises(distributed.DistributedError, match="4 processes were started, and MPI sees 1"):
    distributed.initialize()
  monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
  with pytest.raises(
    distributed.DistributedError, match=r"several processes need MPI[^$]*pip install 'tinygrad\[mpi\]'"
  ):
    distributed.initialize()


def test_what_slurm_leaves_in_the_environment_is_read(monkeypatch):
  """As its documentation has it, and Slurm 22.05 does."""
  for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"):
    monkeypatch.delenv(name, raising=False)
  job = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}
  for name, value in job.items():  # of the job's script, which is one process
    monkeypatch.setenv(name, value)
  distributed.initialize()
  assert Device.world is None and siblings.of_this_host() == (1, 0)
  step = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_GTIDS": "4,5,6,7"}
  for name, value in step.items():  # of a process that srun has started
    monkeypatch.setenv(name, value)
  assert siblings.of_this_host() == (4, 2)
  with pytest.raises(
    distributed.DistributedError, match=r"8 processes[^$]*fix: that MPI's own mpiexec; srun --mpi=pmi2"
  ):
    distributed.initialize()
  for name, value in {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "1"}.items():
    monkeypatch.setenv(name, value)  # of one that mpiexec has, in a step of its own
  assert siblings.of_this_host() == (3, 1)
  with pytest.raises(distributed.DistributedError, match="3 processes were started, and MPI sees 1"):
    distributed.initialize()


def test_mistakes_of_several_processes(tmp_path):
  script = tmp_path / "late.py"
  script.write_text(
    "from tinygrad import Tensor, distributed\nTensor.ones(3).contiguous().realize()\ndistributed.initialize()\n"
  )
  code, _, err = run_in(2, script)
  assert code and "CPU is in use already, as a device of this process alone" in err and "late.py:3" in err
  script.write_text(
    "import os\nfrom tinygrad import distributed\ndistributed.initialize(1 + int(os.environ['PMI_RANK']))\n"
  )
  code, _, err = run_in(2, script)
  assert code and "processes ask for [1, 2] devices" in err


# ---------------------------------------------------------------- faults


def test_a_process_that_reads_alone_is_named():
  code, out, err = launched(3, own("fails"), "reads")
  assert code == 1 and "DivergedError: the processes do not do the same:" in err
  assert re.search(r"process 2 in fails.py:\d+: loss.item\(\): 1 kernels and copies", err)
  assert re.search(r"process 0 in fails.py:\d+: loss = step", err) and "process 1 in" in err
  assert err.count("Traceback") == 1 and "loss" not in out


@pytest.mark.parametrize("apart", [{}, {"HOSTS": "2"}])
@pytest.mark.parametrize(
  ("what", "said"),
  [
    ("a number", r"DivergedError: [^$]*process 1 in differs.py:\d+: [^$]*same kernels, but for numbers in them"),
    (
      "a number in a step",
      r"DivergedError: [^$]*process 1 in differs.py:\d+: step = TinyJit[^$]*same kernels, but for numbers in them",
    ),
    ("a number in a thread", r"DivergedError: [^$]*process 1 in differs.py:\d+: thread =[^$]*same kernels, but"),
    (
      "data",
      r"DivergedError: the processes have other values for devices of all: \[4\] float32"
      r"[^$]*process 0 in differs.py:\d+: [^$]*process 1 in differs.py:\d+: [^$]*fix: the same seed",
    ),
    ("a block of data", r"DivergedError: the processes have other values for devices of all: \[4\] float32"),
    ("threads", r"DistributedError: two threads of process 0 meet the other processes at once[^$]*fix: "),
    ("the version", r"DistributedError: initialize: processes have other versions[^$]*process 1: 01234567 in /else"),
    ("devices", r"DistributedError: initialize: there is 1 device in each process already, not 2[^$]*fix: "),
  ],
)
def test_processes_that_differ_are_told_of(tmp_path, what, said, apart):
  code, out, err = launched(2, own("differs"), what, tmp_path / "told", **apart)
  assert code and "computed" not in out and "through" not in out, out + err
  assert re.search(said, err), err


PLANNED_OR_READ = """
import os, sys
rank = int(os.environ["PMI_RANK"])
os.environ["CACHEDIR"] = sys.argv[1 + rank]
from tinygrad import Tensor, TinyJit, distributed
distributed.initialize()
weights = Tensor.arange(8).float().shard(("CPU:0", "CPU:1"), axis=0).realize()

@TinyJit
def step(x):
  return ((weights * x).sum().realize() + weights.square().sum().realize() + (weights * x).sum()).realize()

print([step(Tensor([float(i)]).shard(("CPU:0", "CPU:1")).realize()).item() for i in range(4)])
"""


def test_a_process_that_reads_its_plans_does_the_same_as_one_that_makes_them(tmp_path):
  script, cached = tmp_path / "planned.py", {"PLAN_CACHE": "1", "SPEC": "1"}
  script.write_text(PLANNED_OR_READ)
  expected = [f"[{', '.join(str(140.0 + 56 * i) for i in range(4))}]"]
  assert printed(2, script, tmp_path / "a", tmp_path / "a", **cached) == [expected] * 2
  assert printed(2, script, tmp_path / "a", tmp_path / "b", **cached) == [expected] * 2


def test_a_process_is_in_its_program_whatever_of_python_it_has_called():
  from tinygrad.distributed.faults import line_of

  waits, ends = threading.Event(), threading.Event()

  def wait():
    waits.set()
    ends.wait()

  thread = threading.Thread(target=wait)
  thread.start()
  waits.wait()
  try:
    with tempfile.TemporaryFile() as pad:
      assert line_of(thread.ident, pad).endswith(("ends.wait()", "waits.set()"))
  finally:
    ends.set()


def test_who_looks_where_a_process_is_keeps_nothing_that_it_has_left():
  """A value that a function had a name for is computed if it is alive when another is realized."""
  from tinygrad.distributed.faults import line_of

  class Value:
    pass

  def left():
    value = Value()
    return weakref.ref(value)

  looks, over, main = [], threading.Event(), threading.main_thread().ident

  def look():
    with tempfile.TemporaryFile() as pad:
      while not over.is_set():
        looks.append(line_of(main, pad))

  thread, interval = threading.Thread(target=look), sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  thread.start()
  try:
    while len(looks) < 400:
      assert left()() is None
  finally:
    over.set()
    sys.setswitchinterval(interval)
    thread.join()
  assert any("test_several.py" in line for line in looks)


ENDS_AT_ONCE = """
from tinygrad import distributed
distributed.initialize()
print("process", distributed.process_index())
"""


def test_processes_that_end_at_once_with_nothing_compiled_end_well(tmp_path):
  (tmp_path / "ends.py").write_text(ENDS_AT_ONCE)
  code, out, err = launched(2, tmp_path / "ends.py", CACHEDIR=str(tmp_path / "new"))
  assert (code, sorted(out.splitlines()), err) == (0, ["0| process 0", "1| process 1"], "")


def test_long_texts_are_shown_from_where_they_differ():
  from tinygrad.distributed.world import SHOWN, differing

  alike = " ".join(f"kernel_{i}" for i in range(100))
  first, second = differing([f"{alike} E_4 then", f"{alike} E_5 then"])
  assert first.startswith("kernel_0 ") and first.endswith(" … E_4 then") and second.endswith(" … E_5 then")
  assert len(first) < 2 * SHOWN and differing(["a b", "a c"]) == ["a b", "a c"] and differing([alike])[0] < alike


def test_a_process_has_its_part_of_data_alone():
  assert [lines[0] for lines in printed(2, own("differs"), "its part of data")] == ["computed 28.0"] * 2


NATIVE = r"(process \d ends in fails.py:\d+: .*: )?"  # of one that waits where nothing can be raised


@pytest.mark.parametrize(
  ("what", "code", "said"),
  [
    ("raises", 1, r"process 2 failed in fails.py:\d+: raise ValueError\(\"a bad batch\"\): ValueError: a bad batch"),
    ("dies", 137, r"process 2 \(pid \d+\) is dead; it was last in fails.py"),
    ("stops", 1, r"process 2 \(pid \d+\) is stopped in fails.py"),
  ],
)
def test_every_process_tells_which_one_it_lacks(what, code, said):
  got, out, err = launched(3, own("fails"), what)
  assert got == code, out + err
  for rank in (0, 1):
    assert re.search(rf"(?m)^{rank}\| .*LostProcessError: {NATIVE}{said}", err), err
  assert (what == "raises") <= err.count("Traceback") <= (what != "dies") and "loss" not in out
  if what == "raises":
    assert re.search(r"(?m)^2\| ValueError: a bad batch$", err)


@pytest.mark.parametrize(
  ("hosts", "what", "code", "said"),
  [
    (2, "raises", 1, r"process 3 failed in fails.py:\d+: raise ValueError\(\"a bad batch\"\): ValueError: a bad batch"),
    (2, "dies", 137, r"process 3 \(pid \d+\) is dead; it was last in fails.py"),
    (4, "dies", 137, r"the host of process 3 has said nothing for 3.5 seconds"),
  ],
)
def test_every_process_of_another_host_tells_which_one_it_lacks(hosts, what, code, said):
  """A host tells of its own dead; one of which all are dead is silent."""
  got, out, err = launched(4, own("fails"), what, HOSTS=str(hosts))
  assert got == code, out + err
  for rank in (0, 1, 2):
    assert re.search(rf"(?m)^{rank}\| .*LostProcessError: .*{said}", err), err


@pytest.mark.parametrize("ends", ["import no_such_module", "sys.exit()"])
@pytest.mark.parametrize("starter", ["mpiexec", "the launcher"])
def test_a_process_that_ends_before_it_joins_is_told_of(tmp_path, ends, starter):
  """MPI itself would wait for it for ever."""
  (tmp_path / "early.py").write_text(
    f"import os, sys\nif os.environ['PMI_RANK'] == '1':\n  {ends}\n"
    "from tinygrad import distributed\ndistributed.initialize()\nprint('through')\n"
  )
  code, out, err = (run_in if starter == "mpiexec" else launched)(3, tmp_path / "early.py")
  assert code and "through" not in out and ("no_such_module" in err) == ("import" in ends), out + err
  said = r"LostProcessError: a process has ended before it called initialize\(\): of this host's 3, one of \[1\]"
  assert re.search(said, err), err


def test_who_waits_in_native_code_is_ended_too():
  code, _, err = launched(2, own("fails"), "waits natively")
  assert code and re.search(r"1\| .*LostProcessError: process 1 ends.*: process 0 \(pid \d+\) is dead", err), err


# ---------------------------------------------------------------- the launcher


def test_output_begins_with_the_number_of_the_process(tmp_path):
  (tmp_path / "hello.py").write_text(
    "import sys\nfrom tinygrad import distributed\ndistributed.initialize()\n"
    "print('hello', distributed.process_index(), *sys.argv[1:])\n"
  )
  code, out, err = launched(2, tmp_path / "hello.py", "-n", "x")
  assert (code, sorted(out.splitlines()), err) == (0, ["0| hello 0 -n x", "1| hello 1 -n x"], "")


def test_restarts_and_exit_codes(tmp_path):
  (tmp_path / "twice.py").write_text(
    "import os, sys\nfrom tinygrad import distributed\ndistributed.initialize()\n"
    "n = int(os.environ['TINYGRAD_RESTART'])\nprint('start', n)\n"
    "sys.exit(7 if n < 2 and distributed.process_index() else 0)\n"
  )
  code, out, err = launched(2, tmp_path / "twice.py", options=("--restarts", 2))
  assert code == 0 and [out.count(f"start {n}") for n in range(3)] == [2, 2, 2] and "start 3 of 3" in err
  code, out, err = launched(2, tmp_path / "twice.py", options=("--restarts", 1))
  assert code == 7 and "1| ended by exit code 7" in err


def test_a_run_that_is_interrupted_ends_as_one_that_is_not(tmp_path):
  """On another number of processes, too: the losses and the files' values are those of one process."""
  ((*want, last),) = printed(1, own("trains"), tmp_path / "alone", 4, 2)
  code, out, err = launched(2, own("trains"), tmp_path / "two", 3, 2, "kill:1:2", options=("--restarts", 1))
  assert code == 0 and "start 2 of 2" in err, out + err
  assert [line[3:] for line in out.splitlines() if line.startswith("0|")][-1:] == want[-1:]
  assert printed(1, own("trains"), tmp_path / "two", 4, 2) == [[last]]
  assert not [path for path in (tmp_path / "two").iterdir() if path.name not in ("3", "4")]
  assert len([*(tmp_path / "two" / "3").iterdir()]) == 3 and len([*(tmp_path / "two" / "4").iterdir()]) == 2


def test_a_full_disk_is_told_and_no_checkpoint_is_broken(tmp_path):
  ((*want, last),) = printed(1, own("trains"), tmp_path / "alone", 4, 2)
  code, out, err = launched(2, own("trains"), tmp_path / "two", 4, 2, "full:1:1", options=("--restarts", 1))
  assert code == 0 and "start 2 of 2" in err and re.search(r"1\| OSError: .*File too large", err), out + err
  assert {line[3:] for line in out.splitlines() if line.startswith("0|")} == {*want, last}


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_launcher_that_is_ended_leaves_nobody(tmp_path, how):
  (tmp_path / "forever.py").write_text(
    "import os, time\nfrom tinygrad import distributed\ndistributed.initialize()\n"
    "print(os.getpid(), flush=True)\ntime.sleep(100)\n"
  )
  env = {**os.environ, "PYTHONPATH": str(ROOT)}
  command = [sys.executable, "-m", "tinygrad.launch", "-n", "2", str(tmp_path / "forever.py")]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT) as starter:
    found = [int(starter.stdout.readline().split("| ")[1]) for _ in range(2)]
    assert [process_state(pid) in "RSD" for pid in found] == [True, True]
    starter.send_signal(number := signal.Signals[how])
    assert starter.wait() == (-9 if how == "SIGKILL" else 128 + number)
  last = time.monotonic() + 20
  while any(process_state(pid) not in "XZ" for pid in found) and time.monotonic() < last:
    time.sleep(0.05)
  assert [process_state(pid) in "XZ" for pid in found] == [True, True]


def test_mistakes_of_the_launcher(tmp_path):
  code, _, err = launched(0, own("fails"))  # it was taken for one
  assert code == 2 and "-n 0 --restarts 0: at least one process" in err
  code, _, err = launched(1, own("fails"), options=("--restarts", -1))
  assert code == 2 and "at least one process, and no fewer than 0 restarts" in err
  code, _, err = launched(2, own("fails"), options=("--hosts", "no.such.host.invalid,localhost"))
  assert code and re.search(r"started no process on no.such.host.invalid, localhost\n  fix: ssh no.such.host", err), err
  code, _, err = launched(2, own("fails"), options=("--mpiexec", "no-such-mpiexec"))
  assert code == 1 and "there is no no-such-mpiexec here" in err and "pip install 'tinygrad[mpi]'" in err


def test_a_name_is_no_device_of_several_kinds():
  assert issubclass(distributed.LostProcessError, distributed.DistributedError)
  assert issubclass(distributed.DivergedError, DeviceError)


def test_a_process_that_is_forked_does_not_pass_for_its_parent():
  """It met the others in its parent's name, wrote to its memory, and told them of its own errors. A program that is
  started, and a worker that is spawned, are alone."""
  first, last = printed(2, ROOT / "test/distributed/forks.py")
  rule = "this process was forked from process 1 of 2, whose devices are not its own"
  assert last == [rule, "3", "1", "[[2.0], [4.0]]", "3.0", *first] and first == ["[4.0, 5.0] 96.0"]
