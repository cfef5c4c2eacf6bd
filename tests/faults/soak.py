"""Kill at random for some minutes, and check after every fit that nothing was lost: ``make soak``.

    make soak SOAK_ARGS="--minutes 10 --seed 7"

Each fit meets one to three faults, in different forms of the gang. What is checked is what the tests check: every row
once per epoch, the undisturbed run's weights, no process, port or file left. The seed is printed; the same seed makes
the same faults.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.conftest import Cluster

KILLS = ("kill child", "kill stem", "kill worker", "kill executor", "terminate child", "terminate worker")
DEADLY = (*KILLS, "exit", "segfault", "abort")
KINDS = (*DEADLY, "drop connection", "delay", "hang", "freeze worker")
CONF = {"spark.firesteel.stallTimeoutSeconds": "10", "spark.firesteel.heartbeatTimeoutSeconds": "3"}
AT_STEPS = ("step", "agree", "update", "commit")
ELSEWHERE = ("wake", "join", "restore", "epoch", "validate", "checkpoint", "result")


def draw(dice: random.Random) -> list[dict[str, Any]]:
    """One to three faults, one for each form of the gang."""
    faults = []
    for generation in range(dice.choice((1, 1, 1, 2, 3))):
        fault = {"kind": dice.choice(KINDS), "rank": dice.randrange(2), "generation": generation}
        if dice.random() < 0.7:
            fault |= {"moment": dice.choice(AT_STEPS), "step": dice.randrange(45), "seconds": dice.random() * 3}
        else:
            fault |= {"moment": dice.choice(ELSEWHERE)}
        if fault["moment"] == "commit":
            fault.pop("step")
        faults.append(fault)
    return faults


def complaint(found: dict[str, Any], whole: dict[str, Any]) -> str | None:
    """What is wrong with a fit, in one line."""
    if found["error"]:
        return f"it raised {found['error']['text']}"
    if found["rows"] != whole["rows"]:
        return "a row was lost, or counted twice"
    if found["weights"] != whole["weights"]:
        return "the weights are not the undisturbed run's"
    if found["left"]:
        return f"it left something behind: {found['left']}"
    return None


def main() -> int:
    """Returns 1 when a fit went wrong."""
    parser = argparse.ArgumentParser(description="Kill at random, and check that nothing was lost.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}: make soak SOAK_ARGS='--minutes {options.minutes:g} --seed {seed}'", flush=True)
    dice = random.Random(seed)
    wrong = fits = losses = 0
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        fixed: dict[str, Any] = {"checkpoint_every": 10, "validate": True}
        whole = cluster.train(**fixed)
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            faults = draw(dice)
            found = cluster.train(*faults, conf=CONF, **fixed)
            fits += 1
            losses += len(found["recoveries"])
            again = [loss["resumed"] - loss["noticed"] for loss in found["recoveries"] if loss["resumed"]]
            slowest = max([slowest, *again])
            bad = complaint(found, whole)
            wrong += bad is not None
            names = " + ".join(
                f"{f['kind']} of {f['rank']} at {f['moment']} {f.get('step', '')}".strip() for f in faults
            )
            times = ", ".join(f"{seconds:.1f}" for seconds in again)
            print(
                f"{fits:4d}  {'WRONG: ' + bad if bad else 'right'}  {names}  training again after [{times}] s",
                flush=True,
            )
        cluster.close()
    print(f"{fits} fits, {losses} losses got over, slowest {slowest:.1f} s; {wrong} went wrong; seed {seed}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
