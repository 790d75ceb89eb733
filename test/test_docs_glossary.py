"""docs/glossary.md names what is there."""

import importlib.util
import re
from pathlib import Path

import pytest

import tinygrad

GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
ROWS = [line.split("|")[1:-1] for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
TERMS = [row for row in ROWS if row[0].strip() not in ("term", "---")]


def check_found(name):
  """`a.b.C.d` names attribute d of C in the package's module a.b. Raises: AttributeError, ImportError."""
  thing = tinygrad
  for part in name.split("."):
    if hasattr(thing, "__path__") and importlib.util.find_spec(f"{thing.__name__}.{part}"):
      thing = importlib.import_module(f"{thing.__name__}.{part}")
      continue
    if part not in getattr(thing, "__annotations__", {}):
      thing = getattr(thing, part)


@pytest.mark.parametrize("row", TERMS, ids=lambda row: row[0].strip())
def test_a_term_names_what_is_there(row):
  assert len(row) == 4 and all(cell.strip() for cell in row)
  (name,) = re.findall(r"`([^`]+)`", row[3])
  check_found(name)


def test_a_name_that_is_gone_is_noticed():
  for name in ("device.Digit", "sharding.owed", "uop.UOp.outline", "nowhere"):
    with pytest.raises((ImportError, AttributeError)):
      check_found(name)


def test_terms_are_told_once():
  terms = [row[0].strip() for row in TERMS]
  assert len(terms) > 30 and len(set(terms)) == len(terms)
