"""Kernels compiled in a hurry: the same bits as the code that takes their place, and that it does."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from extra.bench import expressions
from tinygrad import Context, Device, Tensor, TinyJit, dtypes
from tinygrad.device import Launch, Rendered
from tinygrad.helpers import PROCESS
from tinygrad.renderer import llvm
from tinygrad.runtime import elf, native


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
  """Nothing is known of what was compiled before, on disk neither."""
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  with PROCESS.anew(), Context(QUICK_CODE=1):
    yield tmp_path / "objects"


@pytest.fixture
def made(monkeypatch):
  """Of each compilation whether it was in a hurry."""
  plain, found = native.Compiler.object_code, []
  record = lambda self, source, hurry=False: found.append(hurry) or plain(self, source, hurry)  # noqa: E731
  (Tensor([0]).realize() + 1).realize()  # the runtime is there
  monkeypatch.setattr(native.Compiler, "object_code", record)
  return found


def improved():
  """Waits until nobody works on better code."""
  if (thread := native._improver) is not None:
    thread.join()


def wide():
  return Tensor(np.linspace(-40, 40, 3 * 77, dtype=np.float32).reshape(3, 77)).realize()


def whole():
  return Tensor(np.arange(-115, 116, dtype=np.int32).reshape(3, 77)).realize()


MORE = {
  "exp2": lambda: wide().exp2(),
  "log2": lambda: wide().abs().log2(),
  "pow": lambda: wide().abs() ** 1.7,
  "erf": lambda: wide().erf(),
  "sin of large numbers": lambda: (wide() * 1e7).sin(),
  "softmax": lambda: wide().softmax(),
  "variance": lambda: wide().var(1),
  "product of matrices": lambda: wide() @ wide().T,
  "half": lambda: (wide().half() * 3 + wide().half()).sum(1),
  "bfloat16": lambda: (wide().bfloat16() * 3 + 1).float(),
  "float64": lambda: (wide().double() * 3 + wide().double()).sum(1) if Device["CPU"].target.float64 else wide(),
  "integer division": lambda: whole() // 7 + whole() % 5,
  "shifts": lambda: (whole() << 3) ^ (whole() >> 1),
  "to integers": lambda: (wide() * 1.37).cast(dtypes.int8),
  "largest": lambda: wide().argmax(1),
  "sorted": lambda: wide().sort(1)[0],
  "scattered": lambda: Tensor.zeros(3, 77).scatter_reduce(1, whole() % 77, wide(), "sum"),
  "masked": lambda: wide().pad(((1, 2), (3, 4))).cumsum(1),
  "differences": lambda: wide() * 3.3 - wide() * 1.1 + (7.7 - wide() * wide()),
}


def bits(f, hurry):
  """The results, and how their kernels were compiled."""
  with PROCESS.anew(), Context(QUICK_CODE=int(hurry)):
    out = f()
    return [x.numpy().tobytes() for x in (out if isinstance(out, list) else [out])]


def hundred():
  given = [(Tensor(a).realize(), Tensor(b).realize()) for a, b in expressions.inputs()]
  return expressions.evaluate(Tensor, given, lambda x: x.realize())


@pytest.mark.parametrize("name", MORE)
def test_bits_do_not_depend_on_the_hurry(name, made):
  in_a_hurry = bits(MORE[name], True)
  assert True in made
  made.clear()
  assert bits(MORE[name], False) == in_a_hurry
  assert made and True not in made


def test_bits_of_a_hundred_expressions(made):
  in_a_hurry = bits(hundred, True)
  assert made.count(True) >= 100
  assert bits(hundred, False) == in_a_hurry


@pytest.mark.skipif(not native.processor()[2].get("fma"), reason="the processor cannot fuse a product and a sum")
def test_products_that_llvm_may_fuse_where_it_likes_would_be_noticed(monkeypatch):
  plain, may = native.Compiler.object_code, lambda source: re.sub(r"= f(add|sub|mul) ", r"= f\1 contract ", source)
  monkeypatch.setattr(llvm, "fused_products", lambda linear: {})
  monkeypatch.setattr(
    native.Compiler, "object_code", lambda self, s, hurry=False: plain(self, s if hurry else may(s), hurry)
  )
  assert bits(MORE["differences"], True) != bits(MORE["differences"], False)


def test_what_runs_again_is_compiled_well(made):
  x = wide()
  for _ in range(3):
    (x * 2.5 + 1).realize()
    improved()
  assert made == [True, False], "in a hurry at first; well, once, when it is used again"


def test_what_runs_once_is_not(made):
  (wide() * 2.5 + 1).realize()
  assert made == [True] and native._improver is None


def test_a_captured_step_is_of_the_best_code(made):
  x, want = wide(), None
  step = TinyJit(lambda x: (x * 2.5 - 1).exp().realize())
  for _ in range(4):
    got = step(x).numpy().tobytes()
    want = want or got
    assert got == want
  assert sorted(made) == [False, True]
  (call,) = [c for s in step.captured.stretches for _, _, c in s.bound]
  code = call.program
  assert call.built == code.address == int(code.better.result()[0]) != int(code.loaded.result()[0])


def test_much_work_waits_for_good_code(made):
  x = Tensor.ones(600, 600).contiguous().realize()
  made.clear()
  (x @ x).realize()
  assert made and True not in made


def test_what_is_watched_is_the_code_that_stays(made):
  x = wide()
  with Context(CHECK_NAN=1):
    (x * 1.5 + 3).realize()
  assert made and True not in made


SOURCE = """
define void @k(ptr %args) {{
  %p = getelementptr i64, ptr %args, i64 1
  %x = load ptr, ptr %p
  store i64 {value}, ptr %x
  ret void
}}
"""


def written_by(code):
  device = Device["CPU"]
  memory = device.alloc(8)
  device.submit_all([device], [device.batch([device.bind(code, [memory])])])
  device.synchronize()
  value = int.from_bytes(device.view(memory)[:8], "little")
  device.free(memory, 8)
  return value


def test_another_process_finds_what_was_made_in_a_hurry_and_improves_it(made):
  rendered = Rendered(SOURCE.format(value=5), work=1)
  assert written_by(native.compile_kernel(rendered, "k")) == 5
  stored = Device["CPU"].stored(native.compile_kernel(rendered, "k"))
  with PROCESS.anew():
    code = Device["CPU"].restore("k", stored)
    assert made == [True] and code.source == rendered.source and written_by(code) == 5
    native.settle([code])
    assert made == [True, False] and written_by(code) == 5
  with PROCESS.anew():  # what is on disk of both is the better
    code = Device["CPU"].restore("k", stored)
    assert made == [True, False] and not code.source and written_by(code) == 5


def test_threads_that_wait_for_one_kernel_have_it_made_once(made):
  # each cancelled what the other one waited for: a CancelledError in the first, now and then
  code = native.compile_kernel(Rendered(SOURCE.format(value=4), work=1), "k")
  assert written_by(code) == 4 and made == [True]
  hold = threading.Event()
  busy = [native.behind(hold.wait) for _ in range(min(os.cpu_count() or 1, 8))]  # so that what comes now stands behind
  failed = []

  def wait_for_it():
    try:
      native.settle([code])
    except BaseException as e:
      failed.append(e)

  waiting = [threading.Thread(target=wait_for_it) for _ in range(3)]
  for thread in waiting:
    thread.start()
    while code.better is None or code.better not in native._handed:
      time.sleep(0.001)
    time.sleep(0.01)
  assert [written_by(code) for _ in range(3)] == [4] * 3  # from the second call on better code is asked for, too
  hold.set()
  for thread in waiting:
    thread.join()
  assert not failed and all(f.result() for f in busy) and made == [True, False]


def test_a_child_process_has_better_code_made_by_its_own_threads(made, monkeypatch):
  monkeypatch.setattr(native, "_later", lambda *_: native.futures.Future())  # of a thread that dies with the parent
  code = native.compile_kernel(Rendered(SOURCE.format(value=6), work=1), "k")
  assert [written_by(code) for _ in range(3)] == [6] * 3 and not code.better.done()
  if (child := os.fork()) == 0:
    native.settle([code])
    os._exit(0 if code.better.done() else 1)
  assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("hand_over", ["_later", "behind"])
def test_a_fork_waits_for_what_is_within_llvm(hand_over):
  """Whose locks a child would wait for, for ever."""
  native.compiler()
  within = threading.Event()

  def busy():
    with native.binding.ffi.lib._lock:
      within.set()
      time.sleep(0.2)

  getattr(native, hand_over)(busy)
  within.wait()
  if (child := os.fork()) == 0:
    signal.alarm(20)  # which ends it
    os._exit(0 if object_file() else 1)
  assert os.waitpid(child, 0)[1] == 0


def test_llvm_lets_go_of_what_was_a_threads_while_no_process_forks(monkeypatch):
  held = []

  class Noted(native.Compiler):
    def __del__(self):
      held.append(native._improving.locked())

  monkeypatch.setattr(native, "Compiler", Noted)
  native._later(lambda: native.compiler() and None)
  improved()
  gc.collect()
  assert held == [True]


def test_with_quick_code_off_what_others_made_in_a_hurry_is_not_taken(made):
  rendered = Rendered(SOURCE.format(value=8), work=1)
  assert written_by(native.compile_kernel(rendered, "k")) == 8
  stored = Device["CPU"].stored(native.compile_kernel(rendered, "k"))
  with PROCESS.anew(), Context(QUICK_CODE=0):
    assert Device["CPU"].restore("k", stored) is None


@pytest.mark.parametrize("known", [False, True])
def test_an_interpreter_that_ends_still_computes(tmp_path, known):
  """It starts no thread for those that compile, which are kept (`known`) or not yet there."""
  script = f"""
import atexit
from tinygrad import Tensor
a = Tensor.ones(8).contiguous().realize()
{"(a * 2 - 1).sum().item()" if known else ""}
atexit.register(lambda: print([(a * 3 + 1).sum().item() for _ in range(3)]))
"""
  for _ in range(2):  # nothing is on disk; everything is
    env = os.environ | {"CACHEDIR": str(tmp_path), "QUICK_CODE": "1", "PLAN_CACHE": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[32.0, 32.0, 32.0]\n", "")


def test_the_end_of_a_process_does_not_wait_for_better_code(tmp_path):
  script = """
import time
from tinygrad import Tensor
from tinygrad.runtime import native
made = native.compile_here
native.compile_here = lambda source, name, hurry=False: (hurry or time.sleep(0.2), made(source, name, hurry))[1]
x = Tensor([1.0, 2.0]).realize()
for i in range(60):
  for _ in range(2):
    (x + i * 1.5).reshape(1, 2).expand(i + 1, 2).contiguous().realize()
start = time.monotonic()
import atexit
atexit.register(lambda: print(time.monotonic() - start))
"""
  env = os.environ | {"CACHEDIR": str(tmp_path), "QUICK_CODE": "1"}
  ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
  assert ran.returncode == 0 and not ran.stderr, ran.stderr
  assert float(ran.stdout) < 5, "twelve seconds of compiling were waiting"


# ---- object files


def object_file():
  return native.compiler().object_code(SOURCE.format(value=7))


needs_loader = pytest.mark.skipif(not elf._here(), reason="objects of this system are loaded by LLVM")


@needs_loader
def test_an_object_is_loaded_without_llvm():
  address, keep = elf.load_object(object_file(), "k")
  code = native.MachineCode("k", native.Loaded((address, keep)), Launch())
  assert written_by(code) == 7
  assert elf.load_object(object_file(), "another") is None


@needs_loader
def test_a_file_that_is_cut_off_or_asks_for_more_is_not_loaded():
  data = object_file()
  for n in range(0, len(data), 7):
    assert elf.load_object(data[:n], "k") is None
  assert elf.load_object(b"MZ" + data[2:], "k") is None
  assert elf.load_object(data[:18] + b"\xb7" + data[19:], "k") is None, "of another processor"
  wanting = native.compiler().object_code(
    "declare void @no_such_function()\n"
    + SOURCE.format(value=8).replace("ret void", "call void @no_such_function()\n  ret void")
  )
  assert elf.load_object(wanting, "k") is None
  changing = native.compiler().object_code(f"@g = global i64 3\n{SOURCE.format(value=8)}")
  assert elf.load_object(changing, "k") is None, "memory that is written to"


def test_what_is_not_loaded_here_llvm_loads(monkeypatch):
  monkeypatch.setattr(elf, "load_object", lambda data, name: None)
  assert written_by(native.compile_kernel(Rendered(SOURCE.format(value=9)), "k")) == 9


def test_a_processor_is_asked_for_once(monkeypatch):
  before = native.processor()
  native.processor.cache_clear()
  assert native.processor() == before
  monkeypatch.setattr(native, "binding", None)
  native.processor.cache_clear()
  again = native.processor()
  native.processor.cache_clear()
  assert (again[0], again[1], dict(again[2])) == before
