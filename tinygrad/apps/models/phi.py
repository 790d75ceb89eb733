"""Phi-3, 3.5 and 4: a llama whose matrices lie fused, and whose positions stretch by LongRoPE.

https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2402.13753
"""

from tinygrad.apps.models.family import QKV, Family

PHI3 = Family(names=("phi3",), model_types={"phi3": "phi3"}, fused={"attn_qkv": QKV, "ffn_up": ("ffn_gate", "ffn_up")})
