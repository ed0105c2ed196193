package tokenizer

import (
	"strings"
	"testing"
)

// BenchmarkEncode measures bytes of text per second: strings of the golden, and one word of 1 MB.
func BenchmarkEncode(b *testing.B) {
	tok := goldenTokenizer(b, "smollm2.json.gz")
	g := readHashes(b)
	var all strings.Builder
	for i := range 2000 {
		all.WriteString(g.text(i))
	}
	for _, c := range []struct{ name, text string }{
		{"strings", all.String()}, {"word64K", strings.Repeat("the", 1<<16/3)}, {"word1M", strings.Repeat("the", 1<<20/3)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				tok.Encode(c.text, EncodeOptions{ParseSpecial: true})
			}
		})
	}
}
