"""Manifests of containers of several files: JSON with the name of the format, the digest of every file, and its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from exporter.archive.contract_text import StrictlyRead, check_limits, describe_invalid, is_file_name, parse_strictly
from exporter.common.errors import ArchiveError


@dataclass(frozen=True)
class Manifest(StrictlyRead):
    """What every manifest has: ``files`` are digests by name, and ``sha256`` is that of all the rest."""

    format: str
    files: dict[str, str]
    sha256: str


def seal_manifest(content: Mapping[str, Any]) -> bytes:
    """Return the JSON of a manifest, with its own digest."""
    return _format_manifest(content, _compute_seal(content))


def parse_manifest(
    data: bytes, manifest_type: TypeAdapter[Any], format_name: str, *, owner: str, where: str
) -> dict[str, Any]:
    """Return a manifest without its digest, which it has been held against. Files are in one folder.

    ``owner`` is what the manifest belongs to, for messages. Raises ``ArchiveError``."""
    what = f"the {owner}'s manifest is damaged"
    content: dict[str, Any] = {}
    try:
        content = parse_strictly(data)
        check_limits(content, what, where)
        manifest_type.validate_json(data)
        seal = content.pop("sha256")
        fault = _find_fault(content, seal, data, format_name)
    except ValidationError as error:
        fault = describe_invalid(error)
    except ValueError as error:
        fault = str(error)
    if fault:
        expected, mend = f"a manifest written by torchferry: {format_name}", "copy it again, or export the model again"
        raise ArchiveError(what, where=where, got=fault, expected=expected, mend=mend)
    return content


def _find_fault(content: Mapping[str, Any], seal: str, data: bytes, format_name: str) -> str:
    """Return what is wrong with a manifest whose fields have their types, or an empty text."""
    if strange := next((name for name in content["files"] if not is_file_name(name)), None):
        return f"a file {strange!r}"
    if content["format"] != format_name:
        return f"the format {content['format']!r}"
    if seal != _compute_seal(content):
        return "a text that does not match its own sha256"
    # One spelling only: a byte changed between two tokens is damage as well.
    return "" if data == _format_manifest(content, seal) else "another spelling of the same JSON"


def _format_manifest(content: Mapping[str, Any], seal: str) -> bytes:
    return json.dumps({**content, "sha256": seal}, indent=1, ensure_ascii=False).encode()


def _compute_seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
