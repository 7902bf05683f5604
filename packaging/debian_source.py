"""Where this machine gets Debian from: its own apt sources, told for another suite.

    debian_source.py SUITE              the main archive as it would be told for that suite (deb822)
    debian_source.py --all SUITE        every source of that release on this machine, with updates and security
    debian_source.py --mirror SUITE     the main archive's address alone

Reads /etc/apt; needs nothing but Python. Exits 1 with one line if the machine has no Debian source.
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
OPTIONS = {"signed-by": "Signed-By", "trusted": "Trusted"}  # those that say whom to believe


@dataclass(frozen=True)
class Source:
    """An archive that apt reads: one address, its suites, and the fields that say whom to believe."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    trust: tuple[tuple[str, str], ...]

    def is_archive(self, release: str) -> bool:
        """Whether this is Debian's main archive for a release, rather than updates or another vendor's."""
        return bool({release, "stable"} & set(self.suites)) and "main" in self.components

    def is_of(self, release: str) -> bool:
        """Whether this is of a release at all: its archive, its updates, its security."""
        return "main" in self.components and any(suite.split("-")[0] == release for suite in self.suites)

    def told_for(self, *suites: str) -> str:
        """A deb822 stanza of the same address for other suites, main alone."""
        told = " ".join(suites)
        fields = [("Types", "deb"), ("URIs", self.uri), ("Suites", told), ("Components", "main"), *self.trust]
        return "".join(f"{name}: {value}\n" for name, value in fields)


def one_line_sources(text: str) -> Iterator[Source]:
    """Sources of a `sources.list`."""
    for line in text.splitlines():
        if found := ONE_LINE.fullmatch(line.split("#")[0].strip()):
            options = dict(word.split("=", 1) for word in (found["options"] or "").split() if "=" in word)
            trust = tuple((OPTIONS[name], value) for name, value in options.items() if name in OPTIONS)
            yield Source(found["uri"], (found["suite"],), tuple(found["components"].split()), trust)


def stanza_fields(stanza: str) -> dict[str, str]:
    """Fields of a deb822 stanza; a key block that runs over lines stays as it is."""
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
    """Sources of a `.sources` file."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = stanza_fields(stanza)
        off = fields.get("Enabled", "yes").lower() in {"no", "false", "0"}
        if off or "deb" not in fields.get("Types", "").split():
            continue
        trust = tuple((name, fields[name]) for name in OPTIONS.values() if name in fields)
        for uri in fields.get("URIs", "").split():
            yield Source(
                uri, tuple(fields["Suites"].split()), tuple(fields.get("Components", "").split()), trust
            )


def apt_sources(etc: Path) -> Iterator[Source]:
    """Every source that apt reads under its folder, deb822 and one-line."""
    for file in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if file.is_file():
            yield from one_line_sources(file.read_text())
    for file in sorted((etc / "sources.list.d").glob("*.sources")):
        yield from deb822_sources(file.read_text())


def release(os_release: Path = Path("/etc/os-release")) -> str:
    """The code name of this machine's Debian."""
    found = re.search(r'^VERSION_CODENAME="?(\w+)', os_release.read_text(), re.MULTILINE)
    return found[1] if found else "stable"


def answer(question: str, suite: str, sources: list[Source], here: str) -> str:
    """What the sources of a machine of release `here` say; empty if they say nothing."""
    if question == "--all":
        return "\n".join(source.told_for(*source.suites) for source in sources if source.is_of(suite))
    archive = next((source for source in sources if source.is_archive(here)), None)
    if archive is None:
        return ""
    return f"{archive.uri}\n" if question == "--mirror" else archive.told_for(suite)


def main(argv: list[str]) -> int:
    """Answer on standard output."""
    *question, suite = argv
    here = release()
    said = answer(question[0] if question else "", suite, list(apt_sources(Path("/etc/apt"))), here)
    if not said:
        sys.stderr.write(
            f"/etc/apt: no source of Debian's main archive for {here}; add one to sources.list\n"
        )
        return 1
    sys.stdout.write(said)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
