"""Makes sentencepieces.json: small vocabularies of SentencePiece, and its tokens of some texts.

Needs sentencepiece and protobuf. Run from the root of the repository:
  python test/data/make_sentencepieces.py
"""

from __future__ import annotations

import base64
import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece

# What becomes what, in hexadecimal: a fullwidth letter, a ligature, a mark with its letter, nothing, and three letters
# of which the first two are a rule, too: the longest match counts.
RULES = ["FF21\t41", "FB01\t66 69", "65 301\tE9", "200B\t", "2167\t56 49 49 49", "2122\t54 4D", "61 62 63\t78",
         "61 62\t79", "3000\t20"]  # fmt: skip
TEXTS = [
  "def f(x):\n    return x.y + 1", "hello  world ", " the license of the license", "größe naïve Привет мир",
  "漢字かな한국 🙂", "Ａb ﬁne e\u0301te abcab Ⅷ™ a\u200bb", "a\u3000b   c", "", " ", "   ", "▁ ▁x", "1234567 3.14",
  "unknown 𝔘𝔫 ⟦x⟧⟦⟧ known", "this software and the documentation", "\t\ttabs\r\n\n", "aaaaaaaaaaaaaaaaaaaaaaaa",
  "e\u0301", "\u0301", "Python Software Foundation License Version 2",
]  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
  "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
          "remove_extra_whitespaces": False},
  "bpe-no-prefix": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                    "remove_extra_whitespaces": False, "add_dummy_prefix": False, "split_by_whitespace": False},
  "unigram": {"model_type": "unigram", "byte_fallback": False},
  "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False},
}  # fmt: skip


def trained(name: str, folder: Path) -> sentencepiece.SentencePieceProcessor:
  corpus, rules = folder / "corpus.txt", folder / "rules.tsv"
  license_ = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
  corpus.write_text("\n".join([license_.read_text(), *TEXTS[:4] * 9]), encoding="utf-8")
  rules.write_text("\n".join(RULES) + "\n", encoding="utf-8")
  options = {"vocab_size": 700, "character_coverage": 0.995, "hard_vocab_limit": False, "minloglevel": 2} | CASES[name]
  if "normalization_rule_name" not in options:
    options["normalization_rule_tsv"] = str(rules)
  sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "m"), **options)
  return sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))


def charsmap(folder: Path) -> str:
  from sentencepiece import sentencepiece_model_pb2 as proto

  model = proto.ModelProto()
  model.ParseFromString((folder / "m.model").read_bytes())
  return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def type_of(p: sentencepiece.SentencePieceProcessor, i: int) -> int:
  return 2 if p.IsUnknown(i) else 3 if p.IsControl(i) else 6 if p.IsByte(i) else 1


def main() -> None:
  found = {}
  for name, options in CASES.items():
    with tempfile.TemporaryDirectory() as made:
      p, ids = trained(name, Path(made)), None
      ids = range(p.GetPieceSize())
      found[name] = {
        "kind": options["model_type"], "names": [p.IdToPiece(i) for i in ids], "types": [type_of(p, i) for i in ids],
        "scores": [round(p.GetScore(i), 6) for i in ids], "charsmap": charsmap(Path(made)),
        "before": options.get("add_dummy_prefix", True), "squeeze": options.get("remove_extra_whitespaces", True),
        "tokens": [[text, p.Encode(text), p.Decode(p.Encode(text))] for text in TEXTS],
      }  # fmt: skip
  text = json.dumps(found, ensure_ascii=False)
  Path(__file__).with_name("sentencepieces.json").write_text(text + "\n", encoding="utf-8")
  print(len(text), sentencepiece.__version__)


if __name__ == "__main__":
  main()
