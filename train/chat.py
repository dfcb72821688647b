"""Gemma 4's chat format: a conversation becomes parts, each a marker or a text, marked as trained (what the model says) or not."""
from dataclasses import dataclass, field

QUOTE = '<|"|>'


@dataclass
class Turn:
    user: str
    answer: str = ""
    thought: str = ""               # only with thinking on
    calls: list = field(default_factory=list)       # (name, {argument: value})
    responses: list = field(default_factory=list)   # (name, value)


@dataclass
class Sample:
    cls: str                        # the label
    turns: list
    keys: list = field(default_factory=list)        # operand tuples that decide the split
    system: str = ""
    tools: list = field(default_factory=list)       # (name, description, parameters); see prop
    thinking: bool = False
    exact: bool = True              # the answer follows from the prompt
    replay_thought: bool = False    # the newer template revision: history keeps the empty thought
    reminder: str = ""              # a system turn behind the last user turn, as agents send it
    kind: str = ""                  # of the class with any tools: what the request needs


def value(v):
    """A value in the call syntax: markers and texts."""
    if isinstance(v, str): return [QUOTE, v, QUOTE]
    if isinstance(v, bool): return ["true" if v else "false"]
    if isinstance(v, (int, float)): return [str(v)]
    if v is None: return ["null"]
    if isinstance(v, list): return ["["] + join([value(x) for x in v]) + ["]"]
    return ["{"] + members(v) + ["}"]


def join(groups):
    return [p for i, g in enumerate(groups) for p in ([","] if i else []) + g]


def members(d):
    return join([[k + ":"] + value(d[k]) for k in sorted(d, key=str.lower)])


def prop(parameter):
    """A parameter: its name, description, type, whether it is required, and its enum, the type of its items or its properties"""
    key, text, kind, _, more = parameter
    fields = [["description:"] + value(text)] if text else []
    if kind == "array": fields.append(["items:{type:"] + value(more.upper()) + ["}"])
    elif kind == "object": fields += properties(more)
    elif more: fields.append(["enum:"] + value(more))
    return [key + ":{"] + join(fields + [["type:"] + value(kind.upper())]) + ["}"]


def properties(parameters):
    """The properties of an object and which are required, each where there are any"""
    required = [p[0] for p in parameters if p[3]]
    out = [["properties:{"] + join([prop(p) for p in sorted(parameters, key=lambda p: p[0].lower())]) + ["}"]] if parameters else []
    return out + ([["required:"] + value(required)] if required else [])


def declaration(tool):
    name, description, parameters = tool
    fields = properties(parameters) + [["type:"] + value("OBJECT")]
    return ["<|tool>", "declaration:" + name + "{description:"] + value(description) + [",parameters:{"] + join(fields) + ["}}", "<tool|>"]


def call(name, arguments):
    return ["<|tool_call>", "call:" + name + "{"] + members(arguments) + ["}", "<tool_call|>"]


def response(name, v):
    body = members(v) if isinstance(v, dict) else ["value:"] + value(v)
    return ["<|tool_response>", "response:" + name + "{"] + body + ["}", "<tool_response|>"]


EMPTY_THOUGHT = ["<|channel>", "thought\n", "<channel|>"]


def render(s):
    """Returns (parts, prompt_ends): parts are (text, trained); a prompt end is where the model starts to speak, and there the answer of
    the list is expected."""
    out, ends = [], []

    def put(parts, trained=False):
        out.extend((p, trained) for p in parts if p)

    put(["<bos>"])
    if s.system or s.tools or s.thinking:
        put(["<|turn>", "system\n"] + (["<|think|>", "\n"] if s.thinking else []) + [s.system])
        for t in s.tools: put(declaration(t))
        put(["<turn|>", "\n"])
    for i, t in enumerate(s.turns):
        last = i == len(s.turns) - 1
        put(["<|turn>", "user\n", t.user.strip(), "<turn|>", "\n"])
        if last and s.reminder: put(["<|turn>", "system\n", s.reminder.strip(), "<turn|>", "\n"])
        put(["<|turn>", "model\n"])
        resumed = last and bool(t.responses) and not s.replay_thought     # the older revision: after a call, the empty thought is gone
        if not s.thinking and (s.replay_thought or last and not resumed): put(EMPTY_THOUGHT)
        thought = s.thinking and last and t.thought
        ends.append(len(out))
        if thought: put(["<|channel>", "thought\n", t.thought + "\n", "<channel|>"], True)
        for name, args in t.calls: put(call(name, args), not resumed)
        if t.calls:
            put(["<|tool_response>"], not resumed)  # where the model stops and the tools run
            for j, (name, v) in enumerate(t.responses):
                put(response(name, v)[1 if j == 0 else 0:])
            if t.responses and s.thinking and s.replay_thought:
                put(["<|channel>", "thought\n"])
                ends.append(len(out))
                put(["I have the result.\n", "<channel|>"], True)
            elif t.responses: ends.append(len(out))
        if t.answer: put([t.answer, "<turn|>"], True)
        if not last: put(["\n"])
    return out, ends
