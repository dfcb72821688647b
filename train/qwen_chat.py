"""Qwen 3.5's chat format, in the revision of its models up to 2B: thinking is off unless asked for. Same samples and result as chat.render."""
import json
import zlib

TOOLS_BEFORE = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_AFTER = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>"""
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def cut(text):
    """A text of the template as parts: marks of the vocabulary and what is between them"""
    out = [text]
    for m in MARKS: out = [x for t in out for x in ([t] if t in MARKS else [y for i, p in enumerate(t.split(m)) for y in ([m] if i else []) + [p]])]
    return [x for x in out if x]


def dumps(v):
    return json.dumps(v, ensure_ascii=False)


def schema(parameters):
    """The JSON schema of an object"""
    properties = {}
    for key, text, kind, _, more in parameters:
        p = {"type": kind}
        if text: p = {"type": kind, "description": text} if zlib.crc32(key.encode()) & 1 else {"description": text, "type": kind}
        if kind == "array": p["items"] = {"type": more}
        elif kind == "object": p.update(schema(more))
        elif more: p["enum"] = more
        properties[key] = p
    out = {"type": "object", "properties": properties}
    required = [p[0] for p in parameters if p[3]]
    return dict(out, required=required) if required else out


def declaration(tool):
    name, description, parameters = tool
    return dumps({"type": "function", "function": {"name": name, "description": description, "parameters": schema(parameters)}})


def value(v):
    """An argument: strings as they are, objects and arrays as JSON, the rest as Python prints it"""
    return v if isinstance(v, str) else dumps(v) if isinstance(v, (dict, list)) else str(v)


def call(name, arguments):
    body = "".join("<parameter=%s>\n%s\n</parameter>\n" % (k, value(v)) for k, v in arguments.items())
    return ["<tool_call>", "\n<function=%s>\n%s</function>\n" % (name, body), "</tool_call>"]


def response(v):
    return ["\n", "<tool_response>", "\n%s\n" % (v if isinstance(v, str) else dumps(v)).strip(), "</tool_response>"]


def render(s):
    """Returns (parts, prompt_ends), as chat.render. A system turn behind the last question becomes part of the system text, as the server merges it."""
    out, ends = [], []

    def put(parts, trained=False):
        out.extend((p, trained) for p in parts if p)

    def speak():
        put(["<|im_start|>", "assistant\n", "<think>", "\n"] if s.thinking else ["<|im_start|>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n"])
        ends.append(len(out))

    system = "\n\n".join(x for x in (s.system.strip(), s.reminder.strip()) if x)
    if s.tools:
        put(["<|im_start|>", "system\n" + TOOLS_BEFORE + "".join("\n" + declaration(t) for t in s.tools)] + cut(TOOLS_AFTER)
            + ["\n\n" + system if system else "", "<|im_end|>", "\n"])
    elif system: put(["<|im_start|>", "system\n" + system, "<|im_end|>", "\n"])
    for i, t in enumerate(s.turns):
        last = i == len(s.turns) - 1
        put(["<|im_start|>", "user\n" + t.user.strip(), "<|im_end|>", "\n"])
        if last: speak()
        else: put(["<|im_start|>", "assistant\n"]); ends.append(len(out))
        if last and s.thinking: put([(t.thought.strip() if t.thought else "") + "\n", "</think>", "\n\n"], True)
        for j, (name, args) in enumerate(t.calls): put((["\n"] if j else []) + call(name, args), True)
        if t.calls and t.responses:
            put(["<|im_end|>"], True)
            put(["\n", "<|im_start|>", "user"] + [p for _, v in t.responses for p in response(v)] + ["<|im_end|>", "\n"])
            if last: speak()
            else: put(["<|im_start|>", "assistant\n"]); ends.append(len(out))
            if last and s.thinking: put(["I have the result.\n", "</think>", "\n\n"], True)
        put([t.answer.strip() if t.answer else "", "<|im_end|>"], True)
        if not last: put(["\n"])
    return out, ends
