"""The crosspoint store: matchings, their changes, and the light that follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.light import Light, MemoryCrossbar, Ports
from emulator.loop import VirtualTimers
from emulator.ocs.build import Build
from emulator.ocs.matching import Busy, CrossConnects, Refusal, RefusedError, paired
from emulator.ocs.store import Store
from moefabric.ocs_profile import Profile, Settle

PORTS = Ports(4, 4)  # inputs 1..4, outputs 5..8
SETTLE_NS = 25_000_000
SETTLE = Settle(fixed_ns=SETTLE_NS)


def joined(*pairs: tuple[int, int]) -> CrossConnects:
    return CrossConnects(PORTS, dict(pairs))


@st.composite
def matchings(draw: st.DrawFn) -> CrossConnects:
    inputs = draw(st.lists(st.sampled_from(PORTS.input_numbers), unique=True))
    outputs = draw(st.permutations(PORTS.output_numbers))
    return joined(*zip(inputs, outputs, strict=False))


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        pytest.param([], [(1, 5)], [(1, 5)], id="onto-free-ports"),
        pytest.param([(2, 6)], [(1, 5)], [(1, 5), (2, 6)], id="others-are-kept"),
        pytest.param([(1, 5)], [(1, 5)], [(1, 5)], id="again-the-same"),
        pytest.param([(1, 6)], [(1, 5)], [(1, 5)], id="a-busy-input-moves"),
        pytest.param([(2, 5)], [(1, 5)], [(1, 5)], id="a-busy-output-moves"),
        pytest.param([(1, 6), (2, 5)], [(1, 5)], [(1, 5)], id="both-older-ones-give-way"),
        pytest.param([(1, 5), (2, 6)], [(1, 6), (2, 5)], [(1, 6), (2, 5)], id="two-swap"),
    ],
)
def test_add_joins_ports_and_older_cross_connects_give_way(
    before: list[tuple[int, int]], added: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    assert joined(*before).add(added) == joined(*after)


def test_a_switch_that_refuses_busy_ports_says_which_are_joined() -> None:
    with pytest.raises(RefusedError, match="busy: 1 is joined to 6, 2 is joined to 5") as refused:
        joined((1, 6), (2, 5), (3, 7)).add([(1, 5)], Busy.REFUSE)
    assert refused.value.kind is Refusal.CONFLICT


def test_adding_what_is_joined_already_is_not_busy() -> None:
    assert joined((1, 6)).add([(1, 6)], Busy.REFUSE) == joined((1, 6))


def test_only_replaces_everything() -> None:
    assert joined((1, 5), (2, 6)).only([(3, 5)]) == joined((3, 5))


def test_sub_parts_what_is_joined() -> None:
    assert joined((1, 5), (2, 6)).sub([(1, 5)]) == joined((2, 6))
    assert joined((1, 5), (2, 6)).sub_inputs([2]) == joined((1, 5))


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        pytest.param(
            lambda c: c.add([(5, 5)]), Refusal.NO_SUCH_PORT, "5: inputs are 1..4", id="output-as-input"
        ),
        pytest.param(
            lambda c: c.add([(1, 4)]), Refusal.NO_SUCH_PORT, "4: outputs are 5..8", id="input-as-output"
        ),
        pytest.param(
            lambda c: c.only([(0, 5)]), Refusal.NO_SUCH_PORT, "0: inputs are 1..4", id="port-nought"
        ),
        pytest.param(
            lambda c: c.only([(1, 9)]), Refusal.NO_SUCH_PORT, "9: outputs are 5..8", id="beyond-the-last"
        ),
        pytest.param(lambda c: c.add([(1, 5), (1, 6)]), Refusal.CONFLICT, "input 1 twice", id="input-twice"),
        pytest.param(
            lambda c: c.only([(1, 5), (2, 5)]), Refusal.CONFLICT, "output 5 twice", id="output-twice"
        ),
        pytest.param(
            lambda c: c.sub([(1, 6)]), Refusal.NOT_CONNECTED, "1 is not joined to 6", id="sub-elsewhere"
        ),
        pytest.param(lambda c: c.sub_inputs([3]), Refusal.NOT_CONNECTED, "not joined: 3", id="sub-unjoined"),
        pytest.param(
            lambda c: c.sub_inputs([9]), Refusal.NO_SUCH_PORT, "9: inputs are 1..4", id="sub-no-port"
        ),
        pytest.param(
            lambda _: paired([1, 2], [5]), Refusal.MISMATCH, "2 inputs for 1 outputs", id="unequal-lists"
        ),
    ],
)
def test_a_refusal_says_what_is_wrong(wrong: object, kind: Refusal, said: str) -> None:
    assert callable(wrong)
    with pytest.raises(RefusedError, match=said) as refused:
        wrong(joined((1, 5), (2, 6)))
    assert refused.value.kind is kind


def test_cross_connects_that_are_no_matching_do_not_exist() -> None:
    with pytest.raises(RefusedError, match="output 5 twice"):
        joined((1, 5), (2, 5))


def test_cross_connects_read_as_a_person_would_note_them() -> None:
    assert str(joined((2, 6), (1, 5))) == "1-5 2-6"
    assert str(joined()) == "nothing joined"


@given(matchings(), matchings())
def test_what_was_added_is_joined_and_stays_a_matching(before: CrossConnects, added: CrossConnects) -> None:
    after = before.add(list(added))
    assert {*added} <= {*after} <= {*before} | {*added}
    assert len({q for _, q in after}) == len(after)


@given(matchings())
def test_all_that_is_joined_can_be_parted(before: CrossConnects) -> None:
    assert before.sub(list(before)) == joined() == before.sub_inputs(list(before.joined))


def store(settle: Settle = SETTLE, now_ns: int = 0) -> tuple[Store, VirtualTimers]:
    timers = VirtualTimers(now_ns)
    return Store(MemoryCrossbar(PORTS), timers, Build(Profile(settle=settle))), timers


def lights(switch: Store) -> dict[int, Light]:
    return switch._crossbar.show()


@given(matchings(), matchings())
def test_only_what_moves_goes_dark(before: CrossConnects, target: CrossConnects) -> None:
    switch, timers = store()
    switch.only(list(before))
    timers.pass_ns(5_000_000_000)
    switch.only(list(target))
    for in_port, light in lights(switch).items():
        assert light.out_port == target.joined[in_port]
        kept = (in_port, light.out_port) in {*before}
        assert light.lit_at_ns == SETTLE_NS + (0 if kept else 5_000_000_000)


def test_an_unsettled_cross_connect_that_is_asked_for_again_settles_no_later() -> None:
    switch, timers = store()
    switch.add([(1, 5)])
    timers.pass_ns(10_000_000)
    switch.add([(1, 5), (2, 6)])
    assert lights(switch) == {1: Light(5, 25_000_000), 2: Light(6, 35_000_000)}
    assert switch.settled_at_ns == 35_000_000


def test_a_switch_without_light_has_settled() -> None:
    switch, _ = store(now_ns=7)
    switch.add([(1, 5)])
    switch.clear()
    assert (lights(switch), switch.settled_at_ns) == ({}, 0)
