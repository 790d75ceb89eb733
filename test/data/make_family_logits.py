"""Makes family_logits.npz: what transformers computes with the models of test/apps/tiny_models.py.

Needs torch and transformers (the extra [oracle]). Run from the root of the repository:
  python test/data/make_family_logits.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "apps")]
from tiny_models import CASES, SEEN, TOKENS, config, weights, write_folder  # noqa: E402


def family_logits(name: str) -> np.ndarray:
  """[len(SEEN), vocab]; transformers reads the very folder, and its own list of weights is the folder's."""
  with tempfile.TemporaryDirectory() as folder:
    path = write_folder(name, Path(folder) / "model")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
      path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
  missing = [k for k in info["missing_keys"] if not (k == "lm_head.weight" and config(name)["tie_word_embeddings"])]
  assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], (name, info)
  assert sum(x.size for x in weights(name).values()) == sum(p.numel() for p in model.parameters())
  with torch.no_grad():
    return model.eval()(torch.tensor([TOKENS])).logits[0, list(SEEN)].numpy()


if __name__ == "__main__":
  golden = {name: family_logits(name) for name in CASES}
  np.savez_compressed(Path(__file__).with_name("family_logits.npz"), **golden)
  print({name: (x.shape, float(np.abs(x).max())) for name, x in golden.items()}, transformers.__version__)
