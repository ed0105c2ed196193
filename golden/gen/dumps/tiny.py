"""A causal language model of two layers and a tokenizer of 32 single characters, both made here."""
import os

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHARS = "0123456789+-*/=().,abcdefghijk"
PAD, EOS = 0, 1


def tokenizer(pad_is_eos):
    vocab = {"<pad>": PAD, "<eos>": EOS, **{c: i + 2 for i, c in enumerate(CHARS)}}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>" if pad_is_eos else "<pad>",
                                   padding_side="left", clean_up_tokenization_spaces=False)


def config(hidden=32):
    return Qwen2Config(vocab_size=len(CHARS) + 2, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
                       num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=False,
                       initializer_range=0.35, bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD)


def save(folder, seed, pad_is_eos=True, dtype=torch.float32):
    """A random model and its tokenizer in a folder, for trainers that load the reference model from disk."""
    torch.manual_seed(seed)
    c = config()
    c.pad_token_id = EOS if pad_is_eos else PAD
    model = Qwen2ForCausalLM(c).to(dtype)
    # both special tokens may be drawn; a pad that is no EOS never is, as in a trained model
    if not pad_is_eos:
        model.lm_head.weight.data[PAD] = 0
    model.save_pretrained(folder)
    tokenizer(pad_is_eos).save_pretrained(folder)
    return os.path.abspath(folder)


PROMPTS = ["12+7=", "3*(4+5)=", "9-6=", "(8+1)/3=", "4+4=", "7*6-2=", "10/5=", "2+3+4=", "6*7=", "81/9="]
