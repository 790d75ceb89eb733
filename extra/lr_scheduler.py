"""`tinygrad.nn.lr_scheduler`, where the scripts of tinygrad's repository import it from."""

from tinygrad.nn.lr_scheduler import (
  CosineAnnealingLR,
  CosineAnnealingLRWithWarmup,
  LambdaLR,
  LR_Scheduler,
  LRSchedulerGroup,
  MultiStepLR,
  OneCycleLR,
  ReduceLROnPlateau,
)

__all__ = [
  "CosineAnnealingLR", "CosineAnnealingLRWithWarmup", "LRSchedulerGroup", "LR_Scheduler", "LambdaLR", "MultiStepLR",
  "OneCycleLR", "ReduceLROnPlateau",
]  # fmt: skip
