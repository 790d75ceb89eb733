"""Families of models, one file each: `FAMILIES` by the name of the architecture in GGUF files."""

from tinygrad.apps.models.family import Family
from tinygrad.apps.models.gemma import GEMMA2, GEMMA3
from tinygrad.apps.models.gpt_oss import GPT_OSS
from tinygrad.apps.models.granite import GRANITE, GRANITE_MOE
from tinygrad.apps.models.llama import LLAMA
from tinygrad.apps.models.olmo import OLMO2, OLMOE
from tinygrad.apps.models.phi import PHI3
from tinygrad.apps.models.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from tinygrad.apps.models.smollm import SMOLLM3

_ALL = (LLAMA, SMOLLM3, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, OLMO2, OLMOE, GEMMA2, GEMMA3, PHI3, GRANITE, GRANITE_MOE,
        GPT_OSS)  # fmt: skip
FAMILIES: dict[str, Family] = {name: family for family in _ALL for name in family.names}
MODEL_TYPES: dict[str, str] = {kind: name for family in FAMILIES.values() for kind, name in family.model_types.items()}
