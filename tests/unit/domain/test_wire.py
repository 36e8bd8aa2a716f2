"""The annotations: what we write is read back as it was, and nothing else is believed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import WireError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.slices import Assignment, SliceRequest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.wire import RegisterRecord, RequestingContainer
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.strategies import records, segments

A800 = RegisterRecord("GPU-1111", 10, 5120, "NVIDIA-NVIDIA A800-SXM4-80GB")


class TestRegister:
    def test_a_card_reads_as_the_scheduler_expects_it(self) -> None:
        assert wire.encode_register([A800]) == "GPU-1111,10,5120,NVIDIA-NVIDIA A800-SXM4-80GB,true,hami-core:"

    @given(st.lists(records, min_size=1, max_size=8))
    def test_decoding_undoes_encoding(self, cards: list[RegisterRecord]) -> None:
        assert wire.decode_register(wire.encode_register(cards)) == cards

    @given(st.text(max_size=200))
    def test_no_text_breaks_the_decoder(self, text: str) -> None:
        try:
            wire.decode_register(text)
        except WireError as error:
            assert "register" in str(error)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "expected records that end in ':'"),
            ("GPU-1,10,5120,NVIDIA,true,hami-core", "expected records that end in ':'"),
            ("GPU-1,10,5120,NVIDIA,true:", "register record 0 .* expected six fields"),
            ("GPU-1,10,5120,NVIDIA,true,hami-core::", "register record 1"),
            ("GPU-1,ten,5120,NVIDIA,true,hami-core:", "record 0: count is 'ten'"),
            ("GPU-1,10,-1,NVIDIA,true,hami-core:", "memory is '-1'"),
            ("GPU-1,10,99999999999,NVIDIA,true,hami-core:", "memory is"),
            ("GPU-1,10,5120,NVIDIA,yes,hami-core:", "healthy is 'yes'"),
        ],
    )
    def test_a_record_that_the_scheduler_would_drop_or_misread_is_refused_with_its_place(self, text: str, message: str) -> None:
        with pytest.raises(WireError, match=message):
            wire.decode_register(text)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"uuid": "GPU,1"}, "uuid"),
            ({"type": "NVIDIA:A800"}, "type"),
            ({"type": "A800"}, 'with "NVIDIA" in it'),
            ({"uuid": ""}, "uuid"),
            ({"count": -1}, "count is -1"),
            ({"memory_mib": 2**31}, "memory"),
        ],
    )
    def test_what_would_corrupt_the_annotation_is_not_written(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(WireError, match=message):
            wire.encode_register([RegisterRecord(**{**A800.__dict__, **changes})])


class TestSegments:
    @given(segments)
    def test_decoding_undoes_encoding(self, containers: list[list[Assignment]]) -> None:
        text = wire.encode_segments(containers)
        expected = containers if text else []  # one container without a card is written as no text at all
        assert wire.decode_segments(text) == expected

    @pytest.mark.parametrize(
        ("text", "cards"),
        [
            ("", []),
            ("GPU-a,NVIDIA,512,10:", [["GPU-a"]]),
            ("GPU-a,NVIDIA,512,10:GPU-b,NVIDIA,512,10:", [["GPU-a", "GPU-b"]]),
            ("GPU-a,NVIDIA,512,10:;GPU-b,NVIDIA,1024,30:", [["GPU-a"], ["GPU-b"]]),
            (";GPU-b,NVIDIA,1024,30:", [[], ["GPU-b"]]),
            ("GPU-a[group2-3],NVIDIA,9728,0:", [["GPU-a[group2-3]"]]),
        ],
    )
    def test_what_the_scheduler_writes_is_read(self, text: str, cards: list[list[str]]) -> None:
        assert [[each.uuid for each in segment] for segment in wire.decode_segments(text)] == cards

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("GPU-a,NVIDIA,512,10", "segment 0 is .* expected cards that end in ':'"),
            ("GPU-a,NVIDIA,512:", "segment 0 card 0 .* four fields"),
            ("GPU-a,NVIDIA,512,10,1:", "four fields"),
            (";GPU-a,NVIDIA,512,x:", "segment 1 card 0: cores is 'x'"),
            ("GPU-a,NVIDIA,-1,0:", "memory is '-1'"),
            ("GPU-a,NVIDIA,4294967296,0:", "memory is '4294967296'"),
            ("GPU-a,NVIDIA,\u0665,0:", "memory is"),
            (",NVIDIA,1,1:", "uuid is ''"),
            ("GPU-a,NVIDIA,1,1:GPU-a,NVIDIA,1,1:", "names a card twice"),
        ],
    )
    def test_a_tenants_text_is_refused_with_its_place(self, text: str, message: str) -> None:
        with pytest.raises(WireError, match=message):
            wire.decode_segments(text)

    @given(st.text(alphabet="GPU-ab,:;0123456789NVIDIA\n ", max_size=120))
    def test_no_text_breaks_the_decoder_and_what_it_accepts_it_writes_back(self, text: str) -> None:
        try:
            decoded = wire.decode_segments(text)
        except WireError:
            return
        assert wire.decode_segments(wire.encode_segments(decoded)) == decoded or not any(decoded)

    def test_a_long_text_is_shown_short(self) -> None:
        with pytest.raises(WireError) as raised:
            wire.decode_segments("x" * 100_000)
        assert len(str(raised.value)) < 200


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def container(name: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {f"volcano.sh/vgpu-{key}": value for key, value in limits.items()}}}


class TestRequestingContainers:
    """Segment k belongs to the k-th requesting container, which need not be container k."""

    def test_containers_without_a_slice_have_no_segment(self) -> None:
        found = wire.requesting_containers(pod({"name": "side"}, container("main", number="1", memory="8192", cores="10"), {"name": "log"}))
        assert found == [RequestingContainer(1, "main", SliceRequest(1, 8192, 10))]

    @pytest.mark.parametrize(
        ("limits", "request_"),
        [
            ({"number": 1}, SliceRequest(1, None, 0)),
            ({"memory": "8192"}, SliceRequest(1, 8192, 0)),
            ({"number": "2", "memory": "3k", "cores": 30}, SliceRequest(2, 3000, 30)),
            ({"number": "1", "memory": "0"}, SliceRequest(1, None, 0)),
        ],
    )
    def test_absent_numbers_have_the_schedulers_defaults(self, limits: dict[str, Any], request_: SliceRequest) -> None:
        assert wire.requesting_containers(pod(container("main", **limits)))[0].request == request_

    def test_cores_alone_ask_for_no_slice(self) -> None:
        assert wire.requesting_containers(pod(container("main", cores="10"))) == []

    def test_requests_stand_in_for_absent_limits_of_memory_and_cores(self) -> None:
        asking = container("main", number=1)
        asking["resources"]["requests"] = {"volcano.sh/vgpu-memory": "512", "volcano.sh/vgpu-cores": "20"}
        assert wire.requesting_containers(pod(asking))[0].request == SliceRequest(1, 512, 20)

    def test_init_containers_are_never_looked_at(self) -> None:
        assert wire.requesting_containers(pod({"name": "main"}, initContainers=[container("init", number=1)])) == []

    @pytest.mark.parametrize("memory", ["8Gi", "4294967296", "-1", "1.5", "much"])
    def test_a_number_that_the_scheduler_would_misread_is_refused(self, memory: str) -> None:
        with pytest.raises(WireError, match=r"container 'main': volcano\.sh/vgpu-memory"):
            wire.requesting_containers(pod(container("main", number=1, memory=memory)))

    @pytest.mark.parametrize("empty", [{}, {"spec": None}, {"spec": {"containers": None}}, pod({"name": "a", "resources": None})])
    def test_a_pod_without_anything_has_none(self, empty: dict[str, Any]) -> None:
        assert wire.requesting_containers(empty) == []
