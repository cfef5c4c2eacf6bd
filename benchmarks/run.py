"""Measure the cases one after the other and print, or write into a page, what came out.

make bench        make bench-quick        make bench BENCH_ARGS="--cases scoring feed --repeats 3"
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import time
import traceback
from pathlib import Path

from benchmarks.bench import ROOT, Bench
from benchmarks.facts import facts
from benchmarks.harness import measure
from benchmarks.report import Report

CASES = (
    "gang_up", "training", "keras", "graphs", "commits", "first_epoch", "feed", "scoring", "frames", "openvino",
    "growth", "shards", "tfrecord", "parameter_server", "pipeline", "tfcluster", "peers",
)  # fmt: skip
# What the others are measured by; they take minutes, make environments, have a session of their own for each turn, or
# say nothing of few rows: commit points and growth.
_QUICK = ("gang_up", "training", "first_epoch", "feed", "scoring")


def main() -> None:
    """The command line; exits with 1 when a case could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="How fast Firesteel is.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, two rounds, the core alone")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: all")
    parser.add_argument("--repeats", type=int, help="rounds; default 5, quick 2")
    parser.add_argument("--scale", type=float, help="multiplies all row counts; default 1, quick 0.2")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the results into this Markdown page")
    options = parser.parse_args()
    repeats = options.repeats or (2 if options.quick else 5)
    scale = options.scale or (0.2 if options.quick else 1.0)
    chosen = options.cases or [name for name in CASES if name in _QUICK or not options.quick]

    command = shlex.join(["python", "-m", "benchmarks.run", *sys.argv[1:]])
    report = Report(command, time.strftime("%Y-%m-%d"), repeats, facts())
    begin = time.monotonic()
    with Bench.opened(scale, options.quick) as bench:
        for place, name in enumerate(chosen):
            try:
                _measure(name, bench, repeats, report, begin)
                bench.clear()
            except KeyboardInterrupt:  # an hour's figures are worth keeping without the last ones
                report.failures[", ".join(chosen[place:])] = "interrupted"
                break
    print(f"\n{report.markdown()}")
    if options.write is not None:
        report.write(ROOT / options.write)
    sys.exit(1 if report.failures else 0)


def _measure(name: str, bench: Bench, repeats: int, report: Report, begin: float) -> None:
    for case in importlib.import_module(f"benchmarks.cases.{name}").cases(bench):
        print(f"{case.title} ({time.monotonic() - begin:.0f} s)", flush=True)
        try:
            report.measured.append(measure(case, repeats, lambda line: print(line, flush=True)))
        except Exception as error:  # noqa: BLE001 - the other cases are worth measuring all the same
            traceback.print_exc()
            report.failures[case.title] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"


if __name__ == "__main__":
    main()
