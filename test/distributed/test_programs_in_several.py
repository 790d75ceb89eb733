"""The examples, the training program and the language model in four processes, beside the same in one."""

import json
import os
import sys
from pathlib import Path

import pytest
from several import MPIEXEC, command_output, needs_mpi, printed

HERE = Path(__file__).parent
pytestmark = needs_mpi
TEXT = "\n".join(f"line {i} of a text, and {i * i % 7} of another line of it" for i in range(60))
SIZES = ["--dim", "32", "--layers", "1", "--heads", "4", "--kv-heads", "4", "--ffn", "64", "--vocab", "280"]


@pytest.mark.parametrize(
  ("example", "devices"),
  [("mlp", 4), ("experts", 4), ("pipeline", 4), ("gpt-2-2-2", 8)],
)
def test_an_example_has_the_losses_of_one_process(example, devices):
  """To the last bit. The GPT's batch is cut, its layers' weights are, and all of its state is, each in two parts: on
  eight devices, two in each process."""
  (want,) = printed(1, HERE / "examples_train.py", example, devices)
  first, *_, last = map(float.fromhex, want[-1].split()[1:])
  assert last < first if example != "mlp" else last > 0.5, "nothing is learned"
  assert printed(4, HERE / "examples_train.py", example, devices) == [want] * 4


def trained(folder, n, *options):
  """What the training program writes: (what it tells, its losses, the model)."""
  (folder / "texts").mkdir(parents=True)
  for i in range(12):
    (folder / "texts" / f"text{i}.txt").write_text(f"{i}. {TEXT}")
  files = {name: folder / name for name in ("losses.json", "model.gguf", "curve.svg", "batches.npz")}
  options = ["--data", folder / "texts", *SIZES, "--context", "16", "--batch", "4", "--tokens", "512", *options]
  options += ["--mesh", "2x2", "--losses", files["losses.json"], "--out", files["model.gguf"]]
  options += ["--plot", files["curve.svg"], "--batches", files["batches.npz"], "--checkpoint-dir", folder / "run"]
  start = [MPIEXEC, "-n", n] if n > 1 else []
  code, out, err = command_output([*start, sys.executable, "-m", "tinygrad.apps.train", *options])
  assert code == 0, out + err
  assert all(path.exists() for path in files.values()) and not [*folder.glob("*.tmp")]
  return err, json.loads(files["losses.json"].read_text()), files["model.gguf"].read_bytes()


def test_the_training_program_has_the_losses_of_one_process(tmp_path):
  _, want, model = trained(tmp_path / "one", 1)
  told, got, same = trained(tmp_path / "four", 4)
  assert len(want["losses"]) == 8 and want["losses"][0] > want["losses"][-1]
  assert got == {**want, "data": got["data"]} and same == model
  assert told.count("step 8: loss") == 1, "one of the processes tells"


def test_the_language_model_writes_the_text_of_one_process():
  command = "-m", "tinygrad.apps.llm", "--prompt", "def read(self,", "--max-tokens", "12", "--temperature", "0"
  wanted = command_output([sys.executable, *command, "--shard", "4"])
  found = command_output([MPIEXEC, "-n", 4, sys.executable, *command, "--shard", "4"])
  assert wanted[0] == found[0] == 0 and found[1] == wanted[1] and len(found[1]) > 20, wanted[2] + found[2]
  assert "on 4" in found[2] and os.linesep in found[1]
