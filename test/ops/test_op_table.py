"""Every row of the op table: values, dtype and gradient are PyTorch's; and every public method has a row."""

import ast
import pathlib

import numpy as np
import op_table
import pytest
from inputs import made, way
from op_table import ROWS, Case, cases, golden, laid_out, torch_answers, weights

from tinygrad import Tensor

# results in one rounding of the type's own; functions of float32 are within 3 ulp, sums reorder
TOLERANCE = {"float64": 1e-6, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}

# -0.0 and 0.0 are as good here: PyTorch's own vector and scalar code differ, its sums begin with 0.0, or LLVM chooses
ANY_ZERO = {
  "elu",
  "selu",
  "sign",
  "relu",
  "relu6",
  "logsigmoid",
  "sum",
  "mean",
  "max",
  "min",
  "cummax",
  "cummin",
  "maximum",
  "minimum",
}


@pytest.fixture(scope="module")
def answers():
  return golden()


def ours(case: Case) -> tuple[list[Tensor], list[Tensor]]:
  """(results, gradients by the operands that have one)."""
  leaves, operands = [], []
  for i, (x, given) in enumerate(zip(case.arrays, case.given)):
    base, look = laid_out(x) if case.view and not given and x.ndim > 1 else (x, lambda t: t)
    leaf = made(base, way(f"{case.key} {i}", base), dtype=None if given else case.dtype)
    leaves += [] if given else [leaf]
    operands.append(look(leaf))
  out = case.row.ours(*operands)
  outs = list(out) if isinstance(out, (tuple, list)) else [out]
  if not case.grad:
    return outs, []
  floats = [o for o in outs if o.is_floating_point()]
  losses = [(o.float() if o.dtype.itemsize < 4 else o).mul(Tensor(weights(o.shape))).sum() for o in floats]
  if not losses:
    return outs, []
  loss = losses[0].usum(*losses[1:]).cast(losses[0].dtype)
  return outs, loss.gradient(*leaves)  # zeros where the derivative is 0: none of them may be said not to be reached


def compare(case: Case, got: np.ndarray, want: np.ndarray, name: str, kind: str) -> None:
  where = f"{case.key}: {name}"
  assert got.shape == want.shape, f"{where} has shape {got.shape}, PyTorch's {want.shape}"
  if " special" in case.key and want.dtype.kind == "f" and case.row.name not in ANY_ZERO:
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]), f"{where}: the sign of zero")
  tol = TOLERANCE.get(kind, 0) * case.row.tol * (3 if name.startswith("gradient") else 1)
  with np.errstate(all="ignore"):
    np.testing.assert_allclose(
      got.astype(np.float64),
      want.astype(np.float64),
      rtol=tol,
      atol=tol if not case.key.count(" special") else tol / 10,
      err_msg=f"{where} of {[a.tolist() for a in case.arrays]}",
    )


NAMES = list(dict.fromkeys(r.name for r in ROWS))


@pytest.mark.parametrize("name", NAMES)
def test_values_types_and_gradients(name, answers):
  done = [(c, *ours(c)) for number, r in enumerate(ROWS) if r.name == name for c in cases(number, r)]
  lazy = [t for _, outs, grads in done for t in (*outs, *grads)]
  lazy[0].realize(*lazy[1:])
  for case, outs, grads in done:
    kinds, want = answers[case.key]
    assert len(outs) == len(kinds)
    for i, (got, kind) in enumerate(zip(outs, kinds, strict=True)):
      allowed = (kind, {"int64": "int32"}.get(kind, kind), "uint32") if case.row.wide else (kind,)
      assert got.dtype.name in allowed, f"{case.key}: result {i} is {got.dtype}, PyTorch's {kind}"
      compare(case, got.numpy(), want[i], f"result {i}", kind)
    for i, (got, theirs) in enumerate(zip(grads, want[len(kinds) :], strict=False)):
      compare(case, got.numpy(), theirs, f"gradient {i}", "float32")


ELSEWHERE = {  # no functions of values: the files of test/tensor and test/sharding that test them
  "test_tensor_creation": (
    "dropout glorot_uniform item kaiming_normal kaiming_uniform manual_seed multinomial normal rand rand_like "
    "randint randn randn_like random_bits randperm scaled_uniform threefry uniform tolist data to to_ shard shard_ "
    "shard_like shards shape device dtype ndim numel nbytes element_size size max_shape max_numel numpy_shape empty "
    "empty_like invalids numpy uop train test __len__ __bool__ __iter__"
  ),
  "test_tensor_memory": ("assign replace realize"),
  "test_tensor_exchange": (
    "from_blob from_dlpack from_url is_param is_param_ __array__ __dlpack__ __dlpack_device__ __delitem__"
  ),
  "test_tensor_gradient": ("backward gradient grad requires_grad requires_grad_ no_grad"),
  "test_tensor_hashing": ("hash keccak"),
  "test_shards": ("from_shards"),
  "test_several": ("from_process_local"),
  "test_constrain": ("constrain"),
  "test_names_of_programs": ("__float__ __int__"),
  "test_tensor_movement": ("__abs__"),
  "test_tensor_elementwise": ("__divmod__ __pos__ __rdivmod__ __round__"),
  "test_values_and_views": ("follows"),
  "test_foreign_names": ("__getattr__"),
}
AS_WRITTEN = {
  "__array__": "np.asarray(Tensor", "__dlpack__": "from_dlpack(t)", "__dlpack_device__": "from_dlpack(t)",
  "__delitem__": "del x[", "__len__": "len(Tensor", "__bool__": "bool(Tensor", "__iter__": "iter(Tensor",
  "__float__": "float(Tensor", "__int__": "int(Tensor", "__abs__": "abs(Tensor",
  "__divmod__": "divmod(Tensor(", "__rdivmod__": "divmod(7, Tensor(", "__pos__": "+Tensor(",
  "__round__": "round(Tensor(",
  "__getattr__": "getattr(x, name)",
}  # fmt: skip


def test_every_public_method_has_a_row():
  public = {n for n in dir(Tensor) if not n.startswith("_")}
  public |= {n for n in dir(Tensor) if n.startswith("__") and callable(getattr(Tensor, n)) and n not in dir(object)}
  elsewhere = {n: file for file, names in ELSEWHERE.items() for n in names.split()}
  assert public - set(NAMES) - set(elsewhere) == set(), "give each a row in op_table.py, or say where it is tested"
  assert set(NAMES) & set(elsewhere) == set()
  files = {f.stem: f for f in pathlib.Path(__file__).parents[1].rglob("test_*.py")}
  for name, file in elsewhere.items():
    text = files[file].read_text()
    found = AS_WRITTEN[name] in text if name in AS_WRITTEN else name in used(text)
    assert found, f"{file} does not test {name}"


def used(text):
  """The attributes that a program asks for, by their names or as strings, and the parameters that it gives: not what
  its comments mention."""
  nodes = [*ast.walk(ast.parse(text))]
  words = [w for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) for w in n.value.split()]
  given = {k.arg for n in nodes if isinstance(n, ast.Call) for k in n.keywords}
  return {n.attr for n in nodes if isinstance(n, ast.Attribute)} | given | {*words}


def test_a_mention_is_no_use():
  assert used("x.sum()  # and mean\nf(y.max, 'min')") >= {"sum", "max", "min"} and "mean" not in used("x = 1  # mean")


@pytest.mark.skipif(op_table.torch is None, reason="needs torch, which is no dependency: its answers are compared")
def test_the_answers_are_pytorchs(answers):
  for number, r in enumerate(ROWS):
    for case in cases(number, r):
      for k, (got, want) in enumerate(zip(answers[case.key][1], torch_answers(case), strict=True)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{case.key} {k}")
