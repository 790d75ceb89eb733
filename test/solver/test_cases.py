"""The solver on the cases of test/data/shardy_propagation.json, and of shardy_documents.json, which are written from
what Shardy's documents say; each of its features is needed by some of them."""

import json
from pathlib import Path

import pytest

from extra.shardy_cases import FEATURES, difference, main

FILE = Path(__file__).parents[1] / "data/shardy_propagation.json"
CASES = json.loads(FILE.read_text())["cases"]
DOCUMENTED = json.loads(FILE.with_name("shardy_documents.json").read_text())["cases"]
NEEDED = {  # a case for each feature, which fails without it
  "aggressive": "real_and_fake_conflicts",
  "levels": "chained_dot_generals",
  "rounds": "skipped_priorities",
  "groups": "shard_as_applies_despite_barrier",
  "barriers": "propagation_barrier_none_two_shardings",
  "conservative": "multi_axis_major_dim_not_fully_sharded",
  "replicated": "arg_lower_priority_than_return_value_with_replicated",
  "unreduced": "unreduced_axes_block_bwd_propagation",
  "closed": "closed_dim",
  "sub-axes": "reshape_split_dim_twice",
}


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_a_case_comes_out_as_expected(case):
  assert difference(case) == []


@pytest.mark.parametrize("case", DOCUMENTED, ids=[c["name"] for c in DOCUMENTED])
def test_a_case_comes_out_as_the_documents_say(case):
  assert difference(case) == []


def test_the_documents_speak_of_each_feature_but_one():
  """Partial values are not in them."""
  found = {feature for feature in FEATURES if any(difference(case, (feature,)) for case in DOCUMENTED)}
  assert found == set(FEATURES) - {"unreduced"}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_needed(feature):
  case = next(c for c in CASES if c["name"] == NEEDED[feature])
  assert difference(case, without=(feature,)) != []


def test_the_program_prints_how_many_passed_and_what_is_different(capsys, tmp_path):
  assert main([str(FILE)]) == 0
  assert capsys.readouterr().out == f"{len(CASES)} passed, 0 failed\n"
  wrong = json.loads(FILE.read_text())["cases"][:2]
  wrong[0]["expect"]["v1"] = {"dims": [["b", "?"], ["?"]]}
  path = tmp_path / "wrong.json"
  path.write_text(json.dumps({"cases": wrong}))
  assert main([str(path)]) == 1
  said = capsys.readouterr().out
  assert "simple (basic, a=2 b=2)\n  v1: expected [{b,?}, {?}], got [{a,?}, {?}]" in said
  assert "1 passed, 1 failed" in said
