"""Qwen 2, 2.5 and 3, dense and with experts.

https://arxiv.org/abs/2407.10671, https://arxiv.org/abs/2505.09388
"""

from tinygrad.apps.models.family import LINEARS, QKV, Family, Router

QWEN2 = Family(names=("qwen2",), model_types={"qwen2": "qwen2"}, biases=QKV)
QWEN2_MOE = Family(
  names=("qwen2moe",),
  model_types={"qwen2_moe": "qwen2moe"},
  biases=QKV,
  shared_gate=True,
  tensors={"mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight", lambda x: x[0]),)},
  defaults=lambda m: {"expert_gating_func": Router.SOFTMAX, "expert_weights_norm": False},
)
QWEN3 = Family(names=("qwen3",), model_types={"qwen3": "qwen3"}, query_norm="head", free_biases=LINEARS)
QWEN3_MOE = Family(
  names=("qwen3moe",),
  model_types={"qwen3_moe": "qwen3moe"},
  query_norm="head",
  free_biases=LINEARS,
  defaults=lambda m: {"expert_gating_func": Router.SOFTMAX, "expert_weights_norm": True},
)
