"""OpenCL devices: of the processor where there is no GPU. What codegen makes for a grid is checked kernel by kernel
with `DEV=CL pytest test/codegen/test_kernels.py`, sharding with `DEV=CL pytest test/laws`."""

import gc

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit, nn
from tinygrad.debug.check_nan import NonFiniteError
from tinygrad.device import Device, DeviceError, Launch, Rendered
from tinygrad.nn.block_formats import FORMATS
from tinygrad.runtime import cl, diskcache
from tinygrad.runtime.cl import CL, DECLARED

pytestmark = pytest.mark.needs("CL")
TWO = ("CL:0", "CL:1")


def normal(*shape):
  return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_a_sharded_row_softmax_and_its_sum_over_the_cut_dim():
  x = normal(37, 300)
  e = np.exp(x - x.max(1, keepdims=True))
  got = Tensor(x).shard(TWO, axis=0).softmax(-1).sum(0).numpy()
  np.testing.assert_allclose(got, (e / e.sum(1, keepdims=True)).sum(0), rtol=1e-5)


def test_a_matmul_whose_inner_dim_is_cut():
  a, b = normal(65, 128), normal(128, 33)
  got = Tensor(a).shard(TWO, axis=1) @ Tensor(b).shard(TWO, axis=0)
  np.testing.assert_allclose(got.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_a_binary_cross_entropy_of_twelve():
  """Intel's optimiser (release 2026.2) gives half of it where it makes vectors of loops."""
  p, y = np.random.default_rng(0).random((2, 12)).astype(np.float32) * 0.8 + 0.1
  got = Tensor(p, device="CL").binary_crossentropy(Tensor(y, device="CL")).item()
  assert got == pytest.approx(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(), rel=1e-5)


def test_the_place_of_the_least_integer():
  """Intel's optimiser (release 2026.2) gives another one with AVX-512, of `~x == y` for several neighbours."""
  x = [3, 3, 1, 2, 0, -1, -3, 1, 4, -2, 1, 0, -3, -1, 2, 1, 0, -1, -3, 4, 3, -4, -4, 1, 2, -2, 1, 2, -1, 2]
  assert Tensor(x, dtype="int32", device="CL").argmin().item() == 21


@pytest.mark.parametrize("shape", [(8,), (16,), (24,), (32,), (128,), (14, 32)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
  "negated",
  [lambda x: -x, lambda x: x * -1.0, lambda x: -1.0 * x, lambda x: x / -1.0, lambda x: -0.0 - x, lambda x: -(x - 1)],
)
def test_what_lanes_negate(negated, shape, dtype):
  """Where there is a barrier Intel's optimiser (release 2026.2) takes `-x` of one work item for that of all."""
  x = np.random.default_rng(shape[-1]).standard_normal(shape).astype(dtype)
  z = negated(x.astype(np.float64))
  e = np.exp(z - z.max(-1, keepdims=True))
  got = negated(Tensor(x, device="CL").realize()).softmax(-1)
  np.testing.assert_allclose(got.numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_what_is_negated_has_the_other_sign():
  x = np.array([0.0, -0.0, 2.0, -np.inf, np.nan])
  for dtype in ("float16", "float32", "float64"):
    for negated in (-Tensor(x, dtype=dtype, device="CL"), Tensor(x, dtype=dtype, device="CL") / -1.0):
      np.testing.assert_array_equal((1 / negated).numpy(), [-np.inf, np.inf, -0.5, 0, np.nan])


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows, n", [(5, 512), (70, 4096)])
def test_weights_in_blocks_times_a_vector(rows, n, name):
  kind, rng = FORMATS[name], np.random.default_rng(0)
  raw = rng.integers(0, 256, (rows, n // kind.weights, kind.nbytes), np.uint8)
  for at in {"Q4_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):  # where numbers of 16 bits are
    raw[..., at : at + 2] = rng.uniform(0.01, 0.1, (*raw.shape[:-1], 1)).astype(np.float16).view(np.uint8)
  x = rng.standard_normal(n).astype(np.float32)
  want = kind.tensor(Tensor(raw, device="CPU")).numpy().astype(np.float64) @ x
  got = (kind.tensor(Tensor(raw, device="CL").realize()) @ Tensor(x, device="CL").realize()).numpy()
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=np.abs(want).max() * 1e-5)


def train(devices):
  """Ten captured steps of a small network, data parallel; its losses."""
  rng = np.random.default_rng(1)
  x, y = rng.standard_normal((32, 20)).astype(np.float32), rng.integers(0, 4, 32)
  first, second = nn.Linear(20, 16), nn.Linear(16, 4)
  for layer in (first, second):
    layer.weight = Tensor(rng.standard_normal(layer.weight.shape).astype(np.float32) * 0.3, requires_grad=True)
    layer.bias = Tensor(np.zeros(layer.bias.shape, np.float32), requires_grad=True)
  state = [first.weight, first.bias, second.weight, second.bias]
  for t in state:
    t.shard_(devices)
  optimizer = nn.optim.Adam(state, lr=0.01)

  @TinyJit
  def step(x, y):
    optimizer.zero_grad()
    loss = second(first(x).relu()).sparse_categorical_crossentropy(y)
    loss.backward()
    optimizer.step()
    return loss.realize()

  with Tensor.train():
    return [
      step(
        Tensor(x).shard(devices, axis=0).realize(), Tensor(y.astype(np.int32)).shard(devices, axis=0).realize()
      ).item()
      for _ in range(10)
    ]


def test_data_parallel_training_is_the_same_as_on_cpu_devices():
  np.testing.assert_allclose(train(TWO), train(("CPU:0", "CPU:1")), rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_devices_copy_from_one_another(axis, monkeypatch):
  """By the driver: no byte comes to the host."""
  x, three = normal(10, 6), ("CL:1", "CL:2", "CL:3")
  there = (Tensor(x).shard(TWO, axis=0) * 2).realize()
  with monkeypatch.context() as m:
    m.setattr(CL, "copy", None)
    moved = [(there.shard(three, axis=axis) + 1).realize() for _ in range(3)]
  for t in moved:
    np.testing.assert_array_equal(t.numpy(), x * 2 + 1)


def test_a_move_between_kinds_of_devices():
  x = normal(10, 6)
  there = Tensor(x, device="CPU").shard(("CPU:0", "CPU:1"), axis=0).to("CL:1")
  assert there.device == "CL:1"
  np.testing.assert_array_equal(there.shard(TWO, axis=1).to("CPU").numpy(), x)


def test_interpreted_results_reach_memory_that_the_host_cannot_address():
  x = normal(6, 4)
  with Context(INTERPRET=1):
    t = (Tensor(x).shard(TWO, axis=0) * 2).realize()
  np.testing.assert_array_equal((t + 1).numpy(), x * 2 + 1)


def test_check_nan_looks_at_memory_that_the_host_cannot_address():
  with Context(CHECK_NAN=1):
    np.testing.assert_allclose(Tensor([1.0, 4.0], device="CL").sqrt().numpy(), [1, 2])
    with pytest.raises(NonFiniteError, match=r"(?s)1 of 3 elements are NaN, on CL .*realized at test_cl.py"):
      Tensor([1.0, -4.0, 9.0], device="CL").sqrt().realize()


# ---------------------------------------------------------------- faults


def goes_on():
  """The device computes, by a kernel that no other test has."""
  x = normal(7, 11)
  np.testing.assert_allclose((Tensor(x).shard(TWO, axis=0).sum(0) * 3).numpy(), x.sum(0) * 3, rtol=1e-5)


def test_devices_that_are_not_there_are_told_how_many_are():
  with pytest.raises(
    DeviceError, match=r"CL:97: there are \d+ OpenCL devices .*\n  fix: use CL:0 to CL:\d+; CL_VIRTUAL=n"
  ):
    Tensor(normal(3), device="CL:97").realize()


def test_no_memory_is_told_with_size_device_and_line_and_what_others_got_is_given_back():
  before = [Device.mem_used(d) for d in TWO]
  with pytest.raises(MemoryError) as told:
    Tensor.ones(1 << 48, device="CL").contiguous().realize()
  with pytest.raises(MemoryError, match=f"CL:1: no memory for a buffer of {1 << 50} bytes"):
    Device["CL:1"].alloc(1 << 50)
  said = str(told.value)
  assert f"CL: no memory for a buffer of {1 << 50} bytes" in said and "fix: smaller batches" in said
  assert "realized at test_cl.py:" in said and "contiguous().realize()" in said
  del told
  gc.collect()
  assert [Device.mem_used(d) for d in TWO] == before
  goes_on()


def test_memory_that_was_kept_for_reuse_is_given_back_before_there_is_none(monkeypatch):
  device = Device["CL"]
  kept = device.alloc(12345)
  device.free(kept, 12345)
  real, asked = device.new_memory, []

  def new_memory(nbytes):
    asked.append(dict(device.pool))
    if device.pool:
      raise MemoryError("full")
    return real(nbytes)

  monkeypatch.setattr(device, "new_memory", new_memory)
  device.free(device.alloc(54321), 54321)
  assert 12345 in asked[0] and asked[1:] == [{}]
  goes_on()


@pytest.mark.parametrize(
  "change, match",
  [
    (lambda r: r._replace(source=r.source.replace("void ", "void nonsense ", 1)), r"compiling \w+ failed: .*error: "),
    (lambda r: r._replace(launch=r.launch._replace(threads=(77, 1, 1))), r"\w+ failed: .*INVALID_WORK_GROUP_SIZE"),
  ],
  ids=["compile", "launch"],
)
def test_a_kernel_that_fails_is_named_with_the_users_line(change, match, monkeypatch):
  x, render = normal(3, 5, 2), CL.render
  with monkeypatch.context() as m:
    m.setattr(CL, "render", lambda self, linear, name: change(render(self, linear, name)))
    with pytest.raises(
      DeviceError, match=rf"(?s)CL \(.*\): {match}.*realized at .*test_cl.py:\d+: .*\.exp\(\)"
    ) as told:
      Tensor(x, device="CL").exp().numpy()
  del told
  np.testing.assert_allclose((Tensor(x, device="CL").exp() + 2).numpy(), np.exp(x) + 2, rtol=1e-5)
  goes_on()


# ---------------------------------------------------------------- programs


def test_a_binary_that_does_not_load_is_built_anew(monkeypatch):
  binaries = []
  monkeypatch.setattr(diskcache, "get", lambda key: b"no program")
  monkeypatch.setattr(diskcache, "put", lambda key, data: binaries.append(data))
  x = normal(13)
  np.testing.assert_allclose((Tensor(x, device="CL") * 0.125 - 9).numpy(), x * 0.125 - 9, rtol=1e-6)
  assert binaries and all(len(b) > len(b"no program") for b in binaries)


def test_what_kernels_call_is_declared(monkeypatch):
  """Each kernel is built from source once, with the declarations of this package."""
  if "PoCL" not in Device["CL"].device.version:
    pytest.skip("only PoCL's declarations are left out")
  sources, real = [], CL.program
  monkeypatch.setattr(
    CL, "program", lambda self, options, *of: sources.append((options, of)) or real(self, options, *of)
  )
  monkeypatch.setattr(diskcache, "get", lambda key: None)
  monkeypatch.setattr(diskcache, "put", lambda key, data: None)
  x = np.abs(normal(5, 19)) + 0.25
  for dtype, tol in (("float64", 1e-6), ("float32", 1e-5), ("float16", 2e-2)):
    t = Tensor(x, device="CL").cast(dtype).contiguous().realize()
    for name in ("sqrt", "floor", "ceil", "round", "sin", "tanh", "exp", "log"):
      want = getattr(np, name)(x.astype(dtype)).astype(np.float64)
      np.testing.assert_allclose(getattr(t, name)().numpy(), want, rtol=tol, atol=tol)
    np.testing.assert_allclose(t.pow(t).numpy(), x**x, rtol=tol * 4)
    t.erf().numpy()
    assert Tensor.ones(1, 8192, dtype=dtype, device="CL").contiguous().realize().sum().item() == 8192
  built = [options for options, of in sources if options]
  assert len(built) > 20 and len(built) == len(sources) - len(built) and all("-D_OPENCL_H_" in o for o in built)
  assert any("barrier(" in of[0].split(DECLARED)[1] for options, of in sources if options)


def test_functions_that_are_not_declared_come_from_the_drivers_declarations(monkeypatch):
  """What is declared here is only a short cut."""
  device = Device["CL"]
  source = """__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void k(__global float* p0) {
  p0[get_local_id(0)] = hypot(3.0f, 4.0f);
}"""
  assert "hypot" not in DECLARED
  memory, got = device.alloc(16), np.zeros(4, np.float32)
  program = device.compile(Rendered(source, Launch(threads=(4, 1, 1))), "k")
  device.submit_all([device], [device.batch([device.bind(program, [memory])])])
  device.copyout(memoryview(got.view(np.uint8)), memory)
  assert got.tolist() == [5.0] * 4


USES = {  # of a group of 8 threads with their numbers: a kernel, and what it computes
  "half": ("half x = (half)i; x = x * x + (half)0.5f; p0[i] = (float)x;", lambda i: i * i + 0.5),
  "sub_groups": ("p0[8 + i] = get_sub_group_id(); p0[i] = sub_group_reduce_add((float)i);", None),
  "shuffle": ("p0[i] = sub_group_shuffle((float)i, get_sub_group_local_id());", lambda i: i),
}


@pytest.mark.parametrize("feature", USES)
def test_what_a_target_says_of_its_device_is_true(feature):
  device = Device["CL"]
  if feature not in device.target.features:
    pytest.skip(f"{device.device.platform.name} offers no {feature}")
  body, value = USES[feature]
  names = {name: extension for extension, name in cl.FEATURES.items()}
  source = f"""#ifdef {names[feature]}
#pragma OPENCL EXTENSION {names[feature]} : enable
#endif
__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void k(__global float* p0) {{
  int i = get_local_id(0); {body}
}}"""
  memory, got = device.alloc(64), np.zeros(16, np.float32)
  program = device.compile(Rendered(source, Launch(threads=(8, 1, 1))), "k")
  device.submit_all([device], [device.batch([device.bind(program, [memory])])])
  device.copyout(memoryview(got.view(np.uint8)), memory)
  if value is None:
    assert sum(dict(zip(got[8:].tolist(), got[:8].tolist())).values()) == sum(range(8)), got
  else:
    np.testing.assert_array_equal(got[:8], value(np.arange(8, dtype=np.float32)))


def test_kernels_are_opencl_c_3_where_the_driver_offers_it():
  device = Device["CL"]
  assert ("-cl-std=CL3.0" in device.options) == device.device.version.startswith(("OpenCL 3", "OpenCL 4"))
