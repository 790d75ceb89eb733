"""docs/sharding.md holds: its code prints what it says, and its table of ops is the cards'."""

import contextlib
import io
import re

import pytest

from extra import op_table
from tinygrad.uop import Ops
from tinygrad.uop.cards import CARDS, PartialRule

TEXT = op_table.DOCUMENT.read_text(encoding="utf-8")


def test_the_examples_print_what_they_say():
  namespace: dict[str, object] = {}
  blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
  assert len(blocks) >= 9
  for block in blocks:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(compile(block, "sharding.md", "exec"), namespace)
    assert printed.getvalue().splitlines() == re.findall(r"# -> (.*)$", block, re.MULTILINE), block


def test_the_table_of_ops_is_the_cards():
  assert op_table.written(TEXT) == TEXT, "python -m extra.op_table --write"


def test_every_op_with_factors_is_in_the_table():
  shown = set(re.findall(r"`([A-Z]+)`", op_table.table()))
  assert shown == {op.name for op, c in CARDS.items() if c.factors is not None and op not in op_table.WITHOUT}
  assert set(op_table.PARTIAL) == set(PartialRule)


def test_a_changed_card_would_be_noticed(monkeypatch):
  monkeypatch.setitem(CARDS, Ops.FLIP, CARDS[Ops.EXP])
  assert op_table.written(TEXT) != TEXT


def test_a_document_without_marks():
  with pytest.raises(ValueError, match="no <!-- made by extra/op_table.py -->"):
    op_table.written("# Sharding\n")
