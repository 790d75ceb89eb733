"""A model and its nodes, one after the other.

The protobuf is read by the `onnx` package (`pip install 'tinygrad[onnx]'`), imported on first use. A node is looked up
in turn among the model's own functions, in the table `OPS`, and among the operators that the standard defines
by others (https://onnx.ai/onnx/operators), whose definition is then run.

Values are Tensors, lists of them (sequences), None (optionals) and `Known`s: those whose numbers follow from shapes and
constants alone. Known values are computed in numpy as they come, so that shapes, axes and conditions that depend on
them need no kernel, and can be used while a step is captured by `TinyJit`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygrad.device import HOST_DEVICE, DeviceError
from tinygrad.dtype import DType, to_numpy_dtype
from tinygrad.engine.canonical import canonical
from tinygrad.helpers import DEBUG, LazyModule, numpy, say
from tinygrad.mixin.base import DeviceLike
from tinygrad.nn.onnx.values import (
  HOST,
  OPS,
  Known,
  OnnxError,
  Values,
  array_of,
  on_host,
  onnx,
  onnx_dtype,
  unsupported,
)
from tinygrad.runtime.python import Interpreter
from tinygrad.runtime.transfer import host_array
from tinygrad.tensor import Tensor
from tinygrad.uop import UOp, buffer_of

inliner: Any = LazyModule("onnx.inliner")
STANDARD = ("", "ai.onnx.ml")
Items = tuple[tuple[str, Any], ...]  # of a dict


@dataclass(frozen=True, slots=True)
class OnnxValue:
  """What a graph's input or output is declared as; a named dim is a str, an unknown one "?"; `shape` None: any."""

  shape: tuple[str | int, ...] | None
  dtype: DType | None  # None: strings, or no tensor
  is_optional: bool
  is_sequence: bool

  @staticmethod
  def of(kind: Any) -> OnnxValue:
    optional = kind.HasField("optional_type")
    kind = kind.optional_type.elem_type if optional else kind
    sequence = kind.HasField("sequence_type")
    tensor = (kind.sequence_type.elem_type if sequence else kind).tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return OnnxValue(dims if tensor.HasField("shape") else None, onnx_dtype(tensor.elem_type), optional, sequence)

  def __str__(self) -> str:
    one = f"{'strings' if self.dtype is None else self.dtype.name}{'' if self.shape is None else list(self.shape)}"
    return f"a list of {one}" if self.is_sequence else one


class OnnxRunner:
  """A model, ready to be called with its inputs by name; returns its outputs by name.

  `model_path`: a path (weights in files beside it are found), the bytes of the file, the same as a uint8 Tensor, or an
  onnx.ModelProto. `graph_inputs` (name -> OnnxValue) and `graph_outputs` (names) say what it takes and gives;
  `defaults`, which inputs have a value in the model, and may be given another. Inputs are Tensors or arrays; lists are
  sequences, None is an optional that is absent; names that the model does not have are not looked at. Computation is
  lazy, differentiable and can be captured by `TinyJit`, except where the numbers of an input decide about shapes: those
  are read, in each call.
  Raises: OnnxError for what is no model, for operators that are not supported, and for inputs that do not fit.
  """

  def __init__(self, model_path: Any) -> None:
    model = _parsed(model_path)
    self.opset = _versions(model)
    self.functions = {(_domain(f.domain), f.name): f.SerializeToString() for f in model.functions}
    self.graph = model.graph
    self.graph_values: dict[str, Any] = {}
    for t in model.graph.initializer:
      with _told(f"the weight {t.name!r} cannot be read"):
        self.graph_values[t.name] = Known(array_of(t))
    declared = {i.name: OnnxValue.of(i.type) for i in model.graph.input}
    self.graph_inputs = {name: spec for name, spec in declared.items() if name not in self.graph_values}
    self.defaults = {name: spec for name, spec in declared.items() if name in self.graph_values}
    self.graph_outputs = tuple(o.name for o in model.graph.output)
    self.to(None)

  def to(self, device: DeviceLike | None) -> OnnxRunner:
    """Puts the weights on a device (None: the default one), or copies of them on several, and inputs with them from now
    on. Returns itself."""
    self.device = device
    for v in self.graph_values.values():
      v.there = None
      if not v.small:
        v.on(device)
    return self

  def __call__(self, inputs: dict[str, Any], debug: int = 0) -> dict[str, Any]:
    values: Values = dict(self.graph_values)
    for name, spec in self.graph_inputs.items():
      if name not in inputs and not spec.is_optional:
        raise OnnxError(f"the input {name!r} is missing\n  fix: give {spec}")
      values[name] = self._input(name, inputs.get(name), spec)
    values.update((name, self._input(name, inputs[name], s)) for name, s in self.defaults.items() if name in inputs)
    self._run(self.graph.node, values, self.opset, max(debug, DEBUG.value))
    return {name: self._place(_value(values, name), self.device) for name in self.graph_outputs}

  def _input(self, name: str, value: Any, spec: OnnxValue) -> Any:
    if value is None and spec.is_optional:
      return None
    if spec.is_sequence:
      if not isinstance(value, (list, tuple)):
        raise OnnxError(f"the input {name!r} is a {type(value).__name__}\n  fix: give {spec}")
      return [self._input(name, v, OnnxValue(None, spec.dtype, False, False)) for v in value]
    if spec.dtype is None:
      raise OnnxError(f"the input {name!r} is of a type that no tensor has")
    t = value if isinstance(value, Tensor) else Tensor(numpy.asarray(value, to_numpy_dtype(spec.dtype)))
    named = t.shape if spec.shape is None else spec.shape
    if t.shape != tuple(n if isinstance(w, str) else w for n, w in itertools.zip_longest(t.shape, named)):
      raise OnnxError(f"the input {name!r} is {t.dtype.name}{list(t.shape)}\n  fix: give {spec}")
    if t.dtype is not spec.dtype:
      warnings.warn(f"the input {name!r} is {t.dtype.name}, and is cast: the model takes {spec}", stacklevel=3)
      t = t.cast(spec.dtype)
    return t if isinstance(value, Tensor) and self.device is None else t.to(self.device)

  # ---- nodes

  def _run(self, nodes: Any, values: Values, opset: dict[str, int], debug: int = 0) -> None:
    """Adds the nodes' outputs to `values`."""
    for node in nodes:
      inputs = [_value(values, name) if name else None for name in node.input]
      with _told(f"the node {node.op_type} {node.name!r} of {', '.join(map(_describe, inputs))} fails"):
        outputs = self._node(node, inputs, values, opset)
      if debug >= 2:
        say(f"{node.op_type:24} {', '.join(map(_describe, outputs))}")
      values.update((name, out) for name, out in zip(node.output, outputs) if name)

  def _node(self, node: Any, inputs: list[Any], values: Values, opset: dict[str, int]) -> Sequence[Any]:
    domain, op = _domain(node.domain), node.op_type
    f = None if (domain, op) in self.functions else OPS.get(op if domain in STANDARD else f"{domain}:{op}")
    version = opset.get(domain, 1)
    if f is not None:
      attributes = _attributes(node, f, version)
      if "scope" in _parameters(f):
        return _several(f((self, values, opset), *inputs, **attributes))
      return self._apply(f, inputs, attributes, version, len(node.output))
    known = {k: x for k, x in zip(node.input, inputs) if isinstance(x, (Tensor, Known))}
    types = {k: (_numpy_dtype(x), tuple((x.value if isinstance(x, Known) else x).shape)) for k, x in known.items()}
    own = tuple(self.functions.values()) if (domain, op) in self.functions else ()
    if not own and any(isinstance(x, list) for x in inputs):  # the onnx package would need their types
      raise unsupported(op)
    nodes, versions = _definition(node.SerializeToString(), tuple(types.items()), tuple(opset.items()), own)
    inner: Values = {"": None, **dict(zip(node.input, inputs))}
    self._run(nodes, inner, versions)
    return [inner.get(name) for name in node.output]

  def _apply(self, f: Any, inputs: list[Any], attributes: dict[str, Any], opset: int, outputs: int) -> list[Any]:
    names = _parameters(f)
    kind = _numpy_dtype(inputs[0]) if inputs and "kind" in names else None
    attributes |= {k: v for k, v in {"opset": opset, "outputs": outputs, "kind": kind}.items() if k in names}
    known = bool(inputs) and all(x is None or (isinstance(x, Known) and x.small) for x in inputs)
    where = HOST_DEVICE if known else self.device
    numbers = [i < len(names) and names[i] in HOST for i in range(len(inputs))]
    args = [on_host(x) if number else self._place(x, where, fresh=known) for x, number in zip(inputs, numbers)]
    return [self._result(y, known) for y in _several(f(*args, **attributes))]

  def _place(self, x: Any, where: DeviceLike | None, fresh: bool = False) -> Any:
    if isinstance(x, list):
      return [self._place(y, where, fresh) for y in x]
    if not isinstance(x, Known):
      return x
    return Tensor(x.value, device=where if x.value.ndim else None) if fresh else x.on(where)

  def _result(self, y: Any, known: bool) -> Any:
    """What an operator has given, as a value: computed here and now if all that it came from is known."""
    if isinstance(y, list):
      return [self._result(x, known) for x in y]
    if y is None or (isinstance(y, Tensor) and not known):
      return y
    if not isinstance(y, Tensor):
      return Known(numpy.asarray(y))
    if y.numel() > Known.SMALL:
      return y.to(self.device)
    sink, buffers, _ = canonical(UOp.sink(y.uop))
    machine = Interpreter(lambda b: [host_array(buffer_of(buffers[-1 - b.arg.uid]), 0)], {})
    machine.run(sink)
    return Known(machine.values[sink.src[0]][0])


# ---------------------------------------------------------------- the protobuf


def _parsed(source: Any) -> Any:
  try:
    importlib.import_module("onnx")
  except ModuleNotFoundError as e:
    raise OnnxError("reading ONNX models needs the onnx package\n  fix: pip install 'tinygrad[onnx]'") from e
  if isinstance(source, onnx.ModelProto):
    return source
  if isinstance(source, Tensor):
    source = source.numpy().tobytes()
  try:
    if isinstance(source, (bytes, bytearray, memoryview)):
      return onnx.load_model_from_string(bytes(source))
    return onnx.load(os.fspath(Path(source).expanduser()))
  except importlib.import_module("google.protobuf.message").DecodeError as e:
    name = "the given bytes" if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
    raise OnnxError(f"{name}: no ONNX model: {e}\n  fix: export it again") from e


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
  """Within, what a model that is not as the standard says makes operators raise becomes an OnnxError: `what`, and why.
  What the machine lacks (memory, a device, an interrupt) stays what it is."""
  try:
    yield
  except (OnnxError, MemoryError, DeviceError, OSError) as e:
    e.add_note(f"in ONNX: {what}")
    raise
  except Exception as e:
    raise OnnxError(f"{what}: {e if str(e) and not isinstance(e, KeyError) else repr(e)}") from e


def _value(values: Values, name: str) -> Any:
  if name not in values:
    raise OnnxError(f"no node and no input gives {name!r}\n  fix: export the model again")
  return values[name]


def _domain(name: str) -> str:
  return "" if name == "ai.onnx" else name


def _versions(body: Any) -> dict[str, int]:
  return {_domain(o.domain): o.version for o in body.opset_import}


def _attributes(node: Any, f: Any, opset: int) -> dict[str, Any]:
  """Those that `f` takes. The others must be at the standard's default, or ask for what later opsets do unasked."""
  given, names = {a.name: _attribute(a) for a in node.attribute}, _parameters(f)
  rest = [] if "**" in names else [k for k in given if k not in names]
  name = node.op_type, opset, _domain(node.domain)
  known = onnx.defs.get_schema(*name).attributes if rest and onnx.defs.has(*name) else {}
  for k in rest:
    value, default = given.pop(k), known[k].default_value if k in known else onnx.AttributeProto()
    if k not in ("broadcast", "consumed_inputs") and not (default.name and value == _attribute(default)):
      raise unsupported(f"{node.op_type} with {k} {value}")
  return given


def _attribute(a: Any) -> Any:
  value = onnx.helper.get_attribute_value(a)
  if isinstance(value, onnx.TensorProto):
    return array_of(value)
  if isinstance(value, bytes):
    return value.decode()
  return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value


@functools.lru_cache(1024)
def _definition(call: bytes, types: Items, opset: Items, functions: tuple[bytes, ...]) -> tuple[Any, dict[str, int]]:
  """The nodes, with their opset, that a node stands for: by the model's own functions, if there are any, else by the
  standard, whose newest version serves old ones: none that has a definition has changed but by types.
  """
  node = onnx.NodeProto.FromString(call)
  if not functions and not onnx.defs.has(node.op_type, node.domain):
    what = f"the operator {node.op_type} of domain {node.domain!r} is not known"
    raise OnnxError(f"{what}\n  fix: add it to tinygrad.nn.onnx.OPS")
  if not functions:  # the inliner leaves out what a node leaves to its defaults
    given = {a.name for a in node.attribute}
    defaults = (a.default_value for a in onnx.defs.get_schema(node.op_type, node.domain).attributes.values())
    node.attribute.extend(a for a in defaults if a.name and a.name not in given)
  number = onnx.helper.np_dtype_to_tensor_dtype
  inputs = [onnx.helper.make_tensor_value_info(name, number(kind), shape) for name, (kind, shape) in types]
  inputs.append(onnx.ValueInfoProto(name="", type=onnx.TypeProto()))  # of what is left out
  outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
  graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
  for newest in ({}, {"": onnx.defs.onnx_opset_version()}):
    versions = [onnx.helper.make_opsetid(*v) for v in (dict(opset) | newest).items()]
    model = onnx.helper.make_model(graph, opset_imports=versions)
    model.functions.extend(map(onnx.FunctionProto.FromString, functions))
    body = inliner.inline_selected_functions(model, [(node.domain, node.op_type)], False, not functions)
    if [n.op_type for n in body.graph.node] != [node.op_type]:
      return body.graph.node, _versions(body)
  raise unsupported(node.op_type)


def _numpy_dtype(x: Any) -> Any:
  """The numpy dtype of a value."""
  return numpy.dtype(to_numpy_dtype(x.dtype)) if isinstance(x, Tensor) else x.value.dtype


# ---------------------------------------------------------------- values


@functools.cache
def _parameters(f: Callable[..., Any]) -> tuple[str, ...]:
  """Their names; that of one that takes all other attributes is "**"."""
  return tuple("**" if p.kind is p.VAR_KEYWORD else p.name for p in inspect.signature(f).parameters.values())


def _several(outputs: Any) -> Sequence[Any]:
  return outputs if isinstance(outputs, tuple) else (outputs,)


def _describe(x: Any) -> str:
  if isinstance(x, list):
    return f"[{', '.join(map(_describe, x))}]"
  if isinstance(x, Known):
    return f"{x.value.dtype}{list(x.value.shape)} (known)"
  return f"{x.dtype.name}{list(x.shape)}" if isinstance(x, Tensor) else str(x)
