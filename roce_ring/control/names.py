"""Who is at the other end of a mutual TLS connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import grpc


def require_name(context: grpc.ServicerContext, names: frozenset[str] | None, whose: str) -> None:
    """TLS has proven that the authority signed the certificate; here its name must be on the list of `whose` too. None
    where there is no TLS: file permissions decide there."""
    if names is None:
        return
    auth = cast("Mapping[str, Iterable[bytes]]", context.auth_context())  # the stub says Iterable[int]
    shown = {
        name.decode(errors="replace")
        for key in ("x509_subject_alternative_name", "x509_common_name")
        for name in auth.get(key, [])
    }
    if not shown & names:
        context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"a certificate of {', '.join(sorted(shown)) or 'nobody'} is not on {whose}'s list of names\n"
            f"add its name to the names that {whose} lets in",
        )
