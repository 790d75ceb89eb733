"""Against other programs, where they are installed: transformers (the extra [oracle]) and llama-cpp-python."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from test_tokenizer import SENTENCEPIECES, write_sentencepiece
from tiny_llama import CASES, PROMPTS, TOKENS, Tiny, tokenizer_metadata
from tiny_models import CASES as FAMILY_CASES
from tiny_models import gguf_of, write_folder
from tokenizers import models, pre_tokenizers, trainers

from extra.write_gguf import write_gguf
from tinygrad.apps.checkpoint import GGUFCheckpoint
from tinygrad.apps.layout import Layout
from tinygrad.apps.llm import EMBEDDED
from tinygrad.apps.model import LanguageModel
from tinygrad.apps.rope import long_rope_amplitude
from tinygrad.apps.tokenizer import SPLITS, Tokenizer
from tinygrad.apps.train import train_command
from tinygrad.nn.gguf import GGUF

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("shard", ["1", "2"])
@pytest.mark.parametrize("name", list(CASES))
def test_logits_of_other_weights(name: str, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  pytest.importorskip("transformers", reason="needs the extra [oracle]")
  monkeypatch.setattr(sys, "path", [str(DATA), *sys.path])
  from make_golden_logits import logits

  t = replace(CASES[name], seed=CASES[name].seed + 100)
  m, want = (
    LanguageModel(GGUFCheckpoint(GGUF(t.write(tmp_path / "t.gguf"))), Layout.parse(shard), exact=True, cache="f32"),
    logits(t, TOKENS),
  )
  np.testing.assert_allclose(m.prefill(TOKENS[:40]), want[39], atol=1e-3, rtol=0)
  for pos in range(40, len(TOKENS)):
    np.testing.assert_allclose(m.decode([TOKENS[pos]], [pos])[0], want[pos], atol=1e-3, rtol=0)


def test_golden_logits_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch):
  pytest.importorskip("transformers", reason="needs the extra [oracle]")
  monkeypatch.setattr(sys, "path", [str(DATA), *sys.path])
  from make_golden_logits import logits

  golden = np.load(DATA / "golden_logits.npz")
  assert set(golden) == set(CASES)
  for name, t in CASES.items():
    np.testing.assert_allclose(logits(t, TOKENS), golden[name], atol=1e-4, rtol=0)


def same_greedy_tokens(path: Path, prompts: list[str], **options: int) -> list[int]:
  """How many of 64 greedy tokens agree with llama.cpp's (made with `options`), for each prompt."""
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  peer = llama_cpp.Llama(str(path), n_ctx=160, verbose=False, seed=0, **options)
  g = GGUF(path)
  cache = "f32" if options.get("type_k") == 0 else "f16"
  tokenizer, m = Tokenizer.from_gguf(g), LanguageModel(GGUFCheckpoint(g), Layout.parse("1"), 160, cache=cache)
  out = []
  for prompt in prompts:
    ids = tokenizer.encode(prompt)
    assert ids == peer.tokenize(prompt.encode(), add_bos=True, special=True)
    logits, same = m.prefill(ids), 0
    peer.reset()
    for theirs, pos in zip(peer.generate(ids, temp=0.0, repeat_penalty=1.0), range(len(ids), len(ids) + 64)):
      ours = int(logits.argmax())
      if theirs != ours:
        # llama.cpp rounds activations too, to 16 bits (F16) or 8 (Q8_0), so near ties may fall otherwise
        assert logits[ours] - logits[theirs] < 0.05 * (logits.max() - logits.mean()), (prompt, same)
        break
      same += 1
      logits = m.decode([ours], [pos])[0]
    out.append(same)
  return out


# Not Q8_0: random weights amplify what llama.cpp loses in rounding activations; the embedded model has it.
@pytest.mark.parametrize("name", ["f32", "f16_gqa_llama3_rope"])
def test_same_greedy_tokens_as_llama_cpp(name: str, tmp_path: Path):
  assert np.mean(same_greedy_tokens(CASES[name].write(tmp_path / "t.gguf"), PROMPTS)) > 48


def test_same_greedy_tokens_as_llama_cpp_from_the_embedded_file():
  assert np.mean(same_greedy_tokens(EMBEDDED, PROMPTS)) > 48


def test_same_greedy_tokens_as_llama_cpp_from_the_embedded_weights_in_float32(tmp_path: Path):
  """The file's weights, written as F32 and with llama.cpp's cache in F32 (type 0), so that it rounds nothing: every
  token of every prompt."""
  g = GGUF(EMBEDDED)
  tensors = {name: g.tensor(name).float().numpy() for name in g.tensors}
  write_gguf(tmp_path / "f32.gguf", g.metadata, tensors)
  assert same_greedy_tokens(tmp_path / "f32.gguf", PROMPTS, type_k=0, type_v=0) == [64] * len(PROMPTS)


# Where llama.cpp is another model than transformers: llamas and Phi-3 have no windows in it, and YaRN's first and last
# blended pair are whole numbers. It has no LongRoPE amplitude but the file's, which its converter writes, and no OLMoE
# with fewer kv heads.
LLAMA_CPPS: dict[str, dict[str, object]] = {
  "olmoe": {"num_key_value_heads": 4},
  **dict.fromkeys(("mistral", "phi3", "phi3-long"), {"sliding_window": None}),
}
ITS_KEYS: dict[str, dict[str, object]] = {
  "gpt_oss": {"gpt-oss.rope.scaling.truncate": True},
  "phi3-long": {"phi3.rope.scaling.attn_factor": long_rope_amplitude(160, 40)},
}


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("name", list(FAMILY_CASES))
def test_same_greedy_tokens_of_every_family_as_llama_cpp(name: str, kind: str, tmp_path: Path):
  """Random weights, a prompt longer than the windows. F16: both round what they multiply, so near ties may differ."""
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  metadata, tensors = gguf_of(write_folder(name, tmp_path / "model", **{"vocab_size": 320} | LLAMA_CPPS.get(name, {})))
  metadata |= ITS_KEYS.get(name, {})
  types = {n: kind for n, x in tensors.items() if x.ndim > 1 and not n.endswith("ffn_gate_inp.weight")}
  types |= {n: "F32" for n in types if n.endswith(".bias")}
  write_gguf(tmp_path / "m.gguf", metadata | tokenizer_metadata(320), tensors, types)
  g = GGUF(tmp_path / "m.gguf")
  m = LanguageModel(GGUFCheckpoint(g), Layout.parse("1"), 128, cache="f32")
  peer = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=128, verbose=False, type_k=0, type_v=0, swa_full=True)
  logits, same = m.prefill(TOKENS[:40]), 0
  for theirs, pos in zip(peer.generate(TOKENS[:40], temp=0.0, repeat_penalty=1.0), range(40, 72)):
    if theirs != int(logits.argmax()):
      near = 0.0 if kind == "F32" else 0.05 * (logits.max() - logits.mean())
      assert logits.max() - logits[theirs] <= near, (same, logits.max(), logits[theirs])
      break
    same += 1
    logits = m.decode([theirs], [pos])[0]
  assert same == 32 or kind == "F16" and same > 3, same


@pytest.mark.parametrize("name", ["bpe", "bpe-no-prefix"])
def test_same_tokens_of_sentencepiece_as_llama_cpp(name: str, tmp_path: Path):
  """Control tokens and the user's among text, too, after which a text begins anew."""
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  s = SENTENCEPIECES[name]
  more = {
    "tokens": [*s["names"], "<start>", "<tool>"],
    "token_type": [*s["types"], 3, 4],
    "scores": [*s["scores"], 0.0, 0.0],
  }
  own = GGUF(write_sentencepiece(tmp_path / "s.gguf", name, **more)).metadata
  model = {k: v for k, v in Tiny("t").metadata().items() if not k.startswith("tokenizer")}
  write_gguf(tmp_path / "t.gguf", model | own, {})
  ours = Tokenizer.from_gguf(GGUF(tmp_path / "t.gguf"))
  peer = llama_cpp.Llama(str(tmp_path / "t.gguf"), vocab_only=True, verbose=False)
  marked = ["<start>hello<tool>world", "a <start> b", "<tool> x<tool>y", "hello<start>", "  <start>  hi"]
  for text in [*PROMPTS, *(text for text, *_ in s["tokens"]), *marked]:
    assert ours.encode(text) == peer.tokenize(text.encode(), add_bos=True, special=True), text


def test_llama_cpp_loads_what_was_trained(tmp_path: Path):
  """And says what this program says, of a model of a moment's training."""
  (tmp_path / "texts").mkdir()
  for i in range(8):
    (tmp_path / "texts" / f"{i}.txt").write_text(f"def f{i}(x):\n  return x + {i}\n" * 40)
  out = tmp_path / "m.gguf"
  sizes = (
    "--dim 64 --layers 1 --heads 4 --kv-heads 4 --ffn 64 --vocab 266 --context 160 --tokens 5000 --batch 4 --lr 0.01"
  )
  asked = [*sizes.split(), "--data", str(tmp_path / "texts"), "--out", str(out)]
  assert train_command(asked) == 0
  assert np.mean(same_greedy_tokens(out, ["def f3(x):", "  return"], type_k=0, type_v=0)) > 32


# llama.cpp's numbers of what a file holds mostly (llama_ftype), by the format of its matrices
FILES_OF = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
            "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}  # fmt: skip


@pytest.mark.parametrize("kind", list(FILES_OF))
def test_same_perplexity_as_llama_cpp(kind: str, tmp_path: Path):
  """The embedded model as llama.cpp quantises it, on a text of Python's: within 1%."""
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  g = GGUF(EMBEDDED)
  write_gguf(tmp_path / "f32.gguf", g.metadata, {name: g.tensor(name).float().numpy() for name in g.tensors})
  params = llama_cpp.llama_model_quantize_default_params()
  params.ftype, params.pure, params.allow_requantize = FILES_OF[kind], True, True
  whole, made = str(tmp_path / "f32.gguf").encode(), str(tmp_path / "q.gguf").encode()
  assert llama_cpp.llama_model_quantize(whole, made, ctypes.byref(params)) == 0
  g = GGUF(tmp_path / "q.gguf")
  assert {t.type.name for t in g.tensors.values()} == {kind, "F32"}
  text = (Path(sysconfig.get_paths()["stdlib"]) / "this.py").read_text() * 2
  text += (Path(sysconfig.get_paths()["stdlib"]) / "bisect.py").read_text()
  ids = Tokenizer.from_gguf(g).encode(text, bos=False)[:1020]
  rows = [[0, *ids[i : i + 255]] for i in range(0, len(ids), 255)]
  m = LanguageModel(GGUFCheckpoint(g), Layout.parse("1"), cache="f32")
  peer = llama_cpp.Llama(str(tmp_path / "q.gguf"), n_ctx=256, n_batch=256, logits_all=True, verbose=False)
  output = g.tensor("token_embd.weight").float().numpy()
  ours = theirs = 0.0
  for row in rows:
    peer.reset()
    peer.eval(row)
    ours, theirs = ours + surprise(m.embed(row) @ output.T, row), theirs + surprise(peer.scores[: len(row)], row)
  count = len(ids)
  assert np.exp(ours / count) == pytest.approx(np.exp(theirs / count), rel=0.01)
  assert 1 < theirs / count < 6, "a model that has learned nothing could not tell"


def surprise(logits: np.ndarray, row: list[int]) -> float:
  """-ln p of each token after the first, added up."""
  x = logits[: len(row) - 1].astype(np.float64)
  x = x - x.max(-1, keepdims=True)
  return float((np.log(np.exp(x).sum(-1)) - x[np.arange(len(row) - 1), row[1:]]).sum())


# What llama.cpp splits otherwise than the models' own tokenizers do (test_splits_are_the_models_own in
# test_tokenizer.py): it does not tell a word's cases apart, and counts digits from the right before letters, too.
CAPITALS = "[a-z][A-Z]"
QUIRKS = {"kimi-k2": CAPITALS, **dict.fromkeys(("tiny_aya", "cohere2moe"), rf"{CAPITALS}|\d{{4,}}[a-zA-Z_]")}


@pytest.mark.parametrize("pre", list(SPLITS))
def test_same_tokens_as_llama_cpp(pre: str, tmp_path: Path):
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
  trained = tokenizers.Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
  trained.train([str(f) for f in files], trainer)
  model = json.loads(trained.to_str())["model"]
  names = sorted(model["vocab"], key=model["vocab"].get)
  metadata = Tiny("tokenizer").metadata() | {
    "tokenizer.ggml.pre": pre,
    "tokenizer.ggml.tokens": [*names, "<|begin|>", "<|end|>"],
    "tokenizer.ggml.token_type": [1] * len(names) + [3, 3],
    "tokenizer.ggml.merges": [x if isinstance(x, str) else " ".join(x) for x in model["merges"]],
    "tokenizer.ggml.bos_token_id": len(names),
    "tokenizer.ggml.eos_token_id": len(names) + 1,
  }
  write_gguf(tmp_path / "t.gguf", metadata, {})
  ours = Tokenizer.from_gguf(GGUF(tmp_path / "t.gguf"))
  peer = llama_cpp.Llama(str(tmp_path / "t.gguf"), vocab_only=True, verbose=False)
  odd = ["I'LL we've DON'T", "a1b22c333d4444", "  leading \t\n\n  x", "½ ٣ 一二三", "$x + y^2 ~ |z| <= >=",
         "foo\r\nbar\r\n\r\n",
         "!!!???...", "x_y__z", "e\u0303", "<|begin|>hi"]  # fmt: skip
  texts = [*PROMPTS, *odd, *(f.read_text(errors="replace")[:2000] for f in files[:6])]
  if pre in QUIRKS:
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    texts = [line for line in lines if not re.search(QUIRKS[pre], line)]
    assert len(texts) > 0.8 * len(lines)
    theirs = peer.tokenize(b" NotImplementedError", add_bos=False, special=True)
    assert ours.encode(" NotImplementedError", bos=False) != theirs, "what is known of llama.cpp is so no longer"
  for text in texts:
    assert ours.encode(text) == peer.tokenize(text.encode(), add_bos=True, special=True), text[:80]
