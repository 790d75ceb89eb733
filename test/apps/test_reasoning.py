"""Thoughts and answers, whatever the pieces in which a text comes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tinygrad.apps.reasoning import Channels, Reasoning


def slow_split(text: str, begun: bool) -> tuple[str, str]:
  """(thought, answer) of a whole text."""
  found = re.fullmatch(r"\s*<think>\n*(.*?)(?:</think>\n*(.*))?", "<think>" + text if begun else text, re.S)
  return (found[1], found[2] or "") if found else ("", text)


PARTS = st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "think>", "\n", " ", "a", "<", "b c"]))


@given(parts=PARTS, begun=st.booleans())
def test_pieces_make_what_the_whole_text_does(parts: list[str], begun: bool):
  r = Reasoning("<assistant><think>\n" if begun else "<assistant>")
  out = [x for part in parts for x in r.push(part)] + r.rest()
  got = tuple("".join(text for text, thought in out if thought == kind) for kind in (True, False))
  assert got == slow_split("".join(parts), begun)
  kinds = [thought for _, thought in out]
  assert kinds == sorted(kinds, reverse=True) and all(text for text, _ in out)


def test_a_mark_in_the_middle_is_text():
  r = Reasoning()
  assert r.push("say <think> now</think>") == [("say <think> now</think>", False)]


def test_what_may_be_a_mark_waits():
  r = Reasoning()
  assert [r.push(x) for x in (" ", "<thi", "nk>", "\n", "why", "</thi", "s", "</think>", "\n\n", "so")] == [
    [],
    [],
    [],
    [],
    [("why", True)],
    [],
    [("</this", True)],
    [],
    [],
    [("so", False)],
  ]
  r = Reasoning()
  assert r.push(" <thin") == [] and r.rest() == [(" <thin", False)]


# ---------------------------------------------------------------- gpt-oss's channels

CASES = [
  ("<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so", "why", "so"),
  ("<|channel|>final<|message|>so", "", "so"),
  ("<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
   '<|constrain|>json<|message|>{"a": 1}<|call|>', "",
   'Let me see.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
  (" to=functions.f<|channel|>commentary json<|message|>{}", "",
   '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
  (" to", "", " to"), (" tomorrow", "", " tomorrow"),
  ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", "ab", ""),
  ("no marks at all", "", "no marks at all"), ('{"a": 1}', "", '{"a": 1}'), ("", "", ""),
]  # fmt: skip


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 200)))
def test_channels_in_pieces(case: tuple[str, str, str], cuts: list[int]):
  """A mark is a token, and comes as a whole."""
  text, thought, answer = case
  tokens = re.findall(r"<\|\w+\|>|.", text, re.S)
  ends = sorted({min(c, len(tokens)) for c in cuts} | {len(tokens)})
  r, out, at = Channels(), [], 0
  for end in ends:
    out += r.push("".join(tokens[at:end]))
    at = end
  out += r.rest()
  assert "".join(t for t, kind in out if kind) == thought
  assert "".join(t for t, kind in out if not kind) == answer
