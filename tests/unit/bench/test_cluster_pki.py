"""Certificates: Kubernetes finds user, group and names where it looks for them, and the authority signed them."""

from __future__ import annotations

import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from tests.cluster.identities import Identities


@pytest.fixture(scope="module")
def identities() -> Identities:
    return Identities.issue()


def certificate(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def attribute(one: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str | bytes]:
    return [found.value for found in one.subject.get_attributes_for_oid(oid)]


def test_kubelet_is_a_node_by_name_and_group(identities: Identities) -> None:
    one = certificate(identities.kubelets["tenfold-gpu-1"].certificate)
    assert attribute(one, NameOID.COMMON_NAME) == ["system:node:tenfold-gpu-1"]
    assert attribute(one, NameOID.ORGANIZATION_NAME) == ["system:nodes"]


def test_administrator_is_a_master(identities: Identities) -> None:
    assert attribute(certificate(identities.admin.certificate), NameOID.ORGANIZATION_NAME) == ["system:masters"]


def test_controllers_have_no_group_of_their_own(identities: Identities) -> None:
    assert attribute(certificate(identities.controller_manager.certificate), NameOID.ORGANIZATION_NAME) == []


def test_api_server_is_valid_for_its_address_and_its_service(identities: Identities) -> None:
    extension = certificate(identities.apiserver.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = extension.get_values_for_type(x509.IPAddress)
    assert {ipaddress.ip_address("10.77.0.10"), ipaddress.ip_address("10.96.0.1")} <= set(addresses)
    assert "kubernetes.default.svc" in extension.get_values_for_type(x509.DNSName)


def test_authority_signed_every_certificate(identities: Identities) -> None:
    authority = certificate(identities.authority_certificate)
    for pair in (identities.admin, identities.apiserver, identities.proxy, *identities.kubelets.values()):
        certificate(pair.certificate).verify_directly_issued_by(authority)


def test_key_belongs_to_its_certificate(identities: Identities) -> None:
    key = load_pem_private_key(identities.admin.key.encode(), None)
    assert key.public_key() == certificate(identities.admin.certificate).public_key()
