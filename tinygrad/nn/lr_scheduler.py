"""Learning rates that follow a schedule, as PyTorch defines them (https://pytorch.org/docs/stable/optim.html).

`step()` after `optimizer.step()` sets the optimizer's `lr`, a tensor: so a step with its schedule can be captured by
`TinyJit`. `schedule_step()` does the same and leaves the realising to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tinygrad.nn.foreign_layers import FOREIGN_SCHEDULES, OF_SCHEDULE, no_such
from tinygrad.nn.optim import Optimizer, _check_number
from tinygrad.tensor import Tensor

if not TYPE_CHECKING:

  def __getattr__(name: str) -> NoReturn:
    """Of a name that there is not: an AttributeError with what does here what that of PyTorch does."""
    no_such(f"module {__name__!r} has no attribute {name!r}", name, FOREIGN_SCHEDULES)


def _check_optimizer(owner: object, optimizer: object) -> None:
  """TypeError for what is none."""
  if not isinstance(optimizer, Optimizer):
    problem = f"{type(owner).__name__}: a {type(optimizer).__name__} is no optimizer"
    raise TypeError(f"{problem}\n  fix: give nn.optim.SGD(parameters), or another of nn.optim")


class LR_Scheduler:
  """`get_lr` gives the rate, of shape (1,), from `epoch_counter`, the number of steps taken; both of the rate's type.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
    >>> rates = []
    >>> for _ in range(3):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [1.0, 0.5, 0.25]
  """

  def __init__(self, optimizer: Optimizer) -> None:
    _check_optimizer(self, optimizer)
    self.optimizer, where = optimizer, optimizer.lr.device
    self.epoch_counter = Tensor([0.0], dtype=optimizer.lr.dtype, requires_grad=False).to(where).realize()
    self.base_lr = float(optimizer.lr.item())

  def get_lr(self) -> Tensor:
    raise NotImplementedError

  if not TYPE_CHECKING:

    def __getattr__(self, name: str) -> NoReturn:
      """Of a name that there is not: an AttributeError with what does here what that of PyTorch does."""
      no_such(f"{type(self).__name__!r} object has no attribute {name!r}", name, OF_SCHEDULE)

  def schedule_step(self) -> list[Tensor]:
    """Assigns the next rate; returns the tensors that changed, none of them realised yet."""
    self.epoch_counter.assign(self.epoch_counter + 1)
    return [self.epoch_counter, *self.optimizer.assign_lr(self.get_lr())]

  def step(self) -> None:
    changed = self.schedule_step()
    changed[0].realize(*changed[1:])


class LRSchedulerGroup:
  """Several schedules that step together.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.LRSchedulerGroup(nn.lr_scheduler.MultiStepLR(optimizer, [1]))
    >>> schedule.step()
    >>> round(optimizer.lr.item(), 3)
    0.1
  """

  def __init__(self, *schedulers: LR_Scheduler) -> None:
    if not schedulers:
      raise ValueError("an LRSchedulerGroup needs a schedule\n  fix: LRSchedulerGroup(first, second)")
    self.schedulers = schedulers

  def schedule_step(self) -> list[Tensor]:
    return [t for s in self.schedulers for t in s.schedule_step()]

  def step(self) -> None:
    changed = self.schedule_step()
    changed[0].realize(*changed[1:])


class LambdaLR(LR_Scheduler):
  """base_lr * f(steps taken).

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
    >>> rates = []
    >>> for _ in range(3):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [1.0, 0.5, 0.25]
  """

  def __init__(self, optimizer: Optimizer, lr_lambda) -> None:  # type: ignore[no-untyped-def]
    super().__init__(optimizer)
    if not callable(lr_lambda):
      raise TypeError(f"LambdaLR: lr_lambda={lr_lambda!r} is no function of the steps taken\n  fix: lambda n: 0.9**n")
    self.lr_lambda = lr_lambda

  def get_lr(self) -> Tensor:
    factor = self.lr_lambda(self.epoch_counter)
    rate = factor if isinstance(factor, Tensor) else Tensor([float(factor)], dtype=self.epoch_counter.dtype)
    return rate * self.base_lr


class MultiStepLR(LR_Scheduler):
  """The rate times `gamma` at each milestone.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.MultiStepLR(optimizer, [2])
    >>> rates = []
    >>> for _ in range(3):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [1.0, 1.0, 0.1]
  """

  def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
    super().__init__(optimizer)
    _check_number(self, "[0, inf)", 0.1, gamma=gamma)
    several: Any = milestones
    if not isinstance(several, Iterable):
      problem = f"MultiStepLR: milestones={milestones!r} is no list of numbers of steps"
      raise TypeError(f"{problem}\n  fix: [{milestones}]")
    self.milestones, self.gamma = sorted(milestones), gamma

  def get_lr(self) -> Tensor:
    lr = Tensor.full((1,), self.base_lr, dtype=self.epoch_counter.dtype)
    for m in self.milestones:
      lr = (self.epoch_counter >= m).where(lr * self.gamma, lr)
    return lr


class CosineAnnealingLR(LR_Scheduler):
  """Half a period of a cosine from the rate to `eta_min` in `T_max` steps.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    >>> rates = []
    >>> for _ in range(3):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [1.0, 0.5, 0.0]
  """

  def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
    super().__init__(optimizer)
    _check_number(self, "[1, inf)", 100, T_max=T_max)
    _check_number(self, "[0, inf)", 0, eta_min=eta_min)
    self.T_max, self.eta_min = T_max, eta_min

  def get_lr(self) -> Tensor:
    phase = (self.epoch_counter * (math.pi / self.T_max)).cos()
    return self.eta_min + (self.base_lr - self.eta_min) * (1 + phase) * 0.5


class CosineAnnealingLRWithWarmup(LR_Scheduler):
  """A line from 0 to `base_lr` in `warmup_steps`, then half a period of a cosine to `end_lr` in `decay_steps`.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.CosineAnnealingLRWithWarmup(optimizer, 1.0, 0.0, 2, 2)
    >>> rates = []
    >>> for _ in range(4):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [0.5, 1.0, 0.5, 0.0]
  """

  def __init__(self, optimizer: Optimizer, base_lr: float, end_lr: float, warmup_steps: int, decay_steps: int) -> None:
    super().__init__(optimizer)
    _check_number(self, "[0, inf)", 0.001, base_lr=base_lr, end_lr=end_lr)
    _check_number(self, "[0, inf)", 100, warmup_steps=warmup_steps, decay_steps=decay_steps)
    self.base_lr, self.end_lr, self.warmup_steps, self.decay_steps = base_lr, end_lr, warmup_steps, decay_steps
    self.optimizer.lr = self.get_lr()

  def get_lr(self) -> Tensor:
    warm = (self.epoch_counter + 1) * (self.base_lr / max(self.warmup_steps, 1))
    part = ((self.epoch_counter + 1 - self.warmup_steps) / max(self.decay_steps, 1)).clamp(0, 1)
    decayed = self.end_lr + (self.base_lr - self.end_lr) * ((part * math.pi).cos() + 1) * 0.5
    return (self.epoch_counter < self.warmup_steps).where(warm, decayed)


class OneCycleLR(LR_Scheduler):
  """Up from max_lr/div_factor to max_lr for a part `pct_start` of the steps, then down to the least rate, which is the
  first over `final_div_factor`; along lines, or cosines (`anneal_strategy="cos"`). `total_steps` must be given.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.OneCycleLR(optimizer, 1.0, 10, 10, 4, 0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...   rates.append(round(optimizer.lr.item(), 3))
    ...   schedule.step()
    >>> rates
    [0.1, 1.0, 0.505, 0.01]
  """

  def __init__(
    self,
    optimizer: Optimizer,
    max_lr: float,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    total_steps: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = "linear",
    cycle_momentum: bool = False,
  ) -> None:
    super().__init__(optimizer)
    if total_steps is None:
      raise TypeError(
        "OneCycleLR: how many steps the cycle takes is not given\n  fix: total_steps=100, or another number"
      )
    if anneal_strategy not in ("linear", "cos"):
      raise ValueError(f"OneCycleLR: unknown anneal_strategy {anneal_strategy!r}\n  fix: use 'linear' or 'cos'")
    if cycle_momentum:
      raise ValueError("OneCycleLR: the momentum is not cycled here\n  fix: cycle_momentum=False")
    _check_number(self, "[0, inf)", 0.001, max_lr=max_lr)
    _check_number(self, "(0, inf)", 10, div_factor=div_factor, final_div_factor=final_div_factor)
    _check_number(self, "[1, inf)", 100, total_steps=total_steps)
    _check_number(self, "[0, 1]", 0.3, pct_start=pct_start)
    self.first, self.most, self.least = max_lr / div_factor, max_lr, max_lr / div_factor / final_div_factor
    self.total_steps, self.peak, self.cosine = total_steps, pct_start * total_steps - 1, anneal_strategy == "cos"
    self.optimizer.lr = self.get_lr()

  def get_lr(self) -> Tensor:
    up, down = self.peak, self.total_steps - 1 - self.peak
    rising = self.epoch_counter / up if up > 0 else 1 + self.epoch_counter
    falling = ((self.epoch_counter - up) / down).clamp(max_=1) if down > 0 else self.epoch_counter * 0
    first, then = self._between(self.first, self.most, rising), self._between(self.most, self.least, falling)
    return (self.epoch_counter <= self.peak).where(first, then)

  def _between(self, a: float, b: float, part: Tensor) -> Tensor:
    return a + (b - a) * ((1 - (part * math.pi).cos()) * 0.5 if self.cosine else part)


class ReduceLROnPlateau:
  """The rate times `factor` once `step(metric)` has seen no better metric for more than `patience` steps.

  Examples:
    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> schedule = nn.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    >>> for loss in (1.0, 1.0, 1.0):
    ...   schedule.step(loss)
    >>> round(optimizer.lr.item(), 3)
    0.1
  """

  def __init__(
    self,
    optimizer: Optimizer,
    mode: str = "min",
    factor: float = 0.1,
    patience: int = 10,
    threshold: float = 1e-4,
    threshold_mode: str = "rel",
  ) -> None:
    _check_optimizer(self, optimizer)
    if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
      problem = f"ReduceLROnPlateau: mode {mode!r} and threshold_mode {threshold_mode!r} are none"
      raise ValueError(f"{problem}\n  fix: mode='min' or 'max', threshold_mode='rel' or 'abs'")
    _check_number(self, "(0, 1)", 0.1, factor=factor)
    _check_number(self, "[0, inf)", 1, patience=patience, threshold=threshold)
    self.optimizer, self.factor, self.patience = optimizer, factor, patience
    self.sign, self.threshold, self.relative = 1 if mode == "min" else -1, threshold, threshold_mode == "rel"
    self.best, self.bad_epoch = math.inf * self.sign, 0

  def step(self, current: Tensor | float) -> None:
    current = float(current)
    step = self.sign * self.threshold
    bound = self.best * (1 - step) if self.relative else self.best - step
    if self.sign * current < self.sign * bound:
      self.best, self.bad_epoch = current, 0
    else:
      self.bad_epoch += 1
    if self.bad_epoch > self.patience:
      self.optimizer.lr = self.optimizer.lr * self.factor
      self.bad_epoch = 0
