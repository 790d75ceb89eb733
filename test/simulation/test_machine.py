"""Clusters by a text or a file, and which levels of a network a mesh axis crosses."""

import itertools
import math
import re
from pathlib import Path

import pytest

from tinygrad import Mesh
from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.device.machine import H100, machine_for, spans
from tinygrad.simulation import ClusterError, cluster_of
from tinygrad.simulation.machine import PRESETS
from tinygrad.simulation.session import standing_for, target_named
from tinygrad.solver.auto.machine import machine_of

FILE = """
name = "ours"
overlap = false
[device]
name = "X1"
flops = { bfloat16 = 4e14, float32 = 1e14 }
vector = 5e13
bandwidth = 2e12
memory = 64e9
overhead = 1e-6
target = "sm_80x108"
[[level]]
name = "board"
size = 4
bandwidth = 3e11
latency = 1e-6
topology = "ring"
[[level]]
size = 16
bandwidth = 2.5e10
latency = 0
"""


def written(tmp_path, text):
  (tmp_path / "c.toml").write_text(text)
  return str(tmp_path / "c.toml")


def test_a_text_names_hosts_of_devices():
  found = cluster_of("h100x8:64")
  assert (len(found), [level.size for level in found.levels], found.chip.name) == (512, [8, 64], "H100 SXM")
  assert [len(cluster_of(text)) for text in ("h100", "h100:2", "h100x4", "A100x2:3", "cpux4:1")] == [8, 16, 4, 6, 4]
  assert cluster_of(found) is found


def test_every_preset_says_where_its_figures_are_from():
  for name, preset in PRESETS.items():
    chip = cluster_of(name).chip
    assert "data sheet" in preset.sheet or "assumed" in preset.sheet
    assert min(chip.bandwidth, chip.vector, chip.memory, chip.host, *(r for _, r in chip.flops), 1) > 0
    assert target_named(chip.target).name


def test_a_file_is_a_cluster(tmp_path):
  found = cluster_of(written(tmp_path, FILE))
  chip = Chip("X1", (("bfloat16", 4e14), ("float32", 1e14)), 5e13, 2e12, 64e9, 32e9, 1e-6, "sm_80x108")
  levels = Level("board", 4, 3e11, 1e-6, "ring"), Level("level[1]", 16, 2.5e10, 0.0, "switch")
  assert found == Cluster("ours", chip, levels, overlap=False)
  assert (chip.rate("bfloat16"), chip.rate("float32"), chip.rate("int8")) == (4e14, 1e14, 5e13)


def test_the_file_of_the_documentation_is_a_cluster(tmp_path):
  page = (Path(__file__).parents[2] / "docs/simulation.md").read_text(encoding="utf-8")
  (text,) = re.findall(r"```toml.*?\n(.*?)```", page, re.S)
  found = cluster_of(written(tmp_path, text))
  assert (len(found), found.chip.rate("bfloat16"), found.overlap) == (512, 7e14, True)
  assert target_named(found.chip.target).cores


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ("", "[[", r"c\.toml: no TOML"),
    ("[device]", "[gadget]", r"device is missing"),
    ("[device]", "device = 1\n[gadget]", r"device is no table"),
    ("overlap = false", "overlap = 1", r"overlap = 1 is neither true nor false"),
    ('name = "ours"', "name = 3", r"name = 3 is no text"),
    ('name = "ours"', "latancy = 3", r"latancy means nothing here(.|\n)*fix: "),
    ("bandwidth = 2e12", "", r"device\.bandwidth is missing(.|\n)*fix: bandwidth = "),
    ("bandwidth = 2e12", "bandwith = 2e12", r"device\.bandwith means nothing here(.|\n)*fix: bandwidth"),
    ("memory = 64e9", 'memory = "64 GB"', r"device\.memory = '64 GB' is no number above 0"),
    ("memory = 64e9", "memory = true", r"device\.memory = True is no number"),
    ("memory = 64e9", "memory = -1", r"device\.memory = -1 is no number"),
    ("float32 = 1e14", "float32 = 0", r"device\.flops\.float32 = 0 is no number above 0"),
    ("size = 4", "size = 4.5", r"level\[0\]\.size = 4\.5 is no whole number"),
    ("latency = 0\n", "latency = -1\n", r"level\[1\]\.latency = -1 is no number of at least 0"),
    ('"ring"', '"torus"', r"topology = 'torus' is none of switch, ring, memory"),
    (FILE[FILE.index("[[level]]") :], "", r"level is missing"),
    ("[[level]]\nname", "[level]\nname", r"no TOML|level is no list of tables"),
  ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, old, new, said):
  assert old in FILE
  with pytest.raises(ClusterError, match=said):
    cluster_of(written(tmp_path, FILE.replace(old, new, 1) if old else new))


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("h100x8:64:2", "is no cluster(.|\n)*fix: 'h100x8:64'"),
    ("h10x8", "there is no preset 'h10'(.|\n)*fix: 'h100x8:1'"),
    ("h100x0", "one device at least(.|\n)*fix: 'h100x1:1'"),
    ("missing.toml", "missing.toml: No such file(.|\n)*fix: "),
  ],
)
def test_what_is_no_cluster_is_said(text, said):
  with pytest.raises(ClusterError, match=said):
    cluster_of(text)


def test_a_target_that_is_none_is_said():
  with pytest.raises(ClusterError, match=r"'sm_x' is no target\n  fix: target = 'sm_90x132'"):
    target_named("sm_x")


# ---------------------------------------------------------------- levels


def members(shape, axis):
  """The groups of device numbers along an axis of a mesh, one by one."""
  groups = {}
  for d, at in enumerate(itertools.product(*map(range, shape))):
    groups.setdefault(at[:axis] + at[axis + 1 :], []).append(d)
  return list(groups.values())


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (2, 16), (32, 1), (3, 8), (5, 5), (6, 4)])
def test_spans_are_of_the_group_that_reaches_farthest(shape):
  """The oracle counts the units of each group by sets."""
  sizes = 4, 2, 4
  cluster = Cluster("x", cluster_of("h100").chip, tuple(Level(f"{i}", n, 1.0, 1.0) for i, n in enumerate(sizes)))
  mesh = Mesh([f"NULL:{i}" for i in range(math.prod(shape))], shape, ("a", "b"))
  for axis, name in enumerate("ab"):
    counts = [[len({d // math.prod(sizes[:k]) for d in group}) for k in range(4)] for group in members(shape, axis)]
    worst = max(counts, key=lambda c: c[::-1])
    got = spans(cluster.sizes, mesh.devices, (mesh.sub_axis(name),))
    assert got == tuple(a / b for a, b in zip(worst, worst[1:])) and math.prod(got) * worst[-1] == shape[axis]


def test_auto_knows_the_cluster_that_devices_stand_for():
  mesh = Mesh([f"NULL:{i}" for i in range(16)], (2, 8), ("dp", "tp"))
  assert machine_for(mesh) == machine_of("NULL:0") == H100
  with standing_for(cluster_of("h100x8:2")):
    found = machine_for(mesh)
    assert machine_for(Mesh(("CPU:0", "CPU:1"), names=("dp",))) == machine_of("CPU")
  assert found.link == {"dp": 50e9, "tp": 450e9} and (found.flops, found.bandwidth) == (989e12, 3.35e12)
  assert machine_for(mesh) == H100
