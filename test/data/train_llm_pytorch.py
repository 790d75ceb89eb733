"""Write train_llm_pytorch.json: the losses that test/apps/test_train.py expects, by PyTorch's own operations.

Nothing here comes from tinygrad/apps/train.py but the recipe. "small": ten steps of a small model on made-up tokens.
"first_30": the first 30 steps of the embedded model, on the token windows in train_llm_batches.npz (written by
`python -m tinygrad.apps.train --data stdlib --mesh 2x2 --steps 30 --batches`, CPython 3.11.7). Needs torch and numpy:

  python test/data/train_llm_pytorch.py
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
EPS, BASE = 1e-5, 10000.0


def weights(dim, layers, heads, kv_heads, ffn, vocab, seed=0):
  """In the order in which the script draws them."""
  normal, residual, kv = np.random.RandomState(seed).standard_normal, (2 * layers) ** -0.5, dim // heads * kv_heads
  shapes = [("token_embd", vocab, dim, 0.02)]
  for i in range(layers):
    shapes += [
      (f"{i}.q", dim, dim, dim**-0.5),
      (f"{i}.k", kv, dim, dim**-0.5),
      (f"{i}.v", kv, dim, dim**-0.5),
      (f"{i}.o", dim, dim, dim**-0.5 * residual),
      (f"{i}.gate", ffn, dim, dim**-0.5),
      (f"{i}.up", ffn, dim, dim**-0.5),
      (f"{i}.down", dim, ffn, ffn**-0.5 * residual),
    ]
  w = {name: torch.tensor((normal((m, n)) * scale).astype(np.float32)) for name, m, n, scale in shapes}
  norms = [f"{i}.{n}_norm" for i in range(layers) for n in ("attn", "ffn")] + ["norm"]
  return {name: torch.nn.Parameter(x) for name, x in (w | {n: torch.ones(dim) for n in norms}).items()}


def rope(x):
  """Neighbouring values of the last dim as complex numbers, turned by position * BASE^(-2i / head_dim)."""
  t, n = x.shape[-2:]
  angle = torch.arange(t)[:, None] * BASE ** (-torch.arange(0, n, 2) / n)
  pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], n // 2, 2).contiguous())
  return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def forward(w, tokens, layers, heads, kv_heads):
  b, t = tokens.shape
  h = F.embedding(tokens, w["token_embd"])
  for i in range(layers):
    y = F.rms_norm(h, h.shape[-1:], w[f"{i}.attn_norm"], EPS)
    q, k, v = (
      F.linear(y, w[f"{i}.{name}"]).view(b, t, n, -1).transpose(1, 2)
      for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
    h = h + F.linear(y.transpose(1, 2).reshape(b, t, -1), w[f"{i}.o"])
    y = F.rms_norm(h, h.shape[-1:], w[f"{i}.ffn_norm"], EPS)
    h = h + F.linear(F.silu(F.linear(y, w[f"{i}.gate"])) * F.linear(y, w[f"{i}.up"]), w[f"{i}.down"])
  return F.linear(F.rms_norm(h, h.shape[-1:], w["norm"], EPS), w["token_embd"])


def losses(batches, w, layers, heads, kv_heads, lr, warmup, steps):
  groups = [
    {"params": [x for x in w.values() if x.ndim == 2], "weight_decay": 0.3},
    {"params": [x for x in w.values() if x.ndim == 1], "weight_decay": 0.0},
  ]
  optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
  rise, out = round(warmup * steps), []
  for step, batch in enumerate(torch.tensor(batches).long()):
    factor = (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
    for group in optimizer.param_groups:
      group["lr"] = lr * factor
    logits = forward(w, batch[:, :-1], layers, heads, kv_heads)
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
  return out


def main():
  few = np.random.RandomState(1).randint(0, 16, (10, 4, 17)).astype(np.int32)
  small = losses(np.repeat(few, 2, axis=-1)[..., :33], weights(64, 2, 4, 2, 128, 512), 2, 4, 2, 1e-2, 0.2, 10)
  batches = np.load(HERE / "train_llm_batches.npz")["batches"].astype(np.int32)
  steps = math.ceil(4_000_000 / (8 * 256))
  first = losses(batches, weights(256, 3, 8, 4, 512, 4096), 3, 8, 4, 2e-3, 0.05, steps)
  text = json.dumps({"torch": torch.__version__, "small": small, "first_30": first}, indent=1)
  temporary = HERE / "train_llm_pytorch.json.tmp"
  temporary.write_text(text + "\n")
  temporary.replace(HERE / "train_llm_pytorch.json")


if __name__ == "__main__":
  main()
