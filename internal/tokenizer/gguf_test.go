package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ggufOf returns the metadata that a converter makes of a tokenizer: the vocabulary in the order of the ids, merges as
// strings in the order of the ranks, added tokens told by their type.
func ggufOf(t *Tokenizer, pre string) GGUF {
	g := GGUF{Pre: pre, Types: make([]int32, len(t.vocab.tokens)), Merges: make([]string, len(t.model.merges))}
	for i, v := range t.vocab.tokens {
		g.Tokens = append(g.Tokens, v.text)
		g.Types[i] = ggufNormal
	}
	for _, a := range t.raw.tokens {
		g.Types[a.id] = ggufUserDefined
		if a.special {
			g.Types[a.id] = ggufControl
		}
	}
	ranks := make([]uint64, 0, len(t.model.merges))
	for pair := range t.model.merges {
		ranks = append(ranks, pair)
	}
	slices.SortFunc(ranks, func(a, b uint64) int { return int(t.model.merges[a].rank) - int(t.model.merges[b].rank) })
	for i, pair := range ranks {
		left, _ := t.Token(int(pair >> 32))
		right, _ := t.Token(int(uint32(pair)))
		g.Merges[i] = left + " " + right
	}
	if len(t.before) > 0 {
		g.AddBOS, g.BOS = true, int(t.before[0])
	}
	return g
}

var ggufs = []struct{ file, pre string }{{"llama3.json", "llama-bpe"}, {"smollm2_small.json", "smollm"}, {"qwen2.json", "qwen2"}, {"gpt2.json", "gpt-2"}}

// The tokenizer of a GGUF file gives the ids of the tokenizer.json it was made of.
func TestGGUF(t *testing.T) {
	g := readHashes(t)
	for _, c := range ggufs {
		tok := goldenTokenizer(t, c.file)
		// GGUF has no flags, and a normalised token would be looked for in the raw text.
		withAdded(tok, func(a *addedToken) bool {
			return !a.lstrip && !a.rstrip && !a.singleWord && !a.normalized
		})
		same := func(pre string) bool {
			got, err := FromGGUF("model.gguf", ggufOf(tok, pre))
			require.NoError(t, err)
			for i := range 1000 {
				for _, o := range []EncodeOptions{{}, {AddSpecial: true, ParseSpecial: true}} {
					if !slices.Equal(tok.Encode(g.text(i), o), got.Encode(g.text(i), o)) {
						return false
					}
				}
			}
			return true
		}
		require.True(t, same(c.pre), c.file)
		for _, other := range ggufs {
			require.Equal(t, other.pre == c.pre, same(other.pre), "%s read as %s", c.file, other.pre)
		}
	}
}

func TestGGUFErrors(t *testing.T) {
	sound := func() GGUF {
		return GGUF{Pre: "gpt-2", Tokens: []string{"a", "b", "ab", "<s>"}, Types: []int32{1, 1, 1, 3}, Merges: []string{"a b"}, AddBOS: true, BOS: 3, AddEOS: true, EOS: 3}
	}
	tok, err := FromGGUF("m.gguf", sound())
	require.NoError(t, err)
	require.Equal(t, []int{3, 2, 3}, tok.Encode("ab", EncodeOptions{AddSpecial: true}))
	for _, bad := range []struct {
		want string
		edit func(*GGUF)
	}{
		{`m.gguf: tokenizer.ggml.pre: "default" is not known; known are gpt-2, llama-bpe, qwen2, smollm`, func(g *GGUF) { g.Pre = "default" }},
		{"tokenizer.ggml.token_type: has 3 entries for 4 tokens", func(g *GGUF) { g.Types = g.Types[1:] }},
		{`token 0 "a" has the type 6`, func(g *GGUF) { g.Types[0] = 6 }},
		{`token 0 "a" has the type -1`, func(g *GGUF) { g.Types[0] = -1 }},
		{`tokenizer.ggml.tokens: token "a" is there twice`, func(g *GGUF) { g.Tokens[1] = "a" }},
		{`tokenizer.ggml.merges[0]: "ab", want two tokens`, func(g *GGUF) { g.Merges[0] = "ab" }},
		{`tokenizer.ggml.merges[0]: "c" is not in the vocabulary`, func(g *GGUF) { g.Merges[0] = "a c" }},
		{"tokenizer.ggml.bos_token_id: 4, want a token of 4", func(g *GGUF) { g.BOS = 4 }},
		{"tokenizer.ggml.eos_token_id: -1, want a token of 4", func(g *GGUF) { g.EOS = -1 }},
		{"tokenizer.ggml.tokens: has no tokens", func(g *GGUF) { *g = GGUF{Pre: "gpt-2"} }},
		{"has 16385 bytes, want at most 16384", func(g *GGUF) { g.Tokens[0] = strings.Repeat("x", 16385) }},
		{"want 1 to 1024", func(g *GGUF) { g.Tokens[3] = "" }},
		{"has 2097153 tokens", func(g *GGUF) { g.Tokens = make([]string, 1<<21+1) }},
		{"has 2097153 merges", func(g *GGUF) { g.Merges = make([]string, 1<<21+1) }},
	} {
		g := sound()
		bad.edit(&g)
		_, err := FromGGUF("m.gguf", g)
		require.ErrorContains(t, err, bad.want)
	}
}
