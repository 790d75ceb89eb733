"""extra/fuzz_processes.py: programs in several processes show what they show in one, and what is not is found."""

import importlib.util
import pickle
import random

import numpy as np
import pytest

from extra.fuzz_processes import bits, forget, main, shown_in
from extra.fuzz_threads import Shown
from tinygrad.transforms.step_gradients import UNKEPT


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py: pip install 'tinygrad[mpi]'")
def test_programs_in_two_processes_are_what_they_are_in_one(capsys):
  assert main(["--seed", "3", "--count", "1", "--batch", "2", "--processes", "2"]) == 0
  assert capsys.readouterr().out == "1 batches of 2 programs from --seed 3 in 2, 0 failed\n"


def test_what_is_otherwise_is_told():
  x = np.array([1.0, np.nan, np.inf])
  want = Shown([{"a": x, "b": UNKEPT}])
  assert not [*bits(Shown([{"a": x.copy(), "b": x}]), want)]
  assert [*bits(Shown([{"a": np.nextafter(x, 0), "b": x}]), want)] == ["look 0: a differs in bits"]
  assert [*bits(Shown([{"a": x}]), want)] == ["look 0: names ['b']"]
  assert [*bits(Shown([], "KeyError: 1"), want)] == ["KeyError: 1, and in another none"]
  assert [*bits(want, Shown([], "KeyError: 1"))] == ["no error, and in another KeyError: 1"]


def test_what_a_process_wrote_before_it_was_ended_is_read(tmp_path):
  file, shown = tmp_path / "alone.0", Shown([{"a": np.ones(2)}])
  file.write_bytes(pickle.dumps(tuple(shown)) + pickle.dumps(tuple(Shown([], "KeyError: 1")))[:-9])
  assert [x.looks[0]["a"].tolist() for x in shown_in(file)] == [[1.0, 1.0]]
  assert not [*shown_in(tmp_path / "alone.1")]


def test_some_plans_are_forgotten(tmp_path):
  for i in range(100):
    (tmp_path / str(i)).write_text("")
  forget(tmp_path, random.Random(0))
  assert 10 < len([*tmp_path.iterdir()]) < 90
