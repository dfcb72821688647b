// 200 texts as a hostile model, tool or client may write them: markup, scripts, directions, control characters, lone surrogates.
const payloads = [
  `<script>window.hacked = 1</script>`, `<img src=x onerror="window.hacked=1">`, `<svg onload=window.hacked=1>`, `<iframe srcdoc="<script>parent.hacked=1</script>">`,
  `"><script>window.hacked=1</script>`, `'><img src=x onerror=window.hacked=1>`, `</textarea><script>window.hacked=1</script>`, `</pre></code><b>bold</b>`,
  `<a href="javascript:window.hacked=1">x</a>`, `<math><mi xlink:href="javascript:window.hacked=1">x`, `<details open ontoggle=window.hacked=1>`, `<style>body{display:none}</style>`,
  `<link rel=stylesheet href=//example.org/x.css>`, `<meta http-equiv=refresh content="0;url=//example.org">`, `<base href=//example.org>`, `<form action=//example.org><button>x`,
  `<input autofocus onfocus=window.hacked=1>`, `<object data=javascript:window.hacked=1>`, `<template><script>window.hacked=1</script></template>`, `<!--<script>window.hacked=1//-->`,
  `{{constructor.constructor('window.hacked=1')()}}`, "${window.hacked=1}", `&lt;script&gt;window.hacked=1&lt;/script&gt;`, `<p hidden>unseen</p>`, `[x](javascript:window.hacked=1)`,
];
const marks = [
  "\u202e", "\u202d", "\u2066", "\u2067", "\u2068", "\u2069", "\u202c", "\u200e", "\u200f", "\u061c", // directions
  "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u180e", "\u2028", "\u2029", "\u2062", // invisible
  "\u0000", "\u0007", "\u0008", "\u001b[31m", "\u001b]0;title\u0007", "\u007f", "\u0085", "\u009b", "\r", "\u0001", // control
  "\u{e0041}", "\u{e0001}", "\ufff9", "\ufffb", "\ud800", "\udfff", // tags, annotations, lone surrogates
];
const nest = (n) => "<b>".repeat(n);
const made = [];
for (const m of marks) made.push(`abc${m}def`, `${m}${payloads[made.length % payloads.length]}`, `user${m}exe.txt`);
for (const p of payloads) made.push(p, `text before ${p} and after`);
made.push(nest(300), "a".repeat(5000), "\u0301".repeat(500), "ﷺ".repeat(50), "𒐫".repeat(50), "\n".repeat(50) + "end", "שלום עולם <b>עברית</b>", "مرحبا <i>بالعالم</i>", "__proto__", "constructor",
  "toString", "null", "undefined", "%00%0a%3Cscript%3E", "data:text/html,<script>window.hacked=1</script>", "javascript:window.hacked=1", "\\u003cscript\\u003e", "＜script＞window.hacked=1＜/script＞");
for (let i = 0; made.length < 200; i++) made.push(`${marks[i % marks.length]}${payloads[(i * 7) % payloads.length]}${marks[(i * 5 + 3) % marks.length]}`);
export const strings = made.slice(0, 200);
