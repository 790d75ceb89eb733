"""Some hundred models with a value that is something else are typed errors or models, and the fuzzer finds mutants."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from extra.fuzz_models import CASES, folder_files, fuzz, main, metadata, read_model, values, write_weights
from extra.write_gguf import write_gguf
from tinygrad import Tensor
from tinygrad.apps import AppError
from tinygrad.apps.hugging_face import Folder, FolderError
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.nn.gguf import GGUF, GGUFError
from tinygrad.nn.state import CheckpointError, safe_save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
  path = tmp_path / "model"
  path.mkdir()
  write_weights(path)
  for name, value in folder_files().items():
    (path / name).write_text(json.dumps(value))
  return path


def test_models_that_are_not_changed_are_read(folder: Path):
  write_gguf(folder / "m.gguf", metadata(), values()[1])
  read_model(folder / "m.gguf")
  read_model(folder)


def test_changed_models_are_typed_errors_or_read():
  ended, wrong = fuzz(iter(range(240)), keep_on=True)
  assert wrong == [] and ended["error"] > 60 and ended["read"] > 40, ended


def untyped_fields(monkeypatch: pytest.MonkeyPatch) -> str:
  """What should be an object is taken as it is."""
  monkeypatch.setattr(Folder, "fields", lambda self, of, name: of.get(name) or {})
  return "config.json: "


def no_file_named(monkeypatch: pytest.MonkeyPatch) -> str:
  """Errors name no file."""

  def check(self: Any, ok: Any, field: str, problem: str, fix: str = "x", at: int | None = None) -> None:
    if not ok:
      raise FolderError(Path("."), field, problem, fix)

  monkeypatch.setattr(Folder, "check", check)
  return "config.json: no file, or no fix"


@pytest.mark.parametrize("mutant", [untyped_fields, no_file_named])
def test_a_mutant_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch):
  said = mutant(monkeypatch)
  number = next(i for i, case in enumerate(CASES) if case.name == "config.json")
  _, wrong = fuzz(iter(range(number, 600, len(CASES))))
  assert wrong and wrong[0][1].startswith(said)


def test_the_command(capsys: pytest.CaptureFixture[str]):
  assert main(["--seed", "6", "--count", "6"]) == 0
  assert capsys.readouterr().out.startswith("6 models from seed 6: {") and CASES


@pytest.mark.parametrize(
  "name", ["..", "../model/a.safetensors", "sub/a.safetensors", "/etc/passwd", ".", ["a"], 5, ""]
)
def test_an_index_names_files_of_the_folder_only(name: Any, folder: Path):
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
  with pytest.raises(
    FolderError, match=r"(weight_map: names something else than files of the folder|is no file)\n  fix"
  ):
    Folder(folder)


def test_links_that_lead_nowhere_or_round(folder: Path):
  (folder / "a.safetensors").unlink()
  os.symlink("a.safetensors", folder / "a.safetensors")
  with pytest.raises(FolderError, match="a.safetensors: is missing, or is no file\n  fix: "):
    Folder(folder)


def test_a_number_of_a_token_that_is_far_off(folder: Path):
  said = folder_files()["tokenizer.json"]
  said["model"]["vocab"]["far"] = (1 << 32) - 1
  (folder / "tokenizer.json").write_text(json.dumps(said))
  with pytest.raises(AppError, match="a token has the number 4294967295, and there are 271\n  fix: "):
    Tokenizer.from_folder(folder)


def test_a_tensor_in_two_files(folder: Path):
  (folder / "model.safetensors.index.json").unlink()
  safe_save({"model.norm.weight": Tensor([1.0])}, folder / "b.safetensors")
  with pytest.raises(FolderError, match="b.safetensors: has tensors that another file has, too: model.norm.weight\n"):
    Folder(folder)


@pytest.mark.parametrize(
  "header",
  [
    (1 << 63).to_bytes(8, "little"),
    ((1 << 64) - 1).to_bytes(8, "little") + b"{}",
    (1 << 40).to_bytes(8, "little") + b"{}",
    b"\x02\0\0\0\0\0\0\0[]",
  ],
)
def test_headers_that_cannot_be(header: bytes, folder: Path):
  (folder / "a.safetensors").write_bytes(header)
  with pytest.raises(CheckpointError, match=r"a.safetensors: header: .*\n  fix: "):
    Folder(folder)


def test_a_template_that_is_no_text(folder: Path):
  write_gguf(folder / "m.gguf", metadata() | {"tokenizer.chat_template": 5}, values()[1])
  with pytest.raises(GGUFError, match="'tokenizer.chat_template': is a int, not a str\n  fix: "):
    Tokenizer.from_gguf(GGUF(folder / "m.gguf"))
