"""The code blocks of docs/adding_a_backend.md make a backend: one file, from which everything else works."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEAD = "# in tinygrad/runtime/toy.py\n"
# a plug-in of pytest that makes the folder beside it a part of the runtime, as if the file lay there
PLUGIN = (
  "import pathlib\nimport tinygrad.runtime\ntinygrad.runtime.__path__.append(str(pathlib.Path(__file__).parent))\n"
)
ROWS = "sub div exp sin where sum argmax matmul gather".split()
LEFT_OUT = """
import numpy as np, pytest, toy_here
from tinygrad import Tensor
from tinygrad.device import Device, DeviceError, Rendered

def test_example(): exec(compile(open("{folder}/example.txt").read(), "example", "exec"), {{}})
def test_integers_divide_as_in_python():
  x, y = np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, -3], np.int32)
  np.testing.assert_array_equal((Tensor(x, device="TOY") // Tensor(y, device="TOY")).numpy(), x // y)
  np.testing.assert_array_equal((Tensor(x, device="TOY") % Tensor(y, device="TOY")).numpy(), x % y)
def test_an_error_of_its_compiler():
  with pytest.raises(DeviceError, match="TOY: compiling bad: "): Device["TOY"].compile(Rendered("def bad(:"), "bad")
def test_narrow_floats_and_a_training_step():
  x = np.linspace(-3, 3, 12, dtype=np.float16)
  np.testing.assert_array_equal((Tensor(x, device="TOY") * 2).numpy(), x * 2)
  w = Tensor(np.ones((3, 2), np.float32), requires_grad=True).shard(("TOY:0", "TOY:1", "TOY:2"), axis=0)
  (g,) = (Tensor(np.ones((4, 3), np.float32)).shard(("TOY:0", "TOY:1", "TOY:2"), axis=1) @ w).relu().sum().gradient(w)
  np.testing.assert_array_equal(g.numpy(), np.full((3, 2), 4))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding_a_backend.md").read_text(), re.S)
  made = [b.removeprefix(HEAD) for b in blocks if b.startswith(HEAD)]
  assert len(made) == 4 and len(blocks) == 5
  out = tmp_path_factory.mktemp("runtime")
  (out / "toy.py").write_text("".join(made))
  (out / "toy_here.py").write_text(PLUGIN)
  (out / "example.txt").write_text(blocks[-1])
  (out / "test_toy.py").write_text(LEFT_OUT.format(folder=out))
  return out


def run(folder, *what, **more):
  path = os.pathsep.join([str(ROOT), str(folder)])
  return subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "toy_here", *what],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": path, "SPEC": "2", **more},
  )


def test_without_the_file_there_is_no_such_device():
  out = subprocess.run(
    [sys.executable, "-c", "from tinygrad import Device; Device['TOY']"], cwd=ROOT, capture_output=True, text=True
  )
  assert out.returncode != 0 and "there is no backend 'TOY'" in out.stderr


def test_the_example_runs(folder):
  out = run(folder, str(folder / "test_toy.py"))
  assert out.returncode == 0 and "4 passed" in out.stdout, out.stdout + out.stderr


def test_rows_of_the_op_table(folder):
  out = run(folder, *(f"test/ops/test_op_table.py::test_values_types_and_gradients[{r}]" for r in ROWS), DEV="TOY")
  assert out.returncode == 0 and f"{len(ROWS)} passed" in out.stdout, out.stdout[-6000:] + out.stderr


def test_the_rows_would_notice(folder, tmp_path):
  """A backend whose subtraction is wrong fails."""
  for f in ("toy.py", "toy_here.py"):
    (tmp_path / f).write_text((folder / f).read_text().replace('Ops.SUB: "subtract"', 'Ops.SUB: "add"'))
  out = run(tmp_path, "test/ops/test_op_table.py::test_values_types_and_gradients[sub]", DEV="TOY")
  assert out.returncode == 1 and "1 failed" in out.stdout, out.stdout + out.stderr
