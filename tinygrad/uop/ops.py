"""The IR's names where programs of the field import them from: `from tinygrad.uop.ops import Ops, UOp`."""

from tinygrad.uop import AxisKind, GroupOp, Ops, UOp, Variable, print_graph

__all__ = ["AxisKind", "GroupOp", "Ops", "UOp", "Variable", "print_graph"]
