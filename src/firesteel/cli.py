"""The command line: ``firesteel doctor`` and ``firesteel --version``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from firesteel.cluster.doctor import Finding, can_train, examine

__all__ = ["format_findings", "main"]

_MARKS = {"ok": "  ", "note": "- ", "problem": "! "}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: for ``doctor`` 0 where training is possible, else 1."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        _parser().print_help(sys.stderr)
        return 2
    findings = examine(run_spark=options.spark)
    if options.json:
        print(json.dumps({"ok": can_train(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(format_findings(findings))
    return 0 if can_train(findings) else 1


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
    return parser


def _own_version() -> str:
    try:
        return version("firesteel")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
