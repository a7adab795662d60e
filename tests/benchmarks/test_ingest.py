"""The measurement of reading: runs that take too long are stopped and told as such."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.ingest import ANALYZE, HTA, Candidate, Cost, costs_of, in_turn, median, table

PEERS = Path(sys.executable)


def test_a_run_without_end_is_a_lower_bound(tmp_path: Path) -> None:
    trace = tmp_path / "kineto_1500.json"
    trace.write_text("{}")
    endless = Candidate(HTA, "while True: pass")
    quick = Candidate(ANALYZE, "import sys; assert open(sys.argv[1]).read() == '{}'")
    in_turn([endless, quick], trace, 1500, 1, PEERS, limit_s=1)
    costs = costs_of(trace)
    (stopped,) = costs[HTA]
    assert stopped.stopped
    assert 0.8 < stopped.cpu_s < 2  # the kernel counts ticks
    assert not costs[ANALYZE][0].stopped


def test_what_was_stopped_is_more_than_it_took(tmp_path: Path) -> None:
    trace = tmp_path / "kineto_1500.json"
    trace.write_text("{}")
    runs = [[ANALYZE, 2.0, 100.0, False], [ANALYZE, 4.0, 120.0, False], [HTA, 90.0, 7000.0, True]]
    (tmp_path / "kineto_1500.json.runs").write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert median(costs_of(trace)[ANALYZE]) == Cost(3.0, 110.0)
    lines = table(trace, 1500).splitlines()
    assert f"| {ANALYZE} | 2 | 3.00 | 500 | 1.0 | 110 |" in lines
    assert f"| {HTA} | 1 | > 90.00 | < 17 | > 30.0 | > 7,000 |" in lines


def test_a_failing_candidate_is_no_figure(tmp_path: Path) -> None:
    trace = tmp_path / "kineto_50.json"
    trace.write_text("{}")
    in_turn([Candidate(ANALYZE, "raise SystemExit('no such thing')")], trace, 50, 2, PEERS, limit_s=1)
    assert costs_of(trace) == {}
