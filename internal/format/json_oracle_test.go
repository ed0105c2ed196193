package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// scanAny reads a document as encoding/json does with UseNumber.
func scanAny(data []byte) (any, error) {
	s := NewScanner("f.json", data, 0)
	v, err := scanValue(s)
	if err != nil {
		return nil, err
	}
	return v, s.End()
}

func scanValue(s *Scanner) (any, error) {
	switch s.Kind() {
	case KindObject:
		m := map[string]any{}
		err := s.Object(func(key string) (err error) {
			m[key], err = scanValue(s)
			return err
		})
		return m, err
	case KindArray:
		a := []any{}
		err := s.Array(func(i int) error {
			if i != len(a) {
				return fmt.Errorf("index %d of element %d", i, len(a))
			}
			v, err := scanValue(s)
			a = append(a, v)
			return err
		})
		return a, err
	case KindString:
		return s.String()
	case KindNumber:
		t, err := s.Number()
		return json.Number(t), err
	case KindBool:
		return s.Bool()
	default:
		return nil, s.Null()
	}
}

// oracle reads a document with encoding/json.
func oracle(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err = d.Token(); err != io.EOF {
		return nil, fmt.Errorf("trailing data: %v", err)
	}
	return v, nil
}

// stricter reports whether a document that encoding/json accepts breaks one of the rules that the Scanner adds. It is
// written without the Scanner: raw bytes for UTF-8 and surrogates, encoding/json's tokens for keys and depth.
func stricter(data []byte) bool {
	if !utf8.Valid(data) || loneSurrogate(string(data)) {
		return true
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	type level struct {
		keys map[string]bool // nil in an array
		key  bool            // a key is due
	}
	var levels []level
	for {
		t, err := d.Token()
		if err != nil {
			return false
		}
		if t == json.Delim('}') || t == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if n := len(levels); n > 0 && levels[n-1].keys != nil {
			l := &levels[n-1]
			if l.key {
				if l.keys[t.(string)] {
					return true
				}
				l.keys[t.(string)] = true
			}
			if l.key = !l.key; !l.key {
				continue
			}
		}
		switch t {
		case json.Delim('{'):
			levels = append(levels, level{map[string]bool{}, true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
		if len(levels) > MaxDepth {
			return true
		}
	}
}

// loneSurrogate reports whether valid JSON text has a surrogate escape without its other half.
func loneSurrogate(t string) bool {
	var high bool
	for i := 0; i < len(t); i++ {
		var v uint64
		if t[i] == '\\' {
			if t[i+1] == 'u' {
				v, _ = strconv.ParseUint(t[i+2:i+6], 16, 16)
				i += 4
			}
			i++
		}
		low := v>>10 == 0xdc00>>10
		if high != low {
			return true
		}
		high = v>>10 == 0xd800>>10
	}
	return high
}

func equalToOracle(t require.TestingT, data []byte) {
	got, err := scanAny(data)
	want, oerr := oracle(data)
	switch {
	case err != nil:
		require.True(t, IsMalformed(err), "%v", err)
		require.True(t, oerr != nil || stricter(data), "%q: %v, encoding/json accepts", data, err)
	case oerr != nil:
		require.Fail(t, "accepted", "%q: encoding/json: %v", data, oerr)
	default:
		require.False(t, stricter(data), "%q: a rule was not enforced", data)
		require.True(t, reflect.DeepEqual(want, got), "%q: got %v, want %v", data, got, want)
		require.NoError(t, skipAll(data))
	}
	require.Equal(t, err == nil, skipAll(data) == nil, "%q: Skip and the readers disagree", data)
}

func skipAll(data []byte) error {
	s := NewScanner("f.json", data, 0)
	if err := s.Skip(); err != nil {
		return err
	}
	return s.End()
}

func FuzzJSON(f *testing.F) {
	for _, c := range rejected {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(` {"a" : [1, -2.5e+3, "é\u00e9\ud83d\ude00\n", true, false, null, {}], "b":{"a":""}} `))
	f.Add([]byte(`{"` + strings.Join(strings.Split("abcdefghijklmnopqrstuvwxyz", ""), `":0,"`) + `":0}`))
	f.Fuzz(func(t *testing.T, data []byte) { equalToOracle(t, data) })
}

// randomJSON writes a value that breaks the grammar or a rule now and then.
func randomJSON(r *rand.Rand, depth int) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	pad := func(s string) string {
		return pick("", "", "", " ", "\n\t\r ") + s + pick("", "", "", " ", "\n\t\r ")
	}
	str := func(tail string) string {
		var b strings.Builder
		for range r.IntN(5) {
			b.WriteString(pick("a", "b", "A", "é", "€", "😀", `\n`, `\"`, `\\`, `\/`, `\u0061`, `\u00e9`, `\u20AC`, `\ud83d\ude00`, `\u0000`, "\x7f", "\u2028", ""))
		}
		if r.IntN(40) == 0 {
			b.WriteString(pick("\xff", `\ud800`, `\ude00`, `\x`, "\n", `"`, "\xed\xa0\x80"))
		}
		return `"` + b.String() + tail + `"`
	}
	kind := r.IntN(8)
	if depth == 0 {
		kind = r.IntN(4)
	}
	var members []string
	switch kind {
	case 0:
		return pad(str(""))
	case 1, 2:
		if r.IntN(50) == 0 {
			return pad(pick("01", "1.", ".5", "+1", "--1", "0x1", "NaN", "nul", "-Infinity"))
		}
		return pad(pick("0", "-0", "1", "-17", "0.5", "1e3", "1E-3", "-2.50e+07", "9223372036854775807", "18446744073709551616", "1e999"))
	case 3:
		return pad(pick("true", "false", "null"))
	case 4, 5:
		for i := range []int{0, 1, 2, 5, 20}[r.IntN(5)] {
			tail := strconv.Itoa(i)
			if r.IntN(50) == 0 {
				tail = ""
			}
			members = append(members, pad(str(tail))+":"+randomJSON(r, depth-1))
		}
		return pad("{" + strings.Join(members, ",") + "}")
	default:
		for range r.IntN(5) {
			members = append(members, randomJSON(r, depth-1))
		}
		return pad("[" + strings.Join(members, ",") + "]")
	}
}

func TestScannerAgainstEncodingJSON(t *testing.T) {
	var accepted, malformed, strict int
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 20 {
			text := []byte(randomJSON(r, 3))
			equalToOracle(t, text)
			if _, err := oracle(text); err != nil {
				malformed++
			} else if stricter(text) {
				strict++
			} else {
				accepted++
			}
		}
	})
	require.Positive(t, min(accepted, malformed, strict), "the generator misses a case: %d, %d, %d", accepted, malformed, strict)
}
