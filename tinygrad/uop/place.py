"""The seat of the placement function: `sharding/` registers into it at import, the methods of `UOp` call it.

So `uop/` never imports `sharding/`. Call through the module (`place.build(...)`), for the names are bound then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tinygrad.device import Sharding
  from tinygrad.dtype import DType
  from tinygrad.uop.ops import Ops, UOp


def _missing(*args: Any) -> Any:
  raise AssertionError("no placement function: tinygrad.sharding is not imported")


# op, dtype, src, arg -> the node on its sources, which have been brought to where it runs
build: Callable[[Ops, DType, tuple[UOp, ...], Any], UOp] = _missing
# the device of a node whose sources are placed
result: Callable[[UOp], str | Sharding | None] = _missing
# the cheapest form of a value at a placement, by implied moves
deliver: Callable[[UOp, str | Sharding], UOp] = _missing
