"""What a user installs: the wheel, built here and run from an environment and a folder outside the checkout."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinygrad"

PROGRAM = """
import importlib, pathlib, pkgutil
import numpy as np
import tinygrad
from tinygrad import Sharding, Tensor
from tinygrad.sharding import explain

home = pathlib.Path(tinygrad.__file__).parent
assert "site-packages" in home.parts, f"imported {home}, which is not the installed wheel"
names = sorted(m.name for m in pkgutil.walk_packages([str(home)], "tinygrad."))
for name in names:
  importlib.import_module(name)

devices = ("CPU:0", "CPU:1")
x, w = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(30, dtype=np.float32).reshape(6, 5)
y = Tensor(x).shard(devices, axis=1) @ Tensor(w).shard(devices, axis=0)
assert y.device == Sharding(devices), y.device
assert (y.numpy() == x @ w).all()
assert explain(y + 1).html().startswith("<!doctype html>"), "the viewer's bundle is there"
print(*names, sep="\\n")
"""


def run(*command: str | Path, **options: object) -> str:
  done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
  assert done.returncode == 0, f"{command[0]} failed\n{done.stdout}\n{done.stderr}"
  return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The wheel, built from a copy of the files that git tracks: what lies about in the checkout must not help it."""
  folder = tmp_path_factory.mktemp("wheel")
  source, out = folder / "source", folder / "out"
  if (ROOT / ".git").exists():
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
  else:  # an unpacked archive holds nothing but the project
    tracked = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
  with tarfile.open(folder / "source.tar", "w") as archive:
    for name in tracked:
      if (ROOT / name).is_file() and not name.startswith("test/"):
        archive.add(ROOT / name, name)
  with tarfile.open(folder / "source.tar") as archive:
    archive.extractall(source, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
  run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, source)
  (built,) = out.glob("*.whl")
  return built


def modules_in_tree() -> set[str]:
  """Dotted names of every module of the package, as the source tree has them."""
  names = set()
  for path in (ROOT / "tinygrad").rglob("*.py"):
    parts = path.relative_to(ROOT).with_suffix("").parts
    names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
  return names - {"tinygrad"}


def test_the_wheel_holds_every_module_and_file(wheel: Path):
  assert wheel.name.startswith("tinygrad-0.15.0+sharding-py3-none-any")
  with zipfile.ZipFile(wheel) as archive:
    held = set(archive.namelist())
    metadata = archive.read(next(n for n in held if n.endswith(".dist-info/METADATA"))).decode()
  tree = {
    p.relative_to(ROOT).as_posix()
    for p in (ROOT / "tinygrad").rglob("*")
    if p.suffix in (".py", ".gguf", ".html", ".typed")
  }
  assert "tinygrad/py.typed" in tree
  assert any(name.endswith(".gguf") for name in tree), "the model of the app is part of the package"
  assert held >= tree, f"not in the wheel: {sorted(tree - held)}"
  assert {n.split("/")[0] for n in held} == {"tinygrad", "tinygrad-0.15.0+sharding.dist-info"}
  assert "Requires-Python: >=3.11" in metadata
  required = {
    line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist") and ";" not in line
  }
  assert {r.split(">=")[0] for r in required} == {
    "numpy",
    "llvmlite",
    "ml-dtypes",
    "tokenizers",
    "jinja2",
    "tqdm",
    "gguf",
    "safetensors",
  }


def test_the_package_advises_only_what_a_wheel_brings():
  """A fix that names a tool of the repository is none for who has installed the package."""
  named = {
    f"{path.relative_to(PACKAGE)}: {found}"
    for path in PACKAGE.rglob("*.py")
    for found in re.findall(r"(?:import |python )?\bextra[./]\w+(?:\.py)?", path.read_text())
  }
  assert not named


def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path):
  """Installed alone in a fresh environment; the dependencies are those of the running one."""
  run(sys.executable, "-m", "venv", tmp_path / "venv", "--without-pip")
  python = tmp_path / "venv" / "bin" / "python"
  site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
  run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
  # appended to the path, after the wheel's own folder; a .pth file there (an editable install) is not read again
  (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

  environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPEC")}
  outside = tmp_path / "outside"
  outside.mkdir()
  environment["CACHEDIR"] = str(outside / "cache")
  printed = run(python, "-c", PROGRAM, cwd=outside, env=environment)
  assert set(printed.split()) == modules_in_tree()
