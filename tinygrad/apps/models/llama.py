"""Llama 2, 3 and 3.x, Mistral, Mixtral, SmolLM, and what else calls itself a llama.

https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2407.21783, https://arxiv.org/abs/2401.04088
"""

from tinygrad.apps.models.family import LINEARS, Family, Router

LLAMA = Family(
  names=("llama",),
  model_types={"llama": "llama", "mistral": "llama", "mixtral": "llama"},
  free_biases=LINEARS,
  neighbours=True,
  defaults=lambda m: {"expert_gating_func": Router.SOFTMAX, "expert_weights_norm": True},
)
