"""Placement of ops, moves between placements, and the local program. Importing it gives `UOp` its placement
function."""

from tinygrad import ops as _ops
from tinygrad.sharding import place as _place
from tinygrad.sharding.explain import Report, explain
from tinygrad.uop import place as _seat

_seat.register(_place.decide, _place.result, _place.deliver)
__all__ = ["Report", "_ops", "explain"]
