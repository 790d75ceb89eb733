"""Which values are chosen, element by element, from others with the same bits, and which are compared with such."""

import pytest

from tinygrad import Mesh, P, Sharding
from tinygrad.dtype import dtypes
from tinygrad.uop import Move, Ops, UOp
from tinygrad.uop.selection import chosen_from, compared, compares, is_computed

MESH = Mesh(("CPU:0", "CPU:1"), (2,), ("x",))
CUT, REPLICATED = Sharding(MESH, P("x")), Sharding(MESH, P())


def float_buffer(device="CPU", dtype=dtypes.float32):
  return UOp.buffer((4, 6), dtype, device)


def moved(x, device):
  return UOp.new(Ops.MOVE, x.dtype, (x,), Move(device, True))


X, Y = float_buffer(), float_buffer()
INDEX = UOp.buffer((3,), dtypes.int32, "CPU")
MASK = X.alu(Ops.CMPLT, Y)
ZERO = X.const_like(0.0)
ON_TWO = float_buffer(CUT)
CASES = {
  "a choice": (MASK.where(X, Y), (X, Y)),
  "rows of a table": (X.gather(INDEX), (X,)),
  "to a wider float": (X.cast(dtypes.float64), (X,)),
  "to a narrower one": (X.cast(dtypes.float16), ()),
  "to another of its width": (float_buffer(dtype=dtypes.float16).cast(dtypes.bfloat16), ()),
  "of an integer": (INDEX.cast(dtypes.float64), ()),
  "a greatest": (X.r(Ops.MAX, (1,)), (X,)),
  "a least": (X.r(Ops.MIN, (1,)), (X,)),
  "a sum": (X.r(Ops.ADD, (1,)), ()),
  "a sum of what a mask leaves": ((masked := MASK.where(X, ZERO)).r(Ops.ADD, (1,)), (masked,)),
  "a sum of a choice of two": (MASK.where(X, Y).r(Ops.ADD, (1,)), ()),
  "a product of what a mask leaves": (MASK.where(X, ZERO).r(Ops.MUL, (1,)), ()),
  "a view": (X.reshape((24,)), (X,)),
  "a copy": ((c := X.clone()), (X,)),
  "arithmetic": (X.alu(Ops.ADD, Y), ()),
  "memory": (X, ()),
  "gathered from its parts": (moved(ON_TWO, REPLICATED), (ON_TWO,)),
  "the greatest of partial ones": (moved(top := ON_TWO.r(Ops.MAX, (0,)), REPLICATED), (top,)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_chosen_from_what(name):
  u, sources = CASES[name]
  assert chosen_from(u) == sources


def test_what_is_added_up_on_the_way_is_computed():
  total = ON_TWO.r(Ops.ADD, (0,))
  assert total.device.partial
  assert chosen_from(moved(total, REPLICATED)) == () and is_computed(moved(total, REPLICATED))
  assert not is_computed(moved(ON_TWO, REPLICATED))


def test_a_maximum_and_where_it_is():
  y = X.alu(Ops.MUL, Y)
  top = y.r(Ops.MAX, (1,)).expand((4, 6))
  hit = y.alu(Ops.CMPEQ, top)
  assert compares(hit) and compared(UOp.sink(hit).toposort()) == {y}
  assert compared(UOp.sink(y.alu(Ops.CMPLT, Y)).toposort()) == set(), "nothing is chosen from y"
  greater = y.alu(Ops.MAX, X)
  assert compared(UOp.sink(y.alu(Ops.CMPEQ, greater)).toposort()) == {y}
  assert compared(UOp.sink(y.alu(Ops.CMPEQ, y.flip((0,)))).toposort()) == set(), "a view chooses nothing"
  assert not compares(X.alu(Ops.CMPLT, ZERO)), "a constant has the same bits wherever it is computed"
  assert not compares(INDEX.alu(Ops.CMPLT, INDEX.alu(Ops.ADD, INDEX))), "integers are exact"
