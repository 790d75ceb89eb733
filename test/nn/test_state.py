"""State dicts, and safetensors files: round trips, files written by hand, and damaged ones."""

import fractions
import io
import json
import os
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit, dtypes, nn
from tinygrad.nn.gguf import GGUF, GGUFError
from tinygrad.nn.state import (
  CheckpointError,
  SafetensorsError,
  StateError,
  get_parameters,
  get_state_dict,
  gguf_load,
  load_state_dict,
  safe_load,
  safe_load_metadata,
  safe_save,
  tar_extract,
  torch_load,
  zip_extract,
)

D2 = ("CPU:0", "CPU:1")
DATA = Path(__file__).parents[1] / "data"


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


@pytest.mark.parametrize(
  "instruction", [b"r\0\0\0\x10", b"\x96\0\0\0\0\1\0\0\0", b"\x8d\0\0\0\0\1\0\0\0", b"p268435456\n"]
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_number_in_a_pickle_makes_no_room_for_itself(instruction, zipped, tmp_path):
  """The unpickler would take gigabytes to keep value number 2^28, or for a string whose length is 2^32."""
  body = b"\x80\x02]" + instruction + b"."
  if zipped:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as z:
      z.writestr("x/data.pkl", body)
  else:
    (tmp_path / "x.pt").write_bytes(body)
  tracemalloc.start()
  try:
    with pytest.raises(CheckpointError):
      torch_load(tmp_path / "x.pt")
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
  finally:
    tracemalloc.stop()


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
    "__metadata__": {"epoch": "3"},
    "a": entry("F32", [2], 0, 8),
    "b": entry("I32", [1, 1], 8, 12),
  }
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
  with pytest.raises(SafetensorsError, match="file not fully covered"):
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
    (b"[]", 0, "invalid JSON.*invalid type: sequence"),
    (b"{", 0, "invalid JSON.*EOF"),
    (b"[" * 100000, 0, "invalid JSON"),
    (b'{"a": 1, "a": 2}', 0, "invalid JSON.*expected struct TensorInfo"),
    (b"\xff\xfe", 0, "invalid UTF-8"),
    ({"__metadata__": {"a": 1}}, 0, "invalid JSON.*expected a string"),
    ({"a": {"dtype": "F32"}}, 0, "missing field `shape`"),
    ({"a": 3}, 0, "expected struct TensorInfo"),
    ({"a": entry("Q4", [1], 0, 4)}, 4, "unknown variant `Q4`"),
    ({"a": entry("C64", [1], 0, 8)}, 8, "'a': its dtype 'C64' is not supported\n  fix: convert it to one of BOOL, I8"),
    ({"a": entry("F32", [-1], 0, 4)}, 4, "invalid value: integer `-1`"),
    ({"a": entry("F32", [True], 0, 4)}, 4, "invalid type: boolean `true`"),
    ({"a": entry("F32", [1 << 62], 0, 4)}, 4, "overflow computing buffer size"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4, "invalid length 1, expected a tuple of size 2"),
    ({"a": entry("F32", [1], 4, 0)}, 4, "invalid offset for tensor `a`"),
    ({"a": entry("F32", [2], 0, 8)}, 4, "file not fully covered"),
    ({"a": entry("F32", [2], 0, 4)}, 4, "invalid shape, data type, or offset for tensor"),
    ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, 6, "invalid offset for tensor `b`"),
    ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 6, 10)}, 10, "invalid offset for tensor `b`"),
    ({"a": entry("F32", [1], 0, 4)}, 6, "file not fully covered"),
  ],
)
def test_each_damaged_field_has_its_error(tmp_path: Path, header: Any, size: int, match: str):
  f = file_of(tmp_path / "m.safetensors", header, bytes(size))
  with pytest.raises(SafetensorsError, match=match):
    safe_load(f)
  for source in (f, Tensor(f.read_bytes())):
    with pytest.raises(SafetensorsError, match=match):
      safe_load_metadata(source)


def test_a_name_that_appears_twice_is_an_error(tmp_path: Path):
  """The last one was taken."""
  f, entry = tmp_path / "m.safetensors", '"a":{"dtype":"%s","shape":[1],"data_offsets":[0,4]}'
  text = f"{{{entry % 'F32'},{entry % 'I32'}}}".encode()
  f.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
  with pytest.raises(SafetensorsError, match="m.safetensors: header: the name 'a' appears twice\n  fix: "):
    safe_load(f)


@pytest.mark.parametrize("shape, n", [([1] * 100, 4), ([0, 2**63], 0)])
def test_a_shape_that_no_array_has(shape: list[int], n: int, tmp_path: Path):
  f = tmp_path / "m.safetensors"
  text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, n]}}).encode()
  f.write_bytes(struct.pack("<Q", len(text)) + text + bytes(n))
  with pytest.raises(SafetensorsError, match="m.safetensors: tensor 'a': .*imension.*\n  fix: fewer dims"):
    safe_load(f)


def test_what_is_no_text_is_not_written(tmp_path: Path):
  """The file that was written could not be read."""
  x, half = Tensor([1.0]), "m\udcff"
  for tensors, metadata in (({half: x}, {}), ({1: x}, {}), ({"a": x}, {"k": half}), ({"a": x}, {half: 1})):
    with pytest.raises(SafetensorsError, match="is no Unicode text\n  fix: a str without halves"):
      safe_save(tensors, tmp_path / "m.safetensors", metadata)
  assert not list(tmp_path.iterdir())
  safe_save({"größe": x}, tmp_path / "m.safetensors", {"ü": "ö"})
  assert list(safe_load(tmp_path / "m.safetensors")) == ["größe"]


def test_a_header_length_beyond_the_file(tmp_path: Path):
  (tmp_path / "m").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
  with pytest.raises(SafetensorsError, match="header too large"):
    safe_load(tmp_path / "m")
  with pytest.raises(FileNotFoundError):
    safe_load(tmp_path / "none")


# ---------------------------------------------------------------- archives


FILES = {"a.txt": b"hello", "folder/b": bytes(range(256)) * 4, "empty": b""}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_tar_archives(tmp_path: Path, mode: Any):
  with tarfile.open(tmp_path / "x.tar", mode) as tar:
    for name, content in FILES.items():
      info = tarfile.TarInfo(name)
      info.size = len(content)
      tar.addfile(info, io.BytesIO(content))
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE
    tar.addfile(folder)
  for source in (tmp_path / "x.tar", Tensor((tmp_path / "x.tar").read_bytes()), Tensor(tmp_path / "x.tar")):
    got = tar_extract(source)
    assert {name: t.numpy().tobytes() for name, t in got.items()} == FILES
    assert all(t.dtype is dtypes.uint8 for t in got.values())


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_archives(tmp_path: Path, how: int):
  with zipfile.ZipFile(tmp_path / "x.zip", "w", how) as archive:
    archive.mkdir("folder")
    for name, content in FILES.items():
      archive.writestr(name, content)
  for source in (tmp_path / "x.zip", str(tmp_path / "x.zip"), Tensor((tmp_path / "x.zip").read_bytes())):
    assert {name: t.numpy().tobytes() for name, t in zip_extract(source).items()} == FILES


def test_damaged_archives(tmp_path: Path):
  with pytest.raises(CheckpointError, match=r"tensor: is no whole tar archive.*\n  fix: "):
    tar_extract(Tensor(b"no archive"))
  with pytest.raises(CheckpointError, match="tensor: is no whole zip archive"):
    zip_extract(Tensor(b"no archive"))
  with pytest.raises(CheckpointError, match="is no whole zip archive: x is not 4 bytes, or compressed in a way"):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as archive:
      archive.writestr("x", b"1234")
    zip_extract(tmp_path / "x.zip")
  with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
    archive.writestr("x", b"1234")
  locked = bytearray((tmp_path / "x.zip").read_bytes())
  locked[locked.index(b"PK\1\2") + 8] |= 1  # the flags that the directory has
  with pytest.raises(CheckpointError, match="is no whole zip archive: x is encrypted"):
    zip_extract(Tensor(bytes(locked)))


def packed(how: str, folder: Path) -> bytes:
  if how == "zip":
    with zipfile.ZipFile(folder / "packed", "w", zipfile.ZIP_DEFLATED) as archive:
      archive.writestr("x", FILES["folder/b"])
  else:
    with tarfile.open(folder / "packed", how) as tar:
      (info := tarfile.TarInfo("x")).size = len(FILES["folder/b"])
      tar.addfile(info, io.BytesIO(FILES["folder/b"]))
  return (folder / "packed").read_bytes()


@pytest.mark.parametrize("how", ["zip", "w:gz", "w:bz2", "w:xz"])
def test_a_flipped_bit_of_a_compressed_archive_is_an_error_or_changes_nothing(how: str, tmp_path: Path):
  good, refused = packed(how, tmp_path), 0
  for at in range(40, len(good), 3):
    bad = bytearray(good)
    bad[at] ^= 1 << at % 8
    try:
      found = (zip_extract if how == "zip" else tar_extract)(Tensor(bytes(bad)))
    except CheckpointError:
      refused += 1
    else:
      assert all(t.numpy().tobytes() == FILES["folder/b"] for t in found.values())
  assert refused > len(good) // 8


READERS = (safe_load, safe_load_metadata, gguf_load, torch_load, tar_extract, zip_extract, Tensor)


@pytest.mark.parametrize("read", READERS, ids=lambda f: f.__name__)
def test_what_is_no_file_is_said_at_once(read: Any, tmp_path: Path):
  """A pipe was waited for, for ever; a device was an empty file."""
  os.mkfifo(tmp_path / "pipe")
  for path in (tmp_path / "pipe", Path("/dev/zero")):
    with pytest.raises(OSError, match=f"{path} is a pipe or a device, and no file\n  fix: write its bytes to a file"):
      read(path)


# ---------------------------------------------------------------- PyTorch's files


@pytest.mark.parametrize("name", ["torch_zip.pt", "torch_legacy.pt"])
def test_files_of_torch_save(name: str):
  """Against the values that make_torch_files.py gave them."""
  x = np.arange(24, dtype=np.float32).reshape(4, 6)
  for source in (DATA / name, str(DATA / name), Tensor((DATA / name).read_bytes()), Tensor(DATA / name)):
    got: Any = torch_load(source)
    assert got["epoch"] == 3 and got["size"] == (4, 6)
    assert list(got["model"]) == [
      "0.weight",
      "0.bias",
      "1.weight",
      "1.bias",
      "1.running_mean",
      "1.running_var",
      "1.num_batches_tracked",
    ]
    np.testing.assert_array_equal(got["model"]["0.weight"].numpy(), np.arange(6).reshape(2, 3))
    for t, want in zip(got["views"], (x.T, x[1:3, ::2], x), strict=True):
      np.testing.assert_array_equal(t.numpy(), want)
    assert got["param"].dtype is dtypes.bfloat16 and got["param"].tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert got["scalar"].shape == () and got["scalar"].item() == 3 and got["empty"].shape == (0, 3)
    kinds = ["int8", "uint8", "int16", "int32", "bool", "float16", "float64"]
    kinds += ["uint16", "fp8e4m3", "fp8e5m2"] if "zip" in name else []
    for t, kind in zip(got["types"], kinds, strict=True):
      assert t.dtype.name == kind and [float(v) for v in t.tolist()] == ([0, 1, 1] if kind == "bool" else [0, 1, 2])
    assert not hasattr(got["args"], "lr")  # an object of a class that no checkpoint needs


class Evil:
  def __init__(self, path: str):
    self.path = path

  def __reduce__(self) -> Any:
    return open, (self.path, "w")


def test_no_code_of_the_file_is_run(tmp_path: Path):
  evil, mark = tmp_path / "evil.pt", tmp_path / "mark"
  with zipfile.ZipFile(evil, "w") as archive:
    archive.writestr("x/data.pkl", pickle.dumps({"a": Evil(str(mark)), "b": 1}))
  assert torch_load(evil)["b"] == 1 and not mark.exists()
  pickle.loads(pickle.dumps(Evil(str(mark)))).close()
  assert mark.exists()  # Python's own unpickler runs it


def called(function: str, *args: Any) -> bytes:
  """The opcodes of a function, `module name`, called with what the opcodes `args` make."""
  return b"c" + function.replace(" ", "\n").encode() + b"\n(" + b"".join(args) + b"tR"


def plain(x: Any) -> bytes:
  return pickle.dumps(x, 2)[2:-1]


def test_what_else_torch_save_writes(tmp_path: Path):
  """Tensors without elements, whose strides tell nothing; bytes; tensors with attributes."""
  for size, stride in (((2, 0), (1, 1)), ((4, 0, 1), (1, 4, 1)), ((0,), (1,))):
    got: Any = torch_load(saved_by_hand(tmp_path, rebuilt(4, size, stride)))
    assert got.shape == size and got.dtype is dtypes.float32
  got = torch_load(saved_by_hand(tmp_path, plain([1]) + plain(b"a\xff") + b"a"))
  assert got == [1, b"a\xff"]
  inner = rebuilt(1, (2,), (1,))  # rebuild, its arguments
  function, args = inner[: inner.index(b"(")], inner[inner.index(b"(") : -1]
  kind = b"ctorch.nn.parameter\nBuffer\n"
  with_state = called("torch._tensor _rebuild_from_type_v2", function, kind, args, plain({"note": 1}))
  got = torch_load(saved_by_hand(tmp_path, with_state))
  assert got.tolist() == [1, 2]


def test_tensors_of_other_kinds_are_told(tmp_path: Path):
  for name in ("_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_meta_tensor_no_storage"):
    with pytest.raises(CheckpointError, match=rf"made by torch\._utils\.{name}(.|\n)*fix: save what is dense"):
      torch_load(saved_by_hand(tmp_path, called(f"torch._utils {name}")))
  for storage in ("ComplexFloatStorage", "QInt8Storage"):
    told = f"<class '{storage}'>.*no storage of a known type\n  fix: .*view_as_real"
    with pytest.raises(CheckpointError, match=told):
      torch_load(saved_by_hand(tmp_path, rebuilt(0, (1,), (1,), storage.encode())))
  pid = b"(" + plain("storage") + b"ctorch\nUntypedStorage\n" + plain("0") + plain("cpu") + plain(4) + b"tQ"
  rest = b"".join(map(plain, (0, (1,), (1,), False, None)))
  body = called("torch._utils _rebuild_tensor_v3", pid, rest, b"ctorch\ncomplex32\n")
  told = "holds a tensor of <class 'complex32'>, no known type\n  fix: .*view_as_real"
  with pytest.raises(CheckpointError, match=told):
    torch_load(saved_by_hand(tmp_path, body))


def test_damaged_torch_files(tmp_path: Path):
  raw, bad, refused = (DATA / "torch_zip.pt").read_bytes(), tmp_path / "bad.pt", 0
  for n in range(0, len(raw), 97):
    bad.write_bytes(raw[:n])
    with pytest.raises(CheckpointError, match=r"bad\.pt: .*\n  fix: "):
      torch_load(bad)
  legacy = (DATA / "torch_legacy.pt").read_bytes()
  for n in range(0, len(legacy), 31):
    bad.write_bytes(legacy[:n])
    with pytest.raises(CheckpointError, match=r"bad\.pt: .*\n  fix: "):
      torch_load(bad)
  rng = np.random.default_rng(0)
  for _ in range(300):
    b = bytearray(legacy)
    for at in rng.integers(0, len(b), 3):
      b[at] = rng.integers(0, 256)
    bad.write_bytes(b)
    try:
      torch_load(bad)
    except CheckpointError:
      refused += 1
  assert 100 < refused < 300


def saved_by_hand(tmp_path: Path, body: bytes) -> Path:
  """A zip file whose pickle is `body`, after the protocol's opcode, with one storage of 4 floats."""
  with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
    archive.writestr("x/data.pkl", pickle.PROTO + b"\x02" + body + pickle.STOP)
    archive.writestr("x/data/0", np.arange(4, dtype="<f4").tobytes())
  return tmp_path / "x.pt"


def rebuilt(offset: int, size: Any, stride: Any, storage: bytes = b"FloatStorage", key: str = "0") -> bytes:
  """The opcodes of _rebuild_tensor_v2(storage, offset, size, stride, False, None)."""
  pid = b"(" + pickle.dumps("storage", 2)[2:-1] + b"ctorch\n" + storage + b"\n" + pickle.dumps(key, 2)[2:-1]
  pid += pickle.dumps("cpu", 2)[2:-1] + pickle.dumps(4, 2)[2:-1] + b"tQ"
  rest = b"".join(pickle.dumps(v, 2)[2:-1] for v in (offset, size, stride, False, None))
  return b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + rest + b"tR"


@pytest.mark.parametrize("kind", ["FloatStorage", "NoStorage"])
def test_what_is_no_storage_is_told_in_short(kind: str, tmp_path: Path):
  """The storage's key is a tuple that is written with 2**60 letters; of few bytes, since its halves are one object."""
  deep: Any = ()
  for _ in range(60):
    deep = (deep, deep)
  key = pickle.dumps(deep, 0)[:-1].decode()
  with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
    archive.writestr("m/data.pkl", f"(S'storage'\nctorch\n{kind}\n{key}S'cpu'\nI1\ntQ.")
  with pytest.raises(CheckpointError, match=r"m.pt: holds \('storage', .{,2000}, which is no storage of a known type"):
    torch_load(tmp_path / "m.pt")


def test_tensors_that_do_not_fit_their_storage(tmp_path: Path):
  assert torch_load(saved_by_hand(tmp_path, rebuilt(1, (3,), (1,)))).tolist() == [1, 2, 3]  # type: ignore[attr-defined]
  for offset, size, stride in ((2, (3,), (1,)), (0, (2, 2), (3, 1)), (-1, (2,), (1,)), (0, (2,), (-1,))):
    with pytest.raises(CheckpointError, match=r"a tensor \[.*\] does not lie in its storage '0'"):
      torch_load(saved_by_hand(tmp_path, rebuilt(offset, size, stride)))
  with pytest.raises(CheckpointError, match="has no storage '7'"):
    torch_load(saved_by_hand(tmp_path, rebuilt(0, (1,), (1,), key="7")))
  with pytest.raises(CheckpointError, match="which is no storage of a known type"):
    torch_load(saved_by_hand(tmp_path, rebuilt(0, (1,), (1,), b"ComplexFloatStorage")))
  with zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
    archive.writestr("weights", b"")
  with pytest.raises(CheckpointError, match="is a zip archive without data.pkl"):
    torch_load(tmp_path / "y.pt")


# ---------------------------------------------------------------- GGUF


def file_of_blocks(path: Path, kind: gguf.GGMLQuantizationType, blocks: np.ndarray) -> Path:
  """A file of one tensor `x`, a row of whole blocks."""
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_tensor("x", blocks.reshape(1, -1), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "TQ2_0", "IQ4_XS",
         "IQ4_NL"]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_quantised_types(tmp_path: Path, name: str):
  kind, rng = gguf.GGMLQuantizationType[name], np.random.default_rng(0)
  weights, nbytes = gguf.GGML_QUANT_SIZES[kind]
  # bytes of at most 59: two of them are a finite float16, wherever a type has its scales
  blocks = rng.integers(0, 60, (9, nbytes)).astype(np.uint8)
  _, tensors = gguf_load(file_of_blocks(tmp_path / "m.gguf", kind, blocks))
  want = gguf.quants.dequantize(blocks, kind).reshape(1, 9 * weights)
  assert np.isfinite(want).all() and len(np.unique(want)) > 10
  np.testing.assert_array_equal(tensors["x"].numpy(), want)


def test_a_quantised_block_by_hand(tmp_path: Path):
  """Q4_0: a float16 scale, then the low and the high halves of 16 bytes, less 8."""
  block = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8) * 16 + 3])
  _, tensors = gguf_load(file_of_blocks(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_0, block))
  assert tensors["x"].tolist() == [[-2.5] * 16 + [0.5 * (k - 8) for k in range(16)]]


def test_a_type_without_values(tmp_path: Path):
  path = file_of_blocks(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_1, np.zeros(40, np.uint8))
  with pytest.raises(GGUFError, match="tensor 'x': is Q8_1, a type without values\n  fix: "):
    gguf_load(path)


def test_gguf_files(tmp_path: Path):
  path, x = tmp_path / "m.gguf", normal(0, 4, 256)
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_uint32("llama.block_count", 2)
  writer.add_tensor("f32", x)
  writer.add_tensor("i32", np.arange(6, dtype=np.int32).reshape(2, 3))
  kinds = {k: gguf.GGMLQuantizationType[k] for k in ("BF16", "Q8_0", "Q4_0", "Q5_1")}
  packed = {k: gguf.quants.quantize(x, kind) for k, kind in kinds.items()}
  for k, kind in kinds.items():
    writer.add_tensor(k, packed[k], raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  for source in (path, str(path), Tensor(path.read_bytes())):
    metadata, tensors = gguf_load(source)
    assert metadata["llama.block_count"] == 2 and list(tensors) == ["f32", "i32", *kinds]
    np.testing.assert_array_equal(tensors["f32"].numpy(), x)
    assert tensors["i32"].dtype is dtypes.int32 and tensors["i32"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["BF16"].dtype is dtypes.bfloat16
    for k, kind in kinds.items():
      np.testing.assert_array_equal(tensors[k].numpy(), gguf.quants.dequantize(packed[k], kind))
  with pytest.raises(GGUFError, match="'Q4_0'.*is Q4_0, not F32 or F16\n  fix: "):
    GGUF(path).floats("Q4_0")
  with pytest.raises(GGUFError, match="GGUF tensor: magic"):
    gguf_load(Tensor(b"no gguf file"))


# ---------------------------------------------------------------- state dicts


def test_names_are_dotted_paths():
  net = Net()
  Pair = namedtuple("Pair", "w b")
  net.pair = Pair(Tensor([1.0]), Tensor([2.0]))
  net.self = net  # an object that refers to itself
  assert list(get_state_dict(net)) == ["a", "layers.0", "layers.1.w", "pair.w", "pair.b"]
  assert list(get_state_dict(net, "net.")) == ["net.a", "net.layers.0", "net.layers.1.w", "net.pair.w", "net.pair.b"]
  # a prefix is text, as tinygrad's and PyTorch's are: it brings its own dot
  assert list(get_state_dict(net, "my_"))[:2] == ["my_a", "my_layers.0"]
  assert list(get_state_dict([net.a], "m.")) == ["m.0"] and list(get_state_dict(net.a, "m.")) == ["m"]
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


def test_floats_stay_floats_and_integers_integers():
  """A float parameter became one of integers, which no step trains."""
  given = {"weight": Tensor([[1, 2]]), "count": Tensor([3.0])}
  model = {"weight": Tensor.zeros(1, 2, dtype=dtypes.float16), "count": Tensor([0])}
  load_state_dict(model, given, verbose=False)
  assert (model["weight"].dtype, model["count"].dtype) == (dtypes.float16, dtypes.int32)
  assert model["weight"].tolist() == [[1, 2]] and model["count"].tolist() == [3]


@pytest.mark.parametrize("sharded", (False, True))
def test_a_captured_step_sees_what_is_loaded(sharded: bool, tmp_path: Path):
  """As one does that goes back to the best weights. It replayed those of the capture."""
  net = Net(0)
  if sharded:
    net.a.shard_(D2, axis=0)
  Tensor.realize(*get_parameters(net))
  total = TinyJit(lambda x: (net.a * x).sum() + net.layers[0].sum())
  before = [total(Tensor([2.0])).item() for _ in range(3)]
  safe_save(get_state_dict(Net(10)), tmp_path / "m.safetensors")
  load_state_dict(net, safe_load(tmp_path / "m.safetensors"))
  want = sum(float(t.numpy().sum()) * k for t, k in ((net.a, 2), (net.layers[0], 1)))
  assert abs(total(Tensor([2.0])).item() - want) < 1e-5 < abs(before[-1] - want)


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


def test_a_file_that_holds_a_whole_object_says_so(tmp_path):
  """As `torch.save(model)` writes it: its class is not here, and no code of the file is run."""
  for name, zipped in (("a.pth", True), ("b.pth", False)):
    data = pickle.dumps(fractions.Fraction(1, 2), 2)
    if zipped:
      with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("a/data.pkl", data)
    else:
      head = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})]
      (tmp_path / name).write_bytes(b"".join([*head, data, pickle.dumps([], 2)]))
    with pytest.raises(CheckpointError, match=rf"{name}: holds an object of a class(.|\n)*fix: .*state_dict\(\)"):
      torch_load(tmp_path / name)


def test_arguments_in_another_order_are_told(tmp_path: Path):
  """They were TypeErrors of the inside, or said that the state dict has the letters of a path."""
  model, path = nn.Linear(2, 2), str(tmp_path / "model.safetensors")
  given: Any = model
  with pytest.raises(StateError, match=r"the state dict is a Linear(.|\n)*fix: get_state_dict\(state_dict\)") as said:
    load_state_dict(nn.Linear(2, 2), given)
  names = {"get_state_dict": get_state_dict, "safe_load": safe_load, "state_dict": model}
  load_state_dict(other := nn.Linear(2, 2), eval(str(said.value).partition("fix: ")[2], names), verbose=False)
  assert other.weight.tolist() == model.weight.tolist()
  tensors, swapped = get_state_dict(model), safe_save
  with pytest.raises(TypeError, match=r"the tensors come first(.|\n)*fix: safe_save") as said_of_save:
    swapped(path, tensors)  # type: ignore[arg-type]
  eval(str(said_of_save.value).partition("fix: ")[2], {"safe_save": safe_save, "tensors": tensors, "path": path})
  given = path
  with pytest.raises(StateError, match=r"the state dict is a str") as said:
    load_state_dict(nn.Linear(2, 2), given)
  load_state_dict(other := nn.Linear(2, 2), eval(str(said.value).partition("fix: ")[2], names), verbose=False)
  assert other.weight.tolist() == model.weight.tolist()


OTHER_FORMATS = {
  b"GGUF" + b"\0" * 60: "gguf_load",
  b"PK\x03\x04" + b"\0" * 60: "torch_load",
  b"\x80\x02" + b"\0" * 60: "torch_load",
  b"\x02" + b"\0" * 7 + b"{}": "safe_load",
  b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "git lfs pull",
  b"\n<!DOCTYPE html><html>not found</html>": "download the file itself",
  b"hello world, this is a text": "",
}


@pytest.mark.parametrize("load", [safe_load, torch_load, nn.state.gguf_load])
@pytest.mark.parametrize("data", OTHER_FORMATS, ids=lambda data: repr(data[:4]))
def test_a_file_in_another_format_says_what_reads_it(tmp_path: Path, load: Any, data: bytes):
  wanted = OTHER_FORMATS[data]
  path = tmp_path / "model.bin"
  path.write_bytes(data)
  if wanted == load.__name__:
    return
  with pytest.raises(ValueError, match="model.bin") as said:
    load(path)
  fix = str(said.value).partition("\n  fix: ")[2]
  assert wanted in fix if wanted else fix.startswith(("the file is damaged", "pass a .gguf file"))


def test_an_array_in_a_state_dict_is_told_before_anything_is_loaded():
  layer = nn.Linear(2, 1)
  before = layer.weight.tolist()
  with pytest.raises(
    nn.state.StateError,
    match=r"(?s)'bias' is a numpy.ndarray .*, no Tensor of tinygrad.*fix: Tensor\(state_dict\['bias'\]\)",
  ):
    nn.state.load_state_dict(layer, {"weight": Tensor.ones(1, 2), "bias": np.ones(1, np.float32)}, verbose=False)
  assert layer.weight.tolist() == before


@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 1), lambda: Tensor([1.0])])
def test_what_is_no_mapping_is_told_how_it_is_saved(make, tmp_path):
  names = {"model": make(), "x": Tensor([1.0]), "path": tmp_path / "m.safetensors"}
  names |= {"safe_save": safe_save, "get_state_dict": nn.state.get_state_dict}
  with pytest.raises(SafetensorsError, match=r"tensors by name, and not one (Linear|Tensor)\n  fix: ") as e:
    safe_save(names["model"], names["path"])
  eval(str(e.value).partition("fix: ")[2], names)
  assert safe_load(names["path"])
