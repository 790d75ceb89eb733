"""OLMo 2 and 3, whose norms come after; OLMoE, with experts. https://arxiv.org/abs/2501.00656, arXiv:2409.02060"""

from tinygrad.apps.models.family import Family, Norms, Router

OLMO2 = Family(
  names=("olmo2", "olmo3"),
  model_types={"olmo2": "olmo2", "olmo3": "olmo2"},
  norms=Norms.AFTER,
  query_norm="all",
  defaults=lambda m: {"attention.sliding_window_pattern": 4},
)
OLMOE = Family(
  names=("olmoe",),
  model_types={"olmoe": "olmoe"},
  query_norm="all",
  defaults=lambda m: {"expert_gating_func": Router.SOFTMAX, "expert_weights_norm": False},
)
