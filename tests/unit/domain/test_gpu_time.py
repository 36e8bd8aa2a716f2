"""Whose GPU time a reading is: mount tables as the kernel prints them, and what a tenant may do to its own."""

from __future__ import annotations

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.gpu_time import NODE, Reading, Sample, Source, read, slot_of, source_of

SLOT, OTHER = "0123456789abcdef" * 2, "f" * 32
# As on a node with its own tmpfs for the run folder, seen by the plugin's pod.
OURS = """\
1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a
22 1 0:21 / /proc rw,nosuid - proc proc rw
30 1 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,mode=755
31 30 0:77 / /run/tenfold rw,nosuid,nodev master:9 - tmpfs tmpfs rw,size=65536k
"""
SLOTS = Source("0:77", "/slots")
# A container's: its root, and the files that CDI has bound into it.
CONTAINER = f"""\
700 600 0:90 / / rw,relatime - overlay overlay rw,lowerdir=/b
701 700 0:91 / /proc rw,nosuid - proc proc rw
710 700 8:1 /usr/local/tenfold/hook/1-a/libtenfold.so /usr/local/tenfold/libtenfold.so ro,nosuid - ext4 /dev/sda1 rw
711 700 0:77 /slots/{SLOT}/config /run/tenfold/config ro,nosuid,nodev - tmpfs tmpfs rw,size=65536k
712 700 0:77 /slots/{SLOT}/state /run/tenfold/state rw,nosuid,nodev - tmpfs tmpfs rw,size=65536k
"""


class TestTheNodesOwnFolder:
    def test_it_is_found_behind_the_closest_mount(self) -> None:
        assert source_of(OURS, "/run/tenfold/slots") == SLOTS

    def test_without_a_file_system_of_its_own_the_path_in_the_larger_one_counts(self) -> None:
        assert source_of(OURS.replace("/run/tenfold", "/run/else"), "/run/tenfold/slots") == Source("0:25", "/tenfold/slots")

    def test_a_bind_mount_of_a_folder_adds_that_folder(self) -> None:
        bound = OURS + "40 1 8:1 /var/lib/run /data rw - ext4 /dev/sda1 rw\n"
        assert source_of(bound, "/data/tenfold/slots") == Source("8:1", "/var/lib/run/tenfold/slots")

    def test_of_two_mounts_at_one_place_the_later_covers_the_other(self) -> None:
        again = OURS + "90 31 0:99 / /run/tenfold rw - tmpfs tmpfs rw\n"
        assert source_of(again, "/run/tenfold/slots") == Source("0:99", "/slots")

    def test_a_name_that_only_begins_alike_is_another(self) -> None:
        assert source_of("31 30 0:77 / /run/tenfold rw - tmpfs tmpfs rw\n", "/run/tenfolded/slots") is None

    def test_blanks_in_names_are_written_as_the_kernel_does(self) -> None:
        assert source_of("1 0 0:7 /a\\040b /c\\040d rw - tmpfs tmpfs rw\n", "/c d/slots") == Source("0:7", "/a b/slots")

    @pytest.mark.parametrize("text", ["", "rubbish\n", "1 2 3\n\n"])
    def test_what_is_no_mount_table_gives_nothing(self, text: str) -> None:
        assert source_of(text, "/run/tenfold/slots") is None
        assert slot_of(text, SLOTS) is None


class TestTheSlotOfAProcess:
    def test_its_mounts_name_it(self) -> None:
        assert slot_of(CONTAINER, SLOTS) == SLOT

    def test_wherever_a_container_within_the_container_has_them(self) -> None:
        assert slot_of(CONTAINER.replace(" /run/tenfold/", " /inner/place/"), SLOTS) == SLOT

    def test_a_state_that_was_replaced_or_a_slot_that_was_removed_is_still_its_name(self) -> None:
        assert slot_of(CONTAINER.replace("/state ", "/state//deleted ").replace("/config ", "/config//deleted "), SLOTS) == SLOT

    def test_a_process_without_them_has_none(self) -> None:
        assert slot_of(OURS, SLOTS) is None

    @pytest.mark.parametrize(
        "forged",
        [
            pytest.param(CONTAINER.replace("0:77", "0:78").replace(SLOT, OTHER), id="another file system with the same names"),
            pytest.param(CONTAINER.replace("/slots/", "/"), id="another folder of the same file system"),
            pytest.param(CONTAINER.replace("/config ", "/config2 ").replace("/state ", "/statement "), id="other files"),
            pytest.param(CONTAINER.replace(SLOT, SLOT[:-1]), id="a name that is no slot's"),
            pytest.param(
                CONTAINER.replace(f"/slots/{SLOT}/config", f"/slots/{SLOT}/../{OTHER}/config").replace("/state ", "/x "), id="dots"
            ),
        ],
    )
    def test_what_only_looks_like_them_counts_for_nothing(self, forged: str) -> None:
        assert slot_of(forged, SLOTS) is None

    def test_one_that_also_mounts_a_forgery_is_still_its_own_slots(self) -> None:
        """A privileged tenant: a file system of its own, with the other slot's name in it, over the real files."""
        forgery = f"800 700 0:99 /slots/{OTHER}/config /run/tenfold/config rw - tmpfs tmpfs rw\n"
        assert slot_of(CONTAINER + forgery, SLOTS) == SLOT

    def test_one_with_two_slots_is_nobodys(self) -> None:
        second = f"800 700 0:77 /slots/{OTHER}/config /mnt ro - tmpfs tmpfs rw\n"
        assert slot_of(CONTAINER + second, SLOTS) is None


class TestAReading:
    def test_time_is_summed_per_slot_with_what_nvml_cuts_off(self) -> None:
        reading = read([Sample(1, 900, 10), Sample(2, 1000, 20), Sample(3, 950, 5)], {1: SLOT, 2: SLOT, 3: OTHER})
        assert reading == Reading(1000, {SLOT: 31.0, OTHER: 5.5}, 0.0)
        assert (reading.busy_ns(SLOT, 1_000_000), reading.busy_ns(OTHER, 1_000_000)) == (310_000, 55_000)
        assert reading.busy_ns("e" * 32, 1_000_000) == 0

    def test_a_process_that_did_nothing_adds_nothing(self) -> None:
        assert read([Sample(1, 7, 0)], {1: SLOT}) == Reading(7)

    def test_time_of_nobody_may_be_anybodys(self) -> None:
        """Who hides a process is told all of it, and its neighbours are held to the strict side."""
        reading = read([Sample(1, 7, 30), Sample(2, 7, 20)], {1: SLOT, 2: None})
        assert reading.busy_ns(SLOT, 1000) == 510
        assert reading.busy_ns(OTHER, 1000) == 205
        assert not reading.is_blind

    def test_time_of_the_node_itself_is_nobodys(self) -> None:
        reading = read([Sample(1, 7, 30), Sample(2, 7, 20)], {1: SLOT, 2: NODE})
        assert (reading.busy_ns(SLOT, 1000), reading.busy_ns(OTHER, 1000), reading.unknown_percent) == (305, 0, 0)

    def test_nobody_is_busier_than_the_window_is_long(self) -> None:
        assert read([Sample(1, 7, 80), Sample(2, 7, 80)], {1: SLOT, 2: SLOT}).busy_ns(SLOT, 1000) == 1000

    def test_where_nobody_is_known_it_is_blind(self) -> None:
        assert read([Sample(1, 7, 80)], {}).is_blind
        assert not read([], {}).is_blind

    def test_where_nobody_works_it_is_empty(self) -> None:
        assert read([Sample(1, 7, 0), Sample(1, 8, 0)], {7: SLOT}).is_empty
        assert not read([Sample(1, 7, 0), Sample(1, 8, 1)], {7: SLOT}).is_empty
