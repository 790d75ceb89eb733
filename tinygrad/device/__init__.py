"""Where values live: device names, meshes, placements (`Sharding`), buffers, and what a backend has to offer."""

from tinygrad.device.backend import (
  Backend,
  BoundCall,
  CallBatch,
  Capabilities,
  Computes,
  Launch,
  PeerCopy,
  Rendered,
  Target,
)
from tinygrad.device.block import Box, around, box_of, meet, peer_copies, shape_of_blocks
from tinygrad.device.buffer import Buffer, pass_away
from tinygrad.device.constraint import OPEN, Constraint, constraint
from tinygrad.device.errors import DeviceError, ShardError, ShardTypeError, refuse
from tinygrad.device.mesh import (
  DeviceMesh,
  Mesh,
  SubAxis,
  ambient_mesh,
  ambient_meshes,
  as_index,
  as_mesh,
  in_short,
  merge_sub_axes,
  short_devices,
)
from tinygrad.device.origin import Cut, PlacedLine, hint_of, line_at, plain_line, reasons_for
from tinygrad.device.partition_spec import P, PartitionSpec, spec_of
from tinygrad.device.registry import GPUS, HOST_DEVICE, ON_CPU, Device, backends, number_of, opened, print_kinds
from tinygrad.device.sharding import (
  DeviceNames,
  Partial,
  Placement,
  Sharding,
  check_fits,
  device_set,
  one_of_each_kind,
  reduced_placement,
  same_devices,
  show_placement,
  spelled,
)
from tinygrad.device.world import World
