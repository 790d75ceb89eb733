"""What type checkers see of a user's file: the types of what it makes, and its mistakes. The marker `py.typed` is what
lets them look; `test_package.py` holds that the wheel has it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "MYPYPATH": str(ROOT)}
GOOD = """
from collections.abc import Callable
from typing import Any, assert_type

from tinygrad import Device, Mesh, P, Sharding, Tensor, TinyJit, dtypes, grad, nn, propagate, scan, shard_map, vmap
from tinygrad.debug.report import Report
from tinygrad.drawing.drawing import Drawing
from tinygrad.sharding import explain, visualize

mesh = Mesh(["CPU:0", "CPU:1"], (2,), ("d",))
assert_type(mesh, Mesh)
assert_type(P("d", None, ("a", "b")), P)
assert_type(Sharding(("CPU:0", "CPU:1"), axis=0), Sharding)
assert_type(Sharding(mesh, P("d")), Sharding)
assert_type(Sharding(mesh, [None, "d"]).spec, P)

x = Tensor.ones(4, 8, dtype=dtypes.float32)
assert_type(x, Tensor)
assert_type(x.shard(("CPU:0", "CPU:1"), axis=0), Tensor)
assert_type(x.shard(mesh, P("d")), Tensor)
assert_type(x.shard_(mesh), Tensor)
assert_type(x.shard(Sharding(mesh, P("d"))), Tensor)
assert_type(x.device, str | Sharding)
assert_type(x.shards, list[Tensor])
assert_type(-x + 1 * x / 2 @ x.T, Tensor)
assert_type(x == 1, Tensor)
assert_type(x != x, Tensor)
assert_type(x < 1, Tensor)
assert_type(x[0, 1:], Tensor)
assert_type(x.exp().silu().max(1), Tensor)
assert_type(x.half().float(), Tensor)
assert_type(x.sort(), tuple[Tensor, Tensor])
assert_type(x.sum().gradient(x), list[Tensor])
assert_type(nn.Linear(8, 4)(x), Tensor)
assert_type(nn.state.get_parameters({"layer": nn.Linear(8, 4)}), list[Tensor])
assert_type(explain(x, mesh=mesh), Report)
assert_type(explain(x).rows[0].wire, float)
assert_type(visualize(x, graph=True), Drawing)


@TinyJit
def step(a: Tensor, n: int) -> Tensor:
  return (a * n).realize()


@TinyJit(mesh=mesh)
def placed(a: Tensor) -> Tensor:
  return a.realize()


assert_type(step(x, 3), Tensor)
doubled: Tensor = placed(x)
loss: Callable[..., Any] = grad(lambda a: a.sum())
mapped: Callable[..., Any] = vmap(shard_map(lambda a: a, mesh, (P("d"),), P("d")))
"""
# each mistake, and a part of what is said of it
BAD = """
from tinygrad import Mesh, P, Sharding, Tensor, TinyJit

mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
x = Tensor.ones(4)
x.shard(("CPU:0", "CPU:1"), axis="d")
x.shard("CPU:0")
x.shard(Sharding(mesh, P("d")), 0)
Sharding(mesh, "d")
Sharding("CPU:0")
Mesh(3)
P(0)
x.exp(2)
x.no_such_method()
TinyJit(lambda a: a)(x, x, x)
"""
FIRST_MISTAKE = 1 + BAD.splitlines().index('x.shard(("CPU:0", "CPU:1"), axis="d")')
MISTAKES = set(range(FIRST_MISTAKE, len(BAD.splitlines()) + 1))


def mypy_errors(file):
  command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(file.parent / "cache")]
  result = subprocess.run([*command, file.name], cwd=file.parent, capture_output=True, text=True, env=ENVIRONMENT)
  assert result.returncode in (0, 1), result.stderr
  return {int(n): said for n, said in re.findall(rf"^{file.name}:(\d+): error: (.*)$", result.stdout, re.MULTILINE)}


def pyright_errors(file):
  """basedpyright is pyright with its JavaScript in the wheel, so that it runs without a network; by pyright's rules."""
  settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11", "typeCheckingMode": "standard"}
  (file.parent / "pyrightconfig.json").write_text(json.dumps(settings))
  command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, file.name]
  result = subprocess.run(command, cwd=file.parent, capture_output=True, text=True)
  said = json.loads(result.stdout)["generalDiagnostics"]
  return {x["range"]["start"]["line"] + 1: x["message"] for x in said if x["severity"] == "error"}


def checker(name):
  if name == "pyright":
    pytest.importorskip("basedpyright", reason="pyright needs basedpyright: pip install 'tinygrad[test]'")
    return pyright_errors
  return mypy_errors


@pytest.mark.parametrize("name", ("mypy", "pyright"))
def test_a_good_file_has_precise_types_and_no_errors(name, tmp_path):
  file = tmp_path / "user.py"
  file.write_text(GOOD)
  assert checker(name)(file) == {}


@pytest.mark.parametrize("name", ("mypy", "pyright"))
def test_each_mistake_is_seen(name, tmp_path):
  file = tmp_path / "user.py"
  file.write_text(BAD)
  assert set(checker(name)(file)) == MISTAKES
