"""Formats of quantised weights, as data: which fields a block has, and its weights as an expression over them.

A row of a matrix is a row of blocks; each holds its weights as small integers and what these are multiplied by. A
format names the fields in the order in which they lie in a file, and `decode` is ordinary tensor arithmetic, so a
kernel that uses a weight computes it from the fields that it reads, and no float copy is made.

Layouts: ggml's formats as the GGUF specification names them; E8M0 and E2M1 of MXFP4 are the OCP Microscaling Formats'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy
from tinygrad.tensor import Tensor

# The 16 values of ggml's nonlinear nibbles, and twice those of E2M1.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
SUPER = 256  # weights of a block of the K formats
HALF, BYTE, SIGNED, WORD = "<f2", "u1", "i1", "<u2"
TYPES = {HALF: dtypes.float16, BYTE: dtypes.uint8, SIGNED: dtypes.int8, WORD: dtypes.uint16}


@dataclass(frozen=True, slots=True)
class BlockFormat:
  """Blocks of `weights` weights; `fields` are (numpy type, elements), packed.

  A tensor's blocks are bytes [.., blocks, nbytes], so that a row of them is looked up or sent as one; where a block is
  one number, [.., blocks, 1] of its type. `decode` takes each field [.., blocks, elements], float16 already as float32,
  and gives [.., blocks, weights], float32.
  """

  name: str
  weights: int
  fields: tuple[tuple[str, int], ...]
  decode: Callable[..., Tensor]

  @property
  def nbytes(self) -> int:
    return sum(numpy.dtype(kind).itemsize * n for kind, n in self.fields)

  def view(self, data: memoryview, offset: int, shape: tuple[int, ...]) -> Any:
    """The blocks of a tensor of `shape` that lies at `offset`: a view, nothing is read."""
    kind, n = (self.fields[0][0], 1) if len(self.fields) == 1 else (BYTE, self.nbytes)
    return numpy.ndarray((*shape[:-1], shape[-1] // self.weights, n), kind, data, offset)

  def tensor(self, blocks: Tensor) -> Tensor:
    """The weights [.., columns] as an expression over the blocks."""
    parts, at = [blocks], 0
    if len(self.fields) > 1:
      parts = []
      for kind, n in self.fields:
        end = at + n * TYPES[kind].itemsize
        parts.append(blocks[..., at:end].bitcast(TYPES[kind]))
        at = end
    return self.decode(*(x.float() if x.dtype is dtypes.float16 else x for x in parts)).flatten(-2)


def _unpack(x: Tensor, bits: int, group: int) -> Tensor:
  """[.., n] bytes -> [.., n * 8 / bits] numbers of `bits` bits: of each `group` bytes all lowest bits first."""
  shifts = (Tensor.arange(8 // bits) * bits).cast(dtypes.uint8).unsqueeze(-1)
  parts = x.reshape(*x.shape[:-1], x.shape[-1] // group, 1, group).rshift(shifts).bitwise_and((1 << bits) - 1)
  return parts.flatten(-3)


def _chosen(index: Tensor, values: Sequence[int]) -> Tensor:
  """values[index] of 2^n as float32, by a tree of selections: no table in memory that each device would need."""
  half = len(values) // 2
  lower, upper = (_chosen(index, x) if half > 1 else float(x[0]) for x in (values[:half], values[half:]))
  return index.bitwise_and(half).ne(0).where(upper, lower).float()


def _scaled(numbers: Tensor, scales: Tensor, less: Tensor | None = None) -> Tensor:
  """numbers [.., n] · scales [.., s] - less [.., s]: each scale is that of n / s numbers in a row."""
  split = numbers.float().reshape(*scales.shape, numbers.shape[-1] // scales.shape[-1])
  y = split * scales.unsqueeze(-1)
  return (y if less is None else y - less.unsqueeze(-1)).flatten(-2)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
  """12 bytes -> 8 scales and 8 minima of 6 bits: four of each whole, of the others 4 bits, and 2 above the first's."""
  a, b, c = (packed[..., i : i + 4] for i in (0, 4, 8))
  scales = (a & 63).cat((c & 15) | ((a >> 6) << 4), dim=-1)
  minima = (b & 63).cat((c >> 4) | ((b >> 6) << 4), dim=-1)
  return scales.float(), minima.float()


def _q3_k(high: Tensor, low: Tensor, packed: Tensor, d: Tensor) -> Tensor:
  scales = _unpack(packed[..., :8], 4, 8) | (_unpack(packed[..., 8:], 2, 4) << 4)
  numbers = _unpack(low, 2, 32) | (_unpack(high, 1, 32) << 2)
  return _scaled(numbers.float() - 4, d * (scales.float() - 32))


def _q4_k(d: Tensor, least: Tensor, packed: Tensor, low: Tensor) -> Tensor:
  scales, minima = _six_bits(packed)
  return _scaled(_unpack(low, 4, 32), d * scales, least * minima)


def _q5_k(d: Tensor, least: Tensor, packed: Tensor, high: Tensor, low: Tensor) -> Tensor:
  scales, minima = _six_bits(packed)
  return _scaled(_unpack(low, 4, 32) | (_unpack(high, 1, 32) << 4), d * scales, least * minima)


def _q6_k(low: Tensor, high: Tensor, scales: Tensor, d: Tensor) -> Tensor:
  numbers = _unpack(low, 4, 64) | (_unpack(high, 2, 32) << 4)
  return _scaled(numbers.float() - 32, d * scales.float())


def _iq4_xs(d: Tensor, high: Tensor, low: Tensor, numbers: Tensor) -> Tensor:
  shifts = (Tensor.arange(8) * 2).cast(dtypes.uint16)
  scales = _unpack(low, 4, 1) | (((high >> shifts) & 3) << 4).cast(dtypes.uint8)
  return _scaled(_chosen(_unpack(numbers, 4, 16), NONLINEAR), d * (scales.float() - 32))


def _half_power(e: Tensor) -> Tensor:
  """2^(e - 128) of an E8M0 exponent e, as the bits of a float32: the two least are subnormal."""
  bits = e.cast(dtypes.uint32)
  return (bits < 2).where((bits + 1) << 21, (bits - 1) << 23).bitcast(dtypes.float32)


_ALL = (
  BlockFormat("F32", 1, (("<f4", 1),), lambda x: x),
  BlockFormat("F16", 1, ((HALF, 1),), lambda x: x),
  BlockFormat("BF16", 1, ((WORD, 1),), lambda x: x.bitcast(dtypes.bfloat16).float()),
  BlockFormat("Q4_0", 32, ((HALF, 1), (BYTE, 16)), lambda d, q: d * (_unpack(q, 4, 16).float() - 8)),
  BlockFormat(
    "Q4_1", 32, ((HALF, 1), (HALF, 1), (BYTE, 16)), lambda d, least, q: d * _unpack(q, 4, 16).float() + least
  ),
  BlockFormat(
    "Q5_0", 32, ((HALF, 1), (BYTE, 4), (BYTE, 16)),
    lambda d, high, q: d * ((_unpack(q, 4, 16) | (_unpack(high, 1, 1) << 4)).float() - 16),
  ),
  BlockFormat(
    "Q5_1", 32, ((HALF, 1), (HALF, 1), (BYTE, 4), (BYTE, 16)),
    lambda d, least, high, q: d * (_unpack(q, 4, 16) | (_unpack(high, 1, 1) << 4)).float() + least,
  ),
  BlockFormat("Q8_0", 32, ((HALF, 1), (SIGNED, 32)), lambda d, q: q.float() * d),
  BlockFormat(
    "Q2_K", SUPER, ((BYTE, 16), (BYTE, 64), (HALF, 1), (HALF, 1)),
    lambda s, q, d, least: _scaled(_unpack(q, 2, 32), d * (s & 15).float(), least * (s >> 4).float()),
  ),
  BlockFormat("Q3_K", SUPER, ((BYTE, 32), (BYTE, 64), (BYTE, 12), (HALF, 1)), _q3_k),
  BlockFormat("Q4_K", SUPER, ((HALF, 1), (HALF, 1), (BYTE, 12), (BYTE, 128)), _q4_k),
  BlockFormat("Q5_K", SUPER, ((HALF, 1), (HALF, 1), (BYTE, 12), (BYTE, 32), (BYTE, 128)), _q5_k),
  BlockFormat("Q6_K", SUPER, ((BYTE, 128), (BYTE, 64), (SIGNED, 16), (HALF, 1)), _q6_k),
  BlockFormat("IQ4_NL", 32, ((HALF, 1), (BYTE, 16)), lambda d, q: d * _chosen(_unpack(q, 4, 16), NONLINEAR)),
  BlockFormat("IQ4_XS", SUPER, ((HALF, 1), (WORD, 1), (BYTE, 4), (BYTE, 128)), _iq4_xs),
  BlockFormat("MXFP4", 32, ((BYTE, 1), (BYTE, 16)), lambda e, q: _half_power(e) * _chosen(_unpack(q, 4, 16), E2M1)),
  BlockFormat(  # as Hugging Face folders have it: the two weights of a byte are neighbours
    "MXFP4_PAIRS", 32, ((BYTE, 1), (BYTE, 16)), lambda e, q: _half_power(e) * _chosen(_unpack(q, 4, 1), E2M1)
  ),
)  # fmt: skip
FORMATS: dict[str, BlockFormat] = {f.name: f for f in _ALL}
