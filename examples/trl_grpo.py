"""GRPO with TRL on a tiny random model: no download, no GPU, half a minute. Nothing in it is about plumbline.

    plumbline run trl_grpo.py

A script of your own looks the same with a real model and data set.
"""
import os
import sys
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import datasets
import tokenizers
import torch
import transformers
from trl import GRPOConfig, GRPOTrainer

CHARS = "0123456789+-*/=().,abcdefghijk"


def digits(completions, **_):
    """The share of digits in an answer."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def toy():
    """A model with random weights, its tokenizer and prompts."""
    vocabulary = {"<pad>": 0, "<eos>": 1, **{c: i + 2 for i, c in enumerate(CHARS)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>", padding_side="left")
    torch.manual_seed(7)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.35, bos_token_id=None, eos_token_id=1, pad_token_id=0))
    prompts = datasets.Dataset.from_dict({"prompt": ["12+7=", "3*(4+5)=", "9-6=", "4+4=", "7*6-2=", "10/5=", "6*7=", "81/9="]})
    return model, tokenizer, prompts


def main(steps=4):
    model, tokenizer, prompts = toy()
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(model=model, reward_funcs=digits, processing_class=tokenizer, train_dataset=prompts, args=GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1, max_steps=steps, learning_rate=4e-4,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_completion_length=20, gradient_checkpointing=False))
        trainer.train()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
