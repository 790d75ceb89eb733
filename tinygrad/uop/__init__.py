"""The IR, as the rest uses it. Importing it installs the simplifier and the checks behind `UOp`'s hooks."""

from tinygrad.uop import spec, symbolic
from tinygrad.uop.dims import as_dims, is_int, render_shape, simplify_sint, sint, smax, smin, upper
from tinygrad.uop.local import DEVICE_NUM, device_number, lengths, start
from tinygrad.uop.node import UOp, Variable, buffer_of, describe, map_arg, print_graph, sint_to_uop
from tinygrad.uop.ops import AxisKind, BufferArg, Collective, GroupOp, Move, Ops, ParamArg
