"""Makes golden_logits.npz: logits of transformers' LlamaForCausalLM for the models of test/apps/tiny_llama.py.

Needs torch and transformers (the extra [oracle]). Run from the root of the repository:
  python test/data/make_golden_logits.py
A GGUF file holds the rows of q and k such that the pairs that rotate together are neighbours; transformers holds the
first halves of all pairs of a head, then the second halves. The order is undone here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "apps")]
from tiny_llama import CASES, TOKENS, Tiny  # noqa: E402

NAMES = {
  "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
  "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def halves(x: np.ndarray, heads: int) -> np.ndarray:
  """Rows of q or k from neighbouring pairs to halves."""
  rows, cols = x.shape
  return x.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def reference(t: Tiny) -> transformers.LlamaForCausalLM:
  rope = {"rope_type": "default", "rope_theta": t.rope_base}
  if t.llama3_rope:
    rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 64}
  config = transformers.LlamaConfig(
    vocab_size=t.vocab, hidden_size=t.dim, intermediate_size=t.ffn, num_hidden_layers=t.layers,
    num_attention_heads=t.heads, num_key_value_heads=t.kv_heads, head_dim=t.head_dim, rms_norm_eps=1e-5,
    max_position_embeddings=t.context, tie_word_embeddings=t.tied, rope_parameters=rope, attention_bias=False,
    mlp_bias=False, attn_implementation="eager",
  )  # fmt: skip
  state = {}
  for name, x in t.rounded().items():
    if name == "rope_freqs.weight":
      continue
    if name.startswith("blk."):
      _, i, kind, _ = name.split(".")
      x = halves(x, t.heads if kind == "attn_q" else t.kv_heads) if kind in ("attn_q", "attn_k") else x
      state[f"model.layers.{i}.{NAMES[kind]}.weight"] = torch.tensor(x)
    else:
      top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
      state[f"{top[name.split('.')[0]]}.weight"] = torch.tensor(x)
  model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
  if t.tied:
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
  model.load_state_dict(state, strict=True)
  return model


def logits(t: Tiny, tokens: list[int]) -> np.ndarray:
  """[len(tokens), vocab]"""
  with torch.no_grad():
    return reference(t)(torch.tensor([tokens])).logits[0].numpy()


if __name__ == "__main__":
  golden = {name: logits(t, TOKENS) for name, t in CASES.items()}
  np.savez_compressed(Path(__file__).with_name("golden_logits.npz"), **golden)
  print({name: (x.shape, float(np.abs(x).max())) for name, x in golden.items()}, transformers.__version__)
