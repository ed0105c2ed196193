package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// document returns a small tokenizer.json with members replaced; a value of "" takes the member out.
func document(replace ...string) string {
	members := []string{
		"version", `"1.0"`, "truncation", "null", "padding", "null",
		"added_tokens", `[{"id":4,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]`,
		"normalizer", "null",
		"pre_tokenizer", `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`,
		"post_processor", "null", "decoder", `{"type":"ByteLevel"}`,
		"type", `"BPE"`, "dropout", "null", "unk_token", "null", "continuing_subword_prefix", `""`, "end_of_word_suffix", "null",
		"fuse_unk", "false", "byte_fallback", "false", "ignore_merges", "false",
		"vocab", `{"a":0,"b":1,"ab":2,"Ġ":3}`, "merges", `["a b"]`,
	}
	var top, model []string
	for i := 0; i < len(members); i += 2 {
		value := members[i+1]
		for j := 0; j < len(replace); j += 2 {
			if replace[j] == members[i] {
				value = replace[j+1]
			}
		}
		if value == "" {
			continue
		}
		if i < 16 {
			top = append(top, fmt.Sprintf("%q:%s", members[i], value))
		} else {
			model = append(model, fmt.Sprintf("%q:%s", members[i], value))
		}
	}
	return "{" + strings.Join(top, ",") + `,"model":{` + strings.Join(model, ",") + "}}"
}

const sequence = `{"type":"Sequence","pretokenizers":[%s]}`

// hostile are documents that are refused, with what the message says.
var hostile = []struct{ name, text, want string }{
	{"empty", "", "byte 0"},
	{"not an object", "[]", "found an array, want an object"},
	{"cut off", document()[:200], "string without an end"},
	{"depth", strings.Repeat("[", 10_001), "found an array"},
	{"depth inside", document("padding", strings.Repeat("[", 10_001)), "nested deeper than 64"},
	{"duplicate member", strings.Replace(document(), `"version"`, `"decoder":null,"version"`, 1), `duplicate key "decoder"`},
	{"duplicate token", document("vocab", `{"a":0,"a":1}`), `duplicate key "a"`},
	{"unknown member", strings.Replace(document(), `"version"`, `"verson":1,"version"`, 1), "verson: is not a known member"},
	{"unknown member of the model", strings.Replace(document(), `"type":"BPE"`, `"type":"BPE","x":1`, 1), "model.x: is not a known member"},
	{"version", document("version", `"2.0"`), `version "2.0"`},
	{"another model", document("type", `"Unigram"`), `model.type: "Unigram", want "BPE"`},
	{"no model", `{"version":"1.0"}`, "model: is missing"},
	{"dropout", document("dropout", "0.1"), "the ids would be drawn at random"},
	{"byte_fallback", document("byte_fallback", "true"), "byte_fallback is true"},
	{"prefix", document("continuing_subword_prefix", `"##"`), `continuing_subword_prefix is "##"`},
	{"suffix", document("end_of_word_suffix", `"</w>"`), `end_of_word_suffix is "</w>"`},
	{"no tokens", document("vocab", `{}`, "merges", "[]"), "model.vocab: has no tokens"},
	{"no vocabulary", document("vocab", "", "merges", "[]"), "model.vocab: has no tokens"},
	{"duplicate ids", document("vocab", `{"a":0,"b":1,"ab":1,"Ġ":3}`), "have the same id 1"},
	{"negative id", document("vocab", `{"a":0,"b":-1}`), "id -1"},
	{"huge id", document("vocab", `{"a":0,"b":2097152}`), "id 2097152"},
	{"fractional id", document("vocab", `{"a":0.5}`), "found 0.5, want an integer"},
	{"long token", document("vocab", `{"`+strings.Repeat("x", 10<<20)+`":0}`), "has 10485760 bytes, want at most 16384"},
	{"merge of an unknown token", document("merges", `["a c"]`), `model.merges[0]: "c" is not in the vocabulary`},
	{"merge to an unknown token", document("merges", `["b a"]`), `the result "ba" is not in the vocabulary`},
	{"merge of one", document("merges", `["ab"]`), `merge "ab", want two tokens`},
	{"merge of three", document("merges", `["a b b"]`), "want two tokens"},
	{"pair of one", document("merges", `[["a"]]`), "has 1 tokens, want 2"},
	{"pair of three", document("merges", `[["a","b","b"]]`), "has 3 tokens, want 2"},
	{"merge twice", document("merges", `["a b",["a","b"]]`), "model.merges[1]: is merge 0 once more"},
	{"merge that is a number", document("merges", `[1]`), "found a number, want an array"},
	{"unknown unk", document("unk_token", `"<unk>"`), `does not have the unknown token "<unk>"`},
	{"no id", document("added_tokens", `[{"content":"<s>"}]`), "added_tokens[0]: has no id"},
	{"no content", document("added_tokens", `[{"id":4}]`), "want 1 to 1024"},
	{"long added token", document("added_tokens", `[{"id":4,"content":"`+strings.Repeat("x", 1025)+`"}]`), "has 1025 bytes"},
	{"id of another", document("added_tokens", `[{"id":1,"content":"a"}]`), `token "a" has the id 1, tokenizers would give it 0`},
	{"id with a hole", document("added_tokens", `[{"id":7,"content":"<s>"}]`), `has the id 7, tokenizers would give it 4`},
	{"added twice", document("added_tokens", `[{"id":4,"content":"<s>"},{"id":5,"content":"<s>"}]`), "is added twice"},
	{"many added tokens", document("added_tokens", "["+strings.Repeat(`{"id":4,"content":"<s>"},`, maxAddedTokens)+`{"id":5,"content":"<t>"}]`), "more than 32768 added tokens"},
	{"one normal form", document("normalizer", `{"type":"NFC"}`, "added_tokens", `[{"id":4,"content":"é","normalized":true},{"id":5,"content":"e\u0301","normalized":true}]`), "have the same normal form"},
	{"unknown flag", document("added_tokens", `[{"id":4,"content":"<s>","strip":true}]`), `"strip" is not a known member`},
	{"normaliser", document("normalizer", `{"type":"NFKC"}`), `normalizer: "NFKC", want NFC or none`},
	{"two normalisers", document("normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"NFC"}]}`), "want NFC or none"},
	{"no pre-tokenizer", document("pre_tokenizer", "null"), "pre_tokenizer: none, want ByteLevel"},
	{"unknown pre-tokenizer", document("pre_tokenizer", `{"type":"Metaspace"}`), `"Metaspace" is not known`},
	{"unknown pattern", document("pre_tokenizer", fmt.Sprintf(sequence, `{"type":"Split","pattern":{"Regex":"\\p{N}{1,2}"},"behavior":"Isolated","invert":false},{"type":"ByteLevel"}`)), `the pattern "\\p{N}{1,2}" is not known`},
	{"string pattern", document("pre_tokenizer", fmt.Sprintf(sequence, `{"type":"Split","pattern":{"String":" "},"behavior":"Isolated"}`)), "want a Regex"},
	{"removing split", document("pre_tokenizer", fmt.Sprintf(sequence, splitJSON(patternGPT2, "Removed", false))), "want Isolated and false"},
	{"inverted split", document("pre_tokenizer", fmt.Sprintf(sequence, splitJSON(patternGPT2, "Isolated", true))), "want Isolated and false"},
	{"bytes first", document("pre_tokenizer", fmt.Sprintf(sequence, `{"type":"ByteLevel"},{"type":"Digits"}`)), "want ByteLevel at the end"},
	{"no bytes", document("pre_tokenizer", fmt.Sprintf(sequence, `{"type":"Digits"}`)), "want ByteLevel at the end"},
	{"nested", document("pre_tokenizer", fmt.Sprintf(sequence, fmt.Sprintf(sequence, ""))), "a Sequence inside a Sequence"},
	{"null in a sequence", document("pre_tokenizer", fmt.Sprintf(sequence, "null")), "null inside a Sequence"},
	{"long sequence", document("pre_tokenizer", fmt.Sprintf(sequence, strings.Repeat(`{},`, 16)+"{}")), "a Sequence of more than 16"},
	{"no decoder", document("decoder", "null"), "decoder: none, want ByteLevel"},
	{"decoder", document("decoder", `{"type":"WordPiece"}`), `decoder: "WordPiece", want ByteLevel`},
	{"unknown component", document("decoder", `{"type":"ByteLevel","cleanup":true}`), `"cleanup" is not a known member`},
	{"post-processor", document("post_processor", `{"type":"RobertaProcessing"}`), `post_processor: "RobertaProcessing"`},
	{"template without the text", document("post_processor", `{"type":"TemplateProcessing","single":[]}`), "has the text 0 times"},
	{"template of an unknown token", document("post_processor", template(`"<t>"`, `"<t>":{"id":"<t>","ids":[4],"tokens":["<t>"]}`)), `token "<t>" is not in the vocabulary`},
	{"template of another id", document("post_processor", template(`"<s>"`, `"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}`)), `has the id 3 there, 4 in the vocabulary`},
	{"template without its token", document("post_processor", template(`"<s>"`, ``)), "has 0 ids, want one"},
	{"second text", document("post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}]}`), "want a SpecialToken or the Sequence A"},
	{"empty part", document("post_processor", `{"type":"TemplateProcessing","single":[{}]}`), "a template part with 0 kinds"},
	{"after the end", document() + "{}", "after the end of the JSON document"},
}

func splitJSON(pattern, behavior string, invert bool) string {
	p, _ := json.Marshal(pattern)
	return fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":%q,"invert":%t},{"type":"ByteLevel","use_regex":false}`, p, behavior, invert)
}

func template(token, ids string) string {
	return fmt.Sprintf(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":%s,"type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{%s}}`, token, ids)
}

func TestHostile(t *testing.T) {
	tok, err := measure(t, []byte(document()))
	require.NoError(t, err)
	require.Equal(t, []int{4, 2, 3, 0}, tok.Encode("<s>ab a", EncodeOptions{ParseSpecial: true}))
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			tok, err := measure(t, []byte(h.text))
			require.ErrorContains(t, err, h.want)
			require.ErrorContains(t, err, "tokenizer.json: ")
			require.True(t, format.IsMalformed(err))
			require.Nil(t, tok)
			require.Less(t, len(err.Error()), 600)
		})
	}
}

// Forms that are rare but known.
func TestForms(t *testing.T) {
	encode := func(text, doc string) []int {
		tok, err := Parse("tokenizer.json", []byte(doc))
		require.NoError(t, err)
		return tok.Encode(text, EncodeOptions{})
	}
	require.Equal(t, []int{2}, encode("ab", document("merges", `["#version: 0.2","a b"]`)))
	require.Equal(t, []int{2}, encode("ab", document("merges", `[["a","b"]]`)))
	require.Equal(t, []int{0, 1}, encode("ab", document("merges", `[]`)))

	// Without use_regex a ByteLevel splits; the token across the border shows it.
	const vocab, merges = `{"a":0,"b":1,"Ġ":2,"aĠ":3}`, `["a Ġ"]`
	level := func(more string) string { return `{"type":"ByteLevel","add_prefix_space":false` + more + `}` }
	require.Equal(t, []int{0, 2, 1}, encode("a b", document("vocab", vocab, "merges", merges, "pre_tokenizer", level(""))))
	require.Equal(t, []int{3, 1}, encode("a b", document("vocab", vocab, "merges", merges, "pre_tokenizer", level(`,"use_regex":false`))))

	// A vocabulary with holes.
	tok, err := Parse("tokenizer.json", []byte(document("vocab", `{"ab":9,"a":0,"Ġ":3,"b":5}`)))
	require.NoError(t, err)
	require.Equal(t, []int{9, 3, 5, 4}, tok.Encode("ab b<s>", EncodeOptions{ParseSpecial: true}))
	text, err := tok.Decode([]int{9, 3, 5, 4}, DecodeOptions{SkipSpecial: true})
	require.NoError(t, err)
	require.Equal(t, "ab b", text)
	require.Equal(t, 9, tok.MaxID())
	for _, id := range []int{-1, 1, 2, 6, 10, 1 << 40} {
		_, err := tok.Decode([]int{id}, DecodeOptions{})
		require.ErrorContains(t, err, "no token has the id")
		require.False(t, tok.Special(id))
	}
	require.True(t, tok.Special(4))
}

// measure parses b and holds the reader to the budget of every reader.
func measure(t require.TestingT, b []byte) (tok *Tokenizer, err error) {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	tok, err = Parse("tokenizer.json", b)
	metrics.Read(sample)
	require.LessOrEqual(t, sample[0].Value.Uint64()-before, 4*uint64(len(b))+16<<20, "allocation of a file of %d bytes", len(b))
	return tok, err
}

// Many small members are what costs most for their size.
func TestMemory(t *testing.T) {
	_, err := measure(t, goldenFile(t, "smollm2.json.gz"))
	require.NoError(t, err)
	var vocab, added, merges strings.Builder
	n := 300_000
	if testing.Short() {
		n = 30_000
	}
	for i := range n {
		fmt.Fprintf(&vocab, `"%x":%d,`, i, i+4)
		merges.WriteString(`,["a","b"]`)
		if i < maxAddedTokens {
			fmt.Fprintf(&added, `,{"id":%d,"content":"%x"}`, i+1, i)
		}
	}
	_, err = measure(t, []byte(document("vocab", "{"+vocab.String()+`"a b":0}`, "merges", "[]", "added_tokens", "[]")))
	require.NoError(t, err)
	_, err = measure(t, []byte(document("vocab", `{"z":0}`, "merges", "[]", "added_tokens", "["+added.String()[1:]+"]")))
	require.NoError(t, err)
	_, err = measure(t, []byte(document("merges", "["+merges.String()[1:]+"]")))
	require.ErrorContains(t, err, "merge 0 once more")
	_, err = measure(t, []byte(document("merges", "["+strings.Repeat(`"a b",`, maxVocab-1)+`"a b"]`)))
	require.ErrorContains(t, err, "merge 0 once more")

	// Added tokens that are not normal, each sorted by its normal form.
	var forms strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&forms, `,{"id":%d,"content":"%s%d","normalized":true}`, i+1, strings.Repeat("e\u0301", 300), i)
	}
	_, err = measure(t, []byte(document("vocab", `{"z":0}`, "merges", "[]", "normalizer", `{"type":"NFC"}`, "added_tokens", "["+forms.String()[1:]+"]")))
	require.NoError(t, err)
}

// Texts and added tokens that are made to cost as much as they can.
func TestTime(t *testing.T) {
	added := func(tokens ...string) string {
		var b strings.Builder
		for i, c := range tokens {
			fmt.Fprintf(&b, `,{"id":%d,"content":%q,"lstrip":true,"rstrip":true}`, i+1, c)
		}
		return document("vocab", `{"z":0}`, "merges", "[]", "added_tokens", "["+b.String()[1:]+"]")
	}
	var chain, ends []string
	for i := range 1000 {
		chain = append(chain, strings.Repeat("a", i+1))
		ends = append(ends, strings.Repeat("a", 1000)+fmt.Sprint(i))
	}
	const n = 1 << 18
	started := time.Now()
	for _, c := range []struct{ document, text string }{
		{added(" "), strings.Repeat(" ", n)},
		{added("x", " "), strings.Repeat(" ", n/2) + "x" + strings.Repeat(" ", n/2)},
		{added(ends...), strings.Repeat("a", n)},
		{added(append(chain, strings.Repeat("a", 1000)+"b")...), strings.Repeat("ab", n/2)},
		{added(append(chain, strings.Repeat("a", 999)+"!")...), strings.Repeat("a", n)},
		{document(), strings.Repeat("ab", n)},
	} {
		tok, err := Parse("tokenizer.json", []byte(c.document))
		require.NoError(t, err)
		tok.Encode(c.text, EncodeOptions{ParseSpecial: true})
	}
	require.Less(t, time.Since(started), time.Minute)
}

// The file is opened as every file is.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, []byte(document()), 0o600))
	f, err := format.Open(path)
	require.NoError(t, err)
	defer f.Close()
	tok, err := Read(f)
	require.NoError(t, err)
	require.Equal(t, 5, tok.Len())
	require.NoError(t, os.Truncate(path, 0))
	_, err = Read(f)
	require.ErrorContains(t, err, path)
}

// FuzzParse demands that a file is refused with its name, or that the tokenizer which it makes encodes and decodes.
func FuzzParse(f *testing.F) {
	f.Add([]byte(document()), "ab <s>")
	for _, h := range hostile {
		if len(h.text) < 4096 {
			f.Add([]byte(h.text), "a")
		}
	}
	f.Add([]byte(document("normalizer", `{"type":"NFC"}`, "pre_tokenizer", fmt.Sprintf(sequence, splitJSON(patternQwen2, "Isolated", false)))), "e\u0301 12\n")
	f.Fuzz(func(t *testing.T, b []byte, text string) {
		tok, err := measure(t, b)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		sound(t, tok, text)
	})
}

// sound demands what every tokenizer promises.
func sound(t require.TestingT, tok *Tokenizer, text string) {
	ids := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
	whole, err := tok.Decode(ids, DecodeOptions{})
	require.NoError(t, err)
	require.NoError(t, tok.CheckVocab(tok.MaxID()+1))
	s := tok.NewStream(DecodeOptions{})
	require.Empty(t, streams(func(id int) string {
		out, err := s.Push(id)
		require.NoError(t, err)
		return out
	}, s.Flush, ids, whole))
}

// FuzzEncode demands that any text comes back from the tokenizers of the goldens.
func FuzzEncode(f *testing.F) {
	toks := []*Tokenizer{goldenTokenizer(f, "llama3.json"), goldenTokenizer(f, "smollm2_small.json")}
	rest := []*Tokenizer{goldenTokenizer(f, "gpt2.json"), goldenTokenizer(f, "qwen2.json"), goldenTokenizer(f, "unknown.json")}
	f.Add("a 12 漢\U00010041\u0301\xff<|im_end|>")
	f.Add(" \n\n \r\n'S's'ſ[L] <abc")
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range toks {
			b, err := tok.Bytes(tok.Encode(text, EncodeOptions{ParseSpecial: true}), DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, text, string(b))
		}
		for _, tok := range rest {
			sound(t, tok, text)
		}
	})
}

// FuzzGGUF is FuzzParse for metadata: tokens and merges by line, types by byte.
func FuzzGGUF(f *testing.F) {
	f.Add("gpt-2", "a\nb\nab\n<s>", []byte{1, 1, 1, 3}, "a b", "<s>ab", 3)
	f.Add("qwen2", "a\n\u0301\n", []byte{1, 4, 5}, "", "a\u0301", -1)
	f.Fuzz(func(t *testing.T, pre, tokens string, types []byte, merges, text string, bos int) {
		g := GGUF{Pre: pre, Tokens: strings.Split(tokens, "\n"), AddBOS: bos >= 0, BOS: bos}
		for _, b := range types {
			g.Types = append(g.Types, int32(int8(b)))
		}
		if merges != "" {
			g.Merges = strings.Split(merges, "\n")
		}
		tok, err := FromGGUF("model.gguf", g)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			require.ErrorContains(t, err, "model.gguf: tokenizer.ggml.")
			return
		}
		sound(t, tok, text)
	})
}
