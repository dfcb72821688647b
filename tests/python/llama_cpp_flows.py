"""What llama.cpp's tests of its own server expect of an answer, asked of this one."""
import json

from harness import LONG, SUM, TOOLS, calls_of, check, fits, flow, locked_server, main_server, same, server, small_server, user

main = main_server()
PROMPT = "I believe the meaning of life is"
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
NATIVE = {"prompt": PROMPT, "temperature": 0, "n_predict": 8, "ignore_eos": True}


@flow
def chat():
    reply = main.chat(BOOK, max_tokens=8, ignore_eos=True)
    check("cmpl" in reply["id"] and reply["system_fingerprint"], f"the head of a reply: {reply}")
    same([reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]], [8, "length"], "n tokens")
    parts = [BOOK[0], {"role": "user", "content": [{"type": "text", "text": "What is the best book"}]}]
    same(main.content(parts), main.content(BOOK), "a message as a part")
    two = main.chat(BOOK, n=2, max_tokens=8, ignore_eos=True)["choices"]
    same([c["finish_reason"] for c in two], ["length", "length"], "two choices")


@flow
def stream():
    events = main.events("/chat/completions", {"messages": BOOK, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}})
    same(len({e["id"] for e in events}), 1, "one id")
    same({e["system_fingerprint"] for e in events}, {main.chat("Hi")["system_fingerprint"]}, "one fingerprint")
    choices = [e["choices"][0] for e in events if e["choices"]]
    same([c["delta"].get("role") for c in choices], ["assistant"] + [None] * (len(choices) - 1), "the role comes first")
    same(["content" in choices[-1]["delta"], choices[-1]["finish_reason"]], [False, "length"], "the last choice is the reason alone")
    same("".join(c["delta"].get("content") or "" for c in choices), main.content(BOOK, max_tokens=8, ignore_eos=True), "the stream is the whole")
    same(events[-1]["usage"]["completion_tokens"], 8, "the usage")


@flow
def prefill():
    for begun in ("The answer", [{"type": "text", "text": "The "}, {"type": "text", "text": "answer"}]):
        body = {"messages": user(SUM) + [{"role": "assistant", "content": begun}], "continue_final_message": True, "add_generation_prompt": False}
        prompt = main.post("/apply-template", body)["prompt"]
        check(prompt.endswith("The answer"), f"the prompt ends with what was begun: {prompt[-60:]!r}")
        check(main.content(**body, max_tokens=8) is not None, "it goes on")


@flow
def formats():
    ask = {"messages": user("Write an example"), "max_tokens": 60, "temperature": 0}
    for form, want in (({"type": "json_object", "schema": {"const": "42"}}, "42"), ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, "foooooo")):
        same(json.loads(main.content(**ask, response_format=form)), want, f"{form}")
    check(isinstance(json.loads(main.content(**ask, response_format={"type": "json_object"})), dict), "any object")
    for form in ({"type": "sound"}, {"type": "json_object", "schema": 123}, {"type": "json_object", "schema": {"type": 123}}, {"type": "json_object", "schema": {"type": "hiccup"}}):
        check(main.refusal("/chat/completions", {**ask, "response_format": form}).get("message"), f"{form} is refused by a sentence")
    same(main.content(**ask, json_schema={"const": "42"}), '"42"', "json_schema")
    same(main.content(**ask, grammar='root ::= "a"{5,5}'), "aaaaa", "a grammar")
    check(main.refusal("/chat/completions", {**ask, "grammar": "root ::= ("}).get("message"), "a grammar that is none")


@flow
def wrong_messages():
    for messages in (None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [{"role": "system", "content": "test"}, {}]):
        check(main.refusal("/chat/completions", {"messages": messages}).get("message"), f"{messages}")


@flow
def timings_and_progress():
    body = {"messages": user("This is a test. " * 60), "max_tokens": 10, "temperature": 0, "timings_per_token": True, "return_progress": True, "cache_salt": "progress"}
    events = main.events("/chat/completions", body)
    texts = [e for e in events if e.get("choices") and e["choices"][0]["delta"].get("content")]
    check(texts and all(e["timings"]["predicted_n"] <= 10 for e in texts), "timings with each event")
    steps = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    check(steps and all(s["total"] == steps[0]["total"] and s["cache"] == steps[0]["cache"] for s in steps), f"progress: {steps}")
    done = [s["processed"] for s in steps]
    check(done == sorted(done) and done and done[-1] == steps[-1]["total"], f"progress ends with the prompt: {done}")


@flow
def logprobs_and_bias():
    choice = main.chat(BOOK, max_tokens=5, ignore_eos=True, logprobs=True, top_logprobs=10)["choices"][0]
    content = choice["logprobs"]["content"]
    same("".join(t["token"] for t in content), choice["message"]["content"], "the tokens are the text")
    check(all(t["logprob"] <= 0 and t["bytes"] and len(t["top_logprobs"]) == 10 for t in content), "log-probabilities")
    first = content[0]["token"]
    ids = main.post("/tokenize", {"content": first})["tokens"]
    for bias in ({str(ids[0]): -100}, [[ids[0], False]], [[first, -100]], {first: False}):
        check(not main.content(BOOK, max_tokens=5, logit_bias=bias).startswith(first), f"logit_bias {bias}")


@flow
def too_long():
    error = small_server().refusal("/chat/completions", {"messages": user(LONG)})
    same([error["n_ctx"], error["n_prompt_tokens"] > 1024], [1024, True], "the numbers of a prompt that is too long")
    error = small_server().refusal("/chat/completions", {"messages": user(LONG), "stream": True})
    same(error["n_ctx"], 1024, "the same, before a stream")
    check(small_server().refusal("/completion", {"prompt": LONG}), "the same, of a text")


@flow
def completion():
    whole = main.post("/completion", {**NATIVE, "return_tokens": True})
    same([whole["timings"]["predicted_n"], whole["truncated"], type(whole["has_new_line"])], [8, False, bool], "a completion")
    check(len(whole["tokens"]) == 8 and all(isinstance(t, int) for t in whole["tokens"]), f"its tokens: {whole['tokens']}")
    same(main.post("/completion", NATIVE)["tokens"], [], "no tokens without return_tokens")
    events = main.events("/completion", NATIVE)
    same("".join(e["content"] for e in events), whole["content"], "the stream is the whole")
    same([e["stop"] for e in events], [False] * (len(events) - 1) + [True], "stop is in the last event alone")
    same([events[-1]["stop_type"], events[-1]["generation_settings"]["n_predict"]], ["limit", 8], "the last event")
    probs = main.post("/completion", {**NATIVE, "n_predict": 5, "n_probs": 10})["completion_probabilities"]
    check(len(probs) == 5 and all(len(p["top_logprobs"]) == 10 and p["logprob"] <= 0 for p in probs), f"n_probs: {str(probs)[:200]}")


@flow
def completion_prompts():
    text = main.post("/completion", NATIVE)["content"]
    ids = main.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    same(main.post("/completion", {**NATIVE, "prompt": ids})["content"], text, "token ids")
    same(main.post("/completion", {**NATIVE, "prompt": {"prompt_string": PROMPT}})["content"], text, "prompt_string")
    for prompts in ([ids, ids], [ids, PROMPT], [ids, {"prompt_string": PROMPT}]):
        same([r["content"] for r in main.post("/completion", {**NATIVE, "prompt": prompts})], [text, text], "several prompts")
    check(isinstance(main.post("/completion", {**NATIVE, "prompt": [2, 100, 101, PROMPT, 102, PROMPT]})["content"], str), "ids and texts in one prompt")
    status, _, _ = main.answer("/completion", {**NATIVE, "prompt": {"prompt_string": "<__media__>", "multimodal_data": "aaaa"}})
    same(status, 400, "an image")
    fields = main.post("/completion", {**NATIVE, "response_fields": ["content", "generation_settings/n_predict", "prompt"]})
    same([sorted(fields), fields["content"], fields["generation_settings/n_predict"]], [["content", "generation_settings/n_predict", "prompt"], text, 8], "response_fields")


@flow
def tools():
    for choice in ("required", {"type": "function", "function": {"name": "set_timer"}}):
        calls = calls_of(main.message("What time is it?", tools=TOOLS, tool_choice=choice, parallel_tool_calls=True))
        check(calls and all(fits(*c) for c in calls), f"tool_choice {choice}: {calls}")


@flow
def tokens():
    ids = main.post("/tokenize", {"content": "What is the meaning of life?", "add_special": True})["tokens"]
    plain = main.post("/tokenize", {"content": "What is the meaning of life?"})["tokens"]
    same(ids[1:], plain, "add_special adds the first token")
    same(main.post("/detokenize", {"tokens": plain})["content"], "What is the meaning of life?", "there and back")
    pieces = main.post("/tokenize", {"content": "Hi 你好 \u200d", "with_pieces": True})["tokens"]
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    same(joined.decode(), "Hi 你好 \u200d", "the pieces are the text")
    count = main.post("/v1/chat/completions/input_tokens", {"messages": BOOK})
    same(count.get("input_tokens"), main.chat(BOOK)["usage"]["prompt_tokens"], "tokens of a chat")


@flow
def about():
    props = json.loads(main.request("/props"))
    check(props["total_slots"] > 0 and props["model_path"] and props["default_generation_settings"]["n_ctx"] > 0, f"/props: {props}")
    check(json.loads(main.request("/slots"))[0]["is_processing"] is False, "/slots")
    same(json.loads(main.request("/health"))["status"], "ok", "/health")
    for path in ("/models", "/v1/models"):
        check(json.loads(main.request(path))["data"][0]["id"], path)
    locked = locked_server()
    for key, want in (("wrong", 401), ("right-key", 200)):
        same(locked.answer("/completion", NATIVE, {"Authorization": f"Bearer {key}"})[0], want, f"a {key}")
    same(locked.answer("/health", None, {"Authorization": ""})[0], 200, "/health needs no key")
    open_ = server("cors", "--cors", "https://example.org")
    _, headers, _ = open_.answer("/completion", NATIVE, {"Origin": "https://example.org"})
    same(headers["Access-Control-Allow-Origin"], "https://example.org", "a page that may ask")
    _, headers, _ = open_.answer("/v1/models", None, {"Origin": "https://other.example"})
    same(headers["Access-Control-Allow-Origin"], None, "a page that may not")
