"""What a server tells Prometheus of its engine and its requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinygrad.apps.generation import Engine
from tinygrad.helpers.lazy import LazyModule

prometheus = LazyModule("prometheus_client")
core = LazyModule("prometheus_client.core")


class EngineCollector:
  """The counts of an engine, read when they are asked for."""

  def __init__(self, engine: Engine):
    self.engine = engine

  def collect(self) -> Iterator[Any]:
    c, e = self.engine.counts, self.engine
    for name, text, value in (
      ("prompt_tokens_read", "Tokens of prompts that were read", c.read),
      ("prompt_tokens_reused", "Tokens of prompts that lay in a slot's cache", c.reused),
      ("tokens_decoded", "Tokens that were decoded", c.decoded),
      ("decode_steps", "Steps that decoded one token of every text", c.steps),
      ("prompt_seconds", "Seconds of reading prompts", c.read_seconds),
      ("decode_seconds", "Seconds of decoding", c.decode_seconds),
    ):
      yield core.CounterMetricFamily(f"tinygrad_{name}", text, value=value)
    ended = core.CounterMetricFamily("tinygrad_texts", "Texts that ended, by why", labels=["finish"])
    for finish, count in c.finished.items():
      ended.add_metric([finish.value], count)
    yield ended
    yield core.GaugeMetricFamily("tinygrad_slots", "Slots of the model", value=len(e.slots))
    yield core.GaugeMetricFamily("tinygrad_slots_busy", "Slots with a text", value=e.busy)
    yield core.GaugeMetricFamily("tinygrad_waiting", "Requests that wait for a slot", value=len(e.waiting))


class Metrics:
  """`answered` counts answers by path and status, `first` and `whole` observe seconds."""

  def __init__(self, engine: Engine):
    self.registry: Any = prometheus.CollectorRegistry()
    self.registry.register(EngineCollector(engine))
    self.answered: Any = prometheus.Counter(
      "tinygrad_answers", "Answers by path and status", ["path", "status"], registry=self.registry
    )
    self.first: Any = prometheus.Histogram(
      "tinygrad_first_token_seconds", "From a request to its first token", registry=self.registry
    )
    self.whole: Any = prometheus.Histogram(
      "tinygrad_text_seconds", "From a request to its last token", registry=self.registry
    )

  def page(self) -> tuple[bytes, str]:
    """(text, content type)"""
    return prometheus.generate_latest(self.registry), prometheus.CONTENT_TYPE_LATEST
