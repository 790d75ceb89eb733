"""The load of extra/serve_soak.py in small, against a model that costs nothing: what it checks, and what it sees."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for package in ("starlette", "uvicorn", "llguidance", "prometheus_client", "openai"):
  pytest.importorskip(
    package, reason="needs starlette, uvicorn, llguidance, prometheus_client, openai (the extra test)"
  )
sys.path.append(str(Path(__file__).parents[1] / "apps"))
from says import Says  # noqa: E402
from tiny_llama import tokenizer_metadata  # noqa: E402

from extra.serve_soak import Asked, Soak  # noqa: E402
from extra.write_gguf import write_gguf  # noqa: E402
from tinygrad.apps.generation import Engine, Finish  # noqa: E402
from tinygrad.apps.sampling import Sampling  # noqa: E402
from tinygrad.apps.server.app import Served, Server  # noqa: E402
from tinygrad.apps.server.run import listening  # noqa: E402
from tinygrad.apps.tokenizer import Tokenizer  # noqa: E402
from tinygrad.nn.gguf import GGUF  # noqa: E402


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
  file = tmp_path_factory.mktemp("tok") / "t.gguf"
  write_gguf(file, tokenizer_metadata(300), {})
  return Engine(Says(300, slots=4, context=400), Tokenizer.from_gguf(GGUF(file)), queue=100)


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
  with listening(Server(engine, Served("tiny", Sampling(seed=None)))) as url:
    yield url


def test_streams_of_which_some_vanish(engine: Engine, url: str):
  soak = Soak(url, None, 12, 6, 0.3)
  soak.run(12, 60, most=4, malformed_requests=150)
  heard = soak.heard
  assert heard.errors == [] and soak.idle(20)
  assert sum(map(len, heard.texts.values())) + heard.vanished == 48 and heard.vanished > 4
  assert soak.compare() == ([], 0)
  assert engine.counts.finished[Finish.ERROR] == 0
  assert sum(heard.refused.values()) == 150 and len(heard.refused) > 1
  assert soak.metric("tinygrad_slots") == 4.0


def test_what_is_mixed_up_or_lost_is_seen(url: str, monkeypatch: pytest.MonkeyPatch):
  soak = Soak(url, None, 12, 3, 0.0)
  soak.run(2, 60, most=6)
  first, second = list(soak.heard.texts)[:2]
  texts = soak.heard.texts
  texts[first].append(texts[second][0])  # another's
  texts[second].append(texts[second][0][:-3] + "~~~")  # its own, up to a place
  wrong, rounded = soak.compare()
  assert len(wrong) == 1 and str(first) in wrong[0] and rounded == 1
  monkeypatch.setattr(Asked, "body", lambda self, model: {"model": "none", "prompt": "x"})
  soak.run(1, 60, most=1)
  assert "404" in soak.heard.errors[0]


def test_memory_that_grows_is_seen():
  soak = Soak.__new__(Soak)
  soak.memory = [(float(i), 1000) for i in range(9)]
  assert soak.grown() == 1.0
  soak.memory = [(float(i), 1000 + 100 * i) for i in range(9)]
  assert soak.grown() > 1.15
