"""Makes pre_tokens.json: a vocabulary whose merges cross every boundary, and llama.cpp's tokens of some texts for each
value of tokenizer.ggml.pre that the app knows.

Needs llama-cpp-python and tokenizers. Run from the root of the repository:
  python test/data/make_pre_tokens.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "apps")]
from tiny_llama import Tiny  # noqa: E402

from extra.write_gguf import write_gguf  # noqa: E402
from tinygrad.apps.tokenizer import SPLITS  # noqa: E402

TEXTS = [
  "I'LL we've DON'T it's don't DON't", "a1b22c333d4444 1234567", "  leading \t\n\n  x", "½ ٣ 一二三 漢字かな한국",
  "$x + y^2 ~ |z| <= >=", "foo\r\nbar\r\n\r\n", "!!!???...\n\nx", "x_y__z HelloWorld fooBAR",
  "`a` (b) /c/ \\d //\n/ x", "größe, naïve. Привет мир", "  \n  \n x   y", "def f(x):\n    return self.x[1:2]+'a'",
  "3.14,15 1,000,000", "مرحبا بالعالم।", "   ", "x!\n y/\n/z", "ab's 漢字ab12", "a  b\t\tc \n",
  " " * 600 + "x", "    indented\n        more\n\t\ttab  \n", "x   \n\n\n  y ",
  "\u3000全角　空白。「引用」…… — “q”",
  "ㄅㄆ ㄱㄴ 가나다", "１２３４ ４５ 12.5e10 1234567890", "<sentinel:12> IMGIMGABZ",
  "z/y/x // don'T CAN'T", "a\u200bb ǅ ʰ ª",
]  # fmt: skip
# llama.cpp has no marks in the classes of these; the tokenizers that the names stand for have.
MARKS = ["e\u0303 a\u0301b", "Ünï cÖde ÉCOLE Été", "नमस्ते दुनिया", "e1\u0301 \u0301", "Ａｂｃ ｄｅ ÀÉß ҐґЯ"]
WITHOUT_MARKS = ("gpt-4o", "llama4", "kanana2", "minimax-m2", "tekken", "talkie", "granite-embed-multi-97m", "kimi-k2")
# Nor does it tell a word's cases apart in the first three of these, nor know spaces and digits beyond ASCII in the
# others (test_tokenizer.py: what the tokenizers that the names stand for do).
CASES = ("x_y__z HelloWorld fooBAR", "Ünï cÖde ÉCOLE Été", "Ａｂｃ ｄｅ ÀÉß ҐґЯ")
WITHOUT = {"kimi-k2": CASES, "tiny_aya": CASES, "cohere2moe": CASES,
           "deepseek-coder": ("\u3000全角　空白。「引用」…… — “q”",),
           "superbpe": ("１２３４ ４５ 12.5e10 1234567890",)}  # fmt: skip


def metadata(names: list[str], merges: list[str], pre: str) -> dict[str, object]:
  tokens = [*names, "<|begin|>", "<|end|>"]
  own = {
    "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
    "tokenizer.ggml.token_type": [1] * len(names) + [3, 3], "tokenizer.ggml.bos_token_id": len(names),
    "tokenizer.ggml.eos_token_id": len(names) + 1,
  }  # fmt: skip
  return Tiny("tokenizer").metadata() | own


def main() -> None:
  trained = tokenizers.Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
  trained.train_from_iterator([*TEXTS, *MARKS], trainer)
  model = json.loads(trained.to_str())["model"]
  names = sorted(model["vocab"], key=model["vocab"].get)
  merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
  found = {}
  for pre in SPLITS:
    with tempfile.TemporaryDirectory() as folder:
      write_gguf(f"{folder}/t.gguf", metadata(names, merges, pre), {})
      peer = llama_cpp.Llama(f"{folder}/t.gguf", vocab_only=True, verbose=False)
    texts = TEXTS if pre in WITHOUT_MARKS else [*TEXTS, *MARKS]
    texts = [text for text in texts if text not in WITHOUT.get(pre, ())]
    found[pre] = [[text, peer.tokenize(text.encode(), add_bos=True, special=True)] for text in texts]
  same: dict[str, list[str]] = {}
  for pre, ids in found.items():
    same.setdefault(json.dumps(ids), []).append(pre)
  kept = [{"pre": pres, "tokens": json.loads(ids)} for ids, pres in same.items()]
  text = json.dumps({"names": names, "merges": merges, "cases": kept}, ensure_ascii=False)
  Path(__file__).with_name("pre_tokens.json").write_text(text + "\n", encoding="utf-8")
  print(len(text), [(case["pre"]) for case in kept])


if __name__ == "__main__":
  main()
