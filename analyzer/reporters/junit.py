"""A comparison as JUnit XML: one test case per metric.

Follows what Jenkins (xunit plugin, junit-10.xsd) and Apache Ant (windyroad/JUnit-Schema) both accept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from analyzer.gate.rows import Row
from analyzer.gate.verdict import Comparison

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may hold."""


def junit(c: Comparison, when: str) -> bytes:
    """UTF-8 XML.

    Args:
        c: the comparison.
        when: ISO 8601 time, for the suites' time stamps.
    """
    root = Xml.Element("testsuites")
    kinds = [kind for kind in ("exact", "noisy", "budget") if any(row.kind == kind for row in c.rows)]
    for number, kind in enumerate(kinds):
        _suite(root, number, kind, [row for row in c.rows if row.kind == kind], when)
    if not kinds or any(not d.allowed for d in c.differences):
        _guard(root, len(kinds), c, when)
    Xml.indent(root)
    body: bytes = Xml.tostring(root, encoding="unicode").encode()
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + body + b"\n"


def _suite(root: Xml.Element, number: int, kind: str, rows: Sequence[Row], when: str) -> None:
    suite = _element(
        root,
        number,
        f"commlens.{kind}",
        when,
        tests=len(rows),
        failures=sum(row.failed and row.level == "error" for row in rows),
        errors=sum(row.status == "inconclusive" and row.level == "error" for row in rows),
        skipped=sum(row.status == "inconclusive" and row.level != "error" for row in rows),
    )
    warnings = [f"warning: {row.metric}: {row.why}" for row in rows if row.failed and row.level != "error"]
    for row in rows:
        case = Xml.SubElement(
            suite, "testcase", {"name": _clean(row.metric), "classname": f"commlens.{row.kind}", "time": "0"}
        )
        if row.failed and row.level == "error":
            _outcome(case, "failure", row.why, row.status)
        elif row.status == "inconclusive":
            _outcome(case, "error" if row.level == "error" else "skipped", row.why, row.status)
    _ends(suite, "\n".join(warnings))


def _guard(root: Xml.Element, number: int, c: Comparison, when: str) -> None:
    """The case that says why nothing could be compared."""
    blocked = c.verdict == "inconclusive"
    suite = _element(root, number, "commlens.comparable", when, tests=1, failures=0, errors=int(blocked), skipped=0)
    case = Xml.SubElement(suite, "testcase", {"name": "comparable", "classname": "commlens.comparable", "time": "0"})
    if blocked:
        _outcome(case, "error", c.reason, "inconclusive")
    _ends(suite, "")


def _element(root: Xml.Element, number: int, name: str, when: str, **counts: int) -> Xml.Element:
    said = {key: str(value) for key, value in counts.items()}
    place = {"id": str(number), "package": "commlens", "hostname": "localhost", "timestamp": when[:19], "time": "0"}
    suite = Xml.SubElement(root, "testsuite", {"name": name, **place, **said})
    Xml.SubElement(suite, "properties")
    return suite


def _outcome(case: Xml.Element, tag: str, why: str, kind: str) -> None:
    attributes = {"message": _clean(why)} if tag == "skipped" else {"message": _clean(why), "type": kind}
    child = Xml.SubElement(case, tag, attributes)
    if tag != "skipped":
        child.text = _clean(why)


def _ends(suite: Xml.Element, said: str) -> None:
    Xml.SubElement(suite, "system-out").text = _clean(said)
    Xml.SubElement(suite, "system-err").text = ""


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
