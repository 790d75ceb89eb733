"""The C dialects: Metal's sources are golden (a Mac runs them, any machine compares them), CUDA's are compiled."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
from c_kernels import GRID, KERNELS

from tinygrad.codegen import lower_kernel
from tinygrad.renderer import cstyle
from tinygrad.runtime import cuda

GOLDEN = Path(__file__).parent.parent / "data" / "metal"
DIALECTS = {"opencl": cstyle.OPENCL, "cuda": cstyle.CUDA, "metal": cstyle.METAL}
has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("nvidia") is not None


def source(name: str, dialect: cstyle.Dialect) -> str:
  return cstyle.render(lower_kernel(KERNELS[name](), GRID), name, dialect)


@pytest.mark.parametrize("name", KERNELS)
def test_metal_sources_are_what_they_were(name):
  """`UPDATE_GOLDEN=1` writes them anew; look at the difference before you commit it."""
  got, path = source(name, cstyle.METAL), GOLDEN / f"{name}.metal"
  if os.environ.get("UPDATE_GOLDEN"):
    path.write_text(got)
  assert got == path.read_text()


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_sources_compile(name, arch):
  assert cuda.compile_source(source(name, cstyle.CUDA), name, arch)[:4] == b"\x7fELF"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", KERNELS)
def test_sources_say_how_they_are_launched_and_name_nothing_of_another_dialect(name, dialect):
  text = source(name, DIALECTS[dialect])
  groups, threads = cstyle.launch_of(text)
  assert len(groups) == len(threads) == 3 and all(n >= 1 for n in (*groups, *threads))
  own = {"opencl": "__global", "cuda": "blockIdx", "metal": "device"}
  for other, word in own.items():
    found = re.search(rf"\b{word}\b", text.partition("{")[2] if word == "device" else text)
    assert other == dialect or found is None, (dialect, word)


def test_every_thread_of_a_group_comes_to_its_barriers():
  """No barrier stands behind a condition or in a loop that only some threads run."""
  for name in KERNELS:
    depth, conditional = 0, []
    for line in source(name, cstyle.CUDA).splitlines():
      if "__syncthreads" in line:
        assert not any(conditional), name
      if line.rstrip().endswith("{") or line.strip().startswith("{"):
        depth += 1
        conditional.append(line.strip().startswith("if"))
      if line.strip() == "}":
        depth -= 1
        if conditional:
          conditional.pop()
