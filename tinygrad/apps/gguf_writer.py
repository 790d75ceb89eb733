"""Write GGUF files (version 3, little-endian) with F32, F16 and Q8_0 tensors; needs numpy only.

  write_gguf("out.gguf", {"general.architecture": "llama"}, {"output.weight": x}, {"output.weight": "Q8_0"})

Metadata values are bool, int (u32, or the smallest of i32, u64, i64 that holds it), float (f32), str, lists of one of
these (ints as i32), or numpy scalars and arrays, which keep their type.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from tinygrad.helpers import atomic_write

ALIGNMENT = 32
TYPES = {"F32": 0, "F16": 1, "Q8_0": 8}
VALUE_TYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}
STRING, ARRAY = 8, 9


def quantize_q8_0(x: np.ndarray) -> bytes:
  """Blocks of 32 weights of a row as a float16 scale d = max|x| / 127 and int8 round(x / d), halves away from zero."""
  if x.shape[-1] % 32:
    raise ValueError(f"Q8_0 needs rows of a multiple of 32, not {x.shape[-1]}; fix: write this tensor as F16")
  b = np.ascontiguousarray(x, np.float32).reshape(-1, 32)
  d = np.abs(b).max(1, keepdims=True) / np.float32(127)
  with np.errstate(divide="ignore"):
    inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
  y = b * inverse
  q = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(np.int8)
  return np.concatenate([d.astype("<f2").view(np.uint8), q.view(np.uint8)], axis=1).tobytes()


def _string(s: str) -> bytes:
  raw = s.encode()
  return struct.pack("<Q", len(raw)) + raw


def _number(v: Any) -> np.ndarray:
  if isinstance(v, (np.ndarray, np.generic)):
    return np.asarray(v)
  if isinstance(v, bool):
    return np.asarray(v)
  if isinstance(v, float):
    return np.asarray(v, np.float32)
  if isinstance(v, int):
    fits = [t for t in (np.uint32, np.int32, np.uint64, np.int64) if np.iinfo(t).min <= v <= np.iinfo(t).max]
    return np.asarray(v, fits[0])
  rule = "GGUF metadata holds bool, int, float, str and lists of them"
  raise TypeError(f"{rule}, not {type(v).__name__}\n  fix: json.dumps(value) is a string")


def _value(v: Any) -> bytes:
  """A typed metadata value: its type number and its bytes."""
  if isinstance(v, str):
    return struct.pack("<I", STRING) + _string(v)
  if isinstance(v, (list, tuple)) and v and isinstance(v[0], str):
    return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(_string, v))
  if isinstance(v, (list, tuple)):
    x = np.asarray(v)
    v = x.astype(np.int32) if x.dtype.kind == "i" else x.astype(np.float32) if x.dtype.kind == "f" else x
  x = _number(v)
  kind, raw = VALUE_TYPES[x.dtype.str[1:]], x.astype(x.dtype.newbyteorder("<")).tobytes()
  return struct.pack("<I", kind) + raw if x.ndim == 0 else struct.pack("<IIQ", ARRAY, kind, x.size) + raw


def _write(
  f: IO[bytes], metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray], types: Mapping[str, str]
) -> None:
  f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
  for k, v in metadata.items():
    f.write(_string(k) + _value(v))
  data: list[bytes] = []
  offset = 0
  for name, x in tensors.items():
    kind = types.get(name, "F32")
    raw = quantize_q8_0(x) if kind == "Q8_0" else x.astype("<f2" if kind == "F16" else "<f4").tobytes()
    dims = x.shape[::-1]  # the fastest-moving first
    f.write(_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind], offset))
    data.append(raw + bytes(-len(raw) % ALIGNMENT))
    offset += len(data[-1])
  f.write(bytes(-f.tell() % ALIGNMENT))
  f.writelines(data)


def write_gguf(
  path: str | os.PathLike[str],
  metadata: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  types: Mapping[str, str] | None = None,
) -> None:
  """Write `tensors` (row-major; F32 unless `types` says F16 or Q8_0) to `path`, whole or not at all."""
  types = types or {}
  if bad := {k: t for k, t in types.items() if t not in TYPES or k not in tensors}:
    rule = f"each key must be a tensor's name and each value one of {', '.join(TYPES)}"
    raise ValueError(f"types: {bad}; {rule}\n  fix: leave out what is none, and it is F32")
  with atomic_write(path) as f:
    _write(f, metadata, tensors, types)
