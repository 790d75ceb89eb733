"""What a GPU is given: PTX and machine instructions of kernels as the heuristics make them, for three architectures."""

from __future__ import annotations

import re

import pytest
from codegen_kernels import dot, fold, loop, op, reduce, sink, store
from sass import ARCHS, has, machine_code, needs_nvdisasm, needs_nvrtc, ptx

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import Context
from tinygrad.uop import Ops, ParamArg, UOp

KINDS = {"bf16": dtypes.bfloat16, "f16": dtypes.float16, "tf32": dtypes.float32}


def read(slot: int, dtype: DType, size: int, at: UOp) -> UOp:
  """Of memory that is only named, as a float32."""
  param = UOp.new(Ops.PARAM, dtype, (), ParamArg(slot, size))
  x = UOp.new(Ops.LOAD, dtype, (UOp.new(Ops.INDEX, dtype, (param, at)),))
  return x if dtype is dtypes.float32 else UOp.new(Ops.CAST, dtypes.float32, (x,))


def matmul(n: int, dtype: DType, layout: str = "kn") -> UOp:
  i, j, k = loop(n, 0), loop(n, 1), reduce(n, 2)
  y = dot((k, n), (j, 1)) if layout == "kn" else dot((j, n), (k, 1))
  value = fold(Ops.ADD, op(Ops.MUL, read(1, dtype, n * n, dot((i, n), (k, 1))), read(2, dtype, n * n, y)), k)
  return sink(store(dot((i, n), (j, 1)), value, i, j, size=n * n))


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ptx_of_a_product_is_that_of_cores(kind, arch):
  with Context(ALLOW_TF32=1):
    code = ptx(matmul(1024, KINDS[kind]), arch)
  shape = "m16n8k8" if kind == "tf32" else "m16n8k16"
  if arch == "sm_90a" and kind != "tf32":
    assert f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{kind}.{kind}" in code and "fence.proxy.async" in code
  else:
    assert f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32" in code
  assert "ld.local" not in code and "st.local" not in code


@needs_nvdisasm
@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_runs_on_cores_with_wide_loads_and_no_spills(kind, arch, layout, tmp_path):
  with Context(ALLOW_TF32=1):
    code = machine_code(matmul(4096, KINDS[kind], layout), arch, tmp_path)
  if arch == "sm_90a" and kind != "tf32":
    assert has(code, {"bf16": "HGMMA.64x256x16.F32.BF16", "f16": "HGMMA.64x256x16.F32"}[kind]) and not has(code, "HMMA")
    assert has(code, "WARPGROUP.DEPBAR.LE") and 224 << 10 == code.shared and code.local == 0
    assert has(code, "LDGSTS", ".128") and not any(name.startswith(("STS", "LDG.", "FFMA")) for name in code.names)
    return
  assert has(code, {"bf16": "HMMA.16816.F32.BF16", "f16": "HMMA.16816.F32", "tf32": "HMMA.1688.F32.TF32"}[kind])
  assert has(code, "LDGSTS", ".128") and not any(name.startswith(("STS", "LDG.")) for name in code.names)
  assert not has(code, "FFMA") and code.local == 0
  assert 48 << 10 < code.shared <= 227 << 9  # two groups on a multiprocessor


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("shift", [2, 4])
def test_bytes_are_shifted_before_they_are_multiplied(shift, arch):
  """The compiler sums four products of bytes by one instruction, and has lost the shift: each is to be there."""
  i, k = loop(64, 0), reduce(4, 1)
  x, y = (dtypes.uint8, 1, (i, 4)), (dtypes.int8, 2, (i, 4))
  loads = []
  for kind, slot, row in (x, y):
    param = UOp.new(Ops.PARAM, kind, (), ParamArg(slot, 256))
    loads.append(UOp.new(Ops.LOAD, kind, (UOp.new(Ops.INDEX, kind, (param, dot(row, (k, 1)))),)))
  high = op(Ops.AND, op(Ops.SHR, loads[0], UOp.const(dtypes.uint8, shift)), UOp.const(dtypes.uint8, 15))
  wide = [UOp.new(Ops.CAST, dtypes.int32, (v,)) for v in (high, loads[1])]
  code = ptx(sink(store(i, fold(Ops.ADD, op(Ops.MUL, *wide), k), i, size=64)), arch)
  assert len(re.findall(r"shr\.u32\s+%\w+, %\w+, %?\w+;", code)) == 4


@needs_nvdisasm
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_rows_are_summed_by_shuffles(dtype, arch, tmp_path):
  i, k = loop(4096, 0), reduce(4096, 1)
  value = fold(Ops.ADD, read(1, dtype, 1 << 24, dot((i, 4096), (k, 1))), k)
  code = machine_code(sink(store(i, value, i, size=4096)), arch, tmp_path)
  assert has(code, "SHFL.BFLY") and code.local == 0
  assert has(code, "LDG", ".128")


@needs_nvdisasm
@pytest.mark.parametrize("arch", ARCHS)
def test_to_bfloat16_and_back_is_one_instruction(arch, tmp_path):
  """The slow conversion of a single number, and a shift, otherwise."""
  i = loop(1024, 0)
  x = read(1, dtypes.bfloat16, 1024, dot((i, 1)))
  for n in (3.0, 5.0, 7.0):
    product = op(Ops.MUL, x, UOp.const(dtypes.float32, n))
    x = op(Ops.CAST, op(Ops.CAST, product, dtype=dtypes.bfloat16), dtype=dtypes.float32)
  code = machine_code(sink(store(dot((i, 1)), x, i, size=1024)), arch, tmp_path)
  assert has(code, "F2FP") and not has(code, "F2F.") and not has(code, "SHL")


@needs_nvdisasm
@pytest.mark.parametrize("arch", ARCHS)
def test_a_product_of_float32_is_exact_unless_it_is_asked_otherwise(arch, tmp_path):
  code = machine_code(matmul(4096, dtypes.float32), arch, tmp_path)
  assert has(code, "FFMA") and not has(code, "HMMA") and code.local == 0
