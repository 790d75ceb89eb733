"""The GGUF reader against files written by the `gguf` package, and against damaged ones."""

import struct
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from gguf import quants as oracle_quants

from extra.write_gguf import write_gguf
from tinygrad.nn.gguf import GGUF, GGUFError


def normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def small(tmp_path: Path) -> Path:
  """A small file with a value of every metadata type and a tensor of every tensor type, by the `gguf` package."""
  w = oracle.GGUFWriter(tmp_path / "small.gguf", "llama")
  w.add_uint8("t.u8", 200), w.add_int8("t.i8", -3), w.add_uint16("t.u16", 60000), w.add_int16("t.i16", -300)
  w.add_uint32("t.u32", 1 << 31), w.add_int32("t.i32", -(1 << 30)), w.add_uint64("t.u64", 1 << 63)
  w.add_int64("t.i64", -(1 << 62)), w.add_float32("t.f32", 0.5), w.add_float64("t.f64", 0.1), w.add_bool("t.b", True)
  w.add_string("t.s", "größe"), w.add_array("t.as", ["a", "ß", ""]), w.add_array("t.ai", [1, -2, 3])
  w.add_array("t.af", [0.5, 1.5])
  w.add_tensor("f32", normal(0, 3, 5))
  w.add_tensor("f16", normal(1, 2, 3, 4).astype(np.float16))
  w.add_tensor(
    "q8",
    oracle_quants.quantize(normal(2, 4, 64), oracle.GGMLQuantizationType.Q8_0),
    raw_dtype=oracle.GGMLQuantizationType.Q8_0,
  )
  w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
  return tmp_path / "small.gguf"


def read_all(path: Path) -> list[np.ndarray]:
  g = GGUF(path)
  out = []
  for name in g.tensors:
    out.append(g.blocks(name)[1])
  return [np.array(x) for x in out]


def test_metadata_of_every_type(small: Path):
  m = GGUF(small).metadata
  want = {"t.u8": 200, "t.i8": -3, "t.u16": 60000, "t.i16": -300, "t.u32": 1 << 31, "t.i32": -(1 << 30),
          "t.u64": 1 << 63, "t.i64": -(1 << 62), "t.f32": 0.5, "t.f64": 0.1, "t.b": True, "t.s": "größe",
          "t.as": ["a", "ß", ""], "t.ai": [1, -2, 3], "t.af": [0.5, 1.5], "general.architecture": "llama"}  # fmt: skip
  assert {k: m[k] for k in want} == want
  assert m["t.b"] is True


def test_tensors_of_every_type(small: Path):
  g = GGUF(small)
  np.testing.assert_array_equal(g.floats("f32"), normal(0, 3, 5))
  np.testing.assert_array_equal(g.floats("f16"), normal(1, 2, 3, 4).astype(np.float16))
  raw = g.blocks("q8")[1]
  assert (raw.shape, raw.dtype) == ((4, 2, 34), np.uint8)
  kind = oracle.GGMLQuantizationType.Q8_0
  want = oracle_quants.dequantize(oracle_quants.quantize(normal(2, 4, 64), kind), kind)
  np.testing.assert_array_equal(g.tensor("q8").numpy(), want)
  assert np.abs(want - normal(2, 4, 64)).max() > 0  # the quantised differ from the floats they came from


def test_views_are_of_the_map_and_read_only(small: Path):
  q = GGUF(small).blocks("q8")[1]
  assert not q.flags.owndata and not q.flags.writeable and np.shares_memory(q, q[1:3])
  assert q.strides == (68, 34, 1)


def test_writer_agrees_with_the_gguf_package(tmp_path: Path):
  x, wide = normal(3, 8, 96), normal(4, 5, 32) * 1e3
  wide[0] = 0  # a block whose scale is zero
  metadata = {"general.architecture": "llama", "a.bool": False, "a.int": 7, "a.neg": -7, "a.big": 1 << 40,
              "a.float": 1e-5, "a.list": ["x", "y"], "a.ints": [1, 2, -3], "a.floats": [0.5],
              "a.u8": np.uint8(3)}  # fmt: skip
  types = {"q": "Q8_0", "wide": "Q8_0", "h": "F16"}
  write_gguf(tmp_path / "o.gguf", metadata, {"q": x, "h": x, "f": x, "wide": wide, "v": x[0]}, types)
  assert [p.name for p in tmp_path.iterdir()] == ["o.gguf"]  # no temporary left
  g, o = GGUF(tmp_path / "o.gguf"), oracle.GGUFReader(tmp_path / "o.gguf")
  assert g.metadata == metadata | {"a.float": float(np.float32(1e-5))}
  assert o.fields["a.big"].contents() == 1 << 40 and o.fields["a.list"].contents() == ["x", "y"]
  kind = oracle.GGMLQuantizationType.Q8_0
  by_name = {t.name: t for t in o.tensors}
  for name, y in (("q", x), ("wide", wide)):
    np.testing.assert_array_equal(by_name[name].data, oracle_quants.quantize(y, kind))
    np.testing.assert_array_equal(g.tensor(name).numpy(), oracle_quants.dequantize(by_name[name].data, kind))
  np.testing.assert_array_equal(g.floats("h"), by_name["h"].data)
  np.testing.assert_array_equal(g.floats("f"), x)
  np.testing.assert_array_equal(g.floats("v"), x[0])


def test_writer_refuses(tmp_path: Path):
  with pytest.raises(ValueError, match="multiple of 32, not 33"):
    write_gguf(tmp_path / "o.gguf", {}, {"q": normal(0, 2, 33)}, {"q": "Q8_0"})
  with pytest.raises(ValueError, match="each key must be a tensor's name"):
    write_gguf(tmp_path / "o.gguf", {}, {"q": normal(0, 2, 32)}, {"q": "Q4_K"})
  with pytest.raises(TypeError, match="not dict"):
    write_gguf(tmp_path / "o.gguf", {"k": {}}, {})
  assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_a_typed_error(small: Path, tmp_path: Path):
  raw, cut = small.read_bytes(), tmp_path / "cut.gguf"
  end = max(t.offset + t.nbytes for t in GGUF(small).tensors.values())
  for n in range(end):
    cut.write_bytes(raw[:n])
    with pytest.raises(GGUFError, match=r"cut\.gguf.*\n  fix: "):
      GGUF(cut)
  cut.write_bytes(raw[:end])  # the padding after the last tensor is not needed
  assert len(read_all(cut)) == 3


def test_flipped_bytes_give_a_typed_error_or_a_valid_file(small: Path, tmp_path: Path):
  raw, bad, rng, refused = small.read_bytes(), tmp_path / "bad.gguf", np.random.default_rng(0), 0
  header = GGUF(small).tensors["f32"].offset
  for _ in range(1000):
    b = bytearray(raw)
    for at in rng.integers(0, header, rng.integers(1, 4)):
      b[at] = rng.integers(0, 256)
    bad.write_bytes(b)
    try:
      read_all(bad)
    except GGUFError:
      refused += 1
  assert 200 < refused < 1000  # some flips only change a value


def test_flipped_integers_give_a_typed_error_or_a_valid_file(small: Path, tmp_path: Path):
  """Every 8 bytes of the header in turn become an absurd number: counts, lengths, dims and offsets are all met."""
  raw, bad = small.read_bytes(), tmp_path / "bad.gguf"
  for absurd in (struct.pack("<Q", 1 << 62), struct.pack("<Q", 1 << 31)):
    for at in range(4, GGUF(small).tensors["f32"].offset - 8):
      bad.write_bytes(raw[:at] + absurd + raw[at + 8 :])
      try:
        read_all(bad)
      except GGUFError:
        continue


def patched(small: Path, old: bytes, new: bytes) -> Path:
  raw = small.read_bytes()
  assert raw.count(old) == 1, raw.count(old)
  out = small.parent / "patched.gguf"
  out.write_bytes(raw.replace(old, new))
  return out


def string(s: str) -> bytes:
  return struct.pack("<Q", len(s.encode())) + s.encode()


@pytest.mark.parametrize(
  ("old", "new", "match"),
  [
    (b"GGUF\x03", b"GGML\x03", r"magic at byte 0: starts with b'GGML'.*\n  fix: pass a .gguf file"),
    (b"GGUF\x03\0\0\0", b"GGUF\x01\0\0\0", r"version at byte 4: version 1 is not supported"),
    (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", r"version at byte 4: is big-endian"),
    (
      string("t.b") + b"\x07\0\0\0\x01",
      string("t.b") + b"\x07\0\0\0\x02",
      r"'t.b' at byte \d+: a bool is 0 or 1, not 2",
    ),
    (string("t.i8"), string("t.u8"), r"metadata key 2 at byte \d+: 't.u8' appears twice"),
    (string("t.s"), string("t.\n"), None),  # any other key is still a key
    ("größe".encode(), b"gr\xff\xff\xc3\x9fe", r"'t.s' at byte \d+: not UTF-8"),
    (string("t.b") + b"\x07", string("t.b") + b"\x0d", r"'t.b' at byte \d+: unknown value type 13"),
    (
      string("t.as") + b"\x09\0\0\0\x08",
      string("t.as") + b"\x09\0\0\0\x0d",
      r"'t.as' at byte \d+: unknown element type 13",
    ),
    (string("f32") + b"\x02", string("f32") + b"\x05", r"tensor 'f32': dims at byte \d+: 5 dims"),
    (string("f32") + b"\x02\0\0\0\x05", string("f32") + b"\x02\0\0\0\0", r"the shape \[3, 0\] is not possible"),
    (string("f16"), string("f32"), r"tensor 1 at byte \d+: the name 'f32' appears twice"),
    (
      b"\x40" + bytes(7) + b"\x04" + bytes(7) + b"\x08",
      b"\x40" + bytes(7) + b"\x04" + bytes(7) + b"\x26",
      r"its type is number 38; known are F32, F16, Q4_0.*\n  fix: .*llama-quantize",
    ),
    (
      b"\x40" + bytes(7) + b"\x04" + bytes(7) + b"\x08",
      b"\x41" + bytes(7) + b"\x04" + bytes(7) + b"\x08",
      r"rows of 65 are no whole number of Q8_0 blocks of 32",
    ),
    (
      b"\x40" + bytes(7) + b"\x04" + bytes(7) + b"\x08",
      b"\x40" + bytes(7) + b"\x05" + bytes(7) + b"\x08",
      r"tensor 'q8' at byte \d+: Q8_0 \[5, 64\] ends at byte \d+, and the file has \d+",
    ),
    (
      b"\x05" + bytes(7) + b"\x03" + bytes(7),
      b"\x05" + bytes(7) + b"\x06" + bytes(7),
      r"overlaps the tensor before it",
    ),
  ],
)
def test_each_damaged_field_has_its_error(small: Path, old: bytes, new: bytes, match: str | None):
  path = patched(small, old, new)
  if match is None:
    assert "t.\n" in GGUF(path).metadata
    return
  with pytest.raises(GGUFError, match=match):
    GGUF(path)


def test_offset_must_be_aligned(small: Path):
  second = struct.pack("<I", 1) + struct.pack("<Q", 64)  # F16, at 64
  path = patched(small, second, struct.pack("<I", 1) + struct.pack("<Q", 65))
  with pytest.raises(GGUFError, match="65 is no multiple of the alignment 32"):
    GGUF(path)


def test_alignment_must_be_a_power_of_two(tmp_path: Path):
  write_gguf(tmp_path / "a.gguf", {"general.alignment": 24}, {})
  with pytest.raises(GGUFError, match="'general.alignment'.*24 is not a power of two"):
    GGUF(tmp_path / "a.gguf")


def test_split_and_nested(tmp_path: Path):
  write_gguf(tmp_path / "a.gguf", {"split.count": 3}, {})
  with pytest.raises(GGUFError, match=r"split over several files\n  fix: merge"):
    GGUF(tmp_path / "a.gguf")
  nest = b"".join(struct.pack("<IQ", 9, 1) for _ in range(6)) + struct.pack("<IQ", 0, 1) + b"\1"
  (tmp_path / "n.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 9) + nest)
  with pytest.raises(GGUFError, match="nested more than 4 deep"):
    GGUF(tmp_path / "n.gguf")


def test_wrong_use_has_a_fix(small: Path):
  g = GGUF(small)
  with pytest.raises(GGUFError, match="'no.such': is missing"):
    g.get("no.such", int)
  with pytest.raises(GGUFError, match="'t.s': is a str, not a int"):
    g.get("t.s", int)
  with pytest.raises(GGUFError, match="'t.b': is a bool, not a int"):
    g.get("t.b", int)
  assert g.get("t.u8", float) == 200.0 and g.get("no.such", int, 4) == 4
  with pytest.raises(GGUFError, match="tensor 'none': is missing"):
    g.floats("none")
  with pytest.raises(GGUFError, match="is Q8_0, not F32 or F16"):
    g.floats("q8")
  with pytest.raises(GGUFError, match="is a directory"):
    GGUF(small.parent)
  with pytest.raises(FileNotFoundError):
    GGUF(small.parent / "none.gguf")
