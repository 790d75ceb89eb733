"""gpt-oss: experts in MXFP4 with biases and a clamped SwiGLU, attention sinks, every second layer sliding, YaRN.

https://arxiv.org/abs/2508.10925. In a folder, the rows of gate and up take turns, and float experts lie transposed.
"""

from collections.abc import Callable

from tinygrad.apps.models.family import QKV, Array, Family, Router


def _turns(first: int, transposed: bool) -> Callable[[Array], Array]:
  return lambda x: (x.swapaxes(1, 2) if transposed else x)[:, first::2]


GATE_UP = {
  f"mlp.experts.gate_up_proj{end}": tuple(
    (f"ffn_{name}_exps.{kind}", _turns(i, end == "")) for i, name in enumerate(("gate", "up"))
  )
  for end, kind in {"": "weight", "_blocks": "blocks", "_scales": "scales", "_bias": "bias"}.items()
}
GPT_OSS = Family(
  names=("gpt-oss",),
  model_types={"gpt_oss": "gpt-oss"},
  biases=(*QKV, "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
  activation="clamped",
  sinks=True,
  aliases={"ffn_norm": "post_attention_norm"},
  tensors={
    **GATE_UP,
    "mlp.experts.down_proj": (("ffn_down_exps.weight", lambda x: x.swapaxes(1, 2)),),
    "mlp.experts.down_proj_blocks": (("ffn_down_exps.blocks", lambda x: x),),
    "mlp.experts.down_proj_scales": (("ffn_down_exps.scales", lambda x: x),),
    "mlp.experts.down_proj_bias": (("ffn_down_exps.bias", lambda x: x),),
    "self_attn.sinks": (("attn_sinks.weight", lambda x: x),),
  },
  config={"intermediate_size": "expert_feed_forward_length"},
  defaults=lambda m: {
    "expert_gating_func": Router.CHOSEN,
    "attention.sliding_window_pattern": 2,
    "rope.scaling.truncate": False,
  },
)
