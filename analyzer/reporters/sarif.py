"""A comparison as SARIF 2.1.0 (OASIS), for code-scanning views."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from analyzer.escaping import printable
from analyzer.gate.rows import Row
from analyzer.gate.verdict import Comparison

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RULES = {
    "exact": "A quantity without noise (calls, bytes, types, layout) is not what it was.",
    "noisy": "A time is worse than the baseline by more than noise allows.",
    "budget": "A limit of the budget is exceeded.",
    "inconclusive": "The runs could not be compared.",
}


def sarif(c: Comparison, location: str) -> bytes:
    """UTF-8 JSON.

    Args:
        c: the comparison.
        location: the file that the results are shown at: the budget or the baseline.
    """
    results = [_result(row, location) for row in c.rows if row.failed]
    if c.verdict == "inconclusive":
        results.insert(
            0, _entry("inconclusive", "error" if c.exit_code else "warning", c.reason, "comparable", location)
        )
    driver = {
        "name": c.tool.name,
        "version": c.tool.version,
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _result(row: Row, location: str) -> dict[str, Any]:
    level = "error" if row.level == "error" else "warning"
    return _entry(row.kind, level, f"{row.metric}: {row.why}", row.metric, location)


def _entry(rule: str, level: str, text: str, metric: str, location: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "ruleIndex": list(RULES).index(rule),
        "level": level,
        "message": {"text": printable(text)},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": location.replace("\\", "/")}, "region": {"startLine": 1}}}
        ],
        "partialFingerprints": {"metric/v1": hashlib.sha256(f"{rule} {metric}".encode()).hexdigest()[:16]},
    }
