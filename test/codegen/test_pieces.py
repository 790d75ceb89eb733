"""Reductions over long rows, of which there are few, on a grid: a kernel of their pieces and one of what these amount
to. Run thread by thread on the machine of test_grid.py, and by OpenCL; the oracle is numpy, whole."""

from dataclasses import replace

import numpy as np
import pytest
import test_idle_blocks
from test_grid import Race, simulate
from test_group_rows import GRID, Computer, from_zero, run, softmax, without_growth
from test_idle_blocks import MASKS, everything
from test_idle_blocks import arrays as of_attention
from test_idle_blocks import attended as attention

from tinygrad import Tensor, TinyJit, Variable
from tinygrad.codegen import lower, lower_kernel
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.numerics import split_sums, streaming
from tinygrad.runtime import cl
from tinygrad.schedule import row_groups, tile_and_fuse
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp
from tinygrad.uop.node import stored

HEADS, WIDE, MOST, PIECE = 8, 8, 40, 8
FEW = replace(GRID, intensity=2, group=16)


@pytest.fixture
def short(monkeypatch):
  """Pieces are short, and little work is much. Functions are as they stand in the kernel."""
  monkeypatch.setattr(streaming, "LEAST", PIECE)
  monkeypatch.setattr(streaming, "MOST", PIECE)
  monkeypatch.setattr(row_groups, "ROW_WORK", 1)
  monkeypatch.setattr(lower, "decompose_stores", lambda kernel, target: kernel)


def arrays(seed=0, scale=1.0):
  rng = np.random.default_rng(seed)
  return [rng.standard_normal(s).astype(np.float32) * scale for s in ((HEADS, 1, WIDE), *[(HEADS, MOST, WIDE)] * 2)]


def on_grid(make, given, at, target=FEW):
  """What the kernels of `make` of tensors leave, thread by thread, and these."""
  tensors = [Tensor(x).to("CPU").realize() for x in given]
  known = {t.uop.base: x for t, x in zip(tensors, given)}
  sink, originals, _ = canonical(UOp.sink(stored(make(*tensors, Variable("at", 0, MOST - 1).bind(at)).uop, "CPU")))
  schedule = create_schedule(localize(sink), True, target)
  buffers = [(originals[-1 - b.arg.uid], np.full(int(np.prod(b.arg.shape)), 77, np.float32)) for b in schedule.buffers]
  memory = [known.get(b, unknown).flatten() for b, unknown in buffers]
  memory += [np.full(t.nbytes // 4, np.nan, np.float32) for t in schedule.temps]
  for item in schedule.items:
    linear, slots = lower_kernel(item.kernel, target), item.slots
    simulate(linear, [memory[s] for s in slots[1:]], memory[slots[0]], {"at": at}, kind=Computer)
  return memory[schedule.items[-1].slots[0]], [i.kernel for i in schedule.items]


def decode(q, k, v, p, mask=None):
  scores = q @ k[:, : p + 1].transpose(-2, -1)
  if mask is not None:
    scores = scores + mask[:, :, : p + 1]
  return scores.softmax() @ v[:, : p + 1]


def decoded(q, k, v, at, mask=0.0):
  q, k, v = (x.astype(np.float64) for x in (q, k[:, : at + 1], v[:, : at + 1]))
  return softmax(q @ k.swapaxes(-1, -2) + mask) @ v


@pytest.mark.parametrize("at", [0, 1, PIECE - 1, PIECE, 10, 2 * PIECE - 1, 31, MOST - 1])
def test_decoding_a_token_is_two_kernels_whatever_its_position(at, short):
  given = arrays()
  got, kernels = on_grid(lambda q, k, v, p: decode(q, k, v, p), given, at)
  np.testing.assert_allclose(got.reshape(HEADS, 1, WIDE), decoded(*given, at), rtol=2e-4, atol=1e-5)
  assert len(kernels) == 2


def masks():
  """What is added to scores: a row that sees nothing of the first pieces, and little of the rest; rows that see one
  key; large steps up and down; and all far below 0, where exp of what is taken off is infinite."""
  unseen = np.zeros((HEADS, 1, MOST), np.float32)
  unseen[:, :, : MOST - 11] = -np.inf
  one = np.full((HEADS, 1, MOST), -np.inf, np.float32)
  one[np.arange(HEADS), 0, np.arange(HEADS) * 3] = 0
  steps = np.cumsum(np.full((HEADS, 1, MOST), 7, np.float32), axis=2)
  return {"unseen": unseen, "one": one, "up": steps, "down": -steps, "low": unseen - 300}


@pytest.mark.parametrize("name", masks())
def test_masked_rows_and_maxima_far_apart(name, short):
  given, mask, at = arrays(1), masks()[name], MOST - 2
  got, kernels = on_grid(lambda *xs: decode(*xs[:3], xs[4], xs[3]), [*given, mask], at)
  want = decoded(*given, at, mask[:, :, : at + 1])
  assert np.isfinite(want).all() and len(kernels) == 2
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("at", [0, 5, PIECE, MOST - 1])
def test_reductions_of_every_kind_have_pieces(at, short):
  """What is one kernel becomes two by the same rule: sums, maxima, products, and totals relative to others."""
  x = np.random.default_rng(3).standard_normal((HEADS, MOST)).astype(np.float32)
  y = x[:, : at + 1].astype(np.float64)
  for make, want in (
    (lambda t: t.sum(1), y.sum(1)),
    (lambda t: t.max(1) * 2, y.max(1) * 2),
    (lambda t: (t / 9 + 1).prod(1), (y / 9 + 1).prod(1)),
    (lambda t: t.sum(), y.sum()),
    (lambda t: t.logsumexp(1), np.log(np.exp(y).sum(1))),
  ):
    got, kernels = on_grid(lambda t, p, make=make: make(t[:, : p + 1]), [x], at)
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-4, atol=1e-5)
    assert len(kernels) == 2


@pytest.fixture
def long(monkeypatch):
  """Rows that stream in short blocks have pieces of two of these, which pay for little; what is quadratic in the length
  is computed again. Functions are as they stand in the kernel."""
  monkeypatch.setattr(streaming, "BLOCKS", (4,))
  monkeypatch.setattr(streaming, "LONG", 8)
  for name, n in (("LAUNCH", 1), ("BALANCE", 1), ("ROWS", 4)):
    monkeypatch.setattr(split_sums, name, n)
  monkeypatch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 8)
  monkeypatch.setattr(lower, "decompose_stores", lambda kernel, target: kernel)


MASKED = {**MASKS, "everything": everything}


@pytest.mark.parametrize("name", MASKED)
def test_rows_that_stream_have_pieces_that_stream(name, long):
  assert attention(MASKED[name], of_attention()) == 2


@pytest.mark.parametrize("name", MASKED)
def test_each_sweep_of_theirs_is_a_kernel(name, long):
  """Forward two, for keys and for values two each, and for queries three: two sweeps, and what the last amounts to."""
  assert attention(MASKED[name], of_attention(), True) == 9


@pytest.mark.parametrize("length", [18, 21, 27])
@pytest.mark.parametrize("name", MASKED)
def test_of_lengths_that_no_number_of_blocks_divides_the_last_piece_is_shorter(name, length, long, monkeypatch):
  monkeypatch.setattr(test_idle_blocks, "LENGTH", length)
  assert attention(MASKED[name], of_attention(length), True) == 9


def test_a_third_sweep_has_the_totals_of_both_before_it(long, monkeypatch):
  monkeypatch.setattr(streaming, "SWEEPS", 3)
  q, k, v = of_attention()[:3]
  tensors = [Tensor(x).to("CPU").realize() for x in (q, k, v)]
  w = (tensors[0] @ tensors[1].T).softmax().contiguous()
  a = (w * (w - (w * w).sum(1, keepdim=True))).contiguous()
  out = (a * w * (a - (a * w).sum(1, keepdim=True))) @ tensors[2]
  (got,), kernels = run(
    [out], replace(FEW, group=256, intensity=1), {t.uop.base: x for t, x in zip(tensors, (q, k, v))}
  )
  w = softmax(q.astype(np.float64) @ k.T)
  a = w * (w - (w * w).sum(1, keepdims=True))
  want = (a * w * (a - (a * w).sum(1, keepdims=True))) @ v
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-3, atol=1e-6)
  assert len(kernels) == 4


@pytest.mark.parametrize("rows", [10, 22])
def test_rows_that_are_no_whole_groups(rows, long):
  attention(everything, of_attention(rows))
  attention(everything, of_attention(rows), rows > 16)


def of_one_piece(patch):
  patch.setattr(streaming.InPieces, "totals", lambda self: {f: self.final(f) for f in self.sums})


@pytest.mark.parametrize("mutant", [without_growth, of_one_piece])
def test_a_mutant_of_what_pieces_know_of_one_another_is_seen(mutant, long, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises((AssertionError, Race)):
    test_each_sweep_of_theirs_is_a_kernel("everything", None)


def test_what_is_no_element_of_the_last_piece_is_seen(long, monkeypatch):
  all_exist(monkeypatch)
  with pytest.raises(AssertionError):
    test_of_lengths_that_no_number_of_blocks_divides_the_last_piece_is_shorter("everything", 18, None, monkeypatch)


def test_rows_that_keep_multiprocessors_busy_stream_whole(long, monkeypatch):
  monkeypatch.setattr(split_sums, "LAUNCH", 1 << 23)
  assert attention(everything, of_attention(), True) == 4


def all_exist(patch):
  real = streaming.InPieces.guard
  patch.setattr(streaming.InPieces, "guard", lambda self: None if real(self) is None else UOp.const(dtypes.bool, True))


@pytest.mark.parametrize(
  ("mutant", "test", "case"),
  [
    (without_growth, test_decoding_a_token_is_two_kernels_whatever_its_position, 10),
    (without_growth, test_masked_rows_and_maxima_far_apart, "up"),
    (from_zero, test_masked_rows_and_maxima_far_apart, "low"),
    (all_exist, test_decoding_a_token_is_two_kernels_whatever_its_position, 10),
    (all_exist, test_reductions_of_every_kind_have_pieces, 5),
  ],
)
def test_a_mutant_of_the_pieces_is_seen(mutant, test, case, short, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    test(case, None)


def test_what_keeps_a_grid_busy_has_no_pieces(short, monkeypatch):
  monkeypatch.setattr(row_groups, "ROW_WORK", 1 << 30)
  x = np.ones((HEADS, MOST), np.float32)
  assert len(on_grid(lambda t, p: t[:, : p + 1].sum(1), [x], 9)[1]) == 1


def test_what_is_computed_for_each_element_has_none(short):
  """Weights that are stored: the second kernel would have to go through all elements, for few rows."""
  given = arrays()[:2]
  got, kernels = on_grid(lambda q, k, p: (q @ k[:, : p + 1].transpose(-2, -1)).softmax(), given, 20)
  q, k = (x.astype(np.float64) for x in given)
  np.testing.assert_allclose(
    got.reshape(HEADS, MOST)[:, :21], softmax(q @ k[:, :21].swapaxes(-1, -2))[:, 0], rtol=2e-4, atol=1e-5
  )
  assert kernels[-1].src[0].src[0].src[0].arg.size == HEADS * MOST


@pytest.mark.needs("CL")
def test_a_captured_step_decodes_at_every_position(monkeypatch):
  """On a device, beside the CPU, where rows are whole: an empty cache, the borders of pieces, its end."""
  monkeypatch.setattr(row_groups, "ROW_WORK", 1 << 14)
  device = Device["CL"]
  monkeypatch.setattr(device, "target", cl.target_for(device.device, grid=True))
  made, cut = [], tile_and_fuse.in_pieces
  monkeypatch.setattr(tile_and_fuse, "in_pieces", lambda *args: made.append(cut(*args)) or made[-1])
  most, rng = 640, np.random.default_rng(5)
  given = [rng.standard_normal(s).astype(np.float32) for s in ((HEADS, 1, 16), *[(HEADS, most, 16)] * 2)]
  here = {d: [Tensor(x).to(d).realize() for x in given] for d in ("CL", "CPU")}
  step, whole = TinyJit(decode), TinyJit(decode)
  for at in (3, 5, 0, 1, 10, 62, 63, 64, 65, 575, 576, most - 1):
    p = Variable("at", 0, most - 1).bind(at)
    got, same = step(*here["CL"], p).numpy(), whole(*here["CPU"], p).numpy()
    np.testing.assert_allclose(got, decoded(*given, at), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, same, rtol=1e-4, atol=1e-5)
  assert any(made)


def test_pieces_are_as_many_as_keep_the_target_busy(monkeypatch):
  """By what it has of multiprocessors, and the greatest length that there may be."""
  monkeypatch.setattr(row_groups, "ROW_WORK", 1)
  x = Tensor(np.zeros((HEADS, 4096), np.float32)).to("CPU").realize()

  def memory(units):
    sink, _, _ = canonical(UOp.sink(stored(x[:, : Variable("n", 1, 4096).bind(9)].sum(1).uop, "CPU")))
    return [t.nbytes // 4 // HEADS for t in create_schedule(localize(sink), True, replace(FEW, units=units)).temps]

  assert memory(32) == [32] and memory(64) == [64] and memory(1024) == [128]
