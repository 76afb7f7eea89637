"""Templates, style and scripts of the pages. Self-contained: nothing is fetched from anywhere else.

Style and scripts stand inline, and the pages' policy admits them by their hash (gateway/full_lane/pages.py).
"""
# ruff: noqa: E501  (a break inside an element would be a space on the page)

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #ffffff; --panel: #f6f7f9; --line: #e1e4ea; --text: #1c2230; --dim: #5d6678; --link: #1d5fd1;
  --code: #f0f2f6; --get: #1769aa; --post: #1e7d46; --put: #9a6100; --delete: #b3312c; --ok: #1e7d46; --bad: #b3312c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #12151c; --panel: #191d27; --line: #2b3140; --text: #e4e8f0; --dim: #98a2b5; --link: #7fb0ff;
    --code: #222836; --get: #6fb7f2; --post: #69cf93; --put: #e5b65c; --delete: #f28b84; --ok: #69cf93; --bad: #f28b84;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--bg); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .5rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: .8rem; margin: 1.5rem 0 .4rem; text-transform: uppercase; letter-spacing: .06em; color: var(--dim); }
h3 a { text-transform: none; letter-spacing: 0; font-size: .9rem; }
p { margin: .5rem 0; max-width: 46rem; }
code, pre { font-family: ui-monospace, "SF Mono", "Cascadia Code", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .875em; background: var(--code); border-radius: 4px; padding: .1em .35em; overflow-wrap: anywhere; }
pre {
  font-size: .82rem; line-height: 1.5; background: var(--code); border-radius: 8px; padding: .8rem 1rem;
  margin: .4rem 0; overflow-x: auto;
}
pre code { background: none; padding: 0; font-size: 1em; overflow-wrap: normal; }
.dim { color: var(--dim); }
.small { font-size: .875rem; }
.layout { display: grid; grid-template-columns: 17rem minmax(0, 1fr); min-height: 100vh; }
nav {
  position: sticky; top: 0; align-self: start; height: 100vh; overflow-y: auto; padding: 1.5rem 1.25rem;
  background: var(--panel); border-right: 1px solid var(--line); font-size: .875rem;
}
nav strong { display: block; font-size: 1.05rem; }
nav h3 { margin: 1.4rem 0 .3rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav li a { display: block; padding: .18rem 0; color: var(--text); }
main { padding: 2rem 2.5rem 5rem; max-width: 64rem; }
.method { font: 700 .72rem/1 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; letter-spacing: .03em; }
.get { color: var(--get); } .post { color: var(--post); } .put { color: var(--put); } .delete { color: var(--delete); }
details.operation { border: 1px solid var(--line); border-radius: 10px; margin: .7rem 0; background: var(--bg); }
details.operation > summary {
  display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; padding: .75rem 1rem; cursor: pointer;
  list-style: none; border-radius: 10px;
}
details.operation > summary::-webkit-details-marker { display: none; }
details.operation > summary:hover { background: var(--panel); }
details.operation[open] > summary { border-bottom: 1px solid var(--line); border-radius: 10px 10px 0 0; background: var(--panel); }
summary .method { width: 3.6rem; }
summary .path { font: 600 .92rem ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
summary .what { color: var(--dim); margin-left: auto; }
.inside { padding: .4rem 1rem 1.1rem; }
.inside details { margin: .3rem 0; }
.inside details > summary { cursor: pointer; }
.scope { display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 0 .6rem; font-size: .78rem; color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--dim); font-size: .8rem; }
tr:last-child td { border-bottom: 0; }
td:first-child { white-space: nowrap; }
td p { margin: 0; }
.type { color: var(--dim); font-size: .85rem; }
.must { color: var(--delete); font-size: .75rem; }
.tools { display: flex; gap: .6rem; margin: 1.2rem 0 0; }
button {
  font: inherit; font-size: .85rem; color: var(--text); background: var(--panel); border: 1px solid var(--line);
  border-radius: 7px; padding: .3rem .8rem; cursor: pointer;
}
button:hover { border-color: var(--dim); }
.landing { max-width: 46rem; margin: 0 auto; padding: 4rem 1.5rem 5rem; }
.landing h1 { font-size: 2.4rem; }
.landing .lead { font-size: 1.15rem; color: var(--dim); }
.cards { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.6rem 0 0; }
.cards a {
  flex: 1 1 11rem; border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; background: var(--panel);
}
.cards a:hover { border-color: var(--link); text-decoration: none; }
.cards span { display: block; color: var(--dim); font-size: .85rem; }
.state { display: flex; flex-wrap: wrap; gap: .6rem; margin: .7rem 0 0; padding: 0; list-style: none; }
.state li { border: 1px solid var(--line); border-radius: 8px; padding: .45rem .8rem; font-size: .88rem; background: var(--panel); }
.state li::before { content: ""; display: inline-block; width: .6rem; height: .6rem; border-radius: 50%; margin-right: .5rem; background: var(--bad); }
.state li.up::before { background: var(--ok); }
@media (max-width: 52rem) {
  .layout { display: block; }
  nav { position: static; height: auto; columns: 2; border-right: 0; border-bottom: 1px solid var(--line); }
  nav ul { break-inside: avoid; }
  main { padding: 1.5rem 1.1rem 4rem; }
  summary .what { margin-left: 0; width: 100%; }
}
@media print { nav, .tools { display: none; } .layout { display: block; } }
"""

# Examples are written for the default address; where the page is read from a server, that one is meant.
_ORIGIN_SCRIPT = """
for (const code of document.querySelectorAll("pre code")) {
  code.textContent = code.textContent.replaceAll("http://127.0.0.1:4000", location.origin);
}
"""

DOCS_SCRIPT = (
    _ORIGIN_SCRIPT
    + """
const operations = [...document.querySelectorAll("details.operation")];
document.querySelector(".tools").hidden = false;
document.getElementById("expand").onclick = () => { for (const one of operations) one.open = true; };
document.getElementById("collapse").onclick = () => { for (const one of operations) one.open = false; };
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.matches("details")) { target.open = true; target.scrollIntoView(); }
}
window.addEventListener("hashchange", openTarget);
openTarget();
"""
)

LANDING_SCRIPT = (
    _ORIGIN_SCRIPT
    + """
const summary = document.getElementById("summary");
const list = document.getElementById("shards");
function plural(count, noun) { return count + " " + noun + (count === 1 ? "" : "s"); }
function show(text, shards) {
  summary.textContent = text;
  list.replaceChildren(...shards.map((shard) => {
    const item = document.createElement("li");
    item.className = shard.ready ? "up" : "";
    item.textContent = "shard " + shard.shard + ": " + (shard.ready ? plural(shard.topics, "topic") : shard.reason);
    return item;
  }));
}
async function look() {
  try {
    const answer = await fetch("/v0/ready", { cache: "no-store" });
    const body = await answer.json();
    if (answer.ok) {
      show("Ready: every shard answers, " + plural(body.topics, "topic") + ".", body.shards);
    } else if (answer.status === 401) {
      show("This server shows its state only to callers with a key.", []);
      return;
    } else {
      show("Not ready: " + body.error.message + ".", (body.error.detail || {}).shards || []);
    }
  } catch {
    show("The server does not answer.", []);
  }
  setTimeout(look, 5000);
}
look();
"""
)

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='4' fill='%231d5fd1'/%3E%3Cpath d='M4 5h8M4 8h8M4 11h5' stroke='white' stroke-width='1.6'/%3E%3C/svg%3E">
<style>{{ style }}</style>
</head>
<body>
"""

_FOOT = """
<script>{{ script }}</script>
</body>
</html>
"""

_MACROS = """
{%- macro fields(rows) %}
<div class="scroll"><table>
<thead><tr><th>Name</th><th>Type</th><th>Meaning</th></tr></thead>
<tbody>
{%- for row in rows %}
<tr>
<td><code>{{ row.name }}</code>{% if row.where %} <span class="type">{{ row.where }}</span>{% endif %}{% if row.required %} <span class="must">required</span>{% endif %}</td>
<td class="type">{{ row.type }}{% if row.default %}<br>default <code>{{ row.default }}</code>{% endif %}</td>
<td>{{ row.text }}</td>
</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro %}
"""

DOCS = (
    _MACROS
    + _HEAD
    + """
<div class="layout">
<nav>
<strong><a href="/">topicsd</a></strong>
<span class="dim">HTTP API, version {{ version }}</span>
{%- for group in groups %}
<h3>{{ group.name }}</h3>
<ul>{% for operation in group.operations %}<li><a href="#{{ operation.id }}">{{ operation.summary }}</a></li>{% endfor %}</ul>
{%- endfor %}
<h3>Reference</h3>
<ul>
<li><a href="#durability">Durability classes</a></li>
<li><a href="#errors">Errors</a></li>
<li><a href="#types">Types</a></li>
<li><a href="/openapi.json">openapi.json</a></li>
</ul>
</nav>
<main>
<h1>{{ title }}</h1>
{{ intro }}
<div class="tools" hidden><button id="expand">Expand all</button><button id="collapse">Collapse all</button></div>
{%- for group in groups %}
<h2>{{ group.name }}</h2>
{{ group.text }}
{%- for operation in group.operations %}
<details class="operation" id="{{ operation.id }}">
<summary><span class="method {{ operation.method }}">{{ operation.method|upper }}</span><span class="path">{{ operation.path }}</span><span class="what">{{ operation.summary }}</span></summary>
<div class="inside">
{{ operation.text }}
<pre><code>{{ operation.curl }}</code></pre>
{%- if operation.parameters %}<h3>Parameters</h3>{{ fields(operation.parameters) }}{% endif %}
{%- if operation.body %}
<h3>Body{% if not operation.body_required %} (optional){% endif %}: <a href="#type-{{ operation.body }}">{{ operation.body }}</a></h3>
{{ fields(operation.fields) }}
{%- for example in operation.bodies %}
<details><summary class="small">Example: {{ example.title }}</summary><pre><code>{{ example.json }}</code></pre></details>
{%- endfor %}
{%- endif %}
<h3>Answers</h3>
<div class="scroll"><table><tbody>
{%- for answer in operation.answers %}
<tr><td><strong>{{ answer.status }}</strong></td><td>{{ answer.text }}
{%- if answer.type %} <a href="#type-{{ answer.type }}">{{ answer.type }}</a>{% endif %}
{%- for code in answer.codes %} <code>{{ code }}</code>{% endfor %}
{%- for example in answer.examples %}<details><summary class="small dim">{{ example.title }}</summary><pre><code>{{ example.json }}</code></pre></details>{% endfor %}
</td></tr>
{%- endfor %}
</tbody></table></div>
<p class="small dim">Besides, as with any request: <a href="#errors">{{ edge_statuses }}</a>.</p>
</div>
</details>
{%- endfor %}
{%- endfor %}

<h2 id="durability">Durability classes</h2>
<p>A topic's <code>durability</code> says what an acknowledged write means. It can be changed at any time.</p>
<div class="scroll"><table>
<thead><tr><th>Class</th><th>Acknowledged</th><th>After a crash</th></tr></thead>
<tbody>
{%- for row in durability %}<tr><td><code>{{ row.name }}</code></td><td>{{ row.acked }}</td><td>{{ row.after }}</td></tr>{% endfor %}
</tbody></table></div>

<h2 id="errors">Errors</h2>
<p>Every answer that is not 2xx has this shape. Rely on <code>code</code>; <code>message</code> is for people and may change.</p>
<pre><code>{{ error_example }}</code></pre>
<div class="scroll"><table>
<thead><tr><th>Status</th><th>Codes</th><th>Meaning</th></tr></thead>
<tbody>
{%- for row in errors %}
<tr><td><strong>{{ row.status }}</strong></td><td>{% for code in row.codes %}<code>{{ code }}</code> {% endfor %}</td><td>{{ row.text }}</td></tr>
{%- endfor %}
</tbody></table></div>

<h2 id="types">Types</h2>
{%- for type in types %}
<details class="operation" id="type-{{ type.name }}">
<summary><span class="path">{{ type.name }}</span></summary>
<div class="inside">{{ type.text }}{{ fields(type.fields) }}</div>
</details>
{%- endfor %}
</main>
</div>
"""
    + _FOOT
)

LANDING = (
    _HEAD
    + """
<div class="landing">
<h1>topicsd</h1>
<p class="lead">Persistent topics on one machine. Append records over HTTP, read them from any position, wait for new
ones. Each topic says how durable an acknowledged record is, and a reader that missed something is told.</p>

<h2>State</h2>
<p id="summary" class="dim">See <a href="/v0/ready">/v0/ready</a>.</p>
<ul id="shards" class="state"></ul>

<div class="cards">
<a href="/docs">API reference<span>every route, field and error</span></a>
<a href="/openapi.json">openapi.json<span>the same for tools</span></a>
<a href="/v0/metrics">Metrics<span>Prometheus text</span></a>
</div>

<h2>First steps</h2>
<p>Write two records; the topic is created on the way.</p>
<pre><code>curl http://127.0.0.1:4000/v0/topics/greetings \\
  -H 'Content-Type: application/json' \\
  -d '{"records":[{"data":"hello"},{"data":{"to":"world"}}]}'</code></pre>
<p>Read them from the start.</p>
<pre><code>curl 'http://127.0.0.1:4000/v0/topics/greetings/records?from_seq=0'</code></pre>
<p>Wait up to 20 seconds for the third one.</p>
<pre><code>curl 'http://127.0.0.1:4000/v0/topics/greetings/records?from_seq=2&amp;wait_ms=20000'</code></pre>
<p>Have every write synced to disk before it is acknowledged.</p>
<pre><code>curl -X PUT http://127.0.0.1:4000/v0/topics/greetings \\
  -H 'Content-Type: application/json' -d '{"durability":"fsync"}'</code></pre>
<p class="small dim">A server with API keys wants <code>-H 'Authorization: Bearer KEY'</code> as well. Version {{ version }}.</p>
</div>
"""
    + _FOOT
)
