"""Where ops run: everyday placements, what has to move for them, and the errors of operands that do not go together."""

import time

import pytest

import tinygrad.sharding  # noqa: F401
from tinygrad.device import Mesh, P, Partial, ShardError, Sharding
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.sharding import explain
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

TWO = ("NULL:0", "NULL:1")
GRID = Mesh([f"NULL:{i}" for i in range(4)], (2, 2), ("dp", "tp"))


def leaf(*shape, cut=(), mesh=GRID, dtype=dtypes.float32):
  return UOp.buffer(shape, dtype, Sharding(mesh, P(*cut)))


def at(mesh, *cut):
  return Sharding(mesh, P(*cut))


def matmul(a, b):
  (*rows, k), n = a.shape, b.shape[-1]
  wide = (*rows, k, n)
  left = a.reshape((*rows, k, 1)).expand(wide)
  right = (
    b.reshape((1,) * (len(wide) - b.ndim) + b.shape).expand(wide)
    if b.ndim == 2
    else b.reshape((*b.shape[:-2], 1, *b.shape[-2:])).expand(wide)
  )
  return (left * right).r(Ops.ADD, (len(rows),)).reshape((*rows, n))


def kinds(*roots):
  return [m.kind for m in explain(*roots)]


def test_elementwise_keeps_uncontested_cuts():
  x, y = leaf(8, 6, cut=("dp",)), leaf(8, 6, cut=(None, "tp"))
  z = x + y
  assert z.device is at(GRID, "dp", "tp")
  assert kinds(z) == []  # slices only


def test_a_contested_sub_axis_goes_where_fewer_bytes_travel():
  big, row = leaf(512, 64, cut=("dp",)), leaf(1, 64, cut=(None, "dp")).expand((512, 64))
  z = big * row
  assert z.device is at(GRID, "dp")
  moves = explain(z)
  assert [m.kind for m in moves] == ["all_gather"]
  assert moves[0].wire == 32 * 4  # the row below its EXPAND, not the matrix


def test_a_tie_goes_to_the_first_operand():
  x, y = leaf(8, 8, cut=("dp",)), leaf(8, 8, cut=(None, "dp"))
  assert (x + y).device is at(GRID, "dp")
  assert (y + x).device is at(GRID, None, "dp")


def test_reshape_maps_sub_axes_through_compound_factors():
  x = leaf(1024, mesh=Mesh([f"NULL:{i}" for i in range(8)]), cut=("x",))
  y = x.reshape((4, 256))
  assert y.device.parts_ == (4, 2)
  assert y.reshape((1024,)).device is x.device
  assert kinds(y.reshape((1024,))) == []


def test_reshape_of_an_uneven_cut_keeps_other_dims_and_moves_that_one():
  x = leaf(7, 4, cut=("dp", "tp"))
  assert x.reshape((7, 2, 2)).device is at(GRID, "dp", "tp")
  y = x.reshape((28,))  # 7 is not cut evenly in two
  assert y.device.parts_[:1] != (2 * 2,)
  assert kinds(y)


def test_permute_expand_and_reduce():
  x = leaf(8, 1, 6, cut=("dp", None, "tp"))
  assert x.permute((2, 0, 1)).device is at(GRID, "tp", "dp")
  assert x.expand((8, 5, 6)).device is at(GRID, "dp", None, "tp")
  with Context(DEFER=1):
    unreduced = x.r(Ops.MAX, (2,))
  assert unreduced.device.partial == (Partial(GRID.sub_axis("tp") and (GRID.sub_axis("tp"),), Ops.MAX),)
  assert x.r(Ops.MAX, (2,)).device.reduced is at(GRID, "dp")
  assert kinds(x.r(Ops.MAX, (2,))) == ["all_reduce"]
  assert kinds(x.r(Ops.ADD, (1,))) == []


@pytest.mark.parametrize("mesh,x_cut", [(Mesh(TWO, None, ("tp",)), ()), (GRID, ("dp",))])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_transformer_layer_has_two_all_reduces(mesh, x_cut, kv_heads):
  """Megatron's cuts: q, k, v and up by columns, out and down by rows; with grouped key and value heads."""
  b, t, d, h, hd = 2, 8, 32, 4, 8
  x = leaf(b, t, d, cut=x_cut, mesh=mesh)
  wq, wo = leaf(d, h * hd, cut=(None, "tp"), mesh=mesh), leaf(h * hd, d, cut=("tp",), mesh=mesh)
  wk, wv = (leaf(d, kv_heads * hd, cut=(None, "tp"), mesh=mesh) for _ in range(2))
  up, down = leaf(d, 4 * d, cut=(None, "tp"), mesh=mesh), leaf(4 * d, d, cut=("tp",), mesh=mesh)
  q = matmul(x, wq).reshape((b, t, h, hd)).permute((0, 2, 1, 3))
  group = h // kv_heads

  def shared(w):
    y = matmul(x, w).reshape((b, t, kv_heads, 1, hd)).expand((b, t, kv_heads, group, hd))
    return y.reshape((b, t, h, hd)).permute((0, 2, 1, 3))

  k, v = shared(wk), shared(wv)
  scores = matmul(q, k.permute((0, 1, 3, 2)))
  e = (scores - scores.r(Ops.MAX, (3,)).expand(scores.shape)).alu(Ops.EXP)
  weights = e / e.r(Ops.ADD, (3,)).expand(e.shape)
  out = matmul(weights, v).permute((0, 2, 1, 3)).reshape((b, t, h * hd))
  x = x + matmul(out, wo)
  x = x + matmul(matmul(x, up).maximum(0.0), down)
  assert kinds(x) == ["all_reduce", "all_reduce"]
  assert x.device.reduced is at(mesh, *x_cut)


def test_lookup_in_a_table():
  rows = leaf(5, dtype=dtypes.int32)
  assert kinds(leaf(64, 8, cut=("tp",)).gather(rows)) == ["all_reduce"]
  assert leaf(64, 8, cut=(None, "tp")).gather(rows).device is at(GRID, None, "tp")
  assert leaf(64, 8).gather(leaf(6, dtype=dtypes.int32, cut=("dp",))).device is at(GRID, "dp")


def test_what_a_lookup_is_partial_over_is_disjoint():
  with Context(DEFER=1):
    unreduced = leaf(64, 8, cut=("tp",)).gather(leaf(5, dtype=dtypes.int32))
  assert [o.disjoint for o in unreduced.device.partial] == [True]


def test_reductions_by_one_op_have_one_order():
  add, lookup = Partial((GRID.sub_axis("dp"),), Ops.ADD), Partial((GRID.sub_axis("tp"),), Ops.ADD, True)
  assert Sharding.of(GRID, (), (add, lookup)) is Sharding.of(GRID, (), (lookup, add))
  most = Partial((GRID.sub_axis("tp"),), Ops.MAX)  # a sum of maxima is no maximum of sums
  assert Sharding.of(GRID, (), (add, most)) is not Sharding.of(GRID, (), (most, add))


def test_a_contraction_is_placed_as_one_op():
  """x cut by rows, w along the contracted dim. The MUL, blind to the sum, moves the little x; the whole moves less with
  w cut by columns."""
  line = Mesh([f"NULL:{i}" for i in range(8)], None, ("x",))
  x, w = leaf(64, 256, cut=("x",), mesh=line), leaf(256, 1024, cut=("x",), mesh=line)
  product = x.reshape((64, 256, 1)).expand((64, 256, 1024)) * w.reshape((1, 256, 1024)).expand((64, 256, 1024))
  assert product.device is at(line, None, "x")
  assert product.r(Ops.ADD, (1,)).device is at(line, None, None, "x")
  blind = sum(m.wire for m in explain(product)) + 2 * 64 * 1024 * 4 * 7 / 8
  assert sum(m.wire for m in explain(matmul(x, w))) < blind / 2


def test_assign_moves_the_value_to_the_target():
  target, value = leaf(8, 4, cut=("dp",)), leaf(8, 4, cut=(None, "dp"))
  u = target.after(target.assign(value))
  assert u.device is target.device
  assert kinds(u) == ["all_to_all"]


def test_a_value_on_one_device_joins_a_sharded_one():
  x, y = leaf(8, 4, cut=("dp",)), UOp.buffer((8, 4), dtypes.float32, "NULL:9")
  assert (x + y).device is x.device
  assert (y + x).device is x.device
  assert [m.kind for m in explain(x + y)] == ["copy"]
  assert explain(x + y)[0].wire == 8 * 4 * 4 / 2  # each device receives its own part


def test_constants_live_anywhere():
  x = leaf(8, 4, cut=("dp",))
  y = x + UOp.iota(4, dtypes.float32).reshape((1, 4)).expand((8, 4)) * 2.0
  assert y.device is x.device
  assert kinds(y) == []


# ---------------------------------------------------------------- mistakes


def test_two_device_sets():
  grid = Mesh([f"NULL:{i}" for i in range(40, 44)], (2, 2), ("dp", "tp"))
  x, y = leaf(8, 4, cut=("dp",), mesh=grid), leaf(8, 4, mesh=Mesh(("NULL:50", "NULL:51")), cut=("x",))
  says = (
    r'(?s)add: .*two different device sets.*src\[0\]: float32\[8, 4\] on NULL:40-43, dim 0 over "dp".*'
    r"test_place.py:\d+: x \+ y.*fix: .*y.shard\(x.device\)"
  )
  with pytest.raises(ShardError, match=says):
    x + y


def test_the_same_devices_in_another_order_are_another_set():
  x, y = leaf(8, mesh=Mesh(TWO), cut=("x",)), leaf(8, mesh=Mesh(TWO[::-1]), cut=("x",))
  with pytest.raises(ShardError, match="mul: the operands live on the same devices in another order"):
    x * y


def test_two_single_devices():
  x, y = (UOp.buffer((4,), dtypes.float32, d) for d in TWO)
  with pytest.raises(
    ShardError, match=r"(?s)mul: the operands live on different devices.*on NULL:0\n.*on NULL:1\n.*fix: .*\.to\('NULL"
  ):
    x * y


def test_reshard_0_forbids_implied_moves_but_not_slices_nor_reductions():
  x, y = leaf(8, 8, cut=("dp",)), leaf(8, 8, cut=(None, "dp"))
  with Context(RESHARD=0):
    with pytest.raises(
      ShardError,
      match=r"(?s)add: src\[1\] has to move to .*RESHARD=0 forbids an implied move.*fix: .*\(64 B per device\)",
    ):
      x + y
    assert (x + leaf(8, 8)).device is x.device
    assert x.r(Ops.ADD, (0,)).device.reduced is at(GRID)


# ---------------------------------------------------------------- cost


def test_one_program_whatever_the_number_of_devices():
  def nodes(n):
    m = Mesh([f"NULL:{i}" for i in range(n)], None, ("x",))
    w1, w2 = leaf(64, 2048, cut=(None, "x"), mesh=m), leaf(2048, 64, cut=("x",), mesh=m)
    return len(localize(UOp.sink(matmul(matmul(leaf(4, 64, mesh=m), w1).maximum(0.0), w2))).toposort())

  assert nodes(2) == nodes(512)


def test_a_placed_uop_is_made_in_microseconds():
  """The aim is 15 us on a quiet machine; the bound leaves room for a busy one."""

  def once():
    xs = [leaf(64, 128, cut=("dp",)) for _ in range(300)]
    begin = time.process_time()
    for x in xs:
      x.reshape((64, 128, 1)).expand((64, 128, 256)).permute((1, 0, 2))
    return (time.process_time() - begin) / 900

  assert min(once() for _ in range(7)) < 60e-6
