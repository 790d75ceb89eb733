"""The IR. Importing it installs the simplifier and the checks behind `UOp`'s hooks."""

from tinygrad.uop import spec as _spec
from tinygrad.uop import symbolic as _symbolic
from tinygrad.uop.ops import AxisKind, GroupOp, Ops, UOp, Variable

__all__ = ["AxisKind", "GroupOp", "Ops", "UOp", "Variable", "_spec", "_symbolic"]
