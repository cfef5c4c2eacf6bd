"""Roles as values: who is what, and what each program finds in its environment."""

from __future__ import annotations

import json

import pytest

from firesteel.cluster.roles import Post, Role, cluster_spec, crew, place, program_environment
from firesteel.core.errors import PlanError, UnknownName


def test_posts_come_in_the_order_ps_chief_evaluator_workers() -> None:
    posts = crew(5, 1, "chief", has_evaluator=True)
    assert [str(post) for post in posts] == ["ps:0", "chief:0", "evaluator:0", "worker:0", "worker:1"]
    assert sum(post.trains for post in posts) == 3
    assert [str(post) for post in crew(2)] == ["worker:0", "worker:1"]
    assert [str(post) for post in crew(3, 2, "master")] == ["ps:0", "ps:1", "master:0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 2), "2 ps = 2"),
        ((0, 0), "num_executors=0"),
        ((2, 1, "chief", True), "1 ps \\+ 1 chief \\+ 1 evaluator = 3"),
        ((-1, 0), "num_executors"),
        ((2, -1), "num_ps"),
        ((2, 0.5), "num_ps"),
    ],
)
def test_nobody_left_to_train_is_an_error_with_the_sum(arguments: tuple[object, ...], message: str) -> None:
    world, servers, *more = arguments
    master = more[0] if more else None
    with pytest.raises(PlanError, match=message) as found:
        crew(world, servers, master, has_evaluator=len(more) > 1)  # type: ignore[arg-type]
    assert isinstance(found.value, ValueError)


def test_an_unknown_master_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="chief, master"):
        crew(2, 0, "boss")


def test_the_environment_of_each_node() -> None:
    posts = crew(5, 1, "chief", has_evaluator=True)
    places = [place("10.0.0.1", 7000 + number) for number in range(5)]
    spec = cluster_spec(posts, places)
    assert spec == {
        "ps": ["10.0.0.1:7000"],
        "chief": ["10.0.0.1:7001"],
        "evaluator": ["10.0.0.1:7002"],
        "worker": ["10.0.0.1:7003", "10.0.0.1:7004"],
    }
    last = program_environment(4, posts, spec, ("10.0.0.1", 9), ("0", "3"))
    assert json.loads(last["TF_CONFIG"] or "") == {"cluster": spec, "task": {"type": "worker", "index": 1}}
    group = {name: last[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert group == {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "9"}
    assert last["CUDA_VISIBLE_DEVICES"] == "0,3"
    server = program_environment(0, posts, spec, ("10.0.0.1", 9), ())
    assert json.loads(server["TF_CONFIG"] or "")["task"] == {"type": "ps", "index": 0}
    assert server["RANK"] is None  # it is no member of the group, and must not find another's number
    assert server["CUDA_VISIBLE_DEVICES"] == ""


def test_an_ipv6_address_has_brackets() -> None:
    assert place("fe80::1", 80) == "[fe80::1]:80"


def test_a_post_says_what_it_is() -> None:
    assert (str(Post("worker", 1)), Post("evaluator", 0).trains) == ("worker:1", False)


def test_threads_are_those_of_the_task() -> None:
    assert Role(0, 1, threads=3).environment()["OMP_NUM_THREADS"] == "3"
