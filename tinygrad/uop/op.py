"""The ops, their groups, and what some of them have as their arg."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tinygrad.device import Placement, in_short
from tinygrad.helpers import Members

# Every op, from the tensor level to the kernel level. IntEnum: hashing and comparing are hot.
Ops = enum.IntEnum(
  "Ops",
  "UNIQUE CONST IOTA BUFFER VARIABLE BIND HOLE "  # leaves
  "NEG RECIP EXP LOG SIN COS SQRT TANH ERF FLOOR CEIL ROUND NOT CAST BITCAST "  # unary
  "ADD SUB MUL FDIV IDIV MOD MAX MIN POW AND OR XOR SHL SHR CMPLT CMPEQ CMPNE "  # binary
  "WHERE THREEFRY "  # of three and four
  "RESHAPE PERMUTE EXPAND PAD SHRINK FLIP CAT WINDOW SPREAD "  # movement
  "GATHER SCATTER REDUCE "  # indexing and reduction
  "CUSTOM CALL "  # what a user defines
  "MOVE SHARD COLLECTIVE "  # placement
  "ASSIGN AFTER WAIT CONTIGUOUS DETACH CONSTRAIN SINK "  # effects and structure
  "PARAM PEER RANGE ENDRANGE INDEX LOAD STORE FOLD ONE_HOT ACC SCRATCH BARRIER VECTORIZE EXTRACT DOT "  # kernels
  "COPY COMMIT SHUFFLE MMA",
  module=__name__,
)
Ops.__repr__ = lambda op: f"Ops.{op.name}"  # type: ignore[method-assign, attr-defined]
if not TYPE_CHECKING:
  Ops = Members(Ops)  # looking one up is hot, too


class GroupOp:
  """Sets of ops that are asked for together."""

  Unary = frozenset(Ops(i) for i in range(Ops.NEG, Ops.ADD))
  Binary = frozenset(Ops(i) for i in range(Ops.ADD, Ops.WHERE))
  Elementwise = Unary | Binary | {Ops.WHERE, Ops.THREEFRY}
  Movement = frozenset(Ops(i) for i in range(Ops.RESHAPE, Ops.GATHER))
  View = (Movement - {Ops.PAD, Ops.CAT, Ops.SPREAD}) | {Ops.CONSTRAIN}  # a part of one source: nothing is computed
  Remapping = frozenset(Ops(i) for i in range(Ops.PAD, Ops.GATHER))  # a dim's index map is not the identity
  Rearranging = Movement - Remapping  # a dim's index map is the identity, up to which dims there are
  KeepsPlacement = Elementwise | {Ops.CONTIGUOUS, Ops.DETACH, Ops.CONSTRAIN}  # sources placed alike: so is the result
  Comparison = frozenset((Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE))
  Leaf = frozenset((Ops.UNIQUE, Ops.CONST, Ops.IOTA, Ops.BUFFER, Ops.VARIABLE, Ops.HOLE))
  # in kernels
  Argument = frozenset((Ops.PARAM, Ops.VARIABLE))  # what a kernel is called with
  Memory = frozenset((Ops.PARAM, Ops.SCRATCH, Ops.PEER))  # what an INDEX points into
  Ordering = frozenset((Ops.SINK, Ops.AFTER))  # have stores among their sources, which run in order
  Place = frozenset((Ops.INDEX, Ops.ACC))  # what is loaded from and stored to
  Linear = (  # what linear code is made of
    Elementwise | Argument | Memory | Place
    | {Ops.DOT, Ops.MMA, Ops.VECTORIZE, Ops.EXTRACT, Ops.FOLD, Ops.LOAD, Ops.STORE, Ops.RANGE, Ops.ENDRANGE}
    | {Ops.BARRIER, Ops.COPY, Ops.COMMIT, Ops.SHUFFLE}
  )  # fmt: skip


# ops that hold ranges, and where these begin among their sources
RANGES_FROM = {Ops.STORE: 2, Ops.FOLD: 1, Ops.MMA: 4}


# What a RANGE of a kernel is: an index of the result (LOOP), or one that is reduced; codegen adds how it runs: unrolled
# into registers (UPCAST; CHAIN: of a reduction, one after the other), lanes of a vector, on a GPU the grid of work
# groups (GLOBAL) and the threads of one (LOCAL).
AxisKind = enum.Enum("AxisKind", "LOOP REDUCE UPCAST VECTOR GLOBAL LOCAL CHAIN CLUSTER", module=__name__)
AxisKind.__repr__ = lambda kind: f"AxisKind.{kind.name}"  # type: ignore[method-assign, attr-defined]
AxisKind.__hash__ = object.__hash__  # type: ignore[method-assign]


class BufferArg(NamedTuple):
  """What a BUFFER is: `uid` tells buffers apart; the logical shape; where it lives, for life."""

  uid: int
  shape: tuple[int, ...]
  device: Placement

  def __repr__(self) -> str:
    return f"BufferArg(uid={self.uid}, shape={self.shape}, device={in_short(self.device)})"


@dataclass(frozen=True, slots=True)
class ParamArg:
  """Memory of a kernel, `size` elements (upper bound): what it is called with, a buffer or, of `peers`, a table of
  every device's pointer; or, by a slot below 0, a row's own."""

  slot: int
  size: int
  peers: bool = False

  @property
  def given(self) -> bool:
    """Whether the kernel is called with it."""
    return self.slot >= 0


class PieceArg(NamedTuple):
  """A VARIABLE's arg that says which piece of a kernel is to be done, of those that `threads` share out."""

  name: str
  min_val: int
  max_val: int
  threads: int


@dataclass(frozen=True, slots=True)
class Move:
  """Bring a value to `device`. `pinned`: the user wrote it (shard, to, assign); else `place` may decide anew. `hinted`:
  for the hint below it, or by automatic placement, not for the user; `whole`: for an op that takes a cut dim whole."""

  device: Placement
  pinned: bool
  hinted: bool = False
  whole: bool = False

  def __repr__(self) -> str:
    return f"Move(device={in_short(self.device)}, pinned={self.pinned})"
