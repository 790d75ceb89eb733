"""Models with a value that is something else: `python -m extra.fuzz_models --seconds 60`.

`extra/fuzz_files.py` damages bytes, and a byte seldom makes another value of a field. Here a value of a small model's
metadata (a GGUF file), or of one of the JSON files of a folder, becomes another kind of thing, extreme, empty, or is
gone; and the model is read as the program does, up to its weights, its tokens of a text and its chat template. It must
be a typed error that names the file and a way out, or a model.
"""

from __future__ import annotations

import copy
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extra.fuzz_files import WATCHED, Wrong, hangs, parser_of, seeds_of, told
from extra.write_gguf import write_gguf
from tinygrad import Tensor
from tinygrad.apps import AppError
from tinygrad.apps.checkpoint import Checkpoint, GGUFCheckpoint
from tinygrad.apps.config import Config
from tinygrad.apps.hugging_face import Folder
from tinygrad.apps.layout import Layout
from tinygrad.apps.model import load_weights, placements
from tinygrad.apps.server.tools import call_syntax
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.gguf import GGUF, GGUFError
from tinygrad.nn.state import safe_save

TYPED = (AppError, CheckpointError, GGUFError)
ODD: list[Any] = [None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 62, (1 << 64) - 1, 0.5, -1.0, 1e300, float("nan"), "",
                  "x", "../x", "..", "/etc/passwd", "\x00", "{{ 1 // 0 }}", [], ["x"], [[]], [None], [-1], [0.5] * 3,
                  {}, {"x": 1}, {"type": "x"}, {"rope_type": "yarn"}, "default", "yarn", "llama3"]  # fmt: skip


class AfterReading(AppError):
  """What is wrong with a tokenizer or a template shows when it is used: whoever reads that knows the model."""


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DIM, VOCAB, FFN = 16, 270, 24


def values() -> tuple[list[str], dict[str, np.ndarray]]:
  """(the tokens, the weights by their names in a GGUF file) of a llama of one layer"""
  printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
  tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
  tokens += ["he", "ll", "<s>", "</s>"] + [f"<{i}>" for i in range(VOCAB - 260)]
  shapes = {"token_embd": (VOCAB, DIM), "output_norm": (DIM,)}
  layer = {"attn_norm": (DIM,), "ffn_norm": (DIM,), "attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM),
           "attn_output": (DIM, DIM), "ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM), "ffn_down": (DIM, FFN)}  # fmt: skip
  shapes |= {f"blk.0.{name}": shape for name, shape in layer.items()}
  return tokens, {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}


def metadata() -> dict[str, Any]:
  tokens, _ = values()
  sizes = {"context_length": 64, "embedding_length": DIM, "block_count": 1, "feed_forward_length": FFN,
           "attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": 8,
           "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 8, "rope.freq_base": 1e4,
           "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "attention.sliding_window": 8,
           "rope.scaling.original_context_length": 32, "expert_count": 0, "pooling_type": 1}  # fmt: skip
  text = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1] * 258 + [3] * (VOCAB - 258),
          "merges": ["h e", "l l"], "bos_token_id": 258, "eos_token_id": 259, "add_bos_token": True,
          "scores": [0.0] * VOCAB, "precompiled_charsmap": [0], "add_space_prefix": True}  # fmt: skip
  general = {"general.architecture": "llama", "general.alignment": 32, "tokenizer.chat_template": TEMPLATE}
  sized = {f"llama.{k}": v for k, v in sizes.items()}
  return general | sized | {f"tokenizer.ggml.{k}": v for k, v in text.items()}


def folder_files() -> dict[str, Any]:
  """The JSON files of a folder."""
  tokens, _ = values()
  habits = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
  special = [{"id": i, "content": tokens[i], "special": True} | habits for i in (258, 259)]
  byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
  config = {
    "model_type": "llama", "hidden_size": DIM, "num_hidden_layers": 1, "intermediate_size": FFN,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True, "vocab_size": VOCAB, "text_config": {},
    "sliding_window": 8, "layer_types": ["sliding_attention"], "use_sliding_window": True, "query_pre_attn_scalar": 8,
    "rope_theta": 1e4, "partial_rotary_factor": 1.0, "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 32},
    "rope_parameters": {"rope_theta": 1e4}, "num_experts_per_tok": 1, "num_experts": 0,
  }  # fmt: skip
  files = {
    "config.json": config,
    "model.safetensors.index.json": {"metadata": {}, "weight_map": dict.fromkeys(values()[1], "a.safetensors")},
    "tokenizer.json": {
      "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
      "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
      "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": ["h e", "l l"]},
    },
    "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE},
    "generation_config.json": {"eos_token_id": [259]},
  }  # fmt: skip
  return files


NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip


def write_weights(folder: Path) -> None:
  tensors = {}
  for name, x in values()[1].items():
    *layer, short, kind = name.split(".")
    tensors[".".join(["model", *(["layers", "0"] if layer else []), NAMES[short], kind])] = Tensor(x)
  safe_save(tensors, folder / "a.safetensors")


def changed(draw: random.Random, value: Any) -> Any:
  """One value anywhere in it is another one, or gone. A long list or dict is as likely as each of its values."""
  places = list(paths(value))
  at = draw.choice([p for p in places if len(p) < 3 or draw.random() < 0.02] or places)
  if not at:
    return draw.choice(ODD)
  value = copy.deepcopy(value)
  inner = value
  for step in at[:-1]:
    inner = inner[step]
  match draw.randrange(8):
    case 0:
      del inner[at[-1]]
    case 1 if type(inner[at[-1]]) in (int, float):
      inner[at[-1]] *= draw.choice([-1, 2, 1 << 20, 1 << 40])
    case 2 if isinstance(inner[at[-1]], list):
      inner[at[-1]] = inner[at[-1]][draw.randrange(2) :: draw.choice([1, 2])] * draw.choice([1, 2])
    case _:
      inner[at[-1]] = draw.choice(ODD)
  return value


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
  yield at
  for k, v in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
    yield from paths(v, (*at, k))


def read_model(path: Path) -> None:
  """As the program does."""
  source: Checkpoint
  if path.is_dir():
    source, tokenizer = Folder(path), Tokenizer.from_folder(path)
  else:
    g = GGUF(path)
    source, tokenizer = GGUFCheckpoint(g), Tokenizer.from_gguf(g)
  c, layout = Config.read(source), Layout.parse("1")
  load_weights(source, c, layout, placements(c, layout))
  try:
    call_syntax(tokenizer.template)
    tokenizer.decode(tokenizer.encode("hello größe <s> {}"))
    if tokenizer.template is not None:
      tokenizer.chat([{"role": "user", "content": "hello"}], tools=[])
  except AppError as e:
    raise AfterReading(str(e)) from e


@dataclass(frozen=True, slots=True)
class Case:
  name: str
  write: Callable[[random.Random, Path], Path]


def write_gguf_case(draw: random.Random, folder: Path) -> Path:
  m = metadata()
  for _ in range(draw.choice([1, 1, 2, 3])):
    m = changed(draw, m)
    if not isinstance(m, dict):
      m = metadata()
  path = folder / "model.gguf"
  write_gguf(path, m, values()[1])
  return path


def json_case(name: str) -> Callable[[random.Random, Path], Path]:
  def write(draw: random.Random, folder: Path) -> Path:
    files = folder_files()
    for _ in range(draw.choice([1, 1, 2, 3])):
      files[name] = changed(draw, files[name])
    path = folder / "model"
    path.mkdir(exist_ok=True)
    if not (path / "a.safetensors").exists():
      write_weights(path)
    for file, value in files.items():
      (path / file).write_text(json.dumps(value))
    return path

  return write


CASES = [Case("gguf", write_gguf_case), *(Case(name, json_case(name)) for name in folder_files())]


def fuzz(seeds: Iterator[int], keep_on: bool = False) -> tuple[Counter[str], list[tuple[int, str]]]:
  """(how models ended, [(seed, what is wrong)])"""
  ended, wrong = Counter[str](), list[tuple[int, str]]()
  before = signal.signal(signal.SIGALRM, hangs)
  try:
    with tempfile.TemporaryDirectory() as temporary:
      for seed in seeds:
        case, draw = CASES[seed % len(CASES)], random.Random(seed)
        try:
          path = case.write(draw, Path(temporary))
        except (TypeError, ValueError, OverflowError, KeyError, AttributeError, IndexError):
          ended["cannot be written"] += 1  # as a list of several kinds in a GGUF file
          continue
        signal.alarm(WATCHED)
        try:
          read_model(path)
          ended["read"] += 1
        except TYPED as e:
          ended["error"] += 1
          if "fix: " not in str(e) or (path.name not in str(e) and not isinstance(e, AfterReading)):
            wrong.append((seed, f"{case.name}: no file, or no fix: {e}"))
        except (Exception, Wrong) as e:
          wrong.append((seed, f"{case.name}: {type(e).__name__}: {e}"))
        finally:
          signal.alarm(0)
        if wrong and not keep_on:
          break
  finally:
    signal.signal(signal.SIGALRM, before)
  return ended, wrong


def main(argv: list[str] | None = None) -> int:
  args = parser_of(__doc__).parse_args(argv)
  ended, wrong = fuzz(seeds_of(args), args.keep_on)
  return told(wrong, f"{ended.total() + len(wrong)} models from seed {args.seed}: {dict(ended)}")


if __name__ == "__main__":
  sys.exit(main())
