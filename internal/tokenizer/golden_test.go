package tokenizer

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

const goldens = "../../golden/tokenizer"

// goldenFile returns a file of golden/tokenizer, unpacked.
func goldenFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldens, name))
	require.NoError(t, err)
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(data))
		require.NoError(t, err)
		data, err = io.ReadAll(z)
		require.NoError(t, err)
	}
	return data
}

func goldenTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Parse(name, goldenFile(t, name))
	require.NoError(t, err)
	return tok
}

// peer is what tokenizers 0.23.3 made of the strings: after every block, the first digits of a running sha256.
type peer struct {
	Strings []string // of the strings themselves
	IDs     []string // add_special_tokens=False
	Special []string // add_special_tokens=True
	Plain   []string // encode_special_tokens=True
	Decoded []string // of decode(ids)
	Skipped []string // of decode(every other id, skip_special_tokens=True)
}

type goldenHashes struct {
	Seed         uint64
	Count, Block int
	Alphabet     [][]string
	Tokenizers   map[string]peer
}

func readHashes(t testing.TB) (g goldenHashes) {
	t.Helper()
	require.NoError(t, json.Unmarshal(goldenFile(t, "hashes.json"), &g))
	require.GreaterOrEqual(t, g.Count, 20_000)
	return g
}

// splitMix returns SplitMix64 (Steele, Lea, Flood 2014) from a state.
func splitMix(state uint64) func() uint64 {
	return func() uint64 {
		state += 0x9E3779B97F4A7C15
		z := state
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		return z ^ z>>31
	}
}

// text is string i, as in golden/gen/tokenizer/strings.py.
func (g *goldenHashes) text(i int) string {
	draw := splitMix(g.Seed + uint64(i)*0xD1342543DE82EF95)
	n := draw() % 24
	var few [3]uint64
	for j := range few {
		few[j] = draw() % uint64(len(g.Alphabet))
	}
	var b strings.Builder
	for range n {
		r := draw()
		k := few[r&0xFF%3]
		if i%4 == 0 {
			k = r & 0xFF % uint64(len(g.Alphabet))
		}
		times := uint64(1)
		if r>>8%8 == 0 {
			times += r >> 24 % 5
		}
		group := g.Alphabet[k]
		for range times {
			b.WriteString(group[r>>32%uint64(len(group))])
		}
	}
	return b.String()
}

// differs returns the first block in which what t makes of the strings is not what the peer made, with the name of the
// sum; "" if there is none.
func (g *goldenHashes) differs(t *Tokenizer, want peer, count int) string {
	sums := []struct {
		name string
		want []string
		of   func(i int, text string, ids []int) []byte
	}{
		{"strings", want.Strings, func(_ int, s string, _ []int) []byte { return append([]byte(s), 0xff) }},
		{"ids", want.IDs, func(_ int, _ string, ids []int) []byte { return idBytes(ids) }},
		{"special", want.Special, func(_ int, s string, _ []int) []byte {
			return idBytes(t.Encode(s, EncodeOptions{AddSpecial: true, ParseSpecial: true}))
		}},
		{"plain", want.Plain, func(_ int, s string, _ []int) []byte { return idBytes(t.Encode(s, EncodeOptions{})) }},
		{"decoded", want.Decoded, func(_ int, _ string, ids []int) []byte {
			text, err := t.Decode(ids, DecodeOptions{})
			return append([]byte(text), errByte(err))
		}},
		{"skipped", want.Skipped, func(i int, _ string, ids []int) []byte {
			var half []int
			for j := i % 2; j < len(ids); j += 2 {
				half = append(half, ids[j])
			}
			text, err := t.Decode(half, DecodeOptions{SkipSpecial: true})
			return append([]byte(text), errByte(err))
		}},
	}
	running := make([][]byte, len(sums))
	hashes := make([]interface {
		io.Writer
		Sum([]byte) []byte
	}, len(sums))
	for k := range sums {
		hashes[k] = sha256.New()
	}
	for i := range count {
		s := g.text(i)
		ids := t.Encode(s, EncodeOptions{ParseSpecial: true})
		for k := range sums {
			hashes[k].Write(sums[k].of(i, s, ids))
		}
		if (i+1)%g.Block > 0 {
			continue
		}
		block := i / g.Block
		for k, sum := range sums {
			running[k] = hashes[k].Sum(running[k][:0])
			if got := hex.EncodeToString(running[k][:8]); block >= len(sum.want) || got != sum.want[block] {
				return fmt.Sprintf("%s of strings %d to %d: ask golden/gen/tokenizer/produce.py --show for them", sum.name, block*g.Block, i)
			}
		}
	}
	return ""
}

func idBytes(ids []int) []byte {
	b := make([]byte, 0, 4*len(ids)+4)
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return binary.LittleEndian.AppendUint32(b, 0xffffffff)
}

func errByte(err error) byte {
	if err != nil {
		return 0
	}
	return 0xff
}

// Every tokenizer does with 20,000 strings what tokenizers did.
func TestIDsAreThoseOfThePeer(t *testing.T) {
	g := readHashes(t)
	require.Len(t, g.Tokenizers, 7)
	for name, want := range g.Tokenizers {
		t.Run(name, func(t *testing.T) {
			require.Len(t, want.IDs, g.Count/g.Block)
			count := g.Count
			if testing.Short() || !cases.All {
				count = 3 * g.Block
			}
			require.Empty(t, g.differs(goldenTokenizer(t, name), want, count))
		})
	}
}

// The 150 strings of the golden inputs.
func TestStrings(t *testing.T) {
	tok := goldenTokenizer(t, "smollm2.json.gz")
	var g struct {
		Entries []struct {
			Text       string
			IDs        []int
			IDsDefault []int `json:"ids_default"`
			Decode     string
			RoundTrip  bool `json:"round_trip"`
		}
		SHA256 string `json:"tokenizer_json_sha256"`
	}
	require.NoError(t, json.Unmarshal(goldenFile(t, "strings.json"), &g))
	sum := sha256.Sum256(goldenFile(t, "smollm2.json.gz"))
	require.Equal(t, g.SHA256, hex.EncodeToString(sum[:]))
	require.Len(t, g.Entries, 150)
	for _, e := range g.Entries {
		require.Equal(t, idBytes(e.IDs), idBytes(tok.Encode(e.Text, EncodeOptions{ParseSpecial: true})), "%q", e.Text)
		require.Equal(t, idBytes(e.IDsDefault), idBytes(tok.Encode(e.Text, EncodeOptions{AddSpecial: true, ParseSpecial: true})), "%q", e.Text)
		text, err := tok.Decode(e.IDs, DecodeOptions{})
		require.NoError(t, err)
		require.Equal(t, e.Decode, text)
		require.Equal(t, e.RoundTrip, text == e.Text)
	}
}
