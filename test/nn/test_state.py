"""State dicts, and safetensors files: round trips, files written by hand, and damaged ones."""

import json
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.nn.state import (
  SafetensorsError,
  StateError,
  get_parameters,
  get_state_dict,
  load_state_dict,
  safe_load,
  safe_load_metadata,
  safe_save,
)

D2 = ("CPU:0", "CPU:1")


def normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def file_of(path: Path, header: Any, data: bytes = b"") -> Path:
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + data)
  return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
  return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class Net:
  def __init__(self, seed: int = 0, device: str | None = None):
    self.a = Tensor(normal(seed, 2, 3), device=device)
    self.layers = [Tensor(normal(seed + 1, 4)), {"w": Tensor(normal(seed + 2, 2))}]
    self.name, self.size = "net", 3


# ---------------------------------------------------------------- safetensors


def test_reads_a_file_written_by_hand(tmp_path: Path):
  x = np.arange(6, dtype="<f4").reshape(2, 3)
  y = np.array([1, -2, 3], "<i8")
  header = {
    "__metadata__": {"format": "pt"},
    "y": entry("I64", [3], 24, 48),  # the header's order is not the data's
    "x": entry("F32", [2, 3], 0, 24),
    "empty": entry("F32", [0, 2], 48, 48),
    "scalar": entry("F16", [], 48, 50),
  }
  f = file_of(tmp_path / "m.safetensors", header, x.tobytes() + y.tobytes() + np.float16(1.5).tobytes())
  t = safe_load(f)
  assert list(t) == ["y", "x", "empty", "scalar"]
  assert [t[k].dtype for k in t] == [dtypes.int64, dtypes.float32, dtypes.float32, dtypes.float16]
  np.testing.assert_array_equal(t["x"].numpy(), x)
  np.testing.assert_array_equal(t["y"].numpy(), y)
  assert t["empty"].shape == (0, 2) and t["scalar"].shape == () and t["scalar"].item() == 1.5
  raw, start, metadata = safe_load_metadata(f)
  assert metadata == header and start == len(f.read_bytes()) - 50
  np.testing.assert_array_equal(raw.numpy(), np.frombuffer(f.read_bytes(), np.uint8))
  np.testing.assert_array_equal(safe_load(raw)["x"].numpy(), x)
  np.testing.assert_array_equal(safe_load(str(f))["x"].numpy(), x)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_come_back(dtype: str, tmp_path: Path):
  x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 5)).astype(dtype)
  safe_save({"x": Tensor(x)}, tmp_path / "m.safetensors")
  y = safe_load(tmp_path / "m.safetensors")["x"]
  assert y.dtype.name == dtype
  np.testing.assert_array_equal(y.numpy(), x)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_floats_come_back(dtype: Any, tmp_path: Path):
  x = Tensor(normal(0, 3, 5)).cast(dtype)
  safe_save({"x": x}, tmp_path / "m.safetensors")
  y = safe_load(tmp_path / "m.safetensors")["x"]
  assert y.dtype is dtype
  np.testing.assert_array_equal(y.cast(dtypes.float32).numpy(), x.cast(dtypes.float32).numpy())


def test_layout_on_disk(tmp_path: Path):
  f = tmp_path / "m.safetensors"
  safe_save({"a": Tensor([1.0, 2.0]), "b": Tensor([[3]], dtype=dtypes.int32)}, f, {"epoch": 3})
  raw = f.read_bytes()
  (n,) = struct.unpack("<Q", raw[:8])
  assert n % 8 == 0 and json.loads(raw[8 : 8 + n]) == {
    "__metadata__": {"epoch": "3"}, "a": entry("F32", [2], 0, 8), "b": entry("I32", [1, 1], 8, 12),
  }  # fmt: skip
  assert raw[8 + n :] == np.array([1, 2], "<f4").tobytes() + np.array([3], "<i4").tobytes()
  assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_sharded_tensor_is_written_whole(tmp_path: Path):
  x = normal(0, 5, 3)  # uneven over two
  safe_save({"cut": Tensor(x).shard(D2, axis=0), "copies": Tensor(x).shard(D2)}, tmp_path / "m.safetensors")
  t = safe_load(tmp_path / "m.safetensors")
  np.testing.assert_array_equal(t["cut"].numpy(), x)
  np.testing.assert_array_equal(t["copies"].numpy(), x)
  np.testing.assert_array_equal(t["cut"].shard(D2, axis=1).numpy(), x)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path):
  f = tmp_path / "m.safetensors"
  safe_save({"a": Tensor([1.0])}, f)
  before = f.read_bytes()
  with pytest.raises(SafetensorsError, match="'__metadata__'.*cannot be written\n  fix: rename it"):
    safe_save({"__metadata__": Tensor([2.0])}, f)

  class Broken(Tensor):
    def contiguous(self) -> Any:
      raise RuntimeError("lost")

  with pytest.raises(RuntimeError, match="lost"):
    safe_save({"a": Tensor([2.0]), "b": Broken([1.0])}, f)
  assert f.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_saving_over_the_file_that_was_loaded(tmp_path: Path):
  f = tmp_path / "m.safetensors"
  safe_save({"a": Tensor([1.0, 2.0])}, f)
  t = safe_load(f)
  safe_save({"a": t["a"] + 1}, f)
  np.testing.assert_array_equal(t["a"].numpy(), [1, 2])
  np.testing.assert_array_equal(safe_load(f)["a"].numpy(), [2, 3])


def test_every_truncation_is_a_typed_error(tmp_path: Path):
  f, cut = tmp_path / "m.safetensors", tmp_path / "cut.safetensors"
  safe_save({"a": Tensor([1.0, 2.0]), "b": Tensor([3])}, f)
  raw = f.read_bytes()
  for n in range(len(raw)):
    cut.write_bytes(raw[:n])
    with pytest.raises(SafetensorsError, match=r"cut\.safetensors.*\n  fix: "):
      safe_load(cut)
  cut.write_bytes(raw + b"\0")
  with pytest.raises(SafetensorsError, match="the tensors are 12 bytes, and the file has 13"):
    safe_load(cut)


def test_flipped_bytes_are_a_typed_error_or_a_valid_file(tmp_path: Path):
  f, bad, rng, refused = tmp_path / "m.safetensors", tmp_path / "bad.safetensors", np.random.default_rng(0), 0
  safe_save({"a": Tensor([1.0, 2.0]), "b": Tensor([3])}, f, {"k": "v"})
  raw = f.read_bytes()
  for _ in range(500):
    b = bytearray(raw)
    for at in rng.integers(0, len(raw) - 12, rng.integers(1, 4)):
      b[at] = rng.integers(0, 256)
    bad.write_bytes(b)
    try:
      safe_load(bad)
    except SafetensorsError:
      refused += 1
  assert 300 < refused <= 500


@pytest.mark.parametrize(
  ("header", "size", "match"),
  [
    (b"[]", 0, "header: is a JSON list, not an object"),
    (b"{", 0, "header: is no JSON"),
    (b"[" * 100000, 0, "header: is no JSON"),
    (b'{"a": 1, "a": 2}', 0, "header: is no JSON: a name appears twice"),
    (b"\xff\xfe", 0, "header: is no JSON"),
    ({"__metadata__": {"a": 1}}, 0, "__metadata__: is no object of strings"),
    ({"a": {"dtype": "F32"}}, 0, "tensor 'a': has no dtype, shape and data_offsets"),
    ({"a": 3}, 0, "tensor 'a': has no dtype"),
    ({"a": entry("Q4", [1], 0, 4)}, 4, "its dtype 'Q4' is not supported\n  fix: convert it to one of BOOL, I8"),
    ({"a": entry("F32", [-1], 0, 4)}, 4, r"its shape \[-1\] is no list of sizes"),
    ({"a": entry("F32", [True], 0, 4)}, 4, r"its shape \[True\] is no list of sizes"),
    ({"a": entry("F32", [1 << 62], 0, 4)}, 4, "is no list of sizes"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4, r"its data_offsets \[0\] are no \[begin, end\]"),
    ({"a": entry("F32", [1], 4, 0)}, 4, "bytes 4 to 0 are not within the 4"),
    ({"a": entry("F32", [2], 0, 8)}, 4, "bytes 0 to 8 are not within the 4"),
    ({"a": entry("F32", [2], 0, 4)}, 4, r"F32 \[2\] is 8 bytes, and its data_offsets span 4"),
    ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, 6, "tensor 'b': overlaps the tensor before it"),
    ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 6, 10)}, 10, "tensor 'b': leaves a gap of 2 bytes"),
    ({"a": entry("F32", [1], 0, 4)}, 6, "data: the tensors are 4 bytes, and the file has 6"),
  ],
)
def test_each_damaged_field_has_its_error(tmp_path: Path, header: Any, size: int, match: str):
  f = file_of(tmp_path / "m.safetensors", header, bytes(size))
  with pytest.raises(SafetensorsError, match=match):
    safe_load(f)
  with pytest.raises(SafetensorsError, match=match):
    safe_load_metadata(f)


def test_a_header_length_beyond_the_file(tmp_path: Path):
  (tmp_path / "m").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
  with pytest.raises(SafetensorsError, match=f"header length: {1 << 63} bytes, and 2 follow"):
    safe_load(tmp_path / "m")
  with pytest.raises(FileNotFoundError):
    safe_load(tmp_path / "none")


# ---------------------------------------------------------------- state dicts


def test_names_are_dotted_paths():
  net = Net()
  Pair = namedtuple("Pair", "w b")
  net.pair = Pair(Tensor([1.0]), Tensor([2.0]))
  net.self = net  # an object that refers to itself
  assert list(get_state_dict(net)) == ["a", "layers.0", "layers.1.w", "pair.w", "pair.b"]
  assert list(get_state_dict(net, "net")) == ["net.a", "net.layers.0", "net.layers.1.w", "net.pair.w", "net.pair.b"]
  assert get_state_dict(net)["layers.1.w"] is net.layers[1]["w"]
  assert get_parameters(net) == list(get_state_dict(net).values())
  assert get_state_dict(net, tensor_type=str) == {"name": "net"}
  shared = {"a": net.a, "b": net.a}
  assert list(get_state_dict(shared)) == ["a", "b"]


def test_load_gives_the_values_at_the_models_placement(tmp_path: Path):
  source, net = Net(0), Net(10)
  net.a.shard_(D2, axis=0)
  placed = net.a.device
  safe_save(get_state_dict(source), tmp_path / "m.safetensors")
  loaded = load_state_dict(net, safe_load(tmp_path / "m.safetensors"))
  assert len(loaded) == 3 and loaded[0] is net.a and net.a.device is placed
  for got, want in zip(get_parameters(net), get_parameters(source)):
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_load_takes_the_dtype_of_the_state_dict():
  net, x = Net(), normal(0, 2, 3).astype(np.float16)
  load_state_dict(net, get_state_dict(Net(10)) | {"a": Tensor(x)})
  assert net.a.dtype is dtypes.float16
  np.testing.assert_array_equal(net.a.numpy(), x)


def test_load_refuses_and_changes_nothing():
  net = Net()
  before = [t.numpy() for t in get_parameters(net)]
  state = get_state_dict(Net(10))
  del state["layers.0"]
  with pytest.raises(StateError, match=r"1 of the model's 3 tensors are not in the state dict: \['layers.0'\]"):
    load_state_dict(net, state)
  with pytest.raises(KeyError):
    load_state_dict(net, state)
  state["layers.0"] = Tensor(normal(0, 5))
  with pytest.raises(StateError, match=r"'layers.0' is \[4\] in the model and \[5\] in the state dict\n  fix: build"):
    load_state_dict(net, state)
  for t, b in zip(get_parameters(net), before):
    np.testing.assert_array_equal(t.numpy(), b)


def test_not_strict_consume_and_unused(capsys: pytest.CaptureFixture[str]):
  net, state = Net(), get_state_dict(Net(10))
  kept = net.a.numpy()
  del state["a"]
  state["more"] = Tensor([1.0])
  with Context(DEBUG=1):
    loaded = load_state_dict(net, state, strict=False, consume=True, realize=False)
  assert "no place for ['more']" in capsys.readouterr().err
  assert len(loaded) == 2 and list(state) == ["more"]
  np.testing.assert_array_equal(net.a.numpy(), kept)
  np.testing.assert_array_equal(net.layers[0].numpy(), normal(11, 4))
