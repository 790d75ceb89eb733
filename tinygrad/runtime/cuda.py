"""`CUDA:i`: NVIDIA devices through the driver and NVRTC (cuda-bindings, extra `[cuda]`), a stream each.

Physical devices of one process reach each other's memory where they can, so a table of peers is a buffer of addresses;
devices meet at events. What is replayed becomes a graph. `CUDA_VIRTUAL=4` makes four devices of each physical one, with
streams of their own.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import itertools
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import ON_CPU, Backend, Capabilities, DeviceError, PeerCopy, Target, opened
from tinygrad.device.cores import cuda_cores
from tinygrad.dtype import dtypes
from tinygrad.helpers import LazyModule, Remade, getenv, prod, round_up
from tinygrad.renderer import dialects
from tinygrad.runtime import diskcache, queues
from tinygrad.runtime.queues import LESS, Batch, GridKernel, QueueDevice, errors_of, in_order

driver, nvrtc = map(LazyModule, ("cuda.bindings.driver", "cuda.bindings.nvrtc"))
FUNCTIONS = frozenset(("EXP", "LOG", "TANH", "ERF"))  # of its library, of which CUDA's documentation tells the errors
TARGET = Target("CUDA", vector_registers=96, scratch=48 << 10, threads=True, warp=32, intensity=8, functions=FUNCTIONS)
CLUSTER = 8  # groups that every device with clusters takes for one
HALF = 8 << 20  # bytes of each half of the pinned host memory through which copies go
FATAL = frozenset(  # the driver's documentation says that nothing works in the process's context after them
  "ILLEGAL_ADDRESS LAUNCH_FAILED LAUNCH_TIMEOUT ILLEGAL_INSTRUCTION MISALIGNED_ADDRESS INVALID_ADDRESS_SPACE INVALID_PC"
  " HARDWARE_STACK_ERROR TENSOR_MEMORY_LEAK EXTERNAL_DEVICE ASSERT ECC_UNCORRECTABLE NVLINK_UNCORRECTABLE".split()
)
lost: dict[int, str] = {}  # physical devices after such an error


def target_of(capability: tuple[int, int], units: int, scratch: int) -> Target:
  """A device of so many multiprocessors, a group of which may have `scratch` bytes of local memory."""
  converts = (dtypes.float16, dtypes.bfloat16) if capability >= (8, 0) else TARGET.converts
  cores, scratch = tuple(cuda_cores(capability)), max(scratch, TARGET.scratch)
  cluster = CLUSTER if capability >= (9, 0) else 1
  return replace(TARGET, cores=cores, units=units, scratch=scratch, converts=converts, cluster=cluster)


class DriverError(Remade, DeviceError):
  """What the driver said: `status`."""

  def __init__(self, function: str, status: str) -> None:
    super().__init__(f"{function} failed: {status}")
    self.status = status.removeprefix("CUDA_ERROR_")


def call(function: str, *args: Any) -> Any:
  """A function of the driver: what it returns beside its status.

  Raises: MemoryError where the device is out of memory, else DriverError.
  """
  status, *rest = getattr(driver, function)(*args)
  if status != driver.CUresult.CUDA_SUCCESS:
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
      raise MemoryError(f"{function}: the device is out of memory\n  {LESS}")
    raise DriverError(function, status.name)
  return rest[0] if len(rest) == 1 else tuple(rest) if rest else None


def toolkit(major: int, minor: int | None = None) -> str:
  """What installs the compiler of CUDA `major`, of a release up to `minor`, and its binding."""
  release = f"=={major}.*" if minor is None else f">={major},<{major}.{minor + 1}"
  package = "nvidia-cuda-nvrtc" if major > 12 else f"nvidia-cuda-nvrtc-cu{major}"
  return f"pip install 'cuda-bindings=={major}.*' '{package}{release}'"


@functools.cache
def toolchain() -> tuple[tuple[int, int], tuple[int, ...]]:
  """(NVRTC's version, the capabilities that it compiles for, e.g. 90), in order.

  Raises: DeviceError where it is missing, or too old to say.
  """
  try:
    _, major, minor = nvrtc.nvrtcVersion()
    return (major, minor), tuple(sorted(nvrtc.nvrtcGetSupportedArchs()[1]))
  except RuntimeError as e:  # of the binding, which looks for the library now
    major = int(importlib.metadata.version("cuda-bindings").partition(".")[0])
    raise DeviceError(f"CUDA: NVRTC, which compiles the kernels, does not load ({e})\n  fix: {toolkit(major)}") from e


def arch_of(capability: tuple[int, int]) -> str:
  """What is compiled for a device: from 9.0 on the machine code of this capability and no other ("sm_90a"), which
  alone may use all of its instructions; PTX ("compute_100") for a device that is newer than the compiler.

  Raises: DeviceError where the device is too old for the compiler.
  """
  (major, minor), known = toolchain()
  number = capability[0] * 10 + capability[1]
  if number in known:
    return f"sm_{number}{'a' if number >= 90 else ''}"
  if older := [k for k in known if k < number]:
    return f"compute_{older[-1]}"
  what = f"NVRTC {major}.{minor} compiles for capability {known[0] / 10} and newer, this device has {number / 10}"
  raise DeviceError(f"CUDA: {what}\n  fix: {toolkit(major - 1)}")


def compile_source(source: str, name: str, arch: str) -> bytes:
  """A kernel for an architecture: machine code for "sm_90a", PTX, which the driver compiles, for "compute_90"; from the
  disk cache where it is there. Needs no device.

  Raises: DeviceError with what the compiler said.
  """
  (major, minor), _ = toolchain()
  key = diskcache.key_of(source, arch, f"nvrtc {major}.{minor}")
  if (code := diskcache.get(key)) is None:
    diskcache.put(key, code := compiled_anew(source, name, arch)[0])
  return code


def compiled_anew(source: str, name: str, arch: str) -> tuple[bytes, str]:
  """The same anew, and what the compiler said.

  Raises: DeviceError with that where it ends in an error.
  """
  _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
  try:
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])  # written into: b" " * 1 would be the constant itself
    nvrtc.nvrtcGetProgramLog(program, log)
    said = log.decode().rstrip("\0")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
      raise DeviceError(f"CUDA: compiling {name} for {arch} failed: {errors_of(said) or status.name}")
    kind = "PTX" if arch.startswith("compute") else "CUBIN"
    code = bytes(getattr(nvrtc, f"nvrtcGet{kind}Size")(program)[1])
    getattr(nvrtc, f"nvrtcGet{kind}")(program, code)
  finally:
    nvrtc.nvrtcDestroyProgram(program)
  return code, said


@dataclass(slots=True, eq=False)
class Memory:
  """Device memory, given back when nothing refers to it."""

  device: CUDA
  address: int

  def __del__(self) -> None:
    if not (sys.is_finalizing() or self.device.inherited):  # the driver may be gone
      driver.cuCtxPushCurrent(self.device.context)  # whoever is interrupted by this goes on in the context that was
      driver.cuMemFree(self.address)
      driver.cuCtxPopCurrent()


@dataclass(slots=True, eq=False)
class Call(queues.Call):
  """A kernel with its arguments in place: 8-byte words, and pointers to them; two of a variable, its value and, if it
  is not 0, the address where that lies instead. In a graph it is a `node`, and where other memory is given, the graph
  has to be told."""

  pointers: Any
  node: Any = None
  graph: Graph | None = None

  def set_word(self, i: int, value: Any) -> None:
    word = value if isinstance(value, int) else value.address
    if self.graph is not None and self.words[i] != word:  # a table stays where it is, whatever it leads to
      self.graph.changed.append(self)
    self.words[i] = word

  def set_variable(self, number: int, value: int) -> None:
    """In a graph a variable moves to memory when its value changes for the first time."""
    i = len(self.memory) + 2 * number
    if self.graph is None:
      self.words[i] = value
    else:
      cells = self.graph.cells[self.device]
      if not self.words[i + 1]:
        self.set_word(i + 1, cells.next())
      cells.put(self.words[i + 1], value)

  def launch(self) -> Any:
    """As the parameters of a graph's node."""
    launch, out = self.program.launch, driver.CUDA_KERNEL_NODE_PARAMS()
    out.func, out.kernelParams = self.built, ctypes.addressof(self.pointers)
    out.gridDimX, out.gridDimY, out.gridDimZ = launch.groups
    out.blockDimX, out.blockDimY, out.blockDimZ = launch.threads
    out.sharedMemBytes = launch.local
    return out


@dataclass(slots=True, eq=False, weakref_slot=True)
class Cells:
  """The variables of a graph that change, in one device's memory: they are written on its stream before a launch."""

  device: CUDA
  values: Any  # 8-byte words
  memory: Memory | None = None  # once there is one
  used: int = 0
  changed: bool = False

  def next(self) -> int:
    """The address of one more."""
    if self.memory is None:
      nbytes = ctypes.sizeof(self.values)
      self.memory = self.device.alloc(nbytes)
      weakref.finalize(self, self.device.free, self.memory, nbytes)
    self.used += 1
    return self.memory.address + 8 * (self.used - 1)

  def put(self, address: int, value: int) -> None:
    assert self.memory is not None
    self.values[(address - self.memory.address) // 8] = value
    self.changed = True

  def write(self) -> None:
    if self.memory is not None and self.changed:
      self.device.copyin(self.memory, memoryview(self.values))
      self.changed = False


Chain = tuple[
  "CUDA", bool
]  # of kernels that run one after another: the device, and whether they read its peers' memory


class Graph:
  """What is queued again and again, as one launch.

  Each device has two chains of kernels: those that read its peers' memory, and all others. A kernel comes after the one
  before it in its chain, and of the other chain and other devices after those that wrote what it reads or writes, and
  that read what it writes. So devices need no barriers, and move values while they compute what does not ask for them.
  """

  def __init__(self, devices: Sequence[CUDA], lists: Sequence[Batch]) -> None:
    self.devices, self.first = devices, devices[0]
    self.changed: list[Call] = []
    self.cells = {d: Cells(d, (ctypes.c_int64 * variables_of(calls))()) for d, calls in zip(devices, lists)}
    self.graph = self.first.do("cuGraphCreate", 0)
    self.last: dict[Chain, Any] = {}
    self.chain: dict[int, Chain] = {}  # of a node, by identity
    self.writer: dict[Memory, Any] = {}
    self.readers: dict[Memory, list[Any]] = {}  # since it was written
    self.joined: dict[frozenset[int], Any] = {}  # a node behind several, by identity
    for d, call in in_order(devices, lists):
      if isinstance(call, Call):
        self.add(d, call)
    self.executable = self.first.do("cuGraphInstantiate", self.graph, 0)

  def add(self, d: CUDA, call: Call) -> None:
    arguments = [kept[1] if isinstance(kept, tuple) else [kept] for kept in call.memory]
    written, read = arguments[: call.program.launch.writes], arguments[call.program.launch.writes :]
    chain = d, any(isinstance(kept, tuple) for kept in call.memory)
    before = {id(node): node for node in [self.last.get(chain)] if node is not None}
    for memory in arguments:
      before.update(self.behind(chain, [self.writer[m] for m in memory if m in self.writer]))
    for memory in written:
      before.update(self.behind(chain, [node for m in memory for node in self.readers.get(m, ())]))
    call.node = d.do("cuGraphAddKernelNode", self.graph, [*before.values()], len(before), call.launch())
    call.graph, self.last[chain], self.chain[id(call.node)] = self, call.node, chain
    for m in itertools.chain(*read):
      self.readers.setdefault(m, []).append(call.node)
    for m in itertools.chain(*written):
      self.writer[m], self.readers[m] = call.node, []

  def behind(self, chain: Chain, nodes: Sequence[Any]) -> dict[int, Any]:
    """What a kernel comes after beside the one before it in its chain, by identity: of several nodes, one behind them
    which the kernels of all devices share that wait for these."""
    found = {id(node): node for node in nodes}
    others = {i: node for i, node in found.items() if self.chain[i] != chain}
    if len(others) <= 1:
      return others
    if (key := frozenset(found)) not in self.joined:
      self.joined[key] = chain[0].do("cuGraphAddEmptyNode", self.graph, [*found.values()], len(found))
    return {id(self.joined[key]): self.joined[key]}

  def launch(self) -> None:
    for c in dict.fromkeys(self.changed):
      self.first.do("cuGraphExecKernelNodeSetParams", self.executable, c.node, c.launch())
    self.changed.clear()
    for cells in self.cells.values():
      cells.write()
    self.first.meet(self.devices)
    self.first.do("cuGraphLaunch", self.executable, self.first.stream)
    self.first.meet(self.devices)

  def __del__(self) -> None:
    if hasattr(self, "executable") and not (sys.is_finalizing() or self.first.inherited):
      driver.cuGraphExecDestroy(self.executable)  # after what it still runs
      driver.cuGraphDestroy(self.graph)


def variables_of(calls: Batch) -> int:
  return sum((len(c.words) - len(c.memory)) // 2 for c in calls if isinstance(c, Call))


@functools.cache
def contexts() -> list[Any]:
  """The primary context of each physical device.

  Raises: DeviceError if there is no driver or no device.
  """
  try:
    call("cuInit", 0)
    devices = [call("cuDeviceGet", i) for i in range(call("cuDeviceGetCount"))]
  except (DeviceError, RuntimeError) as e:
    raise DeviceError(f"no NVIDIA driver works here ({e})\n  {ON_CPU}; or install the driver") from e
  if not devices:
    raise DeviceError(f"there is no NVIDIA device here\n  {ON_CPU}")
  return [call("cuDevicePrimaryCtxRetain", d) for d in devices]


@functools.cache
def reaches(i: int, k: int) -> bool:
  """Whether kernels of physical device i may read the memory of k; makes it so where it can be."""
  if i == k or not call("cuDeviceCanAccessPeer", call("cuDeviceGet", i), call("cuDeviceGet", k)):
    return i == k
  call("cuCtxSetCurrent", contexts()[i])
  try:
    call("cuCtxEnablePeerAccess", contexts()[k], 0)
  except DriverError as e:  # another library of this process may have done it; some machines allow eight peers only
    return e.status == "PEER_ACCESS_ALREADY_ENABLED"
  return True


class CUDA(QueueDevice):
  """One device and its stream."""

  target, dialect = TARGET, dialects.CUDA
  capabilities = Capabilities(copies=True, nccl=True)

  def __init__(self, name: str) -> None:
    super().__init__(name)
    several = getenv("CUDA_VIRTUAL", 1, 1)
    self.context = self.choose(contexts(), "NVIDIA devices", "CUDA_VIRTUAL=n makes n of each", several)
    self.stream = self.do("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    self.reached, *events = (self.do("cuEventCreate", driver.CUevent_flags.CU_EVENT_DISABLE_TIMING) for _ in range(3))
    self.halves: list[Any] = events  # of the staging memory, once there is one: (memory, its address, event)
    self.filled = 0  # bytes of the first half
    device, kind = call("cuDeviceGet", self.number), "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"
    self.identity = call("cuDeviceGetPCIBusId", 32, device).decode().rstrip("\0")
    parts = [getattr(driver.CUdevice_attribute, kind + part) for part in ("MAJOR", "MINOR")]
    major, minor = (call("cuDeviceGetAttribute", part, device) for part in parts)
    self.capability = int(major), int(minor)
    kinds = ("MULTIPROCESSOR_COUNT", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    of = (getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{k}") for k in kinds)
    units, scratch = (int(call("cuDeviceGetAttribute", k, device)) for k in of)
    self.target = target_of(self.capability, units, scratch)
    self.kept = call("cuDeviceTotalMem", device) // (2 * several)
    self.description = f"{len(contexts()) * several} of sm_{major}{minor}"

  def do(self, function: str, *args: Any) -> Any:
    """A function of the driver for this device. What went wrong in queued work shows in whichever comes next.

    Raises: what `call` does; DeviceError that tells the suspects if the device is lost, and that it is from then on.
    """
    self.check_process()
    if self.number in lost:
      raise DeviceError(f"{self.name} was lost earlier ({lost[self.number]})\n  fix: start a new process")
    driver.cuCtxSetCurrent(self.context)
    try:
      return call(function, *args)
    except DriverError as e:
      if e.status not in FATAL:
        raise
      lost[self.number] = e.status
      suspects = "".join(d.suspects() for d in opened.values() if isinstance(d, CUDA) and d.number == self.number)
      raise DeviceError(
        f"{self.name} is lost, with its memory: {e.status} in one of the kernels queued since the last wait"
        f"{suspects}\n  fix: start a new process, with DEBUG=2 to run them one by one; other devices go on"
      ) from e

  @property
  def lost(self) -> bool:
    return self.inherited or self.number in lost

  def enter(self) -> None:
    """What other libraries do in this thread is for this device."""
    self.check_process()
    driver.cuCtxSetCurrent(self.context)

  def reaches(self, other: CUDA) -> bool:
    return reaches(self.number, other.number)

  def wait(self) -> None:
    self.do("cuStreamSynchronize", self.stream)

  # ---- memory

  def size_of(self, nbytes: int) -> int:
    """Few different sizes: what is small shares the 2 MiB that the driver takes from the device at once."""
    return round_up(max(nbytes, 1), 512 if nbytes < 1 << 20 else 2 << 20)

  def new_memory(self, nbytes: int) -> Memory:
    return Memory(self, int(self.do("cuMemAlloc", nbytes)))

  def staged(self, nbytes: int) -> Iterator[tuple[int, memoryview, int, Any]]:
    """The pieces of a copy: (offset, pinned memory, its address, the event to record behind its use). The halves of
    the staging memory are filled in turn, each again when its event has come: small copies wait for nothing."""
    if not isinstance(self.halves[0], tuple):
      address = int(self.do("cuMemHostAlloc", 2 * HALF, 0))
      memory = memoryview((ctypes.c_char * (2 * HALF)).from_address(address)).cast("B")
      self.halves = [(memory[i * HALF :][:HALF], address + i * HALF, event) for i, event in enumerate(self.halves)]
    for at in range(0, nbytes, HALF):
      size = min(nbytes - at, HALF)
      if self.filled + size > HALF:
        self.halves.reverse()
        self.filled = 0
        self.do("cuEventSynchronize", self.halves[0][2])
      (memory, address, event), begin = self.halves[0], self.filled
      self.filled = round_up(begin + size, 64)
      yield at, memory[begin : begin + size], address + begin, event

  def copyin(self, handle: Memory, data: memoryview, offset: int = 0) -> None:
    data = data.cast("B") if data.nbytes else data
    for at, pinned, address, event in self.staged(data.nbytes):
      pinned[:] = data[at : at + len(pinned)]
      self.do("cuMemcpyHtoDAsync", handle.address + offset + at, address, len(pinned), self.stream)
      self.do("cuEventRecord", event, self.stream)

  def copyout(self, data: memoryview, handle: Memory, offset: int = 0) -> None:
    data = data.cast("B") if data.nbytes else data
    before: Any = None
    for piece in itertools.chain(self.staged(data.nbytes), [None]):
      if piece is not None:
        at, pinned, address, event = piece
        self.do("cuMemcpyDtoHAsync", address, handle.address + offset + at, len(pinned), self.stream)
        self.do("cuEventRecord", event, self.stream)
      if before is not None:  # is taken while the next piece is under way
        at, pinned, _, event = before
        self.do("cuEventSynchronize", event)
        data[at : at + len(pinned)] = pinned
      before = piece

  def copy_from(self, c: PeerCopy) -> None:
    """Straight over the link between two GPUs, or by way of the host where the driver knows none."""
    to, at = c.handle.address + c.offset, c.source_handle.address + c.source_offset
    self.do("cuMemcpyPeerAsync", to, self.context, at, c.source.context, c.nbytes, self.stream)

  # ---- kernels

  def build(self, program: GridKernel) -> Any:
    """Machine code, or where the driver does not take that PTX, which it compiles itself."""
    own, refused = arch_of(self.capability), list[str]()
    for arch in dict.fromkeys((own, f"compute_{own.partition('_')[2].removesuffix('a')}")):
      try:
        module = self.do("cuModuleLoadData", compile_source(program.source, program.name, arch))
        function = self.do("cuModuleGetFunction", module, program.name.encode())
        if program.launch.local:
          kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
          self.do("cuFuncSetAttribute", function, kind, program.launch.local)
        return function
      except DriverError as e:
        refused.append(f"{arch}: {e}")
    knows, (major, minor) = call("cuDriverGetVersion"), toolchain()[0]
    old = (knows // 1000, knows % 1000 // 10)
    said = f"the driver, of CUDA {old[0]}.{old[1]}, does not take {program.name} of NVRTC {major}.{minor}"
    fix = "update the NVIDIA driver" + (f", or {toolkit(*old)}" if old < (major, minor) else "")
    raise DeviceError(f"{self.name}: {said} ({'; '.join(refused)})\n  fix: {fix}")

  def new_call(self, program: GridKernel, buffers: int, variables: int) -> Call:
    n = buffers + 2 * variables
    words = (ctypes.c_int64 * n)()
    pointers = (ctypes.c_void_p * n)(*(ctypes.addressof(words) + 8 * i for i in range(n)))
    return Call(self, program, self.built(program), [None] * buffers, words, pointers)

  def enqueue(self, bound: Call) -> None:
    launch, arguments = bound.program.launch, ctypes.addressof(bound.pointers)
    try:
      self.do("cuLaunchKernel", bound.built, *launch.groups, *launch.threads, launch.local, self.stream, arguments, 0)
    except DriverError as e:
      what = f"launching {bound.program.name} ({prod(launch.threads)} threads a group)"
      raise DeviceError(f"{self.name}: {what}: {e}") from e

  def meet(self, devices: Sequence[CUDA]) -> None:
    """The first waits for all others, and these for it."""
    first, *others = devices
    for d in others:
      d.do("cuEventRecord", d.reached, d.stream)
      first.do("cuStreamWaitEvent", first.stream, d.reached, 0)
    if others:
      first.do("cuEventRecord", first.reached, first.stream)
    for d in others:
      d.do("cuStreamWaitEvent", d.stream, first.reached, 0)

  @staticmethod
  def hand_over(devices: Sequence[CUDA], lists: Sequence[Batch]) -> None:
    first = lists[0]
    first.times += 1
    if first.graph is None and (first.times == 1 or sum(map(len, lists)) == 1):
      QueueDevice.hand_over(devices, lists)
    else:
      first.graph = first.graph or Graph(devices, lists)
      first.graph.launch()


open_device: type[Backend] = CUDA
