"""`OnnxRunner` on the standard's own node tests, and on small models.

The cases, their inputs and their expected outputs are those of the `onnx` package (onnx.backend.test.case.node). They
run on the PYTHON device, which computes in numpy; each 30th also compiled.
"""

import functools
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra [onnx] is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tinygrad import Device, Sharding, Tensor, TinyJit, dtypes, nn  # noqa: E402
from tinygrad.dtype import to_numpy_dtype  # noqa: E402
from tinygrad.nn.onnx import OPS, OnnxError, OnnxRunner  # noqa: E402

LISTED = {
  r"FNUZ|INT[24]\b|INT[24]_|FLOAT4E2M1|E8M0|_u?int[24]$|float4e2m1": "types of 4 bits and fewer, fp8 FNUZ and E8M0",
  r"string|regex|strnormalizer|label_encoder|tfidf": "strings",
  r"image_decoder": "decodes image files",
  r"adagrad|^test_adam|momentum": "training operators of the preview domain: nn.optim has optimizers",
  r"tree_ensemble": "decision trees",
  r"bernoulli|training_dropout(_default)?(_mask)?$": "the random numbers of numpy's generator",
  r"deform_conv|roialign|stft|melweightmatrix": "not written",
  r"dft_inverse(_opset19)?$": "the expected output carries the rounding of its own float32 transform",
  r"scan_sum$": "Scan of opset 8, which has a batch dim",
}


@functools.cache
def cases():
  from onnx.backend.test.case.node import collect_testcases

  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # overflow in numpy, which some cases are about
    return {c.name: c for c in collect_testcases(None)}


def reason_of(name):
  return next((reason for pattern, reason in LISTED.items() if re.search(pattern, name)), None)


def parameters(every=1):
  for name in list(cases())[::every]:
    reason = reason_of(name)
    if every == 1 or reason is None:
      yield pytest.param(name, marks=[pytest.mark.xfail(reason=reason)] if reason else [])


@pytest.fixture
def python():
  before = Device.DEFAULT
  Device.DEFAULT = "PYTHON"
  yield
  Device.DEFAULT = before


def array(x):
  return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


def close(got, want, rtol, atol):
  if isinstance(want, list):
    assert isinstance(got, list) and len(got) == len(want)
    for g, w in zip(got, want):
      close(g, w, rtol, atol)
    return
  if want is None:
    assert got is None
    return
  want = np.asarray(want)
  assert to_numpy_dtype(got.dtype) == want.dtype and got.shape == want.shape
  if want.dtype.itemsize == 2 and want.dtype.kind not in "iub":  # a definition by others rounds after each of them
    rtol = 2 * 2.0 ** -dtypes.finfo(got.dtype)[1]  # two units in the last place of 1
  x, y = got.numpy(), want if want.dtype.kind in "biufc" else want.astype(np.float32)
  np.testing.assert_allclose(x, y, rtol, atol)


def check(name):
  case = cases()[name]
  runner = OnnxRunner(case.model)
  for inputs, outputs in case.data_sets:
    got = runner(dict(zip((i.name for i in case.model.graph.input), map(array, inputs))))
    assert list(got) == [o.name for o in case.model.graph.output]
    for g, want in zip(got.values(), map(array, outputs), strict=True):
      close(g, want, case.rtol, case.atol)


@pytest.mark.parametrize("name", list(parameters()))
def test_node(name, python):
  check(name)


@pytest.mark.parametrize("name", list(parameters(every=30)))
def test_node_compiled(name):
  check(name)


def test_every_reason_is_of_a_case():
  for pattern in LISTED:
    assert any(re.search(pattern, name) for name in cases()), pattern


# ---------------------------------------------------------------- the package's models

MODELS_LISTED = {
  r"strnorm": "strings",
  r"gradient_of": "the training operator Gradient",
  r"PReLU_.*multiparam": "slopes along dim 1, as before opset 7",
  r"operator_add_(size1_)?(right_|singleton_)?broadcast": "an axis to broadcast along, as before opset 7",
}


@functools.cache
def folders():
  from onnx.backend.test.loader import load_model_tests

  kinds = ("simple", "pytorch-converted", "pytorch-operator")
  return {c.name: Path(c.model_dir) for kind in kinds for c in load_model_tests(kind=kind)}


def tensor_of(path):
  return numpy_helper.to_array(onnx.load_tensor(path))


def model_parameters():
  for name in folders():
    reason = next((r for pattern, r in MODELS_LISTED.items() if re.search(pattern, name)), None)
    yield pytest.param(name, marks=[pytest.mark.xfail(reason=reason)] if reason else [])


@pytest.mark.parametrize("name", list(model_parameters()))
def test_small_models(name, python):
  """What PyTorch has exported, mostly in old opsets, with its results."""
  folder = folders()[name]
  runner = OnnxRunner(folder / "model.onnx")
  (data,) = folder.glob("test_data_set_*")
  got = runner({n: tensor_of(data / f"input_{i}.pb") for i, n in enumerate(runner.graph_inputs)})
  for i, y in enumerate(got.values()):
    np.testing.assert_allclose(y.numpy(), tensor_of(data / f"output_{i}.pb"), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50"])
def test_whole_networks(name):
  """Compiled, with the package's weights (constant ones) and output."""
  folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
  runner = OnnxRunner(folder / f"light_{name}.onnx")
  ((given, spec),) = runner.graph_inputs.items()
  x = np.arange(np.prod(spec.shape), dtype=np.float32).reshape(spec.shape) / np.prod(spec.shape)
  (y,) = runner({given: x}).values()
  np.testing.assert_allclose(y.numpy(), tensor_of(folder / f"light_{name}_output_0.pb"), rtol=1e-3, atol=1e-7)


# ---------------------------------------------------------------- models


def model(nodes, inputs, outputs, constants=(), opset=21, functions=()):
  """`inputs` and `outputs`: name -> (type, shape)."""
  infos = [[helper.make_tensor_value_info(n, *v) for n, v in side.items()] for side in (inputs, outputs)]
  weights = [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
  opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
  return helper.make_model(
    helper.make_graph(nodes, "g", *infos, weights), opset_imports=opsets, functions=functions, ir_version=9
  )


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W, B = normal(1, 3, 4), normal(2, 4)
F = TensorProto.FLOAT


def mlp():
  """relu(x W + b), its rows then flattened by the shape of x."""
  nodes = [
    helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
    helper.make_node("Relu", ["h"], ["r"]),
    helper.make_node("Shape", ["x"], ["s"]),
    helper.make_node("Gather", ["s", "zero"], ["n"]),
    helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
    helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
    helper.make_node("Reshape", ["r", "to"], ["y"]),
  ]
  constants = {"w": W, "b": B, "zero": np.array(0), "axes": np.array([0]), "rest": np.array([2, -1])}
  return model(nodes, {"x": (F, ["n", 3])}, {"y": (F, ["n", 2, 2])}, constants)


def expected(x):
  return np.maximum(x @ W + B, 0).reshape(len(x), 2, 2)


def test_a_model_from_a_path_bytes_or_a_tensor(tmp_path):
  x, path = normal(3, 5, 3), tmp_path / "m.onnx"
  onnx.save(mlp(), path)
  raw = path.read_bytes()
  for source in (path, str(path), raw, Tensor(np.frombuffer(raw, np.uint8)), mlp()):
    runner = OnnxRunner(source)
    np.testing.assert_allclose(runner({"x": x})["y"].numpy(), expected(x), rtol=1e-5, atol=1e-6)
  spec = runner.graph_inputs["x"]
  assert (spec.shape, spec.dtype, spec.is_optional, spec.is_sequence) == (("n", 3), dtypes.float32, False, False)
  assert runner.graph_outputs == ("y",)


def test_weights_in_a_file_beside_the_model(tmp_path):
  big = normal(1, 64, 64)
  m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [1, 64])}, {"y": (F, [1, 64])}, {"w": big})
  onnx.save(m, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
  assert (tmp_path / "weights").stat().st_size >= big.nbytes
  x = normal(2, 1, 64)
  np.testing.assert_allclose(OnnxRunner(tmp_path / "m.onnx")({"x": x})["y"].numpy(), x @ big, rtol=1e-4, atol=1e-4)


def test_a_captured_model_is_replayed_with_other_inputs():
  runner = OnnxRunner(mlp())
  step = TinyJit(lambda x: runner({"x": x})["y"].realize())
  for seed in range(5):
    x = normal(seed, 5, 3)
    np.testing.assert_allclose(step(Tensor(x)).numpy(), expected(x), rtol=1e-5, atol=1e-6)


def test_a_model_is_differentiable():
  x = Tensor(normal(3, 5, 3))
  OnnxRunner(mlp())({"x": x})["y"].sum().backward()
  hidden = x.numpy() @ W + B
  np.testing.assert_allclose(x.grad.numpy(), (hidden > 0).astype(np.float32) @ W.T, rtol=1e-5, atol=1e-6)


def test_a_model_runs_on_the_device_that_it_is_put_on():
  x = normal(3, 6, 3)
  y = OnnxRunner(mlp()).to("CPU:1")({"x": x})["y"]
  assert y.device == "CPU:1"
  np.testing.assert_allclose(y.numpy(), expected(x), rtol=1e-5, atol=1e-6)


def test_what_operators_make_is_beside_their_inputs():
  nodes = [
    helper.make_node("Resize", ["x", "", "scales"], ["big"], mode="linear"),
    helper.make_node("Resize", ["x", "", "scales"], ["near"]),
    helper.make_node("Compress", ["x", "mask"], ["some"], axis=1),
    helper.make_node("Dropout", ["x", "p", "t"], ["drop"]),
    helper.make_node("ReverseSequence", ["x", "lengths"], ["back"]),
    helper.make_node("CumSum", ["x", "one"], ["sums"]),
  ]
  constants = {
    "scales": np.array([1, 2], np.float32), "mask": np.array([1, 0, 1], bool), "lengths": np.array([2, 1, 2]),
    "p": np.array(0.5, np.float32), "t": np.array(True), "one": np.array(1),
  }  # fmt: skip
  shapes = {"big": [2, 6], "near": [2, 6], "some": [2, 2], "drop": [2, 3], "back": [2, 3], "sums": [2, 3]}
  m = model(nodes, {"x": (F, [2, 3])}, {k: (F, v) for k, v in shapes.items()}, constants)
  x = normal(1, 2, 3)
  for put in ("CPU:1", Sharding(("CPU:0", "CPU:1"), 0)):
    runner = OnnxRunner(m) if isinstance(put, Sharding) else OnnxRunner(m).to(put)
    got = runner({"x": Tensor(x).shard(put) if isinstance(put, Sharding) else x})
    assert {k: list(v.shape) for k, v in got.items()} == shapes
    np.testing.assert_array_equal(got["some"].numpy(), x[:, [0, 2]])
    np.testing.assert_array_equal(got["near"].numpy(), x[:, [0, 0, 1, 1, 2, 2]])
    np.testing.assert_array_equal(got["back"].numpy(), [[x[1, 0], x[0, 1], x[1, 2]], [x[0, 0], x[1, 1], x[0, 2]]])
    np.testing.assert_allclose(got["sums"].numpy(), x.cumsum(1), rtol=1e-5)
    np.testing.assert_allclose(got["big"].numpy()[:, 1:3], 0.75 * x[:, :2] + 0.25 * np.c_[x[:, 1], x[:, 0]], rtol=1e-5)
    drop = got["drop"].numpy()
    assert ((drop == 0) | np.isclose(drop, 2 * x)).all()


def test_a_batch_that_is_cut_over_devices():
  x, where = normal(3, 6, 3), Sharding(("CPU:0", "CPU:1"), 0)
  y = OnnxRunner(mlp())({"x": Tensor(x).shard(where)})["y"]
  assert y.device is where
  np.testing.assert_allclose(y.numpy(), expected(x), rtol=1e-5, atol=1e-6)


def test_functions_of_the_model():
  scaled = helper.make_function(
    "own",
    "Scaled",
    ["x"],
    ["y"],
    [helper.make_node("Constant", [], ["c"]), helper.make_node("Mul", ["x", "c"], ["y"])],
    [helper.make_opsetid("", 21)],
    ["by"],
  )
  reference = scaled.node[0].attribute.add()
  reference.name, reference.ref_attr_name, reference.type = "value_float", "by", onnx.AttributeProto.FLOAT
  nodes = [helper.make_node("Scaled", ["x"], ["y"], domain="own", by=3.0)]
  m = model(nodes, {"x": (F, [2])}, {"y": (F, [2])}, functions=[scaled])
  assert OnnxRunner(m)({"x": np.array([1, 2], np.float32)})["y"].tolist() == [3, 6]


def test_an_operator_can_be_added(monkeypatch):
  m = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": (F, [2])}, {"y": (F, [2])})
  with pytest.raises(OnnxError, match="the operator Twice of domain 'own' is not known"):
    OnnxRunner(m)({"x": np.zeros(2, np.float32)})
  monkeypatch.setitem(OPS, "own:Twice", lambda x: x + x)
  assert OnnxRunner(m)({"x": np.array([1, 2], np.float32)})["y"].tolist() == [2, 4]


def test_operators_of_the_runtimes_own_domain():
  x, gamma, beta = normal(1, 2, 4), normal(2, 4), normal(3, 4)
  nodes = [
    helper.make_node("FastGelu", ["x"], ["g"]),
    helper.make_node("BiasGelu", ["x", "beta"], ["e"]),
    helper.make_node(
      "SkipLayerNormalization", ["g", "e", "gamma", "beta"], ["y", "", "", "sum"], domain="com.microsoft"
    ),
  ]
  for node in nodes:
    node.domain = "com.microsoft"
  shapes = {n: (F, [2, 4]) for n in ("g", "e", "y", "sum")}
  got = OnnxRunner(model(nodes, {"x": (F, [2, 4])}, shapes, {"gamma": gamma, "beta": beta}))({"x": x})
  g = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
  erf = np.vectorize(math.erf)
  e = 0.5 * (x + beta) * (1 + erf((x + beta) / np.sqrt(2)))
  total = g + e
  y = (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + 1e-12) * gamma + beta
  for name, want in {"g": g, "e": e, "sum": total, "y": y}.items():
    np.testing.assert_allclose(got[name].numpy(), want, rtol=1e-4, atol=1e-5)


def test_an_operator_on_sequences_that_is_not_there(monkeypatch, python):
  """Its definition depends on the sequence's type, which crashes the onnx package where it is missing."""
  monkeypatch.delitem(OPS, "SequenceMap")
  with pytest.raises(OnnxError, match="the operator SequenceMap is not supported"):
    check("test_sequence_map_identity_1_sequence")


def test_softmax_of_old_opsets_is_over_all_later_dims():
  x = normal(1, 2, 3, 4)
  nodes = [helper.make_node("Softmax", ["x"], ["y"])]
  m = model(nodes, {"x": (F, [2, 3, 4])}, {"y": (F, [2, 3, 4])}, opset=11)
  e = np.exp(x.reshape(2, -1))
  want = (e / e.sum(1, keepdims=True)).reshape(x.shape)
  np.testing.assert_allclose(OnnxRunner(m)({"x": x})["y"].numpy(), want, rtol=1e-5)


def test_what_pytorch_exports_for_a_layer_of_lstm():
  """Against LSTMCell, step by step; the gates lie in the order i o f c there and i f c o here."""
  cell, x = nn.LSTMCell(3, 4), normal(1, 5, 2, 3)
  order = np.r_[0:4, 12:16, 4:8, 8:12]
  constants = {
    "w": cell.weight_ih.numpy()[order][None],
    "r": cell.weight_hh.numpy()[order][None],
    "b": normal(4, 1, 32),
  }
  cell.bias_ih, cell.bias_hh = (Tensor(b[np.argsort(order)]) for b in constants["b"][0].reshape(2, 16))
  nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=4)]
  m = model(nodes, {"x": (F, [5, 2, 3])}, {"y": (F, [5, 1, 2, 4]), "c": (F, [1, 2, 4])}, constants)
  got, state = OnnxRunner(m)({"x": x}), None
  for t in range(5):
    state = cell(Tensor(x[t]), state)
    np.testing.assert_allclose(got["y"].numpy()[t, 0], state[0].numpy(), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got["c"].numpy()[0], state[1].numpy(), rtol=1e-4, atol=1e-5)


def test_random_operators_draw_within_their_range():
  nodes = [helper.make_node("RandomUniform", [], ["y"], shape=[1000], low=2.0, high=3.0)]
  y = OnnxRunner(model(nodes, {}, {"y": (F, [1000])}))({})["y"].numpy()
  assert y.min() >= 2 and y.max() < 3 and abs(y.mean() - 2.5) < 0.05


def test_dropout_while_training():
  nodes = [helper.make_node("Dropout", ["x", "p", "t"], ["y", "m"])]
  constants = {"p": np.array(0.25, np.float32), "t": np.array(True)}
  m = model(nodes, {"x": (F, [4000])}, {"y": (F, [4000]), "m": (TensorProto.BOOL, [4000])}, constants)
  got = OnnxRunner(m)({"x": np.ones(4000, np.float32)})
  y, kept = got["y"].numpy(), got["m"].numpy()
  np.testing.assert_allclose(y, np.where(kept, 4 / 3, 0), rtol=1e-6)
  assert abs(kept.mean() - 0.75) < 0.03


def value(name, shape=None, kind=TensorProto.FLOAT):
  return helper.make_tensor_value_info(name, kind, shape)


def of_nodes(nodes, inputs, outputs, constants=()):
  weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in dict(constants).items()]
  graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("go, trips", [(True, 0), (False, 3), (True, 2)])
def test_a_loop_of_no_iteration_gives_empty_outputs(go, trips, python):
  x, steps = np.arange(6, dtype=np.float32).reshape(2, 3), trips if go else 0
  counters = [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL)]
  nodes = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["c"], ["d"])]
  nodes.append(helper.make_node("ReduceSum", ["t"], ["u"], keepdims=0))
  outputs = [value("d", [], TensorProto.BOOL), value("t"), value("t", [2, "n"]), value("u", [])]
  body = helper.make_graph(nodes, "b", [*counters, value("s")], outputs)
  loop = helper.make_node("Loop", ["m", "go", "x"], ["last", "all", "sums"], body=body)
  constants = {"m": np.array(trips), "go": np.array(go)}
  model = of_nodes([loop], [value("x", [2, 3])], [value("last"), value("all"), value("sums")], constants)
  got = OnnxRunner(model)({"x": x})
  np.testing.assert_array_equal(got["last"].numpy(), x * (1 + steps))
  assert got["all"].shape == ((steps, 2, 3) if steps else (0, 2, 0)) and got["sums"].shape == (steps,)
  assert got["all"].dtype is got["sums"].dtype is dtypes.float32


def test_a_scan_of_nothing_gives_empty_outputs(python):
  nodes = [helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Identity", ["t"], ["o"])]

  def model(shape):
    body = helper.make_graph(nodes, "b", [value("s"), value("r")], [value("t"), value("o", shape)])
    scan = helper.make_node("Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_output_axes=[-1])
    s0 = {"s0": np.ones(4, np.float32)}
    return OnnxRunner(of_nodes([scan], [value("x", ["n", 4])], [value("last"), value("all")], s0))

  got = model([4])({"x": np.zeros((0, 4), np.float32)})
  assert got["last"].tolist() == [1, 1, 1, 1] and got["all"].shape == (4, 0)
  assert model(None)({"x": np.zeros((3, 4), np.float32)})["all"].shape == (4, 3)
  with pytest.raises(
    OnnxError, match="no iteration gives 'o', and the body does not declare its type and shape\n  fix:"
  ):
    model(None)({"x": np.zeros((0, 4), np.float32)})


def test_an_input_with_a_value_in_the_model_may_be_given_another():
  inputs = [value("x", [3]), value("w", [3]), value("n", [1], TensorProto.INT64)]
  nodes = [helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Tile", ["y", "n"], ["z"])]
  constants = {"w": np.full(3, 2, np.float32), "n": np.array([1])}
  runner, x = OnnxRunner(of_nodes(nodes, inputs, [value("z")], constants)), np.arange(3, dtype=np.float32)
  assert list(runner.graph_inputs) == ["x"] and list(runner.defaults) == ["w", "n"]
  assert runner({"x": x})["z"].tolist() == [0, 2, 4]
  assert runner({"x": x, "w": np.full(3, 5, np.float32)})["z"].tolist() == [0, 5, 10]
  assert runner({"x": x, "n": np.array([2])})["z"].tolist() == [0, 2, 4, 0, 2, 4]
  assert runner({"x": x})["z"].tolist() == [0, 2, 4]
  with pytest.raises(OnnxError, match=r"the input 'w' is float32\[2\]\n  fix: give float32\[3\]"):
    runner({"x": x, "w": np.ones(2, np.float32)})


@pytest.mark.parametrize("shape, kind", [((), np.float32), ((2, 3), np.float16), ((4,), np.float64)])
def test_celu_keeps_shape_and_type(shape, kind, python):
  x = np.full(shape, -1, kind)
  model = of_nodes([helper.make_node("Celu", ["x"], ["y"], alpha=2.0)], [], [value("y")], {"x": x})
  y = OnnxRunner(model)({})["y"]
  assert y.shape == shape and to_numpy_dtype(y.dtype) == kind
  np.testing.assert_allclose(y.numpy(), 2 * np.expm1(x / 2), rtol=2e-3)


def test_errors(tmp_path):
  runner = OnnxRunner(mlp())
  with pytest.raises(OnnxError, match=r"the input 'x' is missing\n  fix: give float32\['n', 3\]"):
    runner({})
  with pytest.raises(OnnxError, match=r"the input 'x' is float32\[5, 2\]\n  fix: give float32\['n', 3\]"):
    runner({"x": np.zeros((5, 2), np.float32)})
  with pytest.raises(OnnxError, match=r"the input 'x' is float32\[5\]"):
    runner({"x": np.zeros(5, np.float32)})
  with pytest.raises(OnnxError, match="the given bytes: no ONNX model"):
    OnnxRunner(b"no model")
  with pytest.raises(FileNotFoundError):
    OnnxRunner(tmp_path / "none.onnx")
  nodes = [helper.make_node("ImageDecoder", ["x"], ["y"])]
  m = model(nodes, {"x": (TensorProto.UINT8, [2])}, {"y": (TensorProto.UINT8, [1, 1, 3])})
  with pytest.raises(
    OnnxError,
    match="the operator ImageDecoder is not supported\n  fix: export the model without it, ",
  ):
    OnnxRunner(m)({"x": np.zeros(2, np.uint8)})
  words = model([helper.make_node("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, [1])}, {"y": (F, [1])})
  with pytest.raises(OnnxError, match="the input 'x' is of a type that no tensor has"):
    OnnxRunner(words)({"x": ["a"]})


def test_an_input_of_another_type_is_cast():
  x = np.arange(6).reshape(2, 3)
  with pytest.warns(UserWarning, match=r"the input 'x' is int64, and is cast: the model takes float32\['n', 3\]"):
    y = OnnxRunner(mlp())({"x": Tensor(x)})["y"]
  assert y.dtype is dtypes.float32
  np.testing.assert_allclose(y.numpy(), expected(x), rtol=1e-5, atol=1e-6)


def test_an_error_names_its_node():
  nodes = [helper.make_node("MatMul", ["x", "x"], ["y"], name="middle")]
  m = model(nodes, {"x": (F, [2, 3])}, {"y": (F, [2, 2])})
  said = r"the node MatMul 'middle' of float32\[2, 3\], float32\[2, 3\] fails: dot: the last dim"
  with pytest.raises(OnnxError, match=said):
    OnnxRunner(m)({"x": np.zeros((2, 3), np.float32)})


def test_without_the_package_the_extra_is_named(monkeypatch):
  import sys

  monkeypatch.setitem(sys.modules, "onnx", None)
  with pytest.raises(OnnxError, match=r"needs the onnx package\n  fix: pip install 'tinygrad\[onnx\]'"):
    OnnxRunner(b"")
