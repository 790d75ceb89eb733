"""What items take, by hand; bytes as `explain` has them; more bandwidth is never slower."""

import math
import random
from dataclasses import replace

import pytest

from tinygrad import Context, Mesh, P, Sharding, Tensor
from tinygrad.debug import cost
from tinygrad.debug.cost import phases, roofline
from tinygrad.debug.estimate import Estimate
from tinygrad.device import SubAxis
from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.sharding import explain
from tinygrad.sharding.moves import Step
from tinygrad.simulation import cluster_of, simulate

CHIP = Chip("c", (("bfloat16", 100.0), ("float32", 10.0)), 5.0, 20.0, 1e12, 4.0, 0.5)
TWO = Cluster("two", CHIP, (Level("in", 4, 8.0, 0.25), Level("out", 2, 2.0, 1.0)))
EIGHT = tuple(f"NULL:{i}" for i in range(8))


def test_a_kernel_takes_the_longer_of_its_work_and_its_bytes():
  products = Estimate("r", 0, 40, (("bfloat16", 1000), ("float32", 20)), 10)
  assert roofline(products, CHIP) == (1000 / 100 + 20 / 10 + 10 / 5 + 0.5, "operations")
  assert roofline(replace(products, nbytes=600), CHIP) == (600 / 20 + 0.5, "memory")
  assert roofline(Estimate("E", 0, 4), CHIP) == (4 / 20 + 0.5, "overhead")


def test_float32_on_matrix_cores_is_asked_for():
  chip, work = replace(CHIP, flops=(*CHIP.flops, ("tf32", 50.0))), Estimate("r", 0, 0, (("float32", 100),))
  assert roofline(work, chip)[0] == 100 / 10 + 0.5
  with Context(ALLOW_TF32=1):
    assert (roofline(work, chip)[0], roofline(work, CHIP)[0]) == (100 / 50 + 0.5, 100 / 10 + 0.5)


def taken(kind, axis, nbytes, cluster=TWO, devices=EIGHT):
  step = Step(kind, "", "", (axis,), 0.0, nbytes)
  return [(p.level, p.nbytes, p.seconds) for p in phases(step, devices, cluster)]


@pytest.mark.parametrize(
  ("kind", "axis", "want"),
  [
    ("all_gather", SubAxis(4, 1), [("in", 56, 56 / 8 + 2 * 0.25)]),  # within a unit: two rounds of doubling
    ("all_reduce", SubAxis(4, 1), [("in", 56, 56 / 8 + 4 * 0.25)]),
    ("all_gather", SubAxis(2, 4), [("out", 56, 56 / 2 + 1.0)]),  # across
    # both: of the 7 parts that a device receives 6 come over the inner level, 3/4 of the whole, and 1 over the outer
    ("reduce_scatter", SubAxis(8, 1), [("in", 48, 48 / 8 + 2 * 0.25), ("out", 8, 8 / 2 + 1.0)]),
    ("all_reduce", SubAxis(8, 1), [("in", 48, 48 / 8 + 4 * 0.25), ("out", 8, 8 / 2 + 2 * 1.0)]),
    ("all_to_all", SubAxis(8, 1), [("in", 24, 24 / 8 + 3 * 0.25), ("out", 32, 32 / 2 + 4 * 1.0)]),  # 3 and 4 peers
    ("permute", SubAxis(8, 1), [("out", 56, 56 / 2 + 1.0)]),
    ("permute", SubAxis(4, 1), [("in", 56, 56 / 8 + 0.25)]),
  ],
)
def test_a_communication_by_hand(kind, axis, want):
  assert taken(kind, axis, 56.0) == want


def test_rounds_are_by_the_topology():
  for topology, rounds in (("switch", 2), ("ring", 3), ("memory", 1)):
    cluster = replace(TWO, levels=(replace(TWO.levels[0], topology=topology), TWO.levels[1]))
    assert taken("all_gather", SubAxis(4, 1), 56.0, cluster) == [("in", 56, 56 / 8 + rounds * 0.25)]


@pytest.mark.parametrize("seed", range(40))
def test_levels_share_the_bytes_and_more_bandwidth_is_never_slower(seed):
  rng = random.Random(seed)
  sizes = [rng.choice([1, 2, 3, 4, 8]) for _ in range(3)]
  levels = tuple(
    Level(str(i), n, 10 ** rng.uniform(6, 12), rng.random() * 1e-5, rng.choice(["switch", "ring", "memory"]))
    for i, n in enumerate(sizes)
  )
  cluster, n = Cluster("c", CHIP, levels), math.prod(sizes)
  if n == 1:
    return
  shape = rng.choice([(n,), *((d, n // d) for d in range(2, n) if n % d == 0)])
  mesh = Mesh([f"NULL:{i}" for i in range(n)], shape, ("a", "b")[: len(shape)])
  axis = mesh.sub_axis(rng.choice(mesh.names))
  for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "permute"):
    found = taken(kind, axis, 1e6, cluster, mesh.devices)
    assert sum(nbytes for _, nbytes, _ in found) == pytest.approx(1e6)
    for i, level in enumerate(levels):
      more = replace(cluster, levels=(*levels[:i], replace(level, bandwidth=2 * level.bandwidth), *levels[i + 1 :]))
      assert all(b[2] <= a[2] for a, b in zip(found, taken(kind, axis, 1e6, more, mesh.devices), strict=True))


# ---------------------------------------------------------------- as explain has it

MESH = Mesh(EIGHT, (2, 4), ("a", "b"))
ONE = Mesh(EIGHT, names=("a",))


def value(*shape, at=None, mesh=MESH):
  at = P() if at is None else at
  return Tensor.empty(*shape, device=Sharding(mesh, at))


def trained(loss, *weights):
  return [loss, *(w - 0.1 * g for w, g in zip(weights, loss.gradient(*weights)))]


def mlp(x, up, down):
  return trained(
    ((value(64, 128, at=x) @ (u := value(128, 256, at=up))).relu() @ (d := value(256, 128, at=down))).square().mean(),
    u,
    d,
  )


PROGRAMS = {
  "dp": lambda: mlp(P(("a", "b")), P(), P()),
  "tp": lambda: mlp(P(), P(None, "b"), P("b")),
  "dp and tp": lambda: mlp(P("a"), P(None, "b"), P("b")),
  "fsdp": lambda: mlp(P(("a", "b")), P(("a", "b")), P(("a", "b"))),
  "large all-reduce": lambda: [value(1 << 20, 8, at=P(None, "b")).sum(1)],
  "uneven": lambda: [value(50, 30, at=P("b"), mesh=MESH) @ value(30, 13, at=P("a")), value(11, at=P("b")).sum()],
  "all to all": lambda: [value(64, 64, at=P("b")).shard(Sharding(MESH, P(None, "b")))],
  "halo": lambda: [value(1, 1, 64, 16, at=P(None, None, "a"), mesh=ONE).conv2d(value(1, 1, 3, 3, mesh=ONE), padding=1)],
  "flip": lambda: [value(64, 16, at=P("a"), mesh=ONE).flip(0) + 1.0],
  "cat": lambda: [value(64, 16, at=P("a"), mesh=ONE).cat(value(32, 16, at=P("a"), mesh=ONE))],
  "lookup": lambda: [value(64, 16, at=P("b"))[Tensor.empty(32, dtype="int32", device=Sharding(MESH, P("a")))].sum()],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cluster", ["h100x8:1", "h100x4:2", "h100x2:4"])
def test_each_device_receives_what_explain_says(name, cluster):
  wire = explain(*PROGRAMS[name]()).wire
  found = simulate(PROGRAMS[name], cluster=cluster)
  assert wire > 0 and found.wire == pytest.approx(wire, rel=1e-9)
  levels = found.timeline.received(0)
  assert set(levels) <= {level.name for level in cluster_of(cluster).levels if level.size > 1}


def innermost_only(step, devices, cluster):
  return phases(step, devices, cluster)[:1]


def all_on_each(step, devices, cluster):
  return [replace(p, nbytes=step.nbytes) for p in phases(step, devices, cluster)]


def half_an_all_reduce(step, devices, cluster):
  found = phases(step, devices, cluster)
  return [replace(p, nbytes=p.nbytes / 2) for p in found] if step.kind == "all_reduce" else found


@pytest.mark.parametrize("mutant", [innermost_only, all_on_each, half_an_all_reduce])
def test_wrong_bytes_are_noticed(monkeypatch, mutant):
  wire = {name: explain(*PROGRAMS[name]()).wire for name in ("dp", "dp and tp", "fsdp")}
  monkeypatch.setattr(cost, "phases", mutant)
  assert any(simulate(PROGRAMS[n], cluster="h100x2:4").wire != pytest.approx(wire[n], rel=1e-9) for n in wire)


@pytest.mark.parametrize("name", ["dp and tp", "fsdp"])
def test_a_faster_machine_is_never_slower(name):
  start = cluster_of("h100x4:2")
  before = simulate(PROGRAMS[name], cluster=start).seconds
  chip, (inner, outer) = start.chip, start.levels
  flops = tuple((d, 4 * rate) for d, rate in chip.flops)
  times = [
    simulate(PROGRAMS[name], cluster=faster).seconds
    for faster in (
      replace(start, chip=replace(chip, bandwidth=4 * chip.bandwidth)),
      replace(start, chip=replace(chip, flops=flops, vector=4 * chip.vector)),
      replace(start, chip=replace(chip, overhead=0.0)),
      replace(start, levels=(replace(inner, bandwidth=4 * inner.bandwidth), outer)),
      replace(start, levels=(inner, replace(outer, bandwidth=4 * outer.bandwidth))),
      replace(start, levels=(inner, replace(outer, latency=0.0))),
    )
  ]
  assert max(times) <= before and sum(t < before for t in times) >= 4
