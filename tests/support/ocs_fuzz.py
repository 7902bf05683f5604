"""Invalid inputs for the front ends of an optical switch: noise, and commands with wrong bytes.

All commands name ports that no small switch has, so far from those it has that a few wrong bytes
don't lead there. Where a colon too many would turn a port list into a tag, and no port means all
ports, they name two ports. None restarts a switch.
"""

import base64
import random
from collections.abc import Iterator

from hypothesis import strategies as st

MAX_EDITS = 3
SCPI_COMMANDS = (
    b":oxc:swit:conn:add (@901,902),(@913,914)",
    b":OXC:SWITch:CONNect:ADD (@901:909), (@913:921)",
    b":oxc:swit:conn:only (@901),(@913);stat?",
    b":oxc:swit:conn:sub (@901),(@913);*opc?",
    b":oxc:swit:conn:stat?",
    b":oxc:swit:conn:port? 902",
    b":oxc:swit:size?",
    b":oxc:swit:port:dis (@902,904)",
    b":oxc:swit:port:enab (@902,904)",
    b":oxc:swit:port:stat? (@2,4,6)",
    b":pmon:pow? (@1,2,13)",
    b":syst:comm:netw:addr?",
    b":syst:comm:netw:addr 999.168.1.1,192.168.1.1",
    b":syst:err:all?;*stb?;*esr?;*ese 300;*sre -1",
    b"*idn?;*opc;*wai;*tst?",
)
SCPI_ENDS = (b"\n", b"\r\n", b";", b"")
TL1_LOG_IN = b"ACT-USER::root:1::root;"
TL1_COMMANDS = (
    TL1_LOG_IN,
    b"ACT-USER::root:1::wrong;",
    b"CANC-USER::root:2:;",
    b"RTRV-HDR:::3:;",
    b"ENT-PATCH::9955,9966:4:;",
    b"ENT-PATCH::9955&9956,9966&9967:5:;",
    b"ENT-PATCH::9955&&9999,9966&&9999:6:;",
    b"DLT-PATCH::9955&9956:7:;",
    b"RTRV-PATCH::1&&24:8:;",
    b'RTRV-PATCH:"a name"::9:;',
    b"RTRV-EQPT::SYSTEM:10:::PARAMETER=SIZE;",
    b"RTRV-EQPT::PMON:11:::PARAMETER=CONFIG;",
    b"ED-EQPT::TIMEOUT:12:::ADMIN=61;",
    b"RTRV-PORT-SHUTTER::1&&24:13:;",
    b"OPR-PORT-SHUTTER::9955&9956:14:;",
    b'ED-PORT-LABEL::5&6:15:::LABEL="a;b"&c;',
    b"RTRV-PORT-LABEL::5&6:16:;",
    b"RTRV-PORT-POWER::1&&24:17:;",
    b"SET-PORT-PMON::9955&9956:18:::WAVE=1310;",
    b"ENT-USER-SECU::x:22::a,,king;",
    b"RTRV-USER-SECU:::23:;",
    b"OPR-ARC-EQPT::REPMGR:24::IND;",
    b"RTRV-ALM-ALL::ALL:25:;",
    b"SET-SID:::26::**;",
)
AUTHORIZATION = b"Authorization: Basic " + base64.b64encode(b"admin:root")
DATA = b"/api/data/"
JSON = b"Content-Type: application/yang-data+json"
PAIRS = b'{"pair":[{"ingress":9955,"egress":9966}]}'
REQUESTS = (
    (b"GET", DATA + b"optical-switch:cross-connects", b"", b""),
    (b"GET", DATA + b"cross-connects/pairs=1", b"", b""),
    (b"GET", DATA + b"system-config/user=root?depth=2", b"", b""),
    (b"GET", DATA + b"opm-power/port=%31", b"", b""),
    (b"GET", b"/api/operations", b"", b""),
    (b"PATCH", DATA + b"cross-connects/pair", JSON, PAIRS),
    (b"PUT", DATA + b"cross-connects/pair=9955", JSON, PAIRS),
    (b"POST", DATA + b"cross-connects", JSON, PAIRS),
    (b"DELETE", DATA + b"cross-connects/pair=9955", b"", b""),
    (
        b"PATCH",
        DATA + b"port-config/port",
        JSON,
        b'{"port":[{"port-id":9955,"label":"a","peer-port":null}]}',
    ),
    (
        b"PATCH",
        DATA + b"ports/port",
        JSON,
        b'{"port":[{"port-id":9955,"port-state":"PC_DISABLED"}]}',
    ),
    (
        b"PATCH",
        DATA + b"system-config/user",
        JSON,
        b'{"user":[{"name":"@","polatis-switch:group":"king"}]}',
    ),
    (
        b"POST",
        b"/api/operations/optical-switch:port-set-state",
        JSON,
        b'{"input":{"port-disab":[9955]}}',
    ),
    (b"POST", b"/api/operations/disconnect-session", JSON, b'{"input":{"session-id":9955}}'),
)


def mangle(source: random.Random, valid: bytes) -> bytes:
    """Lose, double or change one to three bytes."""
    data = bytearray(valid)
    for _ in range(source.randint(1, MAX_EDITS)):
        at = source.randrange(len(data)) if data else 0
        match source.randrange(3):
            case 0:
                del data[at : at + 1]
            case 1:
                data[at:at] = data[at : at + 1]
            case _:
                data[at : at + 1] = bytes([source.randrange(256)])
    return bytes(data)


def _scpi_line(source: random.Random) -> bytes:
    command = mangle(source, source.choice(SCPI_COMMANDS))
    return command.replace(b"\n", b"") + source.choice(SCPI_ENDS)


def scpi_inputs(seed: int, number: int) -> Iterator[bytes]:
    """Yield inputs for SCPI; equal seeds give equal inputs."""
    source = random.Random(seed)
    for _ in range(number):
        if source.random() < 0.3:
            noise = source.randbytes(source.randrange(64)).replace(b"\n", b"?")
            yield noise + source.choice(SCPI_ENDS)
        else:
            yield _scpi_line(source)


def scpi_strategy() -> st.SearchStrategy[bytes]:
    """Return a strategy for SCPI: noise, a mangled command, or a flood of one byte."""
    flood = st.builds(
        lambda byte, length: byte * length,
        st.binary(min_size=1, max_size=1),
        st.integers(0, 70_000),
    )
    noise = st.binary(max_size=100).filter(lambda data: b"disc" not in data.lower())
    return st.one_of(noise, st.builds(_scpi_line, st.randoms(use_true_random=False)), flood)


def tl1_inputs(seed: int, number: int) -> Iterator[bytes]:
    """Yield inputs for TL1; equal seeds give equal inputs."""
    source = random.Random(seed)
    for _ in range(number):
        kind = source.random()
        if kind < 0.1:
            yield b";" + TL1_LOG_IN
        elif kind < 0.25:
            yield source.randbytes(source.randrange(64)) + source.choice((b";", b"\r\n", b""))
        elif kind < 0.5:
            yield source.choice(TL1_COMMANDS)
        else:
            end = (b"", b"", b";", b"\r\n;")
            yield mangle(source, source.choice(TL1_COMMANDS)) + source.choice(end)


def request(method: bytes, path: bytes, media: bytes = b"", body: bytes = b"") -> bytes:
    """Return an HTTP request of an admin."""
    length = b"Content-Length: %d" % len(body) if body else b""
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: ocs0", AUTHORIZATION, media, length]
    return b"\r\n".join(line for line in lines if line) + b"\r\n\r\n" + body


def restconf_inputs(seed: int, number: int) -> Iterator[bytes]:
    """Yield inputs for RESTCONF, half of them well-formed HTTP; equal seeds give equal inputs."""
    source = random.Random(seed)
    for _ in range(number):
        method, path, media, body = source.choice(REQUESTS)
        kind = source.random()
        if kind < 0.15:
            yield source.randbytes(source.randrange(64)) + source.choice((b"\r\n\r\n", b""))
        elif kind < 0.35:
            yield mangle(source, request(method, path, media, body))
        elif kind < 0.7:
            yield request(method, path, media, mangle(source, body) if body else b"")
        else:
            unprintable = bytes(range(33)) + bytes(range(127, 256))
            mangled_path = mangle(source, path).translate(None, unprintable)
            yield request(method, mangled_path or b"/", media, body)
