"""Optimizers. Parameters, their state and the learning rate are tensors, so that a whole step can be captured by
`TinyJit`."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from tinygrad.device import Placement, Sharding, ambient_mesh, same_devices
from tinygrad.dtype import dtypes
from tinygrad.engine.program_order import memory_state
from tinygrad.helpers import TRAINING, dedup
from tinygrad.mixin.base import DeviceLike, to_placement
from tinygrad.mixin.foreign_names import without_foreign
from tinygrad.nn.foreign_layers import FOREIGN_OPTIMIZERS, OF_OPTIMIZER, OPTIONS, no_such
from tinygrad.tensor import Tensor
from tinygrad.transforms.step_gradients import note_used
from tinygrad.uop import describe

if not TYPE_CHECKING:

  def __getattr__(name: str) -> NoReturn:
    """Of a name that there is not: an AttributeError with what does here what that of PyTorch does."""
    no_such(f"module {__name__!r} has no attribute {name!r}", name, FOREIGN_OPTIMIZERS)


def _check_number(owner: object, span: str, example: float, /, **given: Any) -> None:
  """ValueError unless all that is given, by name, are numbers in an interval such as "[0, 1)"; not nan. `example` is
  one that is."""
  low, high = map(float, span[1:-1].split(","))
  for name, x in given.items():
    try:
      value = math.nan if isinstance(x, str) else float(x)
    except TypeError:  # None, a list, an array of several
      value = math.nan
    if not low <= value <= high or (value == low and span[0] == "(") or (value == high and span[-1] == ")"):
      problem = f"{type(owner).__name__}: {name}={x!r} is no number in {span}"
      raise ValueError(f"{problem}\n  fix: {name}={example:g}, or another one in there")


class Optimizer:
  """What all optimizers do. A parameter whose requires_grad is unset gets True; one with False is left alone.

  `lr` is a tensor of shape (1,): change it with `opt.lr = x` or `opt.lr.assign([x])`, inside a captured step too.
  `param_dtype`: its type, the state's and that of the arithmetic; float32, or float64 where a parameter has that.
  `device`: where the optimizer's state is and its arithmetic is done; beside each parameter unless given. Parameters
  may live on several device sets (the stages of a pipeline): what they share is sent to each. `fused` is accepted and
  has no effect: the scheduler decides which updates share a kernel.

  Examples:
    >>> w = Tensor([1.0]).realize()
    >>> optimizer = nn.optim.SGD([w], lr=0.1)
    >>> optimizer.lr = 0.5
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> w.tolist()
    [0.0]
  """

  def __init__(self, params: list[Tensor], lr: float, device: DeviceLike | None = None, fused: Any = False) -> None:
    several: Any = params
    given = list(several) if isinstance(several, Iterable) and not isinstance(several, Tensor) else None
    if given is None or not all(isinstance(p, Tensor) for p in given):
      what = f"list of {', '.join(dedup(type(p).__name__ for p in given))}" if given else type(params).__name__
      raise TypeError(f"an optimizer takes a list of tensors, not {what}\n  fix: pass nn.state.get_parameters(model)")
    self.params: list[Tensor] = dedup(p for p in given if p.requires_grad is not False)
    if not self.params:
      fix = "pass nn.state.get_parameters(model)"
      raise ValueError(f"an optimizer needs at least one parameter with requires_grad\n  fix: {fix}")
    if whole := [p for p in self.params if not p.is_floating_point()]:
      fix = "cast it to a float, or give only [p for p in nn.state.get_parameters(model) if p.is_floating_point()]"
      raise TypeError(f"an optimizer takes floats, and a parameter is {describe(whole[0].uop)}\n  fix: {fix}")
    for p in self.params:
      p.requires_grad = True
    self.device, self.fused = None if device is None else to_placement(device), fused
    self.param_dtype = dtypes.float64 if any(p.dtype is dtypes.float64 for p in self.params) else dtypes.float32
    _check_number(self, "[0, inf)", 0.001, lr=lr)
    vars(self)["lr"] = self._scalar(float(lr))  # by this name in a state dict

  def __init_subclass__(cls) -> None:
    if "__init__" in vars(cls):
      cls.__init__ = without_foreign(f"{cls.__name__}.__init__", cls.__init__, OPTIONS)  # type: ignore[method-assign]

  if not TYPE_CHECKING:

    def __getattr__(self, name: str) -> NoReturn:
      """Of a name that there is not: an AttributeError with what does here what that of PyTorch does."""
      no_such(f"{type(self).__name__!r} object has no attribute {name!r}", name, OF_OPTIMIZER)

  @property
  def lr(self) -> Tensor:
    """The learning rate. What is set is written into its memory, which a captured step reads.

    Examples:
      >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5)
      >>> optimizer.lr.item()
      0.5
    """
    rate: Tensor = vars(self)["lr"]
    return rate

  @lr.setter
  def lr(self, rate: Tensor | float) -> None:
    if not isinstance(rate, Tensor):  # whose value may be one that a captured step computes
      _check_number(self, "[0, inf)", 0.001, lr=rate)
    changed = self.assign_lr(rate)
    changed[0].realize(*changed[1:])

  def assign_lr(self, rate: Tensor | float) -> list[Tensor]:
    """Assigns the rate; returns the tensors that changed, none of them realised yet.

    Examples:
      >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5)
      >>> optimizer.assign_lr(0.25)[0].item()
      0.25
    """
    return [self.lr.assign(rate.cast(self.lr.dtype) if isinstance(rate, Tensor) else rate)]

  def _scalar(self, value: float) -> Tensor:
    """Of shape (1,), in memory, a copy on every device of the optimizer, or of the first parameter."""
    where = everywhere(self.device or self.params[0].device)
    return Tensor([value], dtype=self.param_dtype, requires_grad=False).to(where)

  def _new_optim_param(self) -> list[Tensor]:
    """Zeros for every parameter."""
    kind: dict[str, Any] = {"dtype": self.param_dtype, "requires_grad": False}
    return [Tensor.zeros(p.shape, device=self.device or p.device, **kind) for p in self.params]

  def zero_grad(self, set_to_none: bool = True) -> None:
    """Forgets the gradients; call it before `backward`. With `set_to_none=False` those that there are become zeros.

    Examples:
      >>> w = Tensor([1.0])
      >>> optimizer = nn.optim.SGD([w])
      >>> loss = (w * w).sum().backward()
      >>> optimizer.zero_grad()
      >>> w.grad is None
      True
    """
    for p in self.params:
      p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

  def step(self) -> None:
    """Updates the parameters from their gradients, in one realise, before which what is in no memory yet comes there.
    RuntimeError if not training or one is missing.

    Examples:
      >>> w = Tensor([1.0, 2.0]).realize()
      >>> optimizer = nn.optim.SGD([w], lr=0.25)
      >>> with Tensor.train():
      ...   loss = (w * w).sum().backward()
      ...   optimizer.step()
      >>> print(w.numpy().round(3))
      [0.5 1. ]
    """
    if ambient_mesh() is None and (fresh := self._fresh()):  # a mesh places weights by what is computed of them
      fresh[0].realize(*fresh[1:])
    waiting = self.schedule_step()
    waiting[0].realize(*waiting[1:])

  def _fresh(self) -> list[Tensor]:
    """Parameters and state that are in no memory yet. Computed within the first step they would make it another program
    than all others, and the second step would be planned and compiled anew."""
    given = [t for x in vars(self).values() for t in (x if isinstance(x, list) else [x]) if isinstance(t, Tensor)]
    return [t for t in given if memory_state(t.uop) is None]

  def schedule_step(self) -> list[Tensor]:
    """Assigns the update and returns every tensor that it changes, none of them realised yet.
    Raises as `step` does: RuntimeError.

    Examples:
      >>> w = Tensor([1.0])
      >>> optimizer = nn.optim.SGD([w])
      >>> with Tensor.train():
      ...   loss = (w * w).sum().backward()
      ...   changed = optimizer.schedule_step()
      >>> loss.realize(*changed).item(), w.numpy().round(3).tolist()
      (1.0, [0.9980000257492065])
    """
    if not TRAINING.value:
      raise RuntimeError("the optimizer steps outside of training\n  fix: wrap the loop in `with Tensor.train():`")
    values, grads = [], []
    for i, p in enumerate(self.params):
      if p.grad is None:
        fix = "call backward() on a loss that uses it first"
        raise RuntimeError(f"parameter {i} of shape {p.shape} has no gradient\n  fix: {fix}")
      values.append(p.detach()._at(self.device or p.device))
      grads.append(p.grad.detach()._at(self.device or p.device))
      note_used(p.grad)
    updates, changed = self._step(values, grads)
    for p, update in zip(self.params, updates):
      p.assign((p.detach() - update._at(p.device)).cast(p.dtype))
    return [*changed, *self.params, self.lr]

  def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(what to subtract from each parameter, the state that changed)."""
    raise NotImplementedError


def everywhere(placement: Placement) -> Placement:
  """A copy on every device of a placement: where what all elements share lives."""
  return Sharding.of(placement.mesh, ()) if isinstance(placement, Sharding) else placement


def scalar_beside(scalar: Tensor, x: Tensor) -> Tensor:
  """A one-element tensor as shape (), sent to all devices of `x` where it lives on others."""
  scalar = scalar.reshape(())
  if (here := scalar.uop.device) is None or same_devices(here, x.device):
    return scalar
  return scalar._at(everywhere(x.device))


class OptimizerGroup(Optimizer):
  """Several optimizers that step together.

  Examples:
    >>> a, b = Tensor([1.0]), Tensor([1.0])
    >>> both = nn.optim.OptimizerGroup(nn.optim.SGD([a]), nn.optim.Adam([b]))
    >>> len(both.params)
    2
  """

  def __init__(self, *optimizers: Optimizer) -> None:
    if not optimizers:
      raise ValueError("an OptimizerGroup needs an optimizer\n  fix: OptimizerGroup(first, second)")
    self.optimizers = optimizers
    self.params = [p for o in optimizers for p in o.params]

  @property
  def lr(self) -> Tensor:
    """The first optimizer's rate; what is set is the rate of all."""
    return self.optimizers[0].lr

  @lr.setter
  def lr(self, rate: Tensor | float) -> None:
    for o in self.optimizers:
      o.lr = rate

  def assign_lr(self, rate: Tensor | float) -> list[Tensor]:
    return [t for o in self.optimizers for t in o.assign_lr(rate)]

  def __getitem__(self, i: int) -> Optimizer:
    return self.optimizers[i]

  def _fresh(self) -> list[Tensor]:
    return dedup(t for o in self.optimizers for t in o._fresh())

  def schedule_step(self) -> list[Tensor]:
    return dedup(t for o in self.optimizers for t in o.schedule_step())


class LARS(Optimizer):
  """Momentum SGD with a rate for each layer: tcoef * |w| / (|g| + weight_decay*|w|) (https://arxiv.org/abs/1708.03888).

  `tcoef` 0 turns that off. `classic`: the rate scales what enters the momentum; else what leaves it. `pre_wd`: weight
  decay is part of the gradient; else it is subtracted from the weight by itself. `ns_steps` > 0 orthogonalises the
  update as a matrix (rows: dim 0).

  Examples:
    >>> w = Tensor([1.0, 2.0]).realize()
    >>> optimizer = nn.optim.LARS([w], lr=0.5)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> print(w.numpy().round(3))
    [1.    1.999]
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    ns_steps: int = 0,
    ns_coefficients: tuple[float, ...] | None = None,
    nesterov: bool = False,
    classic: bool = True,
    pre_wd: bool = True,
    tcoef: float = 0.001,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(params, lr, device, fused)
    _check_number(self, "[0, inf)", 0, momentum=momentum, weight_decay=weight_decay, ns_steps=ns_steps, tcoef=tcoef)
    self.momentum, self.wd, self.tcoef = momentum, weight_decay, tcoef
    self.nesterov, self.classic, self.pre_wd = nesterov, classic, pre_wd
    self.ns_steps, self.ns_coefficients = ns_steps, ns_coefficients or ()
    self.b = self._new_optim_param() if momentum else []

  def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    updates = []
    for i, (w, g) in enumerate(zip(params, grads)):
      w, g, rate = w.cast(self.param_dtype), g.cast(self.param_dtype), scalar_beside(self.lr, w)
      if self.tcoef:
        size, slope = w.square().sum().sqrt(), g.square().sum().sqrt()
        rate = rate * ((size > 0) & (slope > 0)).where(self.tcoef * size / (slope + self.wd * size), 1.0)
      if self.wd and self.pre_wd:
        g = g + self.wd * w
      if self.classic:
        g = g * rate
      if self.momentum:
        self.b[i].assign(self.momentum * self.b[i] + g)
        g = g + self.momentum * self.b[i] if self.nesterov else self.b[i].detach()
      if self.ns_steps and g.ndim:
        g = g.reshape(g.shape[0], -1).newton_schulz(self.ns_steps, self.ns_coefficients).reshape(g.shape)
      if not self.classic:
        g = g * rate
      updates.append(g if self.pre_wd or not self.wd else g + scalar_beside(self.lr, w) * self.wd * w)
    return updates, self.b


class SGD(LARS):
  """w -= lr * b with b = momentum*b + g (https://pytorch.org/docs/stable/generated/torch.optim.SGD.html).

  `classic`: b = momentum*b + lr*g and w -= b.

  Examples:
    >>> w = Tensor([1.0, 2.0]).realize()
    >>> optimizer = nn.optim.SGD([w], lr=0.25)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> print(w.numpy().round(3))
    [0.5 1. ]
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    classic: bool = False,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(params, lr, momentum, weight_decay, 0, None, nesterov, classic, True, 0.0, device, fused)


class Muon(LARS):
  """Momentum whose update of a matrix is orthogonalised by Newton-Schulz steps
  (https://kellerjordan.github.io/posts/muon/).

  Examples:
    >>> w = Tensor.eye(2).contiguous().realize()
    >>> optimizer = nn.optim.Muon([w], lr=0.1)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> w.shape
    (2, 2)
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    ns_steps: int = 5,
    ns_coefficients: tuple[float, ...] = (3.4445, -4.775, 2.0315),
    nesterov: bool = True,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(
      params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov, False, False, 0.0, device, fused
    )


class LAMB(Optimizer):
  """Adam's update with a rate for each layer, |w| / |update| (https://arxiv.org/abs/1904.00962); `adam` leaves that
  out.

  Examples:
    >>> w = Tensor([1.0, 2.0]).realize()
    >>> optimizer = nn.optim.LAMB([w], lr=0.1)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> print(w.numpy().round(3))
    [0.842 1.842]
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    adam: bool = False,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(params, lr, device, fused)
    _check_number(self, "[0, 1)", 0.9, b1=b1, b2=b2)
    _check_number(self, "[0, inf)", 1e-8, eps=eps, weight_decay=weight_decay)
    self.b1, self.b2, self.eps, self.wd, self.adam = b1, b2, eps, weight_decay, adam
    self.b1_t, self.b2_t = self._scalar(1.0), self._scalar(1.0)
    self.m, self.v = self._new_optim_param(), self._new_optim_param()

  def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    self.b1_t.assign(self.b1_t * self.b1)
    self.b2_t.assign(self.b2_t * self.b2)
    # the bias corrections of Adam, once for all parameters
    shared = (self.lr, 1 / (1 - self.b1_t), 1 / (1 - self.b2_t))
    updates = []
    for w, g, m, v in zip(params, grads, self.m, self.v):
      w, g = w.cast(self.param_dtype), g.cast(self.param_dtype)
      rate, first, second = (scalar_beside(x, w) for x in shared)
      m.assign(self.b1 * m + (1 - self.b1) * g)
      v.assign(self.b2 * v + (1 - self.b2) * g * g)
      update = m.detach() * first / ((v.detach() * second).sqrt() + self.eps)
      if self.wd:
        update = update + self.wd * w
      if not self.adam:
        size, length = w.square().sum().sqrt(), update.square().sum().sqrt()
        update = update * ((size > 0) & (length > 0)).where(size / length, 1.0)
      updates.append(rate * update)
    return updates, [self.b1_t, self.b2_t, *self.m, *self.v]


class AdamW(LAMB):
  """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101).

  Examples:
    >>> w = Tensor([1.0, 2.0]).realize()
    >>> optimizer = nn.optim.AdamW([w], lr=0.1)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> print(w.numpy().round(3))
    [0.899 1.898]
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(params, lr, b1, b2, eps, weight_decay, True, device, fused)


class Adam(LAMB):
  """Moments of the gradient, corrected for their start at zero (https://arxiv.org/abs/1412.6980).

  Examples:
    >>> w = Tensor([1.0, 2.0]).realize()
    >>> optimizer = nn.optim.Adam([w], lr=0.1)
    >>> with Tensor.train():
    ...   loss = (w * w).sum().backward()
    ...   optimizer.step()
    >>> print(w.numpy().round(3))
    [0.9 1.9]
  """

  def __init__(
    self,
    params: list[Tensor],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    device: DeviceLike | None = None,
    fused: Any = False,
  ) -> None:
    super().__init__(params, lr, b1, b2, eps, 0.0, True, device, fused)
