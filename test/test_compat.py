"""What users of tinygrad hold: names, signatures, defaults, and scripts with their results."""

import re
import subprocess
import sys

import pytest

from extra.compat import differences, run
from extra.compat.differences import call_problem

ROOT = differences.ROOT
SLOW: set[str] = set()


def test_every_difference_in_names_is_explained():
  """In both directions: docs/compatibility.md lists what differs, and nothing that does not."""
  found, reasons = differences.differences(), differences.explained()
  unexplained = [f"{name}: {what}" for name, what in found.items() if name not in reasons]
  assert not unexplained, "\n".join(unexplained)
  assert not (gone := reasons.keys() - found.keys()), (
    f"listed in docs/compatibility.md, and no difference: {sorted(gone)}"
  )
  assert all(len(reason) > 10 for reason in reasons.values())


def test_the_collected_names_are_those_of_the_peer():
  names = differences.json.loads(differences.API.read_text())
  assert names["origin"].startswith("tinygrad 0.14")
  assert len(names["names"]["tinygrad.Tensor"]) > 250 and {"conv2d", "__matmul__", "rand"} <= set(
    names["names"]["tinygrad.Tensor"]
  )


def parameters(text):
  scope = {}
  exec(f"def f({text}): pass", scope)
  return differences.entry(type("Holder", (), {"f": staticmethod(scope["f"])}), "f")["signature"]


@pytest.mark.parametrize(
  "theirs, ours, want",
  [
    ("a, b=1", "a, b=1, c=2, **kwargs", None),
    ("a, b=1", "a, *, b=1", "takes no 2 arguments by position"),
    ("a, b=1", "a, c=1", "argument 2 is c, not b"),
    ("a, b=1", "a, b=2", "the default of b is 2, not 1"),
    ("a, b=1", "a, b", "needs b"),
    ("a", "a, b", "needs b"),
    ("*a", "a", "takes no *a"),
    ("*a, b=None", "*a, **kwargs", None),
    ("*a, b=None", "*a", "has no argument b"),
    ("a, **kwargs", "a", "takes no **kwargs"),
    ("a, /", "b", "argument 1 is b, not a"),
  ],
)
def test_a_signature_that_takes_fewer_calls_is_found(theirs, ours, want):
  found = call_problem(parameters(theirs), parameters(ours), operator=False)
  assert found == want or (want is not None and found is not None and found.startswith(want))


def test_operators_are_never_called_by_name():
  assert call_problem(parameters("x"), parameters("other"), operator=True) is None


@pytest.mark.parametrize("script", [s for s in run.names() if s not in SLOW])
def test_a_script_has_the_results_that_it_has_on_tinygrad(script):
  origin, results = run.kept()
  assert origin.startswith("tinygrad 0.14")
  rows = run.compare(script, results[script], run.run(script, sys.executable, ours=True))
  assert rows and all(r.agrees for r in rows), run.show(rows)


def test_other_results_are_found():
  there = {"x": {"value": [1.0, 2.0], "tolerance": 1e-3, "reason": ""}}
  for value, agrees in (([1.0, 2.001], True), ([1.0, 2.01], False), ([1.0], False), ([1.0, float("nan")], False)):
    (row,) = run.compare("s", there, {"x": {"value": value}})
    assert row.agrees is agrees
  assert not run.compare("s", there, {})[0].agrees


def test_the_scripts_import_only_what_tinygrad_documents():
  """They run unchanged there, so nothing of this project but the API may be in them."""
  for path in run.SCRIPTS.glob("*.py"):
    modules = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.M))
    allowed = {"common", "json", "math", "os", "pathlib", "struct", "tempfile", "numpy", "sklearn.datasets"}
    assert all(m in allowed or m.split(".")[0] == "tinygrad" for m in modules), (path, modules)


SHOWN_FROM = {
  1: r"^\*\*\* CPU .* r_2",  # the kernels that run
  2: r"r_2 .* us .* GFLOP/s",  # with their times
  3: r"^# kernel r_2\n%0 +PARAM",  # what each computes
  4: r"^ +0 PARAM +dtypes.float32",  # the linear program
  5: r"define void @r_2",  # the source
  6: r"^# the program of each device\n%0 +BUFFER(.*\n)+%\d+ +COLLECTIVE",
  7: r"^# the graph, in the global view\n%0 +BUFFER",
}


@pytest.mark.parametrize("level", range(8))
def test_debug_levels(level):
  """Each shows what the one below shows, and something more."""
  code = "from tinygrad import Tensor; (Tensor([1.0, 2.0]) @ Tensor([[1.0], [2.0]])).realize()"
  environment = {"PYTHONPATH": str(ROOT), "DEBUG": str(level), "PATH": ""}
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr
  for n, pattern in SHOWN_FROM.items():
    assert bool(re.search(pattern, done.stdout, re.M)) is (n <= level), (n, done.stdout)


def test_names_of_older_scripts(monkeypatch):
  """What left tinygrad and is still in its users' code."""
  from tinygrad import Device, Tensor, nn
  from tinygrad.helpers import CI, DEV, OSX, Timing, getenv, tqdm, trange  # noqa: F401

  assert not Tensor.training
  with Tensor.train():
    assert Tensor.training
    with Tensor.test():
      assert not Tensor.training
  Tensor.training = True
  assert Tensor.training
  Tensor.training = False
  x = Tensor([2.0], requires_grad=True)
  with Tensor.no_grad():
    y = x * 3
  (x * y).sum().backward()
  assert x.requires_grad and x.grad.item() == 6.0
  frozen = Tensor([1.0], requires_grad=False)
  (x * frozen).sum().backward()
  assert frozen.grad is None
  monkeypatch.setattr(DEV, "value", "")
  Device.DEFAULT = "CPU:1"
  assert Tensor.zeros(2).contiguous().realize().device == "CPU:1" and nn.Linear(2, 2).weight.device == "CPU:1"
