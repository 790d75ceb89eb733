"""Gradients: their norm clipped, and they themselves checked."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy
from tinygrad.nn.foreign_layers import FOREIGN_UTILS, no_such
from tinygrad.nn.optim import scalar_beside
from tinygrad.tensor import Tensor

if not TYPE_CHECKING:

  def __getattr__(name: str) -> NoReturn:
    """Of a name that there is not: an AttributeError with what does here what that of PyTorch does."""
    no_such(f"module {__name__!r} has no attribute {name!r}", name, FOREIGN_UTILS)


def clip_grad_norm_(params: Iterable[Tensor], max_norm: float, eps: float = 1e-6) -> Tensor:
  """Scales all gradients so that the norm of all together is at most `max_norm`; returns the norm before (float32,
  lazy), where the first of them lives. They may be on several device sets.

  Raises ValueError if no parameter has a gradient.
  Shape: `(..), … -> ()`.

  Examples:
    >>> w = Tensor([3.0, 4.0])
    >>> loss = (w * w).sum().backward()
    >>> norm = nn.utils.clip_grad_norm_([w], 1.0)
    >>> print(norm.item(), w.grad.numpy().round(3))
    10.0 [0.6 0.8]
  """
  grads = [(p, p.grad) for p in params if p.grad is not None]
  squares = [g.float().square().sum() for _, g in grads]
  if not squares:
    raise ValueError("clip_grad_norm_: no parameter has a gradient\n  fix: call loss.backward() first")
  norm = squares[0].usum(*(scalar_beside(x, squares[0]) for x in squares[1:])).sqrt()
  scale = (max_norm / (norm + eps)).minimum(1.0)
  for p, g in grads:
    p.grad = (g * scalar_beside(scale, g)).cast(g.dtype)
  return norm


class GradientError(AssertionError):
  """A gradient that is not the derivative: names the tensor, the element, and both values."""


def check_gradient(f: Callable[..., Tensor], *tensors: Tensor, eps: float = 1e-5, tol: float = 1e-4) -> None:
  """Compares the gradient of f(*tensors) with central differences, element by element, in float64.

  `f` is called with float64 tensors of the values and at the placements of `tensors`. A result that is no scalar is
  summed with fixed weights that differ from element to element. Costs two evaluations of `f` an element.
  (f(x + eps) - f(x - eps)) / (2 eps) is off by O(eps^2) and by rounding, about 1e-16 |f| / eps; an element passes
  within tol * max(1, |difference|). Keep away from kinks such as relu's.
  Raises: GradientError for the first element that differs; TypeError for tensors that are no floats; ValueError if f
  does not depend on one of them.

  Examples:
    >>> nn.utils.check_gradient(lambda x: (x**2).sum(), Tensor([1.0, 2.0]))  # raises GradientError if not
  """
  for i, t in enumerate(tensors):
    if not t.is_floating_point():
      raise TypeError(f"check_gradient: tensor {i} is {t.dtype.name}\n  fix: give floats, e.g. t.float()")
  values = [t.detach().cast(dtypes.float64).numpy() for t in tensors]

  def evaluate(arrays: list[Any]) -> tuple[Tensor, list[Tensor]]:
    given = [Tensor(a, dtype=dtypes.float64).to(t.device).realize() for a, t in zip(arrays, tensors, strict=True)]
    out = f(*given).cast(dtypes.float64)
    weights = 1 + numpy.cos(numpy.arange(int(out.numel()), dtype=numpy.float64)).reshape(out.shape)
    return (out * Tensor(weights, device=out.device) if out.shape else out).sum(), given

  total, given = evaluate(values)
  try:
    gradients = total.gradient(*given)
  except RuntimeError as e:
    raise ValueError(f"check_gradient: {e}") from e
  for i, (t, gradient) in enumerate(zip(tensors, gradients, strict=True)):
    got = gradient.numpy()
    for at in numpy.ndindex(values[i].shape):
      sides = []
      for step in (eps, -eps):
        moved = values[i].copy()
        moved[at] += step
        sides.append(evaluate([*values[:i], moved, *values[i + 1 :]])[0].item())
      want = (sides[0] - sides[1]) / (2 * eps)
      if not abs(got[at] - want) <= tol * max(1.0, abs(want)):  # NaN is no less either
        raise GradientError(
          f"check_gradient: tensor {i} ({t!r}) at {tuple(map(int, at))}: the gradient is {got[at]:.9g}, "
          f"and (f(x + {eps:g}) - f(x - {eps:g})) / {2 * eps:g} is {want:.9g}\n"
          "  fix: the gradient on the card of an op that f uses; or f has a kink there, or is no function of x alone"
        )
