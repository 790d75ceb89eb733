"""Hashes of bytes (FIPS 202: SHA-3 Standard, https://doi.org/10.6028/NIST.FIPS.202), many messages at once."""

from typing import Self

from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.mixin.base import mismatch
from tinygrad.mixin.nn import NN

# (rate in bytes, the domain's suffix with the first bit of padding)
CONFIGURATIONS = {"sha3_224": (144, 0x06), "sha3_256": (136, 0x06), "shake_128": (168, 0x1F)}
# section 3.2.2, table 2: how far lane x + 5y is turned
OFFSETS = (0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14)
LEAF = 156  # bytes of a leaf of `hash`: with the number of bytes one block of shake_128


def _round_constants() -> list[int]:
  """Section 3.2.5: bit 2**j - 1 of round r is output j + 7r of the register x⁸ + x⁶ + x⁵ + x⁴ + 1."""
  out, state = [], 1
  for _ in range(24):
    word = 0
    for j in range(7):
      word |= (state & 1) << ((1 << j) - 1)
      state = (state << 1) ^ (0x171 if state & 0x80 else 0)
    out.append(word)
  return out


class Hashing(NN):
  __slots__ = ()

  def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
    """The hash of each row of bytes (.., n) -> (.., digest): "sha3_224", "sha3_256", "shake_128" (16 bytes), or (rate
    in bytes, suffix) with a digest of half the capacity, e.g. (136, 1) for Ethereum's. TypeError unless uint8."""
    if self.dtype is not dtypes.uint8 or not self.ndim:
      mismatch("keccak", "works on rows of uint8", [self.uop], "x.flatten().bitcast(dtypes.uint8)", TypeError)
    if isinstance(cfg, str) and cfg not in CONFIGURATIONS:
      raise ValueError(f"keccak: unknown hash {cfg!r}\n  fix: use {', '.join(CONFIGURATIONS)}, or (rate, suffix)")
    rate, suffix = CONFIGURATIONS[cfg] if isinstance(cfg, str) else cfg
    digest = 16 if cfg == "shake_128" else (200 - rate) // 2
    *lead, n = self.numpy_shape()
    blocks = n // rate + 1
    place = self.arange(blocks * rate)
    end = place.eq(n).where(suffix, 0).bitwise_xor(place.eq(blocks * rate - 1).where(0x80, 0)).cast(dtypes.uint8)
    message = self.reshape(prod(lead), n).pad((0, blocks * rate - n)).bitwise_xor(end).bitcast(dtypes.uint64)
    lanes = message.reshape(prod(lead), blocks, rate // 8).permute(1, 2, 0).pad(((0, 0), (0, 25 - rate // 8), (0, 0)))
    state = lanes[0].zeros_like()
    for block in range(blocks):
      state = state.bitwise_xor(lanes[block])._permutation()
    out = state._slice(0, 0, ceildiv(digest, 8)).transpose().bitcast(dtypes.uint8)
    return out._slice(1, 0, digest).reshape((*lead, digest))

  def _permutation(self) -> Self:
    """Keccak-f[1600] of lanes (25, rows): theta, rho and pi, chi, iota, 24 times (sections 3.2 and 3.3)."""
    state, number = self, self.arange(25)
    source = number.mod(5).mul(5).add(number.div(5, rounding_mode="floor").mul(3).add(number).mod(5))
    first, *others = (self.const(n, dtypes.uint64).reshape(1) for n in OFFSETS)
    turn = first.cat(*others).reshape(25, 1)
    for constant in _round_constants():
      rows = [state._slice(0, 5 * y, 5 * y + 5) for y in range(5)]
      column = rows[0].bitwise_xor(rows[1]).bitwise_xor(rows[2]).bitwise_xor(rows[3]).bitwise_xor(rows[4]).contiguous()
      after = column.roll(-1, 0)
      mixed = column.roll(1, 0).bitwise_xor(after.lshift(1)).bitwise_xor(after.rshift(63))
      state = state.bitwise_xor(mixed.repeat(5, 1))
      state = state.lshift(turn).bitwise_or(turn.eq(0).where(0, state.rshift(turn.sub(64, reverse=True).mod(64))))
      grid = state.contiguous()._rows(source).reshape(5, 5, state.shape[1]).contiguous()
      state = grid.bitwise_xor(grid.roll(-1, 1).bitwise_not().bitwise_and(grid.roll(-2, 1))).reshape(state.shape)
      state = state.bitwise_xor(number.eq(0).where(self.const(constant, dtypes.uint64), 0).reshape(25, 1)).contiguous()
    return state

  def hash(self) -> Self:
    """16 bytes that tell the elements' bytes apart from others: shake_128 of each 156 (zeros behind the last) and the
    number of all, of these digests again, and so on, up to one."""
    data = self.contiguous().flatten().bitcast(dtypes.uint8)
    while True:
      n = int(data.numel())
      chunks = max(1, ceildiv(n, LEAF))
      rows = data.pad((0, chunks * LEAF - n)).reshape(chunks, LEAF)
      number = self.full((chunks, 1), n, dtypes.uint64).bitcast(dtypes.uint8)
      data = rows.cat(number, dim=1).keccak("shake_128").flatten()
      if chunks == 1:
        return data
