"""The strings that the tokenizers are asked about. internal/tokenizer/golden_test.go has the same generator in Go; the
alphabet is written into the golden, for both to read."""

MASK = (1 << 64) - 1

ALPHABET = {
    "word": ["the", " the", "The", " policy", "gradient", " reward", "Hello", " world", "tokenizer", " KL", "GRPO", "naive", "x", " I", "cafe",
             "return", "self", "fn", "ing", "aaaaaaaa", "ABCDEFG"],
    "letter": [chr(c) for c in range(ord("a"), ord("z") + 1)],
    "digit": ["0", "1", "7", "12", "345", "2026", "99999999", " 5", "½", "²", "٣", "Ⅷ", "①", "１", "\U00010d41", "\U00011de1", "𝟙"],
    "space": [" ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\x0b",
              "\x1c", " \t ", "       "],
    "contraction": ["'s", "'S", "'t", "'re", "'RE", "'rE", "'ve", "'m", "'M", "'ll", "'LL", "'d", "'ſ", "'Ve", "’s", "'", "''", "'l", "'K", "n't"],
    "sign": [".", ",", "!", "?", "...", "->", "{", "}", "()", "==", "//", "_", "-", "\"", "#", "€", "\x00", "\x7f", "\ufeff", "\ufffd", "+=", ";\n",
             ");\r\n", "\\n", "\u00ad", "«"],
    "east": ["中", "文", "漢字", "ひ", "カ", "か\u3099", "한", "국어", "\u1112\u1161\u11ab", "\u1112\u1161", "\u11ab", "\uac00\u11a8", "\u11a7",
             "\U0002ebf0", "\U00020041", "\uf900", "、", "。", "ー"],
    "emoji": ["😀", "👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "❤\ufe0f", "👍🏽", "\u200d", "\ufe0f", "🇩🇪", "\U0001fae9", "\U0010ffff"],
    "mark": ["\u0301", "\u0323", "\u0308", "\u0327", "\u0345", "\u0338", "e\u0301", "a\u0323\u0302", "a\u0302\u0323", "q\u0307\u0323", "\u0344",
             "\u212b", "\u1e9b\u0323", "\u0f71\u0f72", "\u09c7\u09be", "\U00010041\u0301", "\U00011099\U000110ba", "\U00011935\U00011930",
             "\U00011938", "\U0001d15e", "\u07fd", "\U0001e08f", "\u0958", "\u2126", "\u0315\u0323" * 20, "=\u0338", "\u0315", "\u05b0\u05bc"],
    "script": ["Привет", "γειά", "שלום", "ﷺ", "नमस्ते", "ไทย", "ﬁ", "ß", "İ", "\u212a", "ǅ", "\ua7cb", "ª", "ⅷ", "é", "ñ", "ü", "naïve", "café",
               "nai\u0308ve", "cafe\u0301", "e\u0301x", "\U00010400", "\U00013460"],
    "special": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_", "|>", "<|begin_of_text|>", "<repo_name>", "<a>", "<ab>", "<abc", "<abc>",
                "[L]", "[R]", "[W]", "[LRW]", "[S]", " [L] ", " [R] ", " [W] ", "[P]", "<unk>"],
}


def split_mix(state):
    """SplitMix64 (Steele, Lea, Flood 2014): the values of a state."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def string(seed, i):
    """String i: up to 23 draws of a group and one of its atoms, one draw in eight repeated up to 5 times. Most strings keep
    to three groups, or the splitters would hardly see a run."""
    groups = list(ALPHABET.values())
    draws = split_mix((seed + i * 0xD1342543DE82EF95) & MASK)
    n = next(draws) % 24
    few = [next(draws) % len(groups) for _ in range(3)]
    out = []
    for _ in range(n):
        r = next(draws)
        group = groups[few[(r & 0xFF) % 3]] if i % 4 else groups[(r & 0xFF) % len(groups)]
        times = 1 + (r >> 24) % 5 if (r >> 8) % 8 == 0 else 1
        out.append(group[(r >> 32) % len(group)] * times)
    return "".join(out)
