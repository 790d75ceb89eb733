"""The tensors of a model by name, and the files that hold them: safetensors, PyTorch's, GGUF, tar and zip archives.

A safetensors file is a u64 length, a JSON header of that length, and the tensors' bytes, little-endian and row-major:
  {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {"key": "value"}}
Offsets count from the end of the header, and the tensors cover the rest of the file without gap or overlap.
Source: the format section of https://huggingface.co/docs/safetensors.
"""

import io
import json
import mmap
import os
import pickle
import pickletools
import struct
import sys
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, BinaryIO, TypeVar

from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.engine.realize import host_blocks
from tinygrad.helpers import DEBUG, Context, LazyModule, atomic_write, children_of, numpy, prod, tqdm
from tinygrad.nn.gguf import GGUF, PLAIN, File, FilePath, contents
from tinygrad.tensor import Tensor
from tinygrad.uop import Ops

safetensors, tarfile, zipfile = map(LazyModule, ("safetensors", "tarfile", "zipfile"))
T = TypeVar("T")
REFETCH = "the file is damaged or incomplete: download or write it again"
SAFE_DTYPES = {"BOOL": dtypes.bool, **PLAIN, "F8_E4M3": dtypes.fp8e4m3, "F8_E5M2": dtypes.fp8e5m2}
SAFE_NAMES = {d: name for name, d in SAFE_DTYPES.items()}


class CheckpointError(ValueError):
  """A file of tensors that cannot be used: names the file, what is wrong, and a fix."""

  def __init__(self, source: str, problem: str, fix: str = REFETCH):
    super().__init__(f"{source}: {problem}\n  fix: {fix}")


class SafetensorsError(CheckpointError):
  """A safetensors file that cannot be used: names the file, the field, and a fix."""


class StateError(KeyError, ValueError):
  """A state dict that does not go with its model: names the key, and a fix. (A KeyError would print its repr.)"""

  def __str__(self) -> str:
    return str(self.args[0])


# ---------------------------------------------------------------- safetensors


def _header(fn: File) -> tuple[memoryview, int, dict[str, Any]]:
  """(the file's bytes, where the tensors begin in them, the header, which the package safetensors has checked)."""
  source, data = contents(fn)
  try:
    if isinstance(fn, Tensor):
      safetensors.deserialize(bytes(data))
    else:
      safetensors.safe_open(fn, "np").__exit__(None, None, None)
  except safetensors.SafetensorError as e:
    raise SafetensorsError(f"safetensors {source}", f"header: {e}") from e
  start = 8 + int.from_bytes(data[:8], "little")
  header: dict[str, Any] = json.loads(bytes(data[8:start]))
  for name, entry in header.items():
    if name != "__metadata__" and entry["dtype"] not in SAFE_DTYPES:
      problem = f"tensor {name!r}: its dtype {entry['dtype']!r} is not supported"
      raise SafetensorsError(f"safetensors {source}", problem, f"convert it to one of {', '.join(SAFE_DTYPES)}")
  return data, start, header


def safe_load_metadata(t: File) -> tuple[Tensor, int, dict[str, Any]]:
  """(the file's bytes as a uint8 tensor, where the tensors' data begin in it, the header).

  `t` is a path or a uint8 tensor. Raises: SafetensorsError for a file that is not as the format says; OSError.
  """
  data, start, header = _header(t)
  return t if isinstance(t, Tensor) else _bytes_tensor(data), start, header


def safe_load(fn: File) -> dict[str, Tensor]:
  """The tensors of a safetensors file (a path, or its bytes as a uint8 tensor) by name.

  The file is mapped: a tensor's bytes are read when it is used, and a device that takes a slice receives only that.
  Raises: SafetensorsError for a file that is not as the format says; OSError where it cannot be opened.
  """
  data, start, header = _header(fn)
  header.pop("__metadata__", None)
  out: dict[str, Tensor] = {}
  for name, entry in header.items():
    begin, end = entry["data_offsets"]
    view = numpy.frombuffer(data[start + begin : start + end], to_numpy_dtype(SAFE_DTYPES[entry["dtype"]]))
    out[name] = Tensor(view.reshape(entry["shape"]))
  return out


def safe_save(tensors: Mapping[str, Tensor], fn: FilePath, metadata: Mapping[str, Any] | None = None) -> None:
  """Write `tensors` by name to the safetensors file `fn`, whole or not at all; `metadata` values are kept as strings.

  A sharded tensor is written as the one tensor it is, from the devices' own memory: it is on no device as a whole.
  """
  header: dict[str, Any] = {"__metadata__": {str(k): str(v) for k, v in metadata.items()}} if metadata else {}
  offset = 0
  for name, t in tensors.items():
    if t.dtype not in SAFE_NAMES or name == "__metadata__":
      fix = f"rename it, or cast it to one of {', '.join(d.name for d in SAFE_NAMES)}"
      problem = f"tensor {name!r}: {t.dtype} under this name cannot be written"
      raise SafetensorsError(f"safetensors {os.fspath(fn)}", problem, fix)
    nbytes = t.nbytes()
    header[name] = {"dtype": SAFE_NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + nbytes]}
    offset += nbytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # so that the data begin aligned
  with atomic_write(fn) as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for t in tensors.values():
      _write_blocks(f, t)


def _write_blocks(f: BinaryIO, t: Tensor) -> None:
  """The elements of `t` in row-major order, from the memory of the devices that hold them to the pages of the file."""
  if t.uop.op is not Ops.BUFFER and 0 not in t.shape:
    with Context(NO_GRAD=0):
      t = t.contiguous().realize()
  start, shape = f.tell(), t.numpy_shape()
  end = f.seek(prod(shape) * t.dtype.itemsize, os.SEEK_CUR)
  if start == end:
    return
  os.posix_fallocate(f.fileno(), start, end - start)  # a full disk is an error here, and a crash in mapped memory
  with mmap.mmap(f.fileno(), end) as pages:
    whole = numpy.ndarray(shape, to_numpy_dtype(t.dtype), pages, start)
    for box, block in host_blocks(t.uop).items():
      whole[tuple(slice(*span) for span in box)] = block
    del whole


# ---------------------------------------------------------------- archives


def _bytes_tensor(data: memoryview) -> Tensor:
  return Tensor(numpy.frombuffer(data, numpy.uint8))


def tar_extract(t: File) -> dict[str, Tensor]:
  """The files of a tar archive (compressed or not) by name, as uint8 tensors. Raises: CheckpointError; OSError."""
  source, data = contents(t)
  try:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
      read = {m.name: tar.extractfile(m) for m in tar.getmembers() if m.isfile()}
      return {name: _bytes_tensor(memoryview(f.read())) for name, f in read.items() if f is not None}
  except (tarfile.TarError, EOFError) as e:
    raise CheckpointError(source, f"is no tar archive: {str(e).partition(':')[0]}") from e


def zip_extract(t: File) -> dict[str, Tensor]:
  """The files of a zip archive by name, as uint8 tensors; those stored as they are are mapped, and read where they are
  used. Raises: CheckpointError for what is no zip archive; OSError.
  """
  source, data = contents(t)
  return {name: _bytes_tensor(content) for name, content in _zip(source, data).items()}


def _zip(source: str, data: memoryview) -> dict[str, memoryview]:
  """The contents of a zip archive; only what is compressed is copied."""
  out: dict[str, memoryview] = {}
  try:
    for i in zipfile.ZipFile(as_file(data)).infolist():
      # the local header: 26 bytes, the lengths of the name and of the extra field, these two, the content
      name, extra = struct.unpack_from("<HH", data, i.header_offset + 26)
      start = i.header_offset + 30 + name + extra
      content = data[start : start + i.compress_size]
      if i.compress_type == zipfile.ZIP_DEFLATED:
        # a byte more than there should be shows that there is more, and is all that a false size costs
        content = memoryview(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, i.file_size + 1))
      if len(content) != i.file_size:
        raise zipfile.BadZipFile(f"{i.filename} is not {i.file_size} bytes, or compressed in a way not known here")
      if not i.filename.endswith("/"):  # of a folder
        out[i.filename] = content
  except (zipfile.BadZipFile, struct.error, zlib.error, ValueError, OverflowError, NotImplementedError, EOFError) as e:
    raise CheckpointError(source, f"is no whole zip archive: {e}") from e
  return out


def as_file(data: memoryview) -> Any:
  """The bytes of `contents` as a file, from its start."""
  file = data.obj if isinstance(data.obj, mmap.mmap) else io.BytesIO(data)
  file.seek(0)
  return file


# ---------------------------------------------------------------- PyTorch's files

STORAGES: dict[str, DType] = {
  "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64, "HalfStorage": dtypes.float16,
  "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
  "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "BoolStorage": dtypes.bool,
  "UntypedStorage": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64,
  "float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2,
}  # fmt: skip
MAGIC = 0x1950A86A20F9469CFC6C  # what a file before PyTorch 1.6 begins with, pickled


class _Inert:
  """Stands for an object of a class that no checkpoint needs; its state is dropped."""

  def __init__(self, *args: Any, **kwargs: Any) -> None: ...

  __setstate__ = __setitem__ = append = __init__


class Unpickler(pickle.Unpickler):
  """Runs no code of the file: tensors are rebuilt, and every other class and function becomes `_Inert`. `storages` maps
  a storage's key to its bytes."""

  def __init__(self, source: str, file: Any, storages: Mapping[str, memoryview]) -> None:
    super().__init__(file, encoding="utf-8")
    self.source, self.file, self.storages = source, file, storages

  def load(self) -> Any:
    """Looks at the instructions first: Python's unpickler makes room for whatever number one of them names."""
    start = self.file.tell()
    with warnings.catch_warnings(action="ignore"):  # of Python's, about strings in damaged files
      for op, arg, at in pickletools.genops(self.file):  # raises where a string is longer than the file
        if "PUT" in op.name and arg > at - start:  # more values than there were instructions
          raise CheckpointError(self.source, f"value number {arg} is kept at byte {at}, where there cannot be as many")
    self.file.seek(start)
    return super().load()

  def find_class(self, module: str, name: str) -> Any:
    if module == "torch._utils" and name.startswith("_rebuild_"):
      return getattr(self, name, _Inert)
    if module in ("torch", "torch.storage"):
      return tuple if name == "Size" else STORAGES.get(name, _Inert)
    return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Inert

  def persistent_load(self, pid: Any) -> Any:
    kind, dtype, key = pid[:3]
    if kind != "storage" or not isinstance(dtype, DType):
      raise CheckpointError(self.source, f"holds {pid!r}, which is no storage of a known type", "save its state_dict()")
    return dtype, str(key)

  def _rebuild_tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor | None:
    dtype, key = storage
    if key not in self.storages:
      raise CheckpointError(self.source, f"has no storage {key!r}")
    strides = [s * dtype.itemsize for s in stride]
    try:
      view = numpy.ndarray(size, to_numpy_dtype(dtype), self.storages[key], offset * dtype.itemsize, strides)
    except (ValueError, TypeError) as e:
      raise CheckpointError(self.source, f"a tensor {list(size)} does not lie in its storage {key!r}: {e}") from e
    return Tensor(view)

  _rebuild_tensor_v2 = _rebuild_tensor

  def _rebuild_tensor_v3(self, at: Any, offset: int, size: Any, stride: Any, _: Any, hooks: Any, dtype: Any) -> Any:
    return self._rebuild_tensor((dtype, at[1]), offset, size, stride)

  def _rebuild_parameter(self, data: Any, *_: Any) -> Any:
    return data

  _rebuild_parameter_with_state = _rebuild_parameter


class _FirstPass(Unpickler):
  """Notes the storages' types, and makes no tensors."""

  def __init__(self, source: str, file: Any) -> None:
    super().__init__(source, file, {})
    self.seen: dict[str, DType] = {}

  def persistent_load(self, pid: Any) -> Any:
    dtype, key = super().persistent_load(pid)
    self.seen[key] = dtype
    return dtype, key

  def _rebuild_tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor | None:
    return None

  _rebuild_tensor_v2 = _rebuild_tensor


def _load_pickles(source: str, data: memoryview) -> Any:
  """A file of PyTorch before 1.6 (or of `_use_new_zipfile_serialization=False`).

  It is three pickles (a magic number, a version, sizes), the object's, that of the storages' keys, and for each of
  these its number of elements (int64) and its bytes. So the object is read twice: first to learn where they are.
  """
  file = as_file(data)
  if _FirstPass(source, file).load() != MAGIC:
    fix = "give a file that torch.save has written"
    raise CheckpointError(source, "is neither a zip archive nor of the format before it", fix)
  for _ in range(2):
    _FirstPass(source, file).load()
  start, first, storages = file.tell(), _FirstPass(source, file), dict[str, memoryview]()
  first.load()
  keys, at = _FirstPass(source, file).load(), file.tell()
  for key in keys:
    (count,) = struct.unpack_from("<q", data, at)
    end = at + 8 + count * first.seen[key].itemsize
    storages[key], at = data[at + 8 : end], end
  file.seek(start)
  return Unpickler(source, file, storages).load()


def _load_zipped(source: str, data: memoryview) -> Any:
  """A file of PyTorch since 1.6: a zip archive of one pickle and of each storage's bytes."""
  files = _zip(source, data)
  if (main := next((name for name in files if name.endswith("/data.pkl")), None)) is None:
    raise CheckpointError(source, "is a zip archive without data.pkl", "give a file that torch.save has written")
  prefix = main[: -len("data.pkl")]
  if (order := bytes(files.get(f"{prefix}byteorder", b"little"))) != b"little":
    raise CheckpointError(source, f"its byte order is {order.decode()}", "save it on a little-endian machine")
  storages = {name[len(prefix) + 5 :]: part for name, part in files.items() if name.startswith(f"{prefix}data/")}
  return Unpickler(source, io.BytesIO(files[main]), storages).load()


def torch_load(t: File) -> dict[str, Tensor]:
  """What `torch.save` has written, in this format or the one before PyTorch 1.6: a state dict, or what else was saved,
  with its tensors.

  A path, or the file's bytes as a uint8 tensor. The file is mapped: a tensor's bytes are read where it is used. No code
  of the file is run: objects that are no tensors, containers or numbers are dropped.
  Raises: CheckpointError for a file that is none, is damaged, or holds tensors of unknown types; OSError.
  """
  source, data = contents(t)
  try:
    zipped = bytes(data[:4]) == b"PK\x03\x04"
    out: dict[str, Tensor] = _load_zipped(source, data) if zipped else _load_pickles(source, data)
    return out
  except CheckpointError:
    raise
  except Exception as e:  # the unpickler's own: a damaged pickle raises nearly anything
    raise CheckpointError(source, f"is no file of torch.save: {type(e).__name__}: {e}") from e


def gguf_load(t: File) -> tuple[dict[str, Any], dict[str, Tensor]]:
  """(metadata by key, tensors by name) of a GGUF file: a path, or its bytes as a uint8 tensor.

  The file is mapped. Quantised tensors come as float32: Q8_0 is computed from its blocks where it is used, the
  other types of the package gguf are computed here.
  Raises: GGUFError for a file that is not as the format says, or of a type that is not supported; OSError.
  """
  file = GGUF(t)
  return file.metadata, {name: file.tensor(name) for name in file.tensors}


# ---------------------------------------------------------------- state dicts


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type[T] = Tensor) -> dict[str, T]:  # type: ignore[assignment]
  """Every tensor reachable from `obj` through attributes, lists, tuples and dicts, by its dotted path.

  A tensor reachable by two paths has two names. `tensor_type` collects values of another type instead.
  """
  found: dict[str, T] = {}

  def walk(obj: Any, path: str, above: tuple[int, ...]) -> None:
    if isinstance(obj, tensor_type):
      found[path] = obj
      return
    for name, child in children_of(obj):
      if id(child) not in above:  # an object may refer back to its owner
        walk(child, f"{path}.{name}" if path else str(name), (*above, id(child)))

  walk(obj, prefix.strip("."), (id(obj),))
  return found


def get_parameters(obj: Any) -> list[Tensor]:
  """The tensors of `get_state_dict(obj)`, in order."""
  return list(get_state_dict(obj).values())


def load_state_dict(
  model: Any,
  state_dict: dict[str, Tensor],
  strict: bool = True,
  verbose: bool = True,
  consume: bool = False,
  realize: bool = True,
) -> list[Tensor]:
  """Give the tensors of `model` the values in `state_dict`, at the placement that each has in the model
  and in the state dict's dtype. One element is one element: what is saved as (1,) loads into (), and the other way.

  `strict`: every tensor of the model must be there (else those that are missing keep their value); entries that the
  model has no place for are only reported at DEBUG>=1. `verbose`: a progress bar on a terminal. `consume`: remove
  entries from `state_dict` as they are loaded, to save memory. Returns the tensors that were loaded.
  Raises: StateError for a missing key or another shape, before anything is changed.
  """
  wanted: dict[str, Tensor] = get_state_dict(model)
  if strict and (missing := [k for k in wanted if k not in state_dict]):
    rule = f"{len(missing)} of the model's {len(wanted)} tensors are not in the state dict: {missing[:5]}"
    fix = f"the state dict has {list(state_dict)[:5]}\n  fix: strict=False keeps their values; or rename the keys"
    raise StateError(f"load_state_dict: {rule}\n  {fix}")
  found = {k: v for k, v in wanted.items() if k in state_dict}
  for k, v in found.items():
    if v.shape != state_dict[k].shape and not v.numel() == state_dict[k].numel() == 1:
      shapes = f"{list(v.shape)} in the model and {list(state_dict[k].shape)} in the state dict"
      fix = "build the model with the sizes that the state dict was saved with"
      raise StateError(f"load_state_dict: {k!r} is {shapes}\n  fix: {fix}")
  if DEBUG.value >= 1 and (unused := sorted(set(state_dict) - set(found))):
    print(f"load_state_dict: the model has no place for {unused}", file=sys.stderr)
  for k, v in tqdm(found.items(), "loading weights", not (verbose and realize), leave=False):
    x = state_dict.pop(k) if consume else state_dict[k]
    # Not `replace`, which wants the same dtype: a model takes the precision that it was saved in.
    v.uop, v.follows = x.reshape(v.shape).to(v.device).uop, False
    if realize:
      v.realize()
  return list(found.values())
