"""Gradients, their norm clipped."""

from collections.abc import Iterable

from tinygrad.tensor import Tensor


def clip_grad_norm_(params: Iterable[Tensor], max_norm: float, eps: float = 1e-6) -> Tensor:
  """Scales all gradients so that the norm of all together is at most `max_norm`; returns the norm before (float32,
  lazy).

  Raises ValueError if no parameter has a gradient.
  """
  grads = [(p, p.grad) for p in params if p.grad is not None]
  squares = [g.float().square().sum() for _, g in grads]
  if not squares:
    raise ValueError("clip_grad_norm_: no parameter has a gradient\n  fix: call loss.backward() first")
  norm = squares[0].usum(*squares[1:]).sqrt()
  scale = (max_norm / (norm + eps)).minimum(1.0)
  for p, g in grads:
    p.grad = (g * scale).cast(g.dtype)
  return norm
