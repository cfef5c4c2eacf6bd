"""What the engine relies on in a framework's bench and in a sync, as functions that raise where it does not hold.

No Spark and no second process: replicas are made side by side and compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from firesteel.core.ports import Framework, Sync
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.sync.solo import SoloGroup

__all__ = ["check_framework", "check_sync"]


def check_framework(framework: Framework, program: Program, batch: Batch, *, tolerance: float = 1e-6) -> None:
    """Check a bench with a program and a batch of at least two rows (features, labels).

    A bench whose replicas only score is checked for that; one that trains, for learning and resuming as well.

    Raises:
        AssertionError: naming the claim that does not hold.
    """
    assert rows_of(batch) >= 2, "give a batch of at least two rows"
    _rows_are_scored_apart(framework, program, batch, tolerance)
    if not hasattr(framework.replica(program, "cpu", 1), "backward"):
        return
    _gradients_add_up(framework, program, batch, tolerance)
    _no_rows_no_gradient(framework, program, batch)
    _weights_may_lie_elsewhere(framework, program, batch)
    _gradients_may_lie_elsewhere(framework, program, batch)
    _state_survives(framework, program, batch)
    _programs_have_their_state(framework, program, batch)
    _slices_make_the_whole(framework, program, batch, tolerance)


def check_sync(make: Callable[[], Sync], framework: Framework, program: Program, batch: Batch) -> None:
    """Check a sync in a group of one, where it must be as if there were none.

    ``make`` gives a new one each time: a sync has one life.

    Raises:
        AssertionError: naming the claim that does not hold.
    """
    alone, mine = _replica(framework, program), _replica(framework, program)
    mine.load(alone.state())
    sync, group = make(), SoloGroup()
    before = [weights.copy() for weights in mine.weights()]
    sync.join(mine, group)
    _same(mine.weights(), before, "joining alone changed the weights")
    for step in range(3):
        for replica in (alone, mine):
            replica.seed(step)
            replica.backward(batch, 1.0)
        alone.update()
        alone.schedule("batch")
        sync.commit(mine)
        sync.schedule(mine, "batch")
        _same(mine.weights(), alone.weights(), "a commit is not the program's own update")
    sync.settle(mine, rows_of(batch))
    _same(mine.weights(), alone.weights(), "settling alone changed the weights")
    state, own = sync.state(mine), sync.own(mine)
    other, again = _replica(framework, program), make()
    other.load(state)
    again.join(other, group)
    again.restore(other, [own], [rows_of(batch)])
    for replica, each in ((alone, None), (other, again)):
        replica.seed(9)
        replica.backward(batch, 1.0)
        replica.update() if each is None else each.commit(replica)
    _same(other.weights(), alone.weights(), "the next update differs after state, join and restore")
    for mark in mine.weights():
        mark[...] = 7
    mine.load_weights([np.full_like(weights, 7) for weights in mine.weights()])
    sync.adopt(mine)
    sync.settle(mine, 0)
    kept = _replica(framework, program)
    kept.load(sync.state(mine))
    _same(
        kept.weights(), [np.full_like(weights, 7) for weights in kept.weights()], "adopted weights are not in the state"
    )


def _same(found: Any, wanted: Any, claim: str) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=claim)


def _replica(framework: Framework, program: Program) -> Any:
    # As in another process: a program may hold the model itself.
    replica: Any = framework.replica(copy.deepcopy(program), "cpu", 1)
    replica.start(program.state)
    replica.seed(0)
    return replica


def _part(batch: Batch, begin: int, end: int) -> Batch:
    return {name: values[begin:end] for name, values in batch.items()}


def _rows_are_scored_apart(framework: Framework, program: Program, batch: Batch, tolerance: float) -> None:
    replica: Any = framework.replica(program, "cpu", 1)
    if hasattr(replica, "start"):
        replica.start(program.state)
    rows = rows_of(batch)
    cut = max(1, rows // 3)
    parts = [replica.forward(_part(batch, *bounds)) for bounds in ((0, cut), (cut, rows))]
    for name, whole in replica.forward(batch).items():
        assert len(whole) == rows, f"output {name} of {rows} rows has {len(whole)}"
        np.testing.assert_allclose(
            np.concatenate([part[name] for part in parts]),
            whole,
            atol=tolerance,
            rtol=tolerance,
            err_msg="outputs of two parts are not those of the whole batch, row by row",
        )


def _gradients_add_up(framework: Framework, program: Program, batch: Batch, tolerance: float) -> None:
    whole = _replica(framework, program)
    whole.backward(batch, 1.0)
    rows = rows_of(batch)
    cut = max(1, rows // 3)
    first, second = _replica(framework, program), _replica(framework, program)
    first.load(whole.state())
    second.load(whole.state())
    first.backward(_part(batch, 0, cut), cut / rows)
    second.backward(_part(batch, cut, rows), (rows - cut) / rows)
    for together, one, other in zip(whole.gradients(), first.gradients(), second.gradients(), strict=True):
        # The tail of a buffer may count something else than gradients: which parameters have one, the loss.
        size = min(len(together), sum(len(weights) for weights in whole.weights()))
        np.testing.assert_allclose(
            one[:size] + other[:size],
            together[:size],
            atol=tolerance,
            err_msg="gradients of two parts, each scaled by its share, do not add up to the whole batch's",
        )


def _no_rows_no_gradient(framework: Framework, program: Program, batch: Batch) -> None:
    replica = _replica(framework, program)
    assert replica.backward(_part(batch, 0, 0), 0.0) is None, "a backward of no rows has a loss"
    for gradient in replica.gradients():
        assert not np.any(gradient), "a backward of no rows leaves a gradient"


def _gradients_may_lie_elsewhere(framework: Framework, program: Program, batch: Batch) -> None:
    """As at a parameter server, which never sees rows: another replica has laid them down."""
    learner, server = _replica(framework, program), _replica(framework, program)
    learner.backward(batch, 1.0)
    server.backward(_part(batch, 0, 0), 0.0)
    server.load(learner.state())
    use = server.bind_gradients([gradient.copy() for gradient in learner.gradients()])
    if use is None:
        return  # then they are copied
    use()
    learner.update()
    server.update()
    _same(server.weights(), learner.weights(), "an update reads other gradients than those in the buffers bound to it")


def _weights_may_lie_elsewhere(framework: Framework, program: Program, batch: Batch) -> None:
    """As in a replica beside a parameter server, which lays the weights down where they are used."""
    apart, bound = _replica(framework, program), _replica(framework, program)
    bound.backward(_part(batch, 0, 0), 0.0)  # some models have their shapes from the first batch
    buffers = [np.zeros_like(array) for array in bound.weights()]
    if not bound.bind_weights(buffers):
        return  # then they are copied
    for replica in (apart, bound):
        replica.backward(batch, 1.0)
        replica.update()
    _same(buffers, apart.weights(), "an update does not reach the buffers that weights were bound to")
    for buffer, array in zip(buffers, _replica(framework, program).weights(), strict=True):
        buffer[:] = array
    for name, values in _replica(framework, program).forward(batch).items():
        np.testing.assert_array_equal(
            bound.forward(batch)[name], values, err_msg="weights written into bound buffers are not used"
        )


def _state_survives(framework: Framework, program: Program, batch: Batch) -> None:
    replica = _replica(framework, program)
    replica.backward(batch, 1.0)
    replica.update()
    other = _replica(framework, program)
    other.load(replica.state())
    for name, values in replica.forward(batch).items():
        np.testing.assert_array_equal(other.forward(batch)[name], values, err_msg="outputs differ after state and load")
    for mine in (replica, other):
        mine.seed(1)
        mine.backward(batch, 1.0)
        mine.update()
    for values, again in zip(replica.weights(), other.weights(), strict=True):
        np.testing.assert_array_equal(again, values, err_msg="the next update differs after state and load")


def _programs_have_their_state(framework: Framework, program: Program, batch: Batch) -> None:
    trained = _replica(framework, program)
    trained.backward(batch, 1.0)
    trained.update()
    state = {"model": trained.state()["model"]}
    scoring: Any = framework.replica(replace(copy.deepcopy(program), state=state), "cpu", 1)
    for name, values in trained.forward(batch).items():
        claim = "a replica does not begin with its program's state: framework.replica has to load it"
        np.testing.assert_allclose(scoring.forward(batch)[name], values, rtol=1e-6, atol=1e-6, err_msg=claim)


def _slices_make_the_whole(framework: Framework, program: Program, batch: Batch, tolerance: float) -> None:
    whole = _replica(framework, program)
    bounds = whole.bounds(0, 2)
    if bounds is None:
        return  # this optimizer does not work on slices, and says so
    parts = [_replica(framework, program) for _ in range(2)]
    start = whole.state()
    for rank, part in enumerate(parts):
        part.load(start)
        part.take_slice(part.bounds(rank, 2))
    for replica in (whole, *parts):
        replica.seed(0)
        replica.backward(batch, 1.0)
        replica.update()
    for index, values in enumerate(whole.weights()):
        together = np.array(values)
        for rank, part in enumerate(parts):
            begin, end = part.bounds(rank, 2)[index]
            together[begin:end] = part.weights()[index][begin:end]
        np.testing.assert_allclose(together, values, atol=tolerance, err_msg="two slices do not make the whole update")
