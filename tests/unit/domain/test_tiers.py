"""The tier file: read once, hashed alike everywhere, every mistake told with its path and its arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TierError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.strategies import TIERS, catalogues, default_variables


def problems_of(variables: Any) -> dict[str, str]:
    with pytest.raises(TierError) as raised:
        Catalogue.from_vars(variables)
    found = {problem["path"]: problem["message"] for problem in raised.value.details["problems"]}
    assert all(path in str(raised.value) for path in found)
    return found


def with_tier(name: Any, **body: Any) -> dict[str, Any]:
    return default_variables(tiers={**TIERS, name: {**TIERS.get(name, {}), **body}})


class TestTheCanonicalForm:
    @given(catalogues())
    def test_reading_the_canonical_form_gives_the_same_catalogue(self, catalogue: Catalogue) -> None:
        assert Catalogue.from_dict(catalogue.as_dict()) == catalogue
        assert Catalogue.from_json(catalogue.as_json()) == catalogue
        assert Catalogue.from_json(catalogue.as_json()).hash8 == catalogue.hash8

    @given(catalogues(), st.randoms())
    def test_the_order_in_which_tiers_are_written_means_nothing(self, catalogue: Catalogue, random: Any) -> None:
        value = catalogue.as_dict()
        names = list(value["tiers"])
        random.shuffle(names)
        value["tiers"] = {name: value["tiers"][name] for name in names}
        assert Catalogue.from_vars(value).hash8 == catalogue.hash8

    def test_numbers_given_as_text_are_the_same_catalogue(self) -> None:
        plain = Catalogue.from_vars(default_variables())
        assert Catalogue.from_vars(default_variables(slices_per_card="10", memory_overcommit_ratio="1.0", custom_allowed="no")) == plain

    def test_a_list_of_named_tiers_is_the_same_catalogue(self) -> None:
        listed = default_variables(tiers=[{"name": name, **body} for name, body in TIERS.items()])
        assert Catalogue.from_vars(listed) == Catalogue.from_vars(default_variables())

    def test_any_changed_number_changes_the_hash(self) -> None:
        hashes = {
            Catalogue.from_vars(variables).hash8
            for variables in (
                default_variables(),
                default_variables(slices_per_card=11),
                default_variables(custom_allowed=True),
                with_tier("small", memory_mib=8448),
                with_tier("small", limit_cores=11),
                with_tier("small", mode="elastic"),
                with_tier("small", priority=1),
            )
        }
        assert len(hashes) == 7

    def test_defaults_that_are_written_out_are_the_same_catalogue(self) -> None:
        """A fleet that does not use them is not sliced anew by an upgrade."""
        assert Catalogue.from_vars(with_tier("small", mode="hard", priority="0")).hash8 == Catalogue.from_vars(default_variables()).hash8

    def test_the_hash_is_the_start_of_the_texts_sha256(self) -> None:
        import hashlib

        catalogue = Catalogue.from_vars(default_variables())
        assert hashlib.sha256(catalogue.as_json().encode()).hexdigest().startswith(catalogue.hash8)
        assert json.loads(catalogue.as_json()) == catalogue.as_dict()

    def test_the_hash_of_the_default_catalogue_does_not_move_by_accident(self) -> None:
        assert Catalogue.from_vars(default_variables()).hash8 == "e2c2d3fc"

    def test_text_that_is_not_json_is_refused(self) -> None:
        with pytest.raises(TierError, match="catalogue is not JSON"):
            Catalogue.from_json("{")


class TestMistakes:
    @pytest.mark.parametrize(
        ("variables", "path", "message"),
        [
            (with_tier("large", limit_cores=50), "slice_tiers.large.limit_cores", "is 50, below reserved_cores 60"),
            (with_tier("small", memory_mib=8200), "slice_tiers.small.memory_mib", "(8200 = 32 x 256 + 8); the nearest are 8192 or 8448"),
            (with_tier("small", memory_mib="8Gi"), "slice_tiers.small.memory_mib", "expected a whole number of MiB, here 8192"),
            (with_tier("small", memory_mib=0), "slice_tiers.small.memory_mib", "is 0, expected 1 to"),
            (with_tier("small", memory_mib=True), "slice_tiers.small.memory_mib", "is True"),
            (with_tier("small", memory_mib=8192.5), "slice_tiers.small.memory_mib", "is 8192.5"),
            (with_tier("small", reserved_cores=101), "slice_tiers.small.reserved_cores", "is 101, expected 0 to 100 percent"),
            (with_tier("small", cores=10), "slice_tiers.small.cores", "is not known"),
            (with_tier("small", mode="soft"), "slice_tiers.small.mode", "is 'soft', expected one of: hard, elastic, off, priority"),
            (
                with_tier("xlarge", mode="elastic"),
                "slice_tiers.xlarge.mode",
                "is 'elastic', which lifts a limit at times, but limit_cores is 100",
            ),
            (with_tier("small", priority=-1), "slice_tiers.small.priority", "is -1, expected 0 to 99 levels (0: the highest)"),
            (with_tier("small", priority="first"), "slice_tiers.small.priority", "is 'first', expected a whole number of levels"),
            (default_variables(tiers={"small": {"memory_mib": 8192}}), "slice_tiers.small.reserved_cores", "is missing"),
            (default_variables(tiers={"small": 8192}), "slice_tiers.small", "is a int (8192), expected a mapping"),
            (with_tier("", memory_mib=256, reserved_cores=1), "slice_tiers.", "has the name '', expected a label value"),
            (with_tier("-x", memory_mib=256, reserved_cores=1), "slice_tiers.-x", "label value"),
            (with_tier("a" * 64, memory_mib=256, reserved_cores=1), "slice_tiers." + "a" * 64, "label value"),
            (with_tier(True, memory_mib=256, reserved_cores=1), "slice_tiers.True", "quote it in YAML"),
            (default_variables(tiers={}), "slice_tiers", "is empty, expected at least one tier"),
            (default_variables(tiers=None), "slice_tiers", "is not set"),
            (default_variables(tiers="small"), "slice_tiers", "is a str ('small')"),
            (default_variables(tiers=[{"memory_mib": 1}]), "slice_tiers[0]", "has no name"),
            (default_variables(card="rtx-9090"), "slice_tiers_card", "card model is 'rtx-9090', expected one of"),
            (default_variables(slices_per_card=0), "slice_tiers_slices_per_card", "is 0, expected 1 to 128 slices"),
            (default_variables(memory_granularity_mib="x"), "slice_tiers_memory_granularity_mib", "is 'x'"),
            (default_variables(memory_overcommit_ratio=256), "slice_tiers_memory_overcommit_ratio", "256 x 81920 = 20971520 MiB"),
            (default_variables(memory_overcommit_ratio=0.5), "slice_tiers_memory_overcommit_ratio", "make the tiers smaller"),
            (default_variables(memory_overcommit_ratio="nan"), "slice_tiers_memory_overcommit_ratio", "expected a number"),
            (default_variables(custom_allowed="maybe"), "slice_tiers_custom_allowed", "expected true or false"),
            (
                default_variables(required_mixes=[{"tiny": 3}]),
                "slice_tiers_required_mixes[0].tiny",
                "names no tier, expected one of: large",
            ),
            (default_variables(required_mixes=[{"small": 0}]), "slice_tiers_required_mixes[0].small", "1 or more"),
            (default_variables(required_mixes=[{}]), "slice_tiers_required_mixes[0]", "is {}"),
            (default_variables(required_mixes={"small": 10}), "slice_tiers_required_mixes", "expected a list"),
            (default_variables(slice_count=3), "slice_tiers_slice_count", "is not known, expected one of: card"),
            ("small", "slice_tiers", "expected a mapping"),
        ],
    )
    def test_a_mistake_is_told_with_its_path_and_arithmetic(self, variables: Any, path: str, message: str) -> None:
        assert message in problems_of(variables)[path]

    def test_all_mistakes_are_told_at_once(self) -> None:
        variables = with_tier("large", limit_cores=50, memory_mib=32769)
        variables["tiers"]["small"] = {"memory_mib": "lots", "reserved_cores": 10}
        variables.update(card="none", slices_per_card=-1)
        assert set(problems_of(variables)) == {
            "slice_tiers_card",
            "slice_tiers_slices_per_card",
            "slice_tiers.large.limit_cores",
            "slice_tiers.large.memory_mib",
            "slice_tiers.small.memory_mib",
        }

    def test_a_name_given_twice_is_told(self) -> None:
        body = {"memory_mib": 8192, "reserved_cores": 10}
        found = problems_of(default_variables(tiers=[{"name": "small", **body}, {"name": "small", **body}], required_mixes=[]))
        assert found == {"slice_tiers[1]": "names the tier 'small' a second time"}

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        )
    )
    def test_no_value_breaks_the_reader(self, value: Any) -> None:
        for variables in (
            value,
            default_variables(tiers=value),
            default_variables(required_mixes=value),
            with_tier("small", memory_mib=value),
            with_tier("small", mode=value, priority=value),
        ):
            try:
                Catalogue.from_vars(variables)
            except TierError as error:
                assert error.details["problems"]

    def test_an_absent_limit_is_the_reserve(self) -> None:
        variables = default_variables(tiers={"small": {"memory_mib": 8192, "reserved_cores": 10}}, required_mixes=[])
        assert Catalogue.from_vars(variables).tier("small").limit_cores_percent == 10


class TestQuotas:
    """A label names a tier only if the pod's numbers are that tier's."""

    CATALOGUE = Catalogue.from_vars(default_variables())

    def test_an_xlarge_books_eighty_and_may_use_all(self) -> None:
        assert self.CATALOGUE.quota_for("xlarge", 65536, 80) == 100

    def test_without_a_label_the_numbers_decide(self) -> None:
        assert self.CATALOGUE.quota_for(None, 16384, 30) == 30

    def test_a_label_that_disagrees_with_the_numbers_does_not_count(self) -> None:
        assert self.CATALOGUE.quota_for("xlarge", 8192, 10) == 10

    def test_numbers_of_no_tier_are_refused_with_what_is_offered(self) -> None:
        with pytest.raises(TierError, match="512 MiB with 20 percent of the cores fits no tier, expected one of: small 8192/10"):
            self.CATALOGUE.quota_for("small", 512, 20)

    def test_custom_numbers_are_limited_to_what_they_book(self) -> None:
        assert Catalogue.from_vars(default_variables(custom_allowed=True)).quota_for(None, 512, 20) == 20

    def test_of_two_tiers_with_the_same_numbers_the_label_chooses_and_without_it_the_lower_limit(self) -> None:
        twins = {
            "calm": {"memory_mib": 8192, "reserved_cores": 10, "limit_cores": 10},
            "burst": {"memory_mib": 8192, "reserved_cores": 10, "limit_cores": 50},
        }
        catalogue = Catalogue.from_vars(default_variables(tiers=twins, required_mixes=[]))
        assert [catalogue.quota_for(label, 8192, 10) for label in ("burst", "calm", None)] == [50, 10, 10]

    def test_a_tiers_mode_and_priority_come_with_it(self) -> None:
        catalogue = Catalogue.from_vars(with_tier("small", mode="priority", priority=2))
        assert [(tier.mode, tier.priority) for tier in (catalogue.tier_for(None, 8192, 10), catalogue.tier_for(None, 16384, 30))] == [
            ("priority", 2),
            ("hard", 0),
        ]

    def test_a_bare_off_in_yaml_is_the_mode_off(self) -> None:
        assert Catalogue.from_vars(with_tier("small", mode=False)).tier("small").mode == "off"

    def test_without_a_label_nobody_gets_the_higher_priority_of_two_tiers(self) -> None:
        body = {"memory_mib": 8192, "reserved_cores": 10, "mode": "priority"}
        twins = {"first": {**body, "priority": 0}, "second": {**body, "priority": 5}}
        catalogue = Catalogue.from_vars(default_variables(tiers=twins, required_mixes=[]))
        assert [catalogue.tier_for(label, 8192, 10).name for label in ("first", "second", None)] == ["first", "second", "second"]

    def test_custom_numbers_are_a_tier_without_a_name(self) -> None:
        tier = Catalogue.from_vars(default_variables(custom_allowed=True)).tier_for(None, 512, 20)
        assert (tier.name, tier.limit_cores_percent, tier.mode, tier.priority) == ("", 20, "hard", 0)

    @given(catalogues())
    def test_every_tier_gets_at_least_its_reserve(self, catalogue: Catalogue) -> None:
        for tier in catalogue.tiers:
            limit = catalogue.quota_for(tier.name, tier.memory_mib, tier.reserved_cores_percent)
            assert limit == tier.limit_cores_percent >= tier.reserved_cores_percent

    def test_a_tiers_limits_are_what_a_pod_writes(self) -> None:
        assert self.CATALOGUE.tier("small").limits() == {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": "8192",
            "volcano.sh/vgpu-cores": "10",
        }


class TestPublishedMemory:
    @given(catalogues(), st.integers(1, 200_000))
    def test_it_is_a_multiple_of_the_granularity_just_below_the_promise(self, catalogue: Catalogue, total: int) -> None:
        published = catalogue.published_memory_mib(total)
        assert published % catalogue.memory_granularity_mib == 0
        assert 0 <= total * catalogue.memory_overcommit_ratio - published < catalogue.memory_granularity_mib + 1


class TestTheArticlesKeys:
    def test_they_are_accepted_mapped_and_answered(self) -> None:
        variables = default_variables(deviceMemoryScaling=512, gpuMemoryFactor=10, SchedulePolicy="binpack")
        del variables["memory_granularity_mib"]
        catalogue = Catalogue.from_vars(variables)
        scaling, factor, policy = catalogue.notes
        assert catalogue.memory_granularity_mib == 512
        assert "512 x 81920 = 41943040 MiB" in scaling
        assert "65536 entries x 66 bytes = 4325376 bytes, over 4194304" in factor
        assert "820 units, of which 9 fit a card of 8192 units" in factor
        assert "ScheduleWeight" in policy

    def test_notes_are_no_part_of_the_catalogue(self) -> None:
        assert Catalogue.from_vars(default_variables(gpu_memory_factor=16)).hash8 == Catalogue.from_vars(default_variables()).hash8

    @pytest.mark.parametrize(
        ("changes", "path"),
        [
            ({"deviceMemoryScaling": 512}, "deviceMemoryScaling"),
            ({"device_memory_scaling": "x"}, "device_memory_scaling"),
            ({"gpuMemoryFactor": 0}, "gpuMemoryFactor"),
            ({"SchedulePolicy": "pack"}, "SchedulePolicy"),
        ],
    )
    def test_a_wrong_or_contradicting_value_is_told(self, changes: dict[str, Any], path: str) -> None:
        assert list(problems_of(default_variables(**changes))) == [path]
