"""Graphs that differ in numbers alone: one plan from the second on, and the values of the plan of each."""

import threading

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit, Variable, dtypes
from tinygrad.device import Mesh, P
from tinygrad.dtype import to_numpy_dtype
from tinygrad.engine import compile, forms
from tinygrad.helpers import GlobalCounters
from tinygrad.uop import Ops

D2 = ("CPU:0", "CPU:1")
RNG = np.random.default_rng(5)
ROWS = RNG.standard_normal((40, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
  monkeypatch.setattr(compile, "_plans", {})
  monkeypatch.setattr(forms, "_forms", {})


def planned(monkeypatch):
  """The graphs that are planned from here on."""
  graphs, make = [], compile.make_plan
  monkeypatch.setattr(compile, "make_plan", lambda sink, first=-1: graphs.append(sink) or make(sink, first))
  return graphs


def write(memory, k, value):
  memory[k] = value
  return memory.realize()


def moved(memory, k):
  """Rows onto rows of the same memory, which they overlap for small k."""
  memory[k : k + 8] = memory[2:10] * 1.5
  return memory.realize()


def slope(f):
  w = Tensor(ROWS).requires_grad_()
  return f(w).sum().gradient(w)[0]


PROGRAMS = {
  "slice": lambda x, k: x[k : k + 3] * 2,
  "row": lambda x, k: x[k].sum(),
  "column": lambda x, k: x[:, k % 5] + 1,
  "both": lambda x, k: x[k : k + 2, k % 4 : k % 4 + 2] @ x[k : k + 2, :3],
  "two slices of one": lambda x, k: x[k : k + 4] - x[2 * k : 2 * k + 4],
  "through a view": lambda x, k: x.T.reshape(6, 20, 2)[:, k, 1].flip(0).exp(),
  "of what is computed": lambda x, k: (x.cumsum(0) * 2)[k : k + 5].max(0),
  "to the host": lambda x, k: x[k : k + 3],
  "to another device": lambda x, k: x[k : k + 3].to("CPU:1"),
  "over devices": lambda x, k: (x[k : k + 4].shard(D2, axis=0) @ x.T[:, :4].shard(D2)).sum(0),
  "a factor": lambda x, k: (x * (k / 8 + 0.3)).softmax(),
  "a factor below zero": lambda x, k: x * -(k / 8 + 0.3),
  "a bound": lambda x, k: x.clamp(-k / 7, k / 9).argmax(1),
  "an exponent": lambda x, k: x.abs() ** (k + 0.5),
  "a class": lambda x, k: (x.argmax(1) == k).where(k + 7, -k),
  "two factors": lambda x, k: x * (k + 2.5) + x.sum(0) / (k * k + 3.5),
  "a write": lambda x, k: write(x.clone().realize(), k, x[k + 1] * 2),
  "a number written": lambda x, k: write(x.clone().realize(), (k, k % 6), k + 0.25),
  "a write onto what it reads": lambda x, k: moved(x.clone().realize(), k),
  "a row that changes": lambda x, k: write(y := x.clone().realize(), k, y[k] * y[k + 1] + k),
  "a gradient": lambda x, k: slope(lambda w: (w[k : k + 3] * (k + 2.5)).square()),
  "a pad": lambda x, k: x.pad(((k, 20 - k), (0, k % 2))).exp().sum(1),
  "a gradient into two places": lambda x, k: slope(lambda w: w[k : k + 3] * w[2 * k]),
  "a loop's slices": lambda x, k: Tensor.stack(*[x[k + j] * (j + 2.5) for j in range(4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_as_variables_give_the_bits_that_they_give_as_constants(name, monkeypatch):
  """Mutants: a constant's bits unsigned, a slice's end taken for its beginning, the values of another position, a
  number taken from the first graph of the form."""
  x, f = Tensor(ROWS).realize(), PROGRAMS[name]
  want = []
  for k in (2, 3, 5, 9, 4):
    compile._plans.clear()
    forms._forms.clear()
    want.append(f(x, k).numpy())
  compile._plans.clear()
  forms._forms.clear()
  for k, w in zip((2, 3, 5, 9, 4), want, strict=True):
    np.testing.assert_array_equal(f(x, k).numpy(), w, err_msg=f"k = {k}")
  graphs = planned(monkeypatch)
  for k in (11, 13):
    f(x, k).numpy()
  assert graphs == []


NUMBERS = [d for d in dtypes.floats + dtypes.ints if to_numpy_dtype(d) is not None]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_constants_of_every_type(dtype):
  if not Device[Device.DEFAULT].target.float64 and dtype is dtypes.float64:
    pytest.skip("the device has no float64")
  signed = not dtypes.is_unsigned(dtype)
  numbers = [3, 5, *((-3, -7) if signed else (250, 131)), 77, *((0.625, -1.5) if dtypes.is_float(dtype) else ())]
  if dtypes.is_int(dtype):
    numbers += [dtypes.max(dtype), dtypes.max(dtype) - 1]
  x = Tensor([1, 2, 7]).cast(dtype).realize()
  for n in numbers:
    same = Tensor.full((3,), n, dtype=dtype).contiguous().realize()
    found, want = (x - n).bitwise_not() if dtypes.is_int(dtype) else x - n, x - same
    want = want.bitwise_not() if dtypes.is_int(dtype) else want
    assert found.tolist() == want.tolist(), n
  assert any(known[1] for known in forms._forms.values())
  for form, (first, *_) in forms._forms.items():
    for v in form.variables():
      assert v.vmin <= first[int(v.arg[0].removeprefix(forms.NUMBER))] <= v.vmax


@pytest.mark.parametrize("numbers", [(0, 1, -1, 0.0, -1.0), (float("inf"), float("-inf"))], ids=str)
def test_what_algebra_or_a_mask_knows_stays_a_constant(numbers):
  x = Tensor(ROWS).realize()
  for n in numbers:
    (x.clamp(max=n) * n).realize()
  assert not any(known[1] for known in forms._forms.values())


def test_divisors_of_integers_stay_constants():
  """By a constant a vector of integers is divided by a product and a shift."""
  x = Tensor([100, -7, 33, 0]).realize()
  for n, m in ((3, 4), (5, 6), (7, 8), (7, 9)):
    assert ((x // n + x % n) * m).tolist() == [(v // n + v % n) * m for v in (100, -7, 33, 0)]
  for graph, *_ in compile._plans:
    for u in graph.toposort():
      assert u.op not in (Ops.IDIV, Ops.MOD) or u.src[1].base.op is Ops.CONST
  assert any(graph.variables() for graph, *_ in compile._plans)


def test_what_differs_once_is_a_variable_and_what_never_does_is_not(monkeypatch):
  x, graphs = Tensor(ROWS).realize(), planned(monkeypatch)
  for k in (2, 3, 4):
    (x[k : k + 3] * 2.5).realize()
  for k in (2, 3, 4, 5):
    (x[k : k + 3] * (k + 0.75)).realize()
  names = [sorted(v.arg[0] for v in graph.variables()) for graph in graphs]
  assert [len(n) for n in names] == [0, 1, 2]  # the first, the second (of the slice), the first of another factor


def test_a_dim_that_is_cut_moves_no_more_than_before():
  """Where a slice begins says whose part it is."""
  x = Tensor(ROWS).shard(D2, axis=0).realize()
  for k in (2, 3, 4, 5):
    np.testing.assert_array_equal((x[k : k + 4] * 2).numpy(), ROWS[k : k + 4] * 2)
  assert not any(graph.variables() for graph, *_ in compile._plans)
  y = Tensor(ROWS).shard(D2, axis=1).realize()
  for k in (2, 3, 4, 5):
    np.testing.assert_array_equal((y[k : k + 4] * 2).numpy(), ROWS[k : k + 4] * 2)
  assert any(graph.variables() for graph, *_ in compile._plans)


def test_constants_beside_what_owes_are_looked_at():
  """A partial maximum may be multiplied by what is not negative: the sign of a variable is not known."""
  mesh = Mesh(D2, names=("d",))
  x = Tensor(ROWS).shard(mesh, P("d")).realize()
  for k in (2.0, 3.0, -4.0, 5.0):
    want = ROWS.max(0) * np.float32(k)
    np.testing.assert_array_equal((x.max(0) * k).numpy(), want)


def test_a_variable_of_the_programs_may_have_that_name():
  x, n = Tensor(ROWS).realize(), Variable("_number0", 0, 30)
  for k in (2, 3, 4, 5):
    got = (x[n.bind(k) : n.bind(k) + 3] * (k + 0.5)).numpy()
    np.testing.assert_array_equal(got, ROWS[k : k + 3] * np.float32(k + 0.5))


def test_a_step_that_is_captured_has_its_numbers_as_constants():
  x = Tensor(ROWS).realize()
  for k in (2, 3, 4):
    (x[k : k + 3] * 2.5).realize()
  step = TinyJit(lambda: (x[7:10] * 2.5).realize())
  for _ in range(3):
    np.testing.assert_array_equal(step().numpy(), ROWS[7:10] * np.float32(2.5))
  assert all(not w.variables for w in step.captured.work)


# ---- views as arguments of captured functions


def test_a_captured_function_takes_slices_wherever_they_begin():
  """Mutants: results that are views keep the variables; the Tensors that were given keep them."""
  x, w, calls, kept = Tensor(ROWS).realize(), Tensor(ROWS[:3].T.copy()).realize(), [], []

  @TinyJit
  def step(a, row):
    calls.append(None)
    kept.append(a * 2)
    return (a @ w).relu().sum(0), a[:2], row, row + 1

  seen = []
  for k in (0, 1, 2, 3, 9, 2, 0, 0, 5):
    a, row = x[k : k + 4], x[k, 2:4]
    seen += (a, row, *(result := step(a, row)))
    want = np.maximum(ROWS[k : k + 4] @ ROWS[:3].T, 0).sum(0)
    np.testing.assert_allclose(result[0].numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result[1].numpy(), ROWS[k : k + 2])
    assert result[2] is row
    np.testing.assert_array_equal(result[3].numpy(), ROWS[k, 2:4] + 1)
  assert len(step.states) == 2 and len(calls) == 4  # of the first slice, and of all others; each is captured
  assert not any(t.uop.bound for t in (*seen, *kept))
  both = seen[3] + seen[9]  # views from two calls in one computation
  np.testing.assert_array_equal(both.numpy(), ROWS[0:2] + ROWS[1:3])


def test_a_captured_function_writes_to_the_slice_that_it_is_given():
  memory = Tensor.zeros(20, 4).contiguous().realize()
  step = TinyJit(lambda row, value: row.assign(row + value))
  for k in (*range(20), 3):
    step(memory[k], Tensor([float(k)]))
  want = np.repeat(np.arange(20.0)[:, None], 4, 1)
  want[3] *= 2
  np.testing.assert_array_equal(memory.numpy(), want)
  assert len(step.states) == 2


def test_numbers_are_back_where_a_capture_fails():
  x, fails = Tensor(ROWS).realize(), []

  @TinyJit
  def step(a):
    if fails:
      raise ArithmeticError
    return a * 2

  step(x[2:5])
  step(x[3:6])
  fails.append(True)
  with pytest.raises(ArithmeticError):
    step(a := x[4:7])
  fails.clear()
  assert not a.uop.bound
  for k in (4, 5):
    np.testing.assert_array_equal(step(x[k : k + 3]).numpy(), ROWS[k : k + 3] * 2)


def test_a_slice_of_the_programs_variable_beside_a_number():
  x, n = Tensor(ROWS).realize(), Variable("n", 0, 30)
  step = TinyJit(lambda a, b: a + b * 2)
  for k in (2, 3, 4, 5, 6):
    got = step(x[k : k + 3], x[n.bind(k + 1) : n.bind(k + 1) + 3]).numpy()
    np.testing.assert_array_equal(got, ROWS[k : k + 3] + ROWS[k + 1 : k + 4] * 2)
  assert len(step.states) == 2


def test_nodes_as_arguments_stay_as_they_are():
  """A UOp cannot show variables in the place of its numbers: each is captured for itself."""
  x = Tensor(ROWS).realize()
  step = TinyJit(lambda u: Tensor(u) * 2)
  for k in (2, 3, 4, 3, 3):
    np.testing.assert_array_equal(step(x[k : k + 3].uop).numpy(), ROWS[k : k + 3] * 2)
  assert len(step.states) == 3


def test_threads_that_slice_see_their_own_rows():
  x, wrong = Tensor(ROWS).realize(), []

  def work(first):
    for k in range(first, first + 12):
      if not np.array_equal((x[k : k + 3] * (k + 0.5)).numpy(), ROWS[k : k + 3] * np.float32(k + 0.5)):
        wrong.append(k)

  threads = [threading.Thread(target=work, args=(first,)) for first in (2, 9, 17)]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  assert wrong == []


def test_as_many_kernels_run_as_for_constants():
  x = Tensor(ROWS).realize()
  counts = []
  for k in (2, 3, 4, 5):
    GlobalCounters.reset()
    (x[k : k + 3] @ x[k : k + 3].T).softmax().realize()
    counts.append(GlobalCounters.kernel_count)
  assert len(set(counts)) == 1


@pytest.mark.parametrize("device", ["NPY", "PYTHON", "CPU:1"])
def test_devices_without_kernels_have_numbers_too(device):
  x = Tensor(ROWS, device=device).realize()
  for k in (2, 3, 4, 5):
    np.testing.assert_array_equal((x[k : k + 3] * (k + 0.5)).numpy(), ROWS[k : k + 3] * np.float32(k + 0.5))


def test_what_is_stored_is_sliced(tmp_path):
  path = tmp_path / "rows"
  path.write_bytes(ROWS.tobytes())
  x = Tensor(path).bitcast(dtypes.float32).reshape(40, 6)
  for k in (2, 3, 4, 5):
    np.testing.assert_array_equal((x[k : k + 3].to("CPU") * 2).numpy(), ROWS[k : k + 3] * 2)
    np.testing.assert_array_equal(x[k : k + 3].numpy(), ROWS[k : k + 3])
