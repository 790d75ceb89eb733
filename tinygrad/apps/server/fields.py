"""The fields of a client's JSON, each checked as it is read; what is wrong is an error in OpenAI's shape."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from tinygrad.helpers import Remade

INVALID = "invalid_request_error"
MOST_NESTED = 128  # as deep as llguidance reads, and far from where Python ends


class ApiError(Remade):
  """An answer with status 4xx or 5xx. `param`: the field that is wrong; `code`: what a program may look at."""

  def __init__(
    self, message: str, param: str | None = None, code: str | None = None, status: int = 400, kind: str = INVALID
  ):
    super().__init__(message)
    self.status, self.body = status, {"message": message, "type": kind, "param": param, "code": code}


def read_json(text: str) -> Any:
  """Raises ValueError and RecursionError for what is no JSON by the letter, or nested deeper than MOST_NESTED."""

  def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")

  value = json.loads(text, parse_constant=refuse)
  level = [value] if text.count("[") + text.count("{") > MOST_NESTED else []
  for _ in range(MOST_NESTED + 1):
    level = [x for v in level if isinstance(v, (dict, list)) for x in (v.values() if isinstance(v, dict) else v)]
  if level:
    raise ValueError(f"it is nested deeper than {MOST_NESTED}")
  return value


def parse_json(body: bytes) -> Any:
  """Raises ApiError for what is no JSON by the letter: NaN, a lone surrogate, too deep, too long a number."""
  try:
    text = body.decode("utf-8")
    value = read_json(text)
    if "\\ud" in text or "\\uD" in text:
      json.dumps(value, ensure_ascii=False).encode("utf-8")
  except (ValueError, RecursionError) as e:
    raise ApiError(f"the body is no JSON: {e}", code="invalid_json") from e
  return value


@dataclass(frozen=True, slots=True)
class Fields:
  """A JSON object; `where` is its path in the body. A field that is null counts as missing."""

  values: dict[str, Any]
  where: str = ""

  @staticmethod
  def of(value: Any, where: str = "") -> Fields:
    if not isinstance(value, dict):
      raise ApiError(f"{where or 'the body'} is no object", where or None)
    return Fields(value, where)

  def path(self, name: str) -> str:
    return f"{self.where}.{name}" if self.where else name

  def wrong(self, name: str, problem: str, code: str | None = None) -> ApiError:
    return ApiError(f"{self.path(name)} {problem}", self.path(name), code)

  def only(self, known: Collection[str]) -> None:
    for name in self.values:
      if name not in known:
        raise self.wrong(name, "is no field that is known here", "unknown_parameter")

  def has(self, name: str) -> bool:
    return self.values.get(name) is not None

  def get(self, name: str) -> Any:
    """Raises ApiError where it is missing."""
    if not self.has(name):
      raise self.wrong(name, "is missing", "missing_required_parameter")
    return self.values[name]

  def number(self, name: str, default: float) -> float:
    value = self.values[name] if self.has(name) else default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or math.isnan(value):
      raise self.wrong(name, "is no number")
    return float(value)

  def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
    value = self.values[name] if self.has(name) else default
    if value is None:
      return None
    if type(value) is not int or not low <= value <= high:
      raise self.wrong(name, f"is no whole number from {low} to {high}")
    return value

  def flag(self, name: str, default: bool = False) -> bool:
    value = self.values[name] if self.has(name) else default
    if not isinstance(value, bool):
      raise self.wrong(name, "is neither true nor false")
    return value

  def text(self, name: str, options: Collection[str] = ()) -> str:
    """Raises ApiError where it is missing."""
    value = self.get(name)
    if not isinstance(value, str) or (options and value not in options):
      raise self.wrong(name, f"is none of {', '.join(map(repr, options))}" if options else "is no string")
    return value

  def items(self, name: str, most: int) -> list[Any]:
    """A list, empty where it is missing."""
    value = self.values[name] if self.has(name) else []
    if not isinstance(value, list) or len(value) > most:
      raise self.wrong(name, f"is no list of at most {most}")
    return value

  def inner(self, name: str) -> Fields:
    """An object in this one, empty where it is missing."""
    return Fields.of(self.values[name] if self.has(name) else {}, self.path(name))
