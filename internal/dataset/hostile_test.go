package dataset

import (
	"bytes"
	"regexp"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cost returns the bytes that f allocates, all together, and its time.
func cost(f func()) (int64, time.Duration) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before, started := s[0].Value.Uint64(), time.Now()
	f()
	took := time.Since(started)
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - before), took
}

// TestHostile reads files that are made to cost as much as they can.
func TestHostile(t *testing.T) {
	const size = 2 << 20
	row := `{"question":"a","answer":"#### 1"}` + "\n"
	fill := func(head, text, tail string) []byte {
		return []byte(head + strings.Repeat(text, (size-len(head)-len(tail))/len(text)) + tail)
	}
	for name, c := range map[string]struct {
		text []byte
		read func([]byte) error
	}{
		"empty lines":  {fill(row, "\n", ""), gsm8k},
		"many numbers": {fill(`{"question":"a","answer":"`, "####1", `"}`), gsm8k},
		"no numbers":   {fill(`{"question":"a","answer":"`, "#### x", `#### 1"}`), gsm8k},
		"hashes":       {fill(`{"question":"a","answer":"####1`, "#", `"}`), gsm8k},
		"spaces":       {fill(`{"question":"a","answer":"####1####`, " ", `"}`), gsm8k},
		"digits":       {fill(`{"question":"a","answer":"#### 0.`, "1", `"}`), gsm8k},
		"cells":        {fill(`{"train":[`, `{"input":[[1,2,3,4,5,6,7,8],[1,2,3,4,5,6,7,8]],"output":[[1,2,3,4,5,6,7,8],[1,2,3,4,5,6,7,8]]},`, `{"input":[[1]],"output":[[1]]}]}`), arc},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			got, took := cost(func() { err = c.read(c.text) })
			t.Logf("%.1f times the file, %v", float64(got)/size, took)
			require.NoError(t, err)
			require.Less(t, took, time.Minute)
			require.LessOrEqual(t, got, int64(16<<20+12*size))
		})
	}
}

func gsm8k(b []byte) error { _, err := ParseGSM8K("f", b); return err }
func arc(b []byte) error   { _, err := ParseArc("f", b); return err }

// Number finds what a search from the start finds last.
func TestNumberIsTheLast(t *testing.T) {
	whole := regexp.MustCompile(`####\s*\$?(-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+))`)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("####### \n$-1,.0x")), 0, 40, -1).Draw(t, "text")
		all := whole.FindAllStringSubmatch(text, -1)
		x, ok := Number(text)
		require.Equal(t, len(all) > 0, ok)
		if ok {
			y, _ := Number("#### " + all[len(all)-1][1])
			require.Equal(t, y, x)
		}
	})
}

// Lines are counted with those that are empty, and may end as Windows ends them.
func TestLines(t *testing.T) {
	row := `{"question":"a","answer":"#### 1"}`
	_, err := ParseGSM8K("f", []byte("\n"+row+"\r\n\n \n{"))
	require.ErrorContains(t, err, "line 5")
	list, err := ParseGSM8K("f", bytes.Join([][]byte{[]byte(row), []byte(row)}, []byte("\r\n")))
	require.NoError(t, err)
	require.Len(t, list, 2)
}
