"""How report.html looks, by day and by night."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{--ink:#1c2430;--soft:#5d6978;--line:#e2e6ec;--page:#f5f6f8;--card:#fff;--good:#1f7a4d;--goodbg:#e6f4ec;
  --poor:#b3261e;--poorbg:#fdecea;--cold:#3f6fb5;--hot:#e0862f;--live:#3d9a6b;--gone:#c3cad4;--log:#a9c4ea;
  --notice:#8a94a3}
@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--soft:#9aa6b4;--line:#2d3540;--page:#14181d;--card:#1c2229;
  --good:#5fd39a;--goodbg:#15301f;--poor:#ff8a80;--poorbg:#3a1715;--gone:#4a5462;--log:#3b5a86}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;gap:20px;align-items:center;padding:22px 26px;border-radius:14px}
header.good{background:var(--goodbg)}
header.poor{background:var(--poorbg)}
header h1{margin:0;font-size:24px;line-height:1.25}
header p{margin:6px 0 0;color:var(--soft)}
.mark{flex:none;width:60px;height:60px;border-radius:50%;font-size:34px;font-weight:700;color:#fff;display:grid;
  place-items:center}
.good .mark{background:#1f7a4d}
.poor .mark{background:#b3261e}
.good h1{color:var(--good)}
.poor h1{color:var(--poor)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:14px 16px}
.tile span,.tile small{display:block;color:var(--soft);font-size:13px}
.tile b{display:block;font-size:25px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile.alarm{border-color:var(--poor)}
.tile.alarm b{color:var(--poor)}
section{padding:18px 22px;margin:0 0 16px;overflow-x:auto}
h2{margin:0 0 12px;font-size:17px}
.calm{color:var(--soft);margin:0}
svg{display:block;width:100%;height:auto;overflow:visible;margin:4px 0 10px}
.strip{height:18px;max-width:none!important}
.label{font-size:12.5px;fill:var(--soft)}
.value{font-size:12.5px;fill:var(--ink);font-weight:600}
.axis{stroke:var(--line)}
rect.cold,i.cold{fill:var(--cold);background:var(--cold)}
rect.hot,i.hot{fill:var(--hot);background:var(--hot)}
rect.bad,i.bad,rect.error,i.error{fill:#c62828;background:#c62828}
rect.notice,i.notice{fill:var(--notice)}
rect.lost{fill:none;stroke:#c62828;stroke-width:2}
i.lost{border:2px solid #c62828}
rect.live,i.live{fill:var(--live);background:var(--live)}
rect.gone,i.gone{fill:var(--gone);background:var(--gone)}
rect.log,i.log{fill:var(--log);background:var(--log)}
.legend{margin:0 0 12px;color:var(--soft);font-size:13px}
.legend span{margin-right:18px;white-space:nowrap}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--soft);font-weight:500;font-size:12.5px}
th,td{padding:8px 12px 8px 0;border-bottom:1px solid var(--line);vertical-align:top}
td small{display:block;color:var(--soft);max-width:230px}
.path{font:12px/1.5 ui-monospace,monospace;overflow-wrap:anywhere;min-width:210px}
.path em{color:var(--soft);white-space:nowrap}
.seqs{white-space:nowrap;font-variant-numeric:tabular-nums}
.chip{display:inline-block;font:600 12px/1.6 ui-monospace,monospace;color:#fff;background:#c62828;border-radius:5px;
  padding:0 7px}
.notice .chip{background:var(--notice)}
code{font-size:12px;overflow-wrap:anywhere}
.topic{display:grid;grid-template-columns:210px 1fr;gap:18px;align-items:center;padding:7px 0;
  border-bottom:1px solid var(--line)}
.topic small{display:block;color:var(--soft);font-size:12.5px}
.topic i{color:var(--poor);font-style:normal;font-weight:600}
.topic b{overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:600;padding:4px 0}
@media(max-width:640px){.topic{grid-template-columns:1fr;gap:4px}}
"""
