"""Kernels shared out among threads: the parts make the whole, and no element is computed twice where it may not be."""

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, op, reduce, sink, store
from test_kernels import matmul, normal

from extra.orders import in_order
from tinygrad import Tensor, TinyJit
from tinygrad.codegen import lower_kernel
from tinygrad.codegen.share import share_out
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop import Ops, PieceArg, UOp


def parts_of(ast, arrays, threads):
  """What each piece alone leaves in slot 0, which starts as NaN."""
  device = Device["CPU"]
  name = "part"
  program = device.compile(device.render(lower_kernel(ast, device.target, threads), name), name)
  assert program.launch.workers == threads
  out = np.full(ast.src[0].src[0].src[0].arg.size, np.nan, np.float32)
  for piece in range(program.launch.pieces):
    handles = []
    for array in (out, *arrays):
      handles.append(device.alloc(array.nbytes))
      device.copyin(handles[-1], memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
    call = device.bind(program, handles)
    call.others = ()
    call.words[program.launch.word] = piece
    call.program = None  # as one thread's
    device.submit_all([device], [device.batch([call])])
    got = np.empty_like(out)
    device.copyout(memoryview(got.view(np.uint8)), handles[0])
    yield got


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("sizes", [(192, 128, 64), (191, 127, 65)])
def test_the_parts_of_a_matmul_make_the_whole(sizes, threads):
  ast, arrays = matmul(*sizes)[:2]
  parts = list(parts_of(ast, arrays, threads))
  want = evaluate(ast, arrays)
  done = sum(~np.isnan(p) for p in parts)
  assert (done >= 1).all() and (done == 0).sum() == 0 and all(0 < (~np.isnan(p)).mean() < 0.7 for p in parts)
  for p in parts:
    np.testing.assert_allclose(p[~np.isnan(p)], want[~np.isnan(p)], rtol=1e-4, atol=1e-4)


def test_rows_are_shared_not_the_columns_whose_reductions_all_would_repeat():
  i, j, k = loop(64, 0), loop(4096, 1), reduce(4096, 2)
  x = [normal(64, 4096)]
  top = fold(Ops.MAX, load(1, x[0], dot((i, 4096), (k, 1))), k)
  value = op(Ops.SUB, load(1, x[0], dot((i, 4096), (j, 1))), top)
  shared = share_out(sink(store(dot((i, 4096), (j, 1)), value, i, j, size=64 * 4096)), 2)
  assert [r.src[0].arg for r in shared.src[0].src[2:]] == [16, 4096]  # two pieces a thread


def test_small_kernels_and_those_in_place_that_would_overlap_are_left_whole():
  def doubled(n, slot):
    i = loop(n, 0)
    return sink(
      store(i, op(Ops.MUL, load(slot, np.zeros(n, np.float32), i), UOp.const(dtypes.float32, 2.0)), i, size=n)
    )

  prime = (1 << 19) - 1
  whole = [(1000, 1), (prime, 0)]  # what reads what it writes has pieces that do not overlap: 3 of the last
  for n, slot in (*whole, (1 << 21, 1), (1 << 21, 0), (prime, 1), ((1 << 21) + 1, 0)):
    ast = doubled(n, slot)
    is_shared = any(isinstance(v.arg, PieceArg) for v in share_out(ast, 2).variables())
    assert is_shared is ((n, slot) not in whole), (n, slot)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_meet_where_data_flows(threads):
  """Chains of shared and unshared kernels, replayed, hold the bits of one thread."""
  x = np.random.default_rng(0).integers(-4, 4, (512, 513)).astype(np.float32)

  def steps(x, w):
    y = (x @ w).realize()  # shared by rows
    z = y.T.contiguous().realize()  # reads what all have written
    t = z.sum(1).realize()
    small = (t[:3] * 2).realize()  # by the first alone
    return (z * small.sum() + y.T).relu().realize()

  results = []
  for n in (1, threads):
    with Context(CPU_THREADS=n):
      f = TinyJit(steps)
      a, w = Tensor(x).realize(), Tensor(x.T.copy()).realize()
      results.append([f(a, w).numpy() for _ in range(6)])
  for got in results[1]:
    np.testing.assert_array_equal(got, results[0][0])


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_pieces_that_threads_do_not_divide_are_done_once(threads):
  """What changes in place has 3 pieces, 6 or 9. Each replay finds the tickets as the one before has left them."""
  x = np.arange(3**12, dtype=np.float32)
  with Context(CPU_THREADS=threads):
    t, step = Tensor(x).realize(), TinyJit(lambda t: t.assign(t * 2 + t.sqrt()).realize())
    for _ in range(6):
      x = x * 2 + np.sqrt(x)
      np.testing.assert_allclose(step(t).numpy(), x, rtol=1e-5)


@pytest.mark.parametrize("rows", [257, 301, 333, 515])
@pytest.mark.parametrize("threads", [2, 3])
def test_rows_of_two_pieces_have_the_same_bits_from_both(rows, threads):
  """Pieces of rows that they do not divide overlap; which of two writes last depends on the threads. What is left of a
  piece beside its blocks of rows was another nest, with sums in another order."""
  q, k, v = (
    Tensor(np.random.default_rng(i).standard_normal((1, rows, 32)), dtype="float64").realize() for i in range(3)
  )
  found = []
  for order in ("forwards", "backwards"):
    with Context(PLAN_CACHE=0, CPU_THREADS=threads), in_order(order):
      out = q.scaled_dot_product_attention(k, v)
      found.append([x.numpy().tobytes() for x in (out, *out.gradient(q, k, v, gradient=out))])
  assert found[0] == found[1]
