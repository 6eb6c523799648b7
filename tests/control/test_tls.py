"""Rendezvous over TCP that leaves a host: both ends prove who they are, and rank 0 has a list of who may come."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roce_ring.errors import ConfigError, RoceRingError
from roce_ring.exchange import ExchangeError, RendezvousExchange, Tls

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates; it is not here"
)
Issue = Callable[..., Tls]


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Issue:
    """issue("rank-1", names=(...), ca="main") makes a key and a certificate with that name and the loopback address."""
    where = tmp_path_factory.mktemp("tls")
    fast = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def make(name: str, names: tuple[str, ...], ca: str = "main") -> Tls:
        ca_cert, ca_key = where / f"{ca}.pem", where / f"{ca}.key"
        if not ca_cert.exists():
            openssl(
                "req", "-x509", *fast, "-subj", f"/CN={ca}", "-days", "2", "-keyout", f"{ca_key}", "-out", f"{ca_cert}"
            )
        key, request, cert = (where / f"{ca}-{name}.{end}" for end in ("key", "csr", "pem"))
        openssl("req", *fast, "-subj", f"/CN={name}", "-keyout", f"{key}", "-out", f"{request}")
        extensions = where / "extensions"
        extensions.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
        signer = ("-CA", f"{ca_cert}", "-CAkey", f"{ca_key}", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{request}", *signer, "-extfile", f"{extensions}", "-out", f"{cert}")
        return Tls(ca_cert, cert, key, names)

    return make


def meet(tls: list[Tls | None], timeout_s: float = 1.5) -> list[object]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def rank(number: int) -> object:
        try:
            exchange = RendezvousExchange(address, number, len(tls), timeout_s=timeout_s, tls=tls[number])
        except RoceRingError as error:
            return error
        try:
            return exchange.all_gather(bytes([number]), 5)
        finally:
            exchange.close()

    with ThreadPoolExecutor(len(tls)) as pool:
        return list(pool.map(rank, range(len(tls))))


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roce_ring.control.rendezvous._FAILED_LINGER_S", 0.2)


def test_ranks_with_listed_certificates_meet(issue: Issue) -> None:
    names = ("rank-0", "rank-1", "rank-2")
    assert meet([issue(name, names) for name in names], timeout_s=10) == [[b"\0", b"\1", b"\2"]] * 3


def test_a_good_certificate_that_is_not_on_the_list_is_refused_by_name(issue: Issue) -> None:
    names = ("rank-0", "rank-1")
    host, guest = meet([issue("rank-0", names), issue("other-job", names)])
    assert isinstance(guest, ExchangeError)
    assert "a certificate of 127.0.0.1, other-job is not on rank 0's list of names" in guest.message
    assert "rank 1 did not arrive" in str(host)


@pytest.mark.parametrize("stranger", ["of another authority", "without a certificate"])
def test_a_stranger_never_gets_in(issue: Issue, stranger: str) -> None:
    names = ("rank-0", "rank-1")
    tls = issue("rank-1", names, ca="other") if stranger == "of another authority" else None
    host, guest = meet([issue("rank-0", names), tls])
    assert "rank 1 did not arrive" in str(host)
    assert isinstance(guest, ExchangeError)


def test_all_unreadable_files_are_named_together(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem", ())
    with pytest.raises(ConfigError) as caught:
        RendezvousExchange("10.0.0.1:29400", 1, 2, tls=tls)
    for part in ("ca.pem: no such file", "cert.pem: no such file", "key.pem: no such file", "names is empty"):
        assert part in caught.value.message


def test_a_key_that_is_no_key_is_one_sentence(issue: Issue, tmp_path: Path) -> None:
    good = issue("rank-0", ("rank-0", "rank-1"))
    bad = tmp_path / "bad.key"
    bad.write_text("not a key")
    with pytest.raises(ConfigError, match=r"bad\.key do not load together"):
        RendezvousExchange("127.0.0.1:29400", 0, 2, tls=Tls(good.ca, good.cert, bad, good.names), timeout_s=1)
