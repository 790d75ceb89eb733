"""What the models of a family have in common: everything that is not a size. One block (`apps/model.py`) reads it.

A description uses the names of GGUF for weights and for metadata; a key stands without the architecture before it.
What files leave out, since every model of the family has it, are `defaults`. A folder of Hugging Face is read as if it
were such a file: the gguf package knows its weights' names, `apps/hugging_face.py` the fields of its config.json; a
family says what it has beyond these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray

Metadata = Mapping[str, Any]  # by key, without the architecture
Array = NDArray[Any]


class Norms(Enum):
  """Where a layer's norms are: `x + f(norm(x))`, `x + norm(f(x))`, or both."""

  BEFORE = (True, False)
  AFTER = (False, True)
  BOTH = (True, True)


class Router:
  """How experts are weighted: values of GGUF's `expert_gating_func`. The greatest are chosen each time."""

  SOFTMAX = 1  # by their share among all experts
  CHOSEN = 3  # by their share among the chosen


@dataclass(frozen=True, slots=True)
class Family:
  """`names` are those of `general.architecture`; `model_types` of config.json, each with the name it has in GGUF.

  `biases` are matrices that have a bias in every model, `free_biases` those that have one where the file does.
  `neighbours`: in GGUF files the pairs of dims that turn are (0, 1), (2, 3), …; without it the halves of a head, as
  everywhere in folders. `fused`: matrices that lie as the rows of one. `aliases`: other names of weights.
  `tensors`: by the end of a name in a folder, the weights that are in it, each with how to take it out.
  """

  names: tuple[str, ...]
  model_types: Mapping[str, str]
  norms: Norms = Norms.BEFORE
  norm_offset: float = 0.0  # a gain in a folder is 1 + what is stored, if this is 1
  query_norm: str = "none"  # or "head", a norm of each head; or "all", one norm of all heads
  biases: tuple[str, ...] = ()
  free_biases: tuple[str, ...] = ()
  neighbours: bool = False
  activation: str = "silu"  # of `ACTIVATIONS` in apps/model.py
  sinks: bool = False  # a score for each head that no key has
  shared_gate: bool = False  # the shared expert's output is times sigmoid(gate(x))
  fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
  aliases: Mapping[str, str] = field(default_factory=dict)
  tensors: Mapping[str, tuple[tuple[str, Callable[[Array], Array]], ...]] = field(default_factory=dict)
  config: Mapping[str, str] = field(default_factory=dict)  # fields of config.json, and the keys that they are
  defaults: Callable[[Metadata], dict[str, Any]] = lambda metadata: {}


QKV = ("attn_q", "attn_k", "attn_v")
LINEARS = (*QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down")
