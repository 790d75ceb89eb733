"""Text to tokens and back by the tokenizer that a file carries: byte-level BPE ("gpt2") and those of folders through
`tokenizers`, SentencePiece ("llama", "t5") by `apps/pieces.py`."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinygrad.apps import AppError
from tinygrad.apps.pieces import BPE, SPACE, Charsmap, CharsmapError, Habits, Pieces, TokenType, Unigram
from tinygrad.apps.template import rendered
from tinygrad.nn.gguf import GGUF

KINDS: dict[str, type[Pieces]] = {"llama": BPE, "t5": Unigram}  # of SentencePiece, by tokenizer.ggml.model
UNKNOWN_TEXT = " \u2047 ".encode()  # SentencePiece's text of what it does not know
MOST_GAPS = 1 << 16  # numbers that no token has
MARK = "\ufdd0"  # within what is spelled like a control token and is text; for a program's own use, says Unicode
SPACES = r"\s+(?!\S)|\s+"
LINES = rf"\s*[\r\n]+|{SPACES}"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?"  # and what begins one
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SIGNS = r" ?[^\s\p{L}\p{N}]+"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{SIGNS}|{SPACES}"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{LINES}"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = rf"{CONTRACTIONS}|{WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}"
SEED = QWEN2.replace(rf"{SIGNS}[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
CASED = rf"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\p{{N}}|{SIGNS}[\r\n/]*|{LINES}"
O200K = rf"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?|" + (
  rf"\p{{N}}{{1,3}}|{SIGNS}[\r\n/]*|{LINES}"
)
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|""" + (
  rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES}"
)
# Kimi's: letters but Han's, by case, and Han's apart.
UPPER_KIMI, LOWER_KIMI = (rf"{x[:-1]}&&[^\p{{Han}}]]" for x in (UPPER, LOWER))
KIMI = (
  rf"[\p{{Han}}]+|{WORD}{UPPER_KIMI}*{LOWER_KIMI}+{CONTRACTIONS}?|{WORD}{UPPER_KIMI}+{LOWER_KIMI}*{CONTRACTIONS}?|"
  + (rf"\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{LINES}")
)
JAIS2 = LLAMA3.replace(SPACES, "|".join(rf"\s{{{1 << i}}}(?!\S)" for i in range(9, -1, -1)))
WORDS = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"  # in a row
EXAONE_MOE = rf"{CONTRACTIONS}|{WORD}{WORDS}|\p{{N}}|{SIGNS}[\r\n/]?|{LINES}"
YOUTU_WORDS = rf"{WORD}[\p{{L}}\p{{M}}]+{CONTRACTIONS}?|\p{{N}}|{SIGNS}[\r\n/]*|{LINES}"
THOUSANDS = r"\d{1,3}(?=(?:\d{3})*\b)"
YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
AFMOE = (
  "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-⿟"
  "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f가-\ud7af\u1100-\u11ff]+"
)
DEEPSEEK_SIGNS = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
DEEPSEEK_LLM = (
  r"[\r\n]",
  r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
  DEEPSEEK_SIGNS,
  r"\s+$",
  "[一-龥ࠀ-一가-\ud7ff]+",
  r"\p{N}+",
)
CHAMELEON = (
  r"<sentinel:[0-9]+>",
  r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
  r"([\t\n]|    |  )",
  r"\p{N}",
  r"[\p{P}!-/:-@\[-`{-~]",
  GPT2,
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Those that begin with BOS and take a word that is a token as it is.
LLAMA3_LIKE = (
  "llama-bpe",
  "llama3",
  "llama-v3",
  "falcon3",
  "falcon-h1",
  "pixtral",
  "midm-2.0",
  "lfm2",
  "tekken",
  "jina-v5-nano",
)
WITH_BOS = (*LLAMA3_LIKE, "chameleon")

# How text is split before merging, by the names that tokenizer.ggml.pre has for it: regexes in order, each applied to
# the pieces of the last.
SPLITS: dict[str, tuple[str, ...]] = {
  "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]"),
  **dict.fromkeys((*LLAMA3_LIKE, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe", "minicpm5"), (LLAMA3,)),
  **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es",
                   "jina-v2-de", "jina-v2-code", "gigachat", "roberta-bpe", "exaone4", "trillion", "granite-docling",
                   "a.x-4.0", "mellum", "modern-bert"), (GPT2,)),
  **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
                   "mellum2"),
                  (r"\p{N}", GPT2)),
  **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "megrez", "deepseek-r1-qwen", "bailingmoe", "bailingmoe2",
                   "llada-moe", "grok-2", "solar-open", "kormo", "f2llmv2"), (QWEN2,)),
  **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), (BLOOM,)),
  **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"),
                  (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3)),
  **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie",
                   "granite-embed-multi-97m"), (O200K,)),
  "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
  "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
  "viking": (BLOOM, r"\p{N}"), "tekken": (CASED,), "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
  **dict.fromkeys(("tiny_aya", "cohere2moe"), (THOUSANDS, O200K)),
  "deepseek-llm": DEEPSEEK_LLM, "chameleon": CHAMELEON, "kimi-k2": (KIMI,), "jais-2": (JAIS2,),
  "exaone-moe": (EXAONE_MOE,), "youtu": (YOUTU, YOUTU_WORDS), "laguna": (r"\n+", SEED),
  "afmoe": (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE, DEEPSEEK3),
  "qwen35": (QWEN35,), "seed-coder": (SEED,),
}  # fmt: skip


class TokenError(AppError):
  """A token that the vocabulary does not hold: names the token, the vocabulary's size, and a fix."""


def check_tokens(ids: Sequence[int], vocab: int) -> None:
  """Raises TokenError unless every token is in the vocabulary."""
  for i in ids:
    if not 0 <= i < vocab:
      fix = f"pass tokens from 0 to {vocab - 1}, as this file's own tokenizer makes them"
      raise TokenError(f"token {i} is not in the vocabulary of {vocab} tokens\n  fix: {fix}")


def check_unicode(text: str) -> None:
  """Raises TokenError for text that holds half of a surrogate pair."""
  try:
    text.encode()
  except UnicodeEncodeError as e:
    problem = f"the text is no UTF-8: {text[e.start]!r} at character {e.start}"
    raise TokenError(f"{problem}\n  fix: convert it first, as by iconv -f latin1 -t utf-8") from e


@dataclass(frozen=True, slots=True)
class Tokenizer:
  """`encode` text to token numbers, `decode` numbers to text; `TextStream` for text as it is generated.

  `names[i]` is the spelling of token i in the file, `pieces[i]` the bytes of its text; control tokens have none.
  `drops_space`: a space that begins a text is the tokenizer's own. `control`: how control tokens are spelled.
  """

  names: tuple[str, ...]
  encoder: Any  # tokenizers.Tokenizer, or Pieces
  bos: int | None
  ends: frozenset[int]
  add_bos: bool
  template: str | None
  pieces: tuple[bytes, ...]
  drops_space: bool = False
  control: frozenset[str] = field(init=False)

  def __post_init__(self) -> None:
    names = [name for name, piece in zip(self.names, self.pieces) if not piece and len(name) > 1]
    object.__setattr__(self, "control", frozenset(names) | {name.replace(SPACE, " ") for name in names})

  @staticmethod
  def from_gguf(g: GGUF) -> Tokenizer:
    """Raises GGUFError for a tokenizer of another kind, or one whose parts do not fit together."""
    model, names, types = _vocabulary(g)
    pre = g.get("tokenizer.ggml.pre", str, "default")
    if model in KINDS:
      encoder: Any = _sentencepiece(g, KINDS[model], names, types)
      pieces = _sentencepiece_texts(names, types), encoder.habits.before
    else:
      fix = f"use a model whose tokenizer.ggml.pre is one of {', '.join(SPLITS)}"
      g.check(pre in SPLITS, "'tokenizer.ggml.pre'", f"{pre!r} is not supported", fix)
      encoder = _encoder(names, _merges(g, names), types, pre)
      pieces = _pieces(names, encoder)
    ids = {k: g.get(f"tokenizer.ggml.{k}_token_id", int, -1) for k in ("bos", "eos", "eot", "eom")}
    for k, i in ids.items():
      problem = f"{i} is not below the {len(names)} tokens of the vocabulary"
      g.check(i < len(names), f"'tokenizer.ggml.{k}_token_id'", problem)
    bos = ids["bos"] if ids["bos"] >= 0 else None
    add_bos = bos is not None and g.get("tokenizer.ggml.add_bos_token", bool, pre in WITH_BOS or model == "llama")
    ends = frozenset(ids[k] for k in ("eos", "eot", "eom") if ids[k] >= 0)
    template = g.get("tokenizer.chat_template", str, "") or None
    return Tokenizer(tuple(names), encoder, bos, ends, add_bos, template, *pieces)

  @staticmethod
  def from_folder(folder: Path) -> Tokenizer:
    """By tokenizer.json, and what tokenizer_config.json and generation_config.json say of control tokens.

    Raises: AppError where one of them cannot be read.
    """
    import tokenizers

    file = folder / "tokenizer.json"
    try:
      encoder: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception as e:  # the package raises nothing narrower
      raise AppError(f"{file}: cannot be read: {e}\n  fix: download the folder again, with its tokenizer.json") from e
    vocabulary: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    size = max(vocabulary.values(), default=-1) + 1
    if size > len(vocabulary) + MOST_GAPS:
      problem = f"a token has the number {size - 1}, and there are {len(vocabulary)}"
      raise AppError(f"{file}: {problem}\n  fix: download the folder again, with its tokenizer.json")
    names = [""] * size
    for name, i in vocabulary.items():
      names[i] = name
    said, stops = _json(folder / "tokenizer_config.json"), _json(folder / "generation_config.json")
    bos, eos = (vocabulary.get(_content(said.get(f"{k}_token"))) for k in ("bos", "eos"))
    ends = stops.get("eos_token_id")
    listed = [i for i in (ends if isinstance(ends, list) else [ends, eos]) if type(i) is int and 0 <= i < len(names)]
    add_bos = bos is not None and encoder.encode("").ids[:1] == [bos]
    try:
      pieces, drops_space = _pieces(names, encoder)
    except ValueError as e:
      raise AppError(f"{file}: {e}\n  fix: use a model of a family that docs/llm.md lists") from e
    return Tokenizer(
      tuple(names), encoder, bos, frozenset(listed), add_bos, _template(folder, said), pieces, drops_space
    )

  def encode(self, text: str, bos: bool | None = None) -> list[int]:
    """Token numbers of `text`; spelled-out control tokens count as such. `bos` overrides the file's habit.

    Raises: TokenError for text that is no Unicode: it holds half of a surrogate pair, as bytes read wrongly do.
    """
    check_unicode(text)
    if isinstance(self.encoder, Pieces):
      ids = self.encoder.encode(text)
    else:
      ids = self.encoder.encode(text, add_special_tokens=False).ids
    return [self.bos, *ids] if self.bos is not None and (self.add_bos if bos is None else bos) else ids

  def decode(self, ids: Iterable[int]) -> str:
    """The text of tokens; what is no UTF-8 becomes U+FFFD."""
    text = TextStream(self)
    return "".join(text.push(i) for i in ids) + text.rest()

  def chat(self, messages: Sequence[dict[str, Any]], **more: Any) -> tuple[str, list[int]]:
    """The conversation as the file's chat template writes it, up to where the assistant's answer begins, and its
    tokens. `more`: what else the template is told, such as `tools`. Control tokens are what the template writes: what
    is spelled like one in a message or in `more` is text.

    Raises: AppError where there is no template, or it fails; TokenError for text that is no Unicode.
    """
    if self.template is None:
      fix = "leave out --chat; of a server ask /v1/completions"
      raise AppError(f"the model's file has no chat template (tokenizer.chat_template)\n  fix: {fix}")
    bos, eos = ("" if i is None else self.names[i] for i in (self.bos, min(self.ends, default=None)))
    said = [{k: v if k == "role" else self.as_text(v) for k, v in m.items()} for m in messages]
    given: dict[str, Any] = {"messages": said, "add_generation_prompt": True, "bos_token": bos, "eos_token": eos}
    given |= {"tools": None, "documents": None}  # a template may ask whether they are none
    given |= {k: self.as_text(v) for k, v in more.items()}
    text, problem = rendered(self.template, given)
    if text is None:
      raise AppError(f"the model's chat template fails on this conversation: {problem}\n  fix: leave out --chat")
    check_unicode(text)
    if said == list(messages) and all(given[k] == v for k, v in more.items()):
      return text, self.encode(text, bos=False)
    parts = text.split(MARK)
    if isinstance(self.encoder, Pieces):
      return "".join(parts), self.encoder.encode(text, MARK)
    return "".join(parts), [i for part in parts for i in self.encode(part, bos=False)]

  def as_text(self, value: Any) -> Any:
    """JSON with a MARK after each first character of what is spelled like a control token."""
    if isinstance(value, str):
      there = [re.escape(name) for name in self.control if name in value]
      return re.sub(f"(?={'|'.join(there)})(.)", rf"\1{MARK}", value, flags=re.S) if there else value
    if isinstance(value, dict):
      return {self.as_text(k): self.as_text(v) for k, v in value.items()}
    return [self.as_text(v) for v in value] if isinstance(value, list) else value


class TextStream:
  """The text of tokens as they come, without control tokens; a character spread over several waits for its last byte.

  `after` is the token before the first: after text, a space is one. `shown`: control tokens whose spelling is text.
  """

  def __init__(self, tokenizer: Tokenizer, after: int | None = None, shown: frozenset[int] = frozenset()):
    self.marks = {i: tokenizer.names[i].encode() for i in shown}
    self.pieces, self.utf8 = tokenizer.pieces, codecs.getincrementaldecoder("utf-8")("replace")
    self.begins = tokenizer.drops_space and (after is None or not self.pieces[after])

  def push(self, token: int) -> str:
    """Raises TokenError where the vocabulary does not hold it."""
    check_tokens((token,), len(self.pieces))
    piece = self.marks.get(token, self.pieces[token])
    if self.begins and piece:
      self.begins, piece = False, piece.removeprefix(b" ")
    return self.utf8.decode(piece)

  def rest(self) -> str:
    """U+FFFD for a character that was not finished."""
    return self.utf8.decode(b"", final=True)


def _json(file: Path) -> dict[str, Any]:
  """The object in a file, empty where there is no file."""
  try:
    found = json.loads(file.read_bytes()) if file.exists() else {}
  except (ValueError, RecursionError) as e:
    raise AppError(f"{file}: cannot be read: {e}\n  fix: download the folder again") from e
  if not isinstance(found, dict):
    raise AppError(f"{file}: is no JSON object\n  fix: download the folder again")
  return found


def _content(token: Any) -> str:
  """The spelling of a token of tokenizer_config.json, which is a string or an object."""
  content = token.get("content") if isinstance(token, dict) else token
  return content if isinstance(content, str) else ""


def _template(folder: Path, said: dict[str, Any]) -> str | None:
  file, found = folder / "chat_template.jinja", said.get("chat_template")
  if file.exists():
    try:
      return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
      raise AppError(f"{file}: cannot be read: {e}\n  fix: download the folder again") from e
  if isinstance(found, list):  # several by name
    found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
  return found if isinstance(found, str) else None


def _vocabulary(g: GGUF) -> tuple[str, list[str], list[int]]:
  """(kind of tokenizer, spellings, types)"""
  model = g.get("tokenizer.ggml.model", str)
  fix = "use a model with a byte-level BPE tokenizer ('gpt2') or one of SentencePiece's ('llama', 't5')"
  g.check(model == "gpt2" or model in KINDS, "'tokenizer.ggml.model'", f"a {model!r} tokenizer is not supported", fix)
  names: list[str] = g.get("tokenizer.ggml.tokens", list)
  types: list[int] = g.get("tokenizer.ggml.token_type", list, [TokenType.NORMAL] * len(names))
  distinct = names and all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
  g.check(bool(distinct), "'tokenizer.ggml.tokens'", "is no list of distinct strings")
  g.check(len(types) == len(names), "'tokenizer.ggml.token_type'", f"has {len(types)} entries for {len(names)} tokens")
  return model, names, types


def _merges(g: GGUF, names: list[str]) -> list[tuple[str, str]]:
  known, merges = set(names), g.get("tokenizer.ggml.merges", list)
  pairs: list[Any] = [tuple(merge.split(" ")) if isinstance(merge, str) else () for merge in merges]
  for i, pair in enumerate(pairs):
    if len(pair) != 2 or not known.issuperset((*pair, "".join(pair))):
      g.check(False, f"'tokenizer.ggml.merges'[{i}]", f"{merges[i]!r} does not join two tokens to a third")
  return pairs


def _sentencepiece(g: GGUF, kind: type[Pieces], names: list[str], types: list[int]) -> Pieces:
  scores: list[Any] = g.get("tokenizer.ggml.scores", list)
  fits = len(scores) == len(names) and all(type(x) is float for x in scores)
  g.check(fits, "'tokenizer.ggml.scores'", f"are no {len(names)} numbers, one for each token")
  by_byte = {names[i].upper(): i for i, t in enumerate(types) if t == TokenType.BYTE}
  spelled = [f"<0X{b:02X}>" for b in range(256)]
  problem = "has tokens for some bytes, and not for all"
  g.check(not by_byte or set(by_byte) == set(spelled), "'tokenizer.ggml.token_type'", problem)
  raw, charsmap = g.get("tokenizer.ggml.precompiled_charsmap", list, []), None
  if raw:
    fits = all(type(x) is int and -128 <= x < 256 for x in raw)
    g.check(fits, "'tokenizer.ggml.precompiled_charsmap'", "are no bytes")
    try:
      charsmap = Charsmap(bytes(x & 255 for x in raw))
    except CharsmapError as e:
      g.check(False, "'tokenizer.ggml.precompiled_charsmap'", str(e).splitlines()[0].partition(": ")[2])
  before = g.get("tokenizer.ggml.add_space_prefix", bool, True)
  habits = Habits(charsmap, before, g.get("tokenizer.ggml.remove_extra_whitespaces", bool, False))
  normal = [i for i, t in enumerate(types) if t == TokenType.NORMAL]
  always = (TokenType.CONTROL, TokenType.USER_DEFINED)
  return kind(
    ids={names[i]: i for i in normal},
    scores={names[i]: scores[i] for i in normal},
    bytes=[by_byte[name] for name in spelled if by_byte],
    unknown=next((i for i, t in enumerate(types) if t == TokenType.UNKNOWN), None),
    fixed={n.replace(SPACE, " "): i for i, n in enumerate(names) if types[i] in always and n},
    habits=habits,
  )


def _sentencepiece_texts(names: list[str], types: list[int]) -> tuple[bytes, ...]:
  """The bytes of every token's text."""
  own = {TokenType.CONTROL: b"", TokenType.UNKNOWN: UNKNOWN_TEXT}

  def text(name: str, kind: int) -> bytes:
    is_byte = kind == TokenType.BYTE
    return bytes([int(name[3:5], 16)]) if is_byte else own.get(kind, name.replace(SPACE, " ").encode())

  return tuple(map(text, names, types))


# The bytes that characters of a byte-level token stand for: printable ones for themselves, the others from U+0100 on.
_PRINTABLE = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
BYTE_OF = {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}


def _decoders(encoder: Any) -> list[dict[str, Any]]:
  """What a tokenizer's decoder does in turn, as tokenizer.json writes it."""
  state = None if encoder.decoder is None else json.loads(encoder.decoder.__getstate__())
  return [] if state is None else state.get("decoders", [state])


def _pieces(names: Sequence[str], encoder: Any) -> tuple[tuple[bytes, ...], bool]:
  """The bytes of every token's text, and whether a space that begins a text is dropped.

  Raises: ValueError for a decoder that does anything else than SentencePiece's and byte-level ones do.
  """
  steps = {step["type"]: step for step in _decoders(encoder)}
  known = {"ByteLevel", "ByteFallback", "Replace", "Metaspace", "Fuse", "Strip"}
  space = steps.get("Replace", steps.get("Metaspace", {}))
  written = space.get("replacement") if "Metaspace" in steps else space.get("pattern", {}).get("String")
  odd = [kind for kind in steps if kind not in known] or ([] if written in (None, SPACE) else ["Replace"])
  if odd or not steps:
    raise ValueError(f"a decoder {odd[0] if odd else 'null'!r} is not supported")
  added = {i: b"" if t.special else t.content.encode() for i, t in encoder.get_added_tokens_decoder().items()}

  def piece(name: str) -> bytes:
    if "ByteLevel" in steps and all(c in BYTE_OF for c in name):
      return bytes(BYTE_OF[c] for c in name)
    if "ByteFallback" in steps and re.fullmatch("<0x[0-9A-F]{2}>", name):
      return bytes([int(name[3:5], 16)])
    return (name if written is None else name.replace(SPACE, " ")).encode()

  drops_space = "Strip" in steps or space.get("prepend_scheme", "never") != "never"
  return tuple(added[i] if i in added else piece(name) for i, name in enumerate(names)), drops_space


def _encoder(names: list[str], merges: list[tuple[str, str]], types: list[int], pre: str) -> Any:
  import tokenizers
  from tokenizers import AddedToken, decoders, models, pre_tokenizers

  vocabulary = {name: i for i, name in enumerate(names)}
  encoder: Any = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in LLAMA3_LIKE))
  # Each regex marks pieces of its own; what lies between two of them is a piece as well.
  splits: list[Any] = [pre_tokenizers.Split(tokenizers.Regex(r), "isolated") for r in SPLITS[pre]]
  byte_level: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
  encoder.decoder = decoders.ByteLevel()
  always = (TokenType.CONTROL, TokenType.USER_DEFINED)
  added = [(n, kind == TokenType.CONTROL) for n, kind in zip(names, types) if kind in always]
  encoder.add_tokens([AddedToken(name, special=special, normalized=False) for name, special in added])
  return encoder
