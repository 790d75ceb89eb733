"""Some hundred damaged files of each format are read as they should be, and the fuzzer finds planted mutants."""

import pickle
import re
import signal
import zipfile
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra [onnx]")

from extra import fuzz_files
from extra.fuzz_files import FORMATS, fuzz, main
from tinygrad import Tensor
from tinygrad.nn import block_formats, files, pickles, state
from tinygrad.nn.onnx import runner


def test_damaged_files_are_typed_errors_or_right():
  blocks = next(i for i, f in enumerate(FORMATS) if f.name == "gguf blocks")  # of which each takes a moment
  done, wrong, kinds = fuzz((i for i in range(800) if i % len(FORMATS) != blocks or i < 40), keep_on=True)
  assert wrong == [] and done == 705
  assert kinds["error"] > 300 and kinds["read"] > 70, kinds


def only(name, count=500):
  number = next(i for i, f in enumerate(FORMATS) if f.name == name)
  return iter(range(number, number + count * len(FORMATS), len(FORMATS)))


def untyped(monkeypatch):
  """An archive's own errors are let through."""

  def contents(source, data):
    archive = zipfile.ZipFile(files.as_file(data))
    return {name: memoryview(archive.read(name)) for name in archive.namelist()}

  monkeypatch.setattr(state, "zip_contents", contents)
  return "zip", r"zip: \w+: "


def node(monkeypatch):
  """A value that nobody gives is asked for as it is."""
  monkeypatch.setattr(runner, "_value", lambda values, name: values[name])
  return "onnx", "onnx: KeyError: "


def trusting(monkeypatch):
  """The unpickler makes room for whatever number it is told."""
  monkeypatch.setattr(pickles.Unpickler, "load", pickle.Unpickler.load)
  return "torch zip", r"torch zip: \d+ bytes were allocated for a file of \d+ \(the limit is "


def hanging(monkeypatch):
  """Reading does not end: the alarm comes."""
  monkeypatch.setattr(state, "tar_extract", lambda path: signal.raise_signal(signal.SIGALRM))
  return "tar", "it takes more than"


@pytest.mark.parametrize("mutant", [untyped, node, trusting, hanging])
def test_a_mutant_is_found(mutant, monkeypatch):
  name, said = mutant(monkeypatch)
  _, wrong, _ = fuzz(only(name) if mutant is not trusting else iter([1298]))  # where it first shows
  ((_, found),) = wrong
  assert re.match(said, found), found


def test_other_bytes_than_the_files_are_found(monkeypatch):
  real = state.safe_load
  monkeypatch.setattr(
    state, "safe_load", lambda path: {k: Tensor(np.roll(t.numpy(), 1)) for k, t in real(path).items()}
  )
  _, wrong, _ = fuzz(only("safetensors"))
  assert "has other bytes than the file" in wrong[0][1]


def test_other_values_than_the_gguf_packages_are_found(monkeypatch):
  form = block_formats.FORMATS["Q5_K"]

  def flipped(*fields):
    parts = form.decode(*fields)
    return parts._replace(numbers=lambda unpack: parts.numbers(unpack).flip(-1))

  wrong_form = replace(form, decode=flipped)
  monkeypatch.setitem(block_formats.FORMATS, "Q5_K", wrong_form)
  _, wrong, _ = fuzz(only("gguf blocks"))
  assert re.match(r"gguf blocks: Q5_K \(Q5_K\) has other values than the gguf package's", wrong[0][1])


def test_the_command_tells_seeds_and_how_files_ended(capsys, monkeypatch):
  assert main(["--seed", "8", "--count", "7"]) == 0
  assert "7 files from seed 8: {'error': " in capsys.readouterr().out
  monkeypatch.setattr(fuzz_files, "SPARE", -(1 << 40))
  assert main(["--seed", "8", "--count", "1"]) == 1
  out = capsys.readouterr().out
  assert out.startswith("seed 8: gguf: ") and "1 wrong" in out
