"""Thoughts and answers, whatever the pieces in which a text comes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tinygrad.apps.reasoning import Reasoning


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
