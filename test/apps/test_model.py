"""The llama model: against golden logits of transformers, the same on several devices, and what it refuses."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_llama import CASES, PROMPTS, TOKENS, Tiny
from tiny_models import write_family_gguf, write_folder

from extra.write_gguf import write_gguf
from tinygrad import GlobalCounters, UOp
from tinygrad.apps import AppError
from tinygrad.apps.checkpoint import GGUFCheckpoint
from tinygrad.apps.config import Config
from tinygrad.apps.kv_cache import CacheError
from tinygrad.apps.layout import Layout
from tinygrad.apps.llm import EMBEDDED
from tinygrad.apps.model import ContextError, LanguageModel, Matrix, load_weights, placements
from tinygrad.apps.tokenizer import TokenError, Tokenizer
from tinygrad.device import Buffer
from tinygrad.engine import realize
from tinygrad.nn.gguf import GGUF, GGUFError
from tinygrad.uop import Ops, buffer_of

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden_logits.npz")
SHARDED = ["2", "4", "2x2"]
SMALL = Tiny("small", dim=32, heads=4, kv_heads=2, head_dim=8, ffn=32, layers=1, vocab=288, context=64)


def opened(path: Path) -> GGUFCheckpoint:
  return GGUFCheckpoint(GGUF(path))


def placed_weights(
  g: GGUFCheckpoint, shard: str = "1", progress: Callable[[int], None] | None = None
) -> dict[str, Matrix]:
  c, layout = Config.read(g), Layout.parse(shard)
  return load_weights(g, c, layout, placements(c, layout), progress)


def load(t: Tiny, path: Path, shard: str = "1", **how: Any) -> LanguageModel:
  """With a cache of float32, unless told otherwise."""
  return LanguageModel(
    opened(t.write(path / f"{t.name}.gguf")), Layout.parse(shard), **{"cache": "f32", "exact": True} | how
  )


def changed(t: Tiny, path: Path, tensors: dict[str, Any] | None = None, **metadata: Any) -> GGUFCheckpoint:
  """The file of `t` with some metadata and tensors changed, or removed where None."""
  m = t.metadata() | {k.replace("__", "."): v for k, v in metadata.items()}
  x = t.tensors() | (tensors or {})
  x = {k: v for k, v in x.items() if v is not None}
  write_gguf(path / "changed.gguf", {k: v for k, v in m.items() if v is not None}, x)
  return opened(path / "changed.gguf")


def memory(w: Matrix) -> list[Buffer]:
  """What a weight lies in."""
  return [buffer_of(u) for u in w.blocks.uop.toposort() if u.op is Ops.BUFFER]


def greedy(m: LanguageModel, prompts: list[list[int]], count: int) -> list[list[tuple[int, np.ndarray]]]:
  """So many of the likeliest tokens after each prompt, and the logits that they were chosen by; side by side."""
  logits, said = [m.prefill(ids, slot=slot) for slot, ids in enumerate(prompts)], [[] for _ in prompts]
  for n in range(count):
    for row, text in zip(logits, said, strict=True):
      text.append((int(row.argmax()), row))
    logits = list(m.decode([text[-1][0] for text in said], [len(ids) + n for ids in prompts]))
  return said


# ---------------------------------------------------------------- logits


@pytest.mark.parametrize("name", list(CASES))
def test_logits_agree_with_transformers(name: str, tmp_path: Path):
  m, want = load(CASES[name], tmp_path), GOLDEN[name]
  for n in (1, 5, 32, 33, 40):  # within a chunk, a whole one, beyond one
    np.testing.assert_allclose(m.prefill(TOKENS[:n]), want[n - 1], atol=1e-3, rtol=0)
  for pos in range(40, len(TOKENS)):
    np.testing.assert_allclose(m.decode([TOKENS[pos]], [pos])[0], want[pos], atol=1e-3, rtol=0)


def test_golden_logits_know_the_row_order_the_scaling_and_the_mask(tmp_path: Path):
  t, n = CASES["f16_gqa_llama3_rope"], len(TOKENS) - 1
  want = GOLDEN[t.name][n]

  def off(g: GGUFCheckpoint) -> float:
    return float(np.abs(LanguageModel(g, Layout.parse("1"), cache="f32").prefill(TOKENS) - want).max())

  halves = {}
  for k, x in t.tensors().items():
    if "attn_q" in k or "attn_k" in k:
      heads = t.heads if "attn_q" in k else t.kv_heads
      halves[k] = x.reshape(heads, t.head_dim // 2, 2, t.dim).swapaxes(1, 2).reshape(x.shape)
  # written here in float32, where the golden model is rounded to float16
  assert off(changed(t, tmp_path)) < 0.1
  assert off(changed(t, tmp_path, halves)) > 0.5
  assert off(changed(t, tmp_path, {"rope_freqs.weight": None})) > 0.5
  first = np.abs(
    GOLDEN[t.name][0] - LanguageModel(opened(t.write(tmp_path / "t")), Layout.parse("1")).prefill(TOKENS[:2])
  )
  assert first.max() > 0.5  # the first position does not see the second


def test_a_second_prompt_does_not_see_the_first(tmp_path: Path):
  m = load(SMALL, tmp_path)
  want = m.prefill(TOKENS[:7])
  m.prefill(TOKENS[10:45])
  np.testing.assert_array_equal(m.prefill(TOKENS[:7]), want)


def test_a_prompt_in_two_parts_is_the_prompt(tmp_path: Path):
  m = load(SMALL, tmp_path)
  want = m.prefill(TOKENS[:40])
  m.prefill(TOKENS[:11])
  np.testing.assert_allclose(m.prefill(TOKENS[11:40], 11), want, atol=1e-4)


@pytest.mark.parametrize("shard", ["1", "2"])
def test_the_logits_after_every_token_of_a_text(shard: str, tmp_path: Path):
  ids = [(i * 37 + 11) % 288 for i in range(40)]  # in two chunks
  m = load(SMALL, tmp_path, shard)
  scores = m.score(ids)
  assert scores.shape == (40, 288)
  for end in (1, 2, 31, 32, 33, 40):
    np.testing.assert_allclose(scores[end - 1], m.prefill(ids[:end]), rtol=1e-4, atol=1e-4)
  m.score(ids)
  np.testing.assert_allclose(m.decode([5], [40])[0], m.prefill([*ids, 5]), rtol=1e-4, atol=1e-4)


def test_rotation_of_a_part_of_each_head(tmp_path: Path):
  """The dims beyond rope_dim stay as they are: with all positions equal they alone must give the same scores."""
  whole = load(SMALL, tmp_path).prefill(TOKENS[:9])
  part = LanguageModel(
    changed(SMALL, tmp_path, llama__rope__dimension_count=4), Layout.parse("1"), cache="f32"
  ).prefill(TOKENS[:9])
  assert np.abs(whole - part).max() > 1e-3
  # one position: nothing turns, so the sizes of what turns do not matter
  a = load(SMALL, tmp_path).prefill(TOKENS[:1])
  b = LanguageModel(changed(SMALL, tmp_path, llama__rope__dimension_count=4), Layout.parse("1"), cache="f32").prefill(
    TOKENS[:1]
  )
  np.testing.assert_allclose(a, b, atol=1e-5)


# ---------------------------------------------------------------- slots, and the cache


@pytest.mark.parametrize(("shard", "cache"), [("1", "f32"), ("2", "f16"), ("2", "q8_0")])
def test_sequences_side_by_side_are_each_alone(shard: str, cache: str, tmp_path: Path):
  """Prompts in any order, decoded together at their own positions, some idle: what each says alone."""
  alone = load(SMALL, tmp_path, shard, cache=cache)
  m = load(SMALL, tmp_path, shard, cache=cache, slots=3)
  lengths, at = {0: 7, 2: 35, 1: 1}, {0: 20, 2: 8, 1: 30}
  said = {slot: TOKENS[at[slot] :] for slot in lengths}
  for slot, n in lengths.items():
    np.testing.assert_allclose(m.prefill(said[slot][:n], 0, slot), alone.prefill(said[slot][:n]), atol=1e-5)
  for busy in ((1,), (0,), (0, 1, 2)):
    tokens = [said[i][lengths[i]] if i in busy else 0 for i in range(3)]
    got = m.decode(tokens, [lengths[i] if i in busy else -1 for i in range(3)])
    assert got.shape == (3, SMALL.vocab) and got.dtype == np.float32
    for i in busy:
      alone.prefill(said[i][: lengths[i]])
      np.testing.assert_allclose(got[i], alone.decode([tokens[i]], [lengths[i]])[0], atol=1e-4)
      lengths[i] += 1
  m.prefill(said[2][:9], 0, 1)
  (other,) = m.decode([0, 0, said[2][lengths[2]]], [-1, -1, lengths[2]])[2:]
  alone.prefill(said[2][: lengths[2]])
  np.testing.assert_allclose(other, alone.decode([said[2][lengths[2]]], [lengths[2]])[0], atol=1e-4)


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2"])
def test_windows_and_sinks_of_sequences_side_by_side(name: str, tmp_path: Path):
  tokens = [token % 128 for token in TOKENS]
  path = write_family_gguf(write_folder(name, tmp_path / name), tmp_path / f"{name}.gguf")
  alone, m = (LanguageModel(opened(path), Layout.parse("1"), cache="f32", slots=n) for n in (1, 2))
  for slot, n in ((0, 30), (1, 3)):
    m.prefill(tokens[:n], 0, slot)
  got = m.decode([tokens[30], tokens[3]], [30, 3])
  for row, n in zip(got, (30, 3)):
    alone.prefill(tokens[:n])
    np.testing.assert_allclose(row, alone.decode([tokens[n]], [n])[0], atol=1e-4)


def test_what_a_cache_keeps(tmp_path: Path):
  """f16 and q8_0 are smaller and a little off, each by what its numbers are rounded by."""
  t = CASES["q8_0_gqa_tied"]
  off, size = {}, {}
  for kind in ("f32", "f16", "q8_0"):
    m = load(t, tmp_path, cache=kind)
    want = GOLDEN[t.name][len(TOKENS) - 1]
    off[kind] = float(np.abs(m.prefill(TOKENS) - want).max() / np.abs(want).max())
    size[kind] = m.layers[0].keys.nbytes
  assert off["f32"] < 1e-5 < off["f16"] < 0.005 < off["q8_0"] < 0.1, off
  assert size["f16"] == size["f32"] / 2 and size["q8_0"] == size["f32"] * (16 + 2) / (16 * 4)
  with pytest.raises(CacheError, match=r"a cache of 'q4' is not known\n  fix: one of f16, f32, q8_0"):
    load(SMALL, tmp_path, cache="q4")


def test_a_long_prompt_in_chunks_of_all_sizes(tmp_path: Path):
  t = replace(SMALL, context=700)
  m = load(t, tmp_path)
  ids = [int(x) for x in np.random.RandomState(3).randint(0, SMALL.vocab, 700)]
  chunks = {8: (1, 8, 9, 16), 32: (17, 32, 33, 64), 128: (65, 128, 200), 512: (257, 511, 512, 700)}
  assert all(m.chunk(n, 0) == size for size, counts in chunks.items() for n in counts)
  assert m.chunk(300, 400) == 128 and m.chunk(100, 650) == 32  # none reaches beyond the cache
  want = m.prefill(ids[:512])
  for i in range(0, 512, 32):
    got = m.prefill(ids[i : i + 32], i)
  np.testing.assert_allclose(got, want, atol=1e-4)
  want = m.prefill(ids)
  np.testing.assert_allclose(m.prefill(ids[512:], 512), want, atol=1e-4)


# ---------------------------------------------------------------- several devices


@pytest.mark.parametrize("shard", SHARDED)
@pytest.mark.parametrize("name", list(CASES))
def test_sharded_logits_agree_with_transformers(name: str, shard: str, tmp_path: Path):
  m, want = load(CASES[name], tmp_path, shard), GOLDEN[name]
  np.testing.assert_allclose(m.prefill(TOKENS[:40]), want[39], atol=1e-3, rtol=0)
  for pos in range(40, len(TOKENS)):
    np.testing.assert_allclose(m.decode([TOKENS[pos]], [pos])[0], want[pos], atol=1e-3, rtol=0)


def assert_same_text_everywhere(path: Path, at_once: int, rounds: int) -> None:
  """64 greedy tokens on 1, 2, 4 and 2x2 devices: other tokens only where two logits are within 1e-4."""
  g = opened(path)
  tokenizer = Tokenizer.from_gguf(g.g)
  models = {s: LanguageModel(g, Layout.parse(s), 160, slots=at_once, cache="f32", exact=True) for s in ["1", *SHARDED]}
  lengths, texts = [], set()
  for first in range(0, at_once * rounds, at_once):
    prompts = PROMPTS[first : first + at_once]
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    said = {s: greedy(m, ids, 64) for s, m in models.items()}
    texts |= {tuple(token for token, _ in text) for text in said["1"]}
    for s in SHARDED:
      for prompt, want, got in zip(prompts, said["1"], said[s], strict=True):
        same = 0
        for (token, logits), (other, _) in zip(want, got, strict=True):
          if token != other:
            gap = np.sort(logits)[-1] - np.sort(logits)[-2]
            assert gap <= 1e-4, f"{prompt!r} on {s}: token {same} is {other}, not {token}; their logits are {gap} apart"
            break
          same += 1
        lengths.append(same)
  assert len(lengths) == 3 * at_once * rounds and np.mean(lengths) > 60  # ties are rare
  assert len(texts) > at_once * rounds / 2


@pytest.mark.parametrize("at_once,rounds", [(len(PROMPTS), 1), (1, 3)])
def test_same_text_on_1_2_4_and_2x2_devices(at_once: int, rounds: int, tmp_path: Path):
  assert_same_text_everywhere(CASES["f16_gqa_llama3_rope"].write(tmp_path / "t.gguf"), at_once, rounds)


@pytest.mark.parametrize("at_once,rounds", [(len(PROMPTS), 1), (1, 3)])
def test_same_text_of_the_embedded_model_on_1_2_4_and_2x2_devices(at_once: int, rounds: int):
  assert_same_text_everywhere(EMBEDDED, at_once, rounds)


def test_the_embedded_model_on_two_devices():
  g = opened(EMBEDDED)
  m = LanguageModel(g, Layout.parse("2"), 64)
  assert m.weight_bytes[0] <= 6_000_000 and m.weight_bytes[1] <= 0.6 * m.weight_bytes[0]
  assert m.collectives_of_step() == {"all_reduce": 2 * m.c.layers + 1}
  assert {t.type.name for t in g.g.tensors.values() if len(t.shape) == 2} == {"Q8_0"}
  for n in (m.c.heads, m.c.kv_heads, m.c.ffn, m.c.vocab):
    assert n % 4 == 0


@pytest.mark.parametrize("name", list(CASES))
def test_two_devices_hold_at_most_0_6_of_the_weights_each(name: str, tmp_path: Path):
  one, two = load(CASES[name], tmp_path), load(CASES[name], tmp_path, "2")
  assert one.weight_bytes[0] == one.weight_bytes[1] == two.weight_bytes[0]
  assert two.weight_bytes[1] <= 0.6 * two.weight_bytes[0]
  assert load(CASES[name], tmp_path, "2x2").weight_bytes[1] <= 0.35 * two.weight_bytes[0]
  size = sum(info.nbytes for n, info in GGUF(tmp_path / f"{name}.gguf").tensors.items() if n != "rope_freqs.weight")
  assert one.weight_bytes[0] == size  # quantised weights stay quantised


def test_weights_and_cache_are_cut_as_said(tmp_path: Path):
  m = load(CASES["q8_0_gqa_tied"], tmp_path, "2")
  cut = {n.split(".")[-2]: b.device.axis for n, w in m.weights.items() for b in memory(w)}
  rows = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
  assert {n: a for n, a in cut.items() if a is not None} == dict.fromkeys(rows, 0) | {"attn_output": 1, "ffn_down": 1}
  assert m.layers[0].keys.parts[0].device.axis == m.layers[0].values.parts[0].device.axis == 1
  assert m.weights["output.weight"] is m.weights["token_embd.weight"]
  w = m.weights["blk.0.ffn_down.weight"]
  (blocks,) = memory(w)
  assert blocks.dtype.name == "uint8" and blocks.shape == (128, 8, 34)
  want = CASES["q8_0_gqa_tied"].rounded()["blk.0.ffn_down.weight"]
  np.testing.assert_array_equal(w.dense.numpy(), want)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("shard", SHARDED)
def test_two_all_reduces_a_layer(name: str, shard: str, tmp_path: Path):
  m = load(CASES[name], tmp_path, shard)
  # one more sum joins the parts of the embedding, of which each token has one that is not zero
  assert m.collectives_of_step() == {"all_reduce": 2 * m.c.layers + 1}
  want = m.prefill(TOKENS[:5])
  m.collectives_of_step()
  np.testing.assert_array_equal(m.prefill(TOKENS[:5]), want)  # to look changed nothing


def test_one_device_needs_no_collective(tmp_path: Path):
  assert not load(SMALL, tmp_path).collectives_of_step()


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("shard", ["1", "2"])
def test_many_layers_have_one_plan_and_one_memory(shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """So neither graphs nor plans nor what a layer needs in between grow with the layers."""
  largest: list[int] = []

  def plan_of(sink: UOp, once: bool = False) -> Any:
    largest.append(len(sink.toposort()))
    return realize.compile_plan_of(sink, once)

  monkeypatch.setattr(realize, "compile_plan_of", realize.plan_of, raising=False)
  monkeypatch.setattr(realize, "plan_of", plan_of)
  found = []
  for layers in (2, 6):
    largest.clear()
    m = load(replace(SMALL, layers=layers), tmp_path, shard)
    for _ in range(2):
      m.prefill([1, 2, 3])
      m.decode([4], [3])
    steps = [step.captured for step in (m.prefill_step, m.decode_step)]
    assert all(step is not None for step in steps)
    work = [w for step in steps if step is not None for w in step.work]
    passing = {id(x) for w in work for x in w.memory if x.passing}
    found.append((max(largest), len({id(w.program) for w in work}), len(passing), len(work)))
  (graph, programs, passing, kernels), more = found
  assert more[:3] == (graph, programs, passing)
  assert more[3] > 2 * kernels


def test_tokens_out_of_range(tmp_path: Path):
  m = load(SMALL, tmp_path)
  for bad in (-1, 288, 1 << 40):
    with pytest.raises(
      TokenError, match=f"token {bad} is not in the vocabulary of 288 tokens\n  fix: pass tokens from 0 to 287"
    ):
      m.prefill([1, bad])
    with pytest.raises(TokenError, match=f"token {bad} is not in"):
      m.decode([bad], [0])[0]
  with pytest.raises(TokenError, match=r"the prompt has no tokens\n  fix: "):
    m.prefill([])


def test_a_full_context(tmp_path: Path):
  m = load(SMALL, tmp_path)
  m.prefill([1] * 64)
  with pytest.raises(ContextError, match=r"65 tokens do not fit into the context of 64\n  fix: a shorter prompt"):
    m.prefill([1] * 65)
  with pytest.raises(ContextError, match="65 tokens do not fit"):
    m.decode([1], [64])[0]
  small = LanguageModel(opened(tmp_path / "small.gguf"), Layout.parse("1"), 8)
  assert small.c.context == 8 and Config.read(opened(tmp_path / "small.gguf"), 1000).context == 64
  with pytest.raises(ContextError, match="9 tokens do not fit into the context of 8"):
    small.prefill([1] * 9)


@pytest.mark.parametrize(
  ("metadata", "match"),
  [
    ({"general__architecture": "gemma"}, "'gemma' is not supported\n  fix: use a model of one of llama, "),
    ({"general__architecture": None}, "'general.architecture': is missing"),
    ({"llama__block_count": None}, "'llama.block_count': is missing"),
    ({"llama__block_count": 0}, "'llama.block_count': 0 is not possible"),
    ({"llama__block_count": 1 << 31}, "2147483648 is not possible"),
    ({"llama__block_count": 2}, "tensor 'blk.1.attn_norm.weight': is missing"),
    (
      {"llama__embedding_length": 64},
      r"tensor 'token_embd.weight' at byte \d+: is \[288, 32\], and the metadata make it \[288, 64\]",
    ),
    (
      {"llama__feed_forward_length": 64},
      r"ffn_gate.weight' at byte \d+: is \[32, 32\], and the metadata make it \[64, 32\]",
    ),
    ({"llama__attention__head_count_kv": 3}, "4 heads are no multiple of 3 kv heads"),
    ({"llama__attention__head_count": "4"}, "'llama.attention.head_count': is a str, not a int"),
    ({"llama__attention__value_length": 16}, "'llama.attention.value_length': is not 8"),
    ({"llama__rope__dimension_count": 10}, "10 of 8 dims"),
    ({"llama__rope__dimension_count": 3}, "3 of 8 dims"),
    ({"llama__rope__freq_base": -1.0}, "cannot rotate"),
    ({"llama__rope__freq_base": float("nan")}, "rope.freq_base': nan is not possible"),
    ({"llama__attention__layer_norm_rms_epsilon": 0.0}, "epsilon': 0.0 is not possible"),
    ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "epsilon': nan is not possible"),
    ({"llama__attention__head_count": True}, "is a bool, not a int"),
    ({"llama__rope__scaling__type": "ntk"}, "'ntk' is not supported; supported are none, linear, yarn, longrope"),
    ({"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 0.0}, "factor': 0.0 is not possible"),
    ({"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": math.inf}, "factor': inf is not"),
    ({"llama__rope__freq_base_swa": 0.5}, "freq_base_swa': 0.5 is not possible"),
    ({"llama__expert_count": 8}, "'llama.expert_used_count': is missing"),
    ({"llama__expert_count": 8, "llama__expert_used_count": 9}, "9 of 8 experts is not possible"),
    (
      {"llama__expert_count": 8, "llama__expert_used_count": 2, "llama__expert_gating_func": 2},
      r"expert_gating_func': 2 is not known; known are \(1, 3\)",
    ),
    (
      {"llama__expert_count": 8, "llama__expert_used_count": 2, "llama__expert_shared_feed_forward_length": -1},
      "expert_shared_feed_forward_length': -1 is not possible",
    ),
    ({"llama__attention__sliding_window": -1}, "sliding_window': -1 is not possible"),
    (
      {"llama__attention__sliding_window": 9, "llama__attention__sliding_window_pattern": [True, False]},
      "sliding_window_pattern': has 2 entries for 1 layers",
    ),
    ({"llama__attention__scale": float("nan")}, "attention.scale': nan is not possible"),
  ],
)
def test_metadata_that_it_refuses(tmp_path: Path, metadata: dict[str, Any], match: str):
  with pytest.raises(GGUFError, match=match):
    LanguageModel(changed(SMALL, tmp_path, **metadata), Layout.parse("1"))


@pytest.mark.parametrize(
  ("tensors", "match"),
  [
    ({"blk.0.attn_q.weight": None}, "tensor 'blk.0.attn_q.weight': is missing"),
    ({"token_embd.weight": None}, "tensor 'token_embd.weight': is missing"),
    ({"blk.0.attn_q_norm.weight": np.zeros(8, np.float32)}, "'blk.0.attn_q_norm.weight': is no part of a llama of 1 l"),
    ({"blk.1.attn_q.weight": np.zeros((32, 32), np.float32)}, "'blk.1.attn_q.weight': is no part of a llama of 1 l"),
    ({"token_embd.weight": np.zeros(32, np.float32)}, r"'token_embd.weight': is \[32\], and no matrix"),
    ({"rope_freqs.weight": np.zeros(4, np.float32)}, "'rope_freqs.weight': cannot divide frequencies"),
    ({"rope_freqs.weight": np.ones(3, np.float32)}, r"'rope_freqs.weight': is \[3\], not \[4\]"),
    ({"output_norm.weight": np.ones((1, 32), np.float32)}, r"is \[1, 32\], and the metadata make it \[32\]"),
  ],
)
def test_tensors_that_it_refuses(tmp_path: Path, tensors: dict[str, Any], match: str):
  with pytest.raises(GGUFError, match=match):
    LanguageModel(changed(SMALL, tmp_path, tensors), Layout.parse("1"))


def test_flipped_bytes_of_a_whole_model_are_a_typed_error_or_load(tmp_path: Path):
  raw, bad, rng, refused = (
    SMALL.write(tmp_path / "m.gguf").read_bytes(),
    tmp_path / "bad.gguf",
    np.random.RandomState(0),
    0,
  )
  header = min(t.offset for t in GGUF(tmp_path / "m.gguf").tensors.values())
  start = raw.index(b"llama.context_length")
  for i in range(400):
    b = bytearray(raw)
    # half of them where the sizes are, half in the vocabulary and the list of tensors
    for at in rng.randint(*((start, start + 600) if i % 2 else (0, header)), size=rng.randint(1, 4)):
      b[at] = rng.randint(256)
    bad.write_bytes(b)
    try:
      g = opened(bad)
      Tokenizer.from_gguf(g.g)
      placed_weights(g)
    except (AppError, GGUFError):
      refused += 1
  assert 100 < refused < 400


def test_linear_scaling_of_positions(tmp_path: Path):
  """Positions divided by 2: a prompt with every token doubled in position is out of reach, so compare the tables."""
  plain = LanguageModel(changed(SMALL, tmp_path), Layout.parse("1"))
  slow = LanguageModel(
    changed(SMALL, tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=2.0), Layout.parse("1")
  )
  (slow_cos, slow_sin), (cos, sin) = ([t.numpy() for t in next(iter(m.turns.values()))] for m in (slow, plain))
  np.testing.assert_allclose(slow_cos[::2], cos[: len(slow_cos[::2])], atol=1e-6)
  np.testing.assert_allclose(slow_sin[2], sin[1], atol=1e-6)


def test_loading_tells_how_far_it_is(tmp_path: Path):
  t = replace(SMALL, name="q", kind="Q8_0")
  seen: list[int] = []
  g = opened(t.write(tmp_path / "q.gguf"))
  LanguageModel(g, Layout.parse("1"), progress=seen.append)
  assert sum(seen) == sum(info.nbytes for info in g.g.tensors.values())


def test_each_device_receives_its_own_slice_only(tmp_path: Path):
  t = CASES["q8_0_gqa_tied"]
  g = opened(t.write(tmp_path / "t.gguf"))
  gc.collect()  # models of other tests
  before, seen = GlobalCounters.mem_used, []
  weights = placed_weights(g, "4", lambda _: seen.append(GlobalCounters.mem_used))
  parts = {b: int(np.prod(b.shape)) * b.dtype.itemsize for w in weights.values() for b in memory(w)}
  columns = sum(n for b, n in parts.items() if b.device.axis == 1)
  # all devices together hold what is cut by columns once, and never held more on the way; the rest lies in the file,
  # each norm once for all of them
  assert GlobalCounters.mem_used - before == columns == max(seen) - before
  for b in parts:
    if b.device.axis != 1:
      at = [b.handle(i).address for i in range(4)]
      assert {n - m for m, n in zip(at, at[1:])} == {0 if b.device.axis is None else b.nbytes_per_device}


def test_one_device_reads_its_weights_where_they_lie(tmp_path: Path):
  """In the mapped file: none is copied, and it stays mapped as long as they are read."""
  g = opened(SMALL.write(tmp_path / "t.gguf"))
  gc.collect()
  before, at = GlobalCounters.mem_used, {name: g.stored(name).blocks.ctypes.data for name in g.shapes}
  weights = placed_weights(g)
  assert GlobalCounters.mem_used == before
  for name, w in weights.items():
    assert [b.handle(0).address for b in memory(w)] == [at[name]]
  want, whole = g.stored("output.weight").blocks[..., 0].copy(), weights.pop("output.weight")
  del g, weights, w
  gc.collect()
  np.testing.assert_array_equal(whole.dense.numpy(), want)
