package tokenizer

import (
	"maps"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// withAdded replaces the added tokens of t by those that edit leaves.
func withAdded(t *Tokenizer, edit func(*addedToken) bool) {
	var left []addedToken
	for _, m := range []*matcher{t.raw, t.normal} {
		for _, a := range m.tokens {
			if b := *a; edit(&b) {
				left = append(left, b)
			}
		}
	}
	t.vocab.tokens = slices.Clone(t.vocab.tokens)
	for i := range t.vocab.tokens {
		t.vocab.tokens[i].special, t.vocab.tokens[i].other = false, false
	}
	t.markAdded(left)
}

// splitNoLookahead is splitGPT2 where \s+(?!\S) is left out, as a pattern for RE2 has it.
func splitNoLookahead(s string) int {
	if n := run(s, space, len(s)); n > 0 && (n > 1 || s[0] != ' ') {
		return n
	}
	return splitGPT2(s)
}

// faults are the errors that tokenizers are known to have, each with the golden that must see it.
var faults = []struct {
	name, golden string
	plant        func(*Tokenizer)
}{
	{"merges in another order", "gpt2.json", func(t *Tokenizer) {
		t.model.merges = maps.Clone(t.model.merges)
		for pair, m := range t.model.merges {
			m.rank = int32(len(t.model.merges)) - m.rank
			t.model.merges[pair] = m
		}
	}},
	{"one merge lost", "smollm2.json.gz", func(t *Tokenizer) {
		t.model.merges = maps.Clone(t.model.merges)
		left, _ := t.ID("t")
		right, _ := t.ID("he")
		require.Contains(faultT{}, t.model.merges, pairOf(int32(left), int32(right)))
		delete(t.model.merges, pairOf(int32(left), int32(right)))
	}},
	{"Qwen2 splits like GPT-2", "qwen2.json", func(t *Tokenizer) { t.steps = []step{{split: splitGPT2}} }},
	{"GPT-2 splits like Qwen2", "gpt2.json", func(t *Tokenizer) { t.steps = []step{{split: splitQwen2}} }},
	{"Qwen2 takes digits by threes", "qwen2.json", func(t *Tokenizer) { t.steps = []step{{split: splitLlama3}} }},
	{"Llama 3 takes single digits", "llama3.json", func(t *Tokenizer) { t.steps = []step{{split: splitQwen2}} }},
	{"SmolLM2 groups digits", "smollm2_small.json", func(t *Tokenizer) { t.steps = t.steps[1:] }},
	{"digits and the rest split as one text", "smollm2_small.json", func(t *Tokenizer) { slices.Reverse(t.steps) }},
	{"no look-ahead", "gpt2.json", func(t *Tokenizer) { t.steps = []step{{split: splitNoLookahead}} }},
	{"contractions in lower case only", "qwen2.json", func(t *Tokenizer) {
		t.steps = []step{{split: func(s string) int {
			if contractionFolded(s) > 0 && contraction(s) == 0 {
				return 1 + run(s[1:], letter, len(s))
			}
			return splitQwen2(s)
		}}}
	}},
	{"special tokens not recognised", "qwen2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { return !a.special })
	}},
	{"special tokens taken for plain ones", "qwen2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { a.special = false; return true })
	}},
	{"NFC left out", "qwen2.json", func(t *Tokenizer) { t.normalize = nil }},
	{"NFC of package norm", "qwen2.json", func(t *Tokenizer) { t.normalize = norm.NFC.String }},
	{"NFD for NFC", "qwen2.json", func(t *Tokenizer) { t.normalize = norm.NFD.String }},
	{"normalised tokens looked for in the raw text", "qwen2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { a.normalized = false; return true })
	}},
	{"lstrip ignored", "gpt2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { a.lstrip = false; return true })
	}},
	{"rstrip ignored", "gpt2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { a.rstrip = false; return true })
	}},
	{"single_word ignored", "gpt2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { a.singleWord = false; return true })
	}},
	{"the shorter of two added tokens", "gpt2.json", func(t *Tokenizer) {
		withAdded(t, func(a *addedToken) bool { return a.content != "<ab>" && a.content != "<abc>" })
	}},
	{"ignore_merges ignored", "llama3.json", func(t *Tokenizer) { t.model.whole = nil }},
	{"BOS left out", "llama3.json", func(t *Tokenizer) { t.before = nil }},
	{"EOS left out", "unknown.json", func(t *Tokenizer) { t.after = nil }},
	{"no space before the text", "prefix.json", func(t *Tokenizer) { t.steps = []step{{split: splitGPT2}} }},
	{"a byte without a token becomes token 0", "prefix.json", func(t *Tokenizer) { t.model.unknown = 0 }},
	{"unknown tokens not fused", "unknown.json", func(t *Tokenizer) { t.model.fuseUnknown = false }},
}

// faultT makes a fault that cannot be planted a panic.
type faultT struct{}

func (faultT) Errorf(format string, args ...any) {}
func (faultT) FailNow()                          { panic("the fault has nothing to change") }

// Each fault is seen by the strings of its golden.
func TestFaultsAreCaught(t *testing.T) {
	g := readHashes(t)
	healthy := map[string]bool{}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			tok := goldenTokenizer(t, f.golden)
			if !healthy[f.golden] {
				require.Empty(t, g.differs(tok, g.Tokenizers[f.golden], g.Block))
				healthy[f.golden] = true
			}
			f.plant(tok)
			require.NotEmpty(t, g.differs(tok, g.Tokenizers[f.golden], g.Count))
		})
	}
}

// streams checks that what push returns for each id is UTF-8 and that it adds up to the whole text.
func streams(push func(id int) string, flush func() string, ids []int, whole string) string {
	var text []byte
	for _, id := range ids {
		out := push(id)
		if !utf8.ValidString(out) {
			return "a rune was split"
		}
		text = append(text, out...)
	}
	text = append(text, flush()...)
	if string(text) != whole {
		return "the parts do not add up"
	}
	return ""
}

// A stream that does not hold back, or that replaces what is incomplete, is seen.
func TestStreamFaults(t *testing.T) {
	tok := goldenTokenizer(t, "gpt2.json")
	ids := tok.Encode("漢 😀", EncodeOptions{})
	whole, err := tok.Decode(ids, DecodeOptions{})
	require.NoError(t, err)
	none := func() string { return "" }
	bytes := func(id int) string {
		b, err := tok.Bytes([]int{id}, DecodeOptions{})
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, "a rune was split", streams(bytes, none, ids, whole))
	text := func(id int) string { return replace([]byte(bytes(id))) }
	require.Equal(t, "the parts do not add up", streams(text, none, ids, whole))
}
