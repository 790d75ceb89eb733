"""Matrix products, normalisations and recurrent layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tinygrad.nn.onnx.values import OPS, OnnxError, array_beside
from tinygrad.tensor import Tensor


def Gemm(
  a: Tensor, b: Tensor, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
  y = (a.transpose() if transA else a).matmul(b.transpose() if transB else b).mul(alpha)
  return (y if c is None else y.add(c.mul(beta))).cast(a.dtype)


def BatchNormalization(
  x: Tensor,
  scale: Tensor,
  bias: Tensor,
  mean: Tensor,
  var: Tensor,
  epsilon: float = 1e-5,
  momentum: float = 0.9,
  training_mode: int = 0,
  spatial: int = 1,
  is_test: int = 1,
) -> Any:
  if is_test and not training_mode:
    return x.batchnorm(scale, bias, mean, var.add(epsilon).rsqrt()).cast(x.dtype)
  axes = tuple(i for i in range(x.ndim) if i != 1)
  now, spread = x.mean(axes), x.var(axes, correction=0)
  y = x.batchnorm(scale, bias, now, spread.add(epsilon).rsqrt()).cast(x.dtype)
  return y, *(old.mul(momentum).add(new.mul(1 - momentum)).cast(old.dtype) for old, new in ((mean, now), (var, spread)))


def InstanceNormalization(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
  y = x.reshape(*x.shape[:2], -1).layernorm(eps=epsilon).reshape(x.shape)
  return y.mul(scale._lined(1, x.ndim)).add(bias._lined(1, x.ndim))


def LRN(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
  around = x.square().pad([((size - 1) // 2, size // 2) if i == 1 else None for i in range(x.ndim)]).unfold(1, size, 1)
  return x.div(around.sum(-1).mul(alpha / size).add(bias).pow(beta))


def _skip_layer_norm(
  x: Tensor, skip: Tensor, gamma: Tensor, beta: Any = None, bias: Any = None, epsilon: float = 1e-12
) -> Any:
  total = x.add(skip) if bias is None else x.add(skip).add(bias)
  y = total.layernorm(-1, epsilon).mul(gamma)
  return y if beta is None else y.add(beta), None, None, total


def _recurrent(
  step: Callable[..., tuple[Tensor, ...]],
  default: list[str],
  x: Tensor,
  w: Tensor,
  r: Tensor,
  b: Any,
  lengths: Any,
  states: list[Any],
  direction: str = "forward",
  hidden_size: int = 0,
  layout: int = 0,
  activations: Any = None,
  activation_alpha: Any = None,
  activation_beta: Any = None,
  clip: float = 0.0,
  **more: Any,
) -> Any:
  """(every output, the last of each state) of `step(gates of x, recurrent weights, their bias, states, f, …)`."""
  x, states = (x.transpose(0, 1), [s if s is None else s.transpose(0, 1) for s in states]) if layout else (x, states)
  steps, batch, hidden = x.shape[0], x.shape[1], r.shape[-1]
  names, outs, ends = activations or default * w.shape[0], [], []
  for d in range(w.shape[0]):
    mine = names[d * len(default) : (d + 1) * len(default)]
    if unknown := [n for n in mine if n not in ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")]:
      raise OnnxError(f"the activation {unknown[0]} is not supported")
    f = [partial(_activate, n.lower(), clip) for n in mine]
    wide = b[d] if b is not None else Tensor.zeros(2 * w.shape[1], dtype=x.dtype)
    gates = x.matmul(w[d].transpose()).add(wide[: w.shape[1]])
    now = tuple(Tensor.zeros(batch, hidden, dtype=x.dtype) if s is None else s[d] for s in states)
    seen: list[Any] = [None] * steps
    backward = direction == "reverse" or d == 1
    for t in reversed(range(steps)) if backward else range(steps):
      new = step(
        gates[t], r[d].transpose(), wide[w.shape[1] :], now, f, {k: v if v is None else v[d] for k, v in more.items()}
      )
      seen[t] = new[0]
      if lengths is not None:  # a sequence that is over, or has not begun, keeps its state
        valid = array_beside([[n > t] for n in lengths], x)
        new, seen[t] = tuple(valid.where(a, c) for a, c in zip(new, now)), valid.where(new[0], 0)
      now = new
    outs.append(seen[0].stack(*seen[1:]))
    ends.append(now)
  y = outs[0].stack(*outs[1:], dim=2 if layout else 1)
  last = [e[0].stack(*e[1:], dim=1 if layout else 0) for e in zip(*ends)]
  return (y.transpose(0, 1) if layout else y, *last)


def _activate(name: str, clip: float, x: Tensor) -> Tensor:
  y: Tensor = getattr(x.clamp(-clip, clip) if clip else x, name)()
  return y


def RNN(
  x: Tensor, w: Tensor, r: Tensor, b: Any = None, sequence_lens: Any = None, h: Any = None, **attributes: Any
) -> Any:
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    return (f[0](g.add(state[0].matmul(r)).add(b)),)

  return _recurrent(step, ["Tanh"], x, w, r, b, sequence_lens, [h], **attributes)


def GRU(
  x: Tensor,
  w: Tensor,
  r: Tensor,
  b: Any = None,
  sequence_lens: Any = None,
  h: Any = None,
  linear_before_reset: int = 0,
  **attributes: Any,
) -> Any:
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    (h,), n = state, state[0].shape[-1]
    update, reset = f[0](g[:, : 2 * n].add(h.matmul(r[:, : 2 * n])).add(b[: 2 * n])).chunk(2, 1)
    inner = r[:, 2 * n :]
    candidate = (
      reset.mul(h.matmul(inner).add(b[2 * n :])) if linear_before_reset else reset.mul(h).matmul(inner).add(b[2 * n :])
    )
    return (update.mul(h).add(update.sub(1, reverse=True).mul(f[1](g[:, 2 * n :].add(candidate)))),)

  return _recurrent(step, ["Sigmoid", "Tanh"], x, w, r, b, sequence_lens, [h], **attributes)


def LSTM(
  x: Tensor,
  w: Tensor,
  r: Tensor,
  b: Any = None,
  sequence_lens: Any = None,
  h: Any = None,
  c: Any = None,
  peepholes: Any = None,
  input_forget: int = 0,
  **attributes: Any,
) -> Any:
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    h, c = state
    i, o, forget, cell = g.add(h.matmul(r)).add(b).chunk(4, 1)
    pi, po, pf = more["peepholes"].chunk(3) if more["peepholes"] is not None else (0, 0, 0)
    i = f[0](i.add(c.mul(pi)))
    forget = i.sub(1, reverse=True) if input_forget else f[0](forget.add(c.mul(pf)))
    c = forget.mul(c).add(i.mul(f[1](cell)))
    return f[0](o.add(c.mul(po))).mul(f[2](c)), c

  default = ["Sigmoid", "Tanh", "Tanh"]
  return _recurrent(step, default, x, w, r, b, sequence_lens, [h, c], peepholes=peepholes, **attributes)


OPS |= {f.__name__: f for f in (Gemm, BatchNormalization, InstanceNormalization, LRN, RNN, GRU, LSTM)} | {
  "com.microsoft:BiasGelu": lambda x, bias: x.add(bias).gelu("none"),
  "com.microsoft:FastGelu": lambda x, bias=None: (x if bias is None else x.add(bias)).gelu("tanh"),
  "com.microsoft:SkipLayerNormalization": _skip_layer_norm,
}
