"""The static model of kernels on a GPU: what it reads off machine code, and that it tells one kernel from another."""

import pytest
from sass import has, machine_code, needs_nvdisasm, source_of

from extra import gpu_model
from tinygrad import Variable, dtypes
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.heuristics import cores
from tinygrad.codegen.heuristics import gpu as heuristic
from tinygrad.device import DeviceError
from tinygrad.renderer import cstyle
from tinygrad.runtime import cuda
from tinygrad.uop import Ops

KINDS = ("float32", "bfloat16")
BOUND_BY_MEMORY = [f"{x} {kind}" for x in ("sum of columns", "softmax", "layernorm", "argmax") for kind in KINDS]
BOUND_BY_MEMORY += ["sum of rows", "matvec bf16", "gelu bf16"]
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
  assert gpu_model.read_code(LISTING) == gpu_model.Code(0x5E, 3, 2 * 2 * 16 * 8 * 16, True, 0, 0)
  straight = LISTING.replace("BRA `(.L_x_1)", "NOP")
  assert gpu_model.read_code(straight) == gpu_model.Code(0x5E, 4, 2 * 2 * 16 * 8 * 16, False, 0, 0)


NESTED = """
.L_x_1:
        /*0010*/                   IADD3 R4, R8, R2, RZ ;
        /*0020*/                   FMUL R4, R8, R2 ;
.L_x_2:
        /*0030*/                   FFMA R4, R8, R2, R4 ;
        /*0040*/                   FFMA R4, R8, R2, R4 ;
        /*0050*/                   LDS R4, [R9] ;
        /*0060*/               @P0 BRA `(.L_x_2) ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
"""


def test_an_inner_loop_runs_as_often_as_its_products_take():
  """Twelve multiply-adds are six turns of two; what is around them runs once."""
  found = gpu_model.read_code(NESTED)
  assert (found.instructions, found.operations, found.shared) == (7, 32 + 2 * 64, 128)
  whole = found.with_turns(12)
  assert (whole.instructions, whole.operations, whole.shared) == (3 + 6 * 4, 32 + 12 * 64, 6 * 128)
  assert found.with_turns(0) == found


def test_the_products_of_an_innermost_loop_are_counted():
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (ast,) = gpu_model.kernels_of(lambda: gpu_model.attention(dtypes.float32))
    linear = lower_kernel(ast, gpu_model.target_of(gpu_model.GPUS["sm_90a"]))
  assert gpu_model.products_of_a_loop(linear) == 64 * 16  # steps, of a tile of 4 x 4


def test_the_products_of_nested_loops_are_counted():
  """A convolution sums over blocks of channels, and in a block over channels, rows and columns of its kernel."""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    ks = gpu_model.kernels_of(lambda: gpu_model.empty(64, 64, 58, 58).conv2d(gpu_model.empty(64, 64, 3, 3)))
    linear = lower_kernel(ks[-1], gpu_model.target_of(gpu_model.GPUS["sm_90a"]))
  loops = [u for u in linear if u.op is Ops.RANGE and u.arg[1] not in cstyle.THREADS]
  turns = [int(u.src[0].vmax) for u in loops]
  assert turns[1:] == [2, 3, 3]
  assert gpu_model.products_of_a_loop(linear) == 64 * 2 * 3 * 3  # a tile of 8 x 8


def test_the_products_of_what_blocks_leave_over_are_not_those_of_a_block():
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (ast,) = gpu_model.kernels_of(lambda: gpu_model.empty(2048, 1000) @ gpu_model.empty(1000, 2048))
    linear = lower_kernel(ast, gpu_model.target_of(gpu_model.GPUS["sm_90a"]))
  assert gpu_model.products_of_a_loop(linear) == 64 * 16  # steps of 16, of a tile of 8 x 8; 8 are left over


MOVES = {
  "cat": lambda: gpu_model.empty(4096, 4096).cat(gpu_model.empty(4096, 4096), dim=1),  # an element at a time: 0.43
  "flip": lambda: gpu_model.empty(8192, 4096).flip(1) + 1,  # an element at a time: 0.43
  "interpolate": lambda: gpu_model.empty(16, 64, 64, 64).interpolate((128, 128)),  # a group for each column: 0.30
}


@needs_nvdisasm
@pytest.mark.parametrize("name", sorted(MOVES))
def test_what_moves_elements_takes_as_long_as_memory(name):
  """(Mutants: the figures beside them.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    ks = gpu_model.kernels_of(MOVES[name])
  judged = [gpu_model.judge(name, ast, "sm_90a") for ast in ks]
  assert sum(v.roof for v in judged) >= 0.85 * sum(v.seconds for v in judged)


@needs_nvdisasm
@pytest.mark.parametrize(
  ("arch", "shape", "share"),
  [
    ("sm_90a", (1000, 1000), 0.55),  # a tile of 64 results for each thread: 0.34
    ("sm_90a", (1536, 1536), 0.5),  # 0.40
    ("sm_90a", (16, 256, 256), 0.55),  # as many threads as hide latency best: 0.35
    ("sm_80", (1536, 1536), 0.7),  # 0.56
    ("sm_80", (1024, 1024), 0.75),  # a quarter of these threads: 0.53
  ],
)
def test_threads_have_as_many_results_as_keep_all_multiprocessors_at_work(arch, shape, share):
  """(Mutants: the figures beside them.)"""
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    ks = gpu_model.kernels_of(lambda: gpu_model.empty(*shape) @ gpu_model.empty(*shape))
  assert max((gpu_model.judge("products", ast, arch) for ast in ks), key=lambda v: v.seconds).share >= share


@needs_nvdisasm
@pytest.mark.parametrize(("arch", "width"), [("sm_80", 128), ("sm_89", 64), ("sm_89", 128)])
def test_attention_and_its_gradients_on_cores_of_one_warp(arch, width):
  """(With rows in local memory, of the gradient of the keys: 0.06, 0.22 and 0.05; in groups of one team, of 64 wide
  heads: 0.33.)"""
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    ks = gpu_model.kernels_of(lambda: gpu_model.trained(4096, width))
  judged = [gpu_model.judge("trained", ast, arch) for ast in ks]
  assert len(judged) == 4 and min(v.share for v in judged) >= 0.5


@needs_nvdisasm
@pytest.mark.parametrize(("width", "share"), [(64, 0.6), (128, 0.25)])
def test_attention_of_float32_reaches_much_of_what_arithmetic_units_have(width, share):
  """(Mutants: blocks of at most 32 steps, 0.53 for heads of 64; of 64 for every reduction, 0.23 for those of 128.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (ast,) = gpu_model.kernels_of(lambda: gpu_model.attention(dtypes.float32, width))
  assert gpu_model.judge("attention", ast, "sm_90a").share >= share


def few_rows(kind, heads=12, length=1024, gradients=False):
  """Attention with as many queries as one text has."""
  q, k, v, g = (gpu_model.empty(1, heads, length, 64, dtype=kind) for _ in range(4))
  out = q.scaled_dot_product_attention(k, v)
  return (out, *out.gradient(q, k, v, gradient=g)) if gradients else out


@needs_nvdisasm
def test_rows_that_have_nothing_in_common_have_groups_of_their_own():
  """Of 64 texts a token, to 1024 others. (Mutant: two rows a group, 1158 us.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    at = Variable("at", 0, 1023).bind(1023)
    q, k, v = (gpu_model.empty(64, 12, n, 64)[:, :, : at + 1 if n > 1 else 1] for n in (1, 1024, 1024))
    (ast,) = gpu_model.kernels_of(lambda: q.scaled_dot_product_attention(k, v))
  assert gpu_model.judge("decoding", ast, "sm_90a").seconds <= 320e-6


@needs_nvdisasm
@pytest.mark.parametrize(("gradients", "most"), [(False, 11e-6), (True, 70e-6)])
def test_attention_of_few_rows_multiplies_on_cores_of_four_warps(gradients, most):
  """Groups of fewer rows would each copy all keys. (Mutant: as many groups as keep the device busy, 28 and 227 us.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    ks = gpu_model.kernels_of(lambda: few_rows(dtypes.bfloat16, gradients=gradients))
  assert sum(gpu_model.judge("attention", ast, "sm_90a").seconds for ast in ks) <= most


@needs_nvdisasm
@pytest.mark.parametrize(
  ("kind", "heads", "length", "gradients", "most"),
  [
    (dtypes.bfloat16, 1, 4096, False, 12e-6),  # in one piece: 40 us
    (dtypes.bfloat16, 1, 4096, True, 75e-6),  # 199 us
    (dtypes.float32, 1, 4096, False, 120e-6),  # 147 us
    (dtypes.float32, 12, 1024, False, 90e-6),  # as many groups as keep the device busy: 122 us
    (dtypes.float32, 8, 2048, False, 215e-6),  # 324 us
  ],
)
def test_attention_of_few_rows_keeps_all_multiprocessors_at_work(kind, heads, length, gradients, most):
  """By pieces of its keys, and groups of as many rows as are done first. (Mutants: the figures beside them.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    ks = gpu_model.kernels_of(lambda: few_rows(kind, heads, length, gradients))
  assert sum(gpu_model.judge("attention", ast, "sm_90a").seconds for ast in ks) <= most


COLUMNS = {
  "softmax": lambda: gpu_model.empty(4096, 512).softmax(0),  # a group for eight columns: 0.24
  "wide softmax": lambda: gpu_model.empty(4096, 2048).softmax(0),  # 0.50
  "argmax": lambda: gpu_model.empty(4096, 512).argmax(0),  # 0.24
}


@needs_nvdisasm
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_groups_of_a_cluster_share_columns_out_that_are_few(name):
  """(Mutants: the figures beside them.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (ast,) = gpu_model.kernels_of(COLUMNS[name])
  assert gpu_model.judge(name, ast, "sm_90a").share >= 0.6


def test_what_goes_through_local_memory_and_waits_is_counted():
  names = ["LDG.E.128 R4, [R2]", "STS.128 [R8], R4", "BAR.SYNC 0x0", "LDSM.16.M88.4 R4, [R9]", "LDS.64 R4, [R9]"]
  lines = [f"        /*00{i}0*/                   {name} ;" for i, name in enumerate(names, 4)]
  found = gpu_model.read_code(LISTING.replace(".L_x_1:", "\n".join([".L_x_1:", *lines])))
  assert found.shared == 32 * (16 + 16 + 4) and found.stalls == gpu_model.BARRIER + gpu_model.FAR
  begun = [".L_x_1:", lines[0].replace("LDG", "LDGSTS"), lines[2]]
  ahead = gpu_model.read_code(LISTING.replace(".L_x_1:", "\n".join(begun)))
  assert ahead.stalls == gpu_model.BARRIER and ahead.shared == 32 * 16


def test_a_loop_s_last_loads_and_the_first_of_its_next_turn_are_waited_for_together():
  """(Mutant: twice, as they stand before and behind its barrier.)"""
  lines = [f"        /*00{i}0*/                   {x} ;" for i, x in enumerate(("LDG.E R4, [R2]", "BAR.SYNC 0x0"), 4)]
  found = gpu_model.read_code(LISTING.replace(".L_x_1:", "\n".join([".L_x_1:", *lines, lines[0]])))
  assert found.stalls == gpu_model.BARRIER + gpu_model.FAR


@pytest.mark.parametrize(
  ("operands", "nbytes"), [("R24, R88, gdesc[UR8], R24", 2 * 16 * 64), ("R24, gdesc[UR8], R24", 2 * 16 * 128)]
)
def test_what_a_product_of_four_warps_reads_of_tiles_is_counted(operands, nbytes):
  """By each of the warps a quarter; what no lane does reads nothing."""
  lines = (f"HGMMA.64x64x16.F32.BF16 {operands}, gsb0 ;", "@!PT LDS RZ, [RZ] ;")
  listed = "\n".join([".L_x_1:", *(f"        /*004{i}*/                   {x}" for i, x in enumerate(lines))])
  found = gpu_model.read_code(LISTING.replace(".L_x_1:", listed).replace("HMMA", "IMMA"))
  assert found.operations == 2 * 64 * 64 * 16 // 4 and found.shared == nbytes // 4 and found.instructions == 5


@needs_nvdisasm
@pytest.mark.parametrize("width", [64, 128])
def test_attention_reaches_most_of_what_hopper_has(width):
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    q, k, v = (gpu_model.empty(8, 16, 4096, width, dtype=dtypes.bfloat16) for _ in range(3))
    (kernel,) = gpu_model.kernels_of(lambda: q.scaled_dot_product_attention(k, v))
  assert gpu_model.judge("attention", kernel, "sm_90a").share >= 0.6


@needs_nvdisasm
@pytest.mark.parametrize(
  "name", [name for name, _ in gpu_model.workloads() if name.startswith(("matmul b", "matmul float16"))]
)
def test_products_reach_most_of_what_hopper_has(name):
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (kernel,) = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
  judged = gpu_model.judge(name, kernel, "sm_90a")
  assert judged.share >= 0.8 and judged.waits == ""


@needs_nvdisasm
def test_of_all_blocks_the_one_that_is_taken_is_the_fastest_by_the_model(monkeypatch):
  """What `Core.cycles` says beforehand agrees with what is read off the machine code of each."""
  m, n, k = 8192, 1024, 4096
  gpu, made, every, seconds = gpu_model.GPUS["sm_90a"], cores.products, dict[tuple[int, int], float](), {}

  def noted(*given):
    for p in made(*given):
      if p.core.late:
        every[p.block] = p.cost
        yield p

  with gpu_model.as_null(gpu):
    x, y = gpu_model.empty(m, k, dtype=dtypes.bfloat16), gpu_model.empty(k, n, dtype=dtypes.bfloat16)
    monkeypatch.setattr(cores, "products", noted)
    (ast,) = gpu_model.kernels_of(lambda: x @ y)
    for block in every:
      monkeypatch.setattr(cores, "products", lambda *given, block=block: (p for p in made(*given) if p.block == block))
      seconds[block] = gpu_model.judge("product", ast, "sm_90a").seconds
  assert len(every) == 11 and min(every, key=every.__getitem__) == min(seconds, key=seconds.__getitem__)


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
def test_what_loops_read_of_one_memory_counts_once_for_each_part():
  """Of blocks of weights one loop reads scales, another the rest. (Mutant: the second finds all of it near, 1.54.)"""
  with gpu_model.as_null(gpu_model.GPUS["sm_89"]):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())["Q4_K by a vector"])
  assert 0.5 < gpu_model.judge("Q4_K by a vector", ast, "sm_89").share <= 1


@needs_nvdisasm
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", BOUND_BY_MEMORY)
def test_what_memory_bounds_keeps_memory_busy_in_one_kernel(name, arch):
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
  judged = gpu_model.judge(name, ast, arch)
  assert judged.bound == "memory" and judged.share >= 0.9


ONE_SWEEP = [f"{name} {kind}" for name in ("softmax", "layernorm", "argmax", "log softmax") for kind in KINDS]


@needs_nvdisasm
@pytest.mark.parametrize("name", ONE_SWEEP)
def test_the_model_sees_that_memory_is_read_again(name, monkeypatch):
  """Rows that no registers keep are read by every reduction: about half of the bandwidth was measured so."""
  gpu, arch = gpu_model.GPUS["sm_90a"], "sm_90a"
  with gpu_model.as_null(gpu):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
  once = gpu_model.sweeps(lower_kernel(ast, gpu_model.target_of(gpu)))
  assert [written for _, written, _ in once] == [False, True] and gpu_model.judge(name, ast, arch).share >= 0.9
  monkeypatch.setattr(heuristic, "kept_row", lambda *_: None)
  assert len(gpu_model.sweeps(lower_kernel(ast, gpu_model.target_of(gpu)))) > 2
  assert 0.45 <= gpu_model.judge(name, ast, arch).share <= 0.55


@needs_nvdisasm
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_sees_that_pieces_are_short(kind, monkeypatch):
  """0.72 and 0.55 of the bandwidth were measured with columns of 32 and of 16 bytes."""
  gpu, arch = gpu_model.GPUS["sm_90a"], "sm_90a"
  with gpu_model.as_null(gpu):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())[f"sum of columns {kind}"])
  monkeypatch.setattr(heuristic, "columns_of", lambda *_: None)
  assert 0.5 <= gpu_model.judge(kind, ast, arch).share <= 0.76


def test_neighbours_that_a_thread_reads_one_after_the_other_are_no_short_pieces():
  """Two halves, of which a word is put together where rows begin anywhere. (Mutant: pieces of two bytes.)"""
  gpu = gpu_model.GPUS["sm_90a"]
  with gpu_model.as_null(gpu):
    x, y = (gpu_model.empty(*shape, dtype=dtypes.bfloat16) for shape in ((1024, 768), (768, 50257)))
    (ast,) = gpu_model.kernels_of(lambda: x @ y)
  found = gpu_model.sweeps(lower_kernel(ast, gpu_model.target_of(gpu)))
  assert all(s.piece > gpu_model.SECTOR for (_, written, _), s in found.items() if not written)


def test_what_a_cache_holds_is_not_read_from_memory_again():
  """Two sweeps over a row: the second finds it near while few groups are at once."""
  work = dict(gpu_model.workloads())["softmax of long rows"]
  with gpu_model.as_null(gpu_model.GPUS["sm_80"]):
    (ast,) = gpu_model.kernels_of(work)
    linear = lower_kernel(ast, gpu_model.target_of(gpu_model.GPUS["sm_80"]))
  size = 4 * 2048 << 17
  assert gpu_model.traffic(linear, 2048, 700, 50 << 20)[0] == pytest.approx(4 * size)
  assert gpu_model.traffic(linear, 2048, 50, 50 << 20)[0] == pytest.approx(2 * size)


@needs_nvdisasm
@pytest.mark.parametrize("name", [name for name, _ in gpu_model.workloads() if "of long rows" in name])
def test_clusters_read_long_rows_once(name):
  """Twice or three times where there are none; and groups that wait for one another take longer than memory does."""
  shares = {}
  for arch in ("sm_80", "sm_90a"):
    with gpu_model.as_null(gpu_model.GPUS[arch]):
      (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
      shares[arch] = gpu_model.judge(name, ast, arch).share
  assert shares["sm_80"] < 0.67 and 0.8 < shares["sm_90a"] < 0.99


@needs_nvdisasm
def test_few_long_rows_have_a_cluster_each():
  """As many groups as keep memory busy, where a group each would be one on a multiprocessor; not without clusters."""
  numbers = {}
  for arch in ("sm_80", "sm_90a"):
    with gpu_model.as_null(gpu_model.GPUS[arch]):
      numbers[arch] = len(found := gpu_model.kernels_of(dict(gpu_model.workloads())["softmax of 129 rows"]))
  assert numbers == {"sm_80": 3, "sm_90a": 1} and gpu_model.judge("softmax", found[0], "sm_90a").share > 0.9


# of heads 256 wide the two that keep two operands and a sum of 64 x 256 in the registers of four warps
SERIAL = {("trained 4096x256", 1): "C7512", ("trained 4096x256", 2): "C7512"}
ON_WGMMA = [
  name for name, _ in gpu_model.workloads() if name.startswith(("matmul b", "matmul f", "attention", "train"))
]


@needs_nvdisasm
@pytest.mark.parametrize("name", ON_WGMMA)
def test_products_follow_one_another_at_once(name):
  """The compiler says where it makes wgmma wait: for registers that something else reads, or that there are not."""
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    found = gpu_model.kernels_of(dict(gpu_model.workloads())[name])
  for i, ast in enumerate(found):
    assert gpu_model.judge(name, ast, "sm_90a").waits == SERIAL.get((name, i), ""), (name, i)


@needs_nvdisasm
def test_what_makes_products_wait_is_said():
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    (ast,) = gpu_model.kernels_of(dict(gpu_model.workloads())["attention bf16"])
  source = source_of(ast, "sm_90a").source
  assert gpu_model.waits(cuda.compiled_anew(source, "k", "sm_90a")[1]) == ""
  early = source.replace("wait_group.sync.aligned 0", "wait_group.sync.aligned 1")
  assert "C7514" in gpu_model.waits(cuda.compiled_anew(early, "k", "sm_90a")[1])


@needs_nvdisasm
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float16])
def test_attention_is_one_kernel_on_cores_without_spills(kind, arch, tmp_path):
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    (ast,) = gpu_model.kernels_of(lambda: gpu_model.attention(kind))
  code = machine_code(ast, arch, tmp_path)
  product = "HGMMA.64x64x16.F32" if arch == "sm_90a" else "HMMA.16816.F32"
  assert has(code, product + ".BF16" * (kind is dtypes.bfloat16)) and not (arch == "sm_90a" and has(code, "HMMA"))
  assert code.local == 0 and has(code, "LDG", ".128") and has(code, "SHFL.BFLY")
  assert code.shared < 80 << 10  # two groups on a multiprocessor
  assert gpu_model.judge("attention", ast, arch).share >= 0.6


SASS = """
.L_x_1:
        /*0000*/                   LDG.E R1, [R2] ;
        /*0010*/               @P0 BRA `(.L_x_2) ;
        /*0020*/                   FSEL R1, R1, RZ, P1 ;
        /*0030*/                   FSEL R2, R2, RZ, P1 ;
.L_x_2:
        /*0040*/                   FFMA R1, R1, R2, R3 ;
        /*0050*/              @!P2 BRA `(.L_x_1) ;
"""


def test_what_is_seldom_run_does_not_count():
  assert gpu_model.read_code(SASS).instructions == 6
  assert gpu_model.read_code(SASS, seldom=True).instructions == 4
