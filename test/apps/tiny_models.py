"""Small models of every family with fixed random weights, as folders of Hugging Face and as GGUF files.

Weights are drawn by their names in the folder from numpy's RandomState, whose streams never change, so that the files
need not be kept; test/data/family_logits.npz has what transformers computes with them. Needs numpy only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from extra.write_gguf import write_gguf
from tinygrad import Tensor
from tinygrad.apps.hugging_face import Folder
from tinygrad.apps.models import FAMILIES
from tinygrad.nn.state import safe_save

BASE = {
  "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 160, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
FOUR = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 40}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + 0.1 * i for i in range(6)],
        "long_factor": [1.5 + i for i in range(6)], "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 40}  # fmt: skip
EVERY_THIRD = ["sliding_attention", "sliding_attention", "full_attention"]
# What each has beyond BASE; the name before a dash is config.json's model_type.
CASES: dict[str, dict[str, Any]] = {
  "llama": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
  "llama-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
                   "tie_word_embeddings": True},
  "mistral": {"sliding_window": 9},
  "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
  "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": True, "pad_token_id": 0},
  "qwen2": {"use_sliding_window": False, "sliding_window": 9},
  "qwen2-yarn": {"rope_parameters": YARN},
  "qwen2_moe": {**FOUR, "num_experts": 4, "shared_expert_intermediate_size": 32},
  "qwen3": {"head_dim": 24},
  "qwen3_moe": {**FOUR, "num_experts": 4, "norm_topk_prob": True},
  "olmo2": {},
  "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
  "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 25, "attn_logit_softcapping": 5.0,
             "final_logit_softcapping": 9.0, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
  "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 9, "layer_types": EVERY_THIRD, "tie_word_embeddings": True,
                  "query_pre_attn_scalar": 20, "hidden_activation": "gelu_pytorch_tanh", "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
  "phi3": {"pad_token_id": 0, "sliding_window": 30},
  "phi3-long": {"pad_token_id": 0, "rope_parameters": LONG, "original_max_position_embeddings": 40},
  "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
              "logits_scaling": 2.0},
  "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 3.0,
                 "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 2.0},
  "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9, "num_hidden_layers": 2,
              "rope_parameters": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
}  # fmt: skip
TOKENS = [int(x) for x in np.random.RandomState(7).randint(0, 128, 48)]
SEEN = (0, 8, 31, 32, 39, 47)  # positions whose logits are kept


def config(name: str, **sizes: Any) -> dict[str, Any]:
  return {**BASE, "model_type": name.split("-")[0], **CASES[name], **sizes}


def random_sizes(name: str) -> dict[str, Any]:
  """Sizes of a model of the case, which 4 devices can share though not all of them divide, drawn by its name."""
  draw = np.random.RandomState(zlib.crc32(f"sizes of {name}".encode())).choice
  kv, group, head_dim = int(draw([4, 8])), int(draw([1, 2])), int(draw([8, 12, 16]))
  sizes: dict[str, Any] = {
    "num_key_value_heads": kv, "num_attention_heads": kv * group, "head_dim": head_dim,
    "hidden_size": kv * group * head_dim, "intermediate_size": int(draw([36, 50, 68])),
    "vocab_size": int(draw([101, 128, 130])),
  }  # fmt: skip
  if "short_factor" in CASES[name].get("rope_parameters", {}):  # of which there is one for each pair
    sizes |= {"head_dim": 16, "hidden_size": kv * group * 16}
  if "moe_intermediate_size" in CASES[name]:
    sizes["moe_intermediate_size"] = int(draw([20, 22]))
  if "num_experts" in CASES[name] or "num_local_experts" in CASES[name]:
    count = int(draw([5, 8]))
    sizes |= {k: count for k in ("num_experts", "num_local_experts") if k in CASES[name]}
  return sizes


def shapes(c: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
  """The weights of a folder, as transformers writes them."""
  dim = c["hidden_size"]
  yield "model.embed_tokens.weight", (c["vocab_size"], dim)
  yield "model.norm.weight", (dim,)
  if not c["tie_word_embeddings"]:
    yield "lm_head.weight", (c["vocab_size"], dim)
  for i in range(c["num_hidden_layers"]):
    for name, shape in (*norms(c), *attention(c), *feed_forward(c)):
      yield f"model.layers.{i}.{name}", shape


def norms(c: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
  names = ["post_attention_layernorm"]
  if c["model_type"] != "olmo2":
    names.append("input_layernorm")
  if c["model_type"] in ("olmo2", "gemma2", "gemma3_text"):
    names.append("post_feedforward_layernorm")
  if c["model_type"] in ("gemma2", "gemma3_text"):
    names.append("pre_feedforward_layernorm")
  return ((f"{name}.weight", (c["hidden_size"],)) for name in names)


def attention(c: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
  dim, kind = c["hidden_size"], c["model_type"]
  q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
  rows = {"qkv_proj": q + 2 * kv} if kind == "phi3" else {"q_proj": q, "k_proj": kv, "v_proj": kv}
  biases = kind in ("qwen2", "qwen2_moe", "gpt_oss") or c.get("attention_bias")
  for name, n in rows.items():
    yield f"self_attn.{name}.weight", (n, dim)
    if biases:
      yield f"self_attn.{name}.bias", (n,)
  yield "self_attn.o_proj.weight", (dim, q)
  if biases and not kind.startswith("qwen2"):
    yield "self_attn.o_proj.bias", (dim,)
  if kind == "gpt_oss":
    yield "self_attn.sinks", (c["num_attention_heads"],)
  if kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmoe"):
    whole = kind.startswith("olmo")
    for name, n in {"q_norm": q, "k_norm": kv}.items():
      yield f"self_attn.{name}.weight", (n if whole else c["head_dim"],)


def feed_forward(c: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
  dim, ffn, kind = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"]), c["model_type"]
  count = c.get("num_experts", c.get("num_local_experts"))
  if kind == "gpt_oss":
    found = {
      "mlp.router.weight": (count, dim), "mlp.router.bias": (count,), "mlp.experts.gate_up_proj": (count, dim, 2 * ffn),
      "mlp.experts.gate_up_proj_bias": (count, 2 * ffn), "mlp.experts.down_proj": (count, ffn, dim),
      "mlp.experts.down_proj_bias": (count, dim),
    }  # fmt: skip
    yield from found.items()
  elif kind == "granitemoe":
    yield "block_sparse_moe.router.layer.weight", (count, dim)
    yield "block_sparse_moe.input_linear.weight", (count, 2 * ffn, dim)
    yield "block_sparse_moe.output_linear.weight", (count, dim, ffn)
  elif count:
    block = "block_sparse_moe" if kind == "mixtral" else "mlp"
    three = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    yield f"{block}.gate.weight", (count, dim)
    for i in range(count):
      yield from gated(f"{block}.experts.{i}", three, dim, ffn)
    if shared := c.get("shared_expert_intermediate_size"):
      yield "mlp.shared_expert_gate.weight", (1, dim)
      yield from gated("mlp.shared_expert", three, dim, shared)
  elif kind == "phi3":
    yield "mlp.gate_up_proj.weight", (2 * ffn, dim)
    yield "mlp.down_proj.weight", (dim, ffn)
  else:
    yield from gated("mlp", ("gate_proj", "up_proj", "down_proj"), dim, ffn)
    if c.get("mlp_bias"):
      yield from {f"mlp.{n}_proj.bias": (dim if n == "down" else ffn,) for n in ("gate", "up", "down")}.items()


def gated(prefix: str, names: tuple[str, ...], dim: int, ffn: int) -> Iterator[tuple[str, tuple[int, ...]]]:
  gate, up, down = names
  yield from {f"{prefix}.{n}.weight": (ffn, dim) for n in (gate, up)}.items()
  yield f"{prefix}.{down}.weight", (dim, ffn)


def weights(name: str, **sizes: Any) -> dict[str, np.ndarray]:
  """By their names in a folder. Twice the usual scale makes attention sharp, so that a wrong rotation or mask shows."""
  out = {}
  c = config(name, **sizes)
  for key, shape in shapes(c):
    x = np.random.RandomState(zlib.crc32(f"{name} {key}".encode())).standard_normal(shape)
    if "norm" in key:
      x = 0.2 * x + (0 if c["model_type"].startswith("gemma") else 1)
    elif len(shape) > 1 and "bias" not in key:
      inputs = shape[1] if c["model_type"] == "gpt_oss" and len(shape) == 3 else shape[-1]
      x = x * (0.5 if "embed" in key else 2 / inputs**0.5)
    out[key] = x.astype(np.float32)
  return out


def write_folder(name: str, path: Path, **sizes: Any) -> Path:
  """Two shards, with their index."""
  path.mkdir()
  (path / "config.json").write_text(json.dumps(config(name, **sizes)))
  found = weights(name, **sizes)
  halves = [dict(list(found.items())[i::2]) for i in range(2)]
  files = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
  for file, half in zip(files, halves):
    safe_save({k: Tensor(x) for k, x in half.items()}, path / file, {"format": "pt"})
  index = {key: file for file, half in zip(files, halves) for key in half}
  (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
  return path


def neighbours(x: np.ndarray, head_dim: int) -> np.ndarray:
  """Rows of q or k as converters write them for families whose pairs are neighbours in GGUF files."""
  split = x.reshape(-1, 2, head_dim // 2, *x.shape[1:])
  return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(x.shape)


def gguf_of(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """(metadata, tensors): what a converter makes of a folder."""
  source = Folder(folder)
  tensors = {}
  own = ("rope.layers", "rope.scaling.truncate")  # keys that GGUF has not: it is the family's way
  metadata = {k: v for k, v in source.metadata.items() if not k.endswith(own)}
  family, arch = FAMILIES[source.arch], source.arch
  for name in source.shapes:
    stored = source.stored(name)
    x = np.ascontiguousarray(stored.blocks[..., 0], np.float32)
    if family.neighbours and name.split(".")[-2] in ("attn_q", "attn_k"):
      x = neighbours(x, metadata[f"{arch}.attention.key_length"])
    tensors[name] = x
  metadata[f"{arch}.attention.value_length"] = metadata[f"{arch}.attention.key_length"]
  return {k: v for k, v in metadata.items() if v is not None}, tensors


def write_family_gguf(folder: Path, path: Path, **changes: Any) -> Path:
  metadata, tensors = gguf_of(folder)
  write_gguf(path, metadata | changes, tensors)
  return path
