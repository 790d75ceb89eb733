"""Keccak against hashlib, and what `hash` promises."""

import hashlib

import numpy as np
import pytest

from tinygrad import Tensor, dtypes

D2 = ("CPU:0", "CPU:1")
MESSAGE = bytes(np.random.default_rng(0).integers(0, 256, 300, np.uint8))


def digest(t):
  return [bytes(row).hex() for row in t.tolist()]


@pytest.mark.parametrize("n", [0, 135, 136, 300])
def test_keccak_is_hashlibs_sha3(n):
  x = Tensor(np.frombuffer(MESSAGE[:n], np.uint8)).reshape(1, n)
  assert digest(x.keccak()) == [hashlib.sha3_256(MESSAGE[:n]).hexdigest()]


@pytest.mark.parametrize("name", ["sha3_224", "shake_128"])
def test_rows_are_messages_of_their_own_also_when_cut(name):
  h = getattr(hashlib, name)
  want = [h(MESSAGE[i : i + 100]).hexdigest(*((16,) if name == "shake_128" else ())) for i in (0, 100)]
  x = Tensor(MESSAGE)[:200].reshape(2, 100)
  assert digest(x.keccak(name)) == want
  assert digest(x.shard(D2, 0).keccak(name)) == want


def test_other_rates_and_suffixes():
  # Ethereum's Keccak-256 of nothing (the Yellow Paper, appendix)
  assert digest(Tensor.zeros(1, 0, dtype=dtypes.uint8).keccak((136, 1))) == [
    "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
  ]


def test_hash_tells_bytes_and_lengths_apart():
  one, two = Tensor(MESSAGE).hash(), Tensor(MESSAGE + b"\0").hash()
  assert one.shape == (16,) and one.dtype is dtypes.uint8
  assert one.tolist() == Tensor(MESSAGE).hash().tolist() != two.tolist()
  assert Tensor([1.0]).hash().tolist() != Tensor([-1.0]).hash().tolist()


def test_errors():
  with pytest.raises(TypeError, match=r"works on rows of uint8(.|\n)*bitcast"):
    Tensor([1]).keccak()
  with pytest.raises(ValueError, match="unknown hash 'md5'"):
    Tensor(b"a").keccak("md5")
