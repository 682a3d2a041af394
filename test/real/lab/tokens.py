"""Prints the token ids of chats as vLLM computes them, with the model's template and tokenizer.

usage: python tokens.py MODEL    reads one chat's messages (JSON) per line, writes one list of ids per line
"""
import json
import sys

from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for line in sys.stdin:
    text = tokenizer.apply_chat_template(json.loads(line), tokenize=False, add_generation_prompt=True)
    print(json.dumps(tokenizer(text, add_special_tokens=False).input_ids))
