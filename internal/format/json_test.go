package format

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rejected holds what is refused, whether encoding/json accepts it, and the error.
var rejected = []struct {
	text     string
	accepted bool
	err      string
}{
	{"{\"a\xff\":1}", true, "byte 3: invalid UTF-8: byte 0xff"},
	{"[\"\xed\xa0\x80\"]", true, "byte 2: invalid UTF-8: byte 0xed"},
	{"[\"\xc0\xaf\"]", true, "byte 2: invalid UTF-8: byte 0xc0"},
	{"[\"\xe2\x82\"]", true, "byte 2: invalid UTF-8: byte 0xe2"},
	{`["\ud800"]`, true, "byte 2: lone surrogate"},
	{`["a\udc00"]`, true, "byte 3: lone surrogate"},
	{`["\ud800\ud800"]`, true, "byte 2: lone surrogate"},
	{`["\ud800\u0041"]`, true, "byte 2: lone surrogate"},
	{`{"a":1,"b":2,"a":3}`, true, `byte 13: duplicate key "a"`},
	{`{"a":1,"\u0061":3}`, true, `byte 7: duplicate key "a"`},
	{`{"\ud83d\ude00":1,"😀":3}`, true, `byte 18: duplicate key "😀"`},
	{`[{"x":{"a":1,"a":1}}]`, true, `byte 13: duplicate key "a"`},
	{`{"":1,"":1}`, true, `byte 6: duplicate key ""`},
	{manyKeys(40, `"k7":0`), true, `duplicate key "k7"`},
	{manyKeys(15, `"k14":0`), true, `duplicate key "k14"`},
	{manyKeys(16, `"k15":0`), true, `duplicate key "k15"`},
	{manyKeys(17, `"k16":0`), true, `duplicate key "k16"`},
	{manyKeys(40, `"\u006b\u0037":0`), true, `duplicate key "k7"`},
	{manyKeys(5000, `"k4\u0039\u00399":0`), true, `duplicate key "k4999"`},
	{strings.Repeat("[", 65) + strings.Repeat("]", 65), true, "byte 64: nested deeper than 64"},
	{strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), true, "byte 320: nested deeper than 64"},
	{strings.Repeat("[", 10001), false, "byte 64: nested deeper than 64"},

	{"", false, "byte 0: found the end of the data"},
	{" ", false, "byte 1: found the end of the data"},
	{"\ufeff{}", false, "byte 0: found a byte order mark"},
	{"{}x", false, "byte 2: found 'x' after the end"},
	{"{} {}", false, "byte 3: found an object after the end"},
	{"{}\x00", false, `byte 2: found '\x00' after the end`},
	{"01", false, "byte 0: number with a leading zero"},
	{"-01", false, "byte 0: number with a leading zero"},
	{"-", false, "byte 0: number without digits after the sign"},
	{"1.", false, "byte 0: number without digits after the point"},
	{"[1e]", false, "byte 1: number without digits in the exponent"},
	{"1e+", false, "byte 0: number without digits in the exponent"},
	{"+1", false, "byte 0: found '+'"},
	{".5", false, "byte 0: found '.'"},
	{"0x10", false, "byte 1: found 'x' after the end"},
	{"1_000", false, "byte 1: found '_' after the end"},
	{"NaN", false, "byte 0: found NaN or Infinity, which is not JSON"},
	{"[Infinity]", false, "byte 1: found NaN or Infinity, which is not JSON"},
	{"[-Infinity]", false, "byte 1: -Infinity is not JSON"},
	{"nul", false, "byte 0: found 'n', want null"},
	{"tru", false, "byte 0: found 't', want true"},
	{"fals", false, "byte 0: found 'f', want false"},
	{"True", false, "byte 0: found 'T'"},
	{"truefalse", false, "byte 4: found a boolean after the end"},
	{`"a`, false, "byte 0: string without an end"},
	{`"a\`, false, "byte 2: escape without an end"},
	{`"\x41"`, false, "byte 1: unknown escape"},
	{`"\u12G4"`, false, `byte 1: \u without four hexadecimal digits`},
	{`"\u12`, false, `byte 1: \u without four hexadecimal digits`},
	{"\"a\nb\"", false, "byte 2: control character 0x0a"},
	{"\"\x1f\"", false, "byte 1: control character 0x1f"},
	{"\"\x00\"", false, "byte 1: control character 0x00"},
	{"{\"a\t\":1}", false, "byte 3: control character 0x09"},
	{"'a'", false, `byte 0: found '\''`},
	{"\xff", false, "byte 0: found byte 0xff"},
	{"[1,]", false, "byte 3: found ']', want a value"},
	{"[,1]", false, "byte 1: found ',', want a value"},
	{"[1 2]", false, "byte 3: found a number, want ',' or ']'"},
	{"[1}", false, "byte 2: found '}', want ',' or ']'"},
	{"[", false, "byte 1: found the end of the data, want a value"},
	{"[1", false, "byte 2: found the end of the data, want ',' or ']'"},
	{`{"a":1,}`, false, "byte 7: found '}', want a key in quotes"},
	{`{,}`, false, "byte 1: found ',', want a key in quotes"},
	{`{a:1}`, false, "byte 1: found 'a', want a key in quotes"},
	{`{1:1}`, false, "byte 1: found a number, want a key in quotes"},
	{`{"a" 1}`, false, "byte 5: found a number, want ':' after the key"},
	{`{"a":}`, false, "byte 5: found '}', want a value"},
	{`{"a":1 "b":2}`, false, "byte 7: found a string, want ',' or '}'"},
	{`{"a"`, false, "byte 4: found the end of the data, want ':' after the key"},
	{"// c\n{}", false, "byte 0: found '/'"},
	{"{}// c", false, "byte 2: found '/' after the end"},
	{"\u00a01", false, `byte 0: found '\u00a0'`},
}

// manyKeys is an object with the keys k0, k1, … and one more member.
func manyKeys(n int, last string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		fmt.Fprintf(&b, `"k%d":%d,`, i, i)
	}
	return b.String() + last + "}"
}

func TestScannerRejects(t *testing.T) {
	for _, c := range rejected {
		_, err := scanAny([]byte(c.text))
		require.ErrorContains(t, err, c.err, "%.80q", c.text)
		require.True(t, IsMalformed(err), "%.80q", c.text)
		require.ErrorContains(t, skipAll([]byte(c.text)), "f.json: byte ", "%.80q", c.text)
		_, oerr := oracle([]byte(c.text))
		require.Equal(t, c.accepted, oerr == nil, "%.80q: encoding/json: %v", c.text, oerr)
	}
}

func TestScannerAccepts(t *testing.T) {
	for _, text := range []string{
		"0", "-0", "1e999", `""`, `"\u0000\u007f"`, "\"\x7f\u2028\"", "[]", "{}", " \t\r\n[ ] ", `{"a":{"a":{"a":1}}}`, `[{"a":1},{"a":1}]`,
		`{"a":1,"A":2}`, `{"\ud83d\ude00":1,"\ud83d\ude01":2}`, `{"\u00e9":1,"e\u0301":2}`,
		strings.Repeat("[", 64) + strings.Repeat("]", 64), manyKeys(17, `"k":0`), manyKeys(16, `"k":0`), manyKeys(15, `"k":0`), manyKeys(5000, `"k\ud83d\ude00":0`),
	} {
		_, err := scanAny([]byte(text))
		require.NoError(t, err, "%.80q", text)
		equalToOracle(t, []byte(text))
	}
}

func TestScannerNumbers(t *testing.T) {
	scan := func(text string) *Scanner { return NewScanner("f.json", []byte(text), 1000) }
	for _, c := range []struct {
		text string
		want int64
		err  string
	}{
		{"0", 0, ""}, {"-1", -1, ""}, {" 9223372036854775807", math.MaxInt64, ""}, {"-9223372036854775808", math.MinInt64, ""},
		{"9223372036854775808", 0, "byte 1000: integer 9223372036854775808 does not fit an int64"},
		{"-9223372036854775809", 0, "does not fit an int64"},
		{strings.Repeat("9", 1000), 0, "integer " + strings.Repeat("9", 64) + "… does not fit"},
		{"1.0", 0, "byte 1000: found 1.0, want an integer"}, {"1e2", 0, "found 1e2, want an integer"}, {"1E0", 0, "found 1E0, want an integer"},
		{"-0", 0, "found -0, want an integer"}, {`"1"`, 0, "found a string, want a number"}, {"null", 0, "found null, want a number"}, {"01", 0, "leading zero"},
	} {
		got, err := scan(c.text).Int()
		if c.err == "" {
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		} else {
			require.ErrorContains(t, err, c.err)
			require.True(t, IsMalformed(err))
		}
	}
	u, err := scan("18446744073709551615").Uint()
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), u)
	for _, text := range []string{"18446744073709551616", "-1", "-0", "1.5"} {
		_, err = scan(text).Uint()
		require.True(t, IsMalformed(err), text)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64().Draw(t, "v")
		text, _ := json.Marshal(v)
		got, err := scan(string(text)).Float()
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(v), math.Float64bits(got), "%s", text)
	})
	for _, text := range []string{"1e999", "-1e999", "NaN", "-Infinity"} {
		_, err = scan(text).Float()
		require.True(t, IsMalformed(err), text)
	}
	v, err := scan("1e-999").Float()
	require.NoError(t, err)
	require.Zero(t, v)
}

func TestScannerTypes(t *testing.T) {
	values := []string{"null", "true", "1", `"a"`, "[]", "{}"}
	reads := []func(*Scanner) error{
		(*Scanner).Null,
		func(s *Scanner) error { _, err := s.Bool(); return err },
		func(s *Scanner) error { _, err := s.Number(); return err },
		func(s *Scanner) error { _, err := s.String(); return err },
		func(s *Scanner) error { return s.Array(nil) },
		func(s *Scanner) error { return s.Object(nil) },
	}
	kinds := []Kind{KindNull, KindBool, KindNumber, KindString, KindArray, KindObject}
	for i, text := range values {
		for j, read := range reads {
			s := NewScanner("f.json", []byte(text), 0)
			require.Equal(t, kinds[i], s.Kind())
			err := read(s)
			if i == j {
				require.NoError(t, err)
				require.NoError(t, s.End())
				continue
			}
			require.EqualError(t, err, fmt.Sprintf("f.json: byte 0: found %s, want %s", kinds[i], kinds[j]))
			require.Equal(t, err, s.Skip(), "an error stays")
			require.Equal(t, err, s.End(), "an error stays")
		}
	}
}

func TestScannerCallbacks(t *testing.T) {
	text := []byte(`{"a":[1,2],"b":3}`)
	stop := fmt.Errorf("stop")
	s := NewScanner("f.json", text, 0)
	require.Equal(t, stop, s.Object(func(string) error { return stop }))
	require.Equal(t, stop, s.End(), "the error of a callback stays")

	s = NewScanner("f.json", text, 0)
	err := s.Object(func(string) error { s.Int(); return nil }) // dropped, and still kept
	require.EqualError(t, err, "f.json: byte 5: found an array, want a number")

	s = NewScanner("f.json", text, 100)
	err = s.Object(func(key string) error {
		if key == "a" {
			return s.Skip()
		}
		if _, err := s.Int(); err != nil {
			return err
		}
		return s.Malformed("%s is not %d", key, 4)
	})
	require.EqualError(t, err, "f.json: byte 115: b is not 4")

	for _, unread := range []func(s *Scanner) error{
		func(s *Scanner) error { return s.Object(func(string) error { s.Kind(); return nil }) },
		func(s *Scanner) error {
			return s.Object(func(string) error { return s.Array(func(int) error { return nil }) })
		},
	} {
		require.PanicsWithValue(t, "format: Scanner: the callback read no value", func() { unread(NewScanner("f.json", text, 0)) })
	}
}

// TestScannerAllocations holds the Scanner to its promise: nothing per token, and per key of a large object 16 bytes.
func TestScannerAllocations(t *testing.T) {
	text := []byte("[" + strings.Repeat(`{"dtype":"F32","shape":[1,2,3],"ok":true,"f":1.5e3,"none":null},`, 10000) + "0]")
	require.LessOrEqual(t, testing.AllocsPerRun(5, func() { require.NoError(t, skipAll(text)) }), 10.0)
	walk := func() {
		s := NewScanner("f.json", text, 0)
		require.NoError(t, s.Array(func(int) error {
			if s.Kind() != KindObject {
				_, err := s.Int()
				return err
			}
			return s.Object(func(key string) (err error) {
				switch key {
				case "dtype":
					_, err = s.String()
				case "shape":
					return s.Array(func(int) error { _, err := s.Int(); return err })
				case "f":
					_, err = s.Float()
				default:
					return s.Skip()
				}
				return err
			})
		}))
	}
	require.LessOrEqual(t, testing.AllocsPerRun(5, walk), 10.0)

	const n = 100000
	keys := []byte(manyKeys(n, `"k":0`))
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			require.NoError(b, skipAll(keys))
		}
	})
	require.LessOrEqual(t, r.AllocedBytesPerOp(), int64(16*n+4096))
}

// TestScannerKeyOrder checks the comparison behind the search for duplicates: it must order keys like their code points,
// however they are escaped.
func TestScannerKeyOrder(t *testing.T) {
	escapes := func(t *rapid.T, text string) string {
		var b strings.Builder
		for _, r := range text {
			switch q, _ := json.Marshal(string(r)); {
			case rapid.Bool().Draw(t, "escape") || r == '"' || r == '\\' || r < ' ':
				if r >= 0x10000 {
					fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
				} else {
					fmt.Fprintf(&b, `\u%04X`, r)
				}
			default:
				b.WriteString(strings.Trim(string(q), `"`))
			}
		}
		return b.String()
	}
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab\"\\/ !\né\u00ea\u2028€\uffee😀😁")), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		doc := []byte(`"` + escapes(t, a) + `""` + escapes(t, b) + `"`)
		s := NewScanner("f.json", doc, 0)
		got, err := s.String()
		require.NoError(t, err)
		require.Equal(t, a, got)
		at := s.pos
		got, err = s.String()
		require.NoError(t, err)
		require.Equal(t, b, got)
		want := slices.Compare([]rune(a), []rune(b))
		c := s.compareKeys(0, uint32(at))
		require.Equal(t, want, max(-1, min(1, c)), "%s", doc)
		require.Equal(t, -want, max(-1, min(1, s.compareKeys(uint32(at), 0))), "%s", doc)
	})
}
