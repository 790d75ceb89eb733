"""Attention, its gradients included, keeps nothing that is quadratic in the length, on a grid as on a processor:
kernels and bytes of memory between them, as GPUs of several kinds are scheduled. Nothing is computed here; that values
are right say test_idle_blocks.py and test_cuda.py."""

import re

import pytest

from extra.gpu_model import GPUS, target_of
from tinygrad import Tensor, Variable
from tinygrad.codegen import linearize, lower_kernel
from tinygrad.codegen.heuristics import gpu
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.numerics import split_sums, streaming
from tinygrad.renderer import cstyle, dialects
from tinygrad.schedule import tile_and_fuse
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.node import stored

HEADS, WIDTH = 16, 64


def schedule_of(asked, arch="sm_90a"):
  sink = canonical(UOp.sink(*(stored(t.uop, "NULL") for t in asked)))[0]
  return create_schedule(localize(sink), True, target_of(GPUS[arch]))


def attention(length, kind, causal=False, gradients=True, width=WIDTH, shape=(HEADS,)):
  q, k, v, g = (Tensor.empty(*shape, length, width, device="NULL", dtype=kind).realize() for _ in range(4))
  out = q.scaled_dot_product_attention(k, v, is_causal=causal)
  return (out, *out.gradient(q, k, v, gradient=g)) if gradients else (out,)


def scheduled(length, kind, causal=False, gradients=True, arch="sm_90a", width=WIDTH, shape=(HEADS,)):
  """(kernels, bytes of memory between them)"""
  schedule = schedule_of(attention(length, kind, causal, gradients, width, shape), arch)
  return len(schedule.items), sum(t.nbytes for t in schedule.temps)


STATISTICS = 3 * 4  # bytes of a row: maximum, sum, and what its weights' gradients have in common


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_memory_is_linear_in_the_length(arch, kind, causal):
  for length in (512, 1024, 4096):
    assert scheduled(length, kind, causal, False, arch) == (1, 0)
    assert scheduled(length, kind, causal, True, arch) == (4, STATISTICS * HEADS * length)


@pytest.mark.parametrize("shape", [(16,), (2, 12), (64, 16)])
def test_whatever_batches_and_heads_there_are(shape):
  heads = 1
  for n in shape:
    heads *= n
  assert scheduled(1024, dtypes.bfloat16, width=128, shape=shape) == (4, STATISTICS * heads * 1024)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_few_rows_have_pieces_of_which_there_is_as_much_whatever_the_length(arch, kind, causal):
  """What pieces amount to is of no more rows than two turns of all multiprocessors have."""
  most = 2 * GPUS[arch].units * split_sums.ROWS_OF_CORES * (WIDTH + 2) * 4
  for length in (2560, 2999, 3072):
    assert [scheduled(length, kind, causal, x, arch, shape=(1,))[0] for x in (False, True)] == [2, 9]
    for gradients in (False, True):
      assert scheduled(length, kind, causal, gradients, arch, shape=(1,))[1] <= 4 * most + STATISTICS * length


@pytest.mark.parametrize("width", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("length", [512, 513, 1000, 4095])
def test_whatever_length_and_width_there_are(length, kind, width):
  """Those that no block divides, and wide heads."""
  for causal in (False, True):
    assert scheduled(length, kind, causal, False, width=width) == (1, 0)
    assert scheduled(length, kind, causal, True, width=width) == (4, STATISTICS * HEADS * length)


@pytest.mark.parametrize("masked", [False, True])
def test_a_prompt_of_which_a_variable_says_where_it_begins(masked):
  most, tokens = 4096, 128
  at = Variable("at", 0, most - tokens).bind(5)
  k, v = (Tensor.empty(HEADS, most, WIDTH, device="NULL").realize()[:, : at + tokens] for _ in range(2))
  q, places = Tensor.empty(HEADS, tokens, WIDTH, device="NULL").realize(), Tensor.arange(most)
  mask = places[: at + tokens].unsqueeze(0) <= places[at : at + tokens].unsqueeze(1)
  out = q.scaled_dot_product_attention(k, v, attn_mask=mask if masked else None)
  (item,), temps = (schedule := schedule_of((out,))).items, schedule.temps
  assert not temps
  (blocks,) = {r for s in item.kernel.src for r in s.src[2:] if r.arg[1] is AxisKind.REDUCE}
  assert blocks.src[0].op is not Ops.CONST and blocks.src[0].vmax == most // 64  # as far as there are keys


def of_one_product(length, kind):
  """Attention whose queries, keys and values are slices of one matrix, as one product gives them, and its gradient."""
  qkv, g = (Tensor.empty(2, length, n * HEADS * WIDTH, device="NULL", dtype=kind).realize() for n in (3, 1))
  q, k, v = (qkv.reshape(2, length, 3, HEADS, WIDTH)[:, :, i].transpose(1, 2) for i in range(3))
  out = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(*g.shape)
  return out, out.gradient(qkv, gradient=g)[0]


@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_queries_keys_and_values_may_be_slices_of_one_product(arch, kind):
  """Their gradients are put together by a kernel of its own. Kernels that were one for what both read whole, scores and
  their gradient, would keep these."""
  length = 1024
  gradients = 3 * 2 * length * HEADS * WIDTH * kind.itemsize
  schedule = schedule_of(of_one_product(length, kind), arch)
  assert len(schedule.items) == 5
  assert sum(t.nbytes for t in schedule.temps) <= gradients + STATISTICS * 2 * HEADS * length


def counts(length):
  """Of each kernel, how many products of cores and copies that take place later there are."""
  for item in schedule_of(attention(length, dtypes.bfloat16)).items:
    linear = lower_kernel(item.kernel, target_of(GPUS["sm_90a"]))
    yield [sum(u.op is op for u in linear) for op in (Ops.MMA, Ops.COPY)]


def test_cores_and_copies_do_without_whole_blocks():
  found = [*counts(1023)]
  assert found == [*counts(1024)] and all(products >= 4 and copies > 4 for products, copies in found)


@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float32])
def test_exponentials_beside_products_of_halves_are_the_processor_s(kind):
  """Statistics of rows are float32, but of no more than what products of halves have."""
  for item in schedule_of(attention(1024, kind)).items:
    source = cstyle.render(lower_kernel(item.kernel, target_of(GPUS["sm_90a"])), "k", dialects.CUDA).source
    exponentials = re.findall(r"\w*exp\w*\(", source.replace(dialects.CUDA.prelude, ""))
    assert exponentials and {*exponentials} == {"rough_exp(" if kind is dtypes.bfloat16 else "exp("}


def lowered():
  """The kernels of the gradients of the queries, of the keys and of the values."""
  _, *items = schedule_of(attention(1024, dtypes.bfloat16)).items
  return [lower_kernel(item.kernel, target_of(GPUS["sm_90a"])) for item in items]


def statistics_read(linear):
  """Loads of float32 from device memory that something uses."""
  used = {s for u in linear for s in u.src}
  loads = [u for u in linear if u.op is Ops.LOAD and u in used and u.src[0].op is Ops.INDEX]
  return [u for u in loads if u.src[0].src[0].op is Ops.PARAM and u.dtype.scalar() is dtypes.float32]


def test_statistics_of_a_block_are_copied_ahead(monkeypatch):
  """Those of other rows: of queries, where a group has keys."""
  _, *found = map(statistics_read, lowered())
  assert found == [[], []]
  real = gpu.schedule_member

  def schedule_member(nest):
    nest.operands = []
    return real(nest)

  monkeypatch.setattr(gpu, "schedule_member", schedule_member)
  _, *found = map(statistics_read, lowered())
  assert all(found)


def test_sweeps_follow_one_another_in_local_memory():
  """Both of the queries' gradient have blocks of as many operands, two of each, of 64 rows of 128 bytes: the second has
  keys as they lie for two products."""
  kernel, *_ = lowered()
  assert max(u.arg[0] + u.arg[2] for u in kernel if u.op is Ops.SCRATCH) == 3 * 2 * 64 * 128


def a_condition_around_products(patch):
  patch.setattr(streaming, "factors_of_sums", lambda _: set())


def copies_of_what_is_there(patch):
  real = linearize.as_async_copy

  def as_copy(u):
    made = real(u)
    return u if made.op is Ops.COPY and len(made.src[1].src) > 2 else made

  patch.setattr(linearize, "as_async_copy", as_copy)


@pytest.mark.parametrize("mutant", [a_condition_around_products, copies_of_what_is_there])
def test_what_costs_cores_or_copies_is_seen(mutant, monkeypatch):
  mutant(monkeypatch)
  assert [*counts(1023)] != [*counts(1024)]


def everything_is_kept(patch):
  patch.setattr(tile_and_fuse, "recomputing_pays", lambda *_: False)


def one_sweep(patch):
  patch.setattr(streaming, "SWEEPS", 1)


def only_what_is_large(patch):
  patch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 40)


def whole_blocks_only(patch):
  real = streaming.Stream.guard

  def guard(self):
    if (found := real(self)) is not None:
      raise streaming.Unstreamable
    return found

  patch.setattr(streaming.Stream, "guard", guard)


@pytest.mark.parametrize("mutant", [everything_is_kept, one_sweep, only_what_is_large, whole_blocks_only])
def test_a_mutant_is_seen(mutant, monkeypatch):
  mutant(monkeypatch)
  assert scheduled(1023, dtypes.float32)[1] > HEADS * 1023 * 1023 * 4


def test_what_takes_longer_to_compute_than_to_read_is_kept():
  """Logits of wide rows."""
  x, w = (Tensor.empty(*s, device="NULL").realize() for s in ((4096, 512), (512, 8192)))
  logits = x @ w
  schedule = schedule_of(logits.logsumexp(1).sum().gradient(x, w))
  assert max(t.nbytes for t in schedule.temps) == 4096 * 8192 * 4
