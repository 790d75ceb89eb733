"""Makes the bundle of the viewer: what stands in extra/viewer/src with its libraries, as files in tinygrad/viz/bundle.

  cd extra/viewer && npm ci && python build.py

The bundle is committed, so that nobody needs npm to install or to run the package. Its first line has a digest of the
sources, by which a test sees that it is of them.
"""

import hashlib
import json
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
BUNDLE = HERE.parent.parent / "tinygrad" / "viz" / "bundle"


def digest() -> str:
  """Of everything that the bundle is made of."""
  files = [HERE / "package.json", *sorted((HERE / "src").iterdir())]
  return hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files)).hexdigest()[:16]


def licences() -> str:
  """The licences of the libraries in the bundle."""
  out = ["Libraries in viewer.js, with their licences.\n"]
  lock = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))
  for path, package in sorted(lock["packages"].items()):
    if path and not package.get("dev") and not package.get("optional"):
      text = next(f for f in sorted((HERE / path).iterdir()) if f.name.upper().startswith("LICENSE"))
      name = path.rpartition("node_modules/")[2]
      head = f"{name} {package['version']} ({package['license']})"
      out.append(f"{'-' * 78}\n{head}\n\n{text.read_text(encoding='utf-8').strip()}\n")
  return "\n".join(out)


def main() -> None:
  BUNDLE.mkdir(exist_ok=True)
  esbuild = HERE / "node_modules" / "@esbuild" / "linux-x64" / "bin" / "esbuild"
  command = esbuild if esbuild.exists() else HERE / "node_modules" / ".bin" / "esbuild"
  flags = "--bundle --minify --format=iife --target=es2022 --legal-comments=none --charset=utf8".split()
  made = subprocess.run([command, HERE / "src" / "main.js", *flags], check=True, capture_output=True, text=True).stdout
  if "</script" in made:
    raise SystemExit("the bundle would end the script that it stands in")
  (BUNDLE / "viewer.js").write_text(
    f"// {digest()}, made by extra/viewer/build.py; licences: LICENSES.txt\n{made}", encoding="utf-8"
  )
  (BUNDLE / "viewer.css").write_text((HERE / "src" / "viewer.css").read_text(encoding="utf-8"), encoding="utf-8")
  (BUNDLE / "LICENSES.txt").write_text(licences(), encoding="utf-8")
  print(f"{BUNDLE}: {sum(f.stat().st_size for f in BUNDLE.iterdir())} bytes")


if __name__ == "__main__":
  main()
