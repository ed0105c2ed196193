package tokenizer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// GGUF is the part of a GGUF file's metadata that describes a tokenizer. Its tokenizer.ggml.model is "gpt2", which the
// caller has checked.
type GGUF struct {
	Pre            string   // tokenizer.ggml.pre
	Tokens         []string // tokenizer.ggml.tokens; the index is the id
	Types          []int32  // tokenizer.ggml.token_type
	Merges         []string // tokenizer.ggml.merges
	AddBOS, AddEOS bool     // tokenizer.ggml.add_bos_token, add_eos_token; where the first is absent llama.cpp adds BOS for llama-bpe only
	BOS, EOS       int      // tokenizer.ggml.bos_token_id, eos_token_id; looked at only where AddBOS, AddEOS
}

// Token types of GGUF, enum llama_token_type of llama.cpp include/llama.h.
const (
	ggufNormal = 1 + iota
	ggufUnknown
	ggufControl
	ggufUserDefined
	ggufUnused
)

// ggufPre is what tokenizer.ggml.pre stands for. Each is what the tokenizer.json of the family says, so that the ids are
// those of training: llama.cpp itself does not normalise text for qwen2.
var ggufPre = map[string]struct {
	steps        []step
	normalize    func(string) string
	ignoreMerges bool
}{
	"gpt-2":     {steps: []step{{split: splitGPT2}}},
	"smollm":    {steps: []step{{split: splitDigits}, {split: splitGPT2}}},
	"qwen2":     {steps: []step{{split: splitQwen2}}, normalize: nfc},
	"llama-bpe": {steps: []step{{split: splitLlama3}}, ignoreMerges: true},
}

// FromGGUF returns the tokenizer that the metadata of the GGUF file called file describes. Control tokens become special
// added tokens, user-defined ones added tokens; GGUF has no strip flags.
func FromGGUF(file string, g GGUF) (*Tokenizer, error) {
	const prefix = "tokenizer.ggml."
	bad := func(key, msg string, args ...any) (*Tokenizer, error) {
		return nil, format.Malformed(file, prefix+key, msg, args...)
	}
	pre, ok := ggufPre[g.Pre]
	if !ok {
		return bad("pre", "%.64q is not known; known are %s", g.Pre, strings.Join(slices.Sorted(maps.Keys(ggufPre)), ", "))
	}
	if len(g.Tokens) > maxVocab {
		return bad("tokens", "has %d tokens, want at most %d", len(g.Tokens), maxVocab)
	}
	if len(g.Types) != len(g.Tokens) {
		return bad("token_type", "has %d entries for %d tokens", len(g.Types), len(g.Tokens))
	}
	if len(g.Merges) > maxVocab {
		return bad("merges", "has %d merges, want at most %d", len(g.Merges), maxVocab)
	}
	s := &source{file: file, steps: pre.steps, normalize: pre.normalize, ignoreMerges: pre.ignoreMerges,
		places: places{prefix + "tokens", prefix + "merges", prefix + "tokens", prefix + "bos_token_id"}}
	for id, text := range g.Tokens {
		s.vocab.add(token{text: text, id: int32(id)})
		switch g.Types[id] {
		case ggufNormal, ggufUnknown, ggufUnused:
		case ggufControl, ggufUserDefined:
			if len(s.added) == maxAddedTokens {
				return bad("token_type", "more than %d tokens are control tokens or user-defined", maxAddedTokens)
			}
			s.added = append(s.added, addedToken{id: id, content: text, special: g.Types[id] == ggufControl})
		default:
			return bad("token_type", "token %d %.64q has the type %d, which byte-level BPE does not have", id, text, g.Types[id])
		}
	}
	for i, text := range g.Merges {
		m, ok := splitMerge(text)
		if !ok {
			return bad(fmt.Sprintf("merges[%d]", i), "%.64q, want two tokens with a space between", text)
		}
		s.merges.add(m)
	}
	for _, end := range []struct {
		add  bool
		key  string
		id   int
		list *[]named
	}{{g.AddBOS, "bos_token_id", g.BOS, &s.before}, {g.AddEOS, "eos_token_id", g.EOS, &s.after}} {
		if !end.add {
			continue
		}
		if end.id < 0 || end.id >= len(g.Tokens) {
			return bad(end.key, "%d, want a token of %d", end.id, len(g.Tokens))
		}
		*end.list = []named{{g.Tokens[end.id], end.id}}
	}
	return s.build()
}
