"""lm-evaluation-harness, its local-completions model with the server's own tokenizer: texts are scored by echo and logprobs."""
import json
import math
import os
import pathlib
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")

import lm_eval  # noqa: E402  (the settings above are read when it is imported)
from lm_eval.tasks import TaskManager  # noqa: E402

from harness import MODEL, check, flow, main_server, same  # noqa: E402

QUESTIONS = ["What is 27 plus 58?", "What is 31 plus 46?", "What is 12 plus 70?", "What is 65 plus 21?", "What is 44 plus 33?", "Hi"]
KINDS = {
    "choices": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": 0,
                "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]},
    "answers": {"output_type": "generate_until", "doc_to_target": "{{answer}}", "generation_kwargs": {"until": ["<turn|>"], "max_gen_toks": 128},
                "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]},
    "perplexity": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{answer}}",
                   "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
}


def docs():
    """Returns prompts in the model's own format with its own greedy answer, and the answer with its last digit or letter changed."""
    server, out = main_server(), []
    for question in QUESTIONS:
        prompt = server.post("/apply-template", {"messages": [{"role": "user", "content": question}]})["prompt"]
        answer = server.content(question)
        at = max(i for i, c in enumerate(answer) if c.isalnum())
        wrong = answer[:at] + ("3" if answer[at] != "3" else "4") + answer[at + 1:]
        out.append({"prompt": prompt, "answer": answer, "choices": [answer, wrong]})
    return out


def evaluate(kind, rows, **model_args):
    """Returns the harness's results and samples of one kind of task."""
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {"task": kind, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(home / "rows.jsonl")}},
                "test_split": "test", "doc_to_text": "{{prompt}}", "target_delimiter": "", "num_fewshot": 0, **KINDS[kind]}
        (home / f"{kind}.yaml").write_text(json.dumps(task))
        got = lm_eval.simple_evaluate(
            model="local-completions", tasks=[kind], task_manager=TaskManager(include_path=str(home), include_defaults=False), log_samples=True,
            model_args={"model": MODEL, "base_url": main_server().v1 + "/completions", "tokenizer_backend": "remote", "max_length": 2048,
                        "max_retries": 1, **model_args})
    return got["results"][kind], got["samples"][kind]


def tokens(text):
    return main_server().post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def score(context, continuation):
    """Returns the log-probability of a text behind another, token by token: each is the answer to the ones before it, by a bias."""
    ids, n = tokens(context + continuation), len(tokens(context))
    total = 0
    for i in range(n, len(ids)):
        reply = main_server().post("/v1/completions", {"prompt": ids[:i], "max_tokens": 1, "logprobs": 0, "temperature": 0, "echo": False,
                                                       "logit_bias": [[ids[i], 100]]})
        total += reply["choices"][0]["logprobs"]["token_logprobs"][0]
    return total


@flow
def multiple_choice():
    rows = docs()
    for args in [{}, {"num_concurrent": 3}, {"batch_size": 4}]:
        results, samples = evaluate("choices", rows, **args)
        same(results["acc,none"], 1.0, f"the model prefers its own answers, with {args}")
        for sample in samples:
            (right, is_greedy), (wrong, _) = [r[0] for r in sample["resps"]]
            check(right > wrong and is_greedy in (True, "True"), f"{sample['doc']['answer']!r}: {right} and {wrong}, greedy: {is_greedy}")


@flow
def scores_are_exact():
    rows = docs()[-1:]
    _, samples = evaluate("choices", rows)
    for choice, resp in zip(rows[0]["choices"], samples[0]["resps"]):
        want = score(rows[0]["prompt"], choice)
        check(math.isclose(resp[0][0], want, rel_tol=1e-5), f"{choice!r}: {resp[0][0]} instead of {want}")


@flow
def generation():
    results, samples = evaluate("answers", docs())
    same([s["resps"][0][0] for s in samples], [s["doc"]["answer"] for s in samples], "generated texts")
    same(results["exact_match,none"], 1.0, "exact matches")


@flow
def rolling_perplexity():
    results, samples = evaluate("perplexity", docs())
    check(1 < results["word_perplexity,none"] < 1e9 and results["bits_per_byte,none"] > 0, f"perplexity: {results}")
    for sample in samples:
        want = score("<bos>", sample["doc"]["answer"])
        got = sample["resps"][0][0]
        got = got[0] if isinstance(got, (list, tuple)) else got
        check(math.isclose(float(got), want, rel_tol=1e-5), f"{sample['doc']['answer']!r}: {got} instead of {want}")
