"""Runs in the environment of HolisticTraceAnalysis: files on stdin, figures on stdout, both as JSON.

It imports nothing of ours: the other environment need not have it. Python 3.10 suffices.
"""

import contextlib
import json
import sys
import typing


def main() -> None:
    """One job."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        import warnings

        warnings.simplefilter("ignore")
        from importlib.metadata import PackageNotFoundError, version

        from hta.trace_analysis import TraceAnalysis

        said = "unknown"
        for name in ("traceinsight", "HolisticTraceAnalysis"):
            with contextlib.suppress(PackageNotFoundError):
                said = f"{name} {version(name)}"
                break
        ranks = []
        for rank, path in asked["files"].items():
            ranks.append(one(TraceAnalysis, int(rank), path, asked["include_last_step"]))
    json.dump({"version": said, "ranks": ranks}, sys.stdout)


def one(analysis: typing.Any, rank: int, path: str, include_last: bool) -> "dict[str, typing.Any]":
    """One rank by itself: what fails for one must not take the others with it."""
    try:
        job = analysis(trace_files={rank: path}, trace_dir="/", include_last_profiler_step=include_last)
        overlap = job.get_comm_comp_overlap(visualize=False).to_dict("records")[0]
        parts = job.get_temporal_breakdown(visualize=False).to_dict("records")[0]
        frame = job.t.traces[rank]
        ids = [i for i, name in enumerate(job.t.symbol_table.get_sym_table()) if name in ("cpu_op", "user_annotation")]
        foreign = frame[frame["stream"].ne(-1) & frame["cat"].isin(ids)]
        percent = float(overlap["comp_comm_overlap_pctg"])
        return {
            "rank": rank,
            "overlap_percent": None if percent != percent else percent,
            "compute_us": float(parts["compute_time(us)"]),
            "idle_us": float(parts["idle_time(us)"]),
            "span_us": float(parts["kernel_time(us)"]),
            "cpu_rows": len(foreign),
            "error": None,
        }
    except Exception as error:  # whatever it raises is its answer
        return {"rank": rank, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


if __name__ == "__main__":
    main()
