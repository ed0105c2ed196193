package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// atoms are what texts of the laws are made of: what the splitters, NFC and UTF-8 care about.
var atoms = []string{"a", "B", "s", "S", "t", "re", "VE", "ll", "d", "M", "ſ", "é", "中", "İ", "0", "7", "42", "½", "Ⅷ", "٣", " ", "  ", "\t", "\n", "\r",
	"\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\x1c", "\u200b", "'", "''", ".", "!", "_", "-", "\x00", "€", "\u0301", "\u0323", "\u0345", "か\u3099",
	"각", "\u1100", "\u1161", "\u11a8", "😀", "\u200d", "\ufe0f", "\U00010041", "\U0010ffff", "\ufffd", "<|im_end|>", "<|endoftext|>", "<abc>"}

func text() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom(atoms), 0, 24).Draw(t, "atoms")
		if rapid.Float64Range(0, 1).Draw(t, "bytes") < 0.1 {
			parts = append(parts, string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "tail")))
		}
		return strings.Join(parts, "")
	})
}

// naive is the definition of BPE: as long as some pair of neighbours has a merge, the leftmost of those with the lowest
// rank is joined.
func naive(m *bpe, piece string) (ids []int32) {
	if m.whole != nil {
		if id, ok := m.whole.find(string(appendSpelled(nil, piece))); ok {
			return []int32{id}
		}
	}
	fused := false
	for i := range len(piece) {
		id := m.byteID[piece[i]]
		switch {
		case id >= 0:
			ids, fused = append(ids, id), false
		case m.unknown >= 0 && !(fused && m.fuseUnknown):
			ids, fused = append(ids, m.unknown), true
		}
	}
	for {
		best, found := -1, merge{}
		for i := 0; i+1 < len(ids); i++ {
			if c, ok := m.merges[pairOf(ids[i], ids[i+1])]; ok && (best < 0 || c.rank < found.rank) {
				best, found = i, c
			}
		}
		if best < 0 {
			return ids
		}
		ids = slices.Replace(ids, best, best+2, found.id)
	}
}

func TestMergesAreThoseOfTheDefinition(t *testing.T) {
	for _, name := range []string{"gpt2.json", "llama3.json", "prefix.json", "unknown.json"} {
		m := goldenTokenizer(t, name).model
		check := func(t *rapid.T) {
			piece := rapid.OneOf(text(), rapid.StringMatching("[at]{0,60}"), rapid.StringMatching("( ?[aeinorst]){0,40}")).Draw(t, "piece")
			var got []int32
			size := 0
			m.encode(new(scratch), piece, func(id int32, n int) { got, size = append(got, id), size+n })
			require.Equal(t, naive(&m, piece), got)
			if got != nil {
				require.Equal(t, len(piece), size)
			}
		}
		rapid.Check(t, check)
		m.fuseUnknown = false
		rapid.Check(t, check)
	}
}

// A word of 1 MB, which takes minutes where each merge looks at the whole word.
func TestOneLongWord(t *testing.T) {
	tok := goldenTokenizer(t, "gpt2.json")
	for _, unit := range []string{"the", "\n"} {
		word := strings.Repeat(unit, 1<<20/len(unit))
		start := time.Now()
		ids := tok.Encode(word, EncodeOptions{})
		require.Less(t, time.Since(start), 20*time.Second)
		b, err := tok.Bytes(ids, DecodeOptions{})
		require.NoError(t, err)
		require.True(t, string(b) == word)
	}
}

// oracle splits by package regexp, one alternative after the other; the look-ahead is made up for by hand, and \s spelled
// out since there it is ASCII.
func oracle(pattern string) splitter {
	const white = `[\p{Z}\t-\r\x{85}]`
	fold, rest := "", pattern
	if strings.HasPrefix(pattern, "(?i:") {
		fold, rest, _ = strings.Cut(pattern[len("(?i:"):], ")|")
		fold = "(?i:" + fold + ")|"
	}
	before, after, _ := strings.Cut(rest, `\s+(?!\S)|`)
	compile := func(p string) *regexp.Regexp {
		p = strings.ReplaceAll(p, `[^\s`, `[^\p{Z}\t-\r\x{85}`)
		return regexp.MustCompile("^(?:" + strings.ReplaceAll(p, `\s`, white) + ")")
	}
	first, last := compile(fold+strings.TrimSuffix(before, "|")), compile(after)
	return func(s string) int {
		if loc := first.FindStringIndex(s); loc != nil {
			return loc[1]
		}
		loc := last.FindStringIndex(s)
		if loc[1] == len(s) {
			return loc[1]
		}
		if _, n := utf8.DecodeLastRuneInString(s[:loc[1]]); n < loc[1] {
			return loc[1] - n
		}
		return loc[1]
	}
}

func TestSplittersAreTheirPatterns(t *testing.T) {
	for pattern, f := range patterns {
		want := oracle(pattern)
		rapid.Check(t, func(t *rapid.T) {
			for s := strings.ToValidUTF8(text().Draw(t, "text"), "?"); s != ""; {
				n := f(s)
				require.Equal(t, want(s), n, "%+q by %s", s, pattern)
				s = s[n:]
			}
		})
	}
}

// The oracle sees another family's splitter and one without the look-ahead.
func TestOracleFails(t *testing.T) {
	require.NotEqual(t, oracle(patternGPT2)("\n\na"), splitNoLookahead("\n\na"))
	require.NotEqual(t, oracle(patternGPT2)("12345"), splitLlama3("12345"))
	require.NotEqual(t, oracle(patternLlama3)("12"), splitQwen2("12"))
	require.NotEqual(t, oracle(patternQwen2)("'ſ"), contraction("'ſ"))
	require.Equal(t, 3, oracle(patternQwen2)("'ſ"))
}

// How every character is classed and normalised is what tokenizers does.
func TestCharactersAreThoseOfThePeer(t *testing.T) {
	var g struct{ Characters map[string][]string }
	require.NoError(t, json.Unmarshal(goldenFile(t, "hashes.json"), &g))
	letters := func(b bool, yes string) string {
		if b {
			return yes
		}
		return "."
	}
	plane := func(p rune, f func(rune) string) string {
		h := sha256.New()
		for r := p << 16; r < (p+1)<<16; r++ {
			if utf8.ValidRune(r) {
				h.Write([]byte(f(r)))
			}
		}
		return hex.EncodeToString(h.Sum(nil)[:8])
	}
	both := func(nfc func(string) string) func(rune) string {
		return func(r rune) string { return nfc(string(r)) + "\x00" + nfc("a"+string(r)+"\u0323\u0301") + "\x00" }
	}
	of := map[string]func(r rune) string{
		"class": func(r rune) string { return string(".LNS"[classOf(r)]) },
		"digit": func(r rune) string { return letters(numeric(r), "N") },
		"word":  func(r rune) string { return letters(word(r), "W") },
		"nfc":   both(nfc),
	}
	require.Len(t, g.Characters, len(of))
	planes := rune(17)
	if testing.Short() {
		planes = 1
	}
	for name, f := range of {
		for p := range planes {
			require.Equal(t, g.Characters[name][p], plane(p, f), "%s of plane %d", name, p)
		}
	}
	// Faults: the tables of Unicode 15.0, and NFC of package norm.
	require.NotEqual(t, g.Characters["digit"][1], plane(1, func(r rune) string { return letters(unicode.IsNumber(r), "N") }))
	require.NotEqual(t, g.Characters["word"][0], plane(0, func(r rune) string { return letters(unicode.IsLetter(r) || unicode.Is(unicode.M, r), "W") }))
	require.NotEqual(t, g.Characters["nfc"][1], plane(1, both(norm.NFC.String)))
}

// Where package norm is right, it and nfc agree: the basic plane, few marks, characters of Unicode 9.0.
func TestNFCIsThatOfNorm(t *testing.T) {
	runes := rapid.OneOf(rapid.RuneFrom(nil, unicode.M), rapid.RuneFrom(nil, unicode.Latin, unicode.Greek, unicode.Hangul, unicode.Bengali, unicode.Hiragana),
		rapid.RuneFrom([]rune("ea\u0301\u0323\u0308\u0327\u0345\u1100\u1161\u11a8\u212b\u2126\u0958\u0344\u09c7\u09be\uac00")))
	rapid.Check(t, func(t *rapid.T) {
		var s []rune
		for _, r := range rapid.SliceOfN(runes, 0, 28).Draw(t, "runes") {
			if r <= 0xffff && !unicode.Is(later, r) {
				s = append(s, r)
			}
		}
		require.Equal(t, norm.NFC.String(string(s)), nfc(string(s)), "%+q", string(s))
	})
}

func TestNFC(t *testing.T) {
	marks := strings.Repeat("\u0315\u0323", 40)
	for in, want := range map[string]string{
		"":                     "",
		"abc":                  "abc",
		"e\u0301":              "é",
		"a\u0302\u0323":        "ậ",
		"\U00010041\u0301":     "\U00010041\u0301",
		"\U00011099\U000110ba": "\U0001109a",
		"\U00011935\U00011930": "\U00011935\U00011930",
		"\u1100\u1161\u11a8":   "각",
		"\u212b\xff e\u0301":   "Å\xff é",
		"e\xcc\u0301":          "e\xcc\u0301",
		"x" + marks:            "x" + strings.Repeat("\u0323", 40) + strings.Repeat("\u0315", 40),
		"\u0301e":              "\u0301e",
		"\u1e9b\u0323":         "\u1e9b\u0323",
	} {
		require.Equal(t, want, nfc(in), "%+q", in)
	}
	rapid.Check(t, func(t *rapid.T) {
		s := nfc(text().Draw(t, "text"))
		require.Equal(t, s, nfc(s), "NFC of its result")
	})
}

// Text comes back, to the byte, from a tokenizer with all bytes, no normaliser and no token that swallows white space.
func TestDecodeOfEncodeIsTheText(t *testing.T) {
	for _, name := range []string{"llama3.json", "smollm2_small.json"} {
		tok := goldenTokenizer(t, name)
		require.Empty(t, tok.Missing())
		rapid.Check(t, func(t *rapid.T) {
			s := text().Draw(t, "text")
			o := EncodeOptions{ParseSpecial: rapid.Bool().Draw(t, "special")}
			ids := tok.Encode(s, o)
			b, err := tok.Bytes(ids, DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, s, string(b))
			decoded, err := tok.Decode(ids, DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, string([]rune(s)) == s, decoded == s, "only what is not UTF-8 is replaced")
			if !o.ParseSpecial {
				for _, id := range ids {
					require.False(t, tok.Special(id))
				}
			}
		})
	}
}

// The golden with lacking bytes says which, and leaves them out.
func TestMissing(t *testing.T) {
	tok := goldenTokenizer(t, "prefix.json")
	missing := tok.Missing()
	require.NotEmpty(t, missing)
	b, err := tok.Bytes(tok.Encode("a"+string(missing)+"a", EncodeOptions{}), DecodeOptions{})
	require.NoError(t, err)
	require.Equal(t, " aa", string(b))
}

func TestStream(t *testing.T) {
	for _, name := range []string{"gpt2.json", "qwen2.json", "smollm2.json.gz"} {
		tok := goldenTokenizer(t, name)
		rapid.Check(t, func(t *rapid.T) {
			ids := tok.Encode(text().Draw(t, "text"), EncodeOptions{ParseSpecial: true})
			for range rapid.IntRange(0, 4).Draw(t, "torn") {
				ids = append(ids, int(tok.vocab.tokens[rapid.IntRange(0, tok.Len()-1).Draw(t, "index")].id))
				if n := len(ids); n > 3 {
					ids[n/2], ids[n-1] = ids[n-1], ids[n/2]
				}
			}
			o := DecodeOptions{SkipSpecial: rapid.Bool().Draw(t, "skip")}
			whole, err := tok.Decode(ids, o)
			require.NoError(t, err)
			s := tok.NewStream(o)
			push := func(id int) string {
				out, err := s.Push(id)
				require.NoError(t, err)
				_, err = s.Push(-1)
				require.ErrorContains(t, err, "no token has the id -1")
				return out
			}
			require.Empty(t, streams(push, s.Flush, ids, whole))
		})
	}
}

// Invalid parts are replaced as Python and Rust do (Unicode 16, table 3-11 and its neighbours), not byte by byte.
func TestReplace(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"a\xe4\xbdb":                       "a\ufffdb",
		"\xf0\x9f\x98":                     "\ufffd",
		"\xf0\x80\x80\x41":                 "\ufffd\ufffd\ufffdA",
		"\xed\xa0\x80":                     "\ufffd\ufffd\ufffd",
		"\xf4\x91\x92\x93\xffA\x80\xbfB":   "\ufffd\ufffd\ufffd\ufffd\ufffdA\ufffd\ufffdB",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf": "\ufffd\ufffd\ufffd\ufffd",
		"\xc3":                             "\ufffd",
		"\xf0\x9f\xe4\xbd\xa0":             "\ufffd你",
	} {
		require.Equal(t, want, replace([]byte(in)), "%q", in)
	}
	// Only what can still become a character waits for its end.
	for in, held := range map[string]int{"a": 0, "a\xff": 0, "\x80": 0, "\xed\xa0": 0, "a\xe4": 1, "\xe4\xbd": 2, "\xf0\x9f\x98": 3, "\xf0\x80": 0} {
		_, n := valid(nil, []byte(in))
		require.Equal(t, len(in)-held, n, "%q", in)
	}
}

// Every start of every token decodes.
func TestStartsOfTokens(t *testing.T) {
	tok := goldenTokenizer(t, "smollm2.json.gz")
	for _, v := range tok.vocab.tokens {
		b, err := tok.Bytes([]int{int(v.id)}, DecodeOptions{})
		require.NoError(t, err)
		for n := range b {
			require.True(t, utf8.ValidString(replace(b[:n])))
		}
	}
}

func TestCheckVocab(t *testing.T) {
	tok := goldenTokenizer(t, "gpt2.json")
	require.NoError(t, tok.CheckVocab(tok.MaxID()+1))
	require.NoError(t, tok.CheckVocab(50400))
	require.ErrorContains(t, tok.CheckVocab(tok.MaxID()), `gpt2.json: vocabulary: token "[P]" has the id 1210, the embedding has 1210 rows`)
	_, err := tok.Decode([]int{0, 99999}, DecodeOptions{})
	require.ErrorContains(t, err, "gpt2.json: position 1: no token has the id 99999")
}

// Goroutines share a tokenizer.
func TestConcurrentUse(t *testing.T) {
	tok := goldenTokenizer(t, "qwen2.json")
	const s = "cafe\u0301 <|im_start|>12 q\u0307\u0323"
	want := tok.Encode(s, EncodeOptions{})
	var wait sync.WaitGroup
	got := make([][]int, 8)
	for i := range got {
		wait.Go(func() { got[i] = tok.Encode(s, EncodeOptions{}) })
	}
	wait.Wait()
	for _, ids := range got {
		require.Equal(t, want, ids)
	}
}

// Special reports whether the token with the given id is a special one.
func (t *Tokenizer) Special(id int) bool {
	tok := t.vocab.at(id)
	return tok != nil && tok.special
}
