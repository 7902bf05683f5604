"""Machines of tests: namespaces with a network, processes, a host name and a run directory each.

They are joined by a bridge that no one else sees. Such a machine has no kernel or clocks of its
own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.support.namespaces import must

_LONGEST_S: Final = 900
_INIT: Final = f"""
import os, signal
signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
signal.alarm({_LONGEST_S})
print("ready", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
while True:
    signal.sigwait([signal.SIGCHLD])
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
"""First process of a machine: it reaps orphans, and ends with all processes after some time."""
_numbers = count()


@dataclass(frozen=True)
class NamespaceMachine:
    """A machine of a test.

    Attributes:
        name: Its host name.
        address: Its IPv4 address on the bridge.
        init: Its first process; when this ends, the machine is gone.
        pid: Process id of `init` as the test sees it.
        folder: Its own folder, in memory, at the same path as those of the other machines.
        env: Variables of its programs.
    """

    name: str
    address: str
    init: "subprocess.Popen[str]"
    pid: int
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, *words: str) -> list[str]:
        """Return the argv that runs a program on this machine, in the caller's working folder."""
        spaces = ["-n", "-m", "-p", "-u", f"--wdns={Path.cwd()}"]
        return ["nsenter", "-t", str(self.pid), *spaces, "--", *words]

    def run(
        self, *words: str, timeout_s: float = 60.0, check: bool = True, text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program, with a text as its input; AssertionError if it fails and `check`."""
        ended = subprocess.run(
            self.argv(*words),
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **self.env},
        )
        output = f"{' '.join(words)} exited {ended.returncode}: {ended.stdout}{ended.stderr}"
        assert not check or ended.returncode == 0, output
        return ended

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start a program; options are those of Popen."""
        environment = {**os.environ, **self.env}
        return subprocess.Popen(self.argv(*words), text=True, env=environment, **options)

    def kill(self) -> None:
        """End the machine with all of its processes and interfaces, as a loss of power does."""
        self.init.kill()
        self.init.wait()

    def processes(self) -> list[str]:
        """Return the command lines of its processes, without the first one and kernel threads."""
        script = "for p in /proc/[0-9]*; do tr '\\0\\n' '  ' <$p/cmdline; echo; done 2>/dev/null"
        lines = self.run("sh", "-c", script).stdout.splitlines()
        return [line.strip() for line in lines[1:] if line.strip() and script[:20] not in line]

    def interfaces(self) -> set[str]:
        """Return the names of its interfaces, besides the loopback and the one on the bridge."""
        lines = self.run("ip", "-o", "link").stdout.splitlines()
        return {line.split(": ")[1].split("@")[0] for line in lines} - {"lo", "eth0"}


def _script(name: str, folder: Path, hosts: Path) -> str:
    """Return what the first process does before all others."""
    return " && ".join(
        (
            f"hostname {name}",
            "mount --make-rprivate /",
            "mount -t proc proc /proc",
            f"mount -t tmpfs -o mode=0755 tmpfs {folder}",
            f"mkdir {_run_folder(folder)}",
            "mount -t tmpfs -o size=400m tmpfs /dev/shm",
            f"mount --bind {hosts} /etc/hosts",
            "ip link set lo up",
            f"exec {sys.executable} -IS -c '{_INIT}'",
        )
    )


def _run_folder(folder: Path) -> Path:
    return folder / "run"


@contextmanager
def machine_namespaces(
    names: Sequence[str], mtu: int = 9000, subnet: str = "10.98.0"
) -> Iterator[dict[str, NamespaceMachine]]:
    """Yield machines on one link, by name, and end them with all of their processes.

    Args:
        names: Their host names.
        mtu: Largest IP packet of the link.
        subnet: First three numbers of their addresses.
    """
    folder = Path(tempfile.mkdtemp(prefix="mf", dir="/tmp"))  # paths of Unix sockets are short
    own, hosts = folder / "own", folder / "hosts"
    own.mkdir()
    addresses = {name: f"{subnet}.{number}" for number, name in enumerate(names, 1)}
    lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in addresses.items())]
    hosts.write_text("\n".join(lines) + "\n")
    wire = f"mfm{os.getpid()}-{next(_numbers)}"
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        must("ip", "netns", "add", wire)
        undo.callback(must, "ip", "netns", "delete", wire)
        must("ip", "-n", wire, "link", "add", "br0", "mtu", str(mtu), "type", "bridge")
        must("ip", "-n", wire, "link", "set", "br0", "up")
        machines = {}
        for name, address in addresses.items():
            spaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
            init = subprocess.Popen(
                ["unshare", *spaces, "sh", "-c", _script(name, own, hosts)],
                stdout=subprocess.PIPE,
                text=True,
            )
            undo.callback(_end, init)
            assert init.stdout is not None
            assert init.stdout.readline() == "ready\n", f"machine {name} did not start"
            pid = int(Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()[0])
            _connect(wire, name, pid, address, mtu)
            env = {"MOEFABRIC_RUN_DIR": str(_run_folder(own))}
            machines[name] = NamespaceMachine(name, address, init, pid, own, env)
        yield machines


def _connect(wire: str, name: str, pid: int, address: str, mtu: int) -> None:
    size = ("mtu", str(mtu))
    peer = ("peer", "name", "eth0", *size, "netns", str(pid))
    must("ip", "-n", wire, "link", "add", "name", name, *size, "type", "veth", *peer)
    must("ip", "-n", wire, "link", "set", "dev", name, "master", "br0", "up")
    inside = ("nsenter", "-t", str(pid), "-n", "ip")
    must(*inside, "address", "add", f"{address}/24", "dev", "eth0")
    must(*inside, "link", "set", "eth0", "up")


def _end(init: "subprocess.Popen[str]") -> None:
    init.kill()
    init.wait()
    assert init.stdout is not None
    init.stdout.close()
