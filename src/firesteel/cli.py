"""The command line: ``firesteel doctor``, ``firesteel cluster`` and ``firesteel --version``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from firesteel.cluster import standalone
from firesteel.cluster.doctor import Finding, can_train, examine
from firesteel.core.errors import FiresteelError

__all__ = ["format_findings", "main"]

_MARKS = {"ok": "  ", "note": "- ", "problem": "! "}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: for ``doctor`` 0 where training is possible, else 1."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        _parser().print_help(sys.stderr)
        return 2
    if options.command == "cluster":
        return _cluster(options)
    findings = examine(run_spark=options.spark)
    if options.json:
        print(json.dumps({"ok": can_train(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(format_findings(findings))
    return 0 if can_train(findings) else 1


def _cluster(options: argparse.Namespace) -> int:
    """Start, stop or show the standalone Spark cluster of this machine; 1 where that failed, or none runs."""
    try:
        if options.action == "start":
            found = standalone.start(
                options.workers, options.cores, options.memory, host=options.host, port=options.port
            )
            print(found.master)
            print(f"{found.workers} workers of {options.cores} cores; logs in {found.folder}", file=sys.stderr)
            return 0
        there = standalone.stop() if options.action == "stop" else standalone.running()
    except FiresteelError as error:
        print(f"firesteel: {error}", file=sys.stderr)
        return 1
    if there is None:
        print("no cluster runs here: firesteel cluster start starts one", file=sys.stderr)
        return 1
    print(f"{there.master} stopped" if options.action == "stop" else there.master)
    return 0


def format_findings(findings: Sequence[Finding]) -> str:
    """Lay findings out as a table, advice under the row that needs it, and a verdict as the last line."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.status]}{finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            lines.append(f"  {'':<{width}}  -> {finding.advice}")
    problems = [finding.name for finding in findings if finding.status == "problem"]
    verdict = f"Training is not possible yet: {', '.join(problems)}." if problems else "Training is possible here."
    return "\n".join([*lines, "", verdict])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="firesteel", description="Deep learning where the data already is: on Spark.")
    parser.add_argument("--version", action="version", version=f"firesteel {_own_version()}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    doctor = commands.add_parser("doctor", help="what is installed here, what is missing, what to do about it")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--spark", action="store_true", help="also start Spark and run one job through a Python worker")
    cluster = commands.add_parser("cluster", help="a standalone Spark cluster on this machine, for trying things out")
    actions = cluster.add_subparsers(dest="action", metavar="action", required=True)
    start = actions.add_parser("start", help="start a master and workers; prints the master's URL")
    start.add_argument("--workers", type=int, default=2, help="how many workers (2)")
    start.add_argument("--cores", type=int, default=1, help="cores of each (1)")
    start.add_argument("--memory", default="2g", help="memory of each (2g)")
    start.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    start.add_argument("--port", type=int, default=standalone.DEFAULT_PORT, help="the master's port (7077; 0: any)")
    actions.add_parser("stop", help="stop it")
    actions.add_parser("status", help="print the URL of the master that runs")
    return parser


def _own_version() -> str:
    try:
        return version("firesteel")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
