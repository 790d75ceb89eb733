"""Layers against numpy, written from their definitions."""

import math

import numpy as np
import pytest

from tinygrad import Tensor, dtypes, nn
from tinygrad.nn.state import get_parameters
from tinygrad.nn.utils import check_gradient


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, want, tol=1e-5):
  np.testing.assert_allclose(got.numpy(), want, rtol=tol, atol=tol)


def test_linear():
  layer, x = nn.Linear(3, 4), normal(1, 2, 3)
  assert layer.weight.shape == (4, 3)
  close(layer(Tensor(x)), x @ layer.weight.numpy().T + layer.bias.numpy())
  assert np.abs(layer.weight.numpy()).max() <= 1 / math.sqrt(3)
  assert nn.Linear(3, 4, bias=False).bias is None


def test_a_linear_layer_of_no_features_is_its_bias():
  layer = nn.Linear(0, 3)  # its weights' bound was 1 / 0; PyTorch's is 0
  assert layer(Tensor.ones(2, 0)).tolist() == [[0.0] * 3] * 2 and layer.weight.shape == (3, 0)


def test_conv_shapes_and_same_padding():
  assert nn.Conv2d(2, 4, 3)(Tensor.ones(1, 2, 5, 5)).shape == (1, 4, 3, 3)
  assert nn.Conv2d(2, 4, (3, 2), stride=2, padding=1, bias=False)(Tensor.ones(1, 2, 5, 5)).shape == (1, 4, 3, 3)
  for kernel in (3, 4):
    assert nn.Conv2d(2, 4, kernel, padding="same", dilation=2)(Tensor.ones(1, 2, 5, 5)).shape == (1, 4, 5, 5)
  assert nn.Conv1d(2, 4, 3, groups=2)(Tensor.ones(1, 2, 5)).shape == (1, 4, 3)
  assert nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1)(Tensor.ones(1, 2, 5, 5)).shape == (1, 4, 12, 12)
  assert nn.ConvTranspose1d(2, 4, 3)(Tensor.ones(1, 2, 5)).shape == (1, 4, 7)


def convolved(x, w, b, stride, padding, dilation, groups):
  """Cross-correlation in 2 dims, from its definition."""
  x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
  (n, _, *size), (out, cin, *kernel) = x.shape, w.shape
  rows, columns = ((m - d * (k - 1) - 1) // s + 1 for m, k, s, d in zip(size, kernel, stride, dilation))
  y = np.zeros((n, out, rows, columns), x.dtype)
  for o, i, j in np.ndindex(out, rows, columns):
    first = o // (out // groups) * cin
    window = x[:, first : first + cin, i * stride[0] :, j * stride[1] :]
    part = window[:, :, : dilation[0] * kernel[0] : dilation[0], : dilation[1] * kernel[1] : dilation[1]]
    y[:, o, i, j] = (part[:, :, : kernel[0], : kernel[1]] * w[o]).sum((1, 2, 3)) + b[o]
  return y


@pytest.mark.parametrize(
  ("stride", "padding", "dilation", "groups"),
  [((1, 1), (0, 0), (1, 1), 1), ((2, 1), (1, 0), (1, 2), 2), ((3, 2), (2, 1), (2, 1), 4)],
)
def test_conv_and_its_adjoint(stride, padding, dilation, groups):
  layer = nn.Conv2d(4, 8, (3, 2), stride, padding, dilation, groups)
  x, w = normal(1, 2, 4, 7, 6), layer.weight.numpy()
  want = convolved(x, w, layer.bias.numpy(), stride, padding, dilation, groups)
  close(layer(Tensor(x)), want)
  back = nn.ConvTranspose2d(8, 4, (3, 2), stride, padding, 0, dilation, groups, bias=False)
  back.weight = layer.weight
  y = normal(2, *want.shape)
  there = back(Tensor(y)).numpy()  # <conv x, y> = <x, conv^T y>, where x reaches as far as y does
  x = x[:, :, : there.shape[2], : there.shape[3]]
  x = np.pad(x, [(0, 0), (0, 0), *((0, max(0, n - m)) for n, m in zip(there.shape[2:], x.shape[2:]))])
  straight = convolved(x, w, np.zeros(8), stride, padding, dilation, groups)[:, :, : y.shape[2], : y.shape[3]]
  np.testing.assert_allclose((straight * y).sum(), (x * there).sum(), rtol=1e-4)


GRADIENTS = {
  "linear": (lambda: nn.Linear(3, 2), (2, 3)),
  "conv": (lambda: nn.Conv2d(2, 4, (2, 3), (2, 1), 1, (1, 2), 2), (1, 2, 4, 5)),
  "conv_transpose": (lambda: nn.ConvTranspose2d(2, 2, 2, 2, 1, 1), (1, 2, 2, 3)),
  "layer_norm": (lambda: nn.LayerNorm(4), (2, 4)),
  "rms_norm": (lambda: nn.RMSNorm(4), (2, 4)),
  "group_norm": (lambda: nn.GroupNorm(2, 4), (1, 4, 3)),
  "instance_norm": (lambda: nn.InstanceNorm(2), (2, 2, 3)),
  "batch_norm": (lambda: nn.BatchNorm(2), (3, 2, 2)),
  "lstm_cell": (lambda: nn.LSTMCell(3, 2), (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_against_differences(name):
  make, shape = GRADIENTS[name]
  layer = make()
  names = [k for k, p in nn.state.get_state_dict(layer).items() if p.requires_grad is not False]

  def f(x, *parameters):
    for k, p in zip(names, parameters):
      setattr(layer, k, p)
    y = layer(x)
    return y[0] * y[1] if isinstance(y, tuple) else y

  values = [Tensor(normal(i, *getattr(layer, k).shape)) for i, k in enumerate(names)]
  with Tensor.train():
    check_gradient(f, Tensor(normal(9, *shape)), *values)


def test_embedding():
  layer = nn.Embedding(5, 3)
  close(layer(Tensor([[0, 4], [2, 2]])), layer.weight.numpy()[[[0, 4], [2, 2]]])
  close(layer(Tensor([4, -2]) + 1), np.zeros((2, 3)))
  for numbers, rule in (([0, 5], r"5 is no row of 5(.|\n)*nn.Embedding\(6, 3\)"), ([-1, 2], r"-1 is no row of 5")):
    with pytest.raises(IndexError, match=rule):
      layer(Tensor(np.array(numbers)))
  with pytest.raises(TypeError, match="needs integers"):
    layer(Tensor([1.0]))


def standard(x, axes, eps):
  return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_norms():
  x = normal(2, 2, 4, 3, 5)
  layer = nn.LayerNorm(5)
  layer.weight, layer.bias = Tensor(normal(3, 5)), Tensor(normal(4, 5))
  close(layer(Tensor(x)), standard(x, -1, 1e-5) * layer.weight.numpy() + layer.bias.numpy())
  close(nn.LayerNorm((3, 5), eps=1e-3, elementwise_affine=False)(Tensor(x)), standard(x, (-1, -2), 1e-3))
  close(nn.LayerNorm2d(4)(Tensor(x)), standard(x, 1, 1e-5))
  close(nn.GroupNorm(2, 4)(Tensor(x)), standard(x.reshape(2, 2, -1), -1, 1e-5).reshape(x.shape))
  close(nn.InstanceNorm(4)(Tensor(x)), standard(x, (2, 3), 1e-5))
  rms = nn.RMSNorm(5)
  rms.weight = Tensor(normal(5, 5))
  close(rms(Tensor(x)), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * rms.weight.numpy())
  with pytest.raises(ValueError, match="which are the last dims of x"):
    layer(Tensor.ones(2, 4))


def test_rms_norm_of_halves_is_done_in_float32():
  x = np.full((1, 8), 300.0, np.float16)  # 300² is beyond float16
  close(nn.RMSNorm(8)(Tensor(x)), np.ones((1, 8)), 1e-3)


def test_batch_norm_learns_its_statistics():
  layer, x = nn.BatchNorm(4), normal(2, 6, 4, 3) * 2 + 1
  with Tensor.train():
    close(layer(Tensor(x)), standard(x, (0, 2), 1e-5), 1e-4)
  close(layer.running_mean, 0.1 * x.mean((0, 2)))
  close(layer.running_var, 0.9 + 0.1 * x.var((0, 2), ddof=1))
  assert layer.num_batches_tracked.item() == 1
  mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
  close(layer(Tensor(x)), (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5))
  assert nn.BatchNorm2d is nn.BatchNorm


def test_lstm_cell():
  cell, x, h, c = nn.LSTMCell(3, 4), normal(1, 2, 3), normal(2, 2, 4), normal(3, 2, 4)
  new_h, new_c = cell(Tensor(x), (Tensor(h), Tensor(c)))
  i, f, g, o = np.split(x @ cell.weight_ih.numpy().T + h @ cell.weight_hh.numpy().T, 4, 1)
  sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
  want = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
  close(new_c, want)
  close(new_h, sigmoid(o) * np.tanh(want))
  assert cell(Tensor(x))[0].shape == (2, 4)
  of_3, of_4 = r"LSTMCell: this one takes 3 features.*x\n(.|\n)*\(batch, 3\)", r"takes 4 features, which .* of c\n"
  for rule, args in ((of_3, (Tensor(h),)), (of_3, (Tensor(x[0]),)), (of_4, (Tensor(x), (Tensor(h), Tensor(x))))):
    with pytest.raises(ValueError, match=rule):
      cell(*args)


def test_dropout():
  x = Tensor.ones(10_000)
  assert x.dropout(0.3).uop is x.uop
  with Tensor.train():
    y = x.dropout(0.3).numpy()
    assert abs((y == 0).mean() - 0.3) < 0.03
    np.testing.assert_allclose(y[y != 0], 1 / 0.7, rtol=1e-6)
    assert x.dropout(0).uop is x.uop
    assert x.dropout(1).sum().item() == 0
  with pytest.raises(ValueError, match="probability"):
    x.dropout(1.5)


# ---------------------------------------------------------------- attention


def attention(q, k, v, mask=None):
  scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
  scores = scores if mask is None else scores + mask
  e = np.exp(scores - scores.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True) @ v


def test_attention():
  q, k, v = normal(1, 2, 4, 3, 5), normal(2, 2, 4, 6, 5), normal(3, 2, 4, 6, 7)
  t = [Tensor(x) for x in (q, k, v)]
  close(t[0].scaled_dot_product_attention(t[1], t[2]), attention(q, k, v))
  added = normal(4, 2, 1, 3, 6)
  close(t[0].scaled_dot_product_attention(t[1], t[2], Tensor(added)), attention(q, k, v, added))
  seen = np.arange(18).reshape(3, 6) % 3 != 1
  close(t[0].scaled_dot_product_attention(t[1], t[2], Tensor(seen)), attention(q, k, v, np.where(seen, 0, -np.inf)))
  causal = np.where(np.tri(3, dtype=bool), 0, -np.inf)
  close(t[0].scaled_dot_product_attention(t[0], t[0], is_causal=True), attention(q, q, q, causal))


def test_grouped_query_attention():
  q, k, v = normal(1, 2, 4, 3, 5), normal(2, 2, 2, 3, 5), normal(3, 2, 2, 3, 5)
  wide = [np.repeat(x, 2, 1) for x in (k, v)]
  causal = np.where(np.tri(3, dtype=bool), 0, -np.inf)
  t = [Tensor(x) for x in (q, k, v)]
  close(t[0].scaled_dot_product_attention(t[1], t[2], is_causal=True, enable_gqa=True), attention(q, *wide, causal))
  for heads in (1, 4):
    mask = normal(5, 2, heads, 3, 3)
    close(t[0].scaled_dot_product_attention(t[1], t[2], Tensor(mask), enable_gqa=True), attention(q, *wide, mask))
  with pytest.raises(ValueError, match="multiple of those of k"):
    t[0].scaled_dot_product_attention(Tensor(normal(2, 2, 3, 3, 5)), Tensor(normal(2, 2, 3, 3, 5)), enable_gqa=True)


def test_a_mask_and_the_causal_one_both_hold():
  q, k, v = normal(1, 2, 4, 6, 5), normal(2, 2, 4, 6, 5), normal(3, 2, 4, 6, 7)
  t = [Tensor(x) for x in (q, k, v)]
  causal = np.where(np.tri(6, dtype=bool), 0, -np.inf)
  added, seen = normal(4, 2, 1, 6, 6), (np.arange(36).reshape(6, 6) % 3 != 1) | np.eye(6, dtype=bool)
  for mask, add in ((added, added), (seen, np.where(seen, 0, -np.inf))):
    got = t[0].scaled_dot_product_attention(t[1], t[2], Tensor(mask), is_causal=True)
    close(got, attention(q, k, v, add + causal))
    assert np.abs(attention(q, k, v, add + causal) - attention(q, k, v, add)).max() > 0.1  # each of them matters
    assert np.abs(attention(q, k, v, add + causal) - attention(q, k, v, causal)).max() > 0.1


@pytest.mark.parametrize("kind", ["bool", "added"])
def test_a_query_that_sees_no_key_gives_zeros_and_takes_no_gradient(kind):
  """As PyTorch's attention has it; 0 / 0 would be nan, and so would every gradient."""
  q, k, v = normal(1, 2, 3, 5), normal(2, 2, 4, 5), normal(3, 2, 4, 6)
  seen = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
  added = np.where(seen, 0, -np.inf).astype(np.float32)
  rows = [0, 2]
  want = np.zeros((2, 3, 6), np.float32)
  want[:, rows] = attention(q[:, rows], k, v, added[rows])
  t = [Tensor(x) for x in (q, k, v)]
  got = t[0].scaled_dot_product_attention(t[1], t[2], Tensor(seen if kind == "bool" else added))
  close(got, want)
  rest = t[0][:, rows].scaled_dot_product_attention(t[1], t[2], Tensor(seen[rows]))
  for g, h in zip(got.square().sum().gradient(*t), rest.square().sum().gradient(*t), strict=True):
    close(g, h.numpy())
  assert not got.sum().gradient(t[0])[0].numpy()[:, 1].any()
  with pytest.MonkeyPatch.context() as patch:  # a softmax as it is would have been seen
    patch.setattr(Tensor, "_softmax_or_zeros", Tensor.softmax)
    assert np.isnan(t[0].scaled_dot_product_attention(t[1], t[2], Tensor(seen)).numpy()[:, 1]).all()


def test_half_attention_is_scored_in_float32():
  q = np.full((1, 1, 2, 64), 40.0, np.float16)  # 64 * 40² is beyond float16
  assert np.isfinite(Tensor(q).scaled_dot_product_attention(Tensor(q), Tensor(q)).numpy()).all()


# ---------------------------------------------------------------- losses

LOGITS, LABELS = normal(1, 4, 3), np.array([0, 2, 1, 2], np.int32)


def log_softmax(x, axis=-1):
  x = x - x.max(axis, keepdims=True)
  return x - np.log(np.exp(x).sum(axis, keepdims=True))


def test_sparse_categorical_crossentropy():
  losses = -log_softmax(LOGITS)[np.arange(4), LABELS]
  x, y = Tensor(LOGITS), Tensor(LABELS)
  close(x.sparse_categorical_crossentropy(y), losses.mean())
  close(x.sparse_categorical_crossentropy(y, reduction="none"), losses)
  close(x.sparse_categorical_crossentropy(y, reduction="sum"), losses.sum())
  close(x.sparse_categorical_crossentropy(y, ignore_index=2), losses[LABELS != 2].mean())
  smooth = 0.9 * losses - 0.1 * log_softmax(LOGITS).mean(-1)
  close(x.sparse_categorical_crossentropy(y, label_smoothing=0.1), smooth.mean())
  x.sparse_categorical_crossentropy(y).backward()
  close(x.grad, (np.exp(log_softmax(LOGITS)) - np.eye(3)[LABELS]) / 4)


def test_sparse_categorical_crossentropy_of_impossible_classes():
  x = Tensor([[0.0, -math.inf]])
  assert x.sparse_categorical_crossentropy(Tensor([0])).item() == 0.0


def test_cross_entropy():
  x = normal(2, 2, 3, 4)
  labels = np.random.default_rng(0).integers(0, 3, (2, 4))
  losses = -np.take_along_axis(log_softmax(x, 1), labels[:, None], 1)[:, 0]
  close(Tensor(x).cross_entropy(Tensor(labels)), losses.mean())
  close(Tensor(x).cross_entropy(Tensor(labels), reduction="none"), losses)
  p = np.abs(normal(3, 2, 3, 4))
  close(Tensor(x).cross_entropy(Tensor(p)), -(p * log_softmax(x, 1)).sum(1).mean())
  close(Tensor(x).log_softmax(1).nll_loss(Tensor(labels)), losses.mean())
  w = np.array([1.0, 2.0, 3.0], np.float32)
  close(Tensor(x).log_softmax(1).nll_loss(Tensor(labels), Tensor(w)), (losses * w[labels]).sum() / w[labels].sum())


@pytest.mark.parametrize("how", [{}, {"ignore_index": 1}, {"reduction": "none"}, {"reduction": "sum"}])
def test_losses_of_halves_are_halves(how):
  for dtype in (dtypes.float16, dtypes.bfloat16):
    logs = Tensor(normal(1, 4, 3)).cast(dtype).log_softmax()
    assert logs.nll_loss(Tensor([0, 1, 2, 1]), **how).dtype is dtype
    assert logs.nll_loss(Tensor([0, 1, 2, 1]), Tensor([1.0, 2.0, 3.0]).cast(dtype), **how).dtype is dtype


def test_the_mean_of_many_losses_of_halves():
  """Their sum, and how many they are, is more than the largest half."""
  n = 70_000
  logits = Tensor([[0.0, 4.0]]).half().expand(n, 2)
  labels = Tensor.zeros(n, dtype=dtypes.int32)
  want = 4 + math.log1p(math.exp(-4))
  close(logits.sparse_categorical_crossentropy(labels), want, 1e-3)
  close(logits.log_softmax().nll_loss(labels, ignore_index=1), want, 1e-3)
  close(logits.log_softmax().nll_loss(labels, Tensor([1.0, 2.0]).half()), want, 1e-3)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_with_weights_of_classes(smoothing, reduction):
  """By PyTorch's definition: the label as a distribution, and classes scaled in it."""
  x, w, labels = normal(2, 4, 3, 2), np.array([1.0, 2.0, 0.5], np.float32), np.array([[0, 1], [2, 2], [1, 0], [0, 2]])
  target = (1 - smoothing) * np.moveaxis(np.eye(3)[labels], -1, 1) + smoothing / 3
  losses = -(target * w.reshape(3, 1) * log_softmax(x, 1)).sum(1)

  def reduced(losses, scale):
    return losses if reduction == "none" else losses.sum() / (scale.sum() if reduction == "mean" else 1)

  how = {"reduction": reduction, "label_smoothing": smoothing, "weight": Tensor(w)}
  close(Tensor(x).cross_entropy(Tensor(labels), **how), reduced(losses, w[labels]))
  counted = labels != 2
  close(Tensor(x).cross_entropy(Tensor(labels), ignore_index=2, **how), reduced(losses * counted, w[labels] * counted))
  close(
    Tensor(x).cross_entropy(Tensor(target.astype(np.float32)), reduction, weight=Tensor(w)),
    reduced(losses, losses * 0 + 1),
  )
  marked = Tensor(np.where(counted, labels, -100))  # no class, and left out
  close(Tensor(x).cross_entropy(marked, ignore_index=-100, **how), reduced(losses * counted, w[labels] * counted))


def test_what_cross_entropy_cannot_leave_out():
  with pytest.raises(ValueError, match=r"ignore_index is of class numbers, and these are probabilities(.|\n)*fix:"):
    Tensor.rand(2, 3).cross_entropy(Tensor.rand(2, 3), ignore_index=0)
  with pytest.raises(IndexError, match=r"label -100 is no class of 3(.|\n)*leave these out: ignore_index=-100"):
    Tensor.rand(2, 3).cross_entropy(Tensor([0, -100]))


def test_valid_padding_is_none():
  layer, x = nn.Conv2d(2, 3, 3, stride=2, padding="valid"), Tensor(normal(1, 1, 2, 7, 7))
  np.testing.assert_array_equal(layer(x).numpy(), x.conv2d(layer.weight, layer.bias, stride=2).numpy())
  with pytest.raises(ValueError, match="unknown padding 'full'\n  fix: use 'same', 'valid' or numbers"):
    nn.Conv2d(2, 3, 3, padding="full")


def test_what_a_loss_ignores_may_be_infinite():
  logs = Tensor([[0.0, -math.inf], [-1.0, -2.0]])
  assert logs.nll_loss(Tensor([1, 0]), ignore_index=1).item() == 1
  assert logs.nll_loss(Tensor([1, 0]), Tensor([1.0, 1.0]), ignore_index=1).item() == 1


def test_binary_crossentropy():
  x, y = normal(1, 6), np.array([0, 1, 1, 0, 1, 0], np.float32)
  p = 1 / (1 + np.exp(-x))
  want = -(y * np.log(p) + (1 - y) * np.log(1 - p))
  close(Tensor(p).binary_crossentropy(Tensor(y)), want.mean())
  close(Tensor(x).binary_crossentropy_logits(Tensor(y)), want.mean())
  close(
    Tensor(x).binary_crossentropy_logits(Tensor(y), "none", Tensor(3.0)), -(3 * y * np.log(p) + (1 - y) * np.log(1 - p))
  )
  assert Tensor([1e4]).binary_crossentropy_logits(Tensor([0.0])).item() == 1e4
  close(Tensor(p).binary_crossentropy(Tensor(1.0)), -np.log(p).mean())  # one target for all


@pytest.mark.parametrize("shape", [(6, 1), (4,), (2, 6)])
@pytest.mark.parametrize("name", ["binary_crossentropy", "binary_crossentropy_logits"])
def test_targets_of_another_shape_are_no_targets(name, shape):
  """Six values and targets (6, 1) had the loss of 36 pairs."""
  rule = rf"^{name}: the targets must have the shape of x(.|\n)*fix: give both one shape, e.g. x.squeeze\(-1\)"
  with pytest.raises(ValueError, match=rule):
    getattr(Tensor([0.5] * 6), name)(Tensor.ones(*shape))


def test_losses_refuse_what_does_not_fit():
  x = Tensor(LOGITS)
  with pytest.raises(ValueError, match="logits' shape without the last dim"):
    x.sparse_categorical_crossentropy(Tensor([0, 1]))
  with pytest.raises(ValueError, match="label_smoothing"):
    x.cross_entropy(Tensor(LABELS), label_smoothing=2.0)
  with pytest.raises(ValueError, match="unknown reduction"):
    x.cross_entropy(Tensor(LABELS), reduction="max")
  with pytest.raises(ValueError, match="without dim 1"):
    x.cross_entropy(Tensor([0, 1]))


def test_sequential_and_parameters():
  model = [nn.Linear(3, 4), Tensor.relu, nn.Linear(4, 2, bias=False)]
  assert Tensor.ones(5, 3).sequential(model).shape == (5, 2)
  assert len(get_parameters(model)) == 3
  assert all(p.dtype is dtypes.float32 for p in get_parameters(model))


# ---------------------------------------------------------------- resampling and initial weights


@pytest.mark.parametrize("shape", [(6, 6), (3, 6, 6), (2, 3, 6, 6)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_interpolate_without_a_batch(shape, mode):
  x = normal(1, *shape)
  whole = np.broadcast_to(x, (2, 3, 6, 6))
  want = Tensor(whole).interpolate((4, 9), mode).numpy()
  close(Tensor(x).interpolate((4, 9), mode), want[(0,) * (4 - len(shape))])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("align", [False, True])
def test_interpolated_integers_are_rounded(dtype, align):
  low = 0 if dtype == "uint8" else -128
  x = np.random.default_rng(0).integers(low, low + 256, (1, 2, 5, 7)).astype(dtype)
  got = Tensor(x).interpolate((8, 4), align_corners=align)
  want = Tensor(x.astype(np.float64)).interpolate((8, 4), align_corners=align).numpy()
  assert got.dtype.name == dtype and np.abs(got.numpy() - want).max() <= 0.5 + 1e-4
  if dtype == "uint8":
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.interpolate(torch.tensor(x), (8, 4), mode="bilinear", align_corners=align).numpy()
    assert np.abs(got.numpy().astype(int) - theirs.astype(int)).max() <= 1  # it rounds its weights, too


def ks(sample, distribution):
  """The Kolmogorov-Smirnov statistic sup |F_n - F| times sqrt(n); above 1.95 for 1 of 1,000 samples (Massey, 1951)."""
  x, n = np.sort(np.asarray(sample, np.float64)), len(sample)
  f = distribution(x)
  return max((np.arange(1, n + 1) / n - f).max(), (f - np.arange(n) / n).max()) * math.sqrt(n)


def test_ks_tells_distributions_apart():
  x = np.random.default_rng(0).random(20_000)
  assert ks(x, lambda x: x) < 1.95 < ks(x**1.1, lambda x: x)
  assert ks(x, lambda x: np.clip(x / 1.05, 0, 1)) > 1.95


@pytest.mark.parametrize("layer", ["Linear", "Conv2d"])
def test_weights_begin_uniform_within_one_over_the_root_of_the_inputs(layer):
  Tensor.manual_seed(0)
  made, inputs = (nn.Linear(300, 100), 300) if layer == "Linear" else (nn.Conv2d(20, 90, 4), 320)
  bound = 1 / math.sqrt(inputs)
  for t in (made.weight, made.bias):
    assert ks(t.numpy().reshape(-1), lambda x: np.clip((x + bound) / (2 * bound), 0, 1)) < 1.95


def test_randperm_is_in_no_order():
  """Where an element lands, and which two are in order, are as of independent places."""
  Tensor.manual_seed(1)
  n, k = 2000, 8
  many = np.stack([Tensor.randperm(n).numpy() for _ in range(k)])
  assert all(sorted(p) == list(range(n)) for p in many.tolist())
  halves = many[:, : n // 2].reshape(-1)
  assert ks((halves + 0.5) / n, lambda x: x) < 1.95
  assert ks((np.argsort(many, 1)[:, ::4].reshape(-1) + 0.5) / n, lambda x: x) < 1.95
  rising = (np.diff(many, axis=1) > 0).mean()
  assert abs(rising - 0.5) < 4 * math.sqrt(1 / 12 / (n * k))
  assert Tensor.randperm(5, dtype="int64").dtype is dtypes.int64


def test_randperm_is_the_order_of_whole_words():
  """Of 2**16 float32 in [0, 1) over a hundred are equal, and a stable sort would leave those in order."""
  Tensor.manual_seed(0)
  order = Tensor.randperm(1 << 16).numpy()
  Tensor.manual_seed(0)
  words = Tensor(Tensor._random_words((1 << 16,), None)[0]).numpy()
  np.testing.assert_array_equal(order, np.argsort(words, kind="stable"))
  assert (order != np.argsort(words >> 8, kind="stable")).sum() > 50


def test_transposed_convolution_of_a_stride_that_no_loop_counts():
  """What does not land on an output of its own is zero; the stride was counted through."""
  x, w = Tensor.ones(1, 1, 1, 2), Tensor([[[[1.0, 2.0, 3.0]]]])
  assert x.conv_transpose2d(w, stride=2**70).shape == (1, 1, 1, 2**70 + 3)
  assert x[..., :1].conv_transpose2d(w, stride=2**70).tolist() == [[[[1.0, 2.0, 3.0]]]]
  assert x.conv_transpose2d(w, stride=(1, 5)).tolist() == [[[[1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 2.0, 3.0]]]]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("how", [{"ceil_mode": True}, {"padding": 1, "count_include_pad": False}])
def test_means_of_windows_of_halves_are_halves(dtype, how):
  x = np.full((1, 1, 5, 5), 40_000, np.float32)  # a sum of two is more than the largest half
  y = Tensor(x).cast(dtype).avg_pool2d(**how)
  assert y.dtype is dtype
  np.testing.assert_array_equal(y.float().numpy(), np.full(y.shape, Tensor(40_000.0).cast(dtype).float().item()))


@pytest.mark.parametrize("align_corners", [False, True])
def test_float64_is_interpolated_in_float64(align_corners):
  x = np.random.default_rng(0).standard_normal(7)
  at = np.arange(11) * 6 / 10 if align_corners else np.clip((np.arange(11) + 0.5) * 7 / 11 - 0.5, 0, 6)
  got = Tensor(x, dtype=dtypes.float64).interpolate((11,), align_corners=align_corners)
  np.testing.assert_allclose(got.numpy(), np.interp(at, np.arange(7), x), rtol=1e-13, atol=1e-13)


def test_running_statistics_without_momentum_are_means_over_all_batches():
  norm, batches = nn.BatchNorm(3, momentum=None), [normal(i, 5, 3) for i in range(3)]
  with Tensor.train():
    for x in batches:
      norm(Tensor(x)).realize()
  close(norm.running_mean, np.mean([x.mean(0) for x in batches], 0))
  close(norm.running_var, np.mean([x.var(0, ddof=1) for x in batches], 0))
  assert norm.num_batches_tracked.item() == 3
