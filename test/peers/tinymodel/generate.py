# SPDX-License-Identifier: Apache-2.0
"""Writes the four files of the tiny offline model into a directory.

The tokenizer's ids equal byte values, so a test knows every token id without
a tokenizer library. There are no weights: engines load dummy ones.

Usage: generate.py DIRECTORY
"""

import json
import os
import sys

SPECIAL = {"<|bos|>": 256, "<|eos|>": 257, "<|im_start|>": 258, "<|im_end|>": 259}

CONTEXT = 4096

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_characters():
    """The printable stand-in of every byte in byte-level BPE, by byte."""
    printable = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    characters, stand_in = [], 256
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(stand_in))
            stand_in += 1
    return characters


def byte_level(trim_offsets):
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": trim_offsets,
        "use_regex": False,
    }


def tokenizer():
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id_,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for content, id_ in SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level(True),
        "post_processor": byte_level(False),
        "decoder": byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    }


FILES = {
    "config.json": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": SPECIAL["<|bos|>"],
        "eos_token_id": SPECIAL["<|eos|>"],
        "torch_dtype": "float32",
        "use_cache": True,
    },
    "generation_config.json": {
        "bos_token_id": SPECIAL["<|bos|>"],
        "eos_token_id": SPECIAL["<|eos|>"],
        "do_sample": False,
    },
    "tokenizer.json": tokenizer(),
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|eos|>",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    },
}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: generate.py DIRECTORY")
    directory = sys.argv[1]
    os.makedirs(directory, exist_ok=True)
    for name, content in FILES.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
