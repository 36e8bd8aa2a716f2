"""Who else works: the host's word follows from priorities and from claims that nobody has to believe."""

from __future__ import annotations

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import pressure
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.pressure import Sight, Tenant
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.region import MODES, PRESSURES, GpuQuota
from hypothesis import given
from hypothesis import strategies as st

CARD = "GPU-11111111-2222-3333-4444-555555555555"
tenants = st.lists(
    st.builds(Tenant, slot=st.sampled_from("abcd"), priority=st.integers(0, 3), is_working=st.booleans()),
    max_size=4,
    unique_by=lambda tenant: tenant.slot,
)


def others(*working: int, idle: tuple[int, ...] = ()) -> list[Tenant]:
    found = [Tenant(f"w{number}", priority, True) for number, priority in enumerate(working)]
    return found + [Tenant(f"i{number}", priority, False) for number, priority in enumerate(idle)]


class TestTheWord:
    @pytest.mark.parametrize(
        ("mine", "tenants", "word"),
        [
            (1, [], "none"),
            (1, others(idle=(0, 1, 2)), "none"),
            (1, others(2), "lower"),
            (1, others(2, 3, idle=(0, 1)), "lower"),
            (1, others(1, 2), "equal"),
            (1, others(0, 1, 2), "higher"),
            (0, others(0, 5), "equal"),
            (0, others(5), "lower"),
        ],
    )
    def test_the_highest_that_works_decides(self, mine: int, tenants: list[Tenant], word: str) -> None:
        assert pressure.pressure_on("me", mine, tenants) == word

    def test_ones_own_work_is_no_pressure(self) -> None:
        assert pressure.pressure_on("me", 1, [Tenant("me", 0, True)]) == "none"

    @given(tenants=tenants, priority=st.integers(0, 3))
    def test_it_is_always_a_word_that_pages_know_and_never_unknown(self, tenants: list[Tenant], priority: int) -> None:
        assert pressure.pressure_on("a", priority, tenants) in set(PRESSURES) - {"unknown"}

    @given(tenants=tenants, liar=st.integers(0, 3), priority=st.integers(0, 3))
    def test_a_liar_holds_down_only_whom_its_work_would_hold_down(self, tenants: list[Tenant], liar: int, priority: int) -> None:
        """A claim of work never gives a higher priority than the page has, and never lifts anybody's limit."""
        strictness = {"none": 0, "lower": 1, "equal": 2, "higher": 3}
        quiet = pressure.pressure_on("a", priority, tenants)
        lying = pressure.pressure_on("a", priority, [*tenants, Tenant("liar", liar, True)])
        assert strictness[lying] >= strictness[quiet]
        most = "higher" if liar < priority else "equal" if liar == priority else "lower"
        assert strictness[lying] <= max(strictness[quiet], strictness[most])


class TestSights:
    def test_a_counter_that_grows_is_work_and_holds_for_a_while(self) -> None:
        sight = pressure.look(pressure.look(None, 0, 10.0), 500_000, 11.0)
        assert sight.is_working(11.0)
        idle = pressure.look(sight, 500_000, 12.0)
        assert idle.is_working(12.0)
        assert not idle.is_working(11.0 + pressure.HOLD_SECONDS)

    def test_a_blink_is_no_work(self) -> None:
        first = pressure.look(None, 0, 10.0)
        assert not pressure.look(first, 9_999, 11.0).is_working(11.0)
        assert pressure.look(first, 10_000, 11.0).is_working(11.0)

    def test_a_single_look_at_an_old_counter_tells_nothing_and_at_a_fresh_one_that_nobody_worked(self) -> None:
        assert not pressure.look(None, 5, 1.0).is_known
        assert pressure.look(None, 0, 1.0).is_known
        assert pressure.look(pressure.look(None, 5, 1.0), 5, 2.0).is_known

    def test_a_counter_that_went_back_is_no_work(self) -> None:
        before = pressure.look(None, 10**9, 1.0)
        assert not pressure.look(before, 0, 2.0).is_working(2.0)

    @given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6))
    def test_any_claims_are_taken(self, claims: list[int]) -> None:
        sight: Sight | None = None
        for second, claim in enumerate(claims):
            sight = pressure.look(sight, claim, float(second))
            assert sight.is_working(float(second)) in (True, False)


@pytest.mark.parametrize("cores", [0, 50, 100])
@pytest.mark.parametrize("mode", MODES)
def test_only_a_limit_that_neighbours_decide_listens(mode: str, cores: int) -> None:
    quota = GpuQuota(CARD, 0, cores, mode)
    assert pressure.listens(quota) == (mode in ("elastic", "priority") and cores == 50)
    assert pressure.is_measured(quota) == (mode != "off" and cores == 50)
