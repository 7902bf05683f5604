"""Real OpenSSH servers with their own keys in network namespaces, and hosts to reach them by."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moefabric.agents.remote.ssh import SshHost
from tests.support.namespaces import Island, island, must

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""
PORT = 2222
USER = "engineer"
"""A user without privileges, known to the namespaces' SSH servers only."""
PYTHON = "/usr/bin/python3"


@dataclass
class SshLab:
    """Hosts in namespaces, and the namespace `me` from which they are reached."""

    where: Island
    folder: Path
    servers: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """The SSH configuration file."""
        return self.folder / "config"

    @property
    def known(self) -> Path:
        """The file of known hosts."""
        return self.folder / "known_hosts"

    def address(self, name: str) -> str:
        """Return a host's address."""
        return self.where.addresses[name]

    def host(self, name: str, **changes: Any) -> SshHost:
        """Return a host by its alias."""
        known = SshHost(
            name, ssh_config=str(self.config), python=PYTHON, through=tuple(self.where.inside("me"))
        )
        return replace(known, **changes)

    def agents(self, name: str) -> list[int]:
        """Return the pids of the agents on a host that communicate over stdin and stdout."""
        pids = []
        for pid in must("ip", "netns", "pids", self.where.netns(name)).split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"--stdio" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(int(pid))
        return pids

    def servers_processes(self, name: str) -> list[int]:
        """Return the pids of a host's SSH server and its sessions."""
        pids = map(int, must("ip", "netns", "pids", self.where.netns(name)).split())
        return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith("sshd")]

    def received_bytes(self, name: str, interface: str = "o0") -> int:
        """Return the bytes that a host has received by an interface."""
        statistics = must("ip", "-n", self.where.netns(name), "-s", "-j", "link", "show", interface)
        return int(json.loads(statistics)[0]["stats64"]["rx"]["bytes"])

    def plug(self, name: str, state: str) -> None:
        """Switch a host's cable `down` or `up`: nothing is sent that would end connections."""
        must("ip", "-n", self.where.netns("wire"), "link", "set", name, state)


def key(path: Path) -> str:
    """Create a key pair at a path and return the public key."""
    must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return Path(f"{path}.pub").read_text().strip()


def _serve(lab: SshLab, name: str, ahead_s: int) -> "subprocess.Popen[bytes]":
    """Start an SSH server in a namespace that accepts public keys only, also for `USER`.

    Its clock is so many seconds ahead.
    """
    host_key, folder = lab.folder / f"{name}.host", lab.folder
    public = key(host_key)
    (folder / f"{name}.sshd").write_text(
        f"Port {PORT}\nHostKey {host_key}\nAuthorizedKeysFile /mnt/authorized_keys\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\n"
        "MaxStartups 50\n"
    )
    with lab.known.open("a") as known:
        known.write(f"[{lab.address(name)}]:{PORT} {public}\n")
    places = {"passwd": "/etc/passwd", "shadow": "/etc/shadow", "open": "/mnt"}
    mounts = [f"mount --bind {folder}/{name} {place}" for name, place in places.items()]
    clock = f"unshare --time --monotonic {ahead_s}" if ahead_s else ""
    serve = f"exec {clock} {SSHD} -D -e -f {folder}/{name}.sshd"
    return subprocess.Popen(
        lab.where.inside(name, "sh", "-c", " && ".join([*mounts, serve])), stderr=subprocess.DEVNULL
    )


def _end_sessions(lab: SshLab, name: str) -> None:
    """End the SSH server's sessions whose connections were cut: they would never notice."""
    for pid in must("ip", "netns", "pids", lab.where.netns(name)).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _await_server(lab: SshLab, name: str) -> None:
    """Wait until a host's SSH server listens."""
    deadline = time.monotonic() + 10
    while f":{PORT}" not in must("ip", "netns", "exec", lab.where.netns(name), "ss", "-tln"):
        assert time.monotonic() < deadline, f"no SSH server on {name}"
        time.sleep(0.01)  # a listening socket is announced by nothing


def _write_users(folder: Path) -> None:
    """Write what a namespace's SSH server sees as its users and, in /mnt, as `USER`'s home."""
    (folder / "open" / "home").mkdir(parents=True)
    os.chown(folder / "open" / "home", 54321, 54321)
    user = f"{USER}:x:54321:54321::/mnt/home:/bin/sh\n"
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + user)
    (folder / "shadow").write_text(f"root:*:19000::::::\n{USER}:*:19000::::::\n")
    (folder / "shadow").chmod(0o600)


@contextmanager
def ssh_lab(
    folder: Path, names: Sequence[str], clocks_ahead_s: Mapping[str, int] = MappingProxyType({})
) -> Iterator[SshLab]:
    """Yield hosts of these names; `id` in the folder is the private key that they accept.

    Hosts have the clock of this machine, unless theirs are so many seconds ahead.
    """
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd drops its privileges
    with ExitStack() as cleanup:
        lab = SshLab(cleanup.enter_context(island(*names, "me")), folder)
        _write_users(folder)
        (folder / "open" / "authorized_keys").write_text(key(folder / "id") + "\n")
        key(folder / "other")
        config = ""
        for name in names:
            cleanup.callback(_end_sessions, lab, name)
            server = lab.servers[name] = _serve(lab, name, clocks_ahead_s.get(name, 0))
            cleanup.callback(server.wait, 5)
            cleanup.callback(server.terminate)
            config += f"Host {name}\n  HostName {lab.address(name)}\n"
        config += f"Host bad-key\n  HostName {lab.address(names[0])}\n"
        config += f"  IdentityFile {folder}/other\n"
        config += f"Host !bad-key !no-key *\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
        config += f"Host no-key\n  HostName {lab.address(names[0])}\n  IdentityFile none\n"
        config += f"Host *\n  Port {PORT}\n  User root\n  UserKnownHostsFile {lab.known}\n"
        lab.config.write_text(config)
        for name in names:
            _await_server(lab, name)
        yield lab
