"""Bytes and steps of moves, against counting the elements themselves."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from extra import reshard_cases
from tinygrad import Context, Device, Tensor
from tinygrad.device import Mesh, P, Partial, Sharding, SubAxis
from tinygrad.device.sub_axes import atoms, boundaries, size_of
from tinygrad.sharding import explain
from tinygrad.sharding.moves import nests, plan, wire
from tinygrad.uop import Ops

M = Mesh([f"NULL:{i}" for i in range(12)], (2, 2, 3), ("a", "b", "c"))
CUTS = [
  (),
  ("a",),
  (None, "a"),
  ("b", "a"),
  (("a", "b"),),
  (("b", "a"),),
  (None, ("a", "b", "c")),
  ("c", "b"),
  (("a", "b", "c"),),
  ("a:(1)2",),
]


def cells(p, d, shape):
  return set(itertools.product(*(range(lo, hi) for lo, hi in p.box(d, shape))))


@pytest.mark.parametrize("shape", [(12, 12), (5, 7), (1, 2), (13, 3)], ids=str)
def test_a_change_of_cut_costs_the_elements_that_are_not_there_yet(shape):
  for x, y in itertools.product(CUTS, CUTS):
    a, b = Sharding(M, P(*x)), Sharding(M, P(*y))
    counted = max(len(cells(b, d, shape) - cells(a, d, shape)) for d in range(len(M)))
    assert wire(shape, 4, a, b) == 4 * counted, (a, b)
    if counted == 0 and a is not b:
      assert all(s.nbytes == 0 for s in plan(shape, 4, a, b))


def test_kinds():
  def kind(x, y):
    return [s.kind for s in plan((12, 12), 4, Sharding(M, P(*x)), Sharding(M, P(*y)))]

  assert kind(("a",), ()) == ["all_gather"]
  assert kind((), ("a",)) == ["slice"]
  assert kind(("a",), (("a", "b"),)) == ["slice"]
  assert kind(("a",), (None, "a")) == ["all_to_all"]
  assert kind(("a",), ("b",)) == ["permute"]
  assert plan((12, 12), 4, Sharding(M, 0), Sharding(M, 0)) == ()


def unreduced(cut, *axes, op=Ops.ADD):
  return Sharding.of(M, Sharding(M, P(*cut)).dims, [Partial(tuple(M.sub_axis(a) for a in axes), op)])


def test_partial_values_are_reduced_or_scattered():
  """Ring figures: an all-reduce over n moves 2(n-1)/n of the block, a reduce-scatter (n-1)/n."""
  block = 12 * 12 * 4
  assert wire((12, 12), 4, unreduced((), "a"), Sharding(M)) == block
  assert wire((12, 12), 4, unreduced((), "c"), Sharding(M)) == pytest.approx(2 * block * 2 / 3)
  assert wire((12, 12), 4, unreduced((), "c"), Sharding(M, P("c"))) == pytest.approx(block * 2 / 3)
  steps = plan((12, 12), 4, unreduced((), "a"), Sharding(M, P("b")))
  assert [s.kind for s in steps] == ["slice", "all_reduce"]  # cut first: half is left to reduce
  assert sum(s.nbytes for s in steps) == block / 2
  assert [s.kind for s in plan((12, 12), 4, unreduced((), "a", "b"), Sharding(M, P("a")))] == [
    "reduce_scatter",
    "all_reduce",
  ]


def test_flat_blocks_of_an_uneven_dim_do_not_nest():
  assert nests(12, 2, 4)
  assert not nests(5, 2, 4)
  assert nests(5, 1, 4)
  assert [s.kind for s in plan((5,), 4, Sharding(M, P("a")), Sharding(M, P(("a", "b"))))] == ["all_to_all"]


def test_between_device_sets_every_device_receives_its_own_part():
  p = Sharding(M, P("a"))
  assert wire((12, 12), 4, "NULL:50", p) == 12 * 12 * 4 / 2
  assert wire((12, 12), 4, p, "NULL:50") == 12 * 12 * 4


def test_sub_axes_are_refined_at_common_boundaries():
  chain = boundaries(12, [(SubAxis(4, 3),), (SubAxis(2, 3),)])
  assert chain == (1, 3, 6, 12)
  assert atoms((SubAxis(4, 3),), chain) == (SubAxis(2, 6), SubAxis(2, 3))
  assert atoms((SubAxis(3, 4),), chain) is None


def test_a_reduction_that_cannot_be_scattered_in_place_is_scattered_elsewhere():
  """`b` wants the partial axis before one that cuts already: reduce-scatter along another dim, then exchange."""
  a, b = unreduced(("b",), "a"), Sharding(M, P("a", "b"))
  steps = plan((12, 12), 4, a, b)
  assert [s.kind for s in steps] == ["reduce_scatter", "all_to_all"] or [s.kind for s in steps] == [
    "reduce_scatter",
    "permute",
  ]
  block = 12 * 12 * 4 / 2
  assert sum(s.nbytes for s in steps) <= block / 2 + block / 2 < block + block / 2  # an all-reduce, then an exchange


def test_what_nothing_cuts_is_sliced_before_it_travels():
  steps = plan((16, 8), 4, Sharding(M, P("a")), Sharding(M, P(None, "b")))
  assert [(s.kind, size_of(s.sub_axes)) for s in steps] == [("slice", 1), ("all_gather", 2)]
  assert (steps[1].payload, steps[1].nbytes) == (16 * 8 * 4 / 2, 16 * 8 * 4 / 4)


def test_another_order_of_the_same_devices_is_an_exchange():
  back = Mesh(M.devices[::-1])
  (step,) = plan((12,), 4, Sharding(M, P(("a", "b", "c"))), Sharding(back, 0))
  assert (step.kind, size_of(step.sub_axes), step.nbytes) == ("permute", 12, 4)
  assert wire((12,), 4, Sharding(M), Sharding(back)) == 0  # everybody has it


# ---------------------------------------------------------------- every plan is carried out and gives the same values

AXES = ["a", "b", "c", "a:(1)2", "c:(1)3", ("a", "b"), ("c", "a"), ("b", "c", "a"), None, None]


def draw(rng, mesh, rank):
  """A random placement: each mesh axis cuts at most one dim."""
  dims, used = [], set()
  for _ in range(rank):
    entry = rng.choice(AXES)
    names = {n.partition(":")[0] for n in ((entry,) if isinstance(entry, str) else entry or ())}
    dims.append(None if names & used else entry)
    used |= names if dims[-1] else set()
  return Sharding(mesh, P(*dims))


def reshards(seed, count, mesh, interpret):
  """Values after a random move, and after one that reduces, are what they were; no plan moves less than the
  elements that a device lacks."""
  rng = random.Random(seed)
  for _ in range(count):
    shape = tuple(rng.choice((1, 2, 5, 7, 12)) for _ in range(rng.randint(1, 3)))
    value = np.array([rng.randint(-9, 9) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)
    a, b = draw(rng, mesh, len(shape)), draw(rng, mesh, len(shape))
    axis = rng.randrange(len(shape))
    with Context(INTERPRET=int(interpret)):
      x = Tensor(value).shard(a).realize()
      moved, reduced = x.to(b).realize(), x.sum(axis, keepdim=True).to(b).realize()
      assert (moved.device, reduced.device) == (b, b)
      for got, want in ((moved, value), (reduced, value.sum(axis, keepdims=True))):
        for d, part in enumerate(got.shards):
          box = tuple(slice(lo, hi) for lo, hi in b.box(d, want.shape))
          np.testing.assert_array_equal(part.numpy(), want[box], err_msg=f"{shape} {a} -> {b}, device {d}")


@pytest.mark.parametrize("seed", range(6))
def test_random_reshards_interpreted(seed):
  reshards(seed, 6, Mesh([f"CPU:{i}" for i in range(12)], (2, 2, 3), ("a", "b", "c")), True)


@pytest.mark.parametrize("seed", range(3))
def test_random_reshards_compiled(seed):
  reshards(100 + seed, 2, Mesh([f"CPU:{i}" for i in range(6)], (2, 1, 3), ("a", "b", "c")), False)


# ---------------------------------------------------------------- Shardy's sequences

SHARDY = Path(__file__).parents[1] / "data" / "shardy_reshard.json"


def test_shardys_sequences_are_met_or_beaten(capsys):
  assert reshard_cases.main([str(SHARDY)]) == 0
  last = capsys.readouterr().out.splitlines()[-1]
  assert last == f"{len(json.loads(SHARDY.read_text())['cases'])} passed, 0 failed"


def test_a_case_that_lists_too_little_fails(tmp_path, capsys):
  case = next(c for c in json.loads(SHARDY.read_text())["cases"] if c["name"] == "all_gather_single_axis")
  case["collectives"] = []
  (tmp_path / "cases.json").write_text(json.dumps({"cases": [case]}))
  assert reshard_cases.main([str(tmp_path / "cases.json")]) == 1
  assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize("to,inside", [("NULL:0", True), ("NULL:7", True), ("NULL:12", False)])
def test_a_reduction_to_one_device_goes_to_no_other(to, inside, op):
  """Each device reduces a block, of which the one collects all: an all-reduce would send every device the whole."""
  to = Device.canonicalize(to)
  for cut, axes in (((), ("a", "b", "c")), ((), ("c",)), (("a",), ("b", "c")), ((None, "b"), ("c", "a"))):
    a = unreduced(cut, *axes, op=op)
    n, block = size_of(d for o in a.partial for d in o.sub_axes), 4 * np.prod(a.local_shape((24, 48)))
    steps = plan((24, 48), 4, a, to)
    assert [s.kind for s in steps] == ["reduce_scatter", "copy"] and not steps[0].b.partial and steps[-1].b == to
    mine = block / n if inside else 0
    assert [s.nbytes for s in steps] == [block * (n - 1) / n, 4 * 24 * 48 - mine]
    assert steps[0].nbytes < wire((24, 48), 4, a, a.reduced)
  for shape in ((5,), (7, 3), (1, 1)):  # blocks need not be equal, nor any to be there for each
    assert [s.kind for s in plan(shape, 4, unreduced((), "a", "b", "c", op=op), to)][0] == "reduce_scatter"
  number = unreduced((), "a", "b", "c", op=op)
  assert plan((), 4, number, to) == plan((1,), 4, number, to)


@pytest.mark.parametrize("to", ["CPU:0", "CPU:3", "CPU:7"])
@pytest.mark.parametrize("shape", [(8,), (8, 5), (8, 1), (8, 7, 3), (8, 1, 2)], ids=str)
def test_uneven_blocks_are_collected_by_one_device(shape, to):
  d4 = tuple(f"CPU:{i}" for i in range(4))
  x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
  y = Tensor(x).shard(d4, 0).realize().sum(0).to(to)
  assert [m.kind for m in explain(y)] in (["reduce_scatter", "copy"], ["reduce_scatter"])
  np.testing.assert_array_equal(y.numpy(), x.sum(0))


@pytest.mark.parametrize("to", ["CPU:0", "CPU:2", "CPU:7"])
def test_a_row_parallel_product_read_by_one_device(to):
  d4 = tuple(f"CPU:{i}" for i in range(4))
  x, w = (np.random.default_rng(i).integers(-3, 4, s).astype(np.float32) for i, s in enumerate(((8, 16), (16, 6))))
  y = (Tensor(x).shard(d4, 1).realize() @ Tensor(w).shard(d4, 0).realize()).to(to)
  moves, block = explain(y), 8 * 6 * 4
  assert [(m.kind, m.wire) for m in moves] == [
    ("reduce_scatter", block * 3 / 4),
    ("copy", block if to == "CPU:7" else block * 3 / 4),
  ]
  np.testing.assert_array_equal(y.numpy(), x @ w)
  assert y.device == Device.canonicalize(to)
