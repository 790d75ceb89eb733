"""What is read back of a mesh or a placement gives it again: `.mesh` and `.spec`, and `repr`, which is code."""

import random

import numpy as np
import pytest

import tinygrad
from tinygrad import Mesh, Ops, P, ShardError, Sharding, Tensor
from tinygrad.device import Partial, SubAxis
from tinygrad.helpers import prod
from tinygrad.uop import UOp

NAMES = {name: getattr(tinygrad, name) for name in tinygrad.__all__}  # from tinygrad import *
D4 = tuple(f"CPU:{i}" for i in range(4))
M22 = Mesh(D4, (2, 2), ("dp", "tp"))
SEEDS = range(400)


def factored(rng, n):
  """n as a product, in some order."""
  out = []
  while n > 1:
    k = rng.choice([k for k in range(2, n + 1) if n % k == 0])
    out.append(k)
    n //= k
  return out or [1]


def random_mesh(rng):
  n, first = rng.choice((2, 4, 6, 8, 12, 16, 24, 36)), rng.choice((0, 0, 1, 7))
  devices = [f"NULL:{first + i}" for i in range(n)]
  if rng.random() < 0.2:
    rng.shuffle(devices)
  shape = factored(rng, n)
  if rng.random() < 0.2:
    shape.insert(rng.randrange(len(shape) + 1), 1)
  axes = rng.sample(("x", "dp", "tp", "a.b", "c-d", "_e", "2", "pp", "ep"), len(shape))
  return rng.choice((Mesh(devices, shape, axes), Mesh(devices, shape), Mesh(devices)))


def random_sharding(rng, mesh):
  """Sub-axes of a divisor chain of the devices' number, wherever the mesh's axes begin and end: on dims in any order,
  partial, disjoint, or in none."""
  dims = [[], [], []]
  partial = []
  stride = 1
  for size in factored(rng, len(mesh)):
    sub_axis, stride = SubAxis(size, stride), stride * size
    match rng.randrange(4):
      case 0:
        partial.append(Partial((sub_axis,), rng.choice((Ops.ADD, Ops.MAX)), rng.random() < 0.3))
      case 1 | 2:
        dim = rng.choice(dims)
        dim.insert(rng.randrange(len(dim) + 1), sub_axis)
  return Sharding.of(mesh, dims, partial)


def samples():
  for seed in SEEDS:
    rng = random.Random(seed)
    mesh = random_mesh(rng)
    placement = random_sharding(rng, mesh)
    others = (Mesh(mesh.devices, factored(rng, len(mesh))) for _ in range(2))
    yield seed, placement, rng.choice((mesh, *others))


def write(placement, mesh):
  """Writes a placement in the names of a mesh, as who places a value on that mesh does."""
  names = [tuple(name for d in dim for name in mesh.axes_of((d,))) for dim in placement.dims]
  owed = {name: o.op for o in placement.partial for d in o.sub_axes for name in mesh.axes_of((d,))}
  disjoint = [name for o in placement.partial if o.disjoint for d in o.sub_axes for name in mesh.axes_of((d,))]
  return Sharding(mesh, P(*names), owed, disjoint)


def test_a_mesh_and_its_spec_give_the_placement():
  kinds = {"crosses": 0, "sub-axis": 0, "several": 0, "partial": 0}
  for seed, placement, mesh in samples():
    assert write(placement, mesh) is placement, seed
    spec = placement.spec
    assert placement.mesh is mesh and Sharding(mesh, spec) is placement.reduced, (seed, placement)
    assert type(spec) is P and placement.reduced.spec is not None
    kinds["crosses"] += "@" in str(spec)
    kinds["sub-axis"] += ":(" in str(spec)
    kinds["several"] += any(isinstance(entry, tuple) for entry in spec)
    kinds["partial"] += bool(placement.partial)
  assert min(kinds.values()) >= 15, kinds


def survivors(mutant):
  """How many placements a wrong way to write a spec gives again."""
  count = 0
  for _, placement, mesh in samples():
    try:
      count += Sharding(mesh, mutant(mesh, placement)) is placement.reduced
    except ShardError:
      pass
  return count


def test_wrong_specs_are_noticed():
  by_place = survivors(lambda m, p: P(*(m.axes_of(dim) for dim in p.dims)))  # in the order of the mesh, not of the dim
  backwards = survivors(lambda m, p: P(*(tuple(n for d in dim[::-1] for n in m.axes_of((d,))) for dim in p.dims)))
  named = survivors(lambda m, p: P(*(tuple(n for n in m.axes_of(dim) if "@" not in n) for dim in p.dims)))  # axes alone
  assert max(by_place, backwards, named) < len(SEEDS) - 15, (by_place, backwards, named)


def test_repr_is_code():
  for seed, placement, mesh in samples():
    write(placement, mesh)
    for x in (placement, placement.reduced, mesh, placement.spec):
      assert eval(repr(x), dict(NAMES)) is x, (seed, repr(x))
    assert placement.mesh is mesh, f"{seed}: evaluating it changed the names"


def test_repr_of_the_everyday_forms():
  line = Mesh(D4)
  assert repr(line) == "Mesh(('CPU', 'CPU:1', 'CPU:2', 'CPU:3'))"
  assert repr(M22) == "Mesh(('CPU', 'CPU:1', 'CPU:2', 'CPU:3'), (2, 2), ('dp', 'tp'))"
  assert repr(Mesh([f"NULL:{i}" for i in range(2, 18)])) == "Mesh([f'NULL:{i}' for i in range(2, 18)])"
  assert repr(Sharding(D4, 1)) == "Sharding(('CPU', 'CPU:1', 'CPU:2', 'CPU:3'), axis=1)"
  assert repr(Sharding(D4)) == "Sharding(('CPU', 'CPU:1', 'CPU:2', 'CPU:3'))"
  assert repr(Sharding(M22, P("dp"))) == f"Sharding({M22!r}, P('dp'))"
  owed = Sharding(M22, P(None, "tp"), partial={"dp": Ops.MAX}, disjoint=("dp",))
  assert repr(owed) == f"Sharding({M22!r}, P(None, 'tp'), partial={{'dp': Ops.MAX}}, disjoint=('dp',))"
  assert owed is Sharding.of(M22, [(), (SubAxis(2, 1),)], [Partial((SubAxis(2, 2),), Ops.MAX, True)])


def test_names_of_other_types_of_string():
  mesh = Mesh(D4, np.array([2, 2]), np.array(["from", "numpy"]))
  spec = P(np.str_("from"), (np.str_("numpy"),))
  assert repr(mesh) == f"Mesh({mesh.devices}, (2, 2), ('from', 'numpy'))" and repr(spec) == "P('from', ('numpy',))"
  assert repr(P(P("nested"))) == "P(('nested',))"


def test_what_messages_print_stays_short():
  owed = Sharding(M22, P("dp"), partial={"tp": Ops.ADD})
  assert f"{M22}, {Mesh(D4)}" == "Mesh(CPU:0-3, dp=2, tp=2), Mesh(CPU:0-3, x=4)"
  assert str(owed) == "Sharding(CPU:0-3: dp, partial by add over tp)" and str(P("dp")) == "P('dp')"
  moved = UOp.buffer((4,), tinygrad.dtypes.float32, "CPU").move(Sharding(M22, P("dp")), pinned=True)
  assert repr(moved.arg) == "Move(device=Sharding(CPU:0-3: dp), pinned=True)"
  assert repr(moved.src[0].arg).endswith("shape=(4,), device='CPU')")


def test_a_tensors_placement_is_read_back():
  t = Tensor.empty(4, 6, 4).shard(M22, P(None, "dp", "tp"))
  assert t.device.mesh is M22 and t.device.spec is P(None, "dp", "tp")
  other = Mesh(D4, (2, 2), ("rows", "columns"))
  assert Tensor.empty(4, 6, 4).shard(other, P(None, "rows", "columns")).device is t.device
  assert t.device.mesh is other and t.device.spec is P(None, "rows", "columns")  # as it was last written
  assert (t.sum(1) + 1).shard(t.device.mesh, t.device.spec[:1]).device is Sharding(D4)


def test_a_sub_axis_that_crosses_axes_has_a_name():
  mesh = Mesh([f"NULL:{i}" for i in range(12)], (4, 3), ("a", "b"))
  assert mesh.sub_axis("2@2") == SubAxis(2, 2) and mesh.axes_of((SubAxis(2, 2),)) == ("2@2",)
  assert Sharding(mesh, P("12@1")).spec is P(("a", "b"))
  for wrong in ("5@1", "2@5", "0@1", "2@0"):
    with pytest.raises(ShardError, match="does not divide 12 devices"):
      mesh.sub_axis(wrong)


@pytest.mark.parametrize("shape", [(2, 2), (4,), (2, 3), (8, 1)])
def test_equal_specs_are_one_object(shape):
  names = [f"a{i}" for i in range(len(shape))]
  assert P(*names, tuple(names)) is P(*names, list(names)) and P(P(*names)) is P(tuple(names))
  assert prod(shape) == len(Mesh([f"NULL:{i}" for i in range(prod(shape))], shape, names))
