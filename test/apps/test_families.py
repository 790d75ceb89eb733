"""Every family, from folders and from GGUF files: logits of transformers, several devices, and what is refused."""

from __future__ import annotations

import gc
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import CASES, SEEN, TOKENS, gguf_of, random_sizes, weights, write_family_gguf, write_folder

from extra.write_gguf import write_gguf
from tinygrad import Device, GlobalCounters, P, Sharding, Tensor
from tinygrad.apps.checkpoint import Checkpoint, GGUFCheckpoint
from tinygrad.apps.config import Config
from tinygrad.apps.hugging_face import Folder, FolderError
from tinygrad.apps.layout import Layout
from tinygrad.apps.model import LanguageModel, placements
from tinygrad.apps.models import FAMILIES
from tinygrad.nn.block_formats import FORMATS
from tinygrad.nn.gguf import GGUF
from tinygrad.nn.state import safe_save
from tinygrad.numerics.dots import multiplies_bytes

DATA = Path(__file__).parents[1] / "data"
GOLDEN = np.load(DATA / "family_logits.npz")


def opened(name: str, kind: str, path: Path) -> Checkpoint:
  folder = write_folder(name, path / "model")
  return Folder(folder) if kind == "folder" else GGUFCheckpoint(GGUF(write_family_gguf(folder, path / "m.gguf")))


def whole(source: Checkpoint, shard: str = "1") -> LanguageModel:
  """With a cache of float32, and nothing rounded."""
  return LanguageModel(source, Layout.parse(shard), cache="f32", exact=True)


def worst(m: LanguageModel, want: np.ndarray) -> float:
  """The greatest difference from logits at SEEN, as a part of the greatest logit: prompts of one chunk and of two, and
  decoding; a token in a window's first layer is out of sight of the second token after the window."""
  off = [np.abs(m.prefill(TOKENS[: n + 1]) - want[SEEN.index(n)]).max() for n in SEEN if n < 40]
  for pos in range(40, len(TOKENS)):
    last = m.decode([TOKENS[pos]], [pos])[0]
  return float(max(*off, np.abs(last - want[-1]).max()) / np.abs(want).max())


@pytest.mark.parametrize("name", list(CASES))
def test_logits_of_every_family(name: str, tmp_path: Path):
  assert worst(whole(opened(name, "folder", tmp_path)), GOLDEN[name]) < 1e-4


@pytest.mark.parametrize("name", list(CASES))
def test_logits_of_every_family_in_one_file(name: str, tmp_path: Path):
  """The same model, of other names and other rows: one prompt tells."""
  want = GOLDEN[name][SEEN.index(31)]
  got = whole(opened(name, "gguf", tmp_path)).prefill(TOKENS[:32])
  assert np.abs(got - want).max() < 1e-4 * np.abs(GOLDEN[name]).max()


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3_text", "phi3", "gpt_oss", "olmo2", "qwen2_moe"])
def test_logits_of_families_on_two_devices(name: str, tmp_path: Path):
  m = whole(opened(name, "gguf", tmp_path), "2")
  assert worst(m, GOLDEN[name]) < 1e-4
  assert m.weight_bytes[1] < 0.62 * m.weight_bytes[0]


def greedy(m: LanguageModel, count: int) -> list[int]:
  """So many of the likeliest tokens after a prompt that is longer than the windows. What is told next is each moved on
  by its place, since a model whose embedding is its output matrix would else say one for ever."""
  prompt = [t % m.c.vocab for t in TOKENS[:20]]
  said = [int(m.prefill(prompt).argmax())]
  while (n := len(said)) < count:
    said.append(int(m.decode([(said[-1] + n) % m.c.vocab], [len(prompt) + n - 1])[0].argmax()))
  return said


@pytest.mark.parametrize("name", list(CASES))
def test_same_tokens_on_1_2_4_or_2x2_devices(name: str, tmp_path: Path):
  """Models of random sizes, which do not all divide by the devices; on 4 or 2x2 by the family's place in the list."""
  source = Folder(write_folder(name, tmp_path / "model", **random_sizes(name)))
  four = ("4", "2x2")[list(CASES).index(name) % 2]
  one, two, more = (greedy(whole(source, shard), 16) for shard in ("1", "2", four))
  assert one == two == more
  assert len(set(one)) > 4, "a text of one token would hide what differs"


@pytest.mark.parametrize("name", list(CASES))
def test_same_tokens_where_devices_share_kv_heads(name: str, tmp_path: Path):
  """Fewer kv heads than devices, and one way to place them, by the family's place in the list. No more is reduced than
  with enough."""
  kv, shard = [(1, "2"), (2, "4"), (1, "4"), (2, "2x2"), (1, "2x2")][list(CASES).index(name) % 5]
  sizes = random_sizes(name) | {"num_key_value_heads": kv, "num_attention_heads": 4}
  source = Folder(write_folder(name, tmp_path / "model", **sizes))
  m = whole(source, shard)
  assert greedy(m, 12) == greedy(whole(source), 12)
  assert m.layout.copies == m.layout.count // kv
  norms = kv if m.c.family.query_norm == "all" else 0  # of q, and of k where that is cut
  assert m.collectives_of_step() == {"all_reduce": (2 + norms) * m.c.layers + 1}


ROWS = ("token_embd", "output", "attn_q", "attn_q_norm", "ffn_gate", "ffn_up", "ffn_gate_shexp", "ffn_up_shexp")
OF_KV_HEADS = ("attn_k", "attn_v", "attn_k_norm")


def is_cut_along(name: str, c: Config) -> int | None:
  """The table in docs/llm.md."""
  *_, short, kind = name.split(".")
  if short in ("attn_q_norm", "attn_k_norm"):
    return 0 if c.family.query_norm == "all" else None
  if short in (*ROWS, *OF_KV_HEADS, "attn_sinks"):
    return 0
  if short in ("ffn_gate_exps", "ffn_up_exps"):
    return 1
  if kind == "weight" and short in ("attn_output", "ffn_down", "ffn_down_shexp", "ffn_down_exps"):
    return 2 if short.endswith("exps") else 1
  return None


@pytest.mark.parametrize("name", list(CASES))
def test_hints_place_weights_and_caches_as_is_said(name: str, tmp_path: Path):
  """With kv heads for all devices, and with fewer; each cut has its reason, on a line of the model."""
  for shard, kv in (("2", 4), ("2x2", 4), ("4", 2)):
    sizes = {"num_key_value_heads": kv, "num_attention_heads": 4}
    folder = write_folder(name, tmp_path / f"{shard} {kv}", **random_sizes(name) | sizes)
    c = Config.read(Folder(folder))
    layout = Layout.parse(shard).for_heads(kv)
    found = placements(c, layout).found
    for w, (at, why) in found.items():
      dim = 1 if w in ("keys", "values") else is_cut_along(w, c)
      shared = w in ("keys", "values") or w.split(".")[-2] in OF_KV_HEADS
      want = P() if dim is None else layout.cut(dim, kv=shared)
      assert at == Sharding(layout.where, want), f"{w} on {shard}"
      assert [r.dim for r in why] == [i for i in range(4) if at.cut(i)]
      assert all("constrain(" in r.line and r.line.startswith("model.py:") for r in why)


def test_without_a_hint_nothing_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """It is the hints that decide: neither names nor shapes do."""
  monkeypatch.setattr(Layout, "cut", lambda self, dim, kv=False: P(None, None, "tp") if kv else P(None))
  c = Config.read(Folder(write_folder("qwen3", tmp_path / "model")))
  found = placements(c, Layout.parse("2")).found
  cut = {name.split(".")[-2] if "." in name else name for name, (at, _) in found.items() if at.used}
  assert cut == {"attn_k", "attn_v", "keys", "values"}


@pytest.mark.parametrize(("kv", "heads", "shard"), [(3, 3, "2"), (2, 6, "4"), (3, 6, "2x2"), (1, 3, "2"), (6, 6, "4")])
def test_same_tokens_where_heads_do_not_divide(kv: int, heads: int, shard: str, tmp_path: Path):
  sizes = {"num_key_value_heads": kv, "num_attention_heads": heads}
  source = Folder(write_folder("qwen3", tmp_path / "model", **sizes))
  assert greedy(whole(source, shard), 12) == greedy(whole(source), 12)


@pytest.mark.parametrize(("name", "shard"), [("qwen3", "1"), ("mistral", "2"), ("gpt_oss", "1")])
def test_states_are_those_that_transformers_makes_logits_of(name: str, shard: str, tmp_path: Path):
  """In one chunk and in two, in a slot that is not the first, which a text held before."""
  source = Folder(write_folder(name, tmp_path / "model"))
  m = LanguageModel(source, Layout.parse(shard), slots=2, cache="f32")
  m.prefill([1, 2, 3], 0, 1)
  output = weights(name)["lm_head.weight"]
  pieces = np.concatenate([m.embed(TOKENS[:20], 0, 1), m.embed(TOKENS[20:], 20, 1)])
  for states in (m.embed(TOKENS), pieces):
    assert states.shape == (len(TOKENS), 64)
    off = np.abs(states[list(SEEN)] @ output.T - GOLDEN[name]).max()
    assert off < 1e-4 * np.abs(GOLDEN[name]).max()


def test_cases_have_every_family():
  types = {name.split("-")[0] for name in CASES}
  for family in FAMILIES.values():
    assert types & set(family.model_types), family.names


def changed(name: str, path: Path, weight: str | None = None, **fields: Any) -> Folder:
  """The folder of `name` with fields of config.json changed or removed (None), or without a weight."""
  folder = write_folder(name, path / "model")
  c = json.loads((folder / "config.json").read_text()) | fields
  (folder / "config.json").write_text(json.dumps({k: v for k, v in c.items() if v is not None}))
  if weight is not None:
    for f in folder.glob("*.safetensors"):
      f.unlink()
    (folder / "model.safetensors.index.json").unlink()
    kept = {k: Tensor(x) for k, x in weights(name).items() if k != weight}
    safe_save(kept, folder / "model.safetensors")
  return Folder(folder)


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("mistral", {"sliding_window": 160}),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),
    ("qwen2-yarn", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    ("phi3-long", {"original_max_position_embeddings": 200}),
    ("gemma2", {"attn_logit_softcapping": 50.0}),
    ("gemma2", {"query_pre_attn_scalar": 16}),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
    ("granite", {"residual_multiplier": 1.0}),
    ("granite", {"embedding_multiplier": 1.0}),
    ("granite", {"logits_scaling": 1.0}),
    ("qwen3_moe", {"norm_topk_prob": False}),
    ("qwen3_moe", {"num_experts_per_tok": 1}),
    ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"]}),
  ],
)
def test_golden_logits_know_what_config_says(name: str, fields: dict[str, Any], tmp_path: Path):
  """Each of these fields matters: with another value the logits are others."""
  if "original_max_position_embeddings" in fields:
    rope = CASES[name]["rope_parameters"] | fields
    fields = {**fields, "rope_parameters": rope}
  assert worst(whole(changed(name, tmp_path, **fields)), GOLDEN[name]) > 1e-3


def test_older_fields_mean_the_same(tmp_path: Path):
  """Before version 5, transformers wrote rope_theta, rope_scaling, rope_local_base_freq and sliding_window_pattern."""
  old = {
    "rope_parameters": None, "layer_types": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "rope_scaling": {"type": "linear", "factor": 8.0}, "sliding_window_pattern": 3,
  }  # fmt: skip
  assert worst(whole(changed("gemma3_text", tmp_path, **old)), GOLDEN["gemma3_text"]) < 1e-4


def test_the_part_of_a_seeing_model_that_reads(tmp_path: Path):
  folder = write_folder("gemma3_text", tmp_path / "model")
  text = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
  for f in (*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"):
    f.unlink()
  seeing = {f"language_model.{k}": Tensor(x) for k, x in weights("gemma3_text").items()}
  safe_save(seeing | {"vision_tower.w": Tensor([1.0])}, folder / "model.safetensors")
  assert worst(whole(Folder(folder)), GOLDEN["gemma3_text"]) < 1e-4


@pytest.mark.parametrize("name", list(CASES))
def test_gguf_names_are_those_of_the_gguf_package(name: str, tmp_path: Path):
  metadata, tensors = gguf_of(write_folder(name, tmp_path / "model"))
  arch = metadata["general.architecture"]
  number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
  known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[number]}
  for t in tensors:
    plain = ".".join("{bid}" if part.isdigit() else part for part in t.split(".")[:-1])
    # biases of attention in olmoe's and qwen3's files are allowed by llama.cpp, too; these names are all lists'
    assert plain in known, t
  keys = [v for group in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope) for v in vars(group).values()]
  own = {k.replace("{arch}", arch) for k in keys if isinstance(k, str)}
  assert set(metadata) <= own | {"general.architecture"}


# ---------------------------------------------------------------- quantised weights


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16")  # what the gguf package makes
OTHERS = {"Q2_K": 1.5, "Q3_K": 0, "Q4_K": 7.5, "Q5_K": 15.5, "Q6_K": 0, "IQ4_NL": 0, "IQ4_XS": 0, "MXFP4": 0}
WIDE = {"hidden_size": 512, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 8}


def random_blocks(t: str, kind: str, x: np.ndarray) -> np.ndarray:
  """Random bytes, with scales by which the values are as large as those of x, and about as often below 0 as above:
  a minimum that is taken away is the middle of the numbers, `OTHERS`, times the scale."""
  form, number, random = FORMATS[kind], gguf.GGMLQuantizationType[kind], np.random.RandomState(zlib.crc32(t.encode()))
  blocks = random.randint(0, 256, (*x.shape[:-1], x.shape[-1] // form.weights, form.nbytes)).astype(np.uint8)
  fields = np.dtype([(str(i), kind, (n,)) for i, (kind, n) in enumerate(form.fields)])
  scales = [str(i) for i, (kind, n) in enumerate(form.fields) if (kind, n) == ("<f2", 1)]
  if kind == "MXFP4":
    blocks[..., 0] = random.randint(122, 126, blocks.shape[:-1])

  def with_scale(d: float) -> np.ndarray:
    for i, name in enumerate(scales):
      blocks.view(fields)[name] = d * (OTHERS[kind] if i else 1)
    return blocks.reshape(*x.shape[:-1], -1)

  size = gguf.quants.dequantize(with_scale(1.0), number).std()
  return with_scale(float(x.std() / size))


def quantised(name: str, kind: str, path: Path, **sizes: Any) -> tuple[GGUFCheckpoint, dict[str, np.ndarray]]:
  """A file whose matrices are random blocks of a format, and their values by the gguf package."""
  metadata, tensors = gguf_of(write_folder(name, path / "model", **sizes))
  form, number = FORMATS[kind], gguf.GGMLQuantizationType[kind]
  writer = gguf.GGUFWriter(path / "q.gguf", metadata.pop("general.architecture"))
  kinds = {int: "UINT32", float: "FLOAT32", bool: "BOOL", list: "ARRAY"}
  for key, value in metadata.items():
    writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
  values = {}
  for t, x in tensors.items():
    if x.ndim > 1 and x.shape[-1] % form.weights == 0:
      raw = gguf.quants.quantize(x, number) if kind in QUANTISED else random_blocks(t, kind, x)
      writer.add_tensor(t, raw, raw_dtype=number)
      values[t] = gguf.quants.dequantize(raw, number)
    else:
      writer.add_tensor(t, x)
      values[t] = x
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return GGUFCheckpoint(GGUF(path / "q.gguf")), values


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("name", ["qwen3", "mixtral", "phi3"])
def test_quantised_weights_are_their_floats(name: str, kind: str, tmp_path: Path):
  source, values = quantised(name, kind, tmp_path)
  write_gguf(tmp_path / "f.gguf", source.metadata, values)
  want = whole(GGUFCheckpoint(GGUF(tmp_path / "f.gguf"))).prefill(TOKENS[:32])
  m = whole(source)
  np.testing.assert_allclose(m.prefill(TOKENS[:32]), want, atol=1e-4 * np.abs(want).max())
  assert m.weight_bytes[0] == sum(t.nbytes for t in source.g.tensors.values())


@pytest.mark.parametrize(
  ("kind", "name", "shard"), [(kind, *(("qwen3", "2"), ("mixtral", "1"))[i % 2]) for i, kind in enumerate(OTHERS)]
)
def test_weights_in_larger_blocks_are_their_floats(name: str, shard: str, kind: str, tmp_path: Path):
  """Blocks of 256 weights, and of 16 values that are no even steps: prompt and decoding."""
  source, values = quantised(name, kind, tmp_path, **WIDE)
  assert {t.type.name for t in source.g.tensors.values()} == {kind, "F32"}
  write_gguf(tmp_path / "f.gguf", source.metadata, values)
  floats, m = whole(GGUFCheckpoint(GGUF(tmp_path / "f.gguf"))), whole(source, shard)
  for want, got in (
    (floats.prefill(TOKENS[:32]), m.prefill(TOKENS[:32])),
    (floats.decode([5], [32]), m.decode([5], [32])),
  ):
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
  assert m.weight_bytes[0] == sum(t.nbytes for t in source.g.tensors.values())


@pytest.mark.parametrize("kind", ["MXFP4", "IQ4_NL"])
def test_steps_leave_no_tensors_to_the_garbage_collector(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """A tensor in a circle of references lives on, and what it reads is computed before the cache is written again."""
  m = whole(quantised("mixtral", kind, tmp_path, **WIDE)[0])
  monkeypatch.setattr(gc, "collect", lambda *_: 0)
  gc.disable()
  try:
    m.prefill(TOKENS[:40])  # chunks at two positions
    m.decode([5], [40])
  finally:
    gc.enable()


@pytest.mark.skipif(
  not multiplies_bytes(Device["CPU"].target), reason="this processor has no products of bytes (VNNI, AVX2)"
)
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_rounded_activations_change_less_than_rounded_weights(name: str, kind: str, tmp_path: Path):
  """Decoding: beside what a format does to the logits, activations of 8 bits do little; with `exact` nothing."""
  source, _ = quantised(name, kind, tmp_path)
  folder = whole(Folder(write_folder(name, tmp_path / "floats")))
  exact, rounded = whole(source), LanguageModel(source, Layout.parse("1"), cache="f32")
  floats, want, got = (
    np.concatenate([m.decode([t], [i]) for i, t in enumerate(TOKENS[:6])]) for m in (folder, exact, rounded)
  )
  assert 0 < (got - want).std() < {"Q4_0": 0.3, "Q8_0": 1.5}[kind] * (want - floats).std()
  again = whole(source)
  np.testing.assert_array_equal(again.decode([TOKENS[0]], [0])[0], want[0])


@pytest.mark.parametrize("exact", [True, False])
def test_a_step_makes_no_float_copy_of_a_weight(exact: bool, tmp_path: Path):
  source, values = quantised("mixtral", "Q4_0", tmp_path)
  m = LanguageModel(source, Layout.parse("1"), exact=exact)
  before = GlobalCounters.mem_used
  m.decode([1], [0])[0]
  m.decode([1], [1])[0]
  largest = max(x.nbytes for x in values.values() if x.ndim > 1)
  made = GlobalCounters.mem_used - before
  assert made < largest / 2, (made, largest)


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("qwen3", {"model_type": "bert"}, "model_type: 'bert' is not supported\n  fix: use one of llama, "),
    ("qwen3", {"model_type": None}, "model_type: 'None' is not supported"),
    ("qwen3", {"hidden_act": "relu"}, "config.json: hidden_act: 'relu' is not this family's"),
    ("qwen3", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config: 'gptq' is not supported"),
    ("qwen3", {"rope_scaling": {"rope_type": "dynamic"}, "rope_parameters": None}, "rope_type: 'dynamic' is not"),
    ("qwen3", {"num_hidden_layers": None}, "'qwen3.block_count': is missing"),
    ("qwen3", {"num_hidden_layers": 1 << 40}, "num_hidden_layers: 1099511627776 is not possible"),
    ("qwen3", {"hidden_size": None}, "'qwen3.embedding_length': is missing"),
    ("qwen3", {"num_hidden_layers": 3}, r"tensor 'blk.2.attn_norm.weight': is missing"),
    ("qwen3", {"num_hidden_layers": "2"}, "'qwen3.block_count': is a str, not a int"),
    ("qwen3", {"hidden_size": [64]}, "'qwen3.embedding_length': is a list, not a int"),
    ("qwen3", {"hidden_size": 32}, r"'token_embd.weight': is \[128, 64\], and the metadata make it \[128, 32\]"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\] is not supported"),
    ("qwen3_moe", {"num_experts": 5}, r"ffn_gate_inp.weight': is \[4, 64\], and the metadata make it \[5, 64\]"),
    ("qwen3", {"num_experts": 5}, "'qwen3.expert_count': models of this family have no experts"),
    (
      "gemma3_text",
      {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
      "rope_parameters: sliding layers stretch",
    ),
  ],
)
def test_configs_that_it_refuses(name: str, fields: dict[str, Any], match: str, tmp_path: Path):
  with pytest.raises(FolderError, match=match):
    whole(changed(name, tmp_path, **fields))


def test_folders_that_it_refuses(tmp_path: Path):
  def refused(match: str) -> None:
    with pytest.raises(FolderError, match=match):
      whole(Folder(tmp_path / "model"))

  folder = write_folder("qwen3", tmp_path / "model")
  index = folder / "model.safetensors.index.json"
  whole = json.loads(index.read_text())
  index.write_text(json.dumps({"weight_map": {"x": "../other.safetensors"}}))
  refused("names something else than files of the folder")
  index.write_text(json.dumps({"weight_map": {"x": "none.safetensors"}}))
  refused("none.safetensors: is missing")
  index.write_text(json.dumps({"weight_map": 5}))
  refused("weight_map: is no JSON object")
  index.write_text("[]")
  refused("index.json: is no JSON object")
  index.write_text("{")
  refused("index.json: cannot be read")
  index.write_text(json.dumps(whole))
  (folder / "config.json").unlink()
  refused("config.json: cannot be read")


def test_weights_that_it_refuses(tmp_path: Path):
  with pytest.raises(FolderError, match="tensor 'output_norm.weight': is missing"):
    whole(changed("qwen3", tmp_path, "model.norm.weight"))
  safe_save({"model.layers.0.odd.weight": Tensor([1.0])}, tmp_path / "model" / "odd.safetensors")
  with pytest.raises(FolderError, match="'model.layers.0.odd.weight': is no part of this family"):
    Folder(tmp_path / "model")
  for f in (tmp_path / "model").glob("*.safetensors"):
    f.unlink()
  with pytest.raises(FolderError, match="there is no .safetensors file"):
    Folder(tmp_path / "model")
  found = {k: Tensor(x) for k, x in weights("qwen3").items()}
  safe_save(found | {"model.norm.weight": Tensor.ones(64).cast("int32")}, tmp_path / "model" / "m.safetensors")
  with pytest.raises(FolderError, match="'output_norm.weight': is int32\n  fix: convert it to float32"):
    whole(Folder(tmp_path / "model"))


def test_experts_that_are_missing(tmp_path: Path):
  with pytest.raises(FolderError, match="'blk.1.ffn_up_exps.weight': experts are missing, or are of several shapes"):
    changed("qwen3_moe", tmp_path, "model.layers.1.mlp.experts.2.up_proj.weight")


# ---------------------------------------------------------------- against other programs


@pytest.mark.parametrize("name", list(CASES))
def test_golden_logits_of_families_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch):
  pytest.importorskip("transformers", reason="needs the extra [oracle]")
  monkeypatch.setattr(sys, "path", [str(DATA), *sys.path])
  from make_family_logits import family_logits

  np.testing.assert_allclose(family_logits(name), GOLDEN[name], atol=1e-4, rtol=0)


def test_a_description_is_short():
  for file in (Path(__file__).parents[2] / "tinygrad" / "apps" / "models").glob("*.py"):
    if file.name != "family.py":
      assert len(file.read_text().splitlines()) < 60, file.name


def test_config_of_a_layer(tmp_path: Path):
  c = Config.read(opened("gemma3_text", "folder", tmp_path))
  assert [k.window for k in c.kinds] == [9, 9, None] and c.kinds[0].rope != c.kinds[2].rope
