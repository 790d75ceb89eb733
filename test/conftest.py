"""Settings that hold for every test: hypothesis draws the same examples on every machine and in every run, and tests
of a device that does not work here are skipped with its own word for why, and counted at the end."""

import gc
import os
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# derandomize: a failure seen once is seen again, by anybody. No deadline: a first example pays for compilation.
settings.register_profile(
  "derandomized",
  derandomize=True,
  deadline=None,
  print_blob=True,
  suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("derandomized")

# Tests change how plans are made and look at how, and the code that stays is the one to be tested: what is kept on disk
# of plans, and what is compiled in a hurry, have tests of their own.
os.environ.setdefault("PLAN_CACHE", "0")
os.environ.setdefault("QUICK_CODE", "0")

# OpenCL devices are made of the processor's cores, as many as are asked for: the laws' largest meshes have nine.
os.environ.setdefault("CL_VIRTUAL", "9")

POISONED = 1 << 18  # bytes of scratch memory that is not a number when a test begins: tests are small

# Shells ignore Ctrl-C for what they run in the background, and processes inherit that; its tests need it to be heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fresh(monkeypatch):
  """The test's monkeypatch. Nothing is known of what was decided, planned and compiled before, and nothing is kept of
  what the test makes of it: for tests that change how that is done."""
  from tinygrad.helpers import PROCESS

  with PROCESS.anew():
    yield monkeypatch


def pytest_configure(config):
  config.addinivalue_line("markers", "needs(kind): skipped where devices of this kind (CL, …) do not work")


def pytest_collection_finish(session):
  """What was collected and imported lives to the end: the garbage collector need not look through it again and
  again."""
  gc.collect()
  gc.freeze()


def pytest_runtest_setup(item):
  from extra.fuzz_programs import poison
  from tinygrad.device import Device, opened

  for device in opened.values():
    poison(device, POISONED)
  for mark in item.iter_markers("needs"):
    found = Device._attempt(mark.args[0])
    if isinstance(found, str):
      pytest.skip(f"needs {mark.args[0]}: {found}")


def pytest_terminal_summary(terminalreporter):
  """What was not run, by the reason."""
  reasons = Counter(
    report.longrepr[2].removeprefix("Skipped: ")
    for report in terminalreporter.stats.get("skipped", ())
    if isinstance(report.longrepr, tuple)
  )
  for reason, count in reasons.most_common():
    terminalreporter.write_line(f"not run: {count} {'test' if count == 1 else 'tests or files'}: {reason}")
