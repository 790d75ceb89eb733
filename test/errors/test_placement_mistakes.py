"""Mistakes in placements raise where they are made, with the operands and the user's line, and advise code that works:
each fix is taken from the message, run, and its result compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinygrad import Context, Device, DeviceError, Mesh, Ops, P, ShardError, Sharding, Tensor, dtypes
from tinygrad.device import ShardTypeError
from tinygrad.nn.optim import SGD
from tinygrad.nn.state import load_state_dict

D4 = tuple(f"CPU:{i}" for i in range(4))
D2, OTHERS = D4[:2], ("CPU:4", "CPU:5")
GRID, LINE = Mesh(D4, (2, 2), ("dp", "tp")), Mesh(D4, (4,), ("d",))
X = np.arange(16, dtype=np.float32).reshape(4, 4)
VECTOR, SCALAR = X[0], X[0, 1]
ROWS = [X[:1], X[1:2], X[2:]]


def value(s, fixed):
  return fixed


def at(s, placement):
  return s.x.to(placement)


def over(s, devices):
  return s.x.shard(devices, axis=0 if s.x.ndim else None)


def along(s, axis):
  return s.x.shard(s.devices, axis=axis)


def by(s, spec):
  return s.x.shard(s.mesh, spec)


def shaped(s, shape):
  return s.x.shard(Mesh(s.devices, shape), axis=0)


def named(s, names):
  mesh = Mesh(s.devices, (2, 2)[: len(names)] if len(names) == 2 else (4,), names)
  return s.x.shard(mesh, P(names[-1]))


def on_rows(s, mesh):
  return s.x.shard(mesh, P(mesh.names[0]))


def owing(s, partial, disjoint=()):
  return s.x.to(Sharding(s.mesh, None, partial, disjoint))


def both(s, y):
  return s.x + y - s.y.to(s.x.device)


def cast_back(s, y):
  return y.cast(s.x.dtype)


@dataclass
class Mistake:
  wrong: Callable[[Any], Any]  # given x, y, devices, mesh, placement, parts
  says: str  # of the rule that was broken
  fix: str  # as the message gives it, in those names
  use: Callable[[Any, Any], Any] = value  # how the fix is put to work: gives x again
  kind: type[Exception] = ShardError
  of: dict[str, Any] = field(default_factory=dict)  # x, y, … other than usual


def without_moves(f):
  with Context(RESHARD=0):
    return f()


def vector(**kwargs):
  return {"x": Tensor(VECTOR), **kwargs}


CUT3 = {"placement": Sharding(GRID, P(None, None, "tp"))}
TRIMMED = "Sharding(mesh, P(None, 'tp'))"

MISTAKES = {
  # the devices of a mesh
  "mesh_of_a_name": Mistake(lambda s: Mesh("CPU:0"), "got the string 'CPU:0'", "('CPU:0',)", over, ShardTypeError),
  "mesh_of_nothing": Mistake(lambda s: Mesh(()), r"distinct devices, got \(\)", "('CPU:0', 'CPU:1')", over),
  "shard_over_nothing": Mistake(lambda s: s.x.shard(()), r"got \(\)", "('CPU:0', 'CPU:1')", over),
  "to_nothing": Mistake(lambda s: s.x.to([]), r"got \(\)", "('CPU:0', 'CPU:1')", over),
  "two_names_of_one": Mistake(lambda s: Mesh(("CPU:0", "CPU")), "distinct devices", "('CPU',)", over),
  "one_twice": Mistake(lambda s: s.x.shard(("CPU:1", "CPU:2", "CPU:1"), 0), "distinct", "('CPU:1', 'CPU:2')", over),
  "mesh_of_a_number": Mistake(lambda s: Mesh(4), "got 4 of type int", "('CPU:0', 'CPU:1')", over, ShardTypeError),
  "mesh_of_none": Mistake(lambda s: Mesh(None), "of type NoneType", "('CPU:0', 'CPU:1')", over, ShardTypeError),
  "mesh_of_numbers": Mistake(lambda s: Mesh((0, 1)), r"got \(0, 1\)", "('CPU:0', 'CPU:1')", over, ShardTypeError),
  "shard_over_a_number": Mistake(lambda s: s.x.shard(2, 0), "got 2 of", "('CPU:0', 'CPU:1')", over, ShardTypeError),
  "mesh_of_a_set": Mistake(
    lambda s: Mesh(s.devices), "in an order, got a set", "tuple(sorted(devices))", over, ShardTypeError,
    {"devices": {*D4}},
  ),
  "mesh_of_a_mesh": Mistake(lambda s: Mesh(s.mesh), r"got Mesh\(CPU:0-3", "mesh.devices", over, ShardTypeError),
  "mesh_of_a_sharding": Mistake(
    lambda s: Sharding(s.placement, 1), "got Sharding", "placement.devices", over, ShardTypeError
  ),
  "several_kinds": Mistake(lambda s: Mesh(("CPU:1", "NULL:1")), "devices of one kind", "('CPU:1',)", over),
  "unknown_device": Mistake(lambda s: s.x.to("CPU1"), "unknown device 'CPU1'", "'CPU:1'", at, DeviceError),
  "unknown_kind": Mistake(lambda s: Mesh(("ZPU:0",)), "no backend 'ZPU'", "'CPU:1'", at, DeviceError),
  "to_a_type": Mistake(
    lambda s: s.x.to(dtypes.half), "dtypes.float16 is a type of elements, and no device", "x.cast(dtypes.float16)",
    cast_back, ShardTypeError,
  ),
  "to_a_types_name": Mistake(
    lambda s: s.x.to("float64"), "'float64' is a type of elements", "x.cast(dtypes.float64)", cast_back, ShardTypeError
  ),
  "to_a_type_of_numpy": Mistake(
    lambda s: s.x.to(np.float32), "is a type of elements", "x.cast(dtypes.float32)", cast_back, ShardTypeError
  ),
  "product_over_devices": Mistake(
    lambda s: s.x.to("CPU:1") @ s.y.to("CPU:2"),
    r"dot: the operands live on different devices\n    operand 0: float32\[\d+, \d+\] on CPU:1\n",
    "y.to('CPU:1')", lambda s, y: s.x, of={"y": Tensor(X.T)},
  ),
  "product_over_sets": Mistake(
    lambda s: s.x.shard(D4[:2], 0) @ s.y.shard(D4[2:], 0),
    r'dot: the operands live on two different device sets\n    operand 0: float32\[\d+, \d+\] on CPU:0-1, dim 0',
    "y.shard(x.device)", lambda s, y: s.x, of={"y": Tensor(X.T)},
  ),
  "einsum_over_devices": Mistake(
    lambda s: Tensor.einsum("ij,kj->ik", s.x.to("CPU:1"), s.y.to("CPU:2")),
    "einsum: the operands live on different devices\n    operand 0", "y.to('CPU:1')", lambda s, y: s.x,
  ),
  "convolution_over_devices": Mistake(
    lambda s: s.x.reshape(1, 1, *s.x.shape).to("CPU:1").conv2d(s.y.to("CPU:2")),
    "conv2d: the operands live on different devices\n    operand 0: float32.1, 1, ", "y.to('CPU:1')", lambda s, y: s.x,
    of={"y": Tensor.ones(1, 1, 2, 2)},
  ),
  "no_number": Mistake(lambda s: s.x.to("CPU:x"), "'CPU:x' is no device name", "'CPU:1'", at, DeviceError),
  # its shape
  "shape_product": Mistake(lambda s: Mesh(s.devices, (3,)), "3 places, but 4 devices", "(4,)", shaped),
  "shape_product_of_two": Mistake(
    lambda s: Mesh(s.devices, (2, 3), ("a", "b")), r"\(2, 3\) has 6 places", "(4, 1)", shaped
  ),
  "shape_of_a_number": Mistake(lambda s: Mesh(s.devices, 4), "of sizes, got 4", "(4,)", shaped, ShardTypeError),
  "shape_of_floats": Mistake(
    lambda s: Mesh(s.devices, (2.0, 2)), r"integers, got \(2.0, 2\)", "(2, 2)", shaped, ShardTypeError
  ),
  "shape_of_bools": Mistake(lambda s: Mesh(s.devices, (True, 4)), "integers, got", "(4,)", shaped, ShardTypeError),
  "shape_with_a_zero": Mistake(lambda s: Mesh(s.devices, (0, 4)), "0 places", "(4,)", shaped),
  "shape_negative": Mistake(lambda s: Mesh(s.devices, (-2, -2)), r"\(-2, -2\)", "(4,)", shaped),
  # its names
  "name_with_a_colon": Mistake(lambda s: Mesh(s.devices, (2, 2), ("a:b", "c")), "got .'a:b'", "('a_b', 'c')", named),
  "name_of_nothing": Mistake(lambda s: Mesh(s.devices, (2, 2), ("", "c")), "got .'', 'c'", "('x', 'c')", named),
  "name_with_a_space": Mistake(lambda s: Mesh(s.devices, (2, 2), ("d p", "c")), "got .'d p'", "('d_p', 'c')", named),
  "name_twice": Mistake(lambda s: Mesh(s.devices, (2, 2), ("a", "a")), "distinct axis names", "('a', 'y')", named),
  "name_missing": Mistake(lambda s: Mesh(s.devices, (2, 2), ("a",)), "2 distinct axis names", "('a', 'y')", named),
  "names_too_many": Mistake(lambda s: Mesh(s.devices, None, ("a", "b")), "1 distinct axis names", "('a',)", named),
  "names_in_a_string": Mistake(
    lambda s: Mesh(s.devices, (2, 2), "ab"), "got 'ab'", "('a', 'b')", named, ShardTypeError
  ),
  "name_as_a_string": Mistake(lambda s: Mesh(s.devices, None, "dp"), "got 'dp'", "('dp',)", named, ShardTypeError),
  "names_are_numbers": Mistake(
    lambda s: Mesh(s.devices, (2, 2), (1, 2)), r"got \(1, 2\)", "('1', '2')", named, ShardTypeError
  ),
  # as other frameworks write it
  "axis_names_of_a_grid": Mistake(
    lambda s: Mesh(s.devices, axis_names=("dp", "tp")), r"names=, got axis_names=\('dp', 'tp'\)",
    "Mesh(devices, names=('dp', 'tp'))", on_rows, ShardTypeError, {"devices": np.array(D4).reshape(2, 2)},
  ),
  "mesh_dim_names": Mistake(
    lambda s: Mesh(s.devices, [2, 2], mesh_dim_names=["dp", "tp"]), r"got mesh_dim_names=\['dp', 'tp'\]",
    "Mesh(devices, shape=(2, 2), names=('dp', 'tp'))", on_rows, ShardTypeError,
  ),
  "axis_shapes_and_names": Mistake(
    lambda s: Mesh(s.devices, axis_shapes=np.array([2, 2]), axis_names=("dp", "tp")), "got axis_shapes=array",
    "Mesh(devices, shape=(2, 2), names=('dp', 'tp'))", on_rows, ShardTypeError,
  ),
  "mesh_of_numbers_and_names": Mistake(
    lambda s: Mesh(s.devices, [[0, 1], [2, 3]], mesh_dim_names=("dp",)), "got mesh_dim_names",
    "Mesh(devices, names=('dp',))", on_rows, ShardTypeError,
  ),
  "mesh_of_a_kind": Mistake(
    lambda s: Mesh("CPU", (2, 2), ("dp", "tp")), "got the string 'CPU'", "[f'CPU:{i}' for i in range(4)]", over,
    ShardTypeError,
  ),
  "keyword_misspelled": Mistake(
    lambda s: Mesh(s.devices, (4,), name=("dp",)), "shape= and names=, got name=", "Mesh(devices, shape=(4,))",
    lambda s, mesh: s.x.shard(mesh, 0), ShardTypeError,
  ),
  # partial
  "partial_by_a_word": Mistake(
    lambda s: Sharding(s.mesh, P("dp"), {"tp": "add"}), "reduction is owed, its op", "{'tp': Ops.ADD}", owing,
    ShardTypeError,
  ),
  "partial_of_names": Mistake(
    lambda s: Sharding(s.mesh, partial=("dp",)), r"partial=\('dp',\): for each", "{'dp': Ops.ADD}", owing,
    ShardTypeError,
  ),
  "partial_over_no_axis": Mistake(
    lambda s: Sharding(s.mesh, partial={"rows": Ops.MAX}), "'rows' is no axis", "'dp'",
    lambda s, name: owing(s, {name: Ops.MAX}),
  ),
  "disjoint_in_a_string": Mistake(
    lambda s: Sharding(s.mesh, partial={"tp": Ops.ADD}, disjoint="tp"), "disjoint='tp': a tuple of axes", "('tp',)",
    lambda s, names: owing(s, {"tp": Ops.ADD}, names), ShardTypeError,
  ),
  "disjoint_and_not_owed": Mistake(
    lambda s: Sharding(s.mesh, partial={"tp": Ops.ADD}, disjoint=("dp", "tp")), "that partial=.* names", "('tp',)",
    lambda s, names: owing(s, {"tp": Ops.ADD}, names), ShardTypeError,
  ),
  # P
  "spec_of_0": Mistake(lambda s: P(0), r"P\(0\): for each dim", "Sharding(devices, axis=0)", at, ShardTypeError),
  "spec_of_3": Mistake(
    lambda s: P(3), r"P\(3\): for", "Sharding(devices, axis=3)", at, ShardTypeError, {"x": Tensor(X[None, None])}
  ),
  "spec_of_false": Mistake(lambda s: P(False), r"P\(False\): for", "P(None)", by, ShardTypeError),
  "spec_of_true": Mistake(lambda s: P(True), r"P\(True\): for", "P(None)", by, ShardTypeError),
  "spec_of_a_float": Mistake(lambda s: P(1.0), r"P\(1.0\): for", "P(None)", by, ShardTypeError),
  "spec_with_dots": Mistake(lambda s: P("dp", ...), r"P\('dp', ...\)", "P('dp', None)", by, ShardTypeError),
  "spec_with_a_number": Mistake(lambda s: P("dp", 1), r"P\('dp', 1\)", "P('dp', None)", by, ShardTypeError),
  "spec_with_an_empty_name": Mistake(lambda s: P("", "tp"), "P.'', 'tp'", "P(None, 'tp')", by, ShardTypeError),
  "spec_with_none_inside": Mistake(lambda s: P(("dp", None)), "None, the name", "P(('dp',))", by, ShardTypeError),
  "spec_of_a_spec": Mistake(lambda s: P(P(None, "tp")), "a tuple of names", "P(('tp',))", by, ShardTypeError),
  "spec_of_a_set": Mistake(lambda s: P({"dp"}), "a tuple of names", "P(None)", by, ShardTypeError),
  # P on a mesh
  "axis_misspelled": Mistake(lambda s: s.x.shard(s.mesh, P("dpp")), "'dpp' is no axis of Mesh", "P('dp')", by),
  "axis_of_another_mesh": Mistake(lambda s: Sharding(s.mesh, P("rows", "tp")), "'rows' is no", "P(None, 'tp')", by),
  "axis_twice": Mistake(lambda s: Sharding(s.mesh, P("dp", "dp")), "used twice", "P('dp', None)", by),
  "axis_twice_in_a_dim": Mistake(lambda s: Sharding(s.mesh, P(("tp", "dp", "tp"))), "twice", "P(('tp', 'dp'))", by),
  "sub_axis_too_fine": Mistake(lambda s: Sharding(s.mesh, P("dp:(2)2")), "does not divide the", "P('dp')", by),
  "sub_axis_of_zero": Mistake(lambda s: Sharding(s.mesh, P("dp:(0)2")), "0.2 does not divide", "P('dp')", by),
  "sub_axis_unreadable": Mistake(lambda s: Sharding(s.mesh, P("dp:2", "tp")), "'dp:2' is no axis", "P('dp', 'tp')", by),
  "sub_axis_overlaps": Mistake(
    lambda s: Sharding(s.mesh, P("d:(1)2", "d")), "overlaps", "P('d:(1)2', None)", by, of={"mesh": LINE}
  ),
  # axis
  "axis_negative": Mistake(lambda s: Sharding(s.devices, -1), "axis=-1", "Sharding(devices, axis=0)", at),
  "axis_is_a_float": Mistake(lambda s: s.x.shard(s.devices, axis=1.0), "axis=1.0 of type", "1", along, ShardTypeError),
  "axis_is_half": Mistake(lambda s: s.x.shard(s.devices, axis=0.5), "axis=0.5 of type", "0", along, ShardTypeError),
  "axis_is_true": Mistake(lambda s: s.x.shard(s.devices, axis=True), "axis=True of", "1", along, ShardTypeError),
  "axis_is_false": Mistake(lambda s: Sharding(s.devices, False), "axis=False of type bool", "0", along, ShardTypeError),
  "axis_is_a_name": Mistake(lambda s: s.x.shard(s.mesh, "dp"), "axis='dp' of type str", "P('dp')", by, ShardTypeError),
  "axis_is_unknown": Mistake(lambda s: s.x.shard(s.devices, "rows"), "axis='rows'", "0", along, ShardTypeError),
  "axis_is_a_set": Mistake(lambda s: s.x.shard(s.devices, {1}), "of type set", "0", along, ShardTypeError),
  "axis_is_a_list_of_numbers": Mistake(
    lambda s: s.x.shard(s.devices, [0]), r"P\(0\): for each dim", "Sharding(devices, axis=0)", at, ShardTypeError
  ),
  # a placement meets a shape
  "dim_missing": Mistake(lambda s: s.x.shard(s.devices, axis=2), r"dim 2 .*\(4, 4\)", "x.shard(devices, axis=1)"),
  "dim_missing_from_the_end": Mistake(lambda s: s.x.shard(s.devices, axis=-3), "dim -3", "x.shard(devices, axis=1)"),
  "dim_of_a_vector": Mistake(lambda s: s.x.shard(D4, -2), "dim -2", "x.shard(devices, axis=0)", of=vector()),
  "dim_of_a_scalar": Mistake(
    lambda s: s.x.shard(s.devices, 0), r"shape \(\) has 0 dims", "x.shard(devices)", of={"x": Tensor(float(SCALAR))}
  ),
  "dim_on_a_mesh": Mistake(lambda s: s.x.shard(s.mesh, axis=2), "dim 2 is out", "x.shard(mesh, axis=1)"),
  "dim_on_one_device": Mistake(lambda s: s.x.shard(D4[:1], axis=2), "dim 2 is out", "x.shard(devices, axis=1)"),
  "spec_too_long": Mistake(
    lambda s: s.x.shard(s.mesh, P("dp", None, "tp")), "cuts dim 2", "Sharding(mesh, P('dp'))", at
  ),
  "to_too_long": Mistake(lambda s: s.x.to(s.placement), r"dim 2, but .*\(4, 4\)", TRIMMED, at, of=CUT3),
  "to_axis_too_large": Mistake(lambda s: s.x.to(Sharding(D4, 5)), "cuts dim 5", "Sharding(devices, axis=1)", at),
  "scalar_to": Mistake(
    lambda s: s.x.to(s.placement), r"shape \(\)", "Sharding(devices)", at, of={"x": Tensor(float(SCALAR))}
  ),
  "empty": Mistake(lambda s: Tensor.empty(4, 4, device=s.placement), r"\(4, 4\) has 2 dims", TRIMMED, at, of=CUT3),
  "ones": Mistake(lambda s: Tensor.ones(4, 4, device=s.placement), r"\(4, 4\) has 2 dims", TRIMMED, at, of=CUT3),
  "rand": Mistake(lambda s: Tensor.rand(4, 4, device=s.placement), r"\(4, 4\) has 2 dims", TRIMMED, at, of=CUT3),
  "randn": Mistake(lambda s: Tensor.randn(4, 4, device=s.placement), r"\(4, 4\) has 2", TRIMMED, at, of=CUT3),
  "randint": Mistake(lambda s: Tensor.randint(4, 4, device=s.placement), r"\(4, 4\) has", TRIMMED, at, of=CUT3),
  "arange": Mistake(lambda s: Tensor.arange(4, device=Sharding(D4, 1)), r"\(4,\) has", "Sharding(devices, axis=0)", at),
  "of_data": Mistake(lambda s: Tensor(X, device=s.placement), r"\(4, 4\) has 2", TRIMMED, at, of=CUT3),
  "of_a_number": Mistake(lambda s: Tensor(1.0, device=s.placement), r"\(\) has 0 dims", "Sharding(devices)", at),
  "zeros_like": Mistake(lambda s: s.x.zeros_like(device=s.placement), "cuts dim 2", TRIMMED, at, of=CUT3),
  "rand_like": Mistake(lambda s: s.x.rand_like(device=s.placement), "cuts dim 2", TRIMMED, at, of=CUT3),
  "clone": Mistake(lambda s: s.x.clone(s.placement), "cuts dim 2", TRIMMED, at, of=CUT3),
  "optimizer_state": Mistake(
    lambda s: SGD([s.x], momentum=0.9, device=s.placement), "cuts dim 2", TRIMMED, at, of=CUT3
  ),
  # device=
  "sharding_and_axis": Mistake(
    lambda s: s.x.shard(s.placement, axis=1), r"axis=1 is one too many", "x.shard(placement.devices, axis=1)"
  ),
  "shard_over_a_name": Mistake(
    lambda s: s.x.shard("CPU:1", axis=0), "got 'CPU:1'", "x.to('CPU:1')", kind=ShardTypeError
  ),
  "shard_by_a_spec_alone": Mistake(
    lambda s: s.x.shard(P("dp")), r"got P\('dp'\)", "x.shard(mesh, P('dp'))", kind=ShardTypeError
  ),
  "to_a_mesh": Mistake(lambda s: s.x.to(s.mesh), "not how dims are cut", "Sharding(mesh)", at, ShardTypeError),
  "on_a_mesh": Mistake(
    lambda s: Tensor.ones(4, 4, device=s.mesh), "not how dims are cut", "Sharding(mesh)", at, ShardTypeError
  ),
  "optimizer_on_a_mesh": Mistake(
    lambda s: SGD([s.x], device=s.mesh), "not how dims are cut", "Sharding(mesh)", at, ShardTypeError
  ),
  "to_a_spec": Mistake(
    lambda s: s.x.to(P("dp")), "not over which devices", "Sharding(mesh, P('dp'))", at, ShardTypeError
  ),
  "to_a_number": Mistake(lambda s: s.x.to(3), "got 3 of type int", "'CPU:3'", at, ShardTypeError),
  "on_a_float": Mistake(lambda s: Tensor.ones(2, device=1.5), "got 1.5 of type float", "'CPU'", at, ShardTypeError),
  "to_a_tensor": Mistake(lambda s: s.x.to(s.y), "of type Tensor", "'CPU'", at, ShardTypeError),
  "to_numbers": Mistake(lambda s: s.x.to((0, 1)), r"got \(0, 1\)", "('CPU:0', 'CPU:1')", at, ShardTypeError),
  "default_is_a_mesh": Mistake(lambda s: setattr(Device, "DEFAULT", s.mesh), "got Mesh", "'CPU:1'", at, DeviceError),
  "device_of_a_number": Mistake(lambda s: Device[3], "got 3 of <class 'int'>", "'CPU:1'", at, DeviceError),
  "like_a_placement": Mistake(
    lambda s: s.x.shard_like(s.y), "y is a tensor, not", "x.to(y)", kind=ShardTypeError, of={"y": Sharding(D4, 0)}
  ),
  # operands
  "two_sets": Mistake(
    lambda s: s.x + s.y, "(?s)two different device sets.*CPU:0-1, dim 0.*CPU:4-5, dim 1", "y.shard(x.device)", both,
    of={"x": Tensor(X).shard(D2, 0), "y": Tensor(X).shard(OTHERS, 1)},
  ),
  "another_order": Mistake(
    lambda s: s.x + s.y, "the same devices in another order", "y.shard(x.device)", both,
    of={"x": Tensor(X).shard(D2, 0), "y": Tensor(X).shard(D2[::-1], 0)},
  ),
  "two_devices": Mistake(
    lambda s: s.x * s.y, "(?s)different devices.*CPU\n.*CPU:1", "y.to('CPU')", both, of={"y": Tensor(X).to("CPU:1")}
  ),
  "third_operand": Mistake(
    lambda s: (s.x > 0).where(s.x, s.y), "(?s)different devices.*src.2.: .*CPU:1", "z.to('CPU')",
    lambda s, z: s.x + z - z, of={"y": Tensor(X).to("CPU:1"), "z": Tensor(X).to("CPU:1")},
  ),
  "no_moves": Mistake(
    lambda s: without_moves(lambda: s.x + s.y), "RESHARD=0 forbids an implied move", "y.shard(x.device)", both,
    of={"x": Tensor(X).shard(D2, 0).realize(), "y": Tensor(X).shard(D2, 1).realize()},
  ),
  # parts
  "too_few_parts": Mistake(
    lambda s: Tensor.from_shards(s.parts, s.placement), "4 .one for each device. parts, got 3",
    "Tensor.cat(*map(Tensor, parts), dim=0).shard(placement)",
  ),
  "parts_of_other_lengths": Mistake(
    lambda s: Tensor.from_shards(s.parts, s.placement), r"part 0 has shape \[1, 4\]",
    "Tensor.cat(*map(Tensor, parts), dim=0).shard(placement)",
    of={"parts": [X[:1], X[1:]], "placement": Sharding(D2, 0)},
  ),
  "parts_on_a_mesh": Mistake(
    lambda s: Tensor.from_shards(s.parts, s.mesh), "not how dims are cut", "Sharding(mesh)", at, ShardTypeError
  ),
  "parts_on_one_device": Mistake(
    lambda s: Tensor.from_shards([X, X], "CPU:1"), "CPU:1 is one device, and 2 parts", "parts[:1]",
    lambda s, parts: Tensor.from_shards(parts, "CPU:1"), of={"parts": [X, X]},
  ),
  "axis_of_several": Mistake(
    lambda s: s.placement.axis, r"cuts dims \[0, 1\]", "placement.dims",
    lambda s, dims: s.x.to(s.placement if len(dims) == 2 else None), of={"placement": Sharding(GRID, P("dp", "tp"))},
  ),
}  # fmt: skip


def test_there_are_many():
  assert len(MISTAKES) >= 100


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name):
  m = MISTAKES[name]
  usual = {"x": Tensor(X), "y": Tensor(X), "devices": D4, "mesh": GRID, "placement": Sharding(D4, 0), "parts": ROWS}
  s = SimpleNamespace(**{**usual, **m.of})
  with pytest.raises(m.kind, match=m.says) as caught:
    m.wrong(s)
  text = str(caught.value)
  lines = range(m.wrong.__code__.co_firstlineno, max(line or 0 for *_, line in m.wrong.__code__.co_lines()) + 1)
  assert isinstance(caught.value, DeviceError if m.kind is DeviceError else ShardError)
  assert any(f"in test_placement_mistakes.py:{i}: " in text for i in lines), text
  code = text.partition("  fix: ")[2]
  assert code.partition("  # ")[0] == m.fix, text
  made = m.use(
    s,
    eval(code, {"Tensor": Tensor, "Ops": Ops, "Mesh": Mesh, "Sharding": Sharding, "P": P, "dtypes": dtypes, **vars(s)}),
  )
  np.testing.assert_array_equal(made.numpy(), s.x.numpy())


def test_a_mistake_leaves_everything_as_it_was():
  Tensor.manual_seed(3)
  want = Tensor.rand(4).numpy()
  Tensor.manual_seed(3)
  with pytest.raises(ShardError):
    Tensor.rand(4, device=Sharding(D4, 1))
  np.testing.assert_array_equal(Tensor.rand(4).numpy(), want)


def test_devices_may_come_one_by_one():
  assert Mesh(f"CPU:{i}" for i in range(4)) is Mesh(D4) and Tensor(X).shard(iter(D4), 0).device is Sharding(D4, 0)


def test_a_shard_error_is_what_existing_code_catches():
  for kind in (RuntimeError, ValueError, ShardError):
    with pytest.raises(kind):
      Tensor(X).shard(D2, 0) + Tensor(X).shard(OTHERS, 0)
  with pytest.raises(TypeError):
    Tensor(X).shard("CPU:1", axis=0)


@pytest.mark.parametrize("first", ["mine", "other"])
def test_messages_say_the_names_of_their_operands_meshes(first):
  """And not those of whatever mesh over the same devices was used last, or first."""
  devices = [f"NULL:{i}" for i in range(*((80, 84) if first == "mine" else (84, 88)))]
  mine, other = Mesh(devices, (2, 2), ("rows", "columns")), Mesh(devices, (4,), ("pipeline",))

  def place():
    return Tensor.empty(8, 8, device=Sharding(mine, P("rows", "columns")))

  x = place() if first == "mine" else None
  Sharding(other, P("pipeline")), Tensor.empty(4).shard(other, P("pipeline:(1)2")), Sharding(other)
  Tensor.empty(4, 4).shard(other, P("pipeline:(1)2", "pipeline:(2)2"))
  x = place() if x is None else x
  for t in (x, x + 1, (x * 2).sum(1), x.permute(1, 0).relu()):
    with pytest.raises(ShardError) as caught:
      t + Tensor.empty(*t.shape).shard(("NULL:1", "NULL:2"))
    assert "pipeline" not in str(caught.value) and ("rows" in str(caught.value) or "columns" in str(caught.value))
    assert "pipeline" not in repr(t)


def test_loading_keeps_a_models_placements():
  class Model:
    def __init__(self):
      self.w = Tensor.zeros(4, 4).shard(D4, 1).realize()

  model = Model()
  load_state_dict(model, {"w": Tensor(X)}, verbose=False)
  assert model.w.device is Sharding(D4, 1) and Device.DEFAULT
  np.testing.assert_array_equal(model.w.numpy(), X)
