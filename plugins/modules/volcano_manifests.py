#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Renders Volcano's own chart with the helm binary and sorts what comes out by the part that each object plays."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volcano_manifests
short_description: Render Volcano's chart into objects
version_added: 0.1.0
description:
  - Runs C(helm template), which needs no cluster. Applying the objects is the task of M(tenfold.vgpu.cluster_objects), the scheduler's
    ConfigMap that of M(tenfold.vgpu.volcano_scheduler_config).
  - Writes nothing.
requirements: [helm >= 3.8, PyYAML]
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads]
options:
  helm_binary:
    description: Path or name of the helm binary.
    type: str
    default: helm
  chart:
    description: Folder or archive of the chart, or its name in O(repository), or an C(oci://) reference.
    type: str
    required: true
  repository:
    description: URL of the chart repository where O(chart) is a name; unused where it is a path or an C(oci://) reference.
    type: str
  version:
    description: The version that the chart must have.
    type: str
    required: true
  release_name:
    description: Name of the release; every object's name starts with it.
    type: str
    default: volcano
  namespace:
    description: Namespace of the release.
    type: str
    required: true
  values:
    description: Values of the chart.
    type: dict
    default: {}
  kubernetes_version:
    description: Version of the API server that the chart is rendered for.
    type: str
"""

EXAMPLES = r"""
- name: Render Volcano's chart
  tenfold.vgpu.volcano_manifests:
    chart: ./charts/volcano
    version: 1.15.1
    namespace: volcano-system
"""

RETURN = r"""
crds:
  description: Definitions of custom resources.
  returned: always
  type: list
  elements: dict
init:
  description: What helm would run before the rest, without helm's annotations. A job that makes the webhook's certificate.
  returned: always
  type: list
  elements: dict
objects:
  description: Everything else, less the scheduler's ConfigMap.
  returned: always
  type: list
  elements: dict
config:
  description: The scheduler's ConfigMap.
  returned: always
  type: dict
config_key:
  description: Its key that holds the configuration.
  returned: always
  type: str
scheduler:
  description: Name of the scheduler's Deployment.
  returned: always
  type: str
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import volcano
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ChartError, ClusterError

ARGUMENT_SPEC = {
    "helm_binary": {"type": "str", "default": "helm"},
    "chart": {"type": "str", "required": True},
    "repository": {"type": "str"},
    "version": {"type": "str", "required": True},
    "release_name": {"type": "str", "default": "volcano"},
    "namespace": {"type": "str", "required": True},
    "values": {"type": "dict", "default": {}},
    "kubernetes_version": {"type": "str"},
}
# helm itself answers in under a second; the rest is for a repository that is slow to answer.
_HELM_TIMEOUT_S = 120


def helm(binary: str, arguments: list[str]) -> str:
    """Runs helm; its standard output. Errors: ChartError with helm's own words."""
    done = commands.run([binary, *arguments], _HELM_TIMEOUT_S)
    if done.status == commands.NOT_FOUND:
        raise ChartError(f"helm binary '{binary}' does not exist; install helm 3.8 or newer, or set volcano_helm_binary")
    if not done.has_run:
        raise ChartError(f"helm binary '{binary}' did not run: {done.err}")
    if done.status:
        raise ChartError(f"'{binary} {' '.join(arguments)}' failed: {done.err.strip() or 'no message'}", rc=done.status)
    return done.out


def render(options: dict[str, Any]) -> dict[str, Any]:
    """The chart by part. Errors: ClusterError for a chart that is absent, of another version, or not Volcano's."""
    chart, source = options["chart"], [options["chart"]]
    # A path is recognised by its look: helm would take a missing folder for a repository's name and answer with a puzzle.
    if re.match(r"[./~]", chart):
        source = [str(Path(chart).expanduser())]
        if not Path(source[0]).exists():
            raise ChartError(f"chart '{chart}' does not exist; set volcano_chart to Volcano's chart folder, archive or name")
    elif chart.startswith("oci://"):
        source += ["--version", options["version"]]
    else:
        source += ["--repo", options["repository"] or "", "--version", options["version"]]
    try:
        import yaml
    except ImportError as error:
        raise ChartError(f"the Python that runs API tasks lacks the package 'PyYAML' ({error}); install it there") from error
    found = (yaml.safe_load(helm(options["helm_binary"], ["show", "chart", *source])) or {}).get("version")
    if str(found) != options["version"]:
        raise ChartError(
            f"chart '{options['chart']}' is version {found}, expected {options['version']}; set volcano_version to it, or get that chart"
        )
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder, "values.json")
        values.write_text(json.dumps(options["values"]), encoding="utf-8")
        arguments = [
            "template",
            options["release_name"],
            *source,
            "--namespace",
            options["namespace"],
            "--include-crds",
            "--values",
            str(values),
        ]
        if options["kubernetes_version"]:
            arguments += ["--kube-version", options["kubernetes_version"]]
        rendered = helm(options["helm_binary"], arguments)
    # The C loader where PyYAML has it: the definitions are a megabyte, which takes the Python one ten seconds.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = [document for document in yaml.load_all(rendered, Loader=loader) if document]
    answer: dict[str, Any] = volcano.chart_parts(documents, options["namespace"]).as_dict()
    return answer


def main() -> None:
    """Renders and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        parts = render(module.params)
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    module.exit_json(changed=False, **parts)


if __name__ == "__main__":
    main()
