"""Ctrl-C at any moment: the next computation is right, and what was written is written once or not at all.

The signal is raised when the n-th function is called, for an n all over a program: while a graph is built, scheduled,
compiled, handed over and waited for.
"""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit
from tinygrad.engine import compile
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import uninterrupted

ROOT = Path(__file__).parents[2]
PLACES = [("CPU",), ("CPU:0", "CPU:1")]


@pytest.fixture(autouse=True)
def nothing_else_lives(monkeypatch):
  """How many moments there are must not depend on the tensors that other tests have left: each is looked at."""
  monkeypatch.setattr(program_order, "_live", {})


@pytest.fixture(autouse=True)
def each_graph_is_planned(monkeypatch):
  """Also one that differs in numbers alone."""
  monkeypatch.setattr(compile, "generalize", lambda sink, values: (sink, values))


class CtrlC:
  """Within, SIGINT comes at the n-th of the moments when Python hears one: a function of its own begins, one of C has
  ended (before it begins none is heard: a lock that is about to be released will be). `calls` counts them."""

  def __init__(self, n=-1):
    self.n, self.calls = n, 0

  def __enter__(self):
    self.hook, sys.unraisablehook = sys.unraisablehook, self.drop
    sys.setprofile(self.look)
    return self

  def __exit__(self, *_):
    sys.setprofile(None)
    sys.unraisablehook = self.hook

  def drop(self, problem):
    """Keeps nothing of a Ctrl-C that came in a finalizer: what it passed through would live on."""
    if problem.exc_type is not KeyboardInterrupt:
      self.hook(problem)

  def look(self, frame, event, arg):
    if event in ("call", "c_return"):
      self.calls += 1
      if self.calls == self.n:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


def interrupted(n, f):
  """Whether f was ended by Ctrl-C at call n; a signal that comes in a finalizer is dropped by Python."""
  return hit(n, f)[1]


def hit(n, f):
  """(Whether f made n calls, so that Ctrl-C came at the last, whether that ended it)."""
  signals = CtrlC(n)
  try:
    with signals:
      f()
  except KeyboardInterrupt:
    return True, True
  return signals.calls == n, False


def locks_are_free():
  """Nothing waits without end for what was interrupted: other threads may compute."""
  threads = ThreadPoolExecutor(1)
  for device in PLACES[0] + PLACES[1]:
    lock = Device[device].lock
    assert threads.submit(lock.acquire, blocking=False).result(), f"{device} is locked"
    threads.submit(lock.release).result()
  threads.shutdown()


def calls_of(f):
  with CtrlC() as count:
    f()
  return count.calls


def placed(x, devices):
  return Tensor(x).shard(devices, axis=0) if len(devices) > 1 else Tensor(x).to(devices[0])


X = np.arange(24, dtype=np.float32).reshape(4, 6)


def compute(k, devices):
  """A graph of some kernels, which no other k has."""
  x = placed(X + k, devices)
  return ((x * (k + 1)) @ x.permute(1, 0) + k).sum(1).numpy()


def check(k, devices):
  x = X.astype(np.float64) + k
  np.testing.assert_allclose(compute(k, devices), (x * (k + 1) @ x.T + k).sum(1), rtol=1e-5)


@pytest.mark.parametrize("devices", PLACES, ids=len)
def test_after_ctrl_c_at_any_moment_the_same_program_and_another_are_right(devices):
  compute(0.5, devices)
  total, count, hits = calls_of(lambda: compute(0.25, devices)), 24, 0
  for i in range(count):
    k = (i + 1) / 256
    hits += interrupted(1 + i * total // count, lambda k=k: compute(k, devices))
    check(k, devices)
    check(k + 1 / 4096, devices)
  assert hits > count // 2
  locks_are_free()


@pytest.mark.parametrize("devices", PLACES, ids=len)
def test_an_assignment_happens_once_or_not_at_all(devices):
  """At every moment, and the next assignment is seen by every view. Mutants: Ctrl-C between the hand-over and the note
  that it was made lets it happen again; a tensor is taken out of the program's order before it is put back."""

  def fresh():
    z = placed(np.ones(8, np.float32), devices).contiguous().realize()
    return z, z.reshape(2, 4)

  def change(z):
    z.assign(z * 2 + 0.5).realize()

  change(fresh()[0])
  n, came, seen = 0, True, set()
  while came:
    n += 1
    assert n < 20_000, "there are ever more moments: each Ctrl-C leaves something that the next looks at"
    z, view = fresh()
    came = hit(n, lambda z=z: change(z))[0]
    z.assign(z + 1)
    values = {*view.flatten().tolist(), *z.tolist(), *(v - 1 for v in (z + 1).tolist())}
    assert values in ({2.0}, {3.5}), (n, values)
    seen |= values
  assert seen == {2.0, 3.5}, "the signal came before and after"
  locks_are_free()


def test_a_replay_after_ctrl_c_is_right():
  f = TinyJit(lambda x: (x * 3 + 1).sum(0).realize())
  xs = [placed(np.full((4, 3), v, np.float32), PLACES[1]).realize() for v in range(5)]
  for x in xs[:3]:
    f(x)
  for n in range(1, calls_of(lambda: f(xs[0])) + 1):
    interrupted(n, lambda: f(xs[3]))
    for v in (4, 1):
      assert f(xs[v]).tolist() == [4.0 * (3 * v + 1)] * 3, n
  locks_are_free()


def test_what_must_not_be_interrupted_ends_first_and_a_second_time_ctrl_c_comes_at_once():
  steps = []
  with pytest.raises(KeyboardInterrupt), uninterrupted():
    signal.raise_signal(signal.SIGINT)
    steps.append("after the first")
  assert steps == ["after the first"]
  with pytest.raises(KeyboardInterrupt), uninterrupted():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    steps.append("after the second")
  assert steps == ["after the first"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


LONG = """
from tinygrad import Tensor
x = Tensor.ones(512, 512).contiguous().realize()
while True:
  x = (x @ x * 0.001).realize()
  x.numpy()
  print("step", flush=True)
"""


def test_a_process_that_is_interrupted_while_it_computes_ends_by_the_signal():
  env = {"PYTHONPATH": str(ROOT), "PATH": "", "CACHEDIR": "/dev/null/none"}
  p = subprocess.Popen([sys.executable, "-c", LONG], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  while p.stdout.readline() != "step\n":
    assert p.poll() is None
  p.send_signal(signal.SIGINT)
  try:
    _, err = p.communicate(timeout=120)
  finally:
    p.kill()
  assert p.returncode in (130, -signal.SIGINT) and "KeyboardInterrupt" in err, err


FINALIZER = """
import signal, sys, time, weakref
import tinygrad
class Node: pass
node = Node()
ref = weakref.ref(node, lambda _: signal.raise_signal(signal.SIGINT))
other = Node()
broken = weakref.ref(other, lambda _: 1 / 0)
try:
  del other
  del node
  time.sleep(1000)
  print("lost")
except KeyboardInterrupt:
  print("came")
"""


def test_what_arrives_in_a_finalizer_comes_again():
  """Where Python drops it. What else goes wrong there is told as ever."""
  done = subprocess.run([sys.executable, "-c", FINALIZER], capture_output=True, text=True, timeout=60)
  assert done.stdout == "came\n" and "ZeroDivisionError" in done.stderr and "KeyboardInterrupt" not in done.stderr
