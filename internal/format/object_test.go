package format

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObject(t *testing.T) {
	o, err := ParseObject("c.json", []byte(`{"i": 3, "f": 1e-5, "t": "x", "b": true, "n": null, "a": ["p", "q"], "is": [1, 2], "o": {"i": 4, "o": {"f": 0.5}}, "z": -0}`))
	require.NoError(t, err)
	require.Equal(t, 3, o.Int("i", 7, 0, 10))
	require.Equal(t, 7, o.Int("absent", 7, 8, 10), "a default needs no range")
	require.Equal(t, 7, o.Int("n", 7, 0, 10), "null is absent")
	require.Equal(t, 1e-5, o.Float("f", 2, 0, 1))
	require.Equal(t, 3.0, o.Float("i", 2, 0, 3))
	require.Equal(t, "x", o.Text("t", "y"))
	require.Equal(t, "y", o.Text("n", "y"))
	require.True(t, o.Bool("b", false))
	require.True(t, o.Bool("n", true))
	require.Equal(t, []string{"p", "q"}, o.Texts("a"))
	require.Nil(t, o.Texts("n"))
	require.Equal(t, []int{1, 2}, o.Ints("is", 0, 2))
	require.Equal(t, []int{3}, o.Ints("i", 0, 3))
	require.Nil(t, o.Ints("absent", 0, 3))
	require.Equal(t, 4, o.Object("o").Int("i", 0, 0, 10))
	require.Nil(t, o.Object("n"))
	require.True(t, o.Has("i"))
	require.False(t, o.Has("n"))
	require.Equal(t, []string{"a", "b", "f", "i", "is", "n", "o", "t", "z"}, o.Keys())
	require.NoError(t, o.Err())

	for _, c := range []struct {
		ask  func(o *Object)
		want string
	}{
		{func(o *Object) { o.Int("f", 0, 0, 1) }, "c.json: f: is 1e-5, want an integer"},
		{func(o *Object) { o.Int("z", 0, -1, 1) }, "c.json: z: is -0, want an integer"},
		{func(o *Object) { o.Int("i", 0, 4, 5) }, "c.json: i: is 3, want an integer in [4, 5]"},
		{func(o *Object) { o.Int("t", 0, 4, 5) }, `c.json: t: is "x", want an integer`},
		{func(o *Object) { o.Float("b", 0, 4, 5) }, "c.json: b: is true, want a number"},
		{func(o *Object) { o.Float("f", 0, 4, 5) }, "c.json: f: is 1e-5, want a number in [4, 5]"},
		{func(o *Object) { o.Text("a", "") }, "c.json: a: is an array, want a string"},
		{func(o *Object) { o.Texts("is") }, "c.json: is: element 0 is 1, want a string"},
		{func(o *Object) { o.Texts("t") }, `c.json: t: is "x", want an array of strings`},
		{func(o *Object) { o.Ints("is", 2, 9) }, "c.json: is: element 0 is 1, want an integer in [2, 9]"},
		{func(o *Object) { o.Ints("a", 2, 9) }, `c.json: a: element 0 is "p", want an integer`},
		{func(o *Object) { o.Bool("o", false) }, "c.json: o: is an object, want a boolean"},
		{func(o *Object) { o.Object("i") }, "c.json: i: is 3, want an object"},
		{func(o *Object) { o.Object("o").Object("o").Int("f", 0, 0, 1) }, "c.json: o.o.f: is 0.5, want an integer"},
		{func(o *Object) { o.Int("f", 0, 0, 1); o.Int("t", 0, 0, 1) }, "c.json: f: is 1e-5"},
	} {
		o, err := ParseObject("c.json", []byte(`{"i": 3, "f": 1e-5, "t": "x", "b": true, "a": ["p", "q"], "is": [1, 2], "o": {"i": 4, "o": {"f": 0.5}}, "z": -0}`))
		require.NoError(t, err)
		c.ask(o)
		require.ErrorContains(t, o.Err(), c.want)
		require.True(t, IsMalformed(o.Err()))
	}
}

func TestObjectRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "found the end of the data, want an object"},
		{"[]", "found an array, want an object"},
		{`{"a": 1, "a": 2}`, `duplicate key "a"`},
		{`{"a": {"b": 1, "\u0062": 2}}`, `duplicate key "b"`},
		{`{"a": NaN}`, "NaN or Infinity"},
		{`{"a": 1} x`, "after the end"},
		{`{"a": ` + strings.Repeat("[", 100), "nested deeper than 64"},
		{`{"a": [` + strings.Repeat("0,", maxMembers) + "0]}", "more than 65536 values"},
		{`{"a": "` + strings.Repeat("x", MaxConfig) + `"}`, "want at most 1048576"},
		{"{\"a\": \"\xff\"}", "invalid UTF-8"},
	} {
		o, err := ParseObject("c.json", []byte(c.text))
		require.Nil(t, o)
		require.ErrorContains(t, err, c.want)
		require.True(t, IsMalformed(err))
	}
	o, err := ParseObject("c.json", []byte(`{"a": 1e999}`))
	require.NoError(t, err)
	o.Float("a", 0, 0, math.Inf(1))
	require.ErrorContains(t, o.Err(), "a: is 1e999, want a number in [0, +Inf]")
}

func TestReadAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("12345"), 0o666))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := f.ReadAll(5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(b))
	_, err = f.ReadAll(4)
	require.ErrorContains(t, err, "has 5 bytes, want at most 4")
	require.True(t, IsMalformed(err))
	require.NoError(t, os.Truncate(path, 3))
	_, err = f.ReadAll(5)
	require.ErrorContains(t, err, "reading at byte 3: unexpected EOF")
	require.False(t, IsMalformed(err))
}
