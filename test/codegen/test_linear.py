"""Linear code: its checks, and what plans do to it."""

import numpy as np
import pytest
from codegen_kernels import dot, fold, load, loop, num, op, reduce, sink, store

from tinygrad import Mesh, P, Sharding
from tinygrad.codegen import lower_kernel, signature
from tinygrad.codegen.check import check_linear
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import affine
from tinygrad.uop.spec import SpecError


def linear_of_a_matmul():
  a = np.zeros((40, 50), np.float32)
  i, j, k = loop(40, 0), loop(40, 1), reduce(50, 2)
  product = op(Ops.MUL, load(1, a, dot((i, 50), (k, 1))), load(2, a, dot((j, 50), (k, 1))))
  return lower_kernel(
    sink(store(dot((i, 40), (j, 1)), fold(Ops.ADD, product, k), i, j, size=1600)), Device["CPU"].target
  )


def test_linear_code_is_checked():
  good = linear_of_a_matmul()
  check_linear(good)
  end = next(i for i, u in enumerate(good) if u.op is Ops.ENDRANGE)
  with pytest.raises(SpecError, match="never closed"):
    check_linear([u for u in good if u.op is not Ops.ENDRANGE])
  with pytest.raises(SpecError, match="not the innermost|not known"):
    check_linear(good[:end] + good[end + 1 :] + [good[end]])
  at = next(i for i, u in enumerate(good) if u.op is Ops.LOAD)
  with pytest.raises(SpecError, match="not known where it stands"):
    check_linear(good[: at - 1] + good[at:])  # without the INDEX
  moved = next(u for u in good if u.op is Ops.MUL and any(s.op is Ops.LOAD for s in u.src))
  with pytest.raises(SpecError, match="not known where it stands"):
    check_linear([*good, UOp.new(Ops.NEG, moved.dtype, (moved,))])  # after its loop
  with Context(SPEC=1):  # under 2 these could not even be made
    wrong = UOp.new(Ops.ADD, dtypes.float32.vec(4), (UOp.const(dtypes.float32, 1.0),) * 2)
    foreign = UOp.new(Ops.REDUCE, dtypes.float32, (), None)
  with pytest.raises(SpecError, match="as many lanes"):
    check_linear([wrong])
  with pytest.raises(SpecError, match="no op of linear code"):
    check_linear([foreign])


def test_the_signature_is_declared_even_where_it_is_not_used():
  x = np.zeros(10, np.float32)
  v = UOp.variable("unused", 0, 5)
  i = loop(10, 0)
  never = UOp.new(Ops.CMPLT, dtypes.bool, (v, num(0)))
  ast = sink(store(i, load(2, x, i, never), i, size=10))
  assert [u.arg.slot for u in signature(ast)[:2]] == [0, 2]
  linear = lower_kernel(ast, Device["CPU"].target)
  assert [u.op for u in linear[:3]] == [Ops.PARAM, Ops.PARAM, Ops.VARIABLE]


def test_what_peers_hold_is_read_where_there_is_such_a_peer():
  """Of 7 elements in 4 parts those in 2: the last of an odd number is a loop of one iteration or none, and where it is
  none, it would be of a fifth device, or a sixth."""
  mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("x", "y"))
  x = UOp.buffer((7,), dtypes.float64, Sharding(mesh, P(("y", "x"))))
  y = UOp.buffer((7,), dtypes.float64, Sharding(mesh, P("y")))
  schedule = create_schedule(localize(UOp.sink(y.assign(x.move(y.device, pinned=True)))))
  (kernel,) = (i.kernel for i in schedule.items if i.peers)
  open_loops, reads = 0, []
  for u in lower_kernel(kernel, Device["CPU"].target):
    open_loops += {Ops.RANGE: 1, Ops.ENDRANGE: -1}.get(u.op, 0)
    if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PEER:
      reads.append(open_loops)
  assert reads and all(reads)


@pytest.mark.parametrize("devices", [7, 15])
def test_lanes_beyond_the_last_peer_read_nothing(devices):
  """Each device has one element, so the place in its memory is the same for all lanes, and only the memory is not."""
  mesh = Mesh([f"CPU:{i}" for i in range(devices)], names=("x",))
  x = UOp.buffer((devices,), dtypes.float32, Sharding(mesh, P("x")))
  y = UOp.buffer((devices,), dtypes.float32, Sharding(mesh))
  value = UOp.new(Ops.EXP, dtypes.float32, (x.move(y.device, pinned=True),))  # enough work for vectors
  (kernel,) = (i.kernel for i in create_schedule(localize(UOp.sink(y.assign(value)))).items if i.peers)
  reads = [u.src[0] for u in lower_kernel(kernel, Target("vectors", vector_bytes=32)) if u.op is Ops.LOAD]
  reads = [where for where in reads if where.src[0].op is Ops.PEER and where.dtype.count > 1]
  assert reads and len(reads[-1].src) == 3


def test_affine_forms_take_division_apart():
  r, v = loop(100, 0), loop(16, 1)
  x = op(Ops.ADD, op(Ops.MUL, r, num(16)), v)
  assert affine(op(Ops.IDIV, x, num(16)), {}).terms == {r: 1}
  assert affine(op(Ops.MOD, x, num(16)), {}).terms == {v: 1}
  assert affine(op(Ops.IDIV, op(Ops.SUB, x, num(16)), num(16)), {}).const == -1
  assert affine(op(Ops.SUB, x, x), {}).terms == {}
  y = op(Ops.IDIV, op(Ops.ADD, x, num(1)), num(16))  # v + 1 may reach 16
  assert set(affine(y, {}).terms) != {r}


@pytest.mark.parametrize(("target", "lanes"), [(Target("a", 64, 32, 1 << 20), 16), (Target("b", 32, 16, 1 << 20), 8)])
def test_vectors_have_the_width_of_the_target(target, lanes):
  x = np.zeros(1000, np.float32)
  i = loop(1000, 0)
  linear = lower_kernel(sink(store(i, op(Ops.NEG, load(1, x, i)), i, size=1000)), target)
  assert {u.dtype.count for u in linear if u.op is Ops.NEG} == {lanes}


def test_accumulators_fit_the_registers():
  for target in (Target("a", 64, 32, 1 << 20), Target("b", 32, 16, 1 << 20)):
    a = np.zeros((512, 512), np.float32)
    i, j, k = loop(512, 0), loop(512, 1), reduce(512, 2)
    product = op(Ops.MUL, load(1, a, dot((i, 512), (k, 1))), load(2, a, dot((k, 512), (j, 1))))
    linear = lower_kernel(sink(store(dot((i, 512), (j, 1)), fold(Ops.ADD, product, k), i, j, size=512 * 512)), target)
    start = next(i for i, u in enumerate(linear) if u.op is Ops.ACC)
    end = next(i for i, u in enumerate(linear) if i > start and u.op is Ops.RANGE)
    assert 8 <= sum(u.op is Ops.ACC for u in linear[start:end]) < target.vector_registers


def test_debug_prints_linear_code(capsys):
  """A line an op, which names its sources by the numbers of their lines; what is in a loop is indented."""
  i = loop(40, 0)
  with Context(DEBUG=4, NOOPT=1):
    lower_kernel(
      sink(store(i, op(Ops.ADD, load(1, np.zeros(40, np.float32), i), UOp.const(dtypes.float32, 3)), i, size=40)),
      Target("a"),
    )
  lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
  names = [line.split()[1] for line in lines]
  assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
  start, end = names.index("RANGE"), names.index("ENDRANGE")
  indents = [len(line[5:]) - len(line[5:].lstrip()) for line in lines]
  assert indents == [2 * (start < n < end) for n in range(len(lines))]
  add = lines[max(n for n in range(end) if names[n] == "ADD")]
  assert f"%{names.index('LOAD')}, 3" in add
