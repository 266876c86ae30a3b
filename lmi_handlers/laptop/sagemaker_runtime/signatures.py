"""Checks AWS signatures (version 4) and SageMaker's bearer tokens, as AWS does. Needs botocore, whose signer it uses.

    Authorization: AWS4-HMAC-SHA256 Credential=<key id>/<date>/<region>/sagemaker/aws4_request, SignedHeaders=.., Signature=..
    Authorization: Bearer sagemaker-api-key-<base64 of a presigned URL for CallWithBearerToken>

Sources: AWS's pages on signing requests and on their troubleshooting, for the messages; `sagemaker.core.token_generator`
for the token. The hash of the body is part of a signature, so the whole body is read first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import unquote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials
from werkzeug.datastructures import Headers

from lmi_handlers.laptop.sagemaker_runtime.errors import ServiceError, refusal

_ALGORITHM = "AWS4-HMAC-SHA256"
_SERVICE = "sagemaker"
_SKEW = timedelta(minutes=5)
_TIME = "%Y%m%dT%H%M%SZ"
_PAYLOAD_HASH = "X-Amz-Content-SHA256"
_UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_TOKEN_PREFIX = "sagemaker-api-key-"  # noqa: S105  not a secret
_TOKEN_HOST = "sagemaker.amazonaws.com"  # noqa: S105
_TOKEN_SECONDS = 12 * 3600
_TOKEN_QUERY = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")

_NOT_SIGNED = "Missing Authentication Token"
_MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_UNKNOWN = "The security token included in the request is invalid."


class _Scope(NamedTuple):
    key_id: str
    date: str
    region: str


class _Signer(SigV4Auth):
    """Signs exactly the headers that the client has signed. botocore's own choice is another."""

    def __init__(self, secret: str, scope: _Scope, signed: Sequence[str]) -> None:
        super().__init__(Credentials(scope.key_id, secret), _SERVICE, scope.region)
        self._signed = signed

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        headers = HTTPHeaders()
        for name in self._signed:
            headers[name] = request.headers.get(name, "")
        return headers

    def signature_of(self, request: AWSRequest, time: str) -> str:
        request.context["timestamp"] = time
        signature: str = self.signature(self.string_to_sign(request, self.canonical_request(request)), request)
        return signature


class Signatures:
    """Access keys by id, and the checks. Both checks raise a `ServiceError`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys

    def check(self, method: str, target: str, headers: Headers, body: bytes) -> None:
        """Check a signed request. `target` is its path and query, as they were sent."""
        scheme, _, rest = headers.get("Authorization", "").partition(" ")
        if scheme != _ALGORITHM:
            raise refusal(403, "MissingAuthenticationTokenException", _NOT_SIGNED)
        given = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        time = headers.get("X-Amz-Date") or _basic(headers.get("Date", ""))
        missing = [
            f"Authorization header requires '{name}' parameter."
            for name in ("Credential", "Signature", "SignedHeaders")
            if not given.get(name)
        ]
        if not time:
            missing.append("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
        if missing:
            raise refusal(403, "IncompleteSignatureException", " ".join(missing))
        signed = given["SignedHeaders"].lower().split(";")
        if "host" not in signed:
            raise _invalid("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
        scope = _scope(given["Credential"], time)
        _check_clock(time, datetime.now(timezone.utc))
        payload = headers.get(_PAYLOAD_HASH)
        if payload not in (None, _UNSIGNED_PAYLOAD, hashlib.sha256(body).hexdigest()):
            raise _invalid("The provided 'x-amz-content-sha256' header does not match what was computed.")
        carried = {name: headers[name] for name in signed if name in headers}
        if payload is not None:
            carried[_PAYLOAD_HASH.lower()] = payload
        request = AWSRequest(method, f"http://local{target}", carried, data=body)
        self._compare(_Signer(self._secret(scope), scope, signed).signature_of(request, time), given["Signature"])

    def check_token(self, token: str) -> None:
        """Check a bearer token."""
        try:
            url = base64.b64decode(token.removeprefix(_TOKEN_PREFIX), validate=True).decode("ascii")
        except ValueError as error:  # not ASCII, not base64, or not ASCII in base64
            raise refusal(403, "UnrecognizedClientException", _UNKNOWN) from error
        place, _, query = url.partition("?")
        pairs = [pair.partition("=")[::2] for pair in query.split("&")]
        values = {unquote(name): unquote(value) for name, value in pairs}
        wanted = [values.get(f"X-Amz-{name}", "") for name in _TOKEN_QUERY]
        algorithm, credential, time, expires, signed, signature = wanted
        is_token = token.startswith(_TOKEN_PREFIX) and place == f"{_TOKEN_HOST}/" and len(values) == len(pairs)
        is_call = values.get("Action") == "CallWithBearerToken" and algorithm == _ALGORITHM and signed == "host"
        if not (is_token and is_call and all(wanted) and re.fullmatch("[0-9]{1,6}", expires)):
            raise refusal(403, "UnrecognizedClientException", _UNKNOWN)
        scope = _scope(credential, time)
        rest = "&".join(f"{name}={value}" for name, value in pairs if name not in ("X-Amz-Signature", "Version"))
        request = AWSRequest("POST", f"https://{place}?{rest}", {"host": _TOKEN_HOST})
        self._compare(_Signer(self._secret(scope), scope, ["host"]).signature_of(request, time), signature)
        began = _moment(time)
        lifetime = timedelta(seconds=min(int(expires), _TOKEN_SECONDS))
        if not began - _SKEW <= datetime.now(timezone.utc) < began + lifetime:
            raise refusal(403, "ExpiredTokenException", "Bearer Token has expired")

    def _secret(self, scope: _Scope) -> str:
        try:
            return self._keys[scope.key_id]
        except KeyError:
            raise refusal(403, "UnrecognizedClientException", _UNKNOWN) from None

    @staticmethod
    def _compare(expected: str, given: str) -> None:
        if not hmac.compare_digest(expected.encode(), given.encode()):
            raise _invalid(_MISMATCH)


def _invalid(message: str) -> ServiceError:
    return refusal(403, "InvalidSignatureException", message)


def _scope(credential: str, time: str) -> _Scope:
    """Read `<key id>/<date>/<region>/<service>/aws4_request`."""
    parts = credential.split("/")
    if len(parts) != 5 or not all(parts):
        raise refusal(
            403,
            "IncompleteSignatureException",
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term",
        )
    key_id, date, region, service, term = parts
    if service != _SERVICE:
        raise _invalid(f"Credential should be scoped to correct service: '{_SERVICE}'.")
    if term != "aws4_request":
        raise _invalid("Credential should be scoped with a valid terminator: 'aws4_request'.")
    if date != time[:8]:
        raise _invalid(
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '{date[:16]}' != "
            f"'{time[:8]}', from '{time[:32]}'."
        )
    return _Scope(key_id, date, region)


def _basic(date: str) -> str:
    """Return the time of a `Date` header in the format of `X-Amz-Date`, or the header itself if it is no HTTP date."""
    try:
        return parsedate_to_datetime(date).astimezone(timezone.utc).strftime(_TIME)
    except (TypeError, ValueError, OverflowError):
        return date


def _moment(time: str) -> datetime:
    try:
        return datetime.strptime(time, _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise refusal(
            403, "IncompleteSignatureException", f"Date must be in ISO-8601 'basic format'. Got '{time[:32]}'."
        ) from None


def _check_clock(time: str, now: datetime) -> None:
    signed = _moment(time)
    if signed < now - _SKEW:
        raise _invalid(f"Signature expired: {time} is now earlier than {now - _SKEW:{_TIME}} ({now:{_TIME}} - 5 min.)")
    if signed > now + _SKEW:
        raise _invalid(
            f"Signature not yet current: {time} is still later than {now + _SKEW:{_TIME}} ({now:{_TIME}} + 5 min.)"
        )
