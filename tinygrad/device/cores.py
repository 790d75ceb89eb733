"""Matrix cores: products D = A·B + D that the lanes of a warp, or of several, compute together, as data.

Which element of a matrix a lane has in a register is a formula: both numbers are written in digits, the most
significant first, and each digit moves the element by so many rows and columns. The formulas of CUDA's are those of the
PTX ISA, section "Matrix multiply-accumulate operation using mma instruction", its figures of fragments. An operand that
a core reads from a group's memory lies there as the section "Asynchronous warpgroup level matrix" has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod

Digit = tuple[int, int, int]  # (how many values it has, rows, columns that one more of it is further)


@dataclass(frozen=True, slots=True)
class Fragment:
  """A lane's part of a matrix: the digits of its lane's number, and of a register's."""

  lanes: tuple[Digit, ...]
  registers: tuple[Digit, ...]

  @property
  def length(self) -> int:
    """Elements that a lane has."""
    return int(prod(n for n, _, _ in self.registers))

  def at(self, lane: int, register: int) -> tuple[int, int]:
    """The element's row and column."""
    rows = columns = 0
    for number, digits in ((lane, self.lanes), (register, self.registers)):
      for count, down, right in digits[::-1]:
        number, digit = divmod(number, count)
        rows, columns = rows + digit * down, columns + digit * right
    return rows, columns

  def places(self) -> dict[tuple[int, int], tuple[int, int]]:
    """By row and column, the lane and the register."""
    lanes = int(prod(n for n, _, _ in self.lanes))
    return {self.at(*x): x for x in itertools.product(range(lanes), range(self.length))}


WIDTH = 64  # elements of two bytes in a row of a tile
CHUNK = 8  # of 16 bytes
EIGHT_ROWS = 1024  # bytes of them, of which the places where tiles begin are multiples


def swizzled(row: Any, column: Any, rows: int) -> Any:
  """Where an element of a tile lies, by numbers or by indices: in rows of 128 bytes, `rows` of them for WIDTH columns,
  then those of the next. The eight chunks of 16 bytes of a row change places, to the exclusive or of their number and
  the row's, so that chunks of one column are in different banks."""
  chunk = column % WIDTH // 8
  one, two, four = ((row // bit + chunk // bit) % 2 for bit in (1, 2, 4))
  return column // WIDTH * (rows * WIDTH) + row * WIDTH + (one + two * 2 + four * 4) * 8 + column % 8


@dataclass(frozen=True, slots=True)
class SwizzledTile:
  """A matrix that a core reads from a group's memory, `swizzled`: its rows there go along k (`along_k`), or along the
  other loop."""

  along_k: bool
  lanes: tuple[Digit, ...] = ()  # a lane holds nothing of it but where it begins
  registers: tuple[Digit, ...] = ()
  length: int = 1

  def place(self, side: int, k: int, depth: int) -> int:
    """Where an element lies, from the first, of a matrix of `depth` elements along k."""
    return int(swizzled(side, k, 8) if self.along_k else swizzled(k, side, depth))


# of a multiprocessor: registers, threads of a group, registers of a thread beside its sums, warps that hide what each
# waits for; in a cycle: products of operands of two bytes, bytes of a group's memory, and of the cache of all
REGISTERS, THREADS, BESIDE, HIDDEN = 65536, 512, 40, 12
PRODUCTS, LOCAL, NEAR = 2048, 128, 32


@dataclass(frozen=True, slots=True)
class Core:
  """One kind of product: A of m rows and k columns, B of k and n, of type `operand`; D is of `result`. `word`: elements
  of an operand in a register of 32 bits, neighbours by their registers' numbers."""

  name: str
  m: int
  n: int
  k: int
  operand: DType
  a: Fragment | SwizzledTile
  b: Fragment | SwizzledTile
  d: Fragment
  result: DType = dtypes.float32
  lanes: int = 32
  eights: bool = False  # of an operand in a group's memory a lane names eight neighbours, and gets what it holds

  def __str__(self) -> str:
    return self.name

  @property
  def late(self) -> bool:
    """Whether a product goes on while the next is prepared: it has come when that has been begun, the last if asked."""
    return isinstance(self.b, SwizzledTile)

  @property
  def across(self) -> bool:
    """Whether a tile's rows go along the other loop: of columns beyond the first it has to be as deep as a product."""
    return any(isinstance(x, SwizzledTile) and not x.along_k for x in (self.a, self.b))

  def takes(self, copies: Sequence[bool]) -> bool:
    """Whether it reads what a group copies, of which each goes along k or not: as many tiles. What lanes hold they read
    from wherever it is."""
    tiles = [x.along_k for x in (self.a, self.b) if isinstance(x, SwizzledTile)]
    return not tiles or tiles == [*copies]

  @property
  def teams(self) -> int:
    """So many that multiply rows of their own by the same columns have registers for it, and are a group at most."""
    return min(REGISTERS // (self.lanes * (self.d.length + BESIDE)), THREADS // self.lanes)

  def cycles(self, teams: int, groups: int, units: int, fit: int) -> float:
    """Of one product along k, of so many `groups` of `teams` on `units` multiprocessors, whose memory has room for
    `fit` at once. The longer of what each multiprocessor does, a group after the other, and of what groups read of the
    cache that all share. On a multiprocessor a team multiplies, a group copies both operands to its memory, and teams
    read of them their rows and all columns; too few warps leave a part of the time open."""
    rows, of_step = teams * self.m, self.k * self.operand.itemsize
    turns, copied, read = -(-groups // units), (rows + self.n) * of_step, (rows + teams * self.n) * of_step
    warps = min(turns, fit, self.teams // teams) * teams * self.lanes // 32
    each = max(rows * self.n * self.k / PRODUCTS, (copied + read) / LOCAL) * max(HIDDEN / warps, 1)
    return max(turns * each, groups * copied / (units * NEAR))

  @property
  def word(self) -> int:
    return 4 // self.operand.itemsize


_D = Fragment(((8, 1, 0), (4, 0, 2)), ((2, 8, 0), (2, 0, 1)))
_A16 = Fragment(((8, 1, 0), (4, 0, 2)), ((2, 0, 8), (2, 8, 0), (2, 0, 1)))
_B16 = Fragment(((8, 0, 1), (4, 2, 0)), ((2, 8, 0), (2, 1, 0)))
_A32 = Fragment(((8, 1, 0), (4, 0, 1)), ((2, 0, 4), (2, 8, 0)))
_B32 = Fragment(((8, 0, 1), (4, 1, 0)), ((2, 4, 0),))
BF16, F16 = (
  Core(f"m16n8k16.{d.name}", 16, 8, 16, d, _A16, _B16, _D, eights=True) for d in (dtypes.bfloat16, dtypes.float16)
)
TF32 = Core("m16n8k8.tf32", 16, 8, 8, dtypes.float32, _A32, _B32, _D)  # rounds its operands to 11 bits


_WARPS = (4, 16, 0), *_D.lanes  # have 16 rows each, one after the other


def warpgroup_core(k: int, n: int, operand: DType, a: str, b: str) -> Core:
  """Steps of wgmma. `a`, `b`: how the operands lie, in tiles along k or n, or (A) in registers."""
  held, tiles = Fragment(_WARPS, ((k // 16, 0, 16), *_A16.registers)), {x: SwizzledTile(x == "k") for x in "kn"}
  d = Fragment(_WARPS, ((n // 8, 0, 8), *_D.registers))
  return Core(f"wgmma.m64n{n}k{k}.{operand.name}.{a}{b}", 64, n, k, operand, tiles.get(a, held), tiles[b], d, lanes=128)


_halves = (dtypes.bfloat16, dtypes.float16)
_ways = (
  *itertools.product((WIDTH,), (256, 128, 64), _halves, "kn", "kn"),
  *itertools.product((WIDTH,), (256, 128, 64, 32), _halves, "r", "kn"),
  *itertools.product((WIDTH // 2,), (256, 128, 64), _halves, "r", "n"),
)
WARPGROUP = tuple(itertools.starmap(warpgroup_core, _ways))


def cuda_cores(capability: tuple[int, int]) -> Sequence[Core]:
  """What mma.sync offers from sm_80 on, and before that wgmma, which sm_90a has."""
  return (*WARPGROUP * (capability == (9, 0)), BF16, F16, TF32) if capability >= (8, 0) else ()
