#!/usr/bin/env python3
"""Makes a complete Hugging Face directory of a training run's output: `pack.py RUN DIR` (the pieces joined, the tokenizer beside them)."""
import json
import os
import shutil
import sys

from safetensors.torch import save_file

import qwen_tokenizer
from model import load_tensors
from tokenizer import HERE, STOPS, Tokenizer


def main():
    run, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    save_file(load_tensors(run), os.path.join(out, "model.safetensors"), {"format": "pt"})
    shutil.copyfile(os.path.join(run, "config.json"), os.path.join(out, "config.json"))
    with open(os.path.join(run, "config.json")) as f: kind = json.load(f)["model_type"]
    (qwen if kind.startswith("qwen") else gemma)(out)


def gemma(out):
    shutil.copyfile(os.path.join(HERE, "tokenizer.json"), os.path.join(out, "tokenizer.json"))
    tok = Tokenizer()
    write(out, "tokenizer_config.json", {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
                                         "model_max_length": 65536, "tokenizer_class": "GemmaTokenizer"})
    write(out, "generation_config.json", {"bos_token_id": 2, "do_sample": False, "eos_token_id": [tok.special[s] for s in STOPS], "pad_token_id": 0})


def qwen(out):
    shutil.copyfile(os.path.join(HERE, "qwen_tokenizer.json"), os.path.join(out, "tokenizer.json"))
    tok = qwen_tokenizer.Tokenizer()
    with open(os.path.join(HERE, "qwen_template.jinja")) as f: template = f.read()
    write(out, "tokenizer_config.json", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 65536, "tokenizer_class": "Qwen2Tokenizer",
                                         "chat_template": template})
    ends = [tok.special[s] for s in ("<|im_end|>", "<|endoftext|>")]
    write(out, "generation_config.json", {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]})


def write(out, name, d):
    with open(os.path.join(out, name), "w") as f:
        json.dump(d, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
