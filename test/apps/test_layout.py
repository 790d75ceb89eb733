"""Where weights go: what the options say, and how many devices hold the same kv heads."""

from __future__ import annotations

import math
from itertools import product

import pytest

from tinygrad import Device, Mesh, Sharding
from tinygrad.apps.layout import Layout, ShardSpecError, mesh_over, parse_axes

NAME = Device.DEFAULT


def test_layouts():
  assert Layout.parse("1") == Layout.parse("1x1") == Layout.parse(None) == Layout(NAME)
  two = tuple(f"{NAME}:{i}" for i in range(2))
  assert Layout.parse("2") == Layout(Mesh(two, (2,), ("tp",))) and Layout.parse("2").count == 2
  assert Layout.parse("2x3") == Layout.parse("dp=2,tp=3") and Layout.parse("2x3").count == 6
  assert Layout.parse("2x3").where.shape == (2, 3) and tuple(Layout.parse("2x3").where.names) == ("dp", "tp")
  assert parse_axes("tp=2,rows=4", "--mesh") == {"tp": 2, "rows": 4}


def test_named_devices():
  named = ("CPU:3", "CPU:1")
  assert Layout.parse(None, "cpu:3, CPU:1") == Layout.parse("2", "CPU:3,CPU:1") == Layout(Mesh(named, (2,), ("tp",)))
  assert Layout.parse(None, "CPU:2") == Layout("CPU:2")
  assert Layout.parse("dp=2,tp=1", "CPU:3,CPU:1").where == Mesh(named, (2, 1), ("dp", "tp"))
  assert mesh_over({"dp": 1, "tp": 1}) == NAME


@pytest.mark.parametrize("bad", ["0", "-1", "2x", "x2", "2x2x2", "two", "", "1.5", "9999", "tp=0", "tp=2,", "tp"])
def test_specs_that_are_refused(bad: str):
  with pytest.raises(ShardSpecError, match=f"--shard '{bad}' is no number of devices\n  fix: --shard 2"):
    Layout.parse(bad)


def test_devices_that_are_refused():
  with pytest.raises(ShardSpecError, match="--shard 'tp=2,tp=2' names an axis twice\n  fix: --shard dp=2,tp=2"):
    Layout.parse("tp=2,tp=2")
  with pytest.raises(ShardSpecError, match="--devices 'CPU:0,CPU' names one twice\n  fix: name each once"):
    Layout.parse(None, "CPU:0,CPU")
  with pytest.raises(ShardSpecError, match="are 2, and the mesh has 4\n  fix: name 4 devices, or cut over 2"):
    Layout.parse("2x2", "CPU:0,CPU:1")
  with pytest.raises(ShardSpecError, match="--devices 'DISK:0': DISK:0 computes nothing\n  fix: --devices "):
    Layout.parse(None, "DISK:0")


@pytest.mark.parametrize("shard", ["1", "2", "3", "4", "6", "8", "2x2", "2x3", "3x4", "4x2"])
def test_as_many_devices_as_can_have_kv_heads_of_their_own(shard: str):
  """By counting: the kv heads that a device's rows of q ask for lie there, and copies are as few as can be."""
  for kv, group in product((1, 2, 3, 4, 6, 8, 12), (1, 2, 12)):
    layout = Layout.parse(shard).for_heads(kv)
    n = layout.count
    assert layout.devices == Layout.parse(shard).devices
    assert layout.copies == n // math.gcd(n, kv)
    if isinstance(layout.where, str) or (kv * group) % n:
      continue
    heads, pairs = (Sharding(layout.where, layout.cut(0, kv=whose)) for whose in (False, True))
    for i in range(n):
      (first, end), (low, high) = heads.box(i, (kv * group, 2))[0], pairs.box(i, (kv, 2))[0]
      assert end - first == kv * group // n
      assert low <= first // group and (end - 1) // group < high
      assert high - low == kv // math.gcd(n, kv)
