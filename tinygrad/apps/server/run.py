"""Run a server: as a program, or in a thread beside one."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tinygrad.apps import AppError
from tinygrad.apps.server.app import Server
from tinygrad.helpers.lazy import LazyModule

uvicorn = LazyModule("uvicorn")
PACKAGES = ("starlette", "uvicorn", "llguidance", "prometheus_client")
GRACE = 5  # seconds that answers have to leave when the server ends


def web_server(server: Server, host: str, port: int) -> Any:
  config = uvicorn.Config(
    server.app(), host=host, port=port, log_level="warning", lifespan="on", timeout_graceful_shutdown=GRACE
  )
  web = uvicorn.Server(config)
  shutdown = web.shutdown

  async def end(sockets: Any = None) -> None:
    """A connection with a text or a body would hold the server up."""
    await server.end()
    await shutdown(sockets=sockets)

  web.shutdown = end
  return web


def check_packages() -> None:
  """Raises AppError where one that a server needs is missing."""
  missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise AppError(f"--serve needs {', '.join(missing)}\n  fix: pip install 'tinygrad[serve]'")


def bound_socket(host: str, port: int) -> socket.socket:
  """Of a server's place, kept while a model is loaded, which takes its time; until it listens clients are refused.
  Raises AppError where it cannot be had."""
  place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
  try:
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((host, port))
  except OSError as e:
    place.close()
    raise AppError(f"nobody can listen at {host}:{port}: {e.strerror}\n  fix: another --host or --port") from e
  return place


def serve(server: Server, place: socket.socket) -> None:
  """Serves until Ctrl-C."""
  host, port = place.getsockname()[:2]
  place.listen()
  url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
  print(f"{server.served.name} at {url}/v1, a page at {url}/", file=sys.stderr, flush=True)
  web_server(server, host, port).run(sockets=[place])


@contextlib.contextmanager
def listening(server: Server, host: str = "127.0.0.1") -> Iterator[str]:
  """A server in a thread of its own, at a free port; its URL."""
  web = web_server(server, host, 0)
  thread = threading.Thread(target=web.run, daemon=True)
  thread.start()
  try:
    while not web.started:
      if not thread.is_alive():
        raise OSError(f"no server can listen at {host}")
      time.sleep(0.005)
    yield f"http://{host}:{web.servers[0].sockets[0].getsockname()[1]}"
  finally:
    web.should_exit = True
    thread.join()
