"""A stand-in for NCCL, as nccl4py's `nccl.core`, for devices `EMULATED:i` (cuda_emulator.py), a few in each process:
what is sent and received is queued on their streams, and when a stream comes to it the bytes go by MPI from the memory
of one process to that of another. A GPU does what is queued by itself; here a process does so before it meets others.

It follows NCCL's documentation: a group is matched as a whole; between two devices messages are matched in their order,
and have to be of one length; a communicator is one device's, and so are the streams and the memory that it is given.
What NCCL would answer with silence or a hang is noted in `faults`, which end the process.

  DEV=EMULATED PYTHONPATH=test/distributed mpiexec -n 2 python -m pytest -p nccl_double -p ranks test/laws …

`MUTANT` in the environment: "early", messages do not wait for the stream; "crossed", a group's are in another order
where they are received; "lone", they are in no group.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
import cuda_emulator

MUTANT = os.environ.get("MUTANT", "")
MISSING = os.environ.get("MISSING", "")  # "nccl4py", "library": what is not there, in process 1
faults, groups = [], []
carried = 0  # bytes that left this process
ids = SimpleNamespace(made=0)
state = SimpleNamespace()


class NCCLError(RuntimeError):
  """As the binding's own."""


class UniqueId:
  def __init__(self, data=b""):
    self.data = data

  def __bytes__(self):
    return self.data

  @staticmethod
  def from_bytes(data):
    return UniqueId(data)


def get_unique_id():
  ids.made += 1
  return UniqueId(os.urandom(128))


def get_version():
  return SimpleNamespace(libnccl=None if MISSING == "library" and state.rank == 1 else "2.30")


class Group:
  """Sends and receives that begin together: an op in each of their streams, and the first that is come to does all."""

  def __init__(self):
    self.messages, self.ops, self.done = [], [], False

  def queue(self):
    if MUTANT == "early":
      self.run()
      return
    self.ops = [cuda_emulator.Op(s, self.run, what="nccl") for s in dict.fromkeys(m[-1] for m in self.messages)]
    for op in self.ops:
      state.driver.add(op)

  def run(self):
    if self.done:
      return
    self.done = True
    for op in self.ops:  # what is queued before it on the other streams
      while op.stream.ops and not op.done and op.stream.ops[0] is not op:
        state.driver.finish(op.stream.ops[0])
    sent, received = ([m for m in self.messages if m[0] == kind] for kind in ("send", "recv"))
    if MUTANT == "crossed":
      received.reverse()
    for finish in [exchange(*m[:3], (ctypes.c_ubyte * m[3][1]).from_address(m[3][0])) for m in (*sent, *received)]:
      finish()


def exchange(kind, own, peer, memory):
  """One message: by MPI, between the processes of both; its tag tells the devices, so their order is MPI's."""
  global carried
  world = __import__("tinygrad").Device.world
  if not hasattr(state, "comm"):
    state.comm = world.comm.Dup()
  process = peer // world.per_process
  if kind == "send":
    carried += memory._length_
    request = state.comm.Isend([memory, world.mpi.BYTE], process, own * 64 + peer)
    return lambda: world.wait(request.Test, "a double of NCCL sends")
  status = world.mpi.Status()
  room = (ctypes.c_ubyte * (1 << 24))()  # for what is longer than it should be
  request = state.comm.Irecv([room, world.mpi.BYTE], process, peer * 64 + own)

  def finish():
    world.wait(lambda: request.Test(status), "a double of NCCL receives")
    ctypes.memmove(memory, room, min(found := status.Get_count(world.mpi.BYTE), memory._length_))
    if found != memory._length_:
      faults.append(f"{found} bytes came where {memory._length_} were to be")

  return finish


@contextlib.contextmanager
def group():
  groups.append(Group())
  try:
    yield
  finally:
    groups.pop().queue()


class Communicator:
  def __init__(self, context, nranks, rank):
    self.context, self.nranks, self.rank = context, nranks, rank

  @classmethod
  def init(cls, nranks, rank, unique_id, config=None):
    if MISSING == "link":
      raise NCCLError("NCCL_ERROR (5): ncclInvalidUsage")
    if len(bytes(unique_id)) != 128 or not 0 <= rank < nranks:
      faults.append(f"a communicator of {unique_id.data!r}, {rank} of {nranks}")
    return cls(state.driver.current, nranks, rank)

  def message(self, kind, buffer, peer, stream):
    about = buffer.__cuda_array_interface__
    (address, read_only), (nbytes,) = about["data"], about["shape"]
    assert about["typestr"] == "|u1" and about["version"] == 3 and about["strides"] is None and not read_only
    stream = next(s for s in state.driver.streams if int(s) == stream)
    owner = [of for at, (of, n, _) in state.driver.memory.items() if at <= address and address + nbytes <= at + n]
    if owner != [self.context] or stream.context != self.context or not 0 <= peer < self.nranks or peer == self.rank:
      faults.append(f"{kind} of device {self.context} with {peer}: memory of {owner}, stream of {stream.context}")
    message = kind, self.rank, peer, (address, nbytes), stream
    if groups and MUTANT != "lone":
      groups[-1].messages.append(message)
    else:
      faults.append(f"{kind} outside a group waits for what comes after it")

  def send(self, buffer, peer, *, stream=None):
    self.message("send", buffer, peer, stream)

  def recv(self, buffer, peer, *, stream=None):
    self.message("recv", buffer, peer, stream)

  def destroy(self):
    if hasattr(state, "comm") and state.comm.Iprobe():
      faults.append("what was sent has not been received")


def run_all():
  """What is queued on the devices of this process is done."""
  for stream in state.driver.streams:
    if stream.ops:
      state.driver.finish(stream.ops[-1])


def tell():
  told = [*faults, *state.driver.faults]
  if told:
    print(f"process {state.rank}: faults: {told[:5]}", file=sys.stderr, flush=True)
    os._exit(3)


def install(devices):
  """So many emulated devices in this process, and the double between them. They are those of no other process, unless
  `BUS` in the environment is "shared"."""
  state.rank = int(os.environ.get("PMI_RANK", "0"))
  state.driver = cuda_emulator.install(devices=devices).driver
  state.driver.domain = 0 if os.environ.get("BUS") == "shared" else state.rank + 1
  atexit.register(tell)  # after the world's end, which is registered later
  if MISSING != "nccl4py" or state.rank != 1:
    made = types.ModuleType("nccl.core")
    for of in (Communicator, UniqueId, get_unique_id, get_version, group):
      setattr(made, of.__name__, of)
    sys.modules.update({"nccl": types.ModuleType("nccl"), "nccl.core": made})
  if "PMI_RANK" in os.environ:
    from tinygrad.distributed import world

    gather = world.Processes.gather

    def met(self, *args):
      run_all()
      return gather(self, *args)

    world.Processes.gather = met


def pytest_configure():
  """As a plugin, beside `ranks`."""
  install(-(-9 // int(os.environ.get("PMI_SIZE", "1"))))
