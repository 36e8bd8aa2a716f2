"""What the virtual bench runs: tenants, limits, kernels, and which targets hold for each.

Owns the cases. How one runs is ``bench.c``'s task, whether it met its targets ``judge``'s.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PARAMETERS: dict[str, float] = {
    name: float(row["value"]) for name, row in json.loads((Path(__file__).parent / "parameters.json").read_text(encoding="utf-8")).items()
}
HOST_PARAMETERS = tuple(name for name in PARAMETERS if name.startswith("host_"))  # of the device plugin
BANK_MS = 250.0  # TF_LIMIT_BANK_DEFAULT_NS of limiter.h
WINDOW_MS = 200.0
HARD, ELASTIC, NEVER, PRIORITY = range(4)


@dataclass(frozen=True)
class Tenant:
    """One container. Times in the units of the names; ``limit`` in percent, 100 is unlimited."""

    limit: int
    kernel_us: tuple[float, ...]
    sync: bool = False
    cv: float = 0.0
    processes: int = 1
    streams: int = 1
    on_ms: float = 0.0
    off_ms: float = 0.0
    start_ms: float = 0.0
    stop_ms: float = 0.0
    kill_ms: float = 0.0
    gap_us: float = 0.0
    launch_us: float = 0.0
    mode: int = HARD
    priority: int = 0
    nvml: bool = True
    host: bool = False  # the device plugin tells in the page
    one_key: bool = False
    phase_ms: float = 0.0
    random_phases: bool = False
    limited: bool = True
    garbage: bool = False
    judged: bool = True

    @property
    def mean_us(self) -> float:
        return sum(self.kernel_us) / len(self.kernel_us)

    def line(self) -> str:
        words = [f"limit {self.limit}", *(f"kernel_us {size}" for size in self.kernel_us)]
        for name in ("cv", "processes", "streams", "on_ms", "off_ms", "start_ms", "gap_us", "launch_us", "kill_ms", "mode", "priority",
                     "phase_ms"):  # fmt: skip
            if getattr(self, name):
                words.append(f"{name} {getattr(self, name)}")
        if self.stop_ms:
            words.append(f"stop_ms {self.stop_ms}")
        flags = ("sync", "nvml", "host", "one_key", "random_phases", "limited", "garbage")
        words += [f"{name} {int(getattr(self, name))}" for name in flags]
        return "tenant " + " ".join(words)


@dataclass(frozen=True)
class Case:
    """One run and what must hold. ``changes``: (at ms, tenant, new limit). ``settings`` override parameters.json."""

    group: str
    name: str
    tenants: tuple[Tenant, ...]
    fifo: bool = False
    settings: dict[str, float] = field(default_factory=dict)
    changes: tuple[tuple[float, int, int], ...] = ()
    warmup_ms: float = 1000.0
    length_ms: float = 8000.0
    seed: int = 1
    window_ms: float = WINDOW_MS
    informative: str = ""  # why no target is asserted
    below_points: float = 1.5  # so far below its limit a tenant's mean may be
    above_points: float = 1.5
    starved_ms: float = 1200.0  # so long a tenant of a crowd may get next to nothing

    @property
    def label(self) -> str:
        return f"{self.group}: {self.name}, {'fifo' if self.fifo else 'slices'}"

    def parameter(self, name: str) -> float:
        return self.settings.get(name, PARAMETERS[name])

    def lines(self) -> list[str]:
        settings = {**PARAMETERS, **self.settings, "seed": self.seed, "fifo": int(self.fifo)}
        settings |= {"warmup_ms": self.warmup_ms, "length_ms": self.length_ms, "window_ms": self.window_ms}
        return [
            f"case {self.label}",
            "set " + " ".join(f"{name} {value}" for name, value in settings.items()),
            *(tenant.line() for tenant in self.tenants),
            *(f"change {at_ms} {tenant} {limit}" for at_ms, tenant, limit in self.changes),
            "run",
        ]


def long_enough_ms(tenant: Tenant, kernels: int = 150, at_least_ms: float = 6000.0) -> float:
    """So that the run holds many kernels, else one more or less is a point of the mean."""
    return min(3600e3, max(at_least_ms, kernels * tenant.mean_us / 1000 * 100 / tenant.limit * (1 + tenant.cv)))


def size_name(us: float) -> str:
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"


def tenant_name(tenant: Tenant) -> str:
    text = "+".join(size_name(us) for us in tenant.kernel_us)
    text += " sync" if tenant.sync else ""
    return text + (f" cv {tenant.cv:g}" if tenant.cv else "")


SIZES_US = (20.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 50000.0, 150000.0, 500000.0)


def sweep(limits: list[int], sizes: tuple[float, ...] = SIZES_US, fifo: bool = False) -> Iterator[Case]:
    """One tenant alone, over all limits and kernel lengths; asynchronous, synchronous, and varying lengths."""
    for limit, us in itertools.product(limits, sizes):
        for sync, cv in ((False, 0.0), (True, 0.0), (False, 0.5)):
            tenant = Tenant(limit, (us,), sync=sync, cv=cv)
            yield Case("alone", f"{tenant_name(tenant)} at {limit}", (tenant,), fifo=fifo, length_ms=long_enough_ms(tenant))
    for limit in limits[:: max(1, len(limits) // 12)]:
        graph = Tenant(limit, (10000.0,), launch_us=10)
        yield Case("alone", f"10 ms graph at {limit}", (graph,), fifo=fifo, length_ms=long_enough_ms(graph))
        mixed = Tenant(limit, (20.0, 200.0, 2000.0, 8000.0))
        yield Case("alone", f"mixed {tenant_name(mixed)} at {limit}", (mixed,), fifo=fifo, length_ms=long_enough_ms(mixed))
        heavy = Tenant(limit, (2000.0,), cv=1.0)
        yield Case("alone", f"{tenant_name(heavy)} at {limit}", (heavy,), fifo=fifo, length_ms=long_enough_ms(heavy, 400))
        two = Tenant(limit, (300.0,), streams=2)
        yield Case("alone", f"300 us on 2 streams at {limit}", (two,), fifo=fifo, length_ms=long_enough_ms(two, 1000, 8000.0))


def shared(fifo: bool, **common: object) -> Iterator[Case]:
    """Several tenants on one GPU, judged from the 8th second on: what NVML says needs some seconds to settle. ``cold`` shows those."""

    def case(name: str, *tenants: Tenant) -> Case:
        made = Case("shared", name, tenants, fifo=fifo, warmup_ms=8000, length_ms=20000)
        return replace(made, **common)  # type: ignore[arg-type]

    for us in (20.0, 300.0, 1000.0, 5000.0, 10000.0):
        yield case(f"30/60 of {size_name(us)}", Tenant(30, (us,)), Tenant(60, (us,)))
    yield case("30/60 of 5 ms cv 0.5", Tenant(30, (5000.0,), cv=0.5), Tenant(60, (5000.0,), cv=0.5))
    yield case("30 of 300 us sync, 60 of 1 ms", Tenant(30, (300.0,), sync=True), Tenant(60, (1000.0,)))
    yield case("10/30/55 mixed", *(Tenant(limit, (20.0, 1000.0, 5000.0)) for limit in (10, 30, 55)))
    yield case("4 x 23 of 0.2/1/5/20 ms", *(Tenant(23, (us,)) for us in (200.0, 1000.0, 5000.0, 20000.0)))
    yield case("4 x 10 of 0.2/1/5/10 ms", *(Tenant(10, (us,)) for us in (200.0, 1000.0, 5000.0, 10000.0)))
    yield case("8 x 10 of 1 ms", *(Tenant(10, (1000.0,)) for _ in range(8)))
    yield case("8 x 11 of 3 ms", *(Tenant(11, (3000.0,)) for _ in range(8)))
    yield case("2 x 45 of 1 ms", *(Tenant(45, (1000.0,)) for _ in range(2)))
    yield case("5/90 of 1 ms", Tenant(5, (1000.0,)), Tenant(90, (1000.0,)))
    yield replace(case("30 of 150 ms, 60 of 1 ms", Tenant(30, (150000.0,)), Tenant(60, (1000.0,))), warmup_ms=20000, length_ms=60000)
    yield replace(case("20/40 of 500 ms", Tenant(20, (500000.0,)), Tenant(40, (500000.0,))), warmup_ms=20000, length_ms=120000)
    if not fifo:  # an unlimited tenant fills its queue of 1,024: first come, first served gives nobody else a turn
        yield case("30 of 1 ms beside unlimited 1 ms", Tenant(30, (1000.0,)), Tenant(100, (1000.0,), limited=False, judged=False))
        yield case("30 of 5 ms beside unlimited 5 ms", Tenant(30, (5000.0,)), Tenant(100, (5000.0,), limited=False, judged=False))


def cold(fifo: bool) -> Iterator[Case]:
    """The first eight seconds of the same tenants, which all start at once. Printed, not asserted."""
    for case in shared(fifo):
        yield replace(case, group="cold", warmup_ms=0, length_ms=8000, informative="the first 8 s")


CROWDS: tuple[tuple[str, bool, float, tuple[tuple[float, ...], ...]], ...] = (
    ("1 ms", False, 0.0, ((1000.0,),)),
    ("1 ms sync", True, 0.0, ((1000.0,),)),
    ("3 ms", False, 0.0, ((3000.0,),)),
    ("10 ms", False, 0.0, ((10000.0,),)),
    ("300 us cv 0.5", False, 0.5, ((300.0,),)),
    ("5 ms cv 0.5", False, 0.5, ((5000.0,),)),
    ("20+200+1000+5000 us", False, 0.0, ((20.0, 200.0, 1000.0, 5000.0),)),
    ("20 us to 10 ms", False, 0.0, tuple((us,) for us in (20.0, 100.0, 300.0, 1000.0, 2000.0, 3000.0, 5000.0, 10000.0))),
    ("20 us to 10 ms sync", True, 0.0, tuple((us,) for us in (20.0, 100.0, 300.0, 1000.0, 2000.0, 3000.0, 5000.0, 10000.0))),
)


def crowds(fifo: bool) -> Iterator[Case]:
    """Eight tenants that start at the same instant: until NVML speaks, each takes its waits for its work, and nobody may starve of that."""
    for name, sync, cv, sizes in CROWDS:
        tenants = tuple(Tenant(11, sizes[number % len(sizes)], sync=sync, cv=cv) for number in range(8))
        for seed in (1, 2, 3):
            yield Case("crowd", f"8 x 11 of {name}, seed {seed}", tenants, fifo=fifo, warmup_ms=0, length_ms=16000, seed=seed)
        if "20 us" in name and not sync and fifo:  # the shortest kernel meets all others before its first measurements: one crowd in twenty
            yield Case("crowd", f"8 x 11 of {name}, unlucky", tenants, fifo=fifo, warmup_ms=0, length_ms=16000, seed=12, starved_ms=3400)


def processes(fifo: bool) -> Iterator[Case]:
    """Several processes of one container share its limit, evenly; a killed one leaves nothing stuck."""
    for count, us, sync in ((2, 1000.0, False), (4, 1000.0, False), (4, 300.0, True), (8, 200.0, False), (16, 2000.0, True)):
        tenant = Tenant(50, (us,), sync=sync, processes=count)
        yield Case("processes", f"{count} of {tenant_name(tenant)} at 50", (tenant,), fifo=fifo, warmup_ms=4000, length_ms=12000)
    tenant = Tenant(40, (1000.0,), processes=3, kill_ms=2000)
    yield Case("processes", "one of 3 is killed, 1 ms at 40", (tenant,), fifo=fifo, warmup_ms=4000)
    tenant = Tenant(10, (20000.0,), processes=2, kill_ms=1500)
    yield Case("processes", "one of 2 is killed, 20 ms at 10", (tenant,), fifo=fifo, warmup_ms=4000, length_ms=20000)


def changes(fifo: bool) -> Iterator[Case]:
    """The limit changes while the program runs."""
    for us, sync in ((20.0, False), (300.0, True), (1000.0, False), (5000.0, False), (10000.0, True)):
        tenant = Tenant(50, (us,), sync=sync)
        yield Case("change", f"{tenant_name(tenant)} 50 -> 20 -> 80 -> 5 -> 95", (tenant,), fifo=fifo, window_ms=50, length_ms=9000,
                   changes=((3000, 0, 20), (5000, 0, 80), (7000, 0, 5), (8500, 0, 95)))  # fmt: skip
    idle = Tenant(20, (1000.0,), start_ms=2500)
    yield Case(
        "change", "raised before the program works, 20 -> 60", (idle,), fifo=fifo, window_ms=50, length_ms=4000, changes=((2000, 0, 60),)
    )
    off = Tenant(30, (1000.0,))
    yield Case(
        "change", "1 ms 30 -> no limit -> 30", (off,), fifo=fifo, window_ms=50, length_ms=6000, changes=((2500, 0, 100), (4500, 0, 30))
    )
    yield from steps(fifo)
    flaps = tuple((2000 + 10 * i, 0, (20, 80)[i % 2]) for i in range(300))
    for tenant in (Tenant(40, (1000.0,)), Tenant(40, (1000.0,), start_ms=2700)):
        name = "20/80 at 100 Hz for 3 s, then 40" + (", idle before" if tenant.start_ms else "")
        yield Case("flapping", name, (tenant,), fifo=fifo, window_ms=50, length_ms=7000, changes=(*flaps, (5000, 0, 40)))


def steps(fifo: bool) -> Iterator[Case]:
    """A large change, again and again, each at another point of NVML's windows and of the limiter's buckets; and while the program pauses.

    A step of the load within them must not look like a neighbour's work, which would be given back.
    """
    for low, high in ((10, 90), (5, 95), (20, 60)):
        at = [(3000.0 + 1387 * turn, 0, (high, low)[turn % 2]) for turn in range(8)]
        for us, sync in ((300.0, False), (2000.0, True), (5000.0, False), (10000.0, True)):
            for phase_ms in (0, 60, 120):
                tenant = Tenant(low, (us,), sync=sync)
                name = f"{tenant_name(tenant)} between {low} and {high}, NVML at {phase_ms} ms"
                yield Case("change", name, (tenant,), fifo=fifo, window_ms=50, length_ms=13500, changes=tuple(at),
                           settings={"nvml_phase_ms": phase_ms})  # fmt: skip
    for low, high in ((10, 90), (90, 10)):
        for phase_ms in (0, 60, 120):
            pausing = Tenant(low, (1000.0,), on_ms=3000, off_ms=1000)  # 4 to 7 s, 8 to 11 s
            yield Case("change", f"1 ms from {low} to {high} in a pause, NVML at {phase_ms} ms", (pausing,), fifo=fifo, window_ms=50,
                       length_ms=9500, changes=((3500, 0, high),), settings={"nvml_phase_ms": phase_ms})  # fmt: skip


def neighbour_changes(fifo: bool, late_ms: tuple[int, ...] = (0, 128), phases_ms: tuple[int, ...] = (60,)) -> Iterator[Case]:
    """Limits change while two tenants work: NVML tells a second later how much of which measurement was whose."""
    for us, swap in itertools.product((300.0, 1000.0, 2000.0, 5000.0), (((30, 60), (60, 30)), ((10, 80), (80, 10)), ((20, 20), (20, 70)))):
        for late, phase_ms in itertools.product(late_ms, phases_ms):
            (first, second), to = swap
            changes = tuple((12000.0 + late, number, limit) for number, limit in enumerate(to))
            name = f"{size_name(us)} {first}/{second} -> {to[0]}/{to[1]} at {late} ms, NVML at {phase_ms} ms"
            yield Case("two change", name, (Tenant(first, (us,)), Tenant(second, (us,))), fifo=fifo, window_ms=50, length_ms=15800,
                       changes=changes, settings={"nvml_phase_ms": phase_ms})  # fmt: skip


def duty(fifo: bool) -> Iterator[Case]:
    """Programs that pause: what they did not use is kept for 250 ms, so bursts even out within that."""
    for limit, on_ms, off_ms, us in (
        (50, 300, 200, 1000.0),
        (30, 50, 100, 300.0),
        (20, 20, 80, 1000.0),
        (50, 300, 700, 1000.0),
        (70, 900, 100, 2000.0),
    ):
        tenant = Tenant(limit, (us,), on_ms=on_ms, off_ms=off_ms)
        yield Case("duty", f"{tenant_name(tenant)} at {limit}, {on_ms} of {on_ms + off_ms} ms", (tenant,), fifo=fifo, length_ms=12000)


def modes(fifo: bool) -> Iterator[Case]:
    """Elastic and priority: the limit holds only while it must."""
    alone = Tenant(30, (1000.0,), mode=ELASTIC)
    yield Case("mode", "elastic, alone", (alone,), fifo=fifo)
    both = (Tenant(30, (1000.0,), mode=ELASTIC), Tenant(50, (1000.0,), mode=ELASTIC))
    yield Case("mode", "elastic, both work", both, fifo=fifo, warmup_ms=4000, length_ms=12000)
    high, low = Tenant(60, (1000.0,), mode=PRIORITY, priority=0), Tenant(40, (1000.0,), mode=PRIORITY, priority=1)
    pausing = replace(high, on_ms=14000, off_ms=4000)
    yield Case("mode", "priority, the higher one pauses after 14 s", (pausing, low), fifo=fifo, warmup_ms=8000, length_ms=10000)
    yield Case("mode", "never", (Tenant(30, (1000.0,), mode=NEVER),), fifo=fifo)


def hostile(fifo: bool) -> Iterator[Case]:
    """A tenant writes garbage into its shared state a hundred times a second; its neighbour must not notice."""
    for seed in range(1, 5):
        tenants = (Tenant(30, (1000.0,), garbage=True, processes=2, judged=False), Tenant(40, (1000.0,)))
        yield Case("hostile", f"garbage beside 40, seed {seed}", tenants, fifo=fifo, warmup_ms=4000, seed=seed)


PHASES = ((100.0, 1000.0), (1000.0, 5000.0), (300.0, 400.0), (1000.0, 10000.0))


def phases(fifo: bool) -> Iterator[Case]:
    """One kernel whose length changes again and again: alone each launch is charged what it took; beside a neighbour the mean holds."""
    for sizes, phase_ms, limit, beside in itertools.product(PHASES, (300.0, 1000.0, 3000.0), (20, 60), (False, True)):
        tenant = Tenant(limit, sizes, one_key=True, phase_ms=phase_ms)
        name = f"{size_name(sizes[0])} and {size_name(sizes[1])} by turns of {phase_ms:g} ms at {limit}" + (", beside 30" if beside else "")
        tenants = (tenant, Tenant(30, (1000.0,))) if beside else (tenant,)
        yield Case("one key", name, tenants, fifo=fifo, warmup_ms=8000, length_ms=60000 if beside else 24000)


JUMPS = ((50.0, 500.0), (300.0, 1500.0), (200.0, 2000.0), (1000.0, 5000.0), (1000.0, 10000.0), (2000.0, 20000.0))
JUMP_PHASES_MS = (300.0, 1000.0, 1900.0, 4000.0, 10000.0)
JUMP_STYLES: dict[str, dict[str, Any]] = {
    "": {},
    " sync": {"sync": True},
    " graph": {"launch_us": 10.0},
    " in 2 processes": {"processes": 2},
}
# Who works there: the limits, and how many of them jump.
JUMP_COMPANY = (((40, 30), 1), ((60, 25), 1), ((15, 70), 2), ((45, 40), 2), ((10, 25, 30, 20), 2), ((5, 15, 20, 10, 10, 5, 12, 8), 8))


def jumps(fifo: bool, every: int = 1) -> Iterator[Case]:
    """Lengths that jump by five or ten times while neighbours work. What one window gets wrong the next ones make good: the mean holds.

    ``every``: one of so many of all combinations; a number that has no factor of theirs meets all values of each.
    """
    combinations = itertools.product(JUMP_COMPANY, JUMPS, JUMP_PHASES_MS, (False, True), JUMP_STYLES)
    for (limits, jumping), sizes, phase_ms, random_phases, style in itertools.islice(combinations, 0, None, every):
        tenants = []
        for number, limit in enumerate(limits):
            if number < jumping:
                longer = (1.0, 1.3, 0.7)[number % 3]  # else all would jump at the same instant for ever
                tenants.append(
                    Tenant(limit, sizes, one_key=True, phase_ms=phase_ms * longer, random_phases=random_phases, **JUMP_STYLES[style])
                )
            else:
                tenants.append(Tenant(limit, ((1000.0, 200.0, 3000.0)[number % 3],)))
        turns = f"{'about ' if random_phases else ''}{phase_ms:g} ms"
        name = f"{'/'.join(map(str, limits))}, {jumping} of {size_name(sizes[0])} and {size_name(sizes[1])}{style} by turns of {turns}"
        # of eight that start at once one may begin with a debt of some seconds, which it then pays
        warmup_ms = 60000 if len(limits) == 8 else 8000
        yield Case("jump", name, tuple(tenants), fifo=fifo, warmup_ms=warmup_ms, length_ms=max(120000.0, 20 * phase_ms))


def jumping(dice: random.Random, fifo: bool, index: int) -> Case:
    """A random case in which some lengths jump."""
    count = dice.choice((2, 2, 2, 3, 4, 6, 8))
    shares = [dice.uniform(0.3, 1) for _ in range(count)]
    total = dice.uniform(30, 92)
    phase_ms = 300 * (10000 / 300) ** dice.random()
    random_phases, all_jump, factor = dice.random() < 0.4, dice.random() < 0.5, dice.choice((5, 10))
    style = JUMP_STYLES[dice.choice(list(JUMP_STYLES))]
    tenants = []
    for number, share in enumerate(shares):
        limit = max(5, min(60, round(total * share / sum(shares))))
        if number == 0 or all_jump:
            us = float(round(50 * (400 / factor) ** dice.random()))
            tenants.append(Tenant(limit, (us, us * factor), cv=dice.choice((0.0, 0.0, 0.2)), one_key=True, random_phases=random_phases,
                                  phase_ms=phase_ms * dice.uniform(0.5, 2), **style))  # fmt: skip
        else:
            tenants.append(Tenant(limit, (float(round(50 * 400 ** dice.random())),), sync=dice.random() < 0.2))
    settings = {name: value * dice.uniform(0.5, 1.5) for name, value in PARAMETERS.items()}
    name = f"jumps {index}: " + ", ".join(f"{tenant.limit} of {tenant_name(tenant)}" for tenant in tenants) + f" by {phase_ms:.0f} ms"
    return Case("held out", name, tuple(tenants), fifo=fifo, settings=settings, warmup_ms=8000, length_ms=max(60000.0, 20 * phase_ms),
                seed=index + 1)  # fmt: skip


# Without NVML, events around a kernel measure others' turns as well, and nothing tells them from a kernel that took longer. All of it is
# charged, so tenants get less, never more. By how many points, in time slices of 2 ms and first come first served: measured, pinned.
WITHOUT_NVML: dict[str, tuple[float, float]] = {
    "30/60 of 20 us": (1.5, 10.0),
    "30/60 of 300 us": (1.5, 9.0),
    "30/60 of 1 ms": (7.5, 10.0),
    "30/60 of 5 ms": (11.0, 10.0),
    "30/60 of 10 ms": (11.0, 10.5),
    "30/60 of 5 ms cv 0.5": (11.0, 11.0),
    "30 of 300 us sync, 60 of 1 ms": (1.5, 16.5),
    "10/30/55 mixed": (13.0, 11.5),
    "4 x 23 of 0.2/1/5/20 ms": (12.5, 20.5),
    "4 x 10 of 0.2/1/5/10 ms": (3.0, 8.5),
    "8 x 10 of 1 ms": (1.5, 3.5),
    "8 x 11 of 3 ms": (5.0, 4.0),
    "2 x 45 of 1 ms": (1.5, 2.5),
    "5/90 of 1 ms": (2.0, 4.0),
    "30 of 150 ms, 60 of 1 ms": (11.0, 30.5),
    "20/40 of 500 ms": (6.0, 2.0),
    "30 of 5 ms beside unlimited 5 ms": (14.5, 1.5),
    "30/60 of 1.5 ms": (2.0, 10.0),
    "30/60 of 2 ms": (1.5, 10.0),
    "30/60 of 3 ms": (10.5, 10.5),
    "30/60 of 20 ms": (12.0, 10.5),
    "30/60 of 50 ms": (12.5, 9.0),
}


def blind(fifo: bool) -> Iterator[Case]:
    """Without NVML: never above the limit, and not more below it than is known."""
    for case in shared(fifo):
        tenants = tuple(replace(tenant, nvml=False) for tenant in case.tenants)
        yield replace(case, group="no nvml", tenants=tenants, below_points=WITHOUT_NVML.get(case.name, (1.5, 1.5))[fifo])
    for us in (1500.0, 2000.0, 3000.0, 20000.0, 50000.0):
        name = f"30/60 of {size_name(us)}"
        pair = (Tenant(30, (us,), nvml=False), Tenant(60, (us,), nvml=False))
        yield Case("no nvml", name, pair, fifo=fifo, warmup_ms=8000, length_ms=20000, below_points=WITHOUT_NVML.get(name, (1.5, 1.5))[fifo])


def listening(case: Case, **other: object) -> Case:
    """The same without NVML in the containers: the host tells."""
    tenants = tuple(replace(tenant, nvml=False, host=True) for tenant in case.tenants)
    return replace(case, tenants=tenants, **other)  # type: ignore[arg-type]


def told(fifo: bool) -> Iterator[Case]:
    """The cases of blind() with the host's word: the targets are those of NVML in the container."""
    for case in blind(fifo):
        yield listening(case, group="host", below_points=1.5)


def told_changes(fifo: bool) -> Iterator[Case]:
    """How many start at once, and how limits change while neighbours work, where the host's word comes later than NVML's own would."""
    for case in itertools.chain(crowds(fifo), neighbour_changes(fifo)):
        yield listening(case, name=f"{case.name}, host")


def one_key(fifo: bool) -> Iterator[Case]:
    """One function and grid whose kernels are of two lengths (a loop over more or fewer elements): alone, that is no neighbour's work."""
    lengths = ((1000.0, 3000.0), (1000.0, 1000.0, 3000.0), (300.0, 5000.0), (1000.0, 1000.0, 1000.0, 10000.0), (20.0, 2000.0),
               (100.0,) * 7 + (1000.0,))  # fmt: skip
    for sizes, limit, nvml in itertools.product(lengths, (20, 40, 60), (True, False)):
        looks = "+".join(f"{us:g}" for us in sizes) + f" us of one key at {limit}" + ("" if nvml else ", no NVML")
        tenant = Tenant(limit, sizes, one_key=True, nvml=nvml)
        yield Case("one key", looks, (tenant,), fifo=fifo, warmup_ms=8000, length_ms=20000)
        if nvml:
            neighbour = Tenant(30, (1000.0,))
            yield Case(
                "one key", f"{looks}, beside 30 of 1 ms", (tenant, neighbour), fifo=fifo, warmup_ms=8000, length_ms=20000, below_points=2.5
            )


def varied(base: list[Case]) -> Iterator[Case]:
    """Each parameter that matters to the case at half and at one and a half times its value."""
    for case, name, factor in itertools.product(base, PARAMETERS, (0.5, 1.5)):
        if name in HOST_PARAMETERS and not any(tenant.host for tenant in case.tenants):
            continue
        yield replace(
            case, group="varied", name=f"{case.name}, {name} x {factor}", settings={**case.settings, name: PARAMETERS[name] * factor}
        )


def told_held_out(count: int, seed: int) -> Iterator[Case]:
    """The random cases of several tenants, with the host's word instead of NVML and the host at random as well."""
    dice = random.Random(seed)
    for case in held_out(count, seed):
        settings = {**case.settings, **{name: PARAMETERS[name] * dice.uniform(0.5, 1.5) for name in HOST_PARAMETERS}}
        if len(case.tenants) > 1:
            yield listening(case, name=f"{case.name}, host", settings=settings)


def held_out(count: int, seed: int) -> Iterator[Case]:
    """Random cases that nobody looked at while the controller was designed; the seed is the only handle."""
    dice = random.Random(seed)
    for index in range(count):
        fifo = dice.random() < 0.5
        tenant_count = dice.choice((1, 1, 2, 2, 3, 4, 6, 8))
        shares = [dice.uniform(0.3, 1) for _ in range(tenant_count)]
        total = dice.uniform(20, 92) if tenant_count > 1 else dice.uniform(1, 99)
        tenants = []
        largest_us = 10 ** dice.uniform(2, 4)
        for share in shares:
            sizes = tuple(round(largest_us * 10 ** dice.uniform(-1, 0)) for _ in range(dice.choice((1, 1, 2, 4))))
            tenants.append(
                Tenant(
                    max(1, min(99, round(total * share / sum(shares)))),
                    tuple(float(max(20, us)) for us in sizes),
                    sync=dice.random() < 0.3,
                    cv=dice.choice((0.0, 0.0, 0.2, 0.5)),
                    processes=dice.choice((1, 1, 1, 2)),
                    streams=dice.choice((1, 1, 1, 2)),
                )
            )
        settings = {name: value * dice.uniform(0.5, 1.5) for name, value in PARAMETERS.items() if name not in HOST_PARAMETERS}
        name = f"{index}: " + ", ".join(f"{tenant.limit} of {tenant_name(tenant)}" for tenant in tenants)
        length_ms = max(12000.0, *(long_enough_ms(tenant, 200) for tenant in tenants), 0)
        yield Case(
            "held out", name, tuple(tenants), fifo=fifo, settings=settings, warmup_ms=8000, length_ms=min(length_ms, 200000), seed=index + 1
        )
    for index in range(count // 6):
        yield jumping(dice, dice.random() < 0.5, index)


def quick() -> list[Case]:
    cases = list(sweep([1, 5, 20, 35, 50, 65, 80, 95, 99]))
    cases += sweep([5, 50, 95], fifo=True)
    for fifo in (False, True):
        cases += itertools.chain(hostile(fifo), blind(fifo), told(fifo), told_changes(fifo), one_key(fifo), phases(fifo), cold(fifo))
        cases += itertools.chain(
            shared(fifo), crowds(fifo), processes(fifo), changes(fifo), neighbour_changes(fifo), duty(fifo), modes(fifo)
        )
        base = [case for case in (*shared(fifo), *told(fifo)) if case.name in ("30/60 of 1 ms", "10/30/55 mixed")]
        cases += varied(base)
        cases += jumps(fifo, 83)
    return cases


def full() -> list[Case]:
    cases = list(sweep(list(range(1, 100))))
    cases += sweep(list(range(1, 100, 7)), fifo=True)
    for fifo in (False, True):
        for seed in (1, 2, 3):
            for case in itertools.chain(shared(fifo), processes(fifo), changes(fifo), duty(fifo), modes(fifo)):
                cases.append(replace(case, seed=seed, name=f"{case.name}, seed {seed}"))
        cases += itertools.chain(
            hostile(fifo), blind(fifo), told(fifo), told_changes(fifo), one_key(fifo), phases(fifo), cold(fifo), crowds(fifo)
        )
        cases += neighbour_changes(fifo, (0, 64, 128, 192), (0, 60, 120))
        cases += varied([*shared(fifo), *told(fifo)])
        cases += jumps(fifo, 23)
        cases += varied(list(jumps(fifo, 721)))
        cases += [listening(case, name=f"{case.name}, host") for case in jumps(fifo, 101)]
        cases += varied([case for case in changes(fifo) if case.name.startswith("1 ms 50")])
        cases += varied(list(sweep([10, 50, 90], (20.0, 300.0, 10000.0), fifo)))
    return cases
