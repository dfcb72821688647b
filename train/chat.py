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
    tools: list = field(default_factory=list)       # (name, description, parameters)
    thinking: bool = False
    exact: bool = True              # the answer follows from the prompt
    replay_thought: bool = False    # the newer template revision: history keeps the empty thought


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


def declaration(tool):
    name, description, parameters = tool
    props = []
    for key, text, kind, _, enum in sorted(parameters, key=lambda p: p[0].lower()):
        fields = ([["description:"] + value(text)] if text else []) + ([["enum:"] + value(enum)] if enum else [])
        props.append([key + ":{"] + join(fields + [["type:"] + value(kind.upper())]) + ["}"])
    required = [p[0] for p in parameters if p[3]]
    return (["<|tool>", "declaration:" + name + "{description:"] + value(description) + [",parameters:{properties:{"] + join(props) + ["},"]
            + (["required:"] + value(required) + [","] if required else []) + ["type:"] + value("OBJECT") + ["}}", "<tool|>"])


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
        put(["<|turn>", "user\n", t.user.strip(), "<turn|>", "\n", "<|turn>", "model\n"])
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
