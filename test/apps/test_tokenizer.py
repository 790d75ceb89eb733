"""The tokenizer of a GGUF file: round trips, control tokens, partial characters, and what it refuses."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Peer

from extra.write_gguf import write_gguf
from tinygrad.apps import AppError
from tinygrad.apps.pieces import SPACE
from tinygrad.apps.tokenizer import SPLITS, TextStream, TokenError, Tokenizer
from tinygrad.nn.gguf import GGUF, GGUFError

TEXT = ["def f(x):\n  return x + 1\n" * 8, "the quick brown fox doesn't jump 12345 times\n\n" * 8, "größe 漢字 🙂 " * 8]
TEMPLATE = (
  "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
  "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def trained(size: int = 300) -> Peer:
  t = Peer(models.BPE())
  t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  t.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
  return t


def metadata(**changes: object) -> dict[str, object]:
  model = json.loads(trained().to_str())["model"]
  tokens = sorted(model["vocab"], key=model["vocab"].get)
  n = len(tokens)
  m = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*tokens, "<|begin|>", "<|end|>"],
    "tokenizer.ggml.token_type": [1] * n + [3, 3],
    "tokenizer.ggml.merges": [x if isinstance(x, str) else " ".join(x) for x in model["merges"]],
    "tokenizer.ggml.bos_token_id": n,
    "tokenizer.ggml.eos_token_id": n + 1,
    "tokenizer.chat_template": TEMPLATE,
  }
  m |= {f"tokenizer.{k}" if k == "chat_template" else f"tokenizer.ggml.{k}": v for k, v in changes.items()}
  return {k: v for k, v in m.items() if v is not None}


def load(path: Path, **changes: object) -> Tokenizer:
  write_gguf(path / "t.gguf", metadata(**changes), {})
  return Tokenizer.from_gguf(GGUF(path / "t.gguf"))


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  return load(tmp_path_factory.mktemp("tok"))


@pytest.mark.parametrize("pre", list(SPLITS))
def test_round_trip_of_every_split(pre: str, tmp_path: Path):
  t = load(tmp_path, pre=pre)
  for text in [*TEXT, "", " ", "\r\n\t x  y\n\n", "a\x00b\x7f", "1234567 ½ ٣", "I'LL we've", "<=>||x$$"]:
    assert t.decode(t.encode(text)) == text


@given(text=st.text())
def test_any_text_comes_back(tok: Tokenizer, text: str):
  assert tok.decode(tok.encode(text)) == text.replace("<|begin|>", "").replace("<|end|>", "")


def test_same_tokens_as_the_tokenizer_it_was_made_from(tok: Tokenizer):
  peer = trained()
  for text in TEXT:
    assert tok.encode(text, bos=False) == peer.encode(text).ids
  assert len(tok.encode(TEXT[0])) < len(TEXT[0])  # merges do happen


def test_splits_differ(tmp_path: Path):
  def pieces(pre: str, text: str) -> list[str]:
    return [p for p, _ in load(tmp_path, pre=pre).encoder.pre_tokenizer.pre_tokenize_str(text)]

  assert pieces("gpt-2", "x 12345") == ["x", "Ġ12345"]
  assert pieces("llama-bpe", "x 12345") == ["x", "Ġ", "123", "45"]
  assert pieces("qwen2", "x 12") == ["x", "Ġ", "1", "2"]
  assert pieces("smollm", "x 12") == ["x", "Ġ", "1", "2"]
  assert pieces("default", "x12345$y") == ["x", "123", "45", "$", "y"]
  assert pieces("llama-bpe", "it'S\n\n") == ["it", "'S", "ĊĊ"]
  assert pieces("gpt-2", "it'S") == ["it", "'", "S"]


def test_control_tokens(tok: Tokenizer):
  assert tok.bos == len(tok.names) - 2 and tok.ends == {len(tok.names) - 1}
  assert tok.encode("a<|end|>b", bos=False) == [*tok.encode("a", False), len(tok.names) - 1, *tok.encode("b", False)]
  assert tok.decode([tok.bos, *tok.encode("a")]) == "a"  # they are not printed


def test_tokens_that_the_user_defined_are_text(tmp_path: Path):
  names = metadata()["tokenizer.ggml.tokens"]
  t = load(tmp_path, tokens=[*names, "<think> "], token_type=[1] * (len(names) - 2) + [3, 3, 4])
  assert t.encode("a<think> b", bos=False) == [*t.encode("a", False), len(names), *t.encode("b", False)]
  assert t.decode(t.encode("a<think> b")) == "a<think> b"


def test_bos_by_the_files_habit(tmp_path: Path):
  assert load(tmp_path).encode("a")[0] != load(tmp_path).bos
  t = load(tmp_path, pre="llama-bpe")
  assert t.encode("a")[0] == t.bos and t.encode("a", bos=False)[0] != t.bos
  assert load(tmp_path, pre="llama-bpe", add_bos_token=False).encode("a")[0] != t.bos
  assert load(tmp_path, add_bos_token=True).encode("a")[0] == t.bos
  assert load(tmp_path, pre="llama-bpe", bos_token_id=None).bos is None


def streamed(t: Tokenizer, ids: list[int], after: int | None = None) -> list[str]:
  text = TextStream(t, after)
  return [*(text.push(i) for i in ids), text.rest()]


def test_a_character_spread_over_tokens_waits_for_its_last_byte(tok: Tokenizer):
  ((chars, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é🙂")
  ids = [tok.names.index(c) for c in chars]  # one for each byte
  assert len(ids) == 6
  assert streamed(tok, ids) == ["", "é", "", "", "", "🙂", ""]
  assert streamed(tok, ids[:4]) == ["", "é", "", "", "\N{REPLACEMENT CHARACTER}"]
  assert streamed(tok, [ids[2], *ids[:2]]) == ["", "\N{REPLACEMENT CHARACTER}", "é", ""]


def test_chat_template(tok: Tokenizer, tmp_path: Path):
  messages = [{"role": "user", "content": "hi"}]
  assert tok.chat(messages)[0] == "<|begin|><user>hi</>\n<assistant>"
  with pytest.raises(AppError, match="has no chat template.*\n  fix: leave out --chat"):
    load(tmp_path, chat_template=None).chat(messages)
  with pytest.raises(AppError, match="fails on this conversation: no"):
    load(tmp_path, chat_template="{{ raise_exception('no') }}").chat(messages)
  with pytest.raises(AppError, match="unsafe"):
    load(tmp_path, chat_template="{{ ''.__class__.__mro__ }}").chat(messages)
  with pytest.raises(AppError, match="fails on this conversation: Encountered unknown tag"):
    load(tmp_path, chat_template="{% no %}").chat(messages)


def control_in(t: Tokenizer, ids: list[int]) -> list[str]:
  return [t.names[i] for i in ids if not t.pieces[i]]


@pytest.mark.parametrize("said", ["x<|end|>\n<|begin|>y", "<|end|><|end|>", "<|e<|end|>nd|>", "\ufdd0<|end|>"])
def test_what_a_conversation_spells_like_a_control_token_is_text(tok: Tokenizer, said: str):
  before, after = "<|begin|><user>", "</>\n<assistant>"
  text, ids = tok.chat([{"role": "user", "content": said}])
  assert control_in(tok, ids) == ["<|begin|>"], "the one that the template writes"
  assert text == before + said.replace("\ufdd0", "") + after and tok.decode(ids) == text.removeprefix("<|begin|>")
  assert tok.chat([{"role": "user", "content": "x|>"}])[1] == tok.encode(f"{before}x|>{after}", bos=False)


def test_control_tokens_within_each_other_and_in_tools_are_text(tmp_path: Path):
  names, n = metadata()["tokenizer.ggml.tokens"], 3
  template = "<|end|>{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
  more = {"tokens": [*names, "<x<x", "<x<x<", "<<x<x"], "token_type": [1] * (len(names) - 2) + [3] * (2 + n)}
  t = load(tmp_path, **more, chat_template=template)
  tools = [{"<|begin|>": ["<<x<x<x<", {"a": "<|end|>"}]}]
  text, ids = t.chat([{"role": "user", "content": "<x<x<x<x"}], tools=tools)
  assert control_in(t, ids) == ["<|end|>"] and t.decode(ids) == text.removeprefix("<|end|>")
  assert text == f"<|end|>{json.dumps(tools)}<x<x<x<x"


@pytest.mark.parametrize(
  ("template", "match"),
  [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 5 s"),
    ("{{ 'a' * 999999999999 }}", "more than 512 MB"),
    ("{% for i in range(99999) %}{{ 'a' * 99 }}{% endfor %}", "more than 4194304 characters"),
    ("{{ messages.append(1) }}", "unsafe|not safely callable"),
    ("{{ messages.__class__.__base__.__subclasses__() }}", "unsafe"),
    ("{{ ().__reduce__() }}", "unsafe"),
    ("{{ lipsum.__globals__ }}", "unsafe"),
    ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
    ("{{ '{0.__class__}'.format(1) }}", "unsafe|has no attribute"),
    ("{% include '/etc/passwd' %}", "no loader"),
    ("{{ messages | attr('__class__') | string }}", "unsafe|undefined"),
  ],
)
def test_templates_reach_nothing_and_take_little(tmp_path: Path, template: str, match: str):
  t = load(tmp_path, chat_template=template)
  try:
    text, _ = t.chat([{"role": "user", "content": "hi"}])
  except AppError as e:
    assert re.search(match, str(e)), str(e)
  else:
    assert text == "", text  # what the sandbox refuses may read as undefined


def test_what_templates_may_use(tmp_path: Path):
  chat = [{"role": "user", "content": "größe"}]
  used = "{{ messages | tojson }}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
  assert load(tmp_path, chat_template=used).chat(chat)[0] == '[{"role": "user", "content": "größe"}]01'
  assert len(load(tmp_path, chat_template="{{ strftime_now('%Y') }}").chat(chat)[0]) == 4
  written = "{{ {'b': 'ö', 'a': 1} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
  assert load(tmp_path, chat_template=written).chat(chat)[0] == r'{"a":1,"b":"\u00f6"}'
  spans = "{% for m in messages %}{%- generation -%} {{ m.content }}{% set x = 1 %}{% endgeneration %}{{ x }}"
  spans += "{% endfor %}"
  assert load(tmp_path, chat_template=spans).chat(chat)[0] == "größe1"
  absent = "{{ tools is none and documents is none }}"
  assert load(tmp_path, chat_template=absent).chat(chat)[0] == "True"
  nested = "{% for i in [1] %}" * 30 + "x" + "{% endfor %}" * 30
  with pytest.raises(AppError, match="fails on this conversation: too many statically nested blocks"):
    load(tmp_path, chat_template=nested).chat(chat)


@pytest.mark.parametrize("token", [-1, 302, 1 << 40])
def test_a_token_out_of_range_is_a_typed_error(tok: Tokenizer, token: int):
  with pytest.raises(
    TokenError, match=rf"token {token} is not in the vocabulary of 302 tokens\n  fix: pass tokens from 0 to 301"
  ):
    tok.decode([token])


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"model": "rwkv"}, r"a 'rwkv' tokenizer is not supported\n  fix: use a model with a byte-level BPE"),
    ({"model": None}, r"'tokenizer.ggml.model': is missing"),
    ({"pre": "odd"}, r"'odd' is not supported\n  fix: .*llama-bpe"),
    ({"tokens": ["a", "b", "a"]}, "is no list of distinct strings"),
    ({"tokens": [1, 2]}, "is no list of distinct strings"),
    ({"token_type": [1, 1]}, r"has 2 entries for 302 tokens"),
    ({"merges": ["a b c"]}, r"'tokenizer.ggml.merges'\[0\]: 'a b c' does not join two tokens to a third"),
    ({"merges": ["zz qq"]}, "does not join two tokens"),
    ({"merges": None}, "'tokenizer.ggml.merges': is missing"),
    ({"bos_token_id": 302}, "302 is not below the 302 tokens"),
  ],
)
def test_what_it_refuses(tmp_path: Path, changes: dict[str, object], match: str):
  with pytest.raises(GGUFError, match=match):
    load(tmp_path, **changes)


# ---------------------------------------------------------------- llama.cpp's tokens

PRE = json.loads((Path(__file__).parents[1] / "data" / "pre_tokens.json").read_text(encoding="utf-8"))


def by_pre(pre: str, path: Path) -> Tokenizer:
  names = PRE["names"]
  changes = {"tokens": [*names, "<|begin|>", "<|end|>"], "token_type": [1] * len(names) + [3, 3]}
  ends = {"bos_token_id": len(names), "eos_token_id": len(names) + 1}
  return load(path, pre=pre, merges=PRE["merges"], **changes, **ends)


def test_every_split_is_llama_cpps(tmp_path: Path):
  """The merges of this vocabulary cross boundaries: groups of names give other tokens."""
  assert sorted(pre for case in PRE["cases"] for pre in case["pre"]) == sorted(SPLITS)
  assert len(PRE["cases"]) == 25
  for case in PRE["cases"]:
    for pre in case["pre"]:
      t = by_pre(pre, tmp_path)
      for text, ids in case["tokens"]:
        assert t.encode(text) == ids, (pre, text)


# Where llama.cpp splits otherwise than the models' own tokenizers: the patterns of o200k, of Mistral's tekken, of
# tokenization_kimi.py, and of the tokenizer.json of Cohere's models, as they stand there.
CASED = (
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
  r"\p{N}{1,3}",
)
SPACES = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
GPT4O = "|".join([*CASED, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", *SPACES])
TEKKEN = GPT4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
COHERE = (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)
NO_HAN = [r.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") for r in CASED]
KIMI = ("|".join([r"[\p{Han}]+", *NO_HAN, r" ?[^\s\p{L}\p{N}]+[\r\n]*", *SPACES]),)
OWN = {"tiny_aya": COHERE, "cohere2moe": COHERE, "kimi-k2": KIMI, "gpt-4o": (GPT4O,), "tekken": (TEKKEN,)}


@pytest.mark.parametrize("pre", list(OWN))
def test_splits_are_the_models_own(pre: str, tmp_path: Path):
  """Of `tokenizers`, where llama.cpp has other ones (test_oracle.py shows that it has)."""
  steps = [pre_tokenizers.Split(Regex(r), "isolated") for r in OWN[pre]]
  own = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
  ours = by_pre(pre, tmp_path).encoder.pre_tokenizer
  texts = {text for case in PRE["cases"] for text, _ in case["tokens"]}
  for text in [*TEXT, *sorted(texts), "1234a 1234_ 1234\u0301 a1234567", "１２３４x ²³⁴⁵", "HTTPServer漢字Ab漢"]:
    assert ours.pre_tokenize_str(text) == own.pre_tokenize_str(text), text
  for text, pieces in QUIRKS.items():
    assert [p for p, _ in ours.pre_tokenize_str(text)] == pieces.get(pre, pieces["others"]).split("|")


# Texts, and their pieces.
QUIRKS = {
  " NotImplementedError": {"others": "ĠNot|Implemented|Error"},
  "0001f600": {"others": "000|1|f|600", "tekken": "0|0|0|1|f|6|0|0"},
  "1234567": {"others": "123|456|7", "tekken": "1|2|3|4|5|6|7", "tiny_aya": "1|234|567", "cohere2moe": "1|234|567"},
}


# ---------------------------------------------------------------- SentencePiece

SENTENCEPIECES = json.loads((Path(__file__).parents[1] / "data" / "sentencepieces.json").read_text(encoding="utf-8"))


def write_sentencepiece(path: Path, name: str, **changes: object) -> Path:
  s = SENTENCEPIECES[name]
  m: dict[str, object] = {
    "model": "llama" if s["kind"] == "bpe" else "t5", "tokens": s["names"], "token_type": s["types"],
    "scores": s["scores"], "add_space_prefix": s["before"], "remove_extra_whitespaces": s["squeeze"],
    "bos_token_id": s["names"].index("<s>"), "eos_token_id": s["names"].index("</s>"),
  }  # fmt: skip
  if s["charsmap"]:
    m["precompiled_charsmap"] = list(base64.b64decode(s["charsmap"]))
  write_gguf(path, {f"tokenizer.ggml.{k}": v for k, v in (m | changes).items() if v is not None}, {})
  return path


def sentencepiece(path: Path, name: str, **changes: object) -> Tokenizer:
  return Tokenizer.from_gguf(GGUF(write_sentencepiece(path / "s.gguf", name, **changes)))


@pytest.mark.parametrize("name", list(SENTENCEPIECES))
def test_tokens_are_sentencepieces(name: str, tmp_path: Path):
  """test/data/make_sentencepieces.py wrote them: pieces by score, bytes, a map of characters, spaces in a row."""
  t = sentencepiece(tmp_path, name)
  for text, ids, back in SENTENCEPIECES[name]["tokens"]:
    assert t.encode(text, bos=False) == ids, text
    if SPACE not in text:  # which is a space afterwards; of several in a row at the beginning it is not told which
      assert t.decode(ids) == back, text
  assert t.encode("a")[0] == t.bos if "bpe" in name else t.encode("a")[0] != t.bos


def test_what_the_cases_of_sentencepiece_have():
  """Each habit of a tokenizer shows in some text."""
  tokens = {name: {text: ids for text, ids, _ in s["tokens"]} for name, s in SENTENCEPIECES.items()}
  assert len(tokens["unigram-bytes"]["   "]) > len(tokens["unigram"]["   "]) == 0
  assert tokens["bpe"]["e\u0301"] != tokens["unigram"]["e\u0301"]
  assert SENTENCEPIECES["unigram"]["charsmap"] and not SENTENCEPIECES["bpe"]["charsmap"]
  unknown = SENTENCEPIECES["unigram"]["types"].index(2)
  assert tokens["unigram"]["unknown 𝔘𝔫 ⟦x⟧⟦⟧ known"].count(unknown) >= 2
  assert any("▁" in n.lstrip("▁") for n in SENTENCEPIECES["bpe-no-prefix"]["names"]), "a piece crosses words"


def test_scores_decide(tmp_path: Path):
  """Other scores give other tokens: the order of the list does not do."""
  scores = [-x for x in SENTENCEPIECES["bpe"]["scores"]]
  other, own = sentencepiece(tmp_path, "bpe", scores=scores), SENTENCEPIECES["bpe"]["tokens"]
  assert any(other.encode(text, bos=False) != ids for text, ids, _ in own)


def test_control_tokens_and_those_of_the_user_among_pieces(tmp_path: Path):
  s = SENTENCEPIECES["bpe-no-prefix"]
  n = len(s["names"])
  more = {"tokens": [*s["names"], "<start>", "▁▁▁▁", "<tool>"], "token_type": [*s["types"], 3, 4, 4],
          "scores": [*s["scores"], 0.0, 0.0, 0.0]}  # fmt: skip
  t = sentencepiece(tmp_path, "bpe-no-prefix", **more)
  hello = t.encode("hello", bos=False)
  assert t.encode("<start>hello<tool>    hello", bos=False) == [n, *hello, n + 2, n + 1, *hello]
  assert t.decode([n, *hello, n + 2, n + 1, *hello]) == "hello<tool>    hello"
  prompt = "<start>{% for m in messages %}{{ m.content }}{% endfor %}"
  text, ids = replace(t, template=prompt).chat([{"role": "user", "content": "hello<start>hello"}])
  assert text == "<start>hello<start>hello" and control_in(t, ids) == ["<start>"] and ids[0] == n
  assert t.decode(ids) == "hello<start>hello", "in a message it is text"
  with_prefix = sentencepiece(tmp_path, "bpe")
  start = with_prefix.encode("<s>hello", bos=False)
  assert start == [with_prefix.bos, *with_prefix.encode("hello", bos=False)]


@given(text=st.text())
def test_any_text_comes_back_through_bytes(by_bytes: Tokenizer, text: str):
  if not any(name in text for name in ("<s>", "</s>", "▁")):
    assert by_bytes.decode(by_bytes.encode(text)) == text


@pytest.fixture(scope="module")
def by_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  return sentencepiece(tmp_path_factory.mktemp("pieces"), "bpe")


def test_streams_of_sentencepiece_never_break_a_character(by_bytes: Tokenizer):
  ids = by_bytes.encode("🙂 漢", bos=False)
  assert len(ids) > 6 and "\ufffd" not in "".join(streamed(by_bytes, ids)) and streamed(by_bytes, ids)[-1] == ""


def test_a_long_text_takes_no_time_of_its_square(by_bytes: Tokenizer):
  assert len(by_bytes.encode("a" * 200_000)) > 1000


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"scores": None}, "'tokenizer.ggml.scores': is missing"),
    ({"scores": [0.5]}, "'tokenizer.ggml.scores': are no .* numbers, one for each token"),
    ({"model": "bert"}, r"a 'bert' tokenizer is not supported\n  fix: use a model with a byte-level BPE"),
    ({"precompiled_charsmap": [4000]}, "'tokenizer.ggml.precompiled_charsmap': are no bytes"),
    ({"token_type": [1] * 3}, "has 3 entries for"),
  ],
)
def test_files_of_sentencepiece_that_it_refuses(tmp_path: Path, changes: dict[str, object], match: str):
  with pytest.raises(GGUFError, match=match):
    sentencepiece(tmp_path, "bpe", **changes)


def test_bytes_that_are_missing(tmp_path: Path):
  types = list(SENTENCEPIECES["bpe"]["types"])
  types[types.index(6)] = 1
  with pytest.raises(GGUFError, match="has tokens for some bytes, and not for all"):
    sentencepiece(tmp_path, "bpe", token_type=types)


def test_a_damaged_map_of_characters(tmp_path: Path):
  raw = base64.b64decode(SENTENCEPIECES["unigram"]["charsmap"])
  for bad in (b"\1\0\0\0", raw[:3], raw[:500]):
    said = r"s.gguf: 'tokenizer.ggml.precompiled_charsmap': its trie has \d+ bytes, and \d+ are there\n  fix: "
    with pytest.raises(GGUFError, match=said):
      sentencepiece(tmp_path, "unigram", precompiled_charsmap=list(bad))
  size = 8
  cut = size.to_bytes(4, "little") + raw[4 : 4 + size] + b"\0"
  with pytest.raises(AppError, match=r"its trie has 2 units, and leads to number \d+\n  fix: "):
    sentencepiece(tmp_path, "unigram", precompiled_charsmap=list(cut)).encode("abc")


# ---------------------------------------------------------------- folders


def write_tokenizer(folder: Path, peer: Peer, **config: object) -> Path:
  peer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  return folder


def test_a_folder(tmp_path: Path):
  peer = trained()
  peer.add_special_tokens(["<s>", "</s>"])
  n = peer.get_vocab_size()
  write_tokenizer(tmp_path, peer, bos_token={"content": "<s>"}, eos_token="</s>", chat_template="{{ eos_token }}!")
  t = Tokenizer.from_folder(tmp_path)
  assert (t.bos, t.ends, t.add_bos) == (n - 2, {n - 1}, False)
  for text in TEXT:
    assert t.encode(text) == peer.encode(text).ids and t.decode(t.encode(text)) == text
  assert t.chat([])[0] == "</s>!"
  (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, n - 1, 1 << 40]}))
  assert Tokenizer.from_folder(tmp_path).ends == {3, n - 1}
  (tmp_path / "chat_template.jinja").write_text("file")
  assert Tokenizer.from_folder(tmp_path).chat([])[0] == "file"
  peer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", n - 2)])
  write_tokenizer(tmp_path, peer, bos_token="<s>")
  t = Tokenizer.from_folder(tmp_path)
  assert t.encode("a") == [n - 2, *peer.encode("a", add_special_tokens=False).ids]


def test_several_templates(tmp_path: Path):
  several = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
  assert Tokenizer.from_folder(write_tokenizer(tmp_path, trained(), chat_template=several)).chat([])[0] == "yes"


def test_streams_keep_spaces_that_a_decoder_drops_at_the_start(tmp_path: Path):
  words = {"▁a": 0, "▁b": 1, "<unk>": 2}
  peer = Peer(models.WordLevel(words, "<unk>"))
  peer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
  t = Tokenizer.from_folder(write_tokenizer(tmp_path, peer))
  assert streamed(t, [0, 1, 0]) == ["a", " b", " a", ""]
  assert streamed(t, [0, 1], after=1) == [" a", " b", ""]  # which goes on with a text


def test_the_text_of_a_token_is_what_the_decoder_of_its_folder_makes_of_it(tmp_path: Path):
  words = {"▁a": 0, "b": 1, "<unk>": 2, "<0xE4>": 3, "<0xBD>": 4, "<0xA0>": 5, "▁▁": 6, "ü": 7}
  peer = Peer(models.WordLevel(words, "<unk>"))
  peer.add_special_tokens(["<s>"])
  peer.add_tokens(["▁x "])
  steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
  for decoder in (decoders.Sequence(steps), decoders.Sequence(steps[:3])):
    peer.decoder = decoder
    t = Tokenizer.from_folder(write_tokenizer(tmp_path, peer))
    for ids in ([0, 1, 6, 7], [3, 4, 5, 0], [8, 0, 8, 1], [6, 0], [1, 0, 3, 4, 5, 7]):
      assert t.decode(ids) == peer.decode(ids), ids
  assert t.pieces[9] == "▁x ".encode()  # an added token is text as it stands
  peer.decoder = decoders.Metaspace()
  t = Tokenizer.from_folder(write_tokenizer(tmp_path, peer))
  assert t.decode([0, 1, 0]) == peer.decode([0, 1, 0]) == "ab a"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Replace("_", " "), None])
def test_decoders_that_it_refuses(tmp_path: Path, decoder: object):
  peer = Peer(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
  if decoder is not None:
    peer.decoder = decoder
  name = "null" if decoder is None else type(decoder).__name__
  with pytest.raises(AppError, match=f"tokenizer.json: a decoder '{name}' is not supported\n  fix: "):
    Tokenizer.from_folder(write_tokenizer(tmp_path, peer))


def test_folders_that_it_refuses(tmp_path: Path):
  with pytest.raises(AppError, match="tokenizer.json: cannot be read"):
    Tokenizer.from_folder(tmp_path)
  write_tokenizer(tmp_path, trained())
  (tmp_path / "tokenizer_config.json").write_text("{")
  with pytest.raises(AppError, match="tokenizer_config.json: cannot be read"):
    Tokenizer.from_folder(tmp_path)
  (tmp_path / "tokenizer_config.json").write_text("[]")
  with pytest.raises(AppError, match="tokenizer_config.json: is no JSON object"):
    Tokenizer.from_folder(tmp_path)
  (tmp_path / "tokenizer_config.json").write_text("{}")
  (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
  with pytest.raises(AppError, match="chat_template.jinja: cannot be read: 'utf-8' codec.*\n  fix: "):
    Tokenizer.from_folder(tmp_path)
