"""Blocks of what streams that a mask leaves idle are passed over: numerics/idle_blocks.py. Values and the operations
that took them, by the machine of test_grid.py; the oracle is numpy."""

from dataclasses import replace

import numpy as np
import pytest
from test_group_rows import EAGER, ON_CORES, Computer, run, softmax, whole  # noqa: F401 a fixture

from tinygrad import Tensor
from tinygrad.codegen import group_rows
from tinygrad.numerics import idle_blocks, streaming
from tinygrad.schedule import tile_and_fuse
from tinygrad.uop import Ops

LENGTH, WIDTH, BLOCK = 16, 3, 4
TARGET = replace(EAGER, intensity=1)


@pytest.fixture
def blocks(monkeypatch):
  """Short ones, of which a group has several rows; and what is quadratic in the length is computed again."""
  monkeypatch.setattr(streaming, "BLOCKS", (BLOCK,))
  monkeypatch.setattr(group_rows, "team_rows", lambda *_: BLOCK)
  monkeypatch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 8)


@pytest.fixture
def counted(monkeypatch):
  """How many exponentials threads have computed."""
  done, real = [0], Computer.one

  def one(self, u):
    done[0] += u.op is Ops.EXP
    real(self, u)

  monkeypatch.setattr(Computer, "one", one)
  return done


def arrays(rows=LENGTH):
  rng = np.random.default_rng(0)
  return [rng.standard_normal((n, WIDTH)).astype(np.float32) for n in (rows, LENGTH, LENGTH, rows)]


def attended(seen, given, gradients=False, unseen=-np.inf):
  """What an attention gives, and its gradients, where `seen` says which (query, key) there are; as numpy has it."""
  q, k, v, g = (Tensor(x).to("CPU").realize() for x in given)
  rows, columns = (Tensor.arange(n) for n in (len(given[0]), LENGTH))
  mask = seen(rows.unsqueeze(1), columns.unsqueeze(0))
  out = mask.where(q @ k.T, unseen).softmax() @ v
  asked = (out, *out.gradient(q, k, v, gradient=g)) if gradients else (out,)
  got, kernels = run(asked, TARGET, {t.uop.base: x for t, x in zip((q, k, v, g), given)})
  a, b, c, d = (x.astype(np.float64) for x in given)
  there = seen(np.arange(len(a))[:, None], np.arange(LENGTH)[None])
  weights = np.exp(np.where(there, a @ b.T, unseen))
  weights /= weights.sum(-1, keepdims=True)
  up = d @ c.T
  inner = np.where(there, weights * (up - (up * weights).sum(-1, keepdims=True)), 0)
  for have, want in zip(got, (weights @ c, inner @ b, inner.T @ a, weights.T @ d)):
    np.testing.assert_allclose(have.reshape(want.shape), want, rtol=2e-4, atol=2e-4)
  return len(kernels)


def causal(i, j):
  return j <= i


def everything(i, j):
  return j < i + LENGTH


MASKS = {
  "causal": causal,
  "the other way": lambda i, j: j >= i,
  "shifted": lambda i, j: j <= i + 2,
  "window": lambda i, j: (j <= i) & (i < j + 3),
}
ALL: dict[bool, int] = {}  # with gradients, how many exponentials there are without a mask


def share(mask, counted, gradients=False):
  """Of the exponentials, and of the blocks in which there is anything."""
  if gradients not in ALL:
    counted[0] = 0
    attended(everything, arrays(), gradients)
    ALL[gradients] = counted[0]
  counted[0] = 0
  assert attended(mask, arrays(), gradients) == (4 if gradients else 1)
  there = mask(np.arange(LENGTH)[:, None], np.arange(LENGTH)[None])
  return counted[0] / ALL[gradients], there.reshape(-1, BLOCK, LENGTH // BLOCK, BLOCK).any((1, 3)).mean()


@pytest.mark.parametrize("name", MASKS)
def test_idle_blocks_are_passed_over(name, blocks, counted, whole):  # noqa: F811
  done, there = share(MASKS[name], counted)
  assert done == there < 0.9


def test_those_of_gradients_too(blocks, counted, whole):  # noqa: F811
  """For keys the queries before the diagonal are idle."""
  done, there = share(causal, counted, True)
  assert done == there < 0.9


@pytest.mark.parametrize("rows", [10, 22])
def test_rows_that_are_no_whole_groups_and_other_lengths(rows, blocks, whole):  # noqa: F811
  attended(causal, arrays(rows))
  attended(causal, arrays(rows), gradients=rows > 16)


def test_what_is_not_idle_is_computed(blocks, counted, whole):  # noqa: F811
  """Where the mask does not hold scores are 0, which count."""
  attended(causal, arrays(), unseen=0.0)
  less, counted[0] = counted[0], 0
  attended(everything, arrays(), unseen=0.0)
  assert less == counted[0]


def takes_all_for_idle(patch):
  patch.setattr(idle_blocks, "changes_nothing", lambda *_: True)


def rounds_wrongly(patch):
  real = idle_blocks.whole
  patch.setattr(idle_blocks, "whole", lambda x, step: real(x.plus(idle_blocks.Affine(-step)), step))


def of_the_first_row(patch):
  ends = idle_blocks.RowBlock.ends
  patch.setattr(idle_blocks.RowBlock, "ends", lambda self, *x: ends(self._replace(many=1), *x))


@pytest.mark.parametrize(
  ("mutant", "mask", "unseen"),
  [(takes_all_for_idle, "causal", 0.0), (rounds_wrongly, "causal", -np.inf), (of_the_first_row, "shifted", -np.inf)],
)
def test_a_mutant_is_seen(mutant, mask, unseen, blocks, whole, monkeypatch):  # noqa: F811
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    attended(MASKS[mask], arrays(), unseen=unseen)


@pytest.fixture
def asked(monkeypatch):
  """For how many elements threads have asked a mask; groups have 64 rows, blocks 32 keys."""
  monkeypatch.setattr(streaming, "BLOCKS", (32,))
  done, real = [0], Computer.one

  def one(self, u):
    done[0] += u.dtype.count * (u.op is Ops.WHERE and any(s.op is Ops.CONST and s.arg == -np.inf for s in u.src))
    real(self, u)

  monkeypatch.setattr(Computer, "one", one)
  return done


def attended_on_cores(seen, rows=128, keys=128, width=32):
  """Attention of halves, the sums of rows in registers of threads, and what numpy makes of it."""
  rng = np.random.default_rng(0)
  q, k, v = (rng.standard_normal((1, n, width)).astype(np.float16) for n in (rows, keys, keys))
  tensors = [Tensor(x).to("CPU").realize() for x in (q, k, v)]
  mask = seen(Tensor.arange(rows).unsqueeze(1), Tensor.arange(keys).unsqueeze(0))
  scores = tensors[0].dot(tensors[1].transpose(-2, -1), dtype="float32") / 4
  out = mask.where(scores, -np.inf).softmax().half().dot(tensors[2], dtype="float32")
  given = {t.uop.base: x for t, x in zip(tensors, (q, k, v))}
  (got,), _ = run([out], replace(ON_CORES, intensity=1, warp=32), given)
  there = seen(np.arange(rows)[:, None], np.arange(keys)[None])
  scores = np.where(there, q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / 4, -np.inf)
  np.testing.assert_allclose(got.reshape(out.shape), softmax(scores) @ v, rtol=2e-3, atol=2e-3)
  blocks = there.reshape(rows // 64, 64, keys // 32, 32)
  return (blocks.any((1, 3)) & ~blocks.all((1, 3))).sum() * 64 * 32


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_asked_where_its_edge_is(name, asked, whole):  # noqa: F811
  """Before the edge all of a block's keys are seen by all rows of the group."""
  wide = {"window": lambda i, j: (j <= i + 64) & (i < j + 40)}
  edges = attended_on_cores(wide.get(name, MASKS[name]))
  assert 0 < asked[0] == edges < 128 * 128


def asks_in_every_block(patch):
  patch.setattr(group_rows, "edges_apart", lambda stores, *_: stores)


def takes_the_other(patch):
  real = idle_blocks.usual_and_right
  patch.setattr(idle_blocks, "usual_and_right", lambda s, known: (parts := real(s, known)) and (parts[0], parts[0]))


@pytest.mark.parametrize("mutant", [asks_in_every_block, takes_the_other, of_the_first_row])
def test_a_mutant_of_edges_is_seen(mutant, asked, whole, monkeypatch):  # noqa: F811
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    assert asked[0] == attended_on_cores(MASKS["shifted"])


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("length", "width"), [(65, 64), (96, 128), (130, 64), (130, 128), (96, 200), (200, 256)])
def test_what_is_not_computed_is_not_read(kind, length, width):
  """On a processor, of whatever type: its scratch memory is not a number at first (conftest.py)."""
  rng = np.random.default_rng(0)
  tensors = [Tensor(rng.standard_normal((2, length, width)), dtype=kind).realize() for _ in range(4)]
  q, k, v, g = (x.numpy().astype(np.float64) for x in tensors)
  scores = np.where(np.tri(length, dtype=bool), q @ k.transpose(0, 2, 1) / np.sqrt(width), -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  up = g @ v.transpose(0, 2, 1)
  inner = weights * (up - (up * weights).sum(-1, keepdims=True)) / np.sqrt(width)
  want = weights @ v, inner @ k, inner.transpose(0, 2, 1) @ q, weights.transpose(0, 2, 1) @ g
  out = tensors[0].scaled_dot_product_attention(*tensors[1:3], is_causal=True)
  found = [out, *out.gradient(*tensors[:3], gradient=tensors[3])]
  rough = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 0.05}[kind]
  for x, y in zip(found, want):
    np.testing.assert_allclose(x.numpy(), y, atol=rough * np.abs(y).max())
