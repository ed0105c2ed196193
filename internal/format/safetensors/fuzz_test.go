package safetensors

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
)

// allocated returns the bytes that f allocates, all together, whether or not they are freed.
func allocated(f func()) int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - before)
}

// budget is what a reader may allocate for a file of n bytes.
func budget(n int) int64 { return 4*int64(n) + 16<<20 }

// measure parses b and holds the reader to its budget.
func measure(t require.TestingT, b []byte) (f *File, err error) {
	n := allocated(func() { f, err = parse(b) })
	require.LessOrEqual(t, n, budget(len(b)), "allocation of a file of %d bytes", len(b))
	return f, err
}

func FuzzSafetensors(f *testing.F) {
	for _, c := range hostile {
		if len(c.file) < 1<<16 {
			f.Add(c.file)
		}
	}
	for _, name := range []string{"dtypes", "types", "empty"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".safetensors"))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(image(entries(u8(0, 4), u8(4, 4), u8(4, 8), u8(0, 0)), 8))
	f.Fuzz(func(t *testing.T, b []byte) { hold(t, b) })
}

// FuzzFields reads files whose header is put together from parts that are each chosen by a byte: sound ones, and those at
// which a reader trips. It gets behind the checks that a random header fails at.
func FuzzFields(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, uint8(0))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"), uint8(3))
	f.Fuzz(func(t *testing.T, chosen []byte, more uint8) {
		header, data := fields(chosen)
		hold(t, image(header, data+int(more%4)))
	})
}

// fields returns a header by what the bytes of chosen choose, and the bytes of data that its tensors would have.
func fields(chosen []byte) (header string, data int) {
	draw := func(list ...string) string {
		if len(chosen) == 0 {
			return list[0]
		}
		c := chosen[0]
		chosen = chosen[1:]
		return list[int(c)%len(list)]
	}
	var parts []string
	for i := 0; len(chosen) > 0; i++ {
		if draw("", "", "", "metadata") != "" {
			parts = append(parts, draw(`"__metadata__":`, `"__metadat\u0061__":`)+draw(`{"format":"pt"}`, `{}`, `{"a":"b\n","\u0063":""}`, `{"a":1}`, `[]`, `{"a":"b","a":"c"}`))
			continue
		}
		name := draw(fmt.Sprintf(`"%d"`, i), fmt.Sprintf(`"é%d"`, i), fmt.Sprintf(`"\u00%02x"`, 0x60+i%26), `"0"`, `""`, `"a\n"`, `"\ud800"`)
		dtype := draw("U8", "F32", "F4", "BOOL", "F6_E2M3", "BF16", "I64", "C64", "f32", "")
		shape, begin, end := []string{}, data, data
		elems := 1
		for range len(draw("", ".", "..", "...", "........", ".........")) {
			d := draw("2", "1", "3", "0", "4611686018427387904", "9223372036854775807", "18446744073709551615", "-1", "-0", "1e0", "2.0")
			shape = append(shape, d)
			if n, err := strconv.Atoi(d); err == nil && n < 4 {
				elems *= max(n, 0)
			}
		}
		if t := byName(dtype); t >= 0 {
			end += elems * int(dtypes[t].bits) / 8
		}
		offsets := draw(fmt.Sprintf("%d,%d", begin, end), fmt.Sprintf("%d,%d", begin, end), fmt.Sprintf("%d,%d", begin+1, end+1), fmt.Sprintf("%d,%d", end, begin),
			fmt.Sprintf("%d", begin), fmt.Sprintf("%d,%d,%d", begin, end, end), "9223372036854775807,9223372036854775807", "-1,0", "0,0")
		members := []string{fmt.Sprintf(`"dtype":%q`, dtype), `"shape":[` + strings.Join(shape, ",") + "]", `"data_offsets":[` + offsets + "]"}
		switch draw("", "", "swap", "drop", "again", "case", "more") {
		case "swap":
			members[0], members[2] = members[2], members[0]
		case "drop":
			members = members[1:]
		case "again":
			members = append(members, members[1])
		case "case":
			members[2] = strings.ToUpper(members[2])
		case "more":
			members = append(members, `"x":[[{}]]`)
		}
		parts = append(parts, name+":{"+strings.Join(members, ",")+"}")
		data = end
	}
	return draw("", " ", "\ufeff", "\n\t") + "{" + strings.Join(parts, draw(",", ", ", ",,")) + "}" + draw("", "   ", "x", "\x00"), data
}

// hold demands of what is read from b what every file promises.
func hold(t *testing.T, b []byte) {
	file, err := measure(t, b)
	if err != nil {
		require.True(t, format.IsMalformed(err), "%v", err)
		require.Nil(t, file)
		return
	}
	sound(t, b, file)
}

// sound demands what accepting b promises: every byte of every tensor can be read, the tensors cover all bytes after the
// header, and what is written from file is read again as the same.
func sound(t require.TestingT, b []byte, file *File) {
	var covered int64
	values := make([]float64, 1<<10)
	for name, a := range file.Tensors() {
		bytesOf := raw(t, file, name)
		require.Equal(t, 8+file.Header+covered, a.Offset)
		require.True(t, bytes.Equal(bytesOf, b[a.Offset:][:len(bytesOf)]))
		covered += int64(len(bytesOf))
		require.LessOrEqual(t, len(a.Shape), format.MaxRank)
		require.Empty(t, badName(name))
		if a.DType == format.Unknown {
			continue
		}
		require.Equal(t, int64(len(bytesOf)), a.Bytes())
		for at := 0; at < a.Len(); at += len(values) {
			require.NoError(t, a.ReadFloat64(values[:min(len(values), a.Len()-at)], at))
		}
	}
	require.Equal(t, int64(len(b)), 8+file.Header+covered)

	var first, second bytes.Buffer
	require.NoError(t, Write(&first, file.Metadata, tensors(file)))
	again, err := parse(first.Bytes())
	require.NoError(t, err)
	require.Equal(t, file.Metadata, again.Metadata)
	require.Equal(t, file.Len(), again.Len())
	for name, a := range file.Tensors() {
		b, ok := again.Tensor(name)
		require.True(t, ok, "%q is lost", name)
		require.Equal(t, a.Type, b.Type)
		require.Equal(t, a.DType, b.DType)
		require.Equal(t, a.Shape, b.Shape)
		require.True(t, bytes.Equal(raw(t, file, name), raw(t, again, name)))
	}
	require.NoError(t, Write(&second, again.Metadata, tensors(again)))
	require.True(t, bytes.Equal(first.Bytes(), second.Bytes()), "the written form is not stable")
}

// TestAllocation measures files that are made to cost as much memory per byte as they can. With -short they are smaller.
func TestAllocation(t *testing.T) {
	scale := 1
	if testing.Short() || !cases.All {
		scale = 20
	}
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'()*+,-./:;<=>?@[]^_`{|}~"
	// name returns the i-th of the shortest names.
	name := func(b []byte, i int) []byte {
		for ; ; i = i/len(digits) - 1 {
			b = append(b, digits[i%len(digits)])
			if i < len(digits) {
				return b
			}
		}
	}
	// build returns a header of n tensors whose names start with prefix.
	build := func(n int, prefix, entry string) string {
		b := append(make([]byte, 0, n*(len(prefix)+len(entry)+9)), '{')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, '"'), prefix...), name(nil, i)...)
			b = append(append(b, `":`...), entry...)
		}
		return string(append(b, '}'))
	}
	empty := `{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
	n := MaxTensors / scale
	for _, c := range []struct {
		name    string
		header  string
		data    int
		tensors int
		err     string
	}{
		{"empty tensors", build(n, "", empty), 0, n, ""},
		{"empty tensors of rank 8", build(n, "", `{"dtype":"U8","shape":[0,0,0,0,0,0,0,0],"data_offsets":[0,0]}`), 0, n, ""},
		{"one tensor too many", build(MaxTensors+1, "", empty), 0, 0, "more than 1000000 tensors"},
		{"duplicate at the end", strings.TrimSuffix(build(n-1, "", empty), "}") + `,"0":` + empty + "}", 0, 0, `duplicate key "0"`},
		{"20 MB header", build(n/5, "model.layers.0.mlp.", `{"dtype":"BF16", "shape":[0, 4096, 4096], "data_offsets": [0, 0]}`), 0, n / 5, ""},
		{"unknown key at the end", strings.Replace(build(n/5, "", `{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}`), `]}}`, `],"shap\u0065x":0}}`, 1), 0, 0, `unknown key "shapex"`},
		{"20 MB header of long names", build(n/50, strings.Repeat("x", 1000), empty), 0, n / 50, ""},
		{"20 MB header of escaped names", build(n/5, strings.Repeat(`\u0041`, 10), empty), 0, n / 5, ""},
		{"braces in a name", `{"` + strings.Repeat("{", 20_000_000/scale) + `":` + empty + "}", 0, 0, "want at most 1024"},
		{"braces in metadata", `{"__metadata__":{"":"` + strings.Repeat("{", 20_000_000/scale) + `"}}`, 0, 0, ""},
		{"metadata keys", `{"__metadata__":{"":""` + pairs(MaxMetadata-1) + `}}`, 0, 0, ""},
		{"too many metadata keys", `{"__metadata__":{"":""` + pairs(n) + `}}`, 0, 0, ""},
		{"one escaped metadata value", `{"__metadata__":{"":"` + strings.Repeat("x", 20_000_000/scale) + `\n"}}`, 0, 0, ""},
		{"metadata of escapes", `{"__metadata__":{"":"` + strings.Repeat(`\n`, 10_000_000/scale) + `"}}`, 0, 0, ""},
		{"unclosed arrays", `{"a":{"shape":` + strings.Repeat("[", 20_000_000/scale), 0, 0, "found an array, want a number"},
		{"spaces", strings.Repeat(" ", 20_000_000/scale) + "{}", 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "one tensor too many" && testing.Short() {
				t.Skip("needs a million tensors")
			}
			b := image(c.header, c.data)
			var f *File
			var err error
			got := allocated(func() { f, err = parse(b) })
			t.Logf("%d bytes: %.2f times as many allocated", len(b), float64(got)/float64(len(b)))
			require.LessOrEqual(t, got, budget(len(b)))
			switch {
			case c.err != "":
				require.ErrorContains(t, err, c.err)
			case c.name == "too many metadata keys" && n > MaxMetadata:
				require.ErrorContains(t, err, "more than 65536 keys")
			default:
				require.NoError(t, err)
				require.Equal(t, c.tensors, f.Len())
			}
		})
	}
	require.Equal(t, "0", string(name(nil, 0)))
	require.Equal(t, "~", string(name(nil, len(digits)-1)))
	require.Equal(t, "00", string(name(nil, len(digits))))
}

// TestLookup looks every tensor of a large file up by name.
func TestLookup(t *testing.T) {
	const n = 10_000
	f, err := parse(image(many(n, `"x":`+u8(0, 0)), 0))
	require.NoError(t, err)
	for i := range n {
		name := fmt.Sprintf("t%d", i)
		a, ok := f.Tensor(name)
		require.True(t, ok, name)
		require.Equal(t, "f.safetensors:"+name, a.Name)
	}
	for _, name := range []string{"t10000", "t", "", "y", "t01"} {
		_, ok := f.Tensor(name)
		require.False(t, ok, name)
	}
}
