"""Pages of the Simple API (PEP 503, 592, 629, 658, 691, 700, 714), JSON and HTML, read within bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from stack_builder import jsontext
from stack_builder.errors import IntegrityError
from stack_builder.wheels.http import Page, redact
from stack_builder.wheels.paths import MAX_PART, unsafe

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
MAX_PAGE = 64 << 20  # bytes; nightly builds of large projects reach some 10 MB
MAX_TAG = 64 << 10  # characters of one tag or comment in an HTML page
MAX_FILES = 200_000

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = ("application/vnd.pypi.simple.v1+html", "text/html")
_ARCHIVE = re.compile(r"\.(whl|tar\.gz|zip)([?#]|$)")  # other links of an HTML page are navigation
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEXT_LIMIT = 4096  # characters of one value
_BROKEN = "report it to whoever runs that index"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file that an index lists. One file name may be listed several times, with other hashes.

    Attributes:
        filename: a plain name.
        url: absolute, without fragment.
        sha256: None where the index gives none.
        size: in bytes; None where not given (HTML pages never do).
        uploaded: ISO time; None where not given.
        yanked: the reason, ``no reason given`` without one; None for a file that is not yanked.
        requires_python: None where not given.
        metadata_sha256: of the METADATA file beside it (PEP 658); empty where it is offered without a hash, None
            where it is not offered.
    """

    filename: str
    url: str
    sha256: str | None
    size: int | None = None
    uploaded: str | None = None
    yanked: str | None = None
    requires_python: str | None = None
    metadata_sha256: str | None = None


def parse_page(page: Page) -> tuple[IndexFile, ...]:
    """Read the files of a project page, in the page's order.

    Raises:
        IntegrityError: neither JSON nor HTML, malformed, beyond the bounds, or links that no index page should hold.
    """
    where = redact(page.url)
    if page.media_type == _JSON:
        files = _parse_json(page)
    elif page.media_type in _HTML:
        files = _parse_html(page)
    else:
        kind = page.media_type[:80] or "nothing"
        raise IntegrityError(f"answers with {kind}, not with a Simple API page", where=where, fix=_BROKEN)
    if len(files) > MAX_FILES:
        raise IntegrityError(f"lists more than {MAX_FILES} files", where=where, fix=_BROKEN)
    return tuple(files)


def _parse_json(page: Page) -> list[IndexFile]:
    try:
        body: Any = jsontext.loads(page.body)
        version = str(body["meta"]["api-version"])
        if version.partition(".")[0] != "1":
            raise ValueError(f"API version {version[:20]} is not 1.x")
        return [_json_file(row, page.url) for row in body["files"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise IntegrityError(f"malformed index page ({reason})", where=redact(page.url), fix=_BROKEN) from error


def _json_file(row: Mapping[str, object], page_url: str) -> IndexFile:
    hashes = row["hashes"]
    yanked = row.get("yanked", False)
    metadata = row.get("core-metadata", row.get("dist-info-metadata", row.get("data-dist-info-metadata", False)))
    size = row.get("size")
    if not isinstance(hashes, dict):
        raise TypeError("hashes is no object")
    return IndexFile(
        filename=_plain(_text(row["filename"])),
        url=_link(page_url, page_url, _text(row["url"])),
        sha256=_sha256(hashes.get("sha256")),
        size=size if isinstance(size, int) and size >= 0 else None,
        uploaded=_optional(row.get("upload-time")),
        yanked=_yanked(yanked if isinstance(yanked, str) else "") if yanked else None,
        requires_python=_optional(row.get("requires-python")),
        metadata_sha256=(_sha256(metadata.get("sha256")) or "")
        if isinstance(metadata, dict)
        else ("" if metadata else None),
    )


class _Links(HTMLParser):
    """Collects the attributes of ``<a href>`` and the page's ``<base href>``."""

    def __init__(self) -> None:
        super().__init__()
        self.base: str | None = None
        self.links: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See :class:`html.parser.HTMLParser`."""
        values = {name: value or "" for name, value in attrs}
        if tag == "base" and self.base is None:
            self.base = values.get("href")
        elif tag == "a" and "href" in values:
            self.links.append(values)


def _parse_html(page: Page) -> list[IndexFile]:
    text = page.body.decode("utf-8", "replace")
    parser = _Links()
    # Fed in pieces: what the parser holds back is one unfinished tag or comment, so its length can be bounded before
    # the parser's own search through it becomes quadratic. Nothing of a page matters after its last whole tag.
    for start in range(0, len(text), MAX_TAG):
        try:
            parser.feed(text[start : start + MAX_TAG])
        except AssertionError as error:  # how the parser answers "<![x" (CPython's _markupbase)
            raise IntegrityError(
                f"malformed index page ({error})"[:300], where=redact(page.url), fix=_BROKEN
            ) from error
        if len(parser.rawdata) > MAX_TAG or len(parser.links) > MAX_FILES:
            raise IntegrityError("malformed index page (endless tag)", where=redact(page.url), fix=_BROKEN)
    try:
        base = urljoin(page.url, parser.base) if parser.base else page.url
        return [_html_file(values, base, page.url) for values in parser.links if _ARCHIVE.search(values["href"])]
    except ValueError as error:
        raise IntegrityError(f"malformed index page ({error})"[:300], where=redact(page.url), fix=_BROKEN) from error


def _html_file(values: dict[str, str], base: str, page_url: str) -> IndexFile:
    parts = urlsplit(_text(values["href"]))
    algorithm, _, digest = parts.fragment.partition("=")
    metadata = values.get("data-core-metadata", values.get("data-dist-info-metadata"))
    return IndexFile(
        filename=_plain(unquote(parts.path.rpartition("/")[2])),
        url=_link(page_url, base, parts._replace(fragment="").geturl()),
        sha256=_sha256(digest) if algorithm == "sha256" else None,
        yanked=_yanked(values["data-yanked"]) if "data-yanked" in values else None,
        requires_python=_optional(values.get("data-requires-python")),
        metadata_sha256=None if metadata in (None, "false") else _sha256(metadata.removeprefix("sha256=")) or "",
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT:
        raise ValueError(f"a value is no text of at most {_TEXT_LIMIT} characters")
    return value


def _optional(value: object) -> str | None:
    return None if value is None or value == "" else _text(value)


def _plain(name: str) -> str:
    reason = "it holds a '/'" if "/" in name else "it is too long" if len(name) > MAX_PART else unsafe(name)
    if reason:
        raise ValueError(f"file name '{name[:80]}' is not plain: {reason}")
    return name


def _yanked(reason: str) -> str:
    return _text(reason).strip() or "no reason given"


def _sha256(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and _SHA256.fullmatch(value.lower()) else None


def _link(page_url: str, base: str, url: str) -> str:
    """Make a link absolute; a page may not lead out of the web into files, nor from https to http."""
    absolute = urljoin(base, url)
    source, target = urlsplit(page_url).scheme, urlsplit(absolute).scheme
    allowed = {"https": ("https",), "http": ("https", "http"), "file": ("https", "http", "file")}[source]
    if target not in allowed:
        raise ValueError(f"{source} page links to a {target[:20] or 'strange'} address: {redact(absolute)[:120]}")
    return absolute
