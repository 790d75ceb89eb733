"""Kernels, loads, stores, operations, bytes and passes of the benchmark's workloads do not grow."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from extra.bench.counts import BASELINE, KINDS, TARGET, compare, count, report
from tinygrad.codegen import lower_kernel
from tinygrad.dtype import dtypes
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

ROOT = Path(__file__).parents[1]


def counts(*args: str, **variables: str) -> subprocess.CompletedProcess:
  command = [sys.executable, "-m", "extra.bench.counts", *args]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | variables)


def test_no_count_has_grown():
  done = counts()
  assert done.returncode == 0, done.stdout + done.stderr
  if "have fallen" in done.stdout:
    warnings.warn(done.stdout[done.stdout.index("these counts have fallen") :], stacklevel=1)


def test_growth_fails_and_names_the_count_whatever_the_machine(tmp_path):
  baseline = json.loads(BASELINE.read_text())
  baseline["small20"]["loads"] -= 1
  baseline["matmul512"]["stores"] += 1
  (tmp_path / "counts.json").write_text(json.dumps(baseline))
  done = counts("small20", "matmul512", "--baseline", str(tmp_path / "counts.json"), CPU_THREADS="7", NOLOCALS="1")
  now, loads = baseline["small20"]["loads"] + 1, baseline["small20"]["loads"]
  assert done.returncode == 1, done.stdout + done.stderr
  grown, fallen = done.stdout.split("these counts have grown")[1].split("these counts have fallen")
  assert grown.count("\n  small20") == 1 and f"small20: loads {loads} -> {now}" in grown and "--write" in grown
  assert "matmul512: stores" in fallen and fallen.count("->") == 1
  assert counts("small20", "--baseline", str(tmp_path / "counts.json"), "--write").returncode == 0
  written = json.loads((tmp_path / "counts.json").read_text())
  assert written == baseline | {"small20": baseline["small20"] | {"loads": now}}


def test_a_name_that_is_none_is_an_error():
  done = counts("matmulll")
  assert done.returncode == 2 and "no workload contains matmulll\n  fix: a part of one of matmul512" in done.stderr


def test_the_baseline_has_every_kind_and_the_costs_that_follow_from_shapes():
  baseline = json.loads(BASELINE.read_text())
  assert all(set(row) == set(KINDS) for row in baseline.values())
  assert baseline["matmul512"]["stores"] == 4 * 512**2 and baseline["matmul512"]["bytes"] == 3 * 4 * 512**2
  assert 2 * 512**3 * 0.99 <= baseline["matmul512"]["flops"] <= 2 * 512**3
  assert baseline["muladdrelu16M"] | {"scratch": 0} == baseline["muladdrelu16M"]
  assert baseline["muladdrelu16M"]["loads"] == 3 * 4 << 24 and baseline["muladdrelu16M"]["passes"] == 4
  assert baseline["small20"]["kernels"] == 20


def kernel(rows: int, columns: int) -> UOp:
  """out[i] = sum over j of x[i, j] * x[i, j], in the scalar form that codegen is given."""
  number = lambda n: UOp.const(dtypes.index, n)  # noqa: E731
  i, j = (
    UOp.new(Ops.RANGE, dtypes.index, (number(n),), (k, kind))
    for k, (n, kind) in enumerate(((rows, AxisKind.LOOP), (columns, AxisKind.REDUCE)))
  )
  out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(k, n)) for k, n in enumerate((rows, rows * columns)))
  load = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, i * columns + j)),))
  total = UOp.new(Ops.FOLD, dtypes.float32, (UOp.new(Ops.MUL, dtypes.float32, (load, load)), j), Ops.ADD)
  target = UOp.new(Ops.INDEX, dtypes.float32, (out, i))
  return UOp.sink(UOp.new(Ops.STORE, dtypes.void, (target, total, i)))


# lanes that a mask switches off count: 1000 is 62 vectors and a half
@pytest.mark.parametrize(("rows", "columns", "lanes"), [(3, 64, 64), (5, 1000, 1008), (4, 7, 7)])
def test_loops_multiply_what_is_in_them(rows, columns, lanes):
  found = count(lower_kernel(kernel(rows, columns), TARGET))
  assert found["loads"] == 4 * rows * lanes
  assert found["stores"] == 4 * rows and found["scratch"] == 0
  # a product each and a sum each, but for what starts a sum; lanes and registers may start at zero
  assert rows * (2 * columns - 1) <= found["flops"] <= rows * 2 * lanes + rows * 16 * 8


def test_reports_say_what_to_do():
  row = dict.fromkeys(KINDS, 10)
  grown, fallen = compare({"a": row | {"loads": 12}, "b": row | {"flops": 5}, "c": row}, {"a": row, "b": row})
  assert grown == ["a: loads 10 -> 12 (1.200 times)", "c: not in the baseline"]
  assert fallen == ["b: flops 10 -> 5 (0.500 times)"]
  text = report(grown, fallen)
  assert "have grown:\n  a: loads 10 -> 12" in text and "fix: keep it so: python -m extra.bench.counts --write" in text
  assert report([], []) == "" and compare({"a": row}, {"a": row, "b": row}) == ([], [])
