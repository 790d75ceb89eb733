"""tinygrad, in which the device carries the sharding: `Tensor`, `TinyJit`, `Device`, `Sharding`, `Mesh`, `P`."""

from tinygrad import nn, ops, sharding  # ops and sharding register the cards and the placement function
from tinygrad.custom import custom_op
from tinygrad.device import OPEN, Device, DeviceError, DeviceMesh, Mesh, P, PartitionSpec, ShardError, Sharding
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import TinyJit
from tinygrad.function import function
from tinygrad.helpers import Context, GlobalCounters, fetch, getenv
from tinygrad.propagation import auto, propagate
from tinygrad.rule_check import check_rule
from tinygrad.tensor import Tensor
from tinygrad.transforms.vmap import vmap
from tinygrad.uop import Ops, UOp, Variable

__version__ = "0.15.0+sharding"

__all__ = [
  "Context", "Device", "DeviceError", "DeviceMesh", "GlobalCounters", "Mesh", "OPEN", "Ops", "P", "PartitionSpec",
  "ShardError", "Sharding", "Tensor", "TinyJit", "UOp", "Variable", "auto", "check_rule", "custom_op", "dtypes",
  "fetch", "function", "getenv", "nn", "ops", "propagate", "sharding", "vmap",
]  # fmt: skip
