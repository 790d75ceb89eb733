"""Schedules against their formulas, and against PyTorch where it is installed."""

import math

import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.nn.lr_scheduler import (
  CosineAnnealingLR,
  CosineAnnealingLRWithWarmup,
  LambdaLR,
  LRSchedulerGroup,
  MultiStepLR,
  OneCycleLR,
  ReduceLROnPlateau,
)
from tinygrad.nn.optim import SGD, OptimizerGroup

RATE = 0.5


def optimizer(rate=RATE, dtype="float32"):
  return SGD([Tensor([1.0], dtype=dtype)], rate)


def rates(scheduler, steps):
  out = []
  for _ in range(steps):
    scheduler.step()
    out.append(scheduler.optimizer.lr.item())
  return out


# name -> (ours, PyTorch's, the rate after t steps by the definition)
SCHEDULES = {
  "multi_step": (
    lambda o: MultiStepLR(o, [2, 5], 0.3),
    lambda s, o: s.MultiStepLR(o, [2, 5], 0.3),
    lambda t: RATE * 0.3 ** ((t >= 2) + (t >= 5)),
  ),
  "cosine": (
    lambda o: CosineAnnealingLR(o, 7, 0.1),
    lambda s, o: s.CosineAnnealingLR(o, 7, 0.1),
    lambda t: 0.1 + 0.4 * (1 + math.cos(math.pi * t / 7)) / 2,
  ),
  "one_cycle": (
    lambda o: OneCycleLR(o, 1.0, 4, 10, 9, 1 / 3),
    lambda s, o: s.OneCycleLR(
      o, 1.0, 9, div_factor=4, final_div_factor=10, pct_start=1 / 3, anneal_strategy="linear", cycle_momentum=False
    ),
    lambda t: 0.25 + 0.75 * t / 2 if t <= 2 else 1 + (0.025 - 1) * (t - 2) / 6,
  ),
  "one_cycle_cosine": (
    lambda o: OneCycleLR(o, 1.0, 4, 10, 9, 1 / 3, "cos"),
    lambda s, o: s.OneCycleLR(o, 1.0, 9, div_factor=4, final_div_factor=10, pct_start=1 / 3, cycle_momentum=False),
    lambda t: (
      0.25 + 0.75 * (1 - math.cos(math.pi * t / 2)) / 2
      if t <= 2
      else 1 + (0.025 - 1) * (1 - math.cos(math.pi * (t - 2) / 6)) / 2
    ),
  ),
  "lambda": (
    lambda o: LambdaLR(o, lambda t: 1 / (t + 1)),
    lambda s, o: s.LambdaLR(o, lambda t: 1 / (t + 1)),
    lambda t: RATE / (t + 1),
  ),
  "warmup": (
    lambda o: CosineAnnealingLRWithWarmup(o, 0.8, 0.2, 3, 4),
    None,
    lambda t: 0.8 * (t + 1) / 3 if t < 3 else 0.2 + 0.6 * (1 + math.cos(math.pi * min(1, (t - 2) / 4))) / 2,
  ),
}  # fmt: skip


@pytest.mark.parametrize("dtype, rough", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name, dtype, rough):
  make, _, rule = SCHEDULES[name]
  opt = optimizer(dtype=dtype)
  scheduler = make(opt)
  assert opt.lr.item() == pytest.approx(rule(0), rel=rough)
  assert rates(scheduler, 7) == pytest.approx([rule(t) for t in range(1, 8)], rel=10 * rough)


@pytest.mark.parametrize("name", [n for n, (_, theirs, _) in SCHEDULES.items() if theirs])
def test_schedule_against_torch(name):
  torch = pytest.importorskip("torch", reason="the extra [oracle] is not installed")
  make, make_theirs, _ = SCHEDULES[name]
  theirs = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], RATE)
  schedule = make_theirs(torch.optim.lr_scheduler, theirs)
  want = []
  for _ in range(7):
    theirs.step()
    schedule.step()
    want.append(theirs.param_groups[0]["lr"])
  assert rates(make(optimizer()), 7) == pytest.approx(want, rel=1e-4)


def test_plateau():
  opt = optimizer()
  scheduler = ReduceLROnPlateau(opt, patience=1, factor=0.5, threshold=0.1)
  seen = []
  for metric in (1.0, 0.95, 0.8, 0.79, 0.79, 0.79, 0.1):
    scheduler.step(metric)
    seen.append(opt.lr.item())
  assert seen == [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
  rising = ReduceLROnPlateau(optimizer(), "max", patience=0, threshold_mode="abs", threshold=0.5)
  for metric in (1.0, 1.6, 2.0):
    rising.step(metric)
  assert rising.optimizer.lr.item() == pytest.approx(0.05)


def test_plateau_against_torch():
  torch = pytest.importorskip("torch", reason="the extra [oracle] is not installed")
  theirs = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], RATE)
  schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, patience=1, factor=0.5, threshold=0.1)
  opt = optimizer()
  scheduler = ReduceLROnPlateau(opt, patience=1, factor=0.5, threshold=0.1)
  for metric in (1.0, 0.95, 0.8, 0.79, 0.79, 0.79, 0.1, -1.0, -1.05, -1.04):
    scheduler.step(metric), schedule.step(metric)
    assert opt.lr.item() == pytest.approx(theirs.param_groups[0]["lr"])


def test_a_schedule_in_a_captured_step():
  w = Tensor([0.0]).clone().realize()
  opt = SGD([w], 1.0)
  group = LRSchedulerGroup(MultiStepLR(opt, [2, 4], 0.5))

  @TinyJit
  def step() -> Tensor:
    opt.zero_grad()
    (w * -1).sum().backward()
    opt.step()
    group.step()
    return w.realize()

  with Tensor.train():
    assert [step().item() for _ in range(6)] == [1.0, 2.0, 2.5, 3.0, 3.25, 3.5]


def test_errors():
  with pytest.raises(ValueError, match="unknown anneal_strategy 'square'"):
    OneCycleLR(optimizer(), 1.0, 4, 10, 9, 0.3, "square")
  with pytest.raises(ValueError, match="momentum is not cycled"):
    OneCycleLR(optimizer(), 1.0, 4, 10, 9, 0.3, cycle_momentum=True)
  with pytest.raises(ValueError, match="(?s)mode 'up'.*fix: "):
    ReduceLROnPlateau(optimizer(), "up")


OUT_OF_RANGE = [
  (lambda o: MultiStepLR(o, 3), r"(?s)MultiStepLR: milestones=3.*fix: \[3\]"),
  (lambda o: MultiStepLR(o, [3], -1.0), "MultiStepLR: gamma=-1.0"),
  (lambda o: CosineAnnealingLR(o, 0), "CosineAnnealingLR: T_max=0"),
  (lambda o: CosineAnnealingLR(o, 2, -1.0), "CosineAnnealingLR: eta_min=-1.0"),
  (lambda o: CosineAnnealingLRWithWarmup(o, 1.0, 0.0, -1, 2), "CosineAnnealingLRWithWarmup: warmup_steps=-1"),
  (lambda o: CosineAnnealingLRWithWarmup(o, float("nan"), 0.0, 1, 2), "CosineAnnealingLRWithWarmup: base_lr=nan"),
  (lambda o: OneCycleLR(o, 1.0, 0, 10, 9, 0.3), "OneCycleLR: div_factor=0"),
  (lambda o: OneCycleLR(o, 1.0, 4, 0, 9, 0.3), "OneCycleLR: final_div_factor=0"),
  (lambda o: OneCycleLR(o, -1.0, 4, 10, 9, 0.3), "OneCycleLR: max_lr=-1.0"),
  (lambda o: OneCycleLR(o, 1.0, 4, 10, 0, 0.3), "OneCycleLR: total_steps=0"),
  (lambda o: OneCycleLR(o, 1.0, 4, 10, 9, 3), "OneCycleLR: pct_start=3"),
  (lambda o: ReduceLROnPlateau(o, factor=1.5), "ReduceLROnPlateau: factor=1.5"),
  (lambda o: ReduceLROnPlateau(o, patience=-1), "ReduceLROnPlateau: patience=-1"),
  (lambda o: ReduceLROnPlateau(0.5), "ReduceLROnPlateau: .*float.*optimizer"),
  (lambda o: LambdaLR(o, 0.5), "LambdaLR: lr_lambda=0.5"),
  (lambda o: LambdaLR([Tensor([1.0])], lambda n: n), "LambdaLR: .*list.*optimizer"),
  (lambda o: LRSchedulerGroup(), "LRSchedulerGroup"),
]


@pytest.mark.parametrize(("make", "message"), OUT_OF_RANGE, ids=[m for _, m in OUT_OF_RANGE])
def test_numbers_out_of_range_are_told_where_they_are_given(make, message):
  with pytest.raises((ValueError, TypeError), match=f"(?s){message}.*fix: " if "fix" not in message else message):
    make(optimizer())


def test_a_cycle_ends_at_its_least_rate_and_may_begin_at_its_greatest():
  """It went on below 0; a way up of no step was 0 / 0."""
  assert rates(OneCycleLR(optimizer(), 1.0, 4, 10, 4, 0.5), 6)[2:] == pytest.approx([0.025] * 4)
  for anneal in ("linear", "cos"):
    opt = optimizer()
    schedule = OneCycleLR(opt, 1.0, 4, 10, 10, 0.1, anneal)
    assert opt.lr.item() == 1.0 and rates(schedule, 9)[-1] == pytest.approx(0.025)
    assert rates(OneCycleLR(optimizer(), 1.0, 4, 10, 4, 1.0, anneal), 3)[-1] == 1.0


def test_a_warm_up_or_a_decay_of_no_steps():
  opt = optimizer()
  schedule = CosineAnnealingLRWithWarmup(opt, 1.0, 0.0, 0, 2)
  assert [opt.lr.item(), *rates(schedule, 2)] == pytest.approx([0.5, 0.0, 0.0], abs=1e-7)
  opt = optimizer()
  schedule = CosineAnnealingLRWithWarmup(opt, 1.0, 0.25, 2, 0)
  assert [opt.lr.item(), *rates(schedule, 2)] == pytest.approx([0.5, 1.0, 0.25])


def test_a_factor_that_is_a_number():
  assert rates(LambdaLR(optimizer(), lambda n: 0.5), 2) == [RATE / 2] * 2


def test_a_schedule_of_a_group_is_all_its_optimizers():
  """The others kept their rates."""
  group = OptimizerGroup(optimizer(), optimizer())
  MultiStepLR(group, [1], 0.5).step()
  assert [o.lr.item() for o in group.optimizers] == [RATE / 2] * 2
  plateau = ReduceLROnPlateau(group, patience=0, factor=0.5)
  for _ in range(2):
    plateau.step(Tensor(1.0))
  assert [o.lr.item() for o in group.optimizers] == [RATE / 4] * 2
  OneCycleLR(group, 1.0, 4, 10, 4, 0.5)
  assert [o.lr.item() for o in group.optimizers] == [0.25] * 2


@pytest.mark.parametrize("places", [("CPU", "CPU:1"), (("CPU:2", "CPU:3"), "CPU")], ids=str)
def test_a_schedule_of_parameters_on_several_device_sets(places):
  weights = [Tensor([0.0, 0.0]).to(where).realize() for where in places]
  opt = SGD(weights, 1.0)
  scheduler = MultiStepLR(opt, [2], 0.5)

  @TinyJit
  def step():
    opt.zero_grad()
    (weights[0].to("CPU").sum() + weights[1].to("CPU").sum()).backward()
    opt.step()
    scheduler.step()

  seen = []
  with Tensor.train():
    for _ in range(4):
      step()
      seen.append([w.tolist()[0] for w in weights])
  assert seen == [[-1.0] * 2, [-2.0] * 2, [-2.5] * 2, [-3.0] * 2]


def test_a_cycle_needs_its_steps_and_has_the_usual_rates():
  with pytest.raises(TypeError, match="OneCycleLR: how many steps(.|\n)*fix: total_steps=100") as said:
    OneCycleLR(optimizer(), max_lr=1.0)
  total_steps = int(str(said.value).partition("total_steps=")[2].partition(",")[0])
  schedule = OneCycleLR(optimizer(), max_lr=1.0, total_steps=total_steps)
  first, *later = schedule.optimizer.lr.item(), *rates(schedule, total_steps - 1)
  assert [first, later[28], later[-1]] == pytest.approx([1 / 25, 1.0, 1 / 25 / 1e4], rel=1e-2)
