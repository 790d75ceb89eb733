"""Chooses the plan of a nest from the strides of its loads and stores."""

from __future__ import annotations

from tinygrad.codegen.plan import Plan
from tinygrad.device import Target
from tinygrad.uop.ops import UOp


def plan_nest(stores: tuple[UOp, ...], target: Target) -> Plan:
  return Plan(stores[0].src[2:])
