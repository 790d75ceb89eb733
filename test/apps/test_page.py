"""The page to chat, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chromium import chromium
from says import Says
from test_generation import VOCAB
from test_server import Served, Server, listening, tok, until  # noqa: F401

from tinygrad.apps.generation import Engine, Finish
from tinygrad.apps.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
  with chromium() as found:
    yield found


def test_a_chat_in_a_browser(browser: Any, tok: Tokenizer):  # noqa: F811
  model = Says(VOCAB, context=3000)
  model.script = (*tok.encode("<think>hm</think><b>größe</b>", bos=False), *tok.ends)
  engine = Engine(model, tok)
  with listening(Server(engine, Served("tiny", key="secret"))) as url:
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(url) else None)
    page.goto(url)
    page.wait_for_selector(".problem")  # the key is missing
    assert "API key is missing" in page.inner_text(".problem")
    page.click("#options")
    page.fill("#key", "secret")
    page.fill("#temperature", "0")
    page.fill("#text", "hi")
    page.press("#text", "Enter")
    page.wait_for_selector(".rate")
    assert page.inner_text(".assistant") == "<b>größe</b>", "text, and no markup"
    assert page.inner_text(".thought") == "hm" and page.inner_text(".user") == "hi" and page.title() == "tiny"
    page.fill("#text", "again")
    page.press("#text", "Shift+Enter")
    page.press("#text", "x")
    page.click("#send")
    page.locator(".rate").nth(1).wait_for()
    assert page.locator(".user").nth(1).inner_text() == "again\nx"
    model.script, model.seconds = (5,), 0.002  # without an end
    page.fill("#text", "more")
    page.click("#send")
    page.wait_for_selector("#stop:visible")
    until(lambda: engine.busy == 1)
    page.locator(".assistant").nth(2).wait_for()
    page.click("#stop")
    page.wait_for_selector("#stop", state="hidden")
    until(lambda: engine.busy == 0)
    assert engine.counts.finished[Finish.CANCELLED] == 1
    page.click("#clear")
    assert page.locator(".message").count() == 0
    assert problems == []
    page.close()
