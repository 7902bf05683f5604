"""Print this machine's apt sources of Debian, rewritten for another suite.

    debian_source.py SUITE              the main archive for that suite (deb822)
    debian_source.py --all SUITE        every source of that release, with updates and security;
                                        the main archive if the sources are of other releases
    debian_source.py --mirror SUITE     the address of the main archive

It reads /etc/apt, needs only Python, and exits with 1 and one line if there is no Debian source.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)"
)
OPTIONS = {"signed-by": "Signed-By", "trusted": "Trusted"}  # fields about trust


@dataclass(frozen=True)
class Source:
    """Archive that apt reads: one address, its suites, and the fields about trust."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    trust: tuple[tuple[str, str], ...]

    def is_archive(self, release: str) -> bool:
        """Return whether this is Debian's main archive of a release."""
        return bool({release, "stable"} & set(self.suites)) and "main" in self.components

    def is_of(self, release: str) -> bool:
        """Return whether this belongs to a release: archive, updates or security."""
        return "main" in self.components and any(
            suite.split("-")[0] == release for suite in self.suites
        )

    def stanza_for(self, *suites: str) -> str:
        """Return a deb822 stanza of the same address for other suites, main only."""
        fields = [
            ("Types", "deb"),
            ("URIs", self.uri),
            ("Suites", " ".join(suites)),
            ("Components", "main"),
            *self.trust,
        ]
        return "".join(f"{name}: {value}\n" for name, value in fields)


def one_line_sources(text: str) -> Iterator[Source]:
    """Yield the sources of a `sources.list`."""
    for line in text.splitlines():
        if match := ONE_LINE.fullmatch(line.split("#")[0].strip()):
            options = dict(
                word.split("=", 1) for word in (match["options"] or "").split() if "=" in word
            )
            trust = tuple(
                (OPTIONS[name], value) for name, value in options.items() if name in OPTIONS
            )
            yield Source(match["uri"], (match["suite"],), tuple(match["components"].split()), trust)


def stanza_fields(stanza: str) -> dict[str, str]:
    """Return the fields of a deb822 stanza; a key block keeps its lines."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and name:
            fields[name] += f"\n{line}"
        elif ":" in line:
            name, value = line.split(":", 1)
            fields[name] = value.strip()
    return fields


def deb822_sources(text: str) -> Iterator[Source]:
    """Yield the sources of a `.sources` file."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = stanza_fields(stanza)
        off = fields.get("Enabled", "yes").lower() in {"no", "false", "0"}
        if off or "deb" not in fields.get("Types", "").split():
            continue
        trust = tuple((name, fields[name]) for name in OPTIONS.values() if name in fields)
        for uri in fields.get("URIs", "").split():
            yield Source(
                uri,
                tuple(fields["Suites"].split()),
                tuple(fields.get("Components", "").split()),
                trust,
            )


def apt_sources(etc: Path) -> Iterator[Source]:
    """Yield every source in apt's folder, deb822 and one-line."""
    for file in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if file.is_file():
            yield from one_line_sources(file.read_text())
    for file in sorted((etc / "sources.list.d").glob("*.sources")):
        yield from deb822_sources(file.read_text())


def release(os_release: Path = Path("/etc/os-release")) -> str:
    """Return the code name of this machine's Debian."""
    match = re.search(r'^VERSION_CODENAME="?(\w+)', os_release.read_text(), re.MULTILINE)
    return match[1] if match else "stable"


def answer(option: str, suite: str, sources: list[Source], own_release: str) -> str:
    """Return the output for an option and a suite; empty without a suitable source."""
    if option == "--all" and any(source.is_of(suite) for source in sources):
        return "\n".join(
            source.stanza_for(*source.suites) for source in sources if source.is_of(suite)
        )
    archive = next((source for source in sources if source.is_archive(own_release)), None)
    if archive is None:
        return ""
    return f"{archive.uri}\n" if option == "--mirror" else archive.stanza_for(suite)


def main(argv: list[str]) -> int:
    """Print the output."""
    *options, suite = argv
    own_release = release()
    sources = list(apt_sources(Path("/etc/apt")))
    output = answer(options[0] if options else "", suite, sources, own_release)
    if not output:
        sys.stderr.write(
            f"/etc/apt: no source of Debian's main archive for {own_release}; "
            "add one to sources.list\n"
        )
        return 1
    sys.stdout.write(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
