"""The seat of the placement function: `sharding/` registers into it at import, the methods of `UOp` call it.

So `uop/` never imports `sharding/`. Call through the module (`place.decide(...)`), for the names are bound at
registration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tinygrad.device import Sharding
  from tinygrad.dtype import DType
  from tinygrad.uop.ops import Ops, UOp


@dataclass(frozen=True, slots=True)
class Decision:
  """Where an op runs.

  `required`: the placement of each source. `result`: the placement of the node built on `src`; it owes a reduction if
  `result.pending`.
  `src`: the sources brought to `required` in the cheapest way (a move may lie below an EXPAND, a contraction's MUL may
  be built anew);
  where nothing has to move these are the sources as given. A hook builds `op` on `src`, and needs nothing else.
  """

  required: tuple[str | Sharding | None, ...]
  result: str | Sharding | None
  src: tuple[UOp, ...]


def _missing(*args: Any) -> Any:
  raise AssertionError("no placement function: tinygrad.sharding is not imported")


decide: Callable[[Ops, DType, tuple[UOp, ...], Any], Decision] = _missing  # op, dtype, src, arg of a node to be built
result: Callable[[UOp], str | Sharding | None] = _missing  # the device of a node whose sources are placed
deliver: Callable[[UOp, str | Sharding], UOp] = (
  _missing  # the cheapest form of a value at a placement, by implied moves
)


def register(
  decide_: Callable[[Ops, DType, tuple[UOp, ...], Any], Decision],
  result_: Callable[[UOp], str | Sharding | None],
  deliver_: Callable[[UOp, str | Sharding], UOp],
) -> None:
  """Binds the three functions; called once, by `tinygrad.sharding`."""
  global decide, result, deliver
  decide, result, deliver = decide_, result_, deliver_
