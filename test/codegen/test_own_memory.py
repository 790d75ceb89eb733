"""Memory of a group that is each thread's own (numerics/own_memory.py), and fragments that warps read together
(numerics/fragments.py): values by the machine of test_grid.py, machine code by NVRTC."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sass import ARCHS, has, machine_code, needs_nvdisasm
from test_grid import Race
from test_group_rows import ON_CORES, all_there_are, kernels_of, run, weighted, whole  # noqa: F401 a fixture

from extra import gpu_model
from tinygrad.codegen import group_rows, linearize, lower, lower_kernel, nests
from tinygrad.device.cores import EIGHT_ROWS, F16
from tinygrad.dtype import dtypes
from tinygrad.numerics import own_memory
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.spec import SpecError

WARPS = replace(ON_CORES, warp=32)
LANES, THREADS = (UOp.new(Ops.RANGE, dtypes.index, (index(n),), (i, AxisKind.LOCAL)) for i, n in enumerate((4, 8)))
COPIES = UOp.new(Ops.RANGE, dtypes.index, (index(4),), (2, AxisKind.UPCAST))


@pytest.fixture
def few(monkeypatch):
  """Threads enough for several rows a group."""
  monkeypatch.setattr(group_rows, "team_rows", all_there_are)


def attention_is_right(shape=(32, 128, 32), target=WARPS):
  out, want, given = weighted(*shape)
  (got,), (kernel,) = run([out], target, given)
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-3, atol=2e-3)
  return lower_kernel(kernel, target)


@pytest.mark.parametrize("shape", [(32, 128, 32), (40, 64, 32)])
def test_scores_and_weights_go_from_register_to_register(shape, few, whole):  # noqa: F811
  linear = attention_is_right(shape)
  memory = {u for u in linear if u.op is Ops.SCRATCH}
  shared = [u for u in memory if not own_memory.is_own(u)]
  assert {u.dtype for u in shared} == {dtypes.float16} and len(shared) == 2, "keys and values"
  assert sum(u.arg[2] for u in memory - {*shared}) <= 4 * own_memory.MOST
  loads = [u for u in linear if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].src[0] in shared]
  assert {u.arg for u in loads} == {"eights", "turned"} and len(loads) * 2 == sum(u.op is Ops.MMA for u in linear)
  assert sum(u.op is Ops.BARRIER for u in linear) == 4, "two before the loop, two in it"


def test_what_is_filled_ahead_lies_beside_what_other_nests_fill(few, whole):  # noqa: F811
  """Scores of rows that are too short for a core are sums of a group's threads, through memory of their own."""
  attention_is_right((32, 64, 16))


def apart(patch):
  """Rows of what is read together are taken for columns."""
  real = linearize.row_of_eight

  def wrong(*given):
    found = real(*given)
    return found and (found[0], not found[1])

  patch.setattr(linearize, "row_of_eight", wrong)


def from_nothing(patch):
  """What a core adds to is forgotten."""
  real = linearize.Linearizer.register
  patch.setattr(linearize.Linearizer, "register", lambda self, f, dtype, home, start=None: real(self, f, dtype, home))


def never_waits(patch):
  patch.setattr(lower, "with_barriers", lambda nests, grid: (s for nest in nests for s in nest))
  patch.setattr(linearize.Linearizer, "barrier", lambda *_: None)


@pytest.mark.parametrize("mutant", [apart, from_nothing, never_waits])
def test_a_mutant_is_seen(mutant, few, whole, monkeypatch):  # noqa: F811
  mutant(monkeypatch)
  with pytest.raises((AssertionError, Race)):
    attention_is_right()


def at(*terms: tuple[UOp, int], plus: int = 0) -> UOp:
  memory = UOp.new(Ops.SCRATCH, dtypes.float32, (), (0, 9, 4096))
  out = index(plus)
  for r, c in terms:
    out = UOp.new(Ops.ADD, dtypes.index, (out, UOp.new(Ops.MUL, dtypes.index, (r, index(c)))))
  return UOp.new(Ops.INDEX, dtypes.float32, (memory, out))


NUMBERS = {LANES: [x % 4 for x in range(32)], THREADS: [x // 4 for x in range(32)]}
OWN = {
  "alike": ([at((THREADS, 16), (LANES, 4), (COPIES, 1))] * 2, [0, 1, 2, 3]),
  "rows that lanes have in common": ([at((THREADS, 4), (COPIES, 1)), at((THREADS, 4), plus=3)], [3]),
  "gaps": ([at((THREADS, 8), (LANES, 2), (COPIES, 64))], [0, 1, 2, 3]),
}
SHARED = {
  "another's": [at((THREADS, 16), (LANES, 4)), at((THREADS, 16), (LANES, 4), plus=4)],
  "laid out otherwise": [at((THREADS, 4), (LANES, 1)), at((LANES, 8), (THREADS, 1))],
  "a loop": [at((UOp.new(Ops.RANGE, dtypes.index, (index(4),), (3, AxisKind.LOOP)), 1), (THREADS, 4))],
}


@pytest.mark.parametrize("name", OWN)
def test_what_a_thread_alone_reaches_is_its_own(name):
  places, last = OWN[name]
  found = own_memory.own_places(places, NUMBERS, 32)
  assert found is not None and own_memory.all_values(own_memory.affine(found[0][-1], {})) == last
  assert found[1] == 4


def test_all_is_its_own_in_a_group_of_one_thread():
  found = own_memory.own_places([at((COPIES, 1)), at(plus=3)], {}, 1)
  assert found is not None and own_memory.all_values(own_memory.affine(found[0][0], {})) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", SHARED)
def test_what_others_reach_is_shared(name):
  assert own_memory.own_places(SHARED[name], NUMBERS, 32) is None


def attention(width, causal=False, arch="sm_90a"):
  with gpu_model.as_null(gpu_model.GPUS[arch]):
    q, k, v = (gpu_model.empty(2, 8, 4096, width, dtype=dtypes.bfloat16) for _ in range(3))
    (kernel,) = gpu_model.kernels_of(lambda: q.scaled_dot_product_attention(k, v, is_causal=causal))
  return kernel


@needs_nvdisasm
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_machine_code_of_attention(arch, width, tmp_path):
  code = machine_code(attention(width, arch=arch), arch, tmp_path)
  names = Counter[str]()
  for name, n in code.names.items():
    names[name.partition(".")[0]] += n
  if arch == "sm_90a":  # scores of 64 keys in steps of 16 along the width; then of 16 keys, all columns at once
    assert names["HGMMA"] == width // 16 + 4 and names["HMMA"] == names["LDSM"] == 0
  else:
    assert names["HMMA"] == width and 2 * names["LDSM"] == width and has(code, "LDSM", ".MT88.4")
  assert code.local == 0 and has(code, "LDGSTS", ".128") and names["STS"] == 0
  # weights are computed once, those of a block of keys; more are the factors by which sums grow
  assert names["MUFU"] <= 64 * 16 // 32 + 8 and names["BAR"] <= 6


def test_tiles_begin_evenly_behind_statistics_of_rows(monkeypatch):
  """Of the keys' gradient statistics of queries are copied, too, between its tiles."""
  target = gpu_model.target_of(gpu_model.GPUS["sm_90a"])
  with gpu_model.as_null(gpu_model.GPUS["sm_90a"]):
    *_, kernel, _ = gpu_model.kernels_of(lambda: gpu_model.trained(4096, 64))
  linear = lower_kernel(kernel, target)
  tiles = {s.src[0] for u in linear if u.op is Ops.MMA for s in u.src if s.op is Ops.INDEX}
  assert len(tiles) == 3 and all(u.arg[0] % EIGHT_ROWS == 0 for u in tiles)
  statistics = {u for u in linear if u.op is Ops.SCRATCH and not own_memory.is_own(u)} - tiles
  assert any(u.arg[2] % EIGHT_ROWS for u in statistics)
  for module in (nests, lower):
    with monkeypatch.context() as patch:
      patch.setattr(module, "EIGHT_ROWS", 1)
      with pytest.raises(SpecError, match="tiles begin evenly"):
        lower_kernel(kernel, target)


def test_the_layout_of_weights_is_that_of_an_operand():
  """Two neighbouring results, side by side, are an operand: what one lane holds."""
  for lane in range(32):
    mine = {(r, c + 8 * tile) for tile in range(2) for r, c in (F16.d.at(lane, i) for i in range(4))}
    assert mine == {F16.a.at(lane, i) for i in range(8)}
