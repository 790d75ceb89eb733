"""Megatron's, FSDP's and sequence-parallel placements of a transformer's layer, out of three hints each: forward and
backward, with no more bytes than by hand."""

import pytest

from extra.hint_recipes import CASES, SHAPES, trained
from tinygrad import Sharding


@pytest.mark.parametrize("name", CASES)
def test_placements_and_bytes_of_three_hints(name):
  mesh, placed, moves, hints = CASES[name]
  by_hand, bytes_by_hand = trained(mesh, moves, placed)
  assert len(hints) <= 3
  by_hints, nbytes = trained(mesh, hints)
  assert by_hints == by_hand == {n: Sharding(mesh, placed[n]) for n in SHAPES}
  assert 0 < nbytes <= bytes_by_hand
