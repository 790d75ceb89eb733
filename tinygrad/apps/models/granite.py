"""Granite 3, dense and with experts: a llama with a factor for embeddings, scores, residuals and logits.

https://huggingface.co/docs/transformers/model_doc/granite
"""

from tinygrad.apps.models.family import LINEARS, Family, Router

FACTORS = {
  "embedding_multiplier": "embedding_scale",
  "residual_multiplier": "residual_scale",
  "attention_multiplier": "attention.scale",
  "logits_scaling": "logit_scale",
}
GRANITE = Family(
  names=("granite",), model_types={"granite": "granite"}, free_biases=LINEARS, neighbours=True, config=FACTORS
)
GRANITE_MOE = Family(
  names=("granitemoe",),
  model_types={"granitemoe": "granitemoe"},
  free_biases=LINEARS,
  neighbours=True,
  config=FACTORS,
  tensors={
    "block_sparse_moe.input_linear.weight": (
      ("ffn_gate_exps.weight", lambda x: x[:, : x.shape[1] // 2]),
      ("ffn_up_exps.weight", lambda x: x[:, x.shape[1] // 2 :]),
    ),
    "block_sparse_moe.output_linear.weight": (("ffn_down_exps.weight", lambda x: x),),
    "block_sparse_moe.router.layer.weight": (("ffn_gate_inp.weight", lambda x: x),),
  },
  defaults=lambda m: {"expert_gating_func": Router.CHOSEN},
)
