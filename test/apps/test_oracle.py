"""Against other programs, where they are installed: transformers (the extra [oracle]) and llama-cpp-python."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import CASES, PROMPTS, TOKENS

from tinygrad.apps.gguf import GGUF
from tinygrad.apps.llm import EMBEDDED
from tinygrad.apps.model import Layout, Llama
from tinygrad.apps.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("shard", ["1", "2"])
@pytest.mark.parametrize("name", list(CASES))
def test_logits_of_other_weights(name: str, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  pytest.importorskip("transformers", reason="needs the extra [oracle]")
  monkeypatch.setattr(sys, "path", [str(DATA), *sys.path])
  from make_golden_logits import logits

  t = replace(CASES[name], seed=CASES[name].seed + 100)
  m, want = Llama(GGUF(t.write(tmp_path / "t.gguf")), Layout.parse(shard)), logits(t, TOKENS)
  np.testing.assert_allclose(m.prefill(TOKENS[:40]), want[39], atol=1e-3, rtol=0)
  for pos in range(40, len(TOKENS)):
    np.testing.assert_allclose(m.decode(TOKENS[pos], pos), want[pos], atol=1e-3, rtol=0)


def test_golden_logits_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch):
  pytest.importorskip("transformers", reason="needs the extra [oracle]")
  monkeypatch.setattr(sys, "path", [str(DATA), *sys.path])
  from make_golden_logits import logits

  golden = np.load(DATA / "golden_logits.npz")
  assert set(golden) == set(CASES)
  for name, t in CASES.items():
    np.testing.assert_allclose(logits(t, TOKENS), golden[name], atol=1e-4, rtol=0)


@pytest.mark.skipif(not EMBEDDED.exists(), reason="the package holds no model yet")
def test_same_tokens_as_llama_cpp_from_the_embedded_file():
  llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
  peer = llama_cpp.Llama(str(EMBEDDED), n_ctx=256, verbose=False, logits_all=True)
  g = GGUF(EMBEDDED)
  tokenizer, m = Tokenizer.from_gguf(g), Llama(g, Layout.parse("1"), 256)
  for prompt in PROMPTS:
    ids = tokenizer.encode(prompt)
    assert ids == peer.tokenize(prompt.encode(), add_bos=tokenizer.add_bos)
    logits, same = m.prefill(ids), 0
    for theirs, pos in zip(peer.generate(ids, temp=0.0, repeat_penalty=1.0), range(len(ids), len(ids) + 64)):
      ours = int(logits.argmax())
      if theirs != ours:
        # llama.cpp quantises activations to 8 bits for a product with Q8_0, so near ties may fall otherwise
        assert logits[ours] - logits[theirs] < 0.05 * (logits.max() - np.median(logits)), (prompt, same)
        break
      same += 1
      logits = m.decode(ours, pos)
