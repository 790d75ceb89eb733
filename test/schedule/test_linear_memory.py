"""Attention, its gradients included, keeps nothing that is quadratic in the length, on a grid as on a processor:
kernels and bytes of memory between them, as GPUs of several kinds are scheduled. Nothing is computed here; that values
are right say test_idle_blocks.py and test_cuda.py."""

import pytest

from extra.gpu_model import GPUS, target_of
from tinygrad import Tensor
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.numerics import streaming
from tinygrad.schedule import tile_and_fuse
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp
from tinygrad.uop.node import stored

HEADS, WIDTH = 16, 64


def scheduled(length, kind, causal=False, gradients=True, arch="sm_90a", width=WIDTH, shape=(HEADS,)):
  """(kernels, bytes of memory between them)"""
  q, k, v, g = (Tensor.empty(*shape, length, width, device="NULL", dtype=kind).realize() for _ in range(4))
  out = q.scaled_dot_product_attention(k, v, is_causal=causal)
  asked = (out, *out.gradient(q, k, v, gradient=g)) if gradients else (out,)
  sink = canonical(UOp.sink(*(stored(t.uop, "NULL") for t in asked)))[0]
  schedule = create_schedule(localize(sink), True, target_of(GPUS[arch]))
  return len(schedule.items), sum(t.nbytes for t in schedule.temps)


STATISTICS = 3 * 4  # bytes of a row: maximum, sum, and what its weights' gradients have in common


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_memory_is_linear_in_the_length(arch, kind, causal):
  for length in (512, 1024, 4096):
    assert scheduled(length, kind, causal, False, arch) == (1, 0)
    assert scheduled(length, kind, causal, True, arch) == (4, STATISTICS * HEADS * length)


@pytest.mark.parametrize("shape", [(8,), (2, 12), (64, 16)])
def test_whatever_batches_and_heads_there_are(shape):
  heads = 1
  for n in shape:
    heads *= n
  assert scheduled(1024, dtypes.bfloat16, width=128, shape=shape) == (4, STATISTICS * heads * 1024)


def everything_is_kept(patch):
  patch.setattr(tile_and_fuse, "pays", lambda *_: False)


def one_sweep(patch):
  patch.setattr(streaming, "SWEEPS", 1)


def only_what_is_large(patch):
  patch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 40)


@pytest.mark.parametrize("mutant", [everything_is_kept, one_sweep, only_what_is_large])
def test_a_mutant_is_seen(mutant, monkeypatch):
  mutant(monkeypatch)
  assert scheduled(1024, dtypes.float32)[1] > HEADS * 1024 * 1024 * 4


def test_what_takes_longer_to_compute_than_to_read_is_kept():
  """Logits of wide rows."""
  x, w = (Tensor.empty(*s, device="NULL").realize() for s in ((4096, 512), (512, 8192)))
  logits = x @ w
  asked = logits.logsumexp(1).sum().gradient(x, w)
  sink = canonical(UOp.sink(*(stored(t.uop, "NULL") for t in asked)))[0]
  schedule = create_schedule(localize(sink), True, target_of(GPUS["sm_90a"]))
  assert max(t.nbytes for t in schedule.temps) == 4096 * 8192 * 4
