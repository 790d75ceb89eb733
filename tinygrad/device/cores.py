"""Matrix cores: small products D = A·B + D that the lanes of a warp compute together, as data.

Which element of a matrix a lane has in a register is a formula: both numbers are written in digits, the most
significant first, and each digit moves the element by so many rows and columns. The formulas of CUDA's are those of the
PTX ISA, section "Matrix multiply-accumulate operation using mma instruction", its figures of fragments.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Core:
  """One kind of product: A of m rows and k columns, B of k and n, of type `operand`; D is of `result`. `word`: elements
  of an operand in a register of 32 bits, neighbours by their registers' numbers."""

  name: str
  m: int
  n: int
  k: int
  operand: DType
  a: Fragment
  b: Fragment
  d: Fragment
  result: DType = dtypes.float32
  lanes: int = 32

  def __str__(self) -> str:
    return self.name

  @property
  def word(self) -> int:
    return 4 // self.operand.itemsize


_D = Fragment(((8, 1, 0), (4, 0, 2)), ((2, 8, 0), (2, 0, 1)))
_A16 = Fragment(((8, 1, 0), (4, 0, 2)), ((2, 0, 8), (2, 8, 0), (2, 0, 1)))
_B16 = Fragment(((8, 0, 1), (4, 2, 0)), ((2, 8, 0), (2, 1, 0)))
_A32 = Fragment(((8, 1, 0), (4, 0, 1)), ((2, 0, 4), (2, 8, 0)))
_B32 = Fragment(((8, 0, 1), (4, 1, 0)), ((2, 4, 0),))
BF16, F16 = (Core(f"m16n8k16.{d.name}", 16, 8, 16, d, _A16, _B16, _D) for d in (dtypes.bfloat16, dtypes.float16))
TF32 = Core("m16n8k8.tf32", 16, 8, 8, dtypes.float32, _A32, _B32, _D)  # rounds its operands to 11 bits


def cuda_cores(capability: tuple[int, int]) -> Sequence[Core]:
  """What mma.sync offers from sm_80 on."""
  return (BF16, F16, TF32) if capability >= (8, 0) else ()
