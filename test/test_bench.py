"""The benchmark tool measures what it says: on a framework of known speed, and on this project."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extra.bench import expressions, random_cases, schedule_cost, sweep, workers
from extra.bench.__main__ import accuracy, behind, environments, measure, measure_first, measure_import, table
from extra.bench.problems import PROBLEMS, Problem
from extra.bench.workers import HERE, ROOT, BenchError, Environment, Worker
from tinygrad.helpers import Context

COLD, WARM_CALL = 0.08, 0.01

# a framework whose first call takes COLD seconds, the others WARM_CALL; it notes each turn in a shared file
KNOWN_SPEED = """
import os, sys, time
sys.path.insert(0, {here!r})
from workload import Work, main

def slow_at_first():
  calls = []
  def run():
    calls.append(None)
    with open({turns!r}, "a") as f:
      f.write({name!r} + "\\n")
    time.sleep({cold} if len(calls) == 1 else {warm})
    print("noise on the standard output")
  return Work(run, flops=10**9, error=lambda: 0.5)

def broken():
  raise ValueError("no such kernel")

main(__doc__, {{"known": slow_at_first, "broken": broken}}, import_s=0.125)
"""


def known_speed(folder: Path, name: str) -> Environment:
  script = folder / f"work_{name}.py"
  turns = str(folder / "turns.txt")
  script.write_text(KNOWN_SPEED.format(here=str(HERE), turns=turns, name=name, cold=COLD, warm=WARM_CALL))
  return Environment(name, Path(sys.executable), script)


def test_cold_warm_and_turns(tmp_path: Path):
  envs = [known_speed(tmp_path, name) for name in ("here", "peer")]
  got = measure(envs, "known", rounds=10, cold_rounds=2)
  for name in ("here", "peer"):
    assert got[name]["cold_s"] >= COLD, "the first call of a fresh process"
    assert got[name]["cached_s"] >= COLD, "the first call of another, whose cache is there"
    assert WARM_CALL <= got[name]["best_s"] <= got[name]["median_s"] < COLD, "the cold call is not among the warm"
    assert got[name]["calls"] == 10
    assert got[name]["gflops"] == pytest.approx(1 / got[name]["median_s"])
    assert got[name]["error"] == 0.5
  turns = (tmp_path / "turns.txt").read_text().split()
  assert turns == ["here", "peer"] * (2 + 2 + 10 + 1), (
    "two cold processes, two calls that do not count, ten that do, in turn; one with the cache filled"
  )


def test_import_is_measured_in_fresh_processes(tmp_path: Path):
  got = measure_import([known_speed(tmp_path, "here")], rounds=2)
  assert got["here"]["median_s"] == 0.125
  assert got["here"]["calls"] == 2


def test_a_first_result_is_measured_with_an_empty_cache_and_with_a_full_one():
  ours = Environment("here", Path(sys.executable), HERE / "work_tinygrad.py", ours=True)
  got = measure_first([ours], rounds=2, cold_rounds=1)["here"]
  assert got["calls"] == 2 and 0 < got["best_s"] <= got["median_s"] == got["cached_s"] and got["cold_s"] > 0


def test_a_framework_that_is_not_there_has_no_first_result(tmp_path: Path, monkeypatch):
  monkeypatch.setitem(workers.FIRST_RESULT, "torch", "import no_such_framework")
  with pytest.raises(BenchError, match=r"torch: repl1 failed\n[^$]*No module named 'no_such_framework'"):
    Environment("torch", Path(sys.executable), HERE / "work_torch.py").first_result(tmp_path)


def test_slices_never_repeat_a_number_and_are_held_to_float64():
  found = [expressions.slices(*expressions.rows(), lambda y: y) for _ in range(2)]
  assert len({(begin, rate) for run in found for begin, rate, _ in run}) == 200
  assert expressions.slices_error(found[1]) < 1e-6
  assert expressions.slices_error([(begin + 1, rate, y) for begin, rate, y in found[1]]) > 1e-3


def test_a_hundred_expressions_differ_and_are_held_to_float64():
  got = expressions.evaluate(np, expressions.inputs(), lambda x: x)
  assert len({x.shape for x, _ in expressions.inputs()}) == len(got) == 100
  assert expressions.error(got) < 1e-6
  assert expressions.error([*got[:-1], got[-1] + 1]) > 1e-3


def test_a_failing_workload_says_why_and_leaves_the_others(tmp_path: Path):
  got = measure([known_speed(tmp_path, "here")], "broken", rounds=10, cold_rounds=1)
  assert "here: broken stopped" in got["here"]["failed"]
  assert "ValueError: no such kernel" in got["here"]["failed"]
  assert table({"broken": got}, ["here"]).row_count == 1


def test_a_peer_that_takes_too_long_is_left_out(tmp_path: Path):
  ours = known_speed(tmp_path, "here")
  envs = [Environment("here", ours.python, ours.script, ours=True), known_speed(tmp_path, "peer")]
  got = measure(envs, "known", rounds=10, cold_rounds=1, limit=COLD / 2)
  assert re.search(r"peer: left out, for its first call took .*ms \(--limit\)", got["peer"]["failed"])
  assert got["here"]["calls"] == 10
  assert (tmp_path / "turns.txt").read_text().split().count("peer") == 1


def test_what_a_peer_does_faster_is_listed_the_worst_first():
  took = lambda here, **peers: {n: {"median_s": s} for n, s in {"here": here, **peers}.items()}  # noqa: E731
  results = {
    "level": took(1.0, torch=1.5, jax=1.2),
    "slow": took(1.0, torch=0.5, jax=0.25),
    "slower": took(1.0, torch=0.1, jax=0.3) | {"tinygrad": {"failed": "no"}},
    "alone": took(1.0),
    "failed": {"here": {"failed": "no"}, "torch": {"median_s": 1.0}},
  }
  assert behind(results) == [(0.1, "slower", "torch"), (0.25, "slow", "jax")]


def test_errors_are_held_against_the_peers():
  row = {"here": {"error": 3e-7}, "torch": {"error": 1e-7}, "jax": {"failed": "no"}}
  out = accuracy({"known": row, "unknown": {"here": {"error": None}}}, ["here", "torch", "jax"])
  assert out.row_count == 1
  assert [list(column.cells) for column in out.columns] == [["known"], ["3e-07"], ["1e-07"], ["3"], [""], [""]]


def test_the_error_is_the_largest_deviation_of_any_result():
  x = np.array([1.0, 2.0, 4.0], np.float32)
  problem = Problem((x,), lambda x: (x, 10 * x))
  assert problem.error([x, 10 * x]) == 0
  assert problem.error([x, 10 * x + np.array([0, 0, 4.0])]) == pytest.approx(0.1)
  with pytest.raises(ValueError, match="zip"):
    problem.error([x])


@pytest.mark.parametrize("name", ["matmul_batch64", "matmul1024_int8", "matmul1024_NT", "gather8192", "argmax4096"])
def test_this_project_solves_the_problems(name: str):
  worker = Worker(Environment("here", Path(sys.executable), HERE / "work_tinygrad.py", ours=True), name)
  try:
    assert worker.check() < 1e-5
  finally:
    worker.close()


def test_every_framework_s_file_solves_every_problem():
  """Each says how in SOLUTIONS, or multiplies matrices, which the others' names do not say."""
  for kind in ("tinygrad", "torch", "jax"):
    text = (HERE / f"work_{kind}.py").read_text()
    for name in PROBLEMS:
      plain = re.match(r"mat(mul|vec)(\d+|_outer64|_skinny16|_batch64|1024_bf16)$", name)
      assert plain or f'"{name}": ' in text[text.index("SOLUTIONS:") :], (kind, name)


def test_a_worker_begins_with_an_empty_cache_and_removes_it(tmp_path: Path):
  worker = Worker(known_speed(tmp_path, "here"), "known")
  folder = worker.cache
  assert [p.name for p in folder.iterdir()] == ["stderr.txt"]
  worker.close()
  assert not folder.exists()
  assert worker.process.poll() is not None


@pytest.mark.parametrize(
  ("peer", "message"),
  [
    ("torch", "'torch' is no peer\n  fix: KIND=VENV, KIND one of .*torch"),
    ("cobol=/venv", "'cobol=/venv' is no peer"),
    ("torch=/nowhere", "there is no /nowhere/bin/python\n  fix: python -m venv /nowhere"),
  ],
)
def test_a_wrong_peer_is_an_error_with_a_fix(peer: str, message: str):
  with pytest.raises(BenchError, match=message):
    environments([peer])


def test_the_tool_measures_this_project(tmp_path: Path):
  command = [sys.executable, "-m", "extra.bench", "small20", "--rounds", "10", "--cold", "1", "--out", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "small20" in done.stdout
  report = json.loads((tmp_path / "bench.json").read_text())
  ours = report["results"]["small20"]["here"]
  assert 0 < ours["best_s"] <= ours["median_s"] < ours["cold_s"]
  assert ours["cached_s"] > 0
  assert report["packages"]["here"]["numpy"]


def test_the_step_on_many_devices_is_measured(tmp_path: Path):
  command = [sys.executable, "-m", "extra.bench.devscale", "2", "4", "--warm", "2", "--out", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  rows = json.loads((tmp_path / "devscale.json").read_text())["results"]["here"]
  assert [row["devices"] for row in rows] == [2, 4]
  for row in rows:
    assert row["cold"]["step_s"] == pytest.approx(row["cold"]["build_s"] + row["cold"]["realize_s"])
    assert row["median_s"] == statistics.median(w["step_s"] for w in row["warm"])


def test_two_workloads_in_turn():
  command = [sys.executable, "-m", "extra.bench.scaling", "--rounds", "3"]
  done = subprocess.run([*command, "matmul512=small20"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  first, second, ratio = re.search(r"matmul512=small20 +([\d.]+) ms +([\d.]+) ms +([\d.]+)x", done.stdout).groups()
  assert float(first) > float(second) and float(ratio) > 1  # 268 million against 164 thousand multiplications
  wrong = subprocess.run([*command, "conv_train"], cwd=ROOT, capture_output=True, text=True)
  assert wrong.returncode == 2 and "fix: ONE=TWO of matmul512" in wrong.stderr


def test_a_schedule_grows_by_the_same_for_each_layer():
  with Context(TILE_AND_FUSE=0):
    (n1, k1, _), (n2, k2, _), (n3, k3, _) = map(schedule_cost.measure, (1, 2, 3))
  assert 0 < n2 - n1 == n3 - n2 and 0 < k2 - k1 == k3 - k2
  # which of a layer's kernels are one depends on what stands around
  joined = [schedule_cost.measure(layers)[1] for layers in (1, 2, 3)]
  assert all(j < k for j, k in zip(joined, (k1, k2, k3))) and joined[0] < joined[1] < joined[2] <= 3 * joined[0]


def test_sweep_compares_the_same_inputs_and_results():
  (a, b), again = sweep.inputs("positive 3x4, int64<5 7"), list(sweep.inputs("positive 3x4, int64<5 7"))
  assert a.dtype == np.float32 and (a >= 0).all() and b.dtype == np.int64 and b.max() < 5
  np.testing.assert_array_equal(a, again[0])
  (one,), (two,) = sweep.started(None), sweep.started(None)
  times, agree = sweep.measure(sweep.CASES["softmax_small"], [one, two])
  assert agree and all(len(t) >= 7 and min(t) > 0 for t in times)
  for case in ("sum_mid", "cumsum_1d"):  # what the second has computed last
    one.ask(json.dumps(sweep.CASES["mean_02"]))
    two.ask(json.dumps(sweep.CASES[case]))
    sums = [p.ask("sum")["sum"] for p in (one, two)]
    assert sums[0] != sums[1]
  _, agree = sweep.measure(sweep.every_case()["byte_add_1M"], [one, two])
  assert agree and len(sweep.every_case()) > 2 * len(sweep.CASES)
  for p in (one, two):
    p.close()


def test_sweep_prints_a_table():
  out = subprocess.run(
    [sys.executable, "-m", "extra.bench.sweep", "gap", "roll"], cwd=ROOT, capture_output=True, text=True
  )
  assert out.returncode == 0 and {"gap", "roll"} <= {line.split()[0] for line in out.stdout.splitlines()}
  wrong = subprocess.run(
    [sys.executable, "-m", "extra.bench.sweep", "nothing"], cwd=ROOT, capture_output=True, text=True
  )
  assert wrong.returncode == 2 and "unknown case nothing" in wrong.stderr


def test_random_cases_of_the_sweep():
  """The same for a seed, of all kinds and of moderate size; and the sweep runs them."""
  cases = random_cases.random_cases(1, 200)
  assert cases == random_cases.random_cases(1, 200) != random_cases.random_cases(2, 200) and len(cases) == 200
  kinds = (
    "@b",
    "a.conv2d",
    "conv_transpose2d",
    "pool2d",
    "softmax",
    "attention",
    "permute",
    "lambda g",
    "grad(",
    "a.sum",
  )
  assert all(any(kind in code for _, code, *_ in cases.values()) for kind in kinds)
  for shapes, *_ in cases.values():
    assert all(x.size <= random_cases.MOST for x in sweep.inputs(shapes))
  done = subprocess.run(
    [sys.executable, "-m", "extra.bench.sweep", "--random", "3"], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done.stderr
