"""The requests of Open WebUI, as its backend writes them, and what it reads in the replies. The product itself is not installed:
it needs gigabytes of packages that never talk to this server."""
import json

from harness import APPLES, LONG, MODEL, SUM, TOOLS, calls_of, check, fits, flow, locked_server, main_server, same, small_server, user

main = main_server()
HEADERS = {"X-OpenWebUI-User-Name": "Tom", "X-OpenWebUI-User-Id": "7", "X-OpenWebUI-User-Email": "tom@example.org", "X-OpenWebUI-User-Role": "user",
           "X-OpenWebUI-Chat-Id": "5f0c", "HTTP-Referer": "https://openwebui.com/", "X-Title": "Open WebUI"}


def ask(at, messages, **fields):
    """Sends a chat as the backend does for its page; returns text, thought, calls and usage, as the backend collects them."""
    status, headers, text = at.answer("/v1/chat/completions", {"stream": True, "model": MODEL, "messages": messages, "temperature": 0, **fields}, HEADERS)
    same([status, headers["Content-Type"].split(";")[0]], [200, "text/event-stream"], f"a stream: {text[:200]}")
    content, thought, calls, usage = "", "", {}, None
    lines = [line for line in text.split("\n") if line]
    same(lines[-1], "data: [DONE]", "the last line")
    for line in lines[:-1]:
        if not line.startswith("data: "):
            continue
        data = json.loads(line[6:])
        usage = data.get("usage") or usage
        for choice in data.get("choices", []):
            delta = choice.get("delta", {})
            content += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"index": part["index"], "id": part.get("id"), "type": "function", "function": {"name": part["function"].get("name"), "arguments": ""}})
                call["function"]["arguments"] += part["function"].get("arguments", "")
    return content, thought, list(calls.values()), usage


@flow
def models():
    status, _, text = main.answer("/v1/models", None, HEADERS)
    same([status, [m["id"] for m in json.loads(text)["data"]]], [200, [MODEL]], "the list of models")
    status, _, text = locked_server().answer("/v1/models", None, {**HEADERS, "Authorization": "Bearer wrong"})
    same([status, bool(json.loads(text)["error"]["message"])], [401, True], "the check of a connection with a wrong key")


@flow
def chat():
    text, _, _, usage = ask(main, user(SUM), stream_options={"include_usage": True})
    raw = main.chat(SUM)
    same([text, usage["completion_tokens"]], [raw["choices"][0]["message"]["content"], raw["usage"]["completion_tokens"]], "a chat")
    history = [{"role": "system", "content": "Be brief."}] + user(SUM) + [{"role": "assistant", "content": text}] + user("What is 2 plus 3?")
    same(ask(main, history, max_tokens=200, top_p=1, seed=3, frequency_penalty=0)[0], main.content(history), "a second turn, with settings of the page")


@flow
def thinking():
    raw = main.message(APPLES, reasoning_effort="high")
    text, thought, _, _ = ask(main, user(APPLES), reasoning_effort="high")
    same([text, thought], [raw["content"], raw["reasoning_content"]], "a thought")
    details = f'<details type="reasoning" done="true" duration="1">\n<summary>Thought for 1 seconds</summary>\n> {thought}\n</details>\n{text}'
    history = user(APPLES) + [{"role": "assistant", "content": details}] + user(SUM)
    same(ask(main, history)[0], main.content(history), "a thought in the history, as the page shows it")


@flow
def tools():
    question = "What is the weather in Paris?"
    _, _, calls, _ = ask(main, user(question), tools=TOOLS, tool_choice="required")
    check(calls and all(fits(name, arguments) for name, arguments in calls_of({"tool_calls": calls})), f"calls: {calls}")
    messages = user(question) + [{"role": "assistant", "content": "", "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": c["id"], "content": '{"sky": "sunny", "temp": 21}'} for c in calls]
    text, _, more, _ = ask(main, messages, tools=TOOLS)
    raw = main.message(messages, tools=TOOLS)
    same([text or None, calls_of({"tool_calls": more})], [raw["content"] or None, calls_of(raw)], "the results of calls")


@flow
def tasks():
    """Titles, tags, follow-ups, queries and completions of what is typed are asked for without a stream."""
    for limit in ({"max_completion_tokens": 1000}, {}, {"max_completion_tokens": 4}):
        body = {"model": MODEL, "messages": user(f"### Task:\nWrite a title.\n### Chat History:\n<chat_history>\nUSER: {SUM}\n</chat_history>"), "stream": False, **limit}
        status, _, text = main.answer("/v1/chat/completions", body, HEADERS)
        same([status, isinstance(json.loads(text)["choices"][0]["message"]["content"], str)], [200, True], f"a task {limit}")


@flow
def errors():
    status, _, text = small_server().answer("/v1/chat/completions", {"stream": True, "model": MODEL, "messages": user(LONG)}, HEADERS)
    same([status, json.loads(text)["error"]["code"]], [400, "context_length_exceeded"], "a long chat")
    image = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    status, _, text = main.answer("/v1/chat/completions", {"stream": True, "model": MODEL, "messages": image}, HEADERS)
    same([status, bool(json.loads(text)["error"]["message"])], [400, True], "an image")
    for path, body in (("/v1/embeddings", {"input": ["Hi"], "model": MODEL}), ("/v1/audio/speech", {"input": "Hi", "model": MODEL})):
        status, _, text = main.answer(path, body, HEADERS)
        check(status in (400, 404, 501) and json.loads(text)["error"]["message"], f"{path} is refused by a sentence: {status} {text[:200]}")
