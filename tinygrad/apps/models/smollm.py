"""SmolLM3: a llama of which every fourth layer does not rotate. (SmolLM and SmolLM2 are llamas.)

https://huggingface.co/blog/smollm3, https://arxiv.org/abs/2501.18795
"""

from tinygrad.apps.models.family import LINEARS, Family

SMOLLM3 = Family(
  names=("smollm3",),
  model_types={"smollm3": "smollm3"},
  free_biases=LINEARS,
  neighbours=True,
  config={"no_rope_layers": "rope.layers"},
  defaults=lambda m: {"rope.layers": [i % 4 != 3 for i in range(m["block_count"])]},
)
