"""Names of PyTorch that are something else here: what an AttributeError or a TypeError says of them computes, and gives
what PyTorch gives."""

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import tinygrad
from tinygrad import Tensor, TinyJit, dtypes, nn
from tinygrad.mixin.foreign_names import FOREIGN_CREATORS, FOREIGN_FUNCTIONS
from tinygrad.nn import foreign_layers
from tinygrad.nn.foreign_layers import FOREIGN_LAYERS, FOREIGN_OPTIMIZERS, FOREIGN_SCHEDULES

DATA = Path(__file__).parents[1] / "data"
c, d, k, p = 3, 4, 2, 0.5
NAMES = {
  "nn": nn,
  "Tensor": Tensor,
  "scan": tinygrad.scan,
  "c": c,
  "d": d,
  "k": k,
  "p": p,
  "layer": nn.Linear(4, 4),
  "devices": ("CPU:0", "CPU:1"),
}
SENTENCES = {"CTCLoss"}  # of what has no counterpart
STATEMENTS = {"EmbeddingBag", "GRUCell", "RNNCell", "TransformerEncoderLayer"}  # each beside PyTorch below


def fix_of(of: object, name: str) -> str:
  with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\n  fix: ") as e:
    getattr(of, name)
  assert not hasattr(of, name)
  return str(e.value).partition("\n  fix: ")[2]


def run(code: str, names: dict[str, object]) -> dict[str, object]:
  exec(code, names)
  return names


@pytest.mark.parametrize("name", sorted(FOREIGN_LAYERS.keys() - SENTENCES - STATEMENTS))
def test_the_code_that_an_error_gives_computes(name):
  x, y = Tensor.rand(2, c, 4, 4), Tensor.rand(2, c, 4, 4)
  x = Tensor.rand(2, c * k * k, 4, 4) if name == "PixelShuffle" else x
  known = NAMES | {"x": x, "y": y, "z": -y, "logits": Tensor.rand(2, 3), "labels": Tensor([0, 2])}
  if name == "KLDivLoss":
    known["x"] = x.log()
    known["y"] = y + 1  # otherwise the mean may be negative
  got = eval(FOREIGN_LAYERS[name], known)
  if name.endswith("Loss"):
    assert got.shape == () and got.item() > 0
  elif isinstance(got, Tensor):
    assert got.numpy().size > 0
  else:
    assert callable(got) or isinstance(got, list | dict)
  with pytest.raises(AttributeError) as e:
    getattr(nn, name)
  assert str(e.value) == f"module 'tinygrad.nn' has no attribute '{name}'\n  fix: {FOREIGN_LAYERS[name]}"


def test_other_names_have_no_fix():
  with pytest.raises(AttributeError, match=r"^module 'tinygrad.nn' has no attribute 'Nope'$"):
    getattr(nn, "Nope")  # noqa: B009
  assert not hasattr(nn, "Nope") and hasattr(nn, "Linear") and hasattr(nn, "utils")
  for of in (tinygrad, nn.optim, nn.lr_scheduler, nn.utils, nn.optim.SGD([Tensor([1.0])])):
    with pytest.raises(AttributeError, match=r"has no attribute 'nope'$"):
      getattr(of, "nope")  # noqa: B009


def test_what_has_no_counterpart_says_so():
  assert fix_of(nn, "CTCLoss").startswith("nothing does the same in a line: ")


@pytest.fixture
def torch():
  return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinygrad[oracle]'")


def of_torch(theirs, layer):
  """A layer with the weights of one of PyTorch's."""
  layer.weight, layer.bias = (Tensor(t.detach().numpy()) for t in (theirs.weight, theirs.bias))
  return layer


def linear(weight, bias):
  layer = nn.Linear(*reversed(weight.shape))
  layer.weight, layer.bias = Tensor(weight.detach().numpy()), Tensor(bias.detach().numpy())
  return layer


# what PyTorch's module is made with, where it has parameters that are no other's here
MADE = {
  "AvgPool1d": (k,), "AvgPool2d": (k,), "AvgPool3d": (k,), "AdaptiveAvgPool2d": (1,), "AdaptiveMaxPool2d": (1,),
  "MaxPool1d": (k,), "MaxPool2d": (k,), "MaxPool3d": (k,), "CircularPad2d": (k,), "ConstantPad2d": (k, 0.0),
  "ReflectionPad2d": (k,), "ReplicationPad2d": (k,), "ZeroPad2d": (k,), "PixelShuffle": (k,), "PixelUnshuffle": (k,),
  "Softmax": (1,), "LogSoftmax": (1,), "Softmin": (1,), "Threshold": (p, 0.0), "Unflatten": (1, (1, c)), "Unfold": (k,),
  "UpsamplingBilinear2d": ((8, 8),), "UpsamplingNearest2d": ((8, 8),), "Upsample": ((8, 8), None, "bilinear"),
  "PReLU": (), "Flatten": (),
}  # fmt: skip
PLAIN = {
  "CELU", "CosineSimilarity", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HuberLoss",
  "Identity", "KLDivLoss", "L1Loss", "LeakyReLU", "LogSigmoid", "MSELoss", "Mish", "PairwiseDistance", "PoissonNLLLoss",
  "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax2d", "Softplus", "Softshrink", "Softsign", "Tanh",
  "Tanhshrink", "TripletMarginLoss", "BCEWithLogitsLoss",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLAIN | MADE.keys()))
@pytest.mark.filterwarnings("ignore")  # PyTorch's, of means that are not those of batches
def test_the_code_computes_what_the_module_does(name, torch):
  module = getattr(torch.nn, name)(*MADE.get(name, ()))
  shape = (2, 12 if name == "PixelShuffle" else 2 if name == "GLU" else c, 4, 4)
  values = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i in range(3)]
  if name == "KLDivLoss":
    values[1] = np.abs(values[1])
  if name == "BCEWithLogitsLoss":
    values[1] = (values[1] > 0).astype(np.float32)
  paired = name.endswith("Loss") or name in ("CosineSimilarity", "PairwiseDistance")
  shaped = [v.reshape(2, -1, 16) for v in values] if name.endswith("1d") else values
  want = module(*map(torch.from_numpy, shaped[: 3 if name.startswith("Triplet") else 1 + paired])).detach().numpy()
  x, y, z = map(Tensor, shaped)
  got = eval(FOREIGN_LAYERS[name], NAMES | {"x": x, "y": y, "z": z})
  got = got(x) if name == "Identity" else got
  np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def test_whole_channels_are_dropped():
  x = Tensor.ones(2, 50, 3, 3)
  with Tensor.train():
    out = eval(FOREIGN_LAYERS["Dropout2d"].partition("  #")[0], {"x": x, "p": 0.5}).numpy()
  assert set(np.unique(out)) == {0, 2} and (out == out[..., :1, :1]).all()


def test_a_step_of_a_plain_cell(torch):
  cell = torch.nn.RNNCell(c, d)
  x, h = torch.randn(5, c), torch.randn(5, d)
  of_x, of_h = linear(cell.weight_ih, cell.bias_ih), linear(cell.weight_hh, cell.bias_hh)
  known = {"x": Tensor(x.numpy()), "h": Tensor(h.numpy()), "of_x": of_x, "of_h": of_h}
  np.testing.assert_allclose(run(fix_of(nn, "RNNCell"), known)["h"].numpy(), cell(x, h).detach().numpy(), atol=1e-6)
  assert "RNNCell" in fix_of(nn, "RNN")


def test_a_step_of_a_gru(torch):
  cell = torch.nn.GRUCell(c, d)
  x, h = torch.randn(5, c), torch.randn(5, d)
  of_x, of_h = linear(cell.weight_ih, cell.bias_ih), linear(cell.weight_hh, cell.bias_hh)
  known = {"x": Tensor(x.numpy()), "h": Tensor(h.numpy()), "of_x": of_x, "of_h": of_h}
  got = run(fix_of(nn, "GRUCell"), known)["h"]
  np.testing.assert_allclose(got.numpy(), cell(x, h).detach().numpy(), atol=1e-6)
  assert "GRUCell" in fix_of(nn, "GRU")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(torch, mode):
  i, offsets, n = torch.tensor([4, 1, 1, 0, 3, 2]), torch.tensor([0, 2, 2, 5]), 4  # the second bag is empty
  theirs = torch.nn.EmbeddingBag(5, d, mode=mode)
  bag = (torch.arange(6)[:, None] >= offsets).sum(1) - 1
  code = fix_of(nn, "EmbeddingBag").partition("  #")[0]
  if mode != "sum":  # as the fix says
    code = code.replace("'sum'", {"mean": "'mean'", "max": "'amax'"}[mode] + ", include_self=False")
  known = {"weight": Tensor(theirs.weight.detach().numpy()), "i": Tensor(i.numpy()), "bag": Tensor(bag.numpy()), "n": n}
  np.testing.assert_allclose(run(code, known)["x"].numpy(), theirs(i, offsets).detach().numpy(), atol=1e-6)


def test_a_layer_of_an_encoder(torch):
  theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
  attention = theirs.self_attn
  known = {
    "qkv": linear(attention.in_proj_weight, attention.in_proj_bias),
    "out": linear(attention.out_proj.weight, attention.out_proj.bias),
    "up": linear(theirs.linear1.weight, theirs.linear1.bias),
    "down": linear(theirs.linear2.weight, theirs.linear2.bias),
    "norm1": of_torch(theirs.norm1, nn.LayerNorm(8)),
    "norm2": of_torch(theirs.norm2, nn.LayerNorm(8)),
    "heads": 2,
  }
  x = torch.randn(3, 5, 8)
  got = run(fix_of(nn, "TransformerEncoderLayer"), known | {"x": Tensor(x.numpy())})["x"]
  np.testing.assert_allclose(got.numpy(), theirs(x).detach().numpy(), atol=1e-5)


def test_a_padding_index(torch):
  theirs = torch.nn.Embedding(5, 3, padding_idx=2)
  with pytest.raises(TypeError, match=r"^Embedding.__init__\(\) got an unexpected keyword argument 'padding_idx'") as e:
    nn.Embedding(5, 3, padding_idx=2)
  code = str(e.value).partition("\n  fix: ")[2]
  got = eval(code, {"nn": nn, "i": Tensor([[2, 0]]), "padding_idx": 2, "vocab_size": 5, "embed_size": 3}).numpy()
  assert (got[0, 0] == 0).all() and (got[0, 1] != 0).all()
  assert (theirs(torch.tensor([[2, 0]])).detach().numpy()[0, 0] == 0).all()


# ---------------------------------------------------------------- schedules

NUMBERS = {"gamma": 0.5, "step_size": 3, "factor": 0.25, "total_iters": 4, "start": 0.25, "power": 2.0, "milestone": 3}


def theirs_of(name, torch, optimizer):
  schedules = torch.optim.lr_scheduler
  made = {
    "ConstantLR": lambda: schedules.ConstantLR(optimizer, 0.25, 4),
    "CosineAnnealingWarmRestarts": lambda: schedules.CosineAnnealingWarmRestarts(optimizer, 4),
    "ExponentialLR": lambda: schedules.ExponentialLR(optimizer, 0.5),
    "LinearLR": lambda: schedules.LinearLR(optimizer, 0.25, 1.0, 4),
    "MultiplicativeLR": lambda: schedules.MultiplicativeLR(optimizer, lambda n: 0.5),
    "PolynomialLR": lambda: schedules.PolynomialLR(optimizer, 4, 2.0),
    "SequentialLR": lambda: schedules.SequentialLR(
      optimizer,
      [schedules.LinearLR(optimizer, 0.25, 1.0, 3), schedules.ExponentialLR(optimizer, 0.5)],
      milestones=[3],
    ),
    "StepLR": lambda: schedules.StepLR(optimizer, 3, 0.5),
  }
  return made[name]()


@pytest.mark.parametrize("name", sorted(FOREIGN_SCHEDULES))
@pytest.mark.filterwarnings("ignore")  # PyTorch's, of schedules that step without their optimizers
def test_schedules(name, torch):
  optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.8)
  known = {"nn": nn, "math": math, "optimizer": optimizer, "t": 4, **NUMBERS}
  known["first"], known["second"] = lambda n: 0.25 + 0.75 * n / 3, lambda n: 0.5**n
  schedule = run(fix_of(nn.lr_scheduler, name), known)["schedule"]
  torchs = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)
  theirs, rates, wants = theirs_of(name, torch, torchs), [], []
  for _ in range(9):
    rates.append(optimizer.lr.item())
    wants.append(torchs.param_groups[0]["lr"])
    schedule.step()
    torchs.step()
    theirs.step()
  np.testing.assert_allclose(rates, wants, rtol=1e-5, atol=1e-8)
  assert eval(fix_of(schedule, "get_last_lr"), {"schedule": schedule}) == [optimizer.lr.item()]
  assert eval(fix_of(schedule, "last_epoch"), {"schedule": schedule}) == 9
  assert "epoch_counter" in eval(fix_of(schedule, "state_dict"), {"nn": nn, "schedule": schedule})


def test_whole_steps_are_whole():
  for step_size in range(1, 41):
    n = Tensor.arange(121).float()
    rates = eval("(n / step_size).floor()", {"n": n, "step_size": step_size}).tolist()
    assert rates == [i // step_size for i in range(121)] and "(n / step_size).floor()" in FOREIGN_SCHEDULES["StepLR"]


# ---------------------------------------------------------------- optimizers


def trained(make, steps=3):
  """A weight after some steps down x**2 + 3x, and the optimizer."""
  w = Tensor([1.0, -2.0]).realize()
  optimizer = make([w])
  with Tensor.train():
    for _ in range(steps):
      optimizer.zero_grad()
      (w * w + 3 * w).sum().backward()
      optimizer.step()
  return w, optimizer


@pytest.mark.parametrize("name", sorted(FOREIGN_OPTIMIZERS))
def test_optimizers(name):
  code = fix_of(nn.optim, name)
  if name == "lr_scheduler":
    assert eval(code, NAMES) is nn.lr_scheduler
  else:
    w, _ = trained(lambda params: eval(code, {"nn": nn, "params": params}))
    assert (w.numpy() < [1, -2]).tolist() == [True, False]  # towards -1.5


def test_what_an_optimizer_has():
  w, optimizer = trained(nn.optim.Adam)
  known = {"nn": nn, "optimizer": optimizer, "more": [Tensor([1.0])]}
  params, rate = eval(fix_of(optimizer, "param_groups"), known)
  assert params == [w] and rate.item() == pytest.approx(0.001)
  state = eval(fix_of(optimizer, "state_dict"), known)
  assert "lr" in state and any(name.startswith("m.") for name in state)
  _, other = trained(nn.optim.Adam, 1)
  run(fix_of(other, "load_state_dict"), {"nn": nn, "optimizer": other, "state": state})
  assert other.m[0].tolist() == optimizer.m[0].tolist()
  assert len(run(fix_of(optimizer, "add_param_group"), known)["both"].params) == 2


def refused(make, **option):
  (name,) = option
  with pytest.raises(TypeError, match=rf"__init__\(\) got an unexpected keyword argument '{name}'\n  fix: ") as e:
    make([Tensor([1.0])], **option)
  return str(e.value).partition("\n  fix: ")[2]


def test_options_of_optimizers(torch):
  code = refused(nn.optim.Adam, betas=(0.5, 0.7))
  w, _ = trained(lambda params: eval(code, {"nn": nn, "params": params, "betas": (0.5, 0.7)}))
  theirs = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
  optimizer = torch.optim.Adam([theirs], betas=(0.5, 0.7))
  for _ in range(3):
    optimizer.zero_grad()
    (theirs * theirs + 3 * theirs).sum().backward()
    optimizer.step()
  np.testing.assert_allclose(w.numpy(), theirs.detach().numpy(), rtol=1e-5)
  for option in ("amsgrad", "foreach"):
    eval(refused(nn.optim.Adam, **{option: True}), {"nn": nn, "params": [w]})
  eval(refused(nn.optim.SGD, dampening=0.1), {"nn": nn, "params": [w]})
  with pytest.raises(TypeError, match=r"^SGD.__init__\(\) got an unexpected keyword argument 'nope'$"):
    nn.optim.SGD([w], nope=1)


def test_decay_and_direction(torch):
  w, theirs = Tensor([1.0, -2.0]).realize(), torch.nn.Parameter(torch.tensor([1.0, -2.0]))
  mine, torchs = nn.optim.Adam([w]), torch.optim.Adam([theirs], weight_decay=0.1, maximize=True)
  decay, direction = refused(nn.optim.Adam, weight_decay=0.1), refused(nn.optim.Adam, maximize=True)
  for _ in range(3):
    mine.zero_grad()
    torchs.zero_grad()
    run(direction, {"loss": (w**3).sum()})
    (theirs**3).sum().backward()
    run(decay, {"params": [w], "weight_decay": 0.1})
    torchs.step()
    with Tensor.train():
      mine.step()
  np.testing.assert_allclose(w.numpy(), theirs.detach().numpy(), rtol=1e-5)


def test_gradients_clipped_by_value(torch):
  w = Tensor([0.1, 5.0])
  (w * w).sum().backward()
  run(fix_of(nn.utils, "clip_grad_value_"), {"params": [w], "clip_value": 1.0})
  np.testing.assert_allclose(w.grad.numpy(), [0.2, 1.0], rtol=1e-6)
  assert eval(fix_of(nn.utils, "parameters_to_vector"), {"Tensor": Tensor, "params": [w, w]}).shape == (4,)
  run(fix_of(nn.utils, "vector_to_parameters"), {"params": [w], "vector": Tensor([2.0, 3.0])})
  assert w.tolist() == [2, 3]


def test_weights_of_a_norm(torch):
  theirs = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(c, d))
  g, v = (
    Tensor(t.detach().numpy())
    for t in (theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1)
  )
  got = run(fix_of(nn.utils, "weight_norm"), {"g": g * 2, "v": v})["w"]
  np.testing.assert_allclose(got.numpy(), 2 * theirs.weight.detach().numpy(), rtol=1e-5)


def test_a_sequence_that_has_ended_keeps_its_state():
  known = {"i": 1, "lengths": Tensor([1, 2]), "new": Tensor([[5.0], [6.0]]), "h": Tensor([[1.0], [2.0]])}
  assert run(fix_of(nn.utils, "rnn"), known)["h"].tolist() == [[1], [6]]


LAYERS = [lambda: nn.Linear(4, 4), lambda: nn.Embedding(4, 4), lambda: nn.BatchNorm(4), lambda: nn.LSTMCell(4, 4)]


@pytest.mark.parametrize("name", sorted(foreign_layers.OF_LAYER))
@pytest.mark.parametrize("make", LAYERS)
def test_what_modules_of_pytorch_have(name, make):
  layer, x = make(), Tensor([[0, 1, 2, 3]]) if make is LAYERS[1] else Tensor.ones(1, 4)
  x = (x, None) if make is LAYERS[3] else (x,)
  state = {k: t + 1 for k, t in nn.state.get_state_dict(layer).items()}
  code = fix_of(layer, name).replace("layer(x)", "layer(*x)").replace('"CUDA"', '"CPU:1"')
  parameters = nn.state.get_parameters(layer)
  optimizer = nn.optim.SGD([t for t in parameters if t.is_floating_point()])
  known = {"nn": nn, "Tensor": Tensor, "dtypes": dtypes, "device": "CPU:1", "optimizer": optimizer}
  training = Tensor.training
  try:
    if code.startswith(("for", "Tensor.training")):
      exec(code, known | {"layer": layer})
    else:
      got = eval(code, known | {"layer": layer, "x": x, "state": state})
    now = Tensor.training
  finally:
    Tensor.training = training
  match name:
    case "eval" | "train":
      assert now is (name == "train")
    case "cpu" | "cuda" | "to":
      assert {t.device for t in parameters} == {"CPU" if name == "cpu" else "CPU:1"}
    case "half" | "bfloat16" | "double":
      kind = {"half": "float16", "double": "float64"}.get(name, name)
      assert {t.dtype for t in parameters} == {getattr(dtypes, kind)}
    case "requires_grad_":
      assert not any(t.requires_grad for t in parameters)
    case "parameters":
      assert [id(t) for t in got] == [id(t) for t in parameters]
    case "named_parameters" | "state_dict":
      assert dict(got).keys() == state.keys()
    case "load_state_dict":
      for k, t in nn.state.get_state_dict(layer).items():
        np.testing.assert_array_equal(t.numpy(), state[k].numpy())
    case "forward":
      assert got is not None


def test_what_layers_of_pytorch_are_made_with():
  layer, x = nn.Conv2d(3, 4, 3), Tensor.ones(1, 3, 4, 4)
  for option, makes in {"dtype": nn.Linear, "device": nn.LayerNorm, "padding_mode": nn.Conv2d}.items():
    with pytest.raises(TypeError, match=rf"__init__\(\) got an unexpected keyword argument '{option}'\n  fix: ") as e:
      makes(4, 4, 3, **{option: 1}) if makes is nn.Conv2d else makes(4, **{option: 1})
    code = str(e.value).partition("\n  fix: ")[2]
    known = {"nn": nn, "layer": layer, "device": "CPU:1", "dtype": dtypes.float16, "x": x, "k": 1}
    if option == "padding_mode":
      assert eval(code, known).shape == (1, 3, 6, 6)
    else:
      exec(code, known)
  assert layer.weight.dtype is dtypes.float16 and layer.weight.device == "CPU:1"

  class Mine(nn.Linear):
    def __init__(self, **options):
      super().__init__(2, 2)
      self.options = options

  mine = Mine(dtype=3)
  assert mine.options == {"dtype": 3} and not hasattr(mine, "nope")
  for there, again in ((mine, copy.deepcopy(mine)), (layer, pickle.loads(pickle.dumps(layer)))):
    np.testing.assert_array_equal(again.weight.numpy(), there.weight.numpy())


def test_every_table_is_tested():
  tables = {name for name in vars(foreign_layers) if name.isupper()}
  here = {"FOREIGN_LAYERS", "FOREIGN_OPTIMIZERS", "FOREIGN_SCHEDULES", "FOREIGN_UTILS", "OF_OPTIMIZER", "OF_SCHEDULE"}
  assert tables - {"_PARAMETERS"} == here | {"OPTIONS", "OF_EMBEDDING", "OF_LAYER", "LAYER_OPTIONS"}
  assert foreign_layers.OF_OPTIMIZER.keys() == {"add_param_group", "load_state_dict", "param_groups", "state_dict"}
  assert foreign_layers.OF_SCHEDULE.keys() == {"get_last_lr", "last_epoch", "state_dict"}
  of_adam, of_sgd = {"amsgrad", "betas", "foreach", "maximize", "weight_decay"}, {"dampening"}
  assert foreign_layers.OPTIONS.keys() == of_adam | of_sgd
  utils = {"clip_grad_value_", "parameters_to_vector", "rnn", "vector_to_parameters", "weight_norm"}
  assert foreign_layers.FOREIGN_UTILS.keys() == utils


# ---------------------------------------------------------------- the package


@pytest.mark.parametrize("name", sorted(FOREIGN_FUNCTIONS))
def test_functions_of_the_package(name, tmp_path):
  def f(x):
    return x * 2

  x, path = Tensor([[1.0, 2.0], [3.0, 4.0]]), str(tmp_path / "saved")
  known = NAMES | {name: getattr(tinygrad, name) for name in tinygrad.__all__} | {"f": f, "x": x, "path": path}
  code = fix_of(tinygrad, name)
  if name == "load":
    known["path"] = str(DATA / "torch_zip.pt")
  got = eval(code, known)
  match name:
    case "jit" | "compile":
      assert isinstance(got, TinyJit) and got(x).tolist() == (x * 2).tolist()
    case "pmap":
      assert got(x).tolist() == (x * 2).tolist()
    case "load":
      assert isinstance(got, dict) and got
    case "save":
      assert nn.state.safe_load(path).keys() == {"weight", "bias"}
    case "lax":
      assert all(map(callable, got))
    case "float16" | "float32" | "int64" | "bfloat16":
      assert got is getattr(dtypes, name)
    case "optim":
      assert got is nn.optim
    case "numpy":
      assert got is Tensor
    case "no_grad" | "inference_mode":
      with got:
        assert not (x * 2).requires_grad
    case _:
      assert got is None or callable(got)


@pytest.mark.parametrize("name", ["zeros", "matmul", "relu", "einsum"])
def test_methods_as_functions(name):
  assert eval(fix_of(tinygrad, name), NAMES) == getattr(Tensor, name)


@pytest.mark.parametrize("name", sorted(FOREIGN_CREATORS))
def test_functions_of_the_class(name):
  data = np.array([[1.0, 2.0]], np.float32)
  known = NAMES | {"x": Tensor(data), "y": Tensor(data + 5), "data": data, "dim": 1, "n": 3}
  code = fix_of(Tensor, name)
  assert name == "tensor" or fix_of(tinygrad, name) == code  # a module of the package
  got = eval(code, known)
  want = {
    "bernoulli": None,
    "concat": [[1, 2, 6, 7]],
    "concatenate": [[1, 2, 6, 7]],
    "hstack": [[1, 2, 6, 7]],
    "vstack": [[1, 2], [6, 7]],
    "block_diag": [[1, 2, 0, 0], [0, 0, 6, 7]],
    "logspace": [1, 10, 100],
    "is_tensor": True,
    "tril_indices": np.tril_indices(3),
    "triu_indices": np.triu_indices(3),
  }.get(name, data)
  if name == "bernoulli":
    assert got.shape == (2, 3) and got.dtype is dtypes.bool
  elif isinstance(got, Tensor):
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)
  else:
    assert got is want
