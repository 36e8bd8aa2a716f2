"""The life of the fleet: up, down, status. Starts what the pure parts describe and waits, with deadlines, until it is true.

``up`` on a healthy fleet only looks; anything else (never there, half made, other inputs) is removed by its names and made anew, which
takes seconds because everything slow is in the cache.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import command, driver, fingerprint, inputs, kubeconfig, layout, leftovers, lock, machine, network, podman, wait
from .api import Api
from .console import Console
from .disk import Content, Disk
from .errors import FleetError
from .identities import Identities
from .images import Archive
from .inputs import Inputs
from .layout import Machine
from .paths import Paths

API_DEADLINE_SECONDS = 90
NODE_DEADLINE_SECONDS = 90
SERVICE_DEADLINE_SECONDS = 30
START_DEADLINE_SECONDS = 60
RUNTIME_DEADLINE_SECONDS = 60
IMPORT_DEADLINE_SECONDS = 300
JOURNAL_LINES = 12


@dataclass(frozen=True)
class Fleet:
    """The fleet of one user on this machine; there is one, because its names and addresses are fixed."""

    paths: Paths
    console: Console

    def up(self, *, with_driver: bool = True) -> None:
        """Bring the fleet up, or see that it is.

        Errors: FleetError naming what did not come up, with that machine's journal.
        """
        with lock.held(self.paths.fleet_lock, "bring the fleet up"):
            made = inputs.ensure(self.paths, self.console, with_driver=with_driver)
            reason = self._reason_to_make(made)
            if reason is None:
                self.console.say("the fleet is up already")
                return
            if leftovers.found(self.paths.sim):
                self.console.say(f"removing the fleet that is there: {reason}")
                leftovers.remove(self.paths.sim)
            try:
                self._make(made)
            except FleetError as error:
                raise FleetError(f"{error}\nall journals: {self._save_journals()}") from error

    def down(self) -> None:
        """Remove everything of the fleet; the cache stays."""
        with lock.held(self.paths.fleet_lock, "take the fleet down"):
            if not leftovers.found(self.paths.sim):
                self.console.say("no fleet to remove")
                return
            leftovers.remove(self.paths.sim)
            left = leftovers.found(self.paths.sim)
            if left:
                raise FleetError(f"still there after removal: {', '.join(left)}")
            self.console.say("the fleet is gone")

    def status(self) -> tuple[bool, list[str]]:
        """(healthy, one line per machine and thing)."""
        there = leftovers.found(self.paths.sim)
        if not there:
            return False, ["no fleet; 'python3 -m tests.cluster up' makes one"]
        lines = []
        healthy = True
        for one in layout.MACHINES:
            missing = self._missing_machine(one)
            healthy = healthy and missing is None
            lines.append(f"{one.name:<18} {one.address:<12} {'up' if missing is None else missing}")
        if not healthy:
            return False, [*lines, "run 'python3 -m tests.cluster up' to make it anew"]
        missing = self._api().missing_nodes([one.name for one in layout.MACHINES])
        lines.append(f"{'nodes':<31} {'all ready' if missing is None else missing}")
        return missing is None, lines

    def journal(self, name: str, unit: str | None = None, lines: int = JOURNAL_LINES) -> str:
        """The end of a machine's journal, of one unit or of all warnings."""
        argv = ["podman", "exec", name, "journalctl", "--no-pager", "--no-hostname", f"--lines={lines}"]
        argv += [f"--unit={unit}"] if unit else ["--priority=warning"]
        done = command.run(argv, env=podman.environment(), allowed=(0, 1, 125, 126, 127, 137, 255))
        return f"journal of {name}{f', {unit}' if unit else ''}:\n" + (done.stdout or done.stderr)

    def _save_journals(self) -> Path:
        """Keep what machines had to say, because the next ``up`` removes them."""
        folder = self.paths.logs / "fleet"
        folder.mkdir(parents=True, exist_ok=True)
        for one in layout.MACHINES:
            argv = ["podman", "exec", one.name, "journalctl", "--no-pager", "--no-hostname"]
            done = command.run(argv, env=podman.environment(), allowed=tuple(range(256)))
            (folder / f"{one.name}.log").write_text(done.stdout or done.stderr, encoding="utf-8")
        return folder

    def _api(self) -> Api:
        return Api(self.paths.sim / "pki")

    def _disk(self, one: Machine) -> Disk:
        return Disk(one, self.paths.sim / "machines" / one.name)

    def _key(self, made: Inputs) -> str:
        """Changes when anything that machines are made of does, and not when only the harness' own code does."""
        parts: list[str] = [made.key]
        for one in layout.MACHINES:
            disk = self._disk(one)
            parts += [repr(network.machine_up(one, layout.MACHINES)), repr(podman.run_argv(one, disk.root, disk.volumes, layout.MACHINES))]
            parts += [repr(machine.programs(one)), repr(machine.files(one, Identities.blank()))]
        return fingerprint.of(*parts)

    def _reason_to_make(self, made: Inputs) -> str | None:
        """None when a healthy fleet of these inputs is there, else why it must be made."""
        try:
            state = json.loads((self.paths.sim / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "it was never finished"
        if state.get("key") != self._key(made):
            return "it was made from other inputs"
        for one in layout.MACHINES:
            missing = self._missing_machine(one)
            if missing is not None:
                return f"{one.name} is {missing}"
        # right after a reboot of a node its Ready condition may lag
        try:
            self._wait_for_nodes(self._api(), START_DEADLINE_SECONDS)
        except FleetError as error:
            return str(error)
        return None

    def _missing_machine(self, one: Machine) -> str | None:
        """None when the machine runs, else its state in one word; podman's word is not enough, it survives a killed conmon."""
        argv = ["podman", "container", "inspect", "--format", "{{.State.Status}} {{.State.Pid}}", one.name]
        state, _, process = command.run(argv, env=podman.environment(), allowed=(0, 125)).stdout.strip().partition(" ")
        if state != "running":
            return state or "absent"
        return None if Path(f"/proc/{process}/root/run/systemd/system").is_dir() else "dead"

    def _make(self, made: Inputs) -> None:
        identities = Identities.issue()
        self.paths.sim.mkdir(parents=True)
        server = Api.with_identities(self.paths.sim / "pki", identities)
        self._lay_network()
        for one in layout.MACHINES:
            self._lay_disk(one, made, identities)
        self.console.say("machines are prepared")
        with ThreadPoolExecutor() as pool:
            self._start(layout.CONTROL)
            imports = [pool.submit(self._import, layout.CONTROL, [made.pause, *made.volcano])]
            for one in layout.GPU_NODES:
                self._start(one)
                imports.append(pool.submit(self._import, one, [made.pause]))
            self._wait_for_api(server)
            self._wait_for_nodes(server, NODE_DEADLINE_SECONDS)
            self.console.say("all nodes are ready")
            self._wait_for_imports(imports)
        server.label_control_plane(layout.CONTROL.name)
        for one in layout.MACHINES:
            self._wait_for_service(one)
        text = kubeconfig.text(layout.API_URL, identities.authority_certificate, identities.admin, "kubernetes-admin")
        self.paths.kubeconfig.write_text(text, encoding="utf-8")
        self.paths.kubeconfig.chmod(0o600)
        (self.paths.sim / "state.json").write_text(json.dumps({"key": self._key(made)}) + "\n", encoding="utf-8")
        self.console.say(f"the fleet is up: export KUBECONFIG={self.paths.kubeconfig}")

    def _lay_network(self) -> None:
        for argv in network.bridge_up():
            command.run(argv)
        for one in layout.MACHINES:
            for argv in network.machine_up(one, layout.MACHINES):
                command.run(argv)

    def _lay_disk(self, one: Machine, made: Inputs, identities: Identities) -> None:
        disk = self._disk(one)
        contents = [Content(f"usr/bin/{program}", made.components[component] / program) for component, program in machine.programs(one)]
        files = machine.files(one, identities)
        units = machine.units(one)
        if one.cards and made.driver:
            contents += made.driver.contents()
            files += made.driver.files(one)
            units.append(driver.UNIT)
        disk.create(made.node, contents)
        disk.write(files)
        disk.enable({unit.name: unit.wanted_by for unit in units})
        # as the trigger of a library's package does; the NVIDIA toolkit looks into the cache
        command.run(["ldconfig", "-r", disk.root])

    def _start(self, one: Machine) -> None:
        disk = self._disk(one)
        argv = podman.run_argv(one, disk.root, disk.volumes, layout.MACHINES)
        command.run(argv, env=podman.environment(), deadline_seconds=START_DEADLINE_SECONDS)
        self.console.say(f"{one.name} is started")

    def _import(self, one: Machine, archives: list[Archive]) -> None:
        """Import images as an air-gapped site does: an archive into each machine's containerd."""
        containerd = ["podman", "exec", one.name, "ctr", "--timeout", "2s", "version"]

        def missing() -> str | None:
            done = command.run(containerd, env=podman.environment(), allowed=tuple(range(256)))
            return None if done.returncode == 0 else done.stderr.strip()

        what = f"containerd of {one.name}"
        wait.until(what, missing, deadline_seconds=RUNTIME_DEADLINE_SECONDS, diagnose=lambda: self.journal(one.name, "containerd.service"))
        for archive in archives:
            argv = ["podman", "exec", "--interactive", one.name, "ctr", "--namespace", "k8s.io", "images", "import", "--local", "-"]
            with archive.path.open("rb") as data:
                command.run(argv, stdin=data, env=podman.environment(), deadline_seconds=IMPORT_DEADLINE_SECONDS)
        self.console.say(f"{one.name} has {len(archives)} images")

    def _wait_for_imports(self, imports: list[Future[None]]) -> None:
        for future in imports:
            future.result()

    def _wait_for_api(self, server: Api) -> None:
        def diagnose() -> str:
            return "\n".join(self.journal(layout.CONTROL.name, unit) for unit in ("etcd.service", "kube-apiserver.service"))

        wait.until("the API server", server.missing_readiness, deadline_seconds=API_DEADLINE_SECONDS, diagnose=diagnose)
        self.console.say("the API server serves")

    def _wait_for_nodes(self, server: Api, deadline_seconds: float) -> None:
        for one in layout.MACHINES:

            def diagnose(name: str = one.name) -> str:
                return "\n".join(self.journal(name, unit) for unit in ("kubelet.service", "containerd.service"))

            def missing(name: str = one.name) -> str | None:
                return server.missing_nodes([name])

            wait.until(f"node {one.name}", missing, deadline_seconds=deadline_seconds, diagnose=diagnose)

    def _wait_for_service(self, one: Machine) -> None:
        """Service addresses work inside a machine once kube-proxy wrote its rules."""
        probe = f"exec 3<>/dev/tcp/{layout.API_SERVICE_ADDRESS}/443"
        argv = ["nsenter", f"--net=/run/netns/{one.name}", "timeout", "1", "bash", "-c", probe]

        def missing() -> str | None:
            done = command.run(argv, allowed=tuple(range(256)))
            return None if done.returncode == 0 else f"no answer from {layout.API_SERVICE_ADDRESS}:443"

        what = f"service addresses on {one.name}"
        wait.until(what, missing, deadline_seconds=SERVICE_DEADLINE_SECONDS, diagnose=lambda: self.journal(one.name, "kube-proxy.service"))
