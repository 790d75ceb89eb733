"""Formats of quantised weights, as data: which fields a block has, and its weights as expressions over them.

A row of a matrix is a row of blocks; each holds its weights as small integers and what these are multiplied by. A
format names the fields in the order in which they lie in a file, and how they make integers, scales and what is less:
ordinary tensor arithmetic, so a kernel that uses a weight computes it from the fields that it reads, and no float copy
is made. A product is one of floats (`tensor`), or of integers with activations that are rounded, too (`Rounded`).

Layouts: ggml's formats as the GGUF specification names them; E8M0 and E2M1 of MXFP4 are the OCP Microscaling Formats'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy
from tinygrad.tensor import Tensor

# The 16 values of ggml's nonlinear nibbles, and twice those of E2M1.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
SUPER = 256  # weights of a block of the K formats
SEVERAL = 8  # rows of activations for which weights are unpacked once for all
HALF, BYTE, SIGNED, WORD = "<f2", "u1", "i1", "<u2"
TYPES = {HALF: dtypes.float16, BYTE: dtypes.uint8, SIGNED: dtypes.int8, WORD: dtypes.uint16}


Unpack = Callable[[Tensor, int, int], Tensor]  # as `_unpack`


class BlockParts(NamedTuple):
  """Blocks whose weights are numbers [.., blocks, weights] · scales [.., blocks, s] - less [.., blocks, s]: each scale
  is that of weights / s numbers in a row. Without scales the numbers are the weights. `numbers` is told how bytes are
  unpacked: all numbers in them, or those of a turn."""

  numbers: Callable[[Unpack], Tensor]
  scales: Tensor | None = None
  less: Tensor | None = None

  def tensor(self) -> Tensor:
    """[.., blocks, weights], float32."""
    numbers = self.numbers(_unpack)
    return numbers.float() if self.scales is None else _scaled(numbers, self.scales, self.less)


class Rounded(NamedTuple):
  """Activations as whole numbers of -127 to 127 [.., blocks, n] and a scale for each block [.., blocks, 1]."""

  numbers: Tensor
  scales: Tensor

  @staticmethod
  def of(x: Tensor, block: int) -> Rounded:
    """x [.., columns], to the nearest; the largest of a block is 127 of its scale."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    scales = blocks.abs().max(-1, keepdim=True) / 127
    inverse = (scales == 0).where(0, 1 / scales)
    return Rounded((blocks * inverse).round().cast(dtypes.int8), scales)


@dataclass(frozen=True, slots=True)
class BlockFormat:
  """Blocks of `weights` weights; `fields` are (numpy type, elements), packed.

  A tensor's blocks are bytes [.., blocks, nbytes], so that a row of them is looked up or sent as one; where a block is
  one number, [.., blocks, 1] of its type. `decode` takes each field [.., blocks, elements], float16 already as float32.
  """

  name: str
  weights: int
  fields: tuple[tuple[str, int], ...]
  decode: Callable[..., BlockParts]
  words: bool = True  # four of its integers are computed as one word, and `times` is there
  beside: int = 32  # integers in a row that are made of bytes in a row
  turns: int = 1  # rows of these in a row that are made of the same bytes, of other bits of these

  @property
  def nbytes(self) -> int:
    return sum(numpy.dtype(kind).itemsize * n for kind, n in self.fields)

  def view(self, data: memoryview, offset: int, shape: tuple[int, ...]) -> Any:
    """The blocks of a tensor of `shape` that lies at `offset`: a view, nothing is read."""
    kind, n = (self.fields[0][0], 1) if len(self.fields) == 1 else (BYTE, self.nbytes)
    return numpy.ndarray((*shape[:-1], shape[-1] // self.weights, n), kind, data, offset)

  def tensor(self, blocks: Tensor) -> Tensor:
    """The weights [.., columns] as an expression over the blocks."""
    return self.parts(blocks).tensor().flatten(-2)

  def times(self, blocks: Tensor, x: Tensor) -> Tensor:
    """x [.., columns] by the weights [.., rows, columns] of blocks [.., rows, blocks, nbytes]: [.., rows]. The
    activations of a block are rounded; products of integers are added up four at a time, and these sums as floats.
    """
    if len(blocks.shape) == 3 and math.prod(map(int, x.shape[:-1])) >= SEVERAL:
      return self._times_several(blocks, x.flatten(0, -2)).reshape(*x.shape[:-1], blocks.shape[0])
    numbers, scales, less = self.parts(blocks)
    assert scales is not None and self.words, self.name
    groups, beside = int(scales.shape[-1]), self.beside
    per = self.weights // groups  # integers of one scale
    rounded = Rounded.of(x, self.weights)
    of_x, by = rounded.numbers.contiguous().unsqueeze(-3), rounded.scales.contiguous().unsqueeze(-3)
    rest, runs = self.weights // beside // self.turns, max(per // beside, 1)  # runs in a row have the same scale
    by_group = (scales * by).unflatten(-1, (rest, self.turns // runs, max(beside // per, 1)))
    # [.., rows, blocks, rest, turns, words, 4]
    ours = of_x.reshape(*of_x.shape[:-1], rest, self.turns, beside // 4, 4).cast(dtypes.int32)
    sums: list[Tensor] = []
    for t in range(self.turns):
      theirs = numbers(self._unpack_turn(t)) if self.turns > 1 else numbers(_unpack)
      theirs = theirs.reshape(*theirs.shape[:-1], rest, beside // 4, 4).cast(dtypes.int32)
      sums.append((theirs * ours[..., t, :, :]).sum(-1))
    whole = [sum(sums[i + 1 : i + runs], sums[i]).float() for i in range(0, self.turns, runs)]
    parts = [w * self._by_word(by_group[..., i, :], per // 4) for i, w in enumerate(whole)]
    y = sum(parts[1:], parts[0]).sum((-1, -2, -3))
    if less is None:
      return y
    of_group = of_x.reshape(*of_x.shape[:-1], groups, per).cast(dtypes.int32)
    total = (of_group.sum(-1).float() * by).contiguous()  # of each group of activations
    return y - (less * total).sum((-1, -2))

  def _times_several(self, blocks: Tensor, x: Tensor) -> Tensor:
    """`times` of x [n, columns], n side by side, for each of which a word of the weights is multiplied at once, as
    unsigned bytes: they are unpacked once for all. The integers of one scale are added up as integers."""
    numbers, scales, less = self.parts(blocks)
    assert scales is not None and self.words, self.name
    groups = int(scales.shape[-1])
    words = (groups, self.weights // groups // 4)
    rounded = Rounded.of(x, self.weights)
    ours = rounded.numbers.unflatten(-1, (*words, 4)).permute(1, 2, 3, 0, 4).contiguous().cast(dtypes.int32)
    total = ours.sum((2, 4)).contiguous()  # [blocks, groups, n]
    theirs, signed = numbers(_unpack).unflatten(-1, (*words, 1, 4)), numbers(_unpack).dtype is dtypes.int8
    if signed:
      theirs = theirs.bitcast(dtypes.uint8).bitwise_xor(128)  # 128 more than they are
    sums = (theirs.cast(dtypes.int32) * ours).sum(-1).sum(-2)  # [rows, blocks, groups, n]
    sums = sums - total * 128 if signed else sums
    y = sums.float() * scales.unsqueeze(-1)
    y = y if less is None else y - less.unsqueeze(-1) * total.float()
    by = rounded.scales.permute(1, 2, 0).contiguous()  # [blocks, 1, n]
    return (y * by).sum((1, 2)).transpose(0, 1)

  def _unpack_turn(self, turn: int) -> Unpack:
    """What `_unpack` gives of one turn: [.., rest · beside]."""

    def unpack(x: Tensor, bits: int, group: int) -> Tensor:
      if group < self.beside:
        return _unpack(x, bits, group).unflatten(-1, (-1, self.turns, self.beside))[..., turn, :].flatten(-2)
      of_group = group // self.beside  # parts of a group that are turns one after the other
      groups = self.turns * bits // 8 // of_group  # that are so
      g, shift, part = turn // of_group // (8 // bits), turn // of_group % (8 // bits), turn % of_group
      split = x.reshape(*x.shape[:-1], x.shape[-1] // group // groups, groups, of_group, self.beside)
      return (split[..., g, part, :] >> shift * bits).bitwise_and((1 << bits) - 1).flatten(-2)

    return unpack

  def _by_word(self, scales: Tensor, words: int) -> Tensor:
    """Scales in a row, each for so many words: what a word of `beside` integers is multiplied by."""
    word, *others = (scales[..., i : i + 1] for i in range(scales.shape[-1]))
    for i, other in enumerate(others, 1):
      word = (Tensor.arange(self.beside // 4) < i * words).where(word, other)
    return word

  def parts(self, blocks: Tensor) -> BlockParts:
    parts, at = [blocks], 0
    if len(self.fields) > 1:
      parts = []
      for kind, n in self.fields:
        end = at + n * TYPES[kind].itemsize
        parts.append(blocks[..., at:end].bitcast(TYPES[kind]))
        at = end
    return self.decode(*(x.float() if x.dtype is dtypes.float16 else x for x in parts))


def _unpack(x: Tensor, bits: int, group: int) -> Tensor:
  """[.., n] bytes -> [.., n * 8 / bits] numbers of `bits` bits: of each `group` bytes all lowest bits first. So of
  wider numbers."""
  shifts = (Tensor.arange(8 * x.dtype.itemsize // bits) * bits).cast(x.dtype).unsqueeze(-1)
  parts = x.reshape(*x.shape[:-1], x.shape[-1] // group, 1, group).rshift(shifts).bitwise_and((1 << bits) - 1)
  return parts.flatten(-3)


def _chosen(index: Tensor, values: Sequence[int]) -> Tensor:
  """values[index] of 2^n as int8, by a tree of selections: no table in memory that each device would need."""
  half = len(values) // 2
  lower, upper = (
    _chosen(index, x) if half > 1 else Tensor(x[0], dtype=dtypes.int8) for x in (values[:half], values[half:])
  )
  return index.bitwise_and(half).ne(0).where(upper, lower)


def _signed(numbers: Tensor, zero: int) -> Tensor:
  return numbers.cast(dtypes.int8) - zero


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


def _q3_k(high: Tensor, low: Tensor, packed: Tensor, d: Tensor) -> BlockParts:
  scales = _unpack(packed[..., :8], 4, 8) | (_unpack(packed[..., 8:], 2, 4) << 4)

  def numbers(unpack: Unpack) -> Tensor:
    return _signed(unpack(low, 2, 32) | (unpack(high, 1, 32) << 2), 4)

  return BlockParts(numbers, d * (scales.float() - 32))


def _q4_k(d: Tensor, least: Tensor, packed: Tensor, low: Tensor) -> BlockParts:
  scales, minima = _six_bits(packed)
  return BlockParts(lambda unpack: unpack(low, 4, 32), d * scales, least * minima)


def _q5_k(d: Tensor, least: Tensor, packed: Tensor, high: Tensor, low: Tensor) -> BlockParts:
  scales, minima = _six_bits(packed)
  return BlockParts(lambda unpack: unpack(low, 4, 32) | (unpack(high, 1, 32) << 4), d * scales, least * minima)


def _q6_k(low: Tensor, high: Tensor, scales: Tensor, d: Tensor) -> BlockParts:
  def numbers(unpack: Unpack) -> Tensor:
    return _signed(unpack(low, 4, 64) | (unpack(high, 2, 32) << 4), 32)

  return BlockParts(numbers, d * scales.float())


def _iq4_xs(d: Tensor, high: Tensor, low: Tensor, numbers: Tensor) -> BlockParts:
  shifts = (Tensor.arange(8) * 2).cast(dtypes.uint16)
  scales = _unpack(low, 4, 1) | (((high >> shifts) & 3) << 4).cast(dtypes.uint8)
  return BlockParts(lambda unpack: _chosen(unpack(numbers, 4, 16), NONLINEAR), d * (scales.float() - 32))


def _five_bits(unpack: Unpack, low: Tensor, high: Tensor) -> Tensor:
  return unpack(low, 4, 16) | (unpack(high, 1, 1).cast(dtypes.uint8) << 4)


def _half_power(e: Tensor) -> Tensor:
  """2^(e - 128) of an E8M0 exponent e, as the bits of a float32: the two least are subnormal."""
  bits = e.cast(dtypes.uint32)
  return (bits < 2).where((bits + 1) << 21, (bits - 1) << 23).bitcast(dtypes.float32)


_ALL = (
  BlockFormat("F32", 1, (("<f4", 1),), lambda x: BlockParts(lambda _: x), False),
  BlockFormat("F16", 1, ((HALF, 1),), lambda x: BlockParts(lambda _: x), False),
  BlockFormat("BF16", 1, ((WORD, 1),), lambda x: BlockParts(lambda _: x.bitcast(dtypes.bfloat16)), False),
  BlockFormat(
    "Q4_0", 32, ((HALF, 1), (BYTE, 16)), lambda d, q: BlockParts(lambda unpack: _signed(unpack(q, 4, 16), 8), d),
    beside=16, turns=2,
  ),
  BlockFormat(
    "Q4_1", 32, ((HALF, 1), (HALF, 1), (BYTE, 16)), lambda d, m, q: BlockParts(lambda unpack: unpack(q, 4, 16), d, -m),
    beside=16, turns=2,
  ),
  BlockFormat(
    "Q5_0", 32, ((HALF, 1), (WORD, 2), (BYTE, 16)),
    lambda d, high, q: BlockParts(lambda unpack: _signed(_five_bits(unpack, q, high), 16), d), beside=16, turns=2,
  ),
  BlockFormat(
    "Q5_1", 32, ((HALF, 1), (HALF, 1), (WORD, 2), (BYTE, 16)),
    lambda d, m, high, q: BlockParts(lambda unpack: _five_bits(unpack, q, high), d, -m), beside=16, turns=2,
  ),
  BlockFormat("Q8_0", 32, ((HALF, 1), (SIGNED, 32)), lambda d, q: BlockParts(lambda _: q, d)),
  BlockFormat(
    "Q2_K", SUPER, ((BYTE, 16), (BYTE, 64), (HALF, 1), (HALF, 1)),
    lambda s, q, d, least: BlockParts(
      lambda unpack: unpack(q, 2, 32), d * (s & 15).float(), least * (s >> 4).float()
    ), turns=4,
  ),
  BlockFormat("Q3_K", SUPER, ((BYTE, 32), (BYTE, 64), (BYTE, 12), (HALF, 1)), _q3_k, turns=8),
  BlockFormat("Q4_K", SUPER, ((HALF, 1), (HALF, 1), (BYTE, 12), (BYTE, 128)), _q4_k, turns=2),
  BlockFormat("Q5_K", SUPER, ((HALF, 1), (HALF, 1), (BYTE, 12), (BYTE, 32), (BYTE, 128)), _q5_k, turns=8),
  BlockFormat("Q6_K", SUPER, ((BYTE, 128), (BYTE, 64), (SIGNED, 16), (HALF, 1)), _q6_k, turns=4),
  BlockFormat(
    "IQ4_NL", 32, ((HALF, 1), (BYTE, 16)),
    lambda d, q: BlockParts(lambda unpack: _chosen(unpack(q, 4, 16), NONLINEAR), d), beside=16, turns=2,
  ),
  BlockFormat("IQ4_XS", SUPER, ((HALF, 1), (WORD, 1), (BYTE, 4), (BYTE, 128)), _iq4_xs, beside=16, turns=2),
  BlockFormat(
    "MXFP4", 32, ((BYTE, 1), (BYTE, 16)),
    lambda e, q: BlockParts(lambda unpack: _chosen(unpack(q, 4, 16), E2M1), _half_power(e)), beside=16, turns=2,
  ),
  BlockFormat(  # as Hugging Face folders have it: the two weights of a byte are neighbours
    "MXFP4_PAIRS", 32, ((BYTE, 1), (BYTE, 16)),
    lambda e, q: BlockParts(lambda unpack: _chosen(unpack(q, 4, 1), E2M1), _half_power(e)),
  ),
)  # fmt: skip
FORMATS: dict[str, BlockFormat] = {f.name: f for f in _ALL}
