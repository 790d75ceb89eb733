"""tinygrad, in which the device carries the sharding: `Tensor`, `TinyJit`, `Device`, `Sharding`, `Mesh`, `P`."""

from typing import TYPE_CHECKING, NoReturn

from tinygrad import distributed, nn, ops, sharding, viz  # ops, sharding: cards and placement; viz: what VIZ=1 does
from tinygrad.custom import custom_op
from tinygrad.device import OPEN, Device, DeviceError, DeviceMesh, Mesh, P, PartitionSpec, ShardError, Sharding
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import TinyJit
from tinygrad.function import function
from tinygrad.helpers import SIM, Context, GlobalCounters, fetch, getenv
from tinygrad.mixin.foreign_names import function_here, with_fix
from tinygrad.propagation import auto, propagate
from tinygrad.rule_check import check_rule
from tinygrad.tensor import Tensor
from tinygrad.transforms import checkpoint_policies
from tinygrad.transforms.checkpoint import checkpoint
from tinygrad.transforms.collectives import (
  all_gather,
  all_to_all,
  axis_index,
  axis_size,
  pmax,
  pmean,
  pmin,
  ppermute,
  psum,
  psum_scatter,
)
from tinygrad.transforms.cond import cond
from tinygrad.transforms.donate import donate
from tinygrad.transforms.forward import hessian, hvp, jacfwd, jvp, linearize
from tinygrad.transforms.grad import grad, jacrev, stop_gradient, value_and_grad, vjp
from tinygrad.transforms.own_rules import custom_vjp
from tinygrad.transforms.scan import scan, scan_layers
from tinygrad.transforms.shard_map import shard_map
from tinygrad.transforms.tangent_rules import custom_jvp
from tinygrad.transforms.vmap import vmap
from tinygrad.transforms.while_loop import while_loop
from tinygrad.tuning.by_hand import kernel_schedule
from tinygrad.uop import Ops, UOp, Variable

__version__ = "0.15.0+sharding"

if not TYPE_CHECKING:

  def __getattr__(name: str) -> NoReturn:
    """Of a name that there is not: an AttributeError with what does here what that of torch or jax does."""
    problem = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(with_fix(problem, function_here(Tensor, name)), name=name)


if SIM:  # the program runs on the devices of a cluster
  from tinygrad.simulation import session

  session.begin(SIM.value)

__all__ = [
  "Context", "Device", "DeviceError", "DeviceMesh", "GlobalCounters", "Mesh", "OPEN", "Ops", "P", "PartitionSpec",
  "ShardError", "Sharding", "Tensor", "TinyJit", "UOp", "Variable", "all_gather", "all_to_all", "auto", "axis_index",
  "axis_size", "check_rule", "checkpoint", "checkpoint_policies", "cond", "custom_jvp", "custom_op", "custom_vjp",
  "distributed", "donate", "dtypes", "fetch", "function", "getenv", "grad", "hessian", "hvp", "jacfwd", "jacrev", "jvp",
  "kernel_schedule", "linearize", "nn", "ops", "pmax", "pmean", "pmin", "ppermute", "propagate", "psum",
  "psum_scatter", "scan", "scan_layers", "shard_map", "sharding", "stop_gradient", "value_and_grad", "vjp", "viz",
  "vmap", "while_loop",
]  # fmt: skip
