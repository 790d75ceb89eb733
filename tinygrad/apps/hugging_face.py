"""Folders of Hugging Face models (config.json, safetensors shards, tokenizer.json), seen as if they were GGUF files.

The package gguf translates the names of weights, `FIELDS` those of config.json, and the family what it has beyond.
Positions that stretch by a table of divisors (Llama 3.1, LongRoPE) become the weight that GGUF has.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps import AppError
from tinygrad.apps.checkpoint import Stored
from tinygrad.apps.models import FAMILIES, MODEL_TYPES
from tinygrad.apps.models.family import Family
from tinygrad.apps.rope import llama3_factors
from tinygrad.helpers import LazyModule, Remade
from tinygrad.nn.block_formats import FORMATS
from tinygrad.nn.state import safe_views

ggml: Any = LazyModule("gguf")
T = TypeVar("T")
MOST_LAYERS = 4096  # whose weights have names
MOST_DIMS, MOST_NUMBER = 1 << 16, 1e12  # of a head; of a field
REFETCH = "the folder is damaged or incomplete: download it again"
FIELDS = {
  "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
  "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
  "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
  "rms_norm_eps": "attention.layer_norm_rms_epsilon", "sliding_window": "attention.sliding_window",
  "sliding_window_pattern": "attention.sliding_window_pattern", "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping", "num_experts": "expert_count",
  "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
  "moe_intermediate_size": "expert_feed_forward_length", "norm_topk_prob": "expert_weights_norm",
  "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
ACTIVATIONS = {"silu": ("silu", "clamped"), "gelu_pytorch_tanh": ("gelu",)}  # hidden_act, and what families call it
# What config.json may say that no family here has, with the values that say nothing.
PLAIN: dict[str, tuple[Any, ...]] = {
  "clip_qkv": (None,), "mlp_only_layers": (None, []), "decoder_sparse_step": (None, 1), "attention_chunk_size": (None,),
  "use_qk_norm": (None, False), "swiglu_alpha": (None, 1.702), "swiglu_limit": (None, 7.0),
}  # fmt: skip
TYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
# Of models that also see: the part that sees, and what stands before the names of the part that reads.
OTHERS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
READER = (
  ("language_model.model.", "model."),
  ("model.language_model.", "model."),
  ("language_model.lm_head", "lm_head"),
)


class FolderError(Remade, AppError):
  """A folder that cannot be used as a model: names the file, what is wrong, and a fix."""

  def __init__(self, path: Path, field: str, problem: str, fix: str = REFETCH):
    super().__init__(f"{path}: {field}: {problem}\n  fix: {fix}")


class Folder:
  """`metadata` and `stored` weights by GGUF's keys and names; what a weight is made of lies in the mapped files."""

  halves = True

  def __init__(self, path: str | os.PathLike[str]):
    self.path = Path(path)
    config = self.json("config.json")
    config |= self.fields(config, "text_config")
    kind = str(config.get("model_type"))
    self.check(kind in MODEL_TYPES, "model_type", f"{kind!r} is not supported", f"use one of {', '.join(MODEL_TYPES)}")
    self.arch = MODEL_TYPES[kind]
    self.family: Family = FAMILIES[self.arch]
    self.parts: dict[str, list[NDArray[Any]]] = {}  # several: experts, to be stacked
    keys = self.keys(config)
    self.metadata = {"general.architecture": self.arch, **{f"{self.arch}.{k}": v for k, v in keys.items()}}
    layers = self.get(f"{self.arch}.block_count", int)
    self.check(1 <= layers <= MOST_LAYERS, "config.json: num_hidden_layers", f"{layers} is not possible")
    self.find_parts(layers)
    if config.get("tie_word_embeddings"):
      self.parts.pop("output.weight", None)
    self.shapes = {name: self.shape(name) for name in self.parts if not name.endswith((".scales", ".blocks"))}
    for name in [n for n in self.parts if n.endswith(".blocks")]:
      *rows, blocks, half = self.shape(name)
      self.shapes[name.removesuffix("blocks") + "weight"] = (*rows, blocks * half * 2)

  # ---- as a checkpoint

  def check(self, ok: Any, field: str, problem: str, fix: str = REFETCH, at: int | None = None) -> None:
    """Raises FolderError unless `ok`."""
    if not ok:
      raise FolderError(self.path, field, problem, fix)

  def get(self, key: str, kind: type[T], default: T | None = None) -> T:
    """The value of `key`, which must be a `kind` (an int serves as a float); FolderError where it is not."""
    value = self.metadata.get(key, default)
    if kind is float and type(value) is int:
      value = float(value)
    self.check(value is not None, repr(key), "is missing")
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    self.check(fits, repr(key), f"is a {type(value).__name__}, not a {kind.__name__}")
    return cast(T, value)

  def place(self, name: str) -> int | None:
    return None

  def stored(self, name: str) -> Stored:
    if name not in self.parts:  # gpt-oss's experts
      scales, blocks = (self.array(name.removesuffix("weight") + end) for end in ("scales", "blocks"))
      return Stored(FORMATS["MXFP4_PAIRS"], np.concatenate([scales[..., None], blocks], -1))
    x = self.array(name)
    if self.family.norm_offset and name.endswith("_norm.weight"):
      x = x.astype(np.float32) + np.float32(self.family.norm_offset)
    if x.dtype.name == "bfloat16":
      return Stored(FORMATS["BF16"], x.view(np.uint16)[..., None])
    self.check(x.dtype in TYPES, f"tensor {name!r}", f"is {x.dtype}", "convert it to float32, float16 or bfloat16")
    return Stored(FORMATS[TYPES[x.dtype]], x[..., None])

  # ---- the translation

  def json(self, name: str) -> dict[str, Any]:
    try:
      found = json.loads((self.path / name).read_bytes())
    except (OSError, ValueError, RecursionError) as e:
      raise FolderError(self.path, name, f"cannot be read: {e}") from e
    self.check(isinstance(found, dict), name, "is no JSON object")
    return cast(dict[str, Any], found)

  def array(self, name: str) -> NDArray[Any]:
    parts = self.parts[name]
    return parts[0] if len(parts) == 1 else np.stack(parts)

  def shape(self, name: str) -> tuple[int, ...]:
    parts = self.parts[name]
    return tuple(parts[0].shape) if len(parts) == 1 else (len(parts), *parts[0].shape)

  def keys(self, config: dict[str, Any]) -> dict[str, Any]:
    """GGUF's keys, without the architecture, from the fields of config.json."""
    for name, values in PLAIN.items():
      self.check(config.get(name) in values, f"config.json: {name}", f"{config.get(name)!r} is not supported", "none")
    act = config.get("hidden_activation") or config.get("hidden_act", "silu")
    known = self.family.activation in ACTIVATIONS.get("gelu_pytorch_tanh" if act == "gelu" else str(act), ())
    self.check(known, "config.json: hidden_act", f"{act!r} is not this family's", "use another model")
    method = self.fields(config, "quantization_config").get("quant_method", "mxfp4")
    self.check(method == "mxfp4", "config.json: quantization_config", f"{method!r} is not supported", "use a GGUF file")
    fields = FIELDS | dict(self.family.config)
    keys = {key: config[name] for name, key in fields.items() if config.get(name) is not None}
    if config.get("use_sliding_window") is False or not keys.get("attention.sliding_window"):
      keys.pop("attention.sliding_window", None)
    if kinds := config.get("layer_types"):
      self.check(isinstance(kinds, list), "config.json: layer_types", "is no list")
      keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    if config.get("query_pre_attn_scalar"):
      keys["attention.scale"] = self.number(config, "query_pre_attn_scalar", 1.0) ** -0.5
    return keys | self.rope(config, keys)

  def fields(self, of: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in config.json, empty where it is missing."""
    found = of.get(name) or {}
    self.check(isinstance(found, dict), f"config.json: {name}", f"is a {type(found).__name__}, and no object")
    return cast(dict[str, Any], found)

  def number(self, of: dict[str, Any], name: str, default: float | None = None) -> float:
    """A positive number in config.json, which has to be there where there is no default."""
    found = default if of.get(name) is None else of[name]
    fits = isinstance(found, (int, float)) and not isinstance(found, bool) and 0 < found < MOST_NUMBER
    self.check(fits, f"config.json: {name}", f"{found!r} is no positive number")
    return float(cast(float, found))

  def rope(self, config: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Of `rope_parameters`, or of `rope_theta` and `rope_scaling`, which older files have."""
    parameters = self.fields(config, "rope_parameters")
    full = {"rope_theta": config.get("rope_theta"), **self.fields(config, "rope_scaling"), **parameters}
    out: dict[str, Any] = {}
    if "full_attention" in parameters:
      full, sliding = (self.fields(parameters, f"{which}_attention") for which in ("full", "sliding"))
      self.check(
        sliding.get("rope_type") == "default", "config.json: rope_parameters", "sliding layers stretch", "none"
      )
      out["rope.freq_base_swa"] = self.number(sliding, "rope_theta")
    base = self.number(full, "rope_theta", 10000.0)
    if full.get("rope_theta") is not None:
      out["rope.freq_base"] = base
    heads, width = keys.get("attention.head_count", 1), keys.get("embedding_length", 0)
    whole = keys.get("attention.key_length") or (width // max(heads, 1) if type(heads) is type(width) is int else 0)
    self.check(type(whole) is int and 0 <= whole <= MOST_DIMS, "config.json: head_dim", f"{whole!r} is not possible")
    part = self.number(full, "partial_rotary_factor", self.number(config, "partial_rotary_factor", 1.0))
    self.check(part <= 1, "config.json: partial_rotary_factor", f"{part} of a head cannot turn")
    out["rope.dimension_count"] = dims = int(whole * part)
    kind = full.get("rope_type") or full.get("type") or "default"
    known = ", ".join(STRETCHES)
    stretches = isinstance(kind, str) and kind in STRETCHES
    self.check(stretches, "config.json: rope_type", f"{kind!r} is not supported", f"use one of {known}")
    length = self.number(config, "max_position_embeddings", 1.0)
    original = self.number(config, "original_max_position_embeddings", length)
    original = self.number(full, "original_max_position_embeddings", original)
    more, tables = STRETCHES[kind](Stretched(self, full, int(original), base, dims))
    self.parts |= {name: [np.asarray(x, np.float32)] for name, x in tables.items()}
    return out | {k: v for k, v in more.items() if v is not None}

  def find_parts(self, layers: int) -> None:
    """Every weight of the safetensors files by its name in GGUF."""
    architecture = {name: number for number, name in ggml.MODEL_ARCH_NAMES.items()}[self.family.names[0]]
    names = ggml.get_tensor_name_map(architecture, layers)
    stacks: dict[str, dict[int, NDArray[Any]]] = defaultdict(dict)
    for name, x in self.arrays():
      if name.startswith(OTHERS) or name.endswith("rotary_emb.inv_freq"):
        continue
      for before, after in READER:
        name = after + name.removeprefix(before) if name.startswith(before) else name
      if taken := next((v for end, v in self.family.tensors.items() if name.endswith(f".{end}")), None):
        layer = re.search(r"\.layers\.(\d+)\.", name)
        self.check(layer, f"tensor {name!r}", "is in no layer")
        for short, take in taken:
          self.parts[f"blk.{layer[1] if layer else ''}.{short}"] = [take(x)]
        continue
      expert = re.search(r"\.experts\.(\d+)\.", name)
      plain = name.replace(expert[0], ".experts.") if expert else name
      found = names.get_name(plain, try_suffixes=(".weight", ".bias"))
      self.check(found, f"tensor {name!r}", "is no part of this family", "use another model")
      if expert:
        stacks[found][int(expert[1])] = x
      else:
        self.parts[found] = [x]
    for found, by_number in stacks.items():
      same = len({x.shape for x in by_number.values()}) == 1 and sorted(by_number) == list(range(len(by_number)))
      self.check(same, f"tensor {found!r}", "experts are missing, or are of several shapes")
      self.parts[found] = [by_number[i] for i in range(len(by_number))]

  def arrays(self) -> list[tuple[str, NDArray[Any]]]:
    index = "model.safetensors.index.json"
    files = sorted(self.path.glob("*.safetensors"))
    if (self.path / index).exists():
      shards = self.json(index).get("weight_map")
      self.check(isinstance(shards, dict), f"{index}: weight_map", "is no JSON object")
      names = sorted({str(name) for name in cast(dict[str, Any], shards).values()})
      inside = all(Path(name).name == name for name in names)
      self.check(inside, f"{index}: weight_map", "names something else than files of the folder")
      files = [self.path / name for name in names]
    self.check(files, "weights", "there is no .safetensors file", "use a model with safetensors files")
    for f in files:
      self.check(f.is_file(), f.name, "is missing, or is no file")
    found = dict[str, NDArray[Any]]()
    for f in files:
      views = safe_views(f)
      twice = sorted(found.keys() & views.keys())
      self.check(not twice, f.name, f"has tensors that another file has, too: {', '.join(twice[:3])}")
      found |= views
    return list(found.items())


@dataclass(frozen=True, slots=True)
class Stretched:
  """What config.json says of how positions stretch; `original`: the context before, `base` and `dims` of the rope."""

  folder: Folder
  fields: dict[str, Any]
  original: int
  base: float
  dims: int

  def number(self, name: str) -> float:
    return self.folder.number(self.fields, name)

  def divisors(self, name: str) -> list[float]:
    found = self.fields.get(name)
    fits = isinstance(found, list) and all(type(x) in (int, float) for x in found)
    self.folder.check(fits, f"config.json: {name}", "is no list of numbers")
    return cast(list[float], found)


Stretch = Callable[[Stretched], tuple[dict[str, Any], dict[str, Any]]]


def _yarn(s: Stretched) -> tuple[dict[str, Any], dict[str, Any]]:
  keys = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": s.number("factor"),
    "rope.scaling.original_context_length": s.original, "rope.scaling.attn_factor": s.fields.get("attention_factor"),
    "rope.scaling.yarn_beta_fast": s.fields.get("beta_fast"), "rope.scaling.yarn_beta_slow": s.fields.get("beta_slow"),
    "rope.scaling.truncate": s.fields.get("truncate"),
  }  # fmt: skip
  return keys, {}


def _long(s: Stretched) -> tuple[dict[str, Any], dict[str, Any]]:
  tables = {f"rope_factors_{which}.weight": s.divisors(f"{which}_factor") for which in ("long", "short")}
  factor = s.fields.get("attention_factor")
  keys = {"rope.scaling.original_context_length": s.original, "rope.scaling.attn_factor": factor}
  return keys | {"rope.scaling.type": "longrope"}, tables


def _llama3(s: Stretched) -> tuple[dict[str, Any], dict[str, Any]]:
  low, high = s.number("low_freq_factor"), s.number("high_freq_factor")
  s.folder.check(low < high, "config.json: high_freq_factor", f"{high} is not above low_freq_factor, {low}")
  return {}, {"rope_freqs.weight": llama3_factors(s.base, s.dims, s.number("factor"), low, high, s.original)}


# How positions stretch, by `rope_type`: keys and tensors of GGUF.
STRETCHES: dict[str, Stretch] = {
  "default": lambda s: ({}, {}),
  "linear": lambda s: ({"rope.scaling.type": "linear", "rope.scaling.factor": s.number("factor")}, {}),
  "yarn": _yarn, "longrope": _long, "su": _long, "llama3": _llama3,
}  # fmt: skip
