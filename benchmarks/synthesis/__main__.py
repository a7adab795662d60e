"""`python -m benchmarks.synthesis --framework megatron --layout tp2-pp2-dp2 --level b --out DIR`."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import FRAMEWORKS, LEVELS, MODELS, Spec, Writing


def _options(words: list[str]) -> tuple[tuple[str, Any], ...]:
    """``name=value`` with the value as JSON, else text."""
    found = []
    for word in words:
        name, _, text = word.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found.append((name, value))
    return tuple(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthesis", description=__doc__)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="megatron")
    parser.add_argument("--layout", required=True, help="tp2-cp1-pp4-dp2[-ep2][-vp2][-m8][-mbs1][-rep2][-zero1][-sp]")
    parser.add_argument("--out", required=True)
    parser.add_argument("--level", choices=LEVELS, default="a")
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--schedule")
    parser.add_argument("--cp-kind")
    parser.add_argument("--recompute", choices=("none", "full"), default="none")
    parser.add_argument("--no-sp", action="store_true")
    parser.add_argument("--ranks", help="0,8,16: write only these")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torch", default="2.9")
    parser.add_argument("--library", choices=("nccl-2.27", "nccl-2.17", "rccl"), default="nccl-2.27")
    parser.add_argument("--no-step-marks", action="store_true")
    parser.add_argument("--no-autograd-marks", action="store_true")
    parser.add_argument("--no-range-marks", action="store_true")
    parser.add_argument("--integer-us", action="store_true")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    changes: dict[str, Any] = {"seed": args.seed, "recompute": args.recompute, "options": _options(args.option)}
    if args.model:
        changes["model"] = MODELS[args.model]
    if args.layers:
        model = changes.get("model", MODELS["moe" if "-ep" in args.layout else "small"])
        changes["model"] = replace(model, layers=args.layers)
    for name in ("schedule", "cp_kind", "steps"):
        if getattr(args, name):
            changes[name] = getattr(args, name)
    if args.no_sp:
        changes["sp"] = False
    if args.ranks:
        changes["ranks"] = tuple(int(r) for r in args.ranks.split(","))
    changes["writing"] = Writing(
        level=args.level,
        torch=args.torch,
        library=args.library,
        step_marks=not args.no_step_marks,
        autograd_marks=not args.no_autograd_marks,
        range_marks=not args.no_range_marks,
        integer_us=args.integer_us,
    )
    print(generate(Spec.parse(args.framework, args.layout, **changes), args.out))


if __name__ == "__main__":
    main()
