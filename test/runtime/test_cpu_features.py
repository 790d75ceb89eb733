"""Kernels for processors with less than this one has: other vector widths, no masked stores, no FMA, no half."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad.runtime import native

ROOT = Path(__file__).parents[2]
WIDTH = {"avx512": 64, "avxvnni": 32, "avx2": 32, "sse4.2": 16}
PART = (
  "test/codegen/test_decompose.py",
  "test/codegen/test_kernels.py",
  "test/renderer/test_llvm.py",
  "test/schedule/test_tile_and_fuse.py::test_reductions_over_rows_in_every_width[dtype0-262144]",
  "test/schedule/test_tile_and_fuse.py::test_reductions_over_rows_in_every_width[dtype2-1]",
  "test/schedule/test_tile_and_fuse.py::test_reductions_over_rows_in_every_width[dtype4-1]",
  "test/extra/test_fuzz_dtypes.py::test_chains_agree_with_numpy[0]",
  "test/extra/test_fuzz_dtypes.py::test_chains_agree_with_numpy[1]",
  "test/laws/test_laws.py::test_sharded_equals_unsharded_compiled[0]",
  "test/tensor/test_tensor_accuracy.py",
  "test/codegen/test_dots.py",
  "test/nn/test_block_formats.py::test_a_product_decodes_what_it_reads",
  "test/nn/test_block_formats.py::test_rounded_products_are_numpys_of_the_rounded_numbers",
)


def python(level, *args):
  env = os.environ | {"CPU_FEATURES": level, "PYTHONPATH": str(ROOT)}
  return subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)


def has(level):
  return all(map(native.binding.get_host_cpu_features().get, native.LEVELS[level][1]))


@pytest.mark.parametrize("level", native.LEVELS)
def test_a_part_of_the_suite(level):
  if not has(level):
    pytest.skip(f"this processor has no {level}")
  ran = python(level, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *PART)
  assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


@pytest.mark.parametrize("level", native.LEVELS)
def test_what_is_compiled_keeps_to_the_level(level):
  if not has(level):
    pytest.skip(f"this processor has no {level}")
  code = """
import numpy as np
from tinygrad import Device, Tensor
from tinygrad.runtime import native
made, target = [], Device["CPU"].target
code = native.Compiler.object_code
native.Compiler.object_code = lambda self, source, hurry: made.append(assembly(self, source)) or code(self, source)
native.diskcache.get = lambda key: None
def assembly(self, source):
  return self.machine.emit_assembly(native.binding.parse_assembly(source, self.context))
x = np.linspace(-9, 9, 999, dtype=np.float16).reshape(27, 37)
y = (Tensor(x).realize() * 2 + 1).exp2().sum(1).numpy()
np.testing.assert_allclose(y, np.exp2(x * 2.0 + 1).sum(1), rtol=0.02)
text = "\\n".join(made)
print(target.vector_bytes, bool(target.converts), "%zmm" in text, "%ymm" in text, "vfmadd" in text, "hf" in text)
"""
  ran = python(level, "-c", code)
  ymm, zmm = level != "sse4.2", level == "avx512"
  wanted = ymm, zmm, ymm, ymm, False
  assert ran.stdout.split() == [str(WIDTH[level]), *map(str, wanted)], ran.stderr[-2000:]


def test_a_level_that_is_not_there_is_named():
  ran = python("avx1024", "-c", "from tinygrad import Tensor; Tensor([1.0]).realize()")
  assert ran.returncode and "ValueError: CPU_FEATURES=avx1024: this processor has native" in ran.stderr
  assert "fix: set one of these" in ran.stderr
