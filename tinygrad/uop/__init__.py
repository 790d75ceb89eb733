"""The IR, as the rest uses it. Importing it installs the simplifier and the checks behind `UOp`'s hooks."""

from tinygrad.uop.cards import CARDS, Factors, GradientRule, Hooks, PartialRule, define, evaluate, factor_rule
from tinygrad.uop.dims import as_dims, is_int, render_shape, simplify_sint, sint, smax, smin, upper
from tinygrad.uop.local import DEVICE_NUM, device_number, lengths, start
from tinygrad.uop.node import (
  UOp,
  Variable,
  buffer_of,
  describe,
  exact,
  give_memory,
  map_arg,
  mesh_of,
  print_graph,
  stored,
  viewed,
)
from tinygrad.uop.op import AxisKind, BufferArg, Collective, GroupOp, Move, Ops, OwnGradient, ParamArg
from tinygrad.uop.rewrite import substitute
from tinygrad.uop.spec import check_graph
from tinygrad.uop.symbolic import linear, simplify
