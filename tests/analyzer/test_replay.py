"""Slowdown by stragglers: three published production jobs, and a small pipeline reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from analyzer.cli import main
from analyzer.replay import slowdown
from parsers.errors import InputError
from parsers.straggler_parquet import read_operations


@pytest.mark.parametrize(
    ("job", "published", "dp", "pp"), [("AR", 1.973, 4, 4), ("SE", 1.537, 32, 2), ("ST", 1.179, 2, 4)]
)
def test_published_slowdowns_are_reproduced_with_the_layout_inferred(
    shared: Path, job: str, published: float, dp: int, pp: int
) -> None:
    found = slowdown(read_operations(str(shared / "data" / "ground_truth" / "straggler" / f"trace-{job}.parquet")))
    assert found.slowdown == pytest.approx(published, rel=0.013)
    assert (len(found.pipelines), {len(chain) for chain in found.pipelines}) == (dp, {pp})


def test_the_inferred_pipelines_are_the_ones_on_record(shared: Path) -> None:
    path = shared / "data" / "ground_truth" / "straggler" / "trace-ST.parquet"
    table = pq.read_table(path, columns=["rank", "dp_rank", "stage"]).to_pydict()
    said = set(zip(table["dp_rank"], table["stage"], table["rank"], strict=True))
    found = slowdown(read_operations(str(path))).pipelines
    assert {frozenset(chain) for chain in found} == {
        frozenset(r for d, _, r in said if d == one) for one in {d for d, _, _ in said}
    }


@pytest.mark.parametrize(
    ("name", "published", "dp", "pp", "microbatches"),
    [("AR", 1.973, 4, 4, 32), ("SE", 1.537, 32, 2, 8), ("ST", 1.179, 2, 4, 4)],
)
def test_the_command_reads_the_published_jobs_and_infers_their_layouts(
    shared: Path, tmp_path: Path, name: str, published: float, dp: int, pp: int, microbatches: int
) -> None:
    """A directory with the operations of one job; the positions of its ranks, which the file has too, are taken out."""
    table = pq.read_table(shared / "data" / "ground_truth" / "straggler" / f"trace-{name}.parquet")
    pq.write_table(table.drop_columns(["dp_rank", "stage"]), tmp_path / "operations.parquet")
    result = CliRunner().invoke(main, ["run", str(tmp_path), "--format", "json", "-q"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {item["format"] for item in found["inputs"]} == {"straggler_analysis"}
    assert found["slowdown"]["ratio"] == pytest.approx(published, rel=0.013)
    layout = found["layout"]
    assert (layout["dp"], layout["pp"], layout["microbatches"], layout["pp_schedule"]) == (dp, pp, microbatches, "1f1b")
    assert (layout["tp"], layout["cp"], layout["ep"]) == (None, None, None)
    (said,) = (item for item in found["findings"] if item["id"] == "job.slowdown")
    assert said["cost_us"] == pytest.approx(found["slowdown"]["replayed_us"] - found["slowdown"]["ideal_us"], abs=0.01)


def test_the_command_says_what_the_even_job_would_take(tmp_path: Path) -> None:
    """As below: 10 s of which the even job needs 9."""
    result = CliRunner().invoke(main, ["run", job(tmp_path / "slow.parquet", 2.0), "--format", "json", "-q"])
    found = json.loads(result.stdout)
    assert found["slowdown"] == {
        "ratio": round(10 / 9, 6),
        "replayed_us": 10e6,
        "ideal_us": 9e6,
        "pipelines": [[0, 1]],
    }
    assert (found["layout"]["pp"], found["layout"]["tp"]) == (2, None)


def job(path: Path, second: float) -> str:
    """Two stages, two microbatches, no time to move anything; the second stage computes ``second`` seconds a pass."""
    f0, fast = 1.0, 1.0
    rows: list[tuple[int, str, float, float, int]] = []
    for i in range(2):
        rows += [(0, "forward-compute", i * f0, f0, i), (0, "forward-send", (i + 1) * f0, 0.0, i)]
    done, at = 0.0, []
    for i in range(2):
        begin = max(done, (i + 1) * f0)
        rows += [(1, "forward-recv", done, (i + 1) * f0 - done if (i + 1) * f0 > done else 0.0, i)]
        rows += [(1, "forward-compute", begin, second, i), (1, "backward-compute", begin + second, second, i)]
        done = begin + 2 * second
        rows += [(1, "backward-send", done, 0.0, i)]
        at.append(done)
    free = 2 * f0
    for i in range(2):
        rows += [(0, "backward-recv", free, max(at[i] - free, 0.0), i)]
        rows += [(0, "backward-compute", max(at[i], free), fast, i)]
        free = max(at[i], free) + fast
    names = ["rank", "optype", "start_ts", "duration", "seq_id"]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    pq.write_table(pa.table({**columns, "step": [0] * len(rows)}), path)
    return str(path)


def test_a_pipeline_reckoned_by_hand(tmp_path: Path) -> None:
    """The second stage takes 2 s a pass: 1 + 2·4 + 1 = 10 s. With 1.5 s everywhere: 1.5 + 2·3 + 1.5 = 9 s."""
    found = slowdown(read_operations(job(tmp_path / "slow.parquet", 2.0)))
    assert found.replayed_s == pytest.approx(10)
    assert found.ideal_s == pytest.approx(9)
    assert found.pipelines == ((0, 1),)


def test_equal_stages_are_not_slowed_down(tmp_path: Path) -> None:
    assert slowdown(read_operations(job(tmp_path / "even.parquet", 1.0))).slowdown == pytest.approx(1)


def test_another_table_is_refused_in_one_line(tmp_path: Path) -> None:
    pq.write_table(pa.table({"rank": [0], "step": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"lacks the columns optype, start_ts, duration, seq_id"):
        read_operations(str(tmp_path / "other.parquet"))
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_operations(str(tmp_path / "text.parquet"))
