"""What a model is trained on: documents, some of which are held out, a tokenizer trained on the others, and windows of
their tokens."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps import AppError

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
# Tests, data tables, code of others, and what is generated when Python is installed.
SKIPPED = {"test", "tests", "idle_test", "encodings", "pydoc_data", "ensurepip", "site-packages", "dist-packages"}
HELD_OUT_BELOW = 10  # of 256, about one document in 26


class TrainError(AppError):
  """A training that cannot be: says why, and a fix."""


Tokens = NDArray[np.uint32]
Documents = tuple[tuple[str, str], ...]  # (name, text)


@dataclass(frozen=True, slots=True)
class Corpus:
  """Documents to train on and those held out, which neither the model nor its tokenizer sees; `hash` names them all."""

  train: Documents
  held_out: Documents
  hash: str

  @staticmethod
  def of_stdlib() -> Corpus:
    """The modules of the Python that runs this."""
    root = Path(sysconfig.get_path("stdlib"))

    def wanted(name: str) -> bool:
      *folders, file = name.split("/")
      generated = file.startswith("_sysconfigdata") or any(f.startswith("config-") for f in folders)
      return name.endswith(".py") and not SKIPPED.intersection(folders) and not generated

    return Corpus.of_files(root, [p for p in root.rglob("*.py") if wanted(p.relative_to(root).as_posix())])

  @staticmethod
  def of_folder(root: Path) -> Corpus:
    """Every text in a folder, but what is hidden, empty or no UTF-8. Raises TrainError where there is none."""
    if not root.is_dir():
      raise TrainError(f"{root} is no folder\n  fix: --data with a folder of text files")
    shown = [p for p in root.rglob("*") if not any(part.startswith(".") for part in p.relative_to(root).parts)]
    return Corpus.of_files(root, [p for p in shown if p.is_file()])

  @staticmethod
  def of_files(root: Path, files: Iterable[Path]) -> Corpus:
    """By name, in the order of names. A document is held out by its name alone, or, where that leaves none on one of
    the sides, the first by the hash of its name; of a single one the last twentieth."""
    documents: list[tuple[str, str]] = []
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
      name, raw = path.relative_to(root).as_posix(), path.read_bytes()
      if (text := document_text(raw)) is not None:
        digest.update(f"{name} {hashlib.sha256(raw).hexdigest()}\n".encode())
        documents.append((name, text))
    if not documents:
      raise TrainError(f"{root} has no text in it\n  fix: --data with a folder of text files in UTF-8")
    held_out = [d for d in documents if of_name(d)[0] < HELD_OUT_BELOW]
    if len(documents) == 1:
      ((name, text),) = documents
      cut = text.rfind("\n", 0, len(text) - len(text) // 20) + 1 or len(text) - len(text) // 20
      return Corpus(((name, text[:cut]),), ((name, text[cut:]),), digest.hexdigest())
    if not 0 < len(held_out) < len(documents):
      held_out = [min(documents, key=of_name)]
    train = tuple(d for d in documents if d not in held_out)
    return Corpus(train, tuple(held_out), digest.hexdigest())


def document_text(raw: bytes) -> str | None:
  """The text of a file, where it is one."""
  try:
    return raw.decode() if raw.strip() and b"\0" not in raw else None
  except UnicodeDecodeError:
    return None


def of_name(document: tuple[str, str]) -> bytes:
  """The hash of a document's name."""
  return hashlib.sha256(document[0].encode()).digest()


def document_bytes(documents: Sequence[tuple[str, str]]) -> int:
  return sum(len(text.encode()) for _, text in documents)


def train_tokenizer(texts: Sequence[str], vocab: int) -> Any:
  """GPT-2's byte-level BPE, BOS token 0 and EOS token 1. The same texts in the same order give the same tokens."""
  from tokenizers import Tokenizer, models, pre_tokenizers, trainers

  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=vocab,
    special_tokens=[BOS, EOS],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  if tokenizer.get_vocab_size() != vocab:
    problem = f"these texts give {tokenizer.get_vocab_size()} tokens, not {vocab}"
    raise TrainError(f"{problem}\n  fix: more text, or a smaller --vocab")
  return tokenizer


def encode_documents(tokenizer: Any, texts: Sequence[str]) -> Tokens:
  """All texts in a row, each as BOS, its tokens, EOS."""
  ids = [[0, *e.ids, 1] for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
  return np.concatenate(ids).astype(np.uint32)


class Batches:
  """Windows of `context` + 1 tokens, shuffled anew each epoch: `batches[i]` depends on i and the seed only."""

  def __init__(self, tokens: Tokens, context: int, batch: int, steps: int, seed: int):
    self.tokens, self.context, self.batch = tokens, context, batch
    windows = (len(tokens) - 1) // self.context
    if windows < 1:
      problem = f"{len(tokens)} tokens do not fill one window of {self.context}"
      raise TrainError(f"{problem}\n  fix: more text, or a smaller --context")
    epochs = math.ceil(steps * self.batch / windows)
    # numpy promises that the numbers of RandomState stay the same in all versions.
    shuffle = np.random.RandomState(seed)
    self.order = np.concatenate([shuffle.permutation(windows) for _ in range(epochs)])

  def __getitem__(self, step: int) -> NDArray[np.int32]:
    starts = self.order[step * self.batch : (step + 1) * self.batch] * self.context
    if not 0 <= step or len(starts) < self.batch:
      raise IndexError(f"the schedule has no step {step}\n  fix: more --tokens")
    return np.stack([self.tokens[i : i + self.context + 1] for i in starts]).astype(np.int32)
