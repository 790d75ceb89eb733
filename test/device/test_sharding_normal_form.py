"""Placements: one normal form, blocks, and the errors of the user's mistakes."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.device import (
  Device,
  DeviceError,
  DeviceMesh,
  Mesh,
  P,
  Partial,
  PartitionSpec,
  ShardError,
  Sharding,
  SubAxis,
  merge_sub_axes,
  print_kinds,
  show_placement,
)
from tinygrad.uop import Ops

D4 = tuple(f"CPU:{i}" for i in range(4))
M22 = Mesh(D4, (2, 2), ("dp", "tp"))


def test_equal_placements_are_the_same_object():
  assert Sharding(D4, 0) is Sharding(M22, P(("dp", "tp")))
  assert Sharding(M22, P("dp", None)) is Sharding(M22, P("dp"))
  assert Sharding(M22, P("dp:(1)2")) is Sharding(M22, P("dp"))
  assert Sharding(M22, P(("tp", "dp"))) is not Sharding(D4, 0)
  assert pickle.loads(pickle.dumps(Sharding(D4, 1))) is Sharding(D4, 1)


THINGS = {
  "mesh": M22,
  "sharding": Sharding(M22, P("dp", "tp")),
  "replicated": Sharding(D4),
  "partial": Sharding.of(M22, [(SubAxis(2, 2),)], [Partial((SubAxis(2, 1),), Ops.ADD)]),
}
PARTS = {
  "sub-axis": SubAxis(2, 1),
  "partial": Partial((SubAxis(2, 1),), Ops.ADD),
  "spec": P("dp", None, ("tp", "dp:(1)2")),
}


@pytest.mark.parametrize("name", [*THINGS, *PARTS])
def test_what_placements_share_cannot_be_written_to(name):
  thing = {**THINGS, **PARTS}[name]
  fields = [f for f in dir(thing) if not f.startswith("__")]
  before = {f: getattr(thing, f) for f in fields if f != "axis"}
  for field in [*fields, "a_new_one"]:
    with pytest.raises((AttributeError, TypeError)):
      setattr(thing, field, None)
    with pytest.raises((AttributeError, TypeError)):
      delattr(thing, field)
  assert {f: getattr(thing, f) for f in before} == before and not hasattr(thing, "__dict__")
  assert (Tensor.ones(4, 4).shard(D4, 0) + 1).sum().item() == 32


@pytest.mark.parametrize("name", [*THINGS, "spec"])
def test_frozen(name):
  """As a frozen dataclass is, whatever the attribute: it may be one that does not exist."""
  thing = THINGS.get(name, PARTS["spec"])
  shown = repr(thing), str(thing)
  for field in ("shape", "names", "devices", "dims", "partial", "mesh", "spec", "axis", "__class__", "a_new_one"):
    with pytest.raises(dataclasses.FrozenInstanceError, match=rf"is frozen, \.{field} cannot be set\n  fix: make ano"):
      setattr(thing, field, ())
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"{field} cannot be deleted"):
      delattr(thing, field)
  with pytest.raises(TypeError):
    dataclasses.replace(thing, shape=(4,))
  for begin in (thing, getattr(thing, "devices", thing)):
    with pytest.raises(TypeError):
      begin[0] = "CPU:3"
  assert (repr(thing), str(thing)) == shown


def test_joined_attributes_are_not_written_back():
  with pytest.raises(dataclasses.FrozenInstanceError, match="devices cannot be set"):
    M22.devices += ("CPU:4",)
  with pytest.raises(dataclasses.FrozenInstanceError, match="dims cannot be set"):
    THINGS["sharding"].dims += ((),)
  assert M22.devices == ("CPU", "CPU:1", "CPU:2", "CPU:3") and len(THINGS["sharding"].dims) == 2


@pytest.mark.parametrize("name", THINGS)
def test_copies_are_the_same_object(name):
  thing = THINGS[name]
  copies = [copy.copy(thing), copy.deepcopy(thing), copy.deepcopy([{"a": thing}])[0]["a"]]
  copies += [pickle.loads(pickle.dumps(thing, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
  assert all(c is thing for c in copies)


def test_copies_of_specs_are_equal():
  spec = PARTS["spec"]
  for made in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
    assert made == spec and type(made) is P and Sharding(M22, P("dp", made[1])) is Sharding(M22, P("dp"))


def test_no_table_of_them_is_in_reach_of_a_placement():
  for kind in (Mesh, Sharding):
    held = [v for c in kind.__mro__ for name, v in vars(c).items() if not name.startswith("__")]
    assert not any(isinstance(v, (dict, list, set)) for v in held)


def test_a_mesh_as_jax_writes_it():
  grid = np.array(D4).reshape(2, 2)
  assert Mesh(grid, ("dp", "tp")) is M22 and Mesh(grid, names=("dp", "tp")) is M22 and Mesh(grid).shape == (2, 2)
  assert Mesh(D4, ("d",)) is Mesh(D4, (4,), ("d",)) and Mesh(list(D4), np.array([2, 2]), ["dp", "tp"]) is M22


def test_names_that_users_of_jax_and_torch_write():
  assert DeviceMesh is Mesh and PartitionSpec is P
  mesh = DeviceMesh(np.array(D4).reshape(2, 2), ("dp", "tp"))
  assert Sharding(mesh, PartitionSpec("dp", None)) is Sharding(M22, P("dp"))
  assert DeviceMesh(D4, (2, 2), ("dp", "tp")) is M22


def test_one_device_is_a_plain_name():
  assert Sharding(("CPU:3",), 0) == "CPU:3"


def test_the_everyday_form():
  s = Sharding(("CPU:0", "CPU:1"), 1)
  assert (
    s.axis == 1 and len(s) == 2 and list(s) == ["CPU", "CPU:1"] and s[1] == "CPU:1" and s.devices == ("CPU", "CPU:1")
  )
  assert Sharding(("CPU:0", "CPU:1")).axis is None
  with pytest.raises(ShardError, match="exists only where one is cut"):
    _ = Sharding(M22, P("dp", "tp")).axis


@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_blocks_are_flat_and_cover_the_dim_once(n, k):
  s = Sharding(tuple(f"CPU:{i}" for i in range(k)), 0)
  boxes = [s.box(d, (n,))[0] for d in range(k)]
  assert [i for lo, hi in boxes for i in range(lo, hi)] == list(range(n))
  assert s.local_shape((n,)) == (-(-n // k),)


def test_block_numbers_go_major_to_minor():
  s = Sharding(M22, P(("tp", "dp")))
  assert [s.block(0, d) for d in range(4)] == [0, 2, 1, 3]


def test_partial_sub_axes_are_visible_and_reduced_away():
  s = Sharding.of(M22, [(SubAxis(2, 2),)], [Partial((SubAxis(2, 1),), Ops.ADD)])
  assert s.partial and not s.reduced.partial and s.reduced is Sharding(M22, P("dp"))
  assert "partial by add" in show_placement(s)


def test_merging_sub_axes():
  assert merge_sub_axes([SubAxis(2, 2), SubAxis(2, 1)]) == (SubAxis(4, 1),)
  assert merge_sub_axes([SubAxis(2, 1), SubAxis(2, 2)]) == (SubAxis(2, 1), SubAxis(2, 2))


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: Sharding(M22, P("dp", "dp")), "used twice"),
    (lambda: Sharding(M22, P("zz")), "is no axis of"),
    (lambda: Sharding(M22, P("dp:(2)2")), "does not divide"),
    (lambda: Sharding(D4, -1), "must be >= 0"),
    (lambda: Mesh(("CPU:0", "CPU")), "distinct devices"),
    (lambda: Mesh("CPU:0"), "sequence of devices"),
    (lambda: Mesh(D4, (3,)), "4 devices were given"),
    (lambda: Mesh(D4, (2, 2), ("a", "a")), "distinct axis names"),
    (lambda: Sharding(D4, 2).local_shape((4, 4)), "cuts dim 2, but the tensor of shape"),
  ],
)
def test_mistakes_are_named(make, message):
  with pytest.raises(ShardError, match=message):
    make()


@pytest.mark.parametrize("name", ["ZPU", "CPU:x", "TPU:0", "CPU:-1"])
def test_unknown_devices_are_named_with_what_there_is(name):
  with pytest.raises(DeviceError, match="fix: "):
    Device.canonicalize(name)


def test_report_tells_what_is_here_and_how_to_get_the_rest(monkeypatch, capsys):
  monkeypatch.setenv("GPU", "CPU")
  real = type(Device)._open.__wrapped__

  def without_gpus(self, name):
    if name in ("CUDA", "METAL", "CL"):
      raise DeviceError(f"device {name} needs the package 'x'\n  fix: pip install 'tinygrad[x]'")
    return real(self, name)

  monkeypatch.setattr(type(Device), "_open", without_gpus)
  type(Device)._attempt.cache_clear()
  print_kinds()
  type(Device)._attempt.cache_clear()
  cpu, cuda, metal, cl, gpu = capsys.readouterr().out.splitlines()
  assert (
    cpu.startswith("CPU   yes")
    and cuda.startswith("CUDA  no")
    and all("; fix: pip install 'tinygrad[x]'" in line for line in (metal, cl))
  )
  assert gpu == "GPU   CPU"


def test_gpu_is_the_first_backend_that_works_or_what_the_environment_says(monkeypatch):
  monkeypatch.delenv("GPU", raising=False)
  Device._canonicalize.cache_clear()
  here = list(Device.get_available_devices())

  def broken(name):
    raise DeviceError(f"device {name} needs the package 'x'\n  fix: pip install 'tinygrad[x]'")

  if gpus := [kind for kind in ("CUDA", "METAL", "CL") if kind in here]:
    assert Device.canonicalize("GPU:1") == f"{gpus[0]}:1"
  Device._canonicalize.cache_clear()
  Device._attempt.cache_clear()
  with monkeypatch.context() as m:
    m.setattr(type(Device), "_open", lambda self, name: broken(name))
    with pytest.raises(DeviceError, match=r"(?s)CUDA: device.*pip install 'tinygrad\[x\]'.*fix: GPU=CPU in the env"):
      Device.canonicalize("GPU:1")
  Device._attempt.cache_clear()
  monkeypatch.setenv("GPU", "CPU")
  assert Device.canonicalize("GPU:1") == "CPU:1"
  Device._canonicalize.cache_clear()
