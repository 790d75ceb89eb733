"""What NVRTC makes of a kernel for an architecture: its PTX and, by nvdisasm, its machine instructions."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tinygrad.codegen import lower_kernel
from tinygrad.renderer import cstyle, dialects
from tinygrad.runtime import cuda
from tinygrad.uop import UOp

has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("nvidia") is not None
needs_nvrtc = pytest.mark.skipif(
  not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC"
)
ARCHS = {"sm_80": (8, 0), "sm_90a": (9, 0), "sm_100a": (10, 0)}


def nvdisasm() -> str | None:
  """Of the package nvidia-cuda-nvdisasm, or of a toolkit."""
  spec = importlib.util.find_spec("nvidia")
  folders = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
  found = [f for p in folders for f in p.glob("*/bin/nvdisasm")]
  return str(found[0]) if found else shutil.which("nvdisasm")


needs_nvdisasm = pytest.mark.skipif(
  not has_nvrtc or nvdisasm() is None, reason="machine code is read by the package nvidia-cuda-nvdisasm"
)


class Machine(NamedTuple):
  """A kernel's instructions, without what follows their names' first point where that is not asked for."""

  names: Counter[str]
  local: int  # bytes of local memory: registers that were spilled
  shared: int  # bytes of a group's memory, as it was launched or compiled


def source_of(ast: UOp, arch: str):
  target = cuda.target_of(ARCHS[arch], 132, 227 << 10)
  return cstyle.render(lower_kernel(ast, target), "k", dialects.CUDA)


def ptx(ast: UOp, arch: str) -> str:
  number = arch.partition("_")[2].removesuffix("a")
  return cuda.compile_source(source_of(ast, arch).source, "k", f"compute_{number}").decode()


def machine_code(ast: UOp, arch: str, folder: Path) -> Machine:
  rendered = source_of(ast, arch)
  path = folder / "k.cubin"
  path.write_bytes(cuda.compile_source(rendered.source, "k", arch))
  text = subprocess.run([nvdisasm(), "-c", path], capture_output=True, text=True, check=True).stdout
  names = Counter(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.x]+)", text, re.M))
  spilled = sum(n for name, n in names.items() if name.startswith(("STL", "LDL")))
  static = re.search(r"scratch\[(\d+)\]", rendered.source)
  return Machine(names, spilled, rendered.launch.local or (int(static[1]) * 16 if static else 0))


def has(code: Machine, *parts: str) -> bool:
  """Whether an instruction has all of these in its name."""
  return any(all(p in name for p in parts) for name in code.names)
