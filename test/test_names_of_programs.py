"""What programs of the field import and call, beyond what is documented: it exists and does what its name says."""

import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import tinygrad
from tinygrad import Device, ShardError, Tensor, TinyJit, dtypes, nn
from tinygrad.helpers import Profile, Profiling, profile_marker

D2 = ("CPU:0", "CPU:1")


def test_the_version_is_that_of_the_distribution():
  import importlib.metadata

  assert tinygrad.__version__ == importlib.metadata.version("tinygrad")


def test_a_tensor_of_one_element_is_a_number_where_python_asks_for_one():
  assert float(Tensor(2.5)) == 2.5 and int(Tensor([2.9])) == 2 and type(float(Tensor(3))) is float
  assert f"{Tensor(2.456):.2f}" == "2.46" and format(Tensor([[7]]), "03d") == "007"
  assert f"{Tensor([1.0, 2.0])}" == repr(Tensor([1.0, 2.0]))
  for ask in (float, int, lambda t: format(t, ".1f")):
    with pytest.raises(ValueError, match=r"item: needs one element, the shape is \(2,\)\n  fix: "):
      ask(Tensor([1.0, 2.0]))


def test_bounds_that_are_tensors():
  low, high, three = Tensor(1.0), Tensor([2.0]), Tensor(3)
  np.testing.assert_allclose(Tensor.linspace(low, high, three).numpy(), np.linspace(1, 2, 3))
  np.testing.assert_allclose(Tensor.linspace(0, high, 5).numpy(), np.linspace(0, 2, 5))
  assert Tensor.arange(three).tolist() == [0, 1, 2] and Tensor.arange(three).dtype is dtypes.default_int
  assert Tensor.arange(low, Tensor(2.0), Tensor(0.25)).tolist() == [1.0, 1.25, 1.5, 1.75]


def test_the_ends_of_linspace_are_read_when_it_is():
  """A replay computes from the ends that it is given."""

  @TinyJit
  def spaced(x):
    return Tensor.linspace(x, x * 2, 3).realize()

  for v in (1.0, 2.0, 3.0, 4.0):
    np.testing.assert_allclose(spaced(Tensor([v]).realize()).numpy(), [v, 1.5 * v, 2 * v])
  x = Tensor(2.0)
  (g,) = Tensor.linspace(x, 0, 3).sum().gradient(x)
  assert g.item() == pytest.approx(1.5)


@pytest.mark.parametrize(
  "given, value, want, kind",
  [
    ([1, 2], -np.inf, [-np.inf, 1, 2, -np.inf], dtypes.float32),
    ([1, 2], 1.5, [1.5, 1, 2, 1.5], dtypes.float32),
    ([1, 2], 0.0, [0, 1, 2, 0], dtypes.int32),
    ([1, 2], 3, [3, 1, 2, 3], dtypes.int32),
    ([True], 3, [3, 1, 3], dtypes.int32),
    ([True], True, [True, True, True], dtypes.bool),
    ([1.0], -1, [-1, 1, -1], dtypes.float32),
  ],
)
def test_the_type_of_a_padded_tensor_holds_the_value(given, value, want, kind):
  got = Tensor(given).pad((1, 1), value=value)
  assert got.dtype is kind and got.tolist() == want


def test_supported_types_and_numbers_of_devices():
  supported = Device["CPU"].renderer.supported_dtypes()
  assert supported == set(dtypes.all) and dtypes.float64 in supported
  assert Device["CPU"].count() == Device.count() == Device.count("CPU:1") >= 1


def test_a_placement_compares_as_the_tuple_of_its_devices():
  where = Tensor.ones(4).shard(D2, 0).device
  assert where == ("CPU:0", "CPU:1") and ("cpu", "CPU:1") == where and where != ("CPU:1", "CPU:0")
  assert where == tinygrad.Sharding(D2, 0) and where != tinygrad.Sharding(D2) and tinygrad.Sharding(D2) == D2
  assert where != "CPU:0" and where != ("CPU:0", "nowhere") and where != ("CPU:0", 1) and where != [*D2]
  assert len({where, tinygrad.Sharding(D2, 0), tinygrad.Sharding(D2)}) == 2


def test_a_mesh_as_jax_writes_it():
  mesh = tinygrad.Mesh(np.array([f"CPU:{i}" for i in range(4)]).reshape(2, 2), ("a", "b"))
  assert mesh.shape == (2, 2) and mesh.names == ("a", "b") and tinygrad.Mesh(D2, ("d",)).names == ("d",)


def test_the_node_of_a_tensor_says_which_dim_is_cut():
  x = Tensor.ones(4, 2)
  assert x.uop.axis is None and x.shard(D2).uop.axis is None and x.shard(D2, 1).uop.axis == 1
  mesh = tinygrad.Mesh([f"CPU:{i}" for i in range(4)], (2, 2))
  with pytest.raises(ShardError, match="cuts dims"):
    _ = x.shard(mesh, tinygrad.P("x", "y")).uop.axis


@pytest.mark.parametrize("kind", ["bool", "int32", "uint8", "float16"])
def test_normal_numbers_of_other_types_are_cast(kind):
  for make in (Tensor.randn, Tensor.normal, Tensor.kaiming_normal):
    Tensor.manual_seed(3)
    wide = make(8, 8)
    Tensor.manual_seed(3)
    got = make(8, 8, dtype=kind)
    assert got.dtype.name == kind
    if kind != "uint8":  # which no negative number has a value in
      np.testing.assert_allclose(got.numpy(), wide.cast(kind).numpy(), rtol=2e-3)
  with pytest.raises(TypeError, match="rand: makes floats, not dtypes.int32\n  fix: "):
    Tensor.rand(2, dtype="int32")


def test_a_clone_takes_gradients_as_its_source_does():
  for wants in (True, False, None):
    assert Tensor([1.0], requires_grad=wants).clone().requires_grad is wants
  x = Tensor([3.0], requires_grad=True)
  y = x.clone()
  (y * y).sum().backward()
  assert x.grad.item() == y.grad.item() == 6.0
  z = x.clone()
  assert z.grad is not x.grad and z.grad.item() == 6.0
  z.grad.assign(Tensor([1.0])).realize()
  assert x.grad.item() == 6.0
  assert Tensor([1.0]).clone().grad is None and x.clone("CPU:1").grad.device == "CPU:1"


def test_one_element_loads_into_one_element():
  model = nn.BatchNorm(3)
  state = {k: v.numpy() for k, v in nn.state.get_state_dict(model).items()}
  state["num_batches_tracked"] = np.array([5])
  nn.state.load_state_dict(model, {k: Tensor(v) for k, v in state.items()}, verbose=False)
  assert model.num_batches_tracked.shape == () and model.num_batches_tracked.item() == 5
  state["running_mean"] = np.zeros((3, 1), np.float32)
  with pytest.raises(nn.state.StateError, match=r"'running_mean' is \[3\] in the model and \[3, 1\]"):
    nn.state.load_state_dict(model, {k: Tensor(v) for k, v in state.items()}, verbose=False)


def test_the_names_that_programs_import():
  code = """
import tinygrad.nn as nn
from tinygrad.dtype import _from_torch_dtype
from tinygrad.tensor import _to_np_dtype
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import Ops, UOp, Variable
assert isinstance(Tensor([1]).uop, UOp) and Ops.ADD.name == "ADD"
nn.utils.clip_grad_norm_
assert _to_np_dtype(dtypes.int16) == "int16"
class Kind:
  def __str__(self): return "torch.bfloat16"
assert _from_torch_dtype(Kind()) is dtypes.bfloat16
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [d.name for d in dtypes.all])
def test_tensors_of_pytorch(name):
  torch = pytest.importorskip("torch")
  theirs = {"fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}.get(name, name)
  x = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.5, 1.0]]).to(getattr(torch, theirs))
  for t in (x, x.T, x[:, 1:]):
    got = Tensor(t)
    assert got.dtype.name == name and got.shape == tuple(t.shape)
    np.testing.assert_array_equal(got.float().numpy(), t.float().numpy())


def test_a_tensor_of_pytorch_that_requires_a_gradient_is_taken_without_it():
  torch = pytest.importorskip("torch")
  x = torch.ones(3, requires_grad=True)
  assert Tensor(x).tolist() == Tensor(torch.nn.Parameter(x)).tolist() == [1.0] * 3
  assert Tensor(x, dtype="float16").dtype is dtypes.float16
  with pytest.raises(TypeError, match="torch.complex64 has no counterpart here\n  fix: "):
    Tensor(torch.ones(2, dtype=torch.complex64))


X = np.random.default_rng(0).normal(size=(3, 4))

SPELLINGS = {  # as PyTorch's and NumPy's programs write it: what numpy gives
  **{
    f"x.{name}(dim=1, keepdim=True)": lambda x, name=name: getattr(np, name)(x, axis=1, keepdims=True)
    for name in ("sum", "prod", "any", "all", "mean", "argmax", "argmin")
  },
  **{
    f"x.{name}(axis=0, keepdims=True)": lambda x, name=name: getattr(np, name)(x, axis=0, keepdims=True)
    for name in ("sum", "prod", "any", "all", "mean", "argmax", "argmin", "max", "min")
  },
  "x.var(dim=0, unbiased=False)": lambda x: x.var(0),
  "x.std(dim=0, unbiased=True)": lambda x: x.std(0, ddof=1),
  "x.std(axis=1, ddof=0, keepdims=True)": lambda x: x.std(1, keepdims=True),
  "x.var_mean(dim=1)[0]": lambda x: x.var(1, ddof=1),
  "x.std_mean(dim=1, correction=0)[0]": lambda x: x.std(1),
  "x.softmax(dim=0)": lambda x: np.exp(x) / np.exp(x).sum(0),
  "x.softmin(dim=0)": lambda x: np.exp(-x) / np.exp(-x).sum(0),
  "x.log_softmax(dim=0)": lambda x: x - np.log(np.exp(x).sum(0)),
  "x.logsumexp(dim=1)": lambda x: np.log(np.exp(x).sum(1)),
  "x.cumsum(dim=1)": lambda x: x.cumsum(1),
  "x.cumprod(dim=1)": lambda x: x.cumprod(1),
  "x.cummax(dim=1)[0]": lambda x: np.maximum.accumulate(x, 1),
  "x.cummin(dim=1)[0]": lambda x: np.minimum.accumulate(x, 1),
  "x.logcumsumexp(dim=1)": lambda x: np.logaddexp.accumulate(x, 1),
  "x.clamp(min=-0.1, max=0.2)": lambda x: x.clip(-0.1, 0.2),
  "x.clip(max=0.2)": lambda x: np.minimum(x, 0.2),
  "x.flip(dims=(0, 1))": lambda x: x[::-1, ::-1],
  "x.permute(dims=(1, 0))": lambda x: x.T,
  "x.split(split_size=3, dim=1)[1]": lambda x: x[:, 3:],
  "x.unfold(dimension=1, size=3, step=1)": lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 1),
  "x.cat(x, axis=1)": lambda x: np.concatenate([x, x], axis=1),
  "x.stack(x, axis=1)": lambda x: np.stack([x, x], axis=1),
  "x[:1].squeeze(axis=0)": lambda x: x[0],
  "x.roll(shift=1, axis=1)": lambda x: np.roll(x, 1, 1),
  "x.argsort(axis=0)": lambda x: np.argsort(x, axis=0),
  "x.topk(4, axis=1, sorted=True)[0]": lambda x: -np.sort(-x, axis=1),
}


@pytest.mark.parametrize("written", SPELLINGS)
def test_keywords_as_pytorch_and_numpy_spell_them(written):
  np.testing.assert_allclose(eval(written, {"x": Tensor(X)}).numpy(), SPELLINGS[written](X), rtol=1e-6, atol=1e-9)


def test_every_method_that_takes_an_axis_takes_a_dim():
  methods = {n: m for n in dir(Tensor) if inspect.isroutine(m := getattr(Tensor, n)) and not n.startswith("_")}
  parameters = {n: inspect.signature(m).parameters for n, m in methods.items()}
  others = {"max", "min", "layernorm", "batchnorm", "shard", "shard_"}
  assert {n for n, p in parameters.items() if "axis" in p and "device" not in p} - others <= {
    w[2:].partition("(")[0] for w in SPELLINGS if re.search(r"\bdims?=", w)
  }


def test_a_keyword_that_is_given_by_both_names_is_refused():
  with pytest.raises(TypeError, match=r"sum: dim is another name of axis, and both are given\n  fix: leave one"):
    Tensor(X).sum(axis=0, dim=0)
  with pytest.raises(TypeError, match="multiple values"):
    Tensor(X).sum(0, dim=0)
  with pytest.raises(TypeError, match="dim"):  # PyTorch's gives positions as well
    Tensor(X).max(dim=0)


def test_markers_are_in_the_trace_and_profiling_prints_calls(tmp_path, capsys):
  file = tmp_path / "trace.json"
  with Profile(file):
    profile_marker("step 7")
  assert '"step 7"' in file.read_text()
  with Profiling(frac=1.0):
    pickle.dumps(Tensor([1.0]))
  printed = capsys.readouterr().out
  assert re.search(r"n: +1  own: +[\d.]+ ms  with callees: +[\d.]+ ms  __reduce__ \(tensor.py:\d+\)", printed)
  with Profiling(enabled=False):
    Tensor([1.0]).realize()
  assert not capsys.readouterr().out
  with Profiling(fn=str(tmp_path / "calls")):
    Tensor([1.0]).realize()
  import pstats

  assert pstats.Stats(str(tmp_path / "calls")).total_calls > 0
