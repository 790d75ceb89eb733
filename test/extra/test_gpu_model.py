"""The static model of kernels on a GPU: what it reads off machine code, and that it tells one kernel from another."""

import pytest
from sass import has, machine_code, needs_nvdisasm

from extra import gpu_model
from tinygrad import dtypes
from tinygrad.device import DeviceError

LISTING = """
	//----- nvinfo : EIATTR_REGCOUNT
        /*0004*/ 	.word	index@(k)
        /*0008*/ 	.word	0x0000005e
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ;
        /*0020*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
"""


def test_the_loop_with_the_work_is_found():
  assert gpu_model.read_code(LISTING) == gpu_model.Code(0x5E, 3, 2 * 2 * 16 * 8 * 16, True)
  straight = LISTING.replace("BRA `(.L_x_1)", "NOP")
  assert gpu_model.read_code(straight) == gpu_model.Code(0x5E, 4, 2 * 2 * 16 * 8 * 16, False)


def test_without_nvdisasm_the_error_says_what_to_install(monkeypatch):
  monkeypatch.setattr(gpu_model.sys, "path", [])
  monkeypatch.setenv("PATH", "")
  with pytest.raises(DeviceError, match=r"no nvdisasm.*\n  fix: pip install nvidia-cuda-nvdisasm"):
    gpu_model.nvdisasm()


@needs_nvdisasm
def test_a_product_is_bound_by_arithmetic_and_a_copy_by_memory():
  work = dict(gpu_model.workloads())
  judged = {}
  for name in ("matmul bfloat16", "add"):
    with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
      (ast,) = gpu_model.kernels_of(work[name])
    judged[name] = gpu_model.judge(name, ast, "sm_90a")
  assert judged["matmul bfloat16"].bound == "arithmetic" and judged["add"].bound == "memory"
  assert all(0 < v.share <= 1 for v in judged.values())


@needs_nvdisasm
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["sum of rows", "sum of columns", "softmax", "layernorm", "matvec bf16", "gelu bf16"])
def test_what_memory_bounds_keeps_memory_busy_in_one_kernel(name, arch):
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
  judged = gpu_model.judge(name, ast, arch)
  assert judged.bound == "memory" and judged.share >= 0.8


@needs_nvdisasm
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float16])
def test_attention_is_one_kernel_on_cores_without_spills(kind, arch, tmp_path):
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    (ast,) = gpu_model.kernels_of(lambda: gpu_model.attention(kind))
  code = machine_code(ast, arch, tmp_path)
  assert has(code, "HMMA.16816.F32.BF16" if kind is dtypes.bfloat16 else "HMMA.16816.F32")
  assert code.local == 0 and has(code, "LDG", ".128") and has(code, "SHFL.BFLY")
  assert code.shared < 80 << 10  # two groups on a multiprocessor
  assert gpu_model.judge("attention", ast, arch).share > 0.12
