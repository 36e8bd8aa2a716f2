#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The node's half of the action container_image_archive: asks containerd for an image, and imports an archive that lies on the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_image_archive
short_description: Have an image of an archive in a node's containerd
version_added: 0.1.0
description:
  - Imports an image from an OCI archive on the controller where the node's containerd does not have this very image. The archive is read on
    the controller; it travels to the node only if it is needed there.
  - Runs as an action plugin; the module of the same name is its half on the node.
requirements: [ctr of containerd >= 1.7 on the node]
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.attributes.action]
options:
  image:
    description: Full name of the image, with registry and tag, as pods name it.
    type: str
    required: true
  archive:
    description: OCI archive on the controller, as C(podman save --format oci-archive) writes it.
    type: path
    required: true
  ctr_binary:
    description: Path or name of C(ctr) on the node.
    type: str
    default: ctr
  address:
    description: Socket of containerd on the node.
    type: path
    default: /run/containerd/containerd.sock
  containerd_namespace:
    description: Namespace of containerd in which the kubelet looks for images.
    type: str
    default: k8s.io
  digest:
    description: The image's digest. Set by the action plugin.
    type: str
  remote_archive:
    description: Where the archive lies on the node, if it does. Set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Import an image
  tenfold.vgpu.container_image_archive:
    image: localhost/example:1.0
    archive: build/example.tar
"""

RETURN = r"""
digest:
  description: The digest that the image has in the archive.
  returned: always
  type: str
previous_digest:
  description: The digest that the node's image of that name had before, empty if there was none.
  returned: always
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands

ARGUMENT_SPEC = {
    "image": {"type": "str", "required": True},
    "archive": {"type": "path", "required": True},
    "ctr_binary": {"type": "str", "default": "ctr"},
    "address": {"type": "path", "default": "/run/containerd/containerd.sock"},
    "containerd_namespace": {"type": "str", "default": "k8s.io"},
    "digest": {"type": "str"},
    "remote_archive": {"type": "path"},
}
# A gigabyte on a slow disk.
_CTR_TIMEOUT_S = 300


class CtrError(Exception):
    """containerd is not there or refuses; the message says what to do."""


def ctr(options: dict[str, Any], *arguments: str) -> str:
    """Standard output of one call. Errors: CtrError."""
    argv = [options["ctr_binary"], "--address", options["address"], "--namespace", options["containerd_namespace"], *arguments]
    done = commands.run(argv, _CTR_TIMEOUT_S)
    if done.status == commands.NOT_FOUND:
        raise CtrError(
            f"'{options['ctr_binary']}' does not exist on this node; set vgpu_device_plugin_ctr_binary, or leave "
            "vgpu_device_plugin_image_archive empty and push the image to a registry"
        )
    if done.status:
        raise CtrError(f"'{' '.join(argv)}' {'failed' if done.has_run else 'did not run'}: {done.message or 'no message'}")
    return done.out


def digests_of(listing: str) -> dict[str, str]:
    """Image name -> digest in the table that `ctr images ls` prints (REF TYPE DIGEST SIZE PLATFORMS LABELS)."""
    rows = [line.split() for line in listing.splitlines()[1:]]
    return {row[0]: next((word for word in row if word.startswith("sha256:")), "") for row in rows if row}


def ensure(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Whether the image had (or has) to be imported. Errors: CtrError."""
    image, digest = options["image"], options["digest"]
    present = digests_of(ctr(options, "images", "ls"))
    answer = {"changed": present.get(image) != digest, "digest": digest, "previous_digest": present.get(image, "")}
    if not answer["changed"] or check_mode or not options["remote_archive"]:
        return answer
    ctr(options, "images", "import", options["remote_archive"])
    present = digests_of(ctr(options, "images", "ls"))
    if present.get(image) != digest:
        # The archive knows the image by another name.
        source = next((name for name, other in present.items() if other == digest), None)
        if source is None:
            raise CtrError(f"containerd has imported the archive, but has no image with digest {digest} now; see its log on this node")
        ctr(options, "images", "tag", "--force", source, image)
    return answer


def main() -> None:
    """Asks, imports if the archive is here, reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    if not module.params["digest"]:
        msg = "digest is empty: this module is one half of an action plugin; call it by its full name, tenfold.vgpu.container_image_archive"
        module.fail_json(msg=msg)
    try:
        answer = ensure(module.params, module.check_mode)
    except CtrError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
