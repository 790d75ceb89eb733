"""extra/fuzz_threads.py: programs that run at once show what they show alone, and what is not is found."""

import subprocess
import sys
import threading
import time

import numpy as np

from extra import fuzz_threads
from extra.captured_programs import Script
from extra.fuzz_threads import Shown, faults, main, of_seed, run, together
from tinygrad.transforms.step_gradients import UNKEPT


def test_programs_at_once_are_what_they_are_alone(capsys):
  assert main(["--seed", "3", "--count", "1", "--threads", "3", "--times", "1"]) == 0
  assert capsys.readouterr().out == "1 batches of 3 programs from --seed 3 on CPU, 0 failed\n"


def test_what_is_one_for_a_process_is_no_part_of_a_program():
  scripts = [of_seed(seed, "CPU") for seed in range(40)]
  assert not any("Tensor.training" in str(script) for script in scripts)
  assert any("uniform(" in str(script) for script in scripts) and any("drop(" in str(script) for script in scripts)
  said = Script(
    "float32", ("m.s0 = new(1, (2, 2), 'F', 0, 'memory')",), (), ("a1 = drop(uniform(2))",), ("CPU",), (), False, False
  )
  assert run(said).looks[0]["a1"].tolist() == [0.125, 0.125]


def test_what_is_otherwise_is_told():
  x, y = np.ones(3), np.array([1.0, 1.5, 1.0])
  want = Shown([{"a": x, "b": UNKEPT}])
  assert not [*faults(Shown([{"a": x + 1e-9, "b": x}]), want, 1e-6)]
  assert [*faults(Shown([{"a": y, "b": x}]), want, 1e-6)] == ["look 0: a is 5.0e-01 off, at 1 of 3 from [1] on"]
  assert [*faults(Shown([{"a": x}]), want, 1e-6)] == ["look 0: names ['b']"]
  far = Shown([{"a": np.array([np.inf, 1.0])}])
  assert not [*faults(far, far, 1e-6)]  # of a program that grows without end
  for other in ([-np.inf, 1.0], [1.0, 1.0], [np.nan, 1.0], [np.inf, 1.1]):
    assert [*faults(Shown([{"a": np.array(other)}]), far, 1e-6)]
  assert [*faults(Shown([], "KeyError: 1"), want, 1e-6)] == ["KeyError: 1"]
  assert [*faults(want, Shown([], "KeyError: 1"), 1e-6)] == ["no error, and alone KeyError: 1"]
  assert not [*faults(Shown([], "TypeError: x", refused=True), want, 1e-6)]


TWICE = """
import threading
from extra.fuzz_threads import churn
from tinygrad.runtime.cpu import CPU
free = CPU.free
CPU.free = lambda self, handle, nbytes: [free(self, handle, nbytes) for _ in range(2)]
print(churn("CPU", 0, threading.Event()))
"""


def test_memory_that_is_given_out_twice_is_seen():
  """In a process of its own, whose memory it spoils."""
  done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True, timeout=250)
  assert "memory is not what it was" in done.stdout


def test_threads_that_do_not_end_end_the_process(monkeypatch, capfd):
  go, ended = threading.Event(), []
  monkeypatch.setattr(fuzz_threads.os, "_exit", ended.append)
  together([go.wait, lambda: 1], lambda over: over.wait(60), 0.2)
  go.set()
  assert ended == [2] and "in begin" in capfd.readouterr().err
  assert together([lambda: 1, lambda: time.sleep(0.1)], lambda over: over.wait(60), 60) == [1, None, True]


def test_what_fails_beside_the_programs_is_told():
  assert together([lambda: 1], lambda over: 1 // 0, 60)[-1][0].startswith("ZeroDivisionError")
