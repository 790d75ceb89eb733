"""A script on two hosts that are none: namespaces of this machine, between them a network and ssh.

    python -m extra.two_hosts -n 4 test/distributed/values.py 4     # as root, on Linux with iproute2 and openssh-server

Each has its own network, processes and name, so nothing is shared: `tinygrad.launch --hosts` starts processes by ssh,
and they talk by MPI over TCP. Prints what the launcher prints; the exit code is the launcher's. With `--compare` the
lines of the first process are also compared with those of the script in one process.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOSTS = {"tga": "10.77.0.1", "tgb": "10.77.0.2"}
ROOT = Path(__file__).parents[1]
CONFIG = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
SSH = """#!/bin/sh
exec ssh -i {folder}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"
"""


def run(command: str) -> None:
  subprocess.run(command.split(), check=True)


@contextlib.contextmanager
def two_hosts(folder: Path):
  """Two hosts, in which sshd runs."""
  subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
  (folder / "sshd_config").write_text(CONFIG.format(folder=folder))
  (folder / "ssh").write_text(SSH.format(folder=folder))
  (folder / "ssh").chmod(0o700)
  os.makedirs("/run/sshd", exist_ok=True)
  servers: list[subprocess.Popen[bytes]] = []
  try:
    for name in HOSTS:
      run(f"ip netns add {name}")
    a, b = HOSTS
    run(f"ip link add {a} netns {a} type veth peer name {b} netns {b}")
    for name, address in HOSTS.items():
      run(f"ip -n {name} addr add {address}/24 dev {name}")
      run(f"ip -n {name} link set {name} up")
      run(f"ip -n {name} link set lo up")
      server = f"hostname {name}; exec {shutil.which('sshd', path='/usr/sbin')} -D -e -f {folder}/sshd_config"
      inside = ["ip", "netns", "exec", name, "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
      servers.append(subprocess.Popen([*inside, "sh", "-c", server], stderr=subprocess.DEVNULL))
    yield
  finally:
    for server in servers:
      server.kill()
      server.wait()
    for name in HOSTS:
      subprocess.run(["ip", "netns", "del", name], check=False)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("-n", default="4", help="processes")
  parser.add_argument("--compare", action="store_true")
  parser.add_argument("script", nargs=argparse.REMAINDER)
  args = parser.parse_args()
  if os.geteuid() or not all(shutil.which(x, path=f"{os.environ['PATH']}:/usr/sbin") for x in ("ip", "sshd", "ssh")):
    raise SystemExit("extra.two_hosts: needs root, ip, ssh and sshd\n  fix: apt-get install iproute2 openssh-server")
  with tempfile.TemporaryDirectory() as name, two_hosts(Path(name)):
    first = next(iter(HOSTS))
    starter = {"HYDRA_LAUNCHER_EXEC": f"{name}/ssh", "HYDRA_IFACE": first}
    env = {**os.environ, **starter, "PYTHONPATH": str(ROOT), "UCX_TLS": "tcp,self"}  # no memory of this machine's
    launcher = [sys.executable, "-m", "tinygrad.launch", "-n", args.n, "--hosts", ",".join(HOSTS.values())]
    inside = ["ip", "netns", "exec", first, *launcher, *args.script]
    time.sleep(0.5)  # sshd begins to listen
    done = subprocess.run(inside, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
  print(done.stdout, end="")
  if args.compare and done.returncode == 0:
    alone = subprocess.run([sys.executable, *args.script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    got = [line[3:] for line in done.stdout.splitlines() if line.startswith("0| ")]
    same = got == alone.stdout.splitlines()
    print(f"{len(got)} lines of process 0 are {'those' if same else 'NOT those'} of one process")
    return int(not same)
  return done.returncode


if __name__ == "__main__":
  sys.exit(main())
