"""What a browser sees: `/`, `/docs` and `/openapi.json`.

The pages are rendered once, from the OpenAPI document, and then served from memory. They hold no data and
need no key. Their policy lets in nothing but the inline style and script that they were rendered with.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape
from quart import Response as QuartResponse
from quart_trio import QuartTrio

from gateway.full_lane import page_templates
from gateway.full_lane.app import Register
from gateway.full_lane.openapi import EDGE_STATUSES, JSON, SCHEMAS, build_document
from gateway.full_lane.openapi_parts import Json
from gateway.service import Api

_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}

_DURABILITY = [
    ("ephemeral", "at once; records live in memory only", "The records are gone; their seqs are never reused."),
    ("memory", "once handed to the log", "They may or may not be there."),
    ("disk", "once handed to the log, which is synced in the background", "All but a short unsynced tail is there."),
    ("fsync", "after the sync", "Every acknowledged record is there."),
]  # fmt: skip


def register_pages(api: Api) -> Register:
    pages = Pages(api)

    def register(app: QuartTrio) -> None:
        _add(app, "/", "landing", lambda: pages.landing)
        _add(app, "/docs", "docs", lambda: pages.docs)
        _add(app, "/openapi.json", "openapi", lambda: pages.openapi)

    return register


def _add(app: QuartTrio, path: str, name: str, page: Callable[[], Page]) -> None:
    async def serve() -> QuartResponse:
        return page().response()

    app.add_url_rule(path, name, serve, methods=["GET"], provide_automatic_options=False)


class Page:
    """A document as it is sent. `policy` is its Content-Security-Policy."""

    def __init__(self, body: bytes, content_type: str, policy: str) -> None:
        self._body = body
        self._content_type = content_type
        self._policy = policy

    def response(self) -> QuartResponse:
        headers = {**_PAGE_HEADERS, "Content-Security-Policy": self._policy}
        return QuartResponse(self._body, content_type=self._content_type, headers=headers)


class Pages:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._templates = Environment(
            autoescape=True,
            undefined=StrictUndefined,
            loader=DictLoader({"docs": page_templates.DOCS, "landing": page_templates.LANDING}),
        )

    @cached_property
    def document(self) -> Json:
        return build_document(self._api.router.routes, self._api.settings, self._api.version)

    @cached_property
    def openapi(self) -> Page:
        body = msgspec.json.format(msgspec.json.encode(self.document), indent=1)
        return Page(body, JSON, "default-src 'none'; frame-ancestors 'none'")

    @cached_property
    def landing(self) -> Page:
        return self._page(
            "landing", page_templates.LANDING_SCRIPT, {"title": "topicsd", "version": self._api.version}
        )

    @cached_property
    def docs(self) -> Page:
        return self._page("docs", page_templates.DOCS_SCRIPT, docs_context(self.document))

    def _page(self, template: str, script: str, context: Json) -> Page:
        style = page_templates.STYLE
        # Both are constants of ours, and their hashes hold only if they are not escaped.
        inline = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
        text = self._templates.get_template(template).render(**context, **inline)
        policy = (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Page(text.encode(), "text/html; charset=utf-8", policy)


def _hash(inline: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()


# --- the document in the words of the templates -----------------------------------------------------------


def docs_context(document: Json) -> Json:
    groups = [
        {
            "name": tag["name"],
            "text": prose(tag["description"]),
            "operations": _operations(document, tag["name"]),
        }
        for tag in document["tags"]
    ]
    return {
        "title": "topicsd HTTP API",
        "version": document["info"]["version"],
        "intro": prose(document["info"]["description"]),
        "groups": groups,
        "durability": [{"name": name, "acked": acked, "after": after} for name, acked, after in _DURABILITY],
        "errors": _error_rows(document),
        "error_example": pretty({"error": {"code": "topic_not_found", "message": "…", "detail": {"topic": "orders"}}}),
        "edge_statuses": ", ".join(str(status) for status in sorted(EDGE_STATUSES)),
        "types": [
            {"name": name, "text": prose(schema.get("description", "")), "fields": _fields(schema)}
            for name, schema in document["components"]["schemas"].items()
        ],
    }  # fmt: skip


def _operations(document: Json, tag: str) -> list[Json]:
    return [
        _operation(document, path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    ]


def _operation(document: Json, path: str, method: str, operation: Json) -> Json:
    content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    body = content.get("schema", {}).get("$ref", "").removeprefix(SCHEMAS)
    return {
        "id": operation["operationId"],
        "method": method,
        "path": path,
        "summary": operation["summary"],
        "text": prose(operation["description"]),
        "curl": operation["x-codeSamples"][0]["source"],
        "parameters": [_parameter(parameter) for parameter in operation["parameters"]],
        "body": body,
        "body_required": operation.get("requestBody", {}).get("required", False),
        "fields": _fields(document["components"]["schemas"][body]) if body else [],
        "bodies": [
            {"title": example["summary"], "json": pretty(example["value"])}
            for example in content.get("examples", {}).values()
        ],
        "answers": _answers(document, operation),
    }


def _answers(document: Json, operation: Json) -> list[Json]:
    rows: list[Json] = []
    for status, answer in operation["responses"].items():
        codes = _codes(document, answer)
        if int(status) in EDGE_STATUSES and len(codes) == 1:
            continue  # said once for all operations
        row: Json = {"status": status, "codes": codes, "type": "", "examples": []}
        row["text"] = prose(_resolve(document, answer)["description"])
        if not codes:
            content = answer["content"]
            if JSON in content:
                row["type"] = content[JSON]["schema"]["$ref"].removeprefix(SCHEMAS)
            row["examples"] = [
                {"title": _title(kind), "json": _shown(given["example"])} for kind, given in content.items()
            ]
        rows.append(row)
    return rows


def _title(content_type: str) -> str:
    return "example" if content_type == JSON else f"example as {content_type}"


def _shown(example: object) -> str:
    return example if isinstance(example, str) else pretty(example)


def _error_rows(document: Json) -> list[Json]:
    rows: dict[int, Json] = {}
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                text = prose(_resolve(document, answer)["description"])
                for code in _codes(document, answer):
                    row = rows.setdefault(int(status), {"status": status, "codes": [], "text": text})
                    if code not in row["codes"]:
                        row["codes"].append(code)
    return [rows[status] for status in sorted(rows)]


def _codes(document: Json, answer: Json) -> list[str]:
    """The error codes of a response; empty if it is a success."""
    schema = _resolve(document, answer)["content"].get(JSON, {}).get("schema", {})
    if "allOf" not in schema:
        return []
    codes: list[str] = schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]
    return codes


def _resolve(document: Json, part: Json) -> Json:
    if "$ref" not in part:
        return part
    found: Any = document
    for step in part["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    resolved: Json = found
    return resolved


def _parameter(parameter: Json) -> Json:
    row = _row(parameter["name"], parameter["schema"], parameter["required"], parameter["description"])
    return {**row, "where": f"in {parameter['in']}"}


def _fields(schema: Json) -> list[Json]:
    required = schema.get("required", [])
    return [
        _row(name, field, name in required, field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
    ]


def _row(name: str, schema: Json, required: bool, text: str) -> Json:
    default = schema.get("default")
    return {
        "name": name,
        "where": "",
        "type": type_text(schema),
        "required": required,
        "default": "" if default is None or default == "" else pretty(default),
        "text": prose(text),
    }


def type_text(schema: Json) -> str:
    """A schema in a few words, with links to the types it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(SCHEMAS))
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        # Two choices may look alike in a few words.
        return Markup(" or ").join(dict.fromkeys(type_text(choice) for choice in schema["anyOf"]))
    if "enum" in schema:
        return Markup(", ").join(Markup("<code>{}</code>").format(choice) for choice in schema["enum"])
    kind = schema.get("type", "any JSON value")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if "prefixItems" in schema:
        return Markup("predicate")
    if kind == "array":
        counts = f"{schema.get('minItems', 0)} … {schema['maxItems']} " if "maxItems" in schema else ""
        return Markup("list of {}{}").format(counts, type_text(schema.get("items", {})))
    return escape(kind) + escape(_range(schema))


def _range(schema: Json) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", schema.get("maxLength"))
    if schema.get("type") == "string":
        return "" if high is None else f", at most {high} characters"
    if low is not None and high is not None:
        return f", {low} … {_power(high)}"
    return "" if low is None else f", at least {low}"


def _power(number: int) -> str:
    """Bounds of machine words are easier to know than to read."""
    return {2**62: "2^62", 2**64 - 1: "2^64 - 1"}.get(number, str(number))


def pretty(value: object) -> str:
    text = msgspec.json.encode(value)
    return (text if len(text) <= 100 else msgspec.json.format(text, indent=2)).decode()


def prose(text: str) -> Markup:
    """Paragraphs with `code` and **strong** words: as much Markdown as the document uses."""
    paragraphs = []
    for paragraph in filter(None, text.split("\n\n")):
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(paragraph)))
        marked = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)
        paragraphs.append(Markup("<p>{}</p>").format(Markup(marked)))  # noqa: S704  (escaped above)
    return Markup("\n").join(paragraphs)
