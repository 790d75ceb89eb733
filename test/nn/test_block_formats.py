"""Formats of blocks: the sizes and, bit by bit, the values of the package gguf; cut over devices; views, not copies."""

import gguf
import numpy as np
import pytest

from tinygrad import GlobalCounters, Sharding, Tensor
from tinygrad.apps.model import Matrix
from tinygrad.nn.block_formats import E2M1, FORMATS, NONLINEAR
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

OWN = ("MXFP4_PAIRS",)  # not of GGUF
NAMES = [name for name in FORMATS if name not in OWN]


def blocks(name: str, rows: int, columns: int) -> np.ndarray:
  """Random bytes: every scale, infinite ones and none among them."""
  form = FORMATS[name]
  shape = (rows, columns // form.weights * form.nbytes)
  return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def values(name: str, raw: np.ndarray) -> np.ndarray:
  with np.errstate(all="ignore"):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float32)


def decoded(name: str, raw: np.ndarray, columns: int) -> Tensor:
  return FORMATS[name].tensor(Tensor(FORMATS[name].view(memoryview(raw).cast("B"), 0, (len(raw), columns))))


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_is_that_of_the_gguf_package(name: str):
  assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (FORMATS[name].weights, FORMATS[name].nbytes)
  raw = blocks(name, 16, 1024)
  got, want = decoded(name, raw, 1024).numpy(), values(name, raw)
  same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
  assert same.all(), (got[~same][:3], want[~same][:3])
  assert len(np.unique(want[np.isfinite(want)])) > 200


@pytest.mark.parametrize("name", NAMES)
def test_a_product_decodes_what_it_reads(name: str):
  """[3, 1024] @ [1024, 16]: the same as with the floats, and no float copy of them is made."""
  rng, form = np.random.RandomState(1), FORMATS[name]
  floats = rng.standard_normal((16, 1024)).astype(np.float32)
  try:
    raw = gguf.quants.quantize(floats, gguf.GGMLQuantizationType[name]).view(np.uint8)
  except NotImplementedError:  # the package reads this one only: small bytes are small finite scales
    raw = np.random.RandomState(0).randint(0, 60, (16, 1024 // form.weights * form.nbytes)).astype(np.uint8)
  w = values(name, raw)
  x = rng.standard_normal((3, 1024)).astype(np.float32)
  stored = Tensor(form.view(memoryview(raw).cast("B"), 0, w.shape)).contiguous().realize()
  a = Tensor(x).contiguous().realize()
  before = GlobalCounters.mem_used
  got = (a @ form.tensor(stored).transpose(0, 1)).realize()
  assert GlobalCounters.mem_used - before < w.nbytes / 4
  np.testing.assert_allclose(got.numpy(), x @ w.T, rtol=1e-4, atol=1e-4 * np.abs(w).max() * 32)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_cut_by_rows_or_by_blocks(name: str, axis: int):
  raw = blocks(name, 8, 1024)
  two = Sharding(("CPU:0", "CPU:1"), axis=axis)
  whole = FORMATS[name].tensor(Tensor(FORMATS[name].view(memoryview(raw).cast("B"), 0, (8, 1024))).shard(two))
  assert whole.device.axis == axis
  np.testing.assert_array_equal(whole.numpy(), values(name, raw))


def test_pairs_are_the_same_values_in_another_order():
  raw = blocks("MXFP4", 4, 64)
  got = decoded("MXFP4_PAIRS", raw, 64).numpy().reshape(-1, 16, 2)
  want = values("MXFP4", raw).reshape(-1, 2, 16).swapaxes(1, 2)
  np.testing.assert_array_equal(got, want)


def test_tables_by_hand():
  assert len(NONLINEAR) == len(E2M1) == 16
  # E2M1: sign, two bits of exponent with bias 1, one of mantissa; twice its value
  for i, v in enumerate(E2M1):
    e, m = (i >> 1) & 3, i & 1
    size = m * 0.5 if e == 0 else 2.0 ** (e - 1) * (1 + m * 0.5)
    assert v == 2 * size * (-1 if i & 8 else 1)


def test_views_share_the_bytes():
  raw = blocks("Q4_K", 2, 512)
  assert np.shares_memory(FORMATS["Q4_K"].view(memoryview(raw).cast("B"), 0, (2, 512)), raw)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_looked_up_as_one(name: str):
  """A table cut by rows: the blocks of a row come with one collective, whatever fields they have."""
  raw = blocks(name, 8, 1024)
  form = FORMATS[name]
  two = Sharding(("CPU:0", "CPU:1"), axis=0)
  table = Tensor(form.view(memoryview(raw).cast("B"), 0, (8, 1024))).shard(two).realize()
  every = Sharding(two.devices)
  y = form.tensor(table[Tensor([[5, 2]]).shard(every).realize()].shard(every))
  kinds = [u.arg.kind for u in localize(UOp.sink(y.uop)).toposort() if u.op is Ops.COLLECTIVE]
  assert kinds == ["all_reduce"]
  np.testing.assert_array_equal(y.numpy(), values(name, raw)[None, [5, 2]])


# ---- rounded activations


WORDS = [name for name, form in FORMATS.items() if form.words]


def coarse(x: np.ndarray, block: int) -> np.ndarray:
  """The activations as they are after rounding: whole numbers of up to 127 of the block's largest, in float64."""
  parts = x.reshape(*x.shape[:-1], -1, block).astype(np.float32)
  scales = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
  with np.errstate(divide="ignore", invalid="ignore"):
    numbers = np.where(scales == 0, 0, np.rint(parts * (np.float32(1) / scales)))
  assert np.abs(numbers).max() <= 127
  return (numbers.astype(np.float64) * scales.astype(np.float64)).reshape(x.shape)


def small(name: str, rows: int, columns: int) -> np.ndarray:
  """Blocks of random integers; each 16-bit scale is a small power of two, those of 8 bits are small."""
  form, rng = FORMATS[name], np.random.RandomState(3)
  raw = rng.randint(0, 256, (rows, columns // form.weights, form.nbytes)).astype(np.uint8)
  at = 0
  for kind, n in form.fields:
    size = np.dtype(kind).itemsize * n
    if kind == "<f2":
      raw[..., at : at + size] = np.array([2.0**e for e in range(-4, 0)], "<f2")[
        rng.randint(0, 4, (*raw.shape[:2], n))
      ].view(np.uint8)
    elif name.startswith("MXFP4") and n == 1:
      raw[..., at] = rng.randint(120, 128, raw.shape[:2])
    at += size
  return raw


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("rows", [1, 3, 8, 17])
def test_rounded_products_are_numpys_of_the_rounded_numbers(name: str, rows: int):
  """Activations that are whole numbers, the largest of each block 127: nothing is rounded, all sums are exact."""
  form, columns = FORMATS[name], 768
  raw, rng = small(name, 24, columns), np.random.RandomState(4)
  x = rng.randint(-7, 8, (rows, columns)).astype(np.float32)
  x[:, :: form.weights] = 127
  oracle = form.tensor(Tensor(raw)).numpy().astype(np.float64)
  want = x.astype(np.float64) @ oracle.T
  assert np.array_equal(want, want.astype(np.float32)) and np.abs(want).max() < 2**22
  np.testing.assert_array_equal(form.times(Tensor(raw), Tensor(x)).numpy(), want)


@pytest.mark.parametrize("name", WORDS)
def test_activations_are_rounded_per_block(name: str):
  """Within float32 of the product with rounded activations; with whole ones it differs by what rounding loses."""
  form, columns = FORMATS[name], 768
  raw, rng = small(name, 24, columns), np.random.RandomState(5)
  x = (rng.standard_normal((2, columns)) * np.repeat(10.0 ** rng.randint(-3, 3, (2, 3)), 256, axis=-1)).astype(
    np.float32
  )
  x[0, :256] = 0
  w = form.tensor(Tensor(raw)).numpy().astype(np.float64)
  got = form.times(Tensor(raw), Tensor(x)).numpy()
  size = np.abs(coarse(x, form.weights)) @ np.abs(w).T
  assert (np.abs(got - coarse(x, form.weights) @ w.T) < 1e-5 * size).all()
  lost = np.abs(got - x @ w.T)
  step = np.abs(x).reshape(2, -1, form.weights).max(-1).repeat(form.weights, -1) / 254
  assert (lost < step @ np.abs(w).T + 1e-5 * size).all() and lost.max() > 1e-4 * size.max()
  other = coarse(x, columns)  # one scale for a row: what a wrong block would give
  assert (np.abs(got - other @ w.T) > 1e-5 * size).any()


@pytest.mark.parametrize("name", WORDS)
def test_several_rows_are_multiplied_as_one_by_one(name: str):
  """Up to the order of float sums."""
  form = FORMATS[name]
  raw, x = Tensor(small(name, 24, 768)).realize(), np.random.RandomState(8).standard_normal((8, 1, 768))
  x = x.astype(np.float32)
  each = np.stack([form.times(raw, Tensor(row)).numpy() for row in x])
  got = form.times(raw, Tensor(x))
  assert got.shape == (8, 1, 24)
  np.testing.assert_allclose(got.numpy(), each, rtol=1e-5, atol=1e-5 * np.abs(each).max())


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_rounded_products_on_two_devices(name: str, axis: int, rows: int):
  form, two = FORMATS[name], Sharding(("CPU:0", "CPU:1"), axis=axis)
  raw, x = small(name, 8, 1024), np.random.RandomState(6).standard_normal((rows, 1024)).astype(np.float32)
  given = Tensor(x).shard(two.devices) if axis == 0 else Tensor(x).shard(two.devices, axis=1)
  got = form.times(Tensor(raw).shard(two), given)
  np.testing.assert_allclose(got.numpy(), form.times(Tensor(raw), Tensor(x)).numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", WORDS)
def test_experts_that_were_chosen_are_multiplied_as_integers(name: str):
  """Two texts, each with its own two of four matrices: once by one row for both, once by a row for each."""
  form, columns = FORMATS[name], 512
  raw, rng = small(name, 4 * 24, columns).reshape(4, 24, -1, form.nbytes), np.random.RandomState(7)
  experts = Matrix(form, Tensor(raw).realize(), (4, 24, columns), raw)
  chosen = np.array([[[2, 0]], [[3, 2]]])
  w = form.tensor(Tensor(raw)).numpy().astype(np.float64)[chosen]  # [texts, 1, 2, 24, columns]
  for rows in (1, 2):
    x = rng.standard_normal((2, 1, rows, columns)).astype(np.float32)
    rounded, exact = (experts.times(Tensor(x), how, Tensor(chosen)).numpy() for how in (False, True))
    pairs = ((coarse(x, form.weights), w), (np.abs(x), np.abs(w)))
    want, size = (np.einsum("...c,...rc->...r", y, v) for y, v in pairs)
    assert (np.abs(rounded - want) < 1e-5 * size).all()
    assert (np.abs(exact - np.einsum("...c,...rc->...r", x, w)) < 1e-5 * size).all()
    assert (np.abs(exact - want) > 1e-5 * size).any(), "rounding shows"
