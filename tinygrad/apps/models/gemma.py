"""Gemma 2 and 3: norms before and after, embeddings times sqrt(dim), every second or all but each sixth layer sliding.

https://arxiv.org/abs/2408.00118, https://arxiv.org/abs/2503.19786. A GGUF file does not say by what scores are divided:
the root of a head's dims, but in the 27B models, known by their layers, the root of dim / heads.
"""

from typing import Any

from tinygrad.apps.models.family import Family, Metadata, Norms

LARGE = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models


def _common(m: Metadata, name: str) -> dict[str, Any]:
  out: dict[str, Any] = {"embedding_scale": m["embedding_length"] ** 0.5}
  if m["block_count"] == LARGE[name]:
    out["attention.scale"] = (m["embedding_length"] / m["attention.head_count"]) ** -0.5
  return out


GEMMA2 = Family(
  names=("gemma2",),
  model_types={"gemma2": "gemma2"},
  norms=Norms.BOTH,
  norm_offset=1.0,
  activation="gelu",
  defaults=lambda m: {
    **_common(m, "gemma2"),
    "attention.sliding_window": 4096,
    "attention.sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
  },
)
GEMMA3 = Family(
  names=("gemma3",),
  model_types={"gemma3_text": "gemma3", "gemma3": "gemma3"},
  norms=Norms.BOTH,
  norm_offset=1.0,
  query_norm="head",
  activation="gelu",
  config={"rope_local_base_freq": "rope.freq_base_swa"},
  defaults=lambda m: {
    **_common(m, "gemma3"),
    "attention.sliding_window_pattern": 6,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
  },
)
