"""The tensors of a model by name, and the files that hold them: safetensors, PyTorch's, GGUF, tar and zip archives.

A safetensors file is a u64 length, a JSON header of that length, and the tensors' bytes, little-endian and row-major:
  {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {"key": "value"}}
Offsets count from the end of the header, and the tensors cover the rest of the file without gap or overlap.
Source: the format section of https://huggingface.co/docs/safetensors.
"""

import contextlib
import io
import itertools
import mmap
import os
import struct
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tinygrad.device import Device
from tinygrad.distributed import process_index
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import DEBUG, Context, FilePath, LazyModule, atomic_write, children_of, json, numpy, prod, tqdm
from tinygrad.mixin.arrays import host_blocks, readable
from tinygrad.nn.files import PLAIN, CheckpointError, File, contents, look_of, zip_contents
from tinygrad.runtime.transfer import at_rest
from tinygrad.tensor import Tensor
from tinygrad.uop import Ops

if TYPE_CHECKING:
  from tinygrad.nn import gguf, pickles
else:
  gguf, pickles = LazyModule("tinygrad.nn.gguf"), LazyModule("tinygrad.nn.pickles")
lzma, safetensors, tarfile, zlib = map(LazyModule, ("lzma", "safetensors", "tarfile", "zlib"))
T = TypeVar("T")
SAFE_DTYPES = {"BOOL": dtypes.bool, **PLAIN, "F8_E4M3": dtypes.fp8e4m3, "F8_E5M2": dtypes.fp8e5m2}
SAFE_NAMES = {d: name for name, d in SAFE_DTYPES.items()}


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
    raise SafetensorsError(f"safetensors {source}", f"header: {e}", look_of(data)) from e
  start = 8 + int.from_bytes(data[:8], "little")
  try:
    header: dict[str, Any] = json.loads(bytes(data[8:start]), object_pairs_hook=_distinct)
  except ValueError as e:
    raise SafetensorsError(f"safetensors {source}", f"header: {e}") from e
  for name, entry in header.items():
    if name != "__metadata__" and entry["dtype"] not in SAFE_DTYPES:
      problem = f"tensor {name!r}: its dtype {entry['dtype']!r} is not supported"
      raise SafetensorsError(f"safetensors {source}", problem, f"convert it to one of {', '.join(SAFE_DTYPES)}")
  return data, start, header


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """The object in JSON. Raises: ValueError for a name that it has twice."""
  found = dict(pairs)
  if len(found) != len(pairs):
    raise ValueError(f"the name {next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))!r} appears twice")
  return found


def safe_load_metadata(t: File) -> tuple[Tensor, int, dict[str, Any]]:
  """(the file's bytes as a uint8 tensor, where the tensors' data begin in it, the header).

  `t` is a path or a uint8 tensor. Raises: SafetensorsError for a file that is not as the format says; OSError.

  Examples:
    >>> nn.state.safe_save({"w": Tensor([1.0])}, "w.safetensors", {"step": 7})
    >>> nn.state.safe_load_metadata("w.safetensors")[2]["__metadata__"]
    {'step': '7'}
  """
  data, start, header = _header(t)
  return t if isinstance(t, Tensor) else _bytes_tensor(data), start, header


def safe_load(fn: File) -> dict[str, Tensor]:
  """The tensors of a safetensors file (a path, or its bytes as a uint8 tensor) by name.

  The file is mapped: a tensor's bytes are read when it is used, and a device that takes a slice receives only that.
  Raises: SafetensorsError for a file that is not as the format says; OSError where it cannot be opened.

  Examples:
    >>> nn.state.safe_save({"w": Tensor([1.0, 2.0])}, "w.safetensors")
    >>> sorted(nn.state.safe_load("w.safetensors"))
    ['w']
  """
  return {name: Tensor(view) for name, view in safe_views(fn).items()}


def safe_views(fn: File) -> dict[str, Any]:
  """The tensors of a safetensors file as read-only arrays that lie in the mapped file.

  Raises: SafetensorsError for a file that is not as the format says, or a shape that no array has; OSError.

  Examples:
    >>> nn.state.safe_save({"w": Tensor([1.0, 2.0])}, "w.safetensors")
    >>> nn.state.safe_views("w.safetensors")["w"].sum()
    np.float32(3.0)
  """
  data, start, header = _header(fn)
  header.pop("__metadata__", None)
  out: dict[str, Any] = {}
  for name, entry in header.items():
    begin, end = entry["data_offsets"]
    view = numpy.frombuffer(data[start + begin : start + end], to_numpy_dtype(SAFE_DTYPES[entry["dtype"]]))
    try:
      out[name] = view.reshape(entry["shape"])
    except ValueError as e:  # more dims, or longer ones, than arrays have
      source = "tensor" if isinstance(fn, Tensor) else os.fspath(fn)
      raise SafetensorsError(f"safetensors {source}", f"tensor {name!r}: {e}", "fewer dims, or none so long") from e
  return out


def safe_save(tensors: Mapping[str, Tensor], fn: FilePath, metadata: Mapping[str, Any] | None = None) -> None:
  """Write `tensors` by name to the safetensors file `fn`, whole or not at all; `metadata` values are kept as strings.

  A sharded tensor is written as the one tensor it is, from the devices' own memory: it is on no device as a whole.
  SafetensorsError for a type or a name that the format has not, TypeError for the path in the tensors' place.

  Examples:
    >>> nn.state.safe_save({"w": Tensor([1.0, 2.0])}, "w.safetensors")
    >>> nn.state.safe_load("w.safetensors")["w"].tolist()
    [1.0, 2.0]
  """
  whole: object = tensors
  path: object = fn
  if isinstance(path, Mapping):
    raise TypeError("safe_save: the tensors come first, and then the path\n  fix: safe_save(tensors, path)")
  if not isinstance(whole, Mapping):
    problem = f"what is written is tensors by name, and not one {type(tensors).__name__}"
    fix = "safe_save({'x': x}, path)" if isinstance(whole, Tensor) else "safe_save(get_state_dict(model), path)"
    raise SafetensorsError(f"safetensors {os.fspath(fn)}", problem, fix)
  header: dict[str, Any] = {"__metadata__": {str(k): str(v) for k, v in metadata.items()}} if metadata else {}
  for text in (*tensors, *itertools.chain(*header.get("__metadata__", {}).items())):
    if not isinstance(text, str) or text.encode("utf-8", "ignore").decode() != text:
      problem, fix = (
        f"{text!r} is no Unicode text",
        "a str without halves of surrogate pairs, as os.fsdecode makes them",
      )
      raise SafetensorsError(f"safetensors {os.fspath(fn)}", problem, fix)
  offset = 0
  for name, t in tensors.items():
    given: object = t
    if not isinstance(given, Tensor):
      problem = f"{name!r} is {t!r}, of type {type(t).__name__}"
      raise SafetensorsError(f"safetensors {os.fspath(fn)}", problem, f"give Tensor({t!r}), or put it into metadata")
    if t.dtype not in SAFE_NAMES or name == "__metadata__":
      fix = f"rename it, or cast it to one of {', '.join(d.name for d in SAFE_NAMES)}"
      problem = f"tensor {name!r}: {t.dtype} under this name cannot be written"
      raise SafetensorsError(f"safetensors {os.fspath(fn)}", problem, fix)
    nbytes = t.nbytes()
    header[name] = {"dtype": SAFE_NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + nbytes]}
    offset += nbytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # so that the data begin aligned
  with atomic_write(fn) if process_index() == 0 else contextlib.nullcontext() as f:
    if f is not None:
      f.write(struct.pack("<Q", len(text)) + text)
    for t in tensors.values():
      _write_blocks(f, t)
  if Device.world is not None:
    Device.world.exchange(f"{os.fspath(fn)} is written")


def _write_blocks(f: BinaryIO | None, t: Tensor) -> None:
  """The elements of `t` in row-major order, from the memory of the devices that hold them to the pages of the file; of
  several processes the first writes it."""
  if t.uop.op is not Ops.BUFFER and 0 not in t.shape:
    with Context(NO_GRAD=0):
      t = t.contiguous().realize()
  shape = t.numpy_shape()
  with at_rest(readable(t.uop)) if 0 not in shape else contextlib.nullcontext():
    if f is not None:
      _write_here(f, t, shape)


def _write_here(f: BinaryIO, t: Tensor, shape: tuple[int, ...]) -> None:
  start = f.tell()
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
  """The files of a tar archive (compressed or not) by name, as uint8 tensors. Raises: CheckpointError; OSError.

  Examples:
    >>> import io, tarfile
    >>> with tarfile.open("a.tar", "w") as archive:
    ...   archive.addfile(tarfile.TarInfo("empty"), io.BytesIO())
    >>> list(nn.state.tar_extract("a.tar"))
    ['empty']
  """
  source, data = contents(t)
  try:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
      read = {m.name: tar.extractfile(m) for m in tar.getmembers() if m.isfile()}
      found = {name: _bytes_tensor(memoryview(f.read())) for name, f in read.items() if f is not None}
      tar.fileobj.seek(0, os.SEEK_END)  # a compressed archive's checksum is at its end
      return found
  except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as e:  # OSError: gzip's and bz2's own
    raise CheckpointError(source, f"is no whole tar archive: {str(e).partition(':')[0]}") from e


def zip_extract(t: File) -> dict[str, Tensor]:
  """The files of a zip archive by name, as uint8 tensors; those stored as they are are mapped, and read where they are
  used. Raises: CheckpointError for what is no zip archive; OSError.

  Examples:
    >>> import zipfile
    >>> with zipfile.ZipFile("a.zip", "w") as archive:
    ...   archive.writestr("letters", b"abc")
    >>> nn.state.zip_extract("a.zip")["letters"].tolist()
    [97, 98, 99]
  """
  source, data = contents(t)
  return {name: _bytes_tensor(content) for name, content in zip_contents(source, data).items()}


# ---------------------------------------------------------------- other formats


def torch_load(t: File) -> dict[str, Tensor]:
  """What `torch.save` has written, in this format or the one before PyTorch 1.6: a state dict, or what else was saved,
  with its tensors.

  A path, or the file's bytes as a uint8 tensor. The file is mapped: a tensor's bytes are read where it is used. No code
  of the file is run: objects that are no tensors, containers or numbers are dropped.
  Raises: CheckpointError for a file that is none, is damaged, or holds tensors of unknown types or a whole object
  (`torch.save(model)`); OSError.
  """
  source, data = contents(t)
  try:
    zipped = bytes(data[:4]) == b"PK\x03\x04"
    out: dict[str, Tensor] = pickles.load_zipped(source, data) if zipped else pickles.load_pickles(source, data)
    if isinstance(out, pickles.Inert):
      fix = "write model.state_dict() with torch.save, where the class is"
      raise CheckpointError(source, "holds an object of a class, of which no code is run here", fix)
    return out
  except CheckpointError:
    raise
  except Exception as e:  # the unpickler's own: a damaged pickle raises nearly anything
    raise CheckpointError(source, f"is no file of torch.save: {type(e).__name__}: {e}", look_of(data)) from e


def gguf_load(t: File) -> tuple[dict[str, Any], dict[str, Tensor]]:
  """(metadata by key, tensors by name) of a GGUF file: a path, or its bytes as a uint8 tensor.

  The file is mapped. Quantised tensors come as float32: those of the formats in `nn/block_formats.py` are computed from
  their blocks where they are used, other types of the package gguf are computed here.
  Raises: GGUFError for a file that is not as the format says, or of a type that is not supported; OSError.
  """
  file = gguf.GGUF(t)
  return file.metadata, {name: file.tensor(name) for name in file.tensors}


# ---------------------------------------------------------------- state dicts


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type[T] = Tensor) -> dict[str, T]:  # type: ignore[assignment]
  """Every tensor reachable from `obj` through attributes, lists, tuples and dicts, by its dotted path.

  A tensor reachable by two paths has two names. `prefix` is what every name begins with, its dot included.
  `tensor_type` collects values of another type instead.

  Examples:
    >>> sorted(nn.state.get_state_dict({'layer': nn.Linear(2, 3)}))
    ['layer.bias', 'layer.weight']
    >>> sorted(nn.state.get_state_dict(nn.Linear(2, 3), 'layer.'))
    ['layer.bias', 'layer.weight']
  """
  found: dict[str, T] = {}

  def walk(obj: Any, path: str, above: tuple[int, ...]) -> None:
    if isinstance(obj, tensor_type):
      found[path.strip(".")] = obj
      return
    for name, child in children_of(obj):
      if id(child) not in above:  # an object may refer back to its owner
        walk(child, f"{path}{name}.", (*above, id(child)))

  walk(obj, prefix, (id(obj),))
  return found


def get_parameters(obj: Any) -> list[Tensor]:
  """The tensors of `get_state_dict(obj)`, in order.

  Examples:
    >>> [p.shape for p in nn.state.get_parameters(nn.Linear(2, 3))]
    [(3, 2), (3,)]
  """
  return list(get_state_dict(obj).values())


def _check_loadable(found: Mapping[str, Tensor], state_dict: Mapping[str, Tensor]) -> None:
  """Raises: StateError where what a model's tensors are to be given is no tensor, or of another shape."""
  for k, v in found.items():
    given: object = state_dict[k]
    if not isinstance(given, Tensor):
      rule = f"{k!r} is a {type(given).__module__}.{type(given).__name__} in the state dict, no Tensor of tinygrad"
      raise StateError(f"load_state_dict: {rule}\n  fix: Tensor(state_dict[{k!r}])")
    if v.shape != state_dict[k].shape and not v.numel() == state_dict[k].numel() == 1:
      shapes = f"{list(v.shape)} in the model and {list(state_dict[k].shape)} in the state dict"
      fix = "build the model with the sizes that the state dict was saved with"
      raise StateError(f"load_state_dict: {k!r} is {shapes}\n  fix: {fix}")


def load_state_dict(
  model: Any,
  state_dict: dict[str, Tensor],
  strict: bool = True,
  verbose: bool = True,
  consume: bool = False,
  realize: bool = True,
) -> list[Tensor]:
  """Give the tensors of `model` the values in `state_dict`, at the placement that each has in the model
  and in the state dict's dtype; floats are given integers as floats, and integers floats as integers.
  Memory of that dtype is assigned to, so replays of a captured step see it.
  One element is one element: what is saved as (1,) loads into (), and the other way.

  `strict`: every tensor of the model must be there (else those that are missing keep their value); entries that the
  model has no place for are only reported at DEBUG>=1. `verbose`: a progress bar on a terminal. `consume`: remove
  entries from `state_dict` as they are loaded, to save memory. Returns the tensors that were loaded.
  Raises: StateError for a missing key or another shape, before anything is changed.

  Examples:
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> loaded = nn.state.load_state_dict(layer, {"weight": Tensor([[5.0]])}, verbose=False)
    >>> layer.weight.item()
    5.0
  """
  given: object = state_dict
  if not isinstance(given, Mapping):
    problem = f"load_state_dict: the state dict is a {type(given).__name__}, and no tensors by name"
    fix = f"safe_load({given!r})" if isinstance(given, (str, os.PathLike)) else "get_state_dict(state_dict)"
    raise StateError(f"{problem}\n  fix: {fix}")
  wanted: dict[str, Tensor] = get_state_dict(model)
  if strict and (missing := [k for k in wanted if k not in state_dict]):
    rule = f"{len(missing)} of the model's {len(wanted)} tensors are not in the state dict: {missing[:5]}"
    fix = f"the state dict has {list(state_dict)[:5]}\n  fix: strict=False keeps their values; or rename the keys"
    raise StateError(f"load_state_dict: {rule}\n  {fix}")
  found = {k: v for k, v in wanted.items() if k in state_dict}
  _check_loadable(found, state_dict)
  if DEBUG.value >= 1 and (unused := sorted(set(state_dict) - set(found))):
    print(f"load_state_dict: the model has no place for {unused}", file=sys.stderr)
  for k, v in tqdm(found.items(), "loading weights", not (verbose and realize), leave=False):
    x = state_dict.pop(k) if consume else state_dict[k]
    value = x.reshape(v.shape).to(v.device)
    if dtypes.is_float(x.dtype) != dtypes.is_float(v.dtype):
      value = value.cast(v.dtype)
    if v.uop.op is Ops.BUFFER and v.dtype is value.dtype:  # the memory that a captured step reads
      v.assign(value)
    else:  # a model takes the precision that it was saved in
      v.replace(value).follows = False
    if realize:
      v.realize()
  return list(found.values())
