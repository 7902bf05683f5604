"""Every line of docs/device-commands.md works on the emulated switch, and no command is missing."""

import base64
import re
import shlex
from collections.abc import Iterator

import pytest

from moefabric.emulator.ocs.scpi.commands import find_command
from moefabric.emulator.ocs.tl1.verbs import VERBS
from tests.support.ocs_lab import OcsBench
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/device-commands.md").read_text()
SECOND_NS = 1_000_000_000
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BASE = "http://ocs/api"


def rows(section: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the lines to paste and the quoted replies of each row of the section's table."""
    for line in SECTIONS[section].splitlines():
        if line.startswith("| `"):
            cells = line.strip("| ").split(" | ")
            yield re.findall(r"`([^`]*)`", cells[0]), re.findall(r"`([^`]*)`", " ".join(cells[2:]))


def test_every_scpi_line_works() -> None:
    bench = OcsBench(12)
    client = bench.client("scpi")
    count = 0
    for [line], replies in rows("SCPI"):
        reply = client.send(f"{line}\n".encode())
        bench.timers.advance_ns(SECOND_NS)
        reply += client.connection.take()
        assert bool(reply) == ("?" in line), line
        if replies and "idn" not in line:
            assert reply.decode() == replies[0] + "\n", line
        if "syst:err" not in line:
            assert client.send(b":syst:err?\n") == b'0,"No error"\n', line
        count += 1
    assert count > 20


def test_every_tl1_line_works() -> None:
    bench = OcsBench(12)
    client = bench.client("tl1")
    seen = set()
    for lines, _ in rows("TL1"):
        for line in lines:
            reply = client.send(line.encode())
            bench.timers.advance_ns(SECOND_NS)
            reply += client.connection.take()
            tag = re.split("[:;]", line)[3]
            assert f"M  {tag} COMPLD" in reply.decode(), (line, reply)
            seen.add(line.partition(":")[0])
    named = set(re.findall(r"`([A-Z]+(?:-[A-Z0-9]+)+)", SECTIONS["TL1"]))
    assert seen <= named
    assert named == VERBS.keys()


def test_every_restconf_line_works() -> None:
    bench = OcsBench(12)
    count = 0
    for [line], _ in rows("RESTCONF"):
        words = shlex.split(line.replace('"$JSON"', "type").replace("$R", BASE))
        assert words[0] == "curl"
        options = dict(zip(words[2:-1:2], words[3:-1:2], strict=True))
        user, body = options["-u"].encode(), options.get("-d", "")
        head = f"{options.get('-X', 'GET')} {words[-1].removeprefix('http://ocs')} HTTP/1.1\r\n"
        head += f"Host: ocs\r\nAuthorization: Basic {base64.b64encode(user).decode()}\r\n"
        if body:
            head += f"Content-Type: application/yang-data+json\r\nContent-Length: {len(body)}\r\n"
        client = bench.client("restconf")
        reply = client.send(f"{head}\r\n{body}".encode())
        bench.timers.advance_ns(SECOND_NS)
        reply += client.connection.take()
        assert re.match(rb"HTTP/1.1 20[0-9] ", reply), (line, reply)
        assert ("201" in line) <= reply.startswith(b"HTTP/1.1 201")
        count += 1
    assert count > 10


SOURCE = (REPOSITORY / "emulator/ocs/scpi/commands.py").read_text()
HEADERS = re.findall(r'^        \("([^"]+)", ', SOURCE, re.MULTILINE)


@pytest.mark.parametrize("header", HEADERS)
def test_every_scpi_command_is_on_the_page(header: str) -> None:
    spelled = re.findall(r"[:*]?[a-z*][a-z:]*\??", SECTIONS["SCPI"])
    command = find_command(header.replace("[:NEXT]", ""))
    assert command is not None
    assert command in [find_command(word.removeprefix(":")) for word in spelled]
