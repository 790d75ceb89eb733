"""The IR, as the rest uses it. Importing it installs the simplifier and the checks behind `UOp`'s hooks."""

from tinygrad.uop import attributes
from tinygrad.uop.args import Collective, CustomOp, JointGradient, OwnGradient, SourceKernel, holes_like
from tinygrad.uop.cards import (
  CARDS,
  NO_TRAIT,
  Element,
  Factors,
  GradientRule,
  IndexMap,
  PartialRule,
  Trait,
  define,
  evaluate,
  factor_rule,
  having,
)
from tinygrad.uop.dims import as_dims, is_int, simplify_sint, sint, smax, smin, upper
from tinygrad.uop.local import DEVICE_NUM, device_number, lengths, start
from tinygrad.uop.node import (
  Hooks,
  Ref,
  UOp,
  Variable,
  buffer_of,
  give_memory,
  map_arg,
  mesh_of,
  side_table,
  stored,
  unseen,
  viewed,
)
from tinygrad.uop.op import RANGES_FROM, AxisKind, BufferArg, GroupOp, Move, Ops, ParamArg, PieceArg
from tinygrad.uop.printing import describe, print_graph, print_linear, render_shape
from tinygrad.uop.rewrite import substitute
from tinygrad.uop.spec import check_graph
from tinygrad.uop.symbolic import linear, simplify
