"""``analyze formats``: what is read, how it is told, and what it can prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from parsers.known_formats import KnownFormat

EPILOG = """\b
Examples:
  analyze formats                   a table
  analyze formats --format json     as a document
"""


@click.command("formats", epilog=EPILOG)
@options.output("text", "json", "md")
@options.debug
def command(form: str, output: str) -> None:
    """List the formats that are read, told from their content whatever the file is called."""
    from analyzer.render import write
    from parsers.known_formats import KNOWN

    write(_rendered(KNOWN, form, output), output)


def _rendered(known: tuple[KnownFormat, ...], form: str, output: str) -> bytes:
    from parsers.known_formats import PROVES

    if form == "json":
        import msgspec

        rows = [
            {
                "name": one.name,
                "title": one.title,
                "detected_by": one.detected_by,
                "proves": {what: said or None for what, said in zip(PROVES, one.proves, strict=True)},
            }
            for one in known
        ]
        return msgspec.json.format(msgspec.json.encode({"schema_version": 1, "formats": rows}), indent=1) + b"\n"
    from analyzer.render import render
    from analyzer.reporters.blocks import Facts, Section

    sections = [
        Section(
            one.name,
            one.title,
            [
                Facts(
                    [
                        ("told by", one.detected_by),
                        *(
                            (what.replace("_", " "), said)
                            for what, said in zip(PROVES, one.proves, strict=True)
                            if said
                        ),
                    ]
                )
            ],
        )
        for one in known
    ]
    return render(sections, "Formats", form, output)
