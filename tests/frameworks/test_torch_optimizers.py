"""Torch optimizers built from values do BigDL's arithmetic, and slices of a parameter move as the whole does."""

import copy
import json

import numpy as np
import pytest
import torch

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from firesteel.core.schedules import Default, Plateau, Poly, SequentialSchedule, Step, Warmup
from firesteel.frameworks.torch import optimizers as bench

GRADIENTS = torch.randn(6, 37, generator=torch.Generator().manual_seed(1))
START = torch.randn(37, generator=torch.Generator().manual_seed(2))


def run(method: OptimMethod, start: torch.Tensor, gradients) -> list[torch.Tensor]:
    """The parameter after each update, with the method's own schedule."""
    parameter = torch.nn.Parameter(start.clone())
    optimizer = bench.build(method, [parameter])
    scheduler = bench.build_scheduler(method, optimizer)
    return list(updates(optimizer, parameter, gradients, scheduler))


def updates(optimizer, parameter, gradients, scheduler=None):
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        yield parameter.detach().clone()


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (SGD(0.1, momentum=0.9), [0.9, 0.8, 0.7]),
        (SGD(0.1, momentum=0.9, dampening=0), [0.9, 0.71, 0.439]),
        (SGD(0.1, learningrate_decay=1), [0.9, 0.85, 0.816667]),
        (SGD(0.1, leaningrate_schedule=Poly(2, 4)), [0.9, 0.84375, 0.81875, 0.8125, 0.8125, 0.8125]),
        (Adagrad(0.1), [0.9, 0.829289, 0.771554]),
        (Adam(0.1), [0.9, 0.8, 0.7]),
        (ParallelAdam(0.1, parallel_num=2), [0.9, 0.8, 0.7]),
        (Ftrl(0.1), [0.603142, 0.534136]),
        (Ftrl(0.1, l1_regularization_strength=0.5), [0.555469, 0.486463]),
    ],
    ids=repr,
)
def test_the_specifications_numbers(method: OptimMethod, expected: list[float]) -> None:
    seen = run(method, torch.ones(1), torch.ones(len(expected), 1))
    assert [value.item() for value in seen] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (SGD(0.1, weightdecay=0.01), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01)),
        (
            SGD(0.1, momentum=0.9, dampening=0, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True),
        ),
        (Adagrad(0.1, 0.3, 0.01), lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.3, weight_decay=0.01)),
        (RMSprop(0.1, decayrate=0.8), lambda p: torch.optim.RMSprop(p, 0.1, alpha=0.8)),
        (Adadelta(), lambda p: torch.optim.Adadelta(p, 1.0, rho=0.9, eps=1e-10)),
        (Adamax(), lambda p: torch.optim.Adamax(p, 0.002, eps=1e-38)),
    ],
    ids=lambda value: repr(value) if isinstance(value, OptimMethod) else "",
)
def test_torchs_own_where_they_are_the_same(method: OptimMethod, same) -> None:
    parameter = torch.nn.Parameter(START.clone())
    theirs = list(updates(same([parameter]), parameter, GRADIENTS))
    for ours, expected in zip(run(method, START, GRADIENTS), theirs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)


def test_adam_adds_epsilon_before_the_correction() -> None:
    """With a large epsilon the two places differ plainly; torch's Adam is the other one."""
    rate, beta1, beta2, epsilon = 0.1, 0.8, 0.95, 0.5
    weight, first, second = START.double().numpy(), 0.0, 0.0
    seen = run(Adam(rate, 1.0, beta1, beta2, epsilon), START.double(), GRADIENTS.double())
    for n, gradient in enumerate(GRADIENTS.double().numpy()):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        correction = np.sqrt(1 - beta2 ** (n + 1)) / (1 - beta1 ** (n + 1))
        weight = weight - rate / (1 + n) * correction * first / (np.sqrt(second) + epsilon)
        np.testing.assert_allclose(seen[n].numpy(), weight, rtol=1e-12)
    parameter = torch.nn.Parameter(START.double())
    theirs = torch.optim.Adam([parameter], rate, (beta1, beta2), epsilon)
    assert not torch.allclose(next(updates(theirs, parameter, GRADIENTS.double())), seen[0])


def test_adam_with_the_usual_epsilon_is_torchs_within_epsilon() -> None:
    parameter = torch.nn.Parameter(START.clone())
    theirs = list(updates(torch.optim.Adam([parameter]), parameter, GRADIENTS))
    torch.testing.assert_close(run(Adam(), START, GRADIENTS)[-1], theirs[-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("l1", "l2", "shrinkage", "power"), [(0, 0, 0, -0.5), (0.9, 0.2, 0.3, -0.7), (0.9, 0, 0, 0)])
def test_ftrl_by_hand(l1: float, l2: float, shrinkage: float, power: float) -> None:
    rate, start, gradients = 0.1, START.double(), GRADIENTS.double()
    seen = run(Ftrl(rate, power, 0.2, l1, l2, shrinkage), start, gradients)
    weight, total, linear = start.numpy(), np.full(37, 0.2), np.zeros(37)
    for n, gradient in enumerate(gradients.numpy()):
        gradient = gradient + 2 * shrinkage * weight
        after = total + gradient**2
        linear = linear + gradient + (total**-power - after**-power) / rate * weight
        weight = np.where(np.abs(linear) <= l1, 0, (np.sign(linear) * l1 - linear) / (after**-power / rate + 2 * l2))
        total = after
        np.testing.assert_allclose(seen[n].numpy(), weight, rtol=1e-10)
    if l1:
        assert (seen[-1] == 0).any()


def test_ftrl_rests_when_its_rate_is_0() -> None:
    seen = run(Ftrl(0.1, learningrate_schedule=Poly(1, 1)), START, GRADIENTS[:3])
    assert torch.equal(seen[0], seen[2])


def test_ftrl_with_nothing_accumulated_makes_no_nan() -> None:
    assert run(Ftrl(0.1, initial_accumulator_value=0), torch.ones(2), torch.zeros(2, 2))[-1].tolist() == [0, 0]


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_factors_for_every_element(momentum: float, nesterov: bool) -> None:
    """An element with factor f and decay d moves as one of torch's SGD with rate f·lr and weight decay d does."""
    factors, decays = [0.0, 0.5, 1.0, 2.0, 1.0], [0.1, 0.0, 0.3, 0.2, 0.0]
    dampening = 0.0 if nesterov else None
    start, gradients = START[:5].double(), GRADIENTS[:, :5].double()
    settings = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    seen = run(SGD(0.1, **settings, learningrates=factors, weightdecays=decays), start, gradients)
    for i, (factor, decay) in enumerate(zip(factors, decays, strict=True)):
        alone = run(SGD(0.1 * factor, **settings, weightdecay=decay), start[i : i + 1], gradients[:, i : i + 1])
        torch.testing.assert_close(torch.stack(seen)[:, i : i + 1], torch.stack(alone))


def test_factors_are_dealt_out_in_the_order_of_the_parameters() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = bench.build(SGD(1.0, learningrates=[1, 2, 3, 4, 5, 6, 7]), parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [parameter.tolist() for parameter in parameters] == [[[-1, -2], [-3, -4]], [-5, -6, -7]]


def test_factors_alone_leave_the_common_weight_decay() -> None:
    seen = run(SGD(0.1, weightdecay=0.5, learningrates=[1.0, 2.0]), torch.ones(2), torch.zeros(1, 2))
    torch.testing.assert_close(seen[0], torch.tensor([0.95, 0.9]))


def test_too_few_factors_and_lost_ones_are_errors() -> None:
    with pytest.raises(PlanError, match="2 factors for 3 parameter elements"):
        bench.build(SGD(learningrates=[1, 2]), [torch.nn.Parameter(torch.zeros(3))])
    optimizer = bench.build(SGD(learningrates=[1]), [torch.nn.Parameter(torch.zeros(1))])
    other = torch.nn.Parameter(torch.zeros(1))
    other.grad = torch.ones(1)
    optimizer.param_groups[0]["params"] = [other]
    with pytest.raises(KeyError, match="rate_factor"):
        optimizer.step()


METHODS = [
    SGD(0.1),
    SGD(0.1, 0.5, 0.01, 0.9),
    SGD(0.1, momentum=0.9, learningrates=np.linspace(0, 2, 37), weightdecays=np.linspace(0, 0.1, 37)),
    Adam(0.1),
    Adagrad(0.1, weightdecay=0.1),
    RMSprop(),
    Adadelta(),
    Adamax(),
    Ftrl(0.1, -0.5, 0.1, 0.1, 0.1, 0.1),
]
TORCHS_OWN = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Rprop,
    torch.optim.ASGD,
]
BUILDERS = [
    *[lambda params, start, stop, method=method: bench.build(method.part(start, stop), params) for method in METHODS],
    *[lambda params, start, stop, kind=kind: kind(params, lr=0.1) for kind in TORCHS_OWN],
    lambda params, start, stop: torch.optim.Adam(params, amsgrad=True, weight_decay=0.1),
    lambda params, start, stop: torch.optim.RMSprop(params, centered=True, momentum=0.5),
    lambda params, start, stop: torch.optim.NAdam(params, decoupled_weight_decay=True, weight_decay=0.1),
]


def whole_and_slices(build) -> tuple[torch.Tensor, torch.Tensor]:
    """The updated parameter, as a whole and in slices of 20 and 17: no multiples of a vector register."""
    moved = []
    for start, stop in ((0, 37), (0, 20), (20, 37)):
        parameter = torch.nn.Parameter(START[start:stop].clone())
        optimizer = build([parameter], start, stop)
        assert bench.is_elementwise(optimizer)
        moved.append(list(updates(optimizer, parameter, GRADIENTS[:, start:stop]))[-1])
    return moved[0], torch.cat(moved[1:])


@pytest.mark.parametrize("build", BUILDERS)
def test_slices_move_as_the_whole(build) -> None:
    """Bit for bit: the sharded sync rests on it."""
    whole, slices = whole_and_slices(build)
    assert torch.equal(slices, whole)


def test_slices_of_ftrl_with_another_power_move_as_the_whole_but_for_the_last_bit() -> None:
    whole, slices = whole_and_slices(lambda params, start, stop: bench.build(Ftrl(0.1, -0.7), params))
    torch.testing.assert_close(slices, whole, rtol=1e-6, atol=1e-7)


def test_the_shape_does_not_matter() -> None:
    for method in METHODS:
        flat = run(method, START, GRADIENTS)[-1]
        column = run(method, START.reshape(37, 1), GRADIENTS.reshape(6, 37, 1))[-1]
        assert torch.equal(column.flatten(), flat), method


def test_what_is_not_known_to_be_elementwise_is_not() -> None:
    class Mine(torch.optim.SGD):
        pass

    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    assert not bench.is_elementwise(Mine([parameter], 0.1))
    assert not bench.is_elementwise(bench.build(LBFGS(), [parameter]))
    for name in ("Adafactor", "Muon", "SparseAdam"):
        if hasattr(torch.optim, name):
            assert not bench.is_elementwise(getattr(torch.optim, name)([parameter]))


def test_lbfgs_has_its_settings_and_finds_a_minimum() -> None:
    parameter = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = bench.build(LBFGS(max_iter=7, tolfun=1e-6, tolx=1e-8, ncorrection=5), [parameter])
    (group,) = optimizer.param_groups
    names = ("lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn")
    assert [group[name] for name in names] == [1.0, 7, 8, 1e-6, 1e-8, 5, None]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((parameter - torch.tensor([1.0, 2.0])) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    torch.testing.assert_close(parameter.detach(), torch.tensor([1.0, 2.0]))


def test_a_closure_gives_the_loss_and_a_parameter_without_gradient_stays() -> None:
    moving, still = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = bench.build(Adam(0.1), [moving, still])

    def closure() -> torch.Tensor:
        loss = (moving**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert moving.item() == pytest.approx(0.9)
    assert still.item() == 1.0


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_state_survives_saving(method: OptimMethod) -> None:
    straight = run(method, START, GRADIENTS)
    parameter = torch.nn.Parameter(START.clone())
    optimizer = bench.build(method, [parameter])
    scheduler = bench.build_scheduler(method, optimizer)
    list(updates(optimizer, parameter, GRADIENTS[:3], scheduler))

    again = torch.nn.Parameter(parameter.detach().clone())
    resumed = bench.build(method, [again])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    rescheduled = bench.build_scheduler(method, resumed)
    if rescheduled is not None:
        rescheduled.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert torch.equal(list(updates(resumed, again, GRADIENTS[3:], rescheduled))[-1], straight[-1])


def test_a_constant_rate_has_no_scheduler() -> None:
    for method in (SGD(), Adadelta(), SGD(learningrate_schedule=Default()), LBFGS()):
        assert bench.build_scheduler(method, bench.build(method, [torch.nn.Parameter(torch.zeros(1))])) is None


def test_the_scheduler_sets_the_rate_of_the_next_update() -> None:
    method = SGD(0.1, leaningrate_schedule=SequentialSchedule(5).add(Warmup(0.1), 2).add(Step(2, 0.5), 10))
    optimizer = bench.build(method, [torch.nn.Parameter(torch.zeros(1))])
    scheduler = bench.build_scheduler(method, optimizer)
    assert not scheduler.needs_metric
    seen = []
    for _ in range(7):
        seen.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.15, 0.15, 0.075])


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("cooldown", [0, 2])
def test_plateau_is_torchs(mode: str, cooldown: int) -> None:
    plateau = Plateau("score", 0.3, 2, mode, 0.05, cooldown, 0.001)
    method = SGD(0.1, learningrate_schedule=plateau)
    ours, theirs = (bench.build(method, [torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
    scheduler = bench.build_scheduler(method, ours)
    assert scheduler.needs_metric
    assert scheduler.monitor == "score"
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, mode, 0.3, 2, threshold=0.05, threshold_mode="abs", cooldown=cooldown, min_lr=0.001
    )
    values = [float("nan"), float("inf"), *np.random.default_rng(3).normal(size=60).cumsum()]
    for n, value in enumerate(values):
        scheduler.step(value)
        reference.step(value)
        assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"], n
        saved = json.loads(json.dumps(scheduler.state_dict()))
        scheduler = bench.build_scheduler(method, ours)
        scheduler.load_state_dict(saved)
    assert ours.param_groups[0]["lr"] < 0.1


def test_a_method_of_nobodys_is_refused() -> None:
    class Stranger(OptimMethod):
        pass

    with pytest.raises(UnsupportedError, match="Stranger"):
        bench.build(Stranger(), [torch.nn.Parameter(torch.zeros(1))])
