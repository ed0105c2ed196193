package npy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

func isRefusal(err error) bool { return format.IsMalformed(err) }

// bound is what a reader may allocate for an input of size bytes: rule 1 of the readers.
func bound(size int) int64 { return 4*int64(size) + 16<<20 }

var refusedFiles = []struct {
	name     string
	file     []byte
	fragment string
}{
	{"empty file", nil, "is empty, want a .npy file"},
	{"one byte", []byte("\x93"), "1 bytes, want at least 10"},
	{"cut in the magic", []byte("\x93NUM"), "4 bytes, want at least 10"},
	{"cut in the version", []byte("\x93NUMPY\x01"), "7 bytes, want at least 10"},
	{"cut in the header length", []byte("\x93NUMPY\x01\x00\x01"), "9 bytes, want at least 10: the header length is cut"},
	{"cut in the header length of v2", []byte("\x93NUMPY\x02\x00\x01\x00\x00"), "11 bytes, want at least 12"},
	{"bad magic", []byte("\x93NUMPX\x01\x00\x00\x00"), `byte 0: bad magic: found "\x93NUMPX"`},
	{"a pickle", []byte("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00"), "refused: pickle"},
	{"an archive", zipFile(zipEnd{}, zipEntry{name: "a.npy", content: f8("1", 8)}), "is a zip archive"},
	{"version 9", npyFile(9, "{}"), "byte 6: version 9.0, want 1.0, 2.0 or 3.0"},
	{"version 0", npyFile(0, "{}"), "version 0.0"},
	{"version 1.1", []byte("\x93NUMPY\x01\x01\x02\x00{}"), "version 1.1"},
	{"header beyond the file", []byte("\x93NUMPY\x01\x00\x76\x00{'descr'"), "byte 8: header length 118 goes beyond the file, 8 bytes are left"},
	{"header of 1 GiB in 12 bytes", []byte("\x93NUMPY\x02\x00\x00\x00\x00\x40"), "header length 1073741824 goes beyond the file, 0 bytes are left"},
	{"header of 4 GiB - 1", []byte("\x93NUMPY\x03\x00\xff\xff\xff\xff"), "header length 4294967295 goes beyond the file"},
	{"header above the limit", npyFile(2, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }"+pad(10_000), make([]byte, 8)...), "header length 10055, want at most 10000"},

	{"header empty", npyFile(1, ""), "header is not a Python dict"},
	{"header a list", npyFile(1, "[('descr', '<f8')]"), "header is not a Python dict"},
	{"header a call", npyFile(1, "__import__('os').system('true')"), "header is not a Python dict"},
	{"header not closed", npyFile(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)", make([]byte, 8)...), "header ends, want"},
	{"header closed twice", npyFile(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}}", make([]byte, 8)...), "want nothing behind the dict"},
	{"value a call", npy1("dict()", "False", "(1,)"), `found '(', want "," or "}"`},
	{"value a dict", npy1("{'names': []}", "False", "(1,)"), "found '{', want a string, number, tuple or list"},
	{"value missing", npy1("", "False", "(1,)"), "found ',', want a string, number, tuple or list"},
	{"bytes for a string", npy1("b'<f8'", "False", "(1,)"), `found '\'', want "," or "}"`},
	{"adjacent strings", npy1("'<f' '8'", "False", "(1,)"), `found '\'', want "," or "}"`},
	{"comment", npyFile(1, "{ # }\n'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", make([]byte, 8)...), "found '#'"},
	{"NUL", npyFile(1, "{\x00'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", make([]byte, 8)...), `found '\x00'`},
	{"string not closed", npyFile(1, "{'descr"), "a string is not closed"},
	{"string over two lines", npyFile(1, "{'de\nscr': 1}"), "a string is not closed on its line"},
	{"string ends in a backslash", npyFile(1, `{'descr\`), "a string is not closed"},
	{"key without a colon", npyFile(1, "{'descr' '<f8'}"), `want ":"`},
	{"key a number", npyFile(1, "{1: 2}"), "a key is 1, want a string"},
	{"two commas", npyFile(1, "{'descr': '<f8',, 'fortran_order': False, 'shape': (1,)}"), "found ',', want a string"},
	{"two commas in the shape", npy1("'<f8'", "False", "(1,,)"), "found ',', want a string"},
	{"no comma in the shape", npy1("'<f8'", "False", "(1 1)", make([]byte, 8)...), `found '1', want "," or ")"`},
	{"comma alone in the shape", npy1("'<f8'", "False", "(,)"), "found ',', want a string"},
	{"nested 10,000 deep", npy1(strings.Repeat("[", 9900), "False", "(1,)"), "nested deeper than 64"},
	{"key missing", npyFile(1, "{'descr': '<f8', 'shape': (1,)}", make([]byte, 8)...), `header has no key "fortran_order"`},
	{"no keys", npyFile(1, "{}"), `header has no key "descr"`},
	{"key extra", npyFile(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': 1}", make([]byte, 8)...), `unknown key "x"`},
	{"key in the wrong case", npyFile(1, "{'Descr': '<f8', 'fortran_order': False, 'shape': (1,)}", make([]byte, 8)...), `unknown key "Descr"`},
	{"key twice", npyFile(1, "{'shape': (1,), 'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", make([]byte, 16)...), `has the key "shape" twice`},
	{"invalid UTF-8 in v3", npyFile(3, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}\xff", make([]byte, 8)...), "not valid UTF-8"},
	{"latin-1 behind the dict in v1", npyFile(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}\xff", make([]byte, 8)...), "want nothing behind the dict"},

	{"descr |O", npy1("'|O'", "False", "(1,)", 0x80, 4), "refused: pickle"},
	{"descr O8", npy1("'O8'", "False", "(1,)"), "allow_pickle"},
	{"descr structured", npy1("[('x', '<f4'), (\"it's\", '<i2', (2,))]", "False", "(1,)"), "structured dtype"},
	{"descr structured, escaped quote", npy1(`[('it\'s', '<f4')]`, "False", "(1,)"), "structured dtype"},
	{"descr subarray", npy1("('<f4', (2,))", "False", "(1,)"), "subarray dtype"},
	{"descr in parentheses", npy1("('<f8')", "False", "(1,)"), `the string "<f8" in parentheses`},
	{"descr a number", npy1("8", "False", "(1,)"), "found 8, want a string"},
	{"descr long double", npy1("'<f16'", "False", "(1,)", make([]byte, 16)...), "x86 long double"},
	{"descr long double of 32 bits", npy1("'<f12'", "False", "(1,)", make([]byte, 12)...), "x86 long double"},
	{"descr complex", npy1("'<c8'", "False", "(1,)"), "complex elements (\"<c8\") are not supported"},
	{"descr unicode", npy1("'<U3'", "False", "(1,)"), "unicode string elements"},
	{"descr bytes", npy1("'|S3'", "False", "(1,)"), "byte string elements"},
	{"descr void", npy1("'|V16'", "False", "(1,)"), "void elements"},
	{"descr void of 2 bytes", npy1("'|V2'", "False", "(1,)", 0, 0), "--assume-bf16"},
	{"descr void of 2 bytes by ml_dtypes", npy1("'<V2'", "False", "(1,)", 0, 0), "--assume-bf16"},
	{"descr void big-endian", npy1("'>V2'", "False", "(1,)", 0, 0), "void elements"},
	{"descr datetime", npy1("'<M8[ns]'", "False", "(1,)"), "datetime64 elements"},
	{"descr timedelta", npy1("'<m8'", "False", "(1,)"), "timedelta64 elements"},
	{"descr a name", npy1("'float32'", "False", "(1,)"), `unknown element type "float32"`},
	{"descr empty", npy1("''", "False", "(1,)"), `unknown element type ""`},
	{"descr 10,000 letters", npy1("'"+strings.Repeat("x", 9000)+"'", "False", "(1,)"), "unknown element type"},
	{"descr of odd size", npy1("'<f3'", "False", "(1,)"), `unknown element type "<f3"`},
	{"descr without byte order", npy1("'f8'", "False", "(1,)", make([]byte, 8)...), "has no byte order"},
	{"descr with order |", npy1("'|f8'", "False", "(1,)", make([]byte, 8)...), "gives no byte order to elements of 8 bytes"},
	{"descr with an escape", npy1(`'\x3cf8'`, "False", "(1,)", make([]byte, 8)...), "unknown element type"},

	{"order a number", npy1("'<f8'", "0", "(1,)", make([]byte, 8)...), "fortran_order is 0, want True or False"},
	{"order a string", npy1("'<f8'", "'False'", "(1,)", make([]byte, 8)...), `fortran_order is the string "False"`},

	{"shape an integer", npy1("'<f8'", "False", "1", make([]byte, 8)...), "shape is 1, want a tuple"},
	{"shape in parentheses", npy1("'<f8'", "False", "(1)", make([]byte, 8)...), "1 in parentheses, want a tuple"},
	{"shape a list", npy1("'<f8'", "False", "[1]", make([]byte, 8)...), "shape is a list of 1, want a tuple"},
	{"shape nested", npy1("'<f8'", "False", "((1,),)", make([]byte, 8)...), "dimension 0 of the shape is a tuple of 1"},
	{"dimension negative", npy1("'<f8'", "False", "(3, -1)", make([]byte, 8)...), "dimension 1 of the shape is -1: negative"},
	{"dimensions negative twice", npy1("'<f8'", "False", "(-2, -2)", make([]byte, 32)...), "is -2: negative"},
	{"dimension a float", npy1("'<f8'", "False", "(3.0,)", make([]byte, 24)...), "dimension 0 of the shape is 3.0, want an integer"},
	{"dimension with an exponent", npy1("'<f8'", "False", "(1e0,)", make([]byte, 8)...), "is 1e0, want an integer"},
	{"dimension hexadecimal", npy1("'<f8'", "False", "(0x1,)", make([]byte, 8)...), "is 0x1, want an integer"},
	{"dimension with underscore", npy1("'<f8'", "False", "(1_0,)", make([]byte, 80)...), "is 1_0, want an integer"},
	{"dimension octal of Python 2", npy1("'<f8'", "False", "(010,)", make([]byte, 80)...), "is 010, want an integer"},
	{"dimension with plus", npy1("'<f8'", "False", "(+1,)", make([]byte, 8)...), "is +1, want an integer"},
	{"dimension an expression", npy1("'<f8'", "False", "(1+1,)", make([]byte, 16)...), "is 1+1, want an integer"},
	{"dimension True", npy1("'<f8'", "False", "(True,)", make([]byte, 8)...), "is True, want an integer"},
	{"dimension a string", npy1("'<f8'", "False", "('1',)", make([]byte, 8)...), `is the string "1", want an integer`},
	{"dimension None", npy1("'<f8'", "False", "(None,)", make([]byte, 8)...), "is None, want an integer"},
	{"dimension with l", npy1("'<f8'", "False", "(1l,)", make([]byte, 8)...), "is 1l, want an integer"},
	{"dimension with L in v3", npyFile(3, "{'descr': '<f8', 'fortran_order': False, 'shape': (1L,)}", make([]byte, 8)...), "is 1L, want an integer"},
	{"dimension 2^63", npy1("'<f8'", "False", "(9223372036854775808,)"), "dimension 0 of the shape is 9223372036854775808, want at most 9223372036854775807"},
	{"dimension 2^64", npy1("'<f8'", "False", "(18446744073709551616,)"), "dimension 0 of the shape is 18446744073709551616, want at most"},
	{"dimension 2^64 beside 0", npy1("'<f8'", "False", "(0, 18446744073709551616)"), "dimension 1 of the shape is 18446744073709551616"},
	{"dimension 10^18", npy1("'<f8'", "False", "(1000000000000000000,)"), "bytes of data, want 8000000000000000000 for float64"},
	{"dimension 2^63-1", npy1("'<f8'", "False", "(9223372036854775807,)"), "has more than 2⁶³−1 bytes"},
	{"shape product overflows", npy1("'|i1'", "False", "(4294967296, 4294967296)"), "has more than 2⁶³−1 bytes"},
	{"shape product overflows to 2", npy1("'|i1'", "False", "(3, 6148914691236517206)", 0, 0), "has more than 2⁶³−1 bytes"},
	{"shape product overflows beside 0", npy1("'|i1'", "False", "(0, 4294967296, 4294967296)"), "has more than 2⁶³−1 bytes"},
	{"shape (65536, 65536) in 80 bytes", npy1("'<f8'", "False", "(65536,65536)")[:80], "bytes of data, want 34359738368 for float64 of shape (65536, 65536)"},
	{"rank 9", npy1("'<f8'", "False", "(1,1,1,1,1,1,1,1,1)", make([]byte, 8)...), "shape has rank 9, want at most 8"},
	{"data one byte short", f8("3", 23), "23 bytes of data, want 24 for float64 of shape (3,)"},
	{"data missing", f8("3", 0), "0 bytes of data, want 24"},
	{"scalar without data", npy1("'<f8'", "False", "()"), "0 bytes of data, want 8 for float64 of shape ()"},
}

func TestRefused(t *testing.T) {
	for _, c := range refusedFiles {
		t.Run(c.name, func(t *testing.T) {
			path := writeTemp(t, "x.npy", c.file)
			before := allocated()
			f, err := Open(path, Options{})
			after := allocated()
			require.Nil(t, f)
			requireRefused(t, err, path, c.fragment)
			require.LessOrEqual(t, after-before, int64(1<<20), "allocated for a file of %d bytes", len(c.file))
		})
	}
}

func TestAccepted(t *testing.T) {
	one := []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}
	const dict = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }"
	for _, c := range []struct {
		name  string
		file  []byte
		notes []string
	}{
		{"no padding", npyFile(1, dict, one...), nil},
		{"v2", npyFile(2, dict, one...), nil},
		{"v3", npyFile(3, dict, one...), nil},
		{"the longest header", npyFile(2, dict+pad(10_000-len(dict)), one...), nil},
		{"other order of keys, double quotes, no spaces, no trailing comma",
			npyFile(1, `{"shape":(1,),"fortran_order":False,"descr":"<f8"}`, one...), nil},
		{"white space anywhere", npyFile(1, " \n{ 'descr'\t:\r'<f8'\n,'fortran_order' : False,\f'shape': ( 1 , ) , }\n \n", one...), nil},
		{"Fortran order of rank 1", npy1("'<f8'", "True", "(1,)", one...), nil},
		{"big-endian", npy1("'>f8'", "False", "(1,)", 0x3f, 0xf0, 0, 0, 0, 0, 0, 0), nil},
		{"byte order of one byte", npy1("'>u1'", "False", "(1,)", 1), nil},
		{"bool that is 2", npy1("'|b1'", "False", "(1,)", 2), nil},
		{"native byte order", npy1("'=f8'", "False", "(1,)", one...),
			[]string{`the byte order of "=f8", native where it was written, is taken to be little-endian`}},
		{"Python 2", npy1("'<f8'", "False", "(1L,)", one...), []string{"the header has integers of Python 2 (a suffix L)"}},
		{"Python 2 in v2", npyFile(2, "{'descr': '<f8', 'fortran_order': False, 'shape': (1L,)}", one...),
			[]string{"the header has integers of Python 2 (a suffix L)"}},
		{"bfloat16", npy1("'|V2'", "False", "(1,)", 0x80, 0x3f), []string{`"|V2" is taken to be bfloat16`}},
		{"bfloat16 of ml_dtypes", npy1("'<V2'", "False", "(1,)", 0x80, 0x3f), []string{`"<V2" is taken to be bfloat16`}},
		{"trailing bytes", npy1("'<f8'", "False", "(1,)", append(one, 1, 2, 3)...), []string{"3 bytes behind the data are ignored"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Open(writeTemp(t, "x.npy", c.file), Options{AssumeBF16: true})
			require.NoError(t, err)
			defer f.Close()
			got, err := f.Float64s()
			require.NoError(t, err)
			require.Equal(t, []float64{1}, got)
			require.Equal(t, []int{1}, f.Shape)
			require.False(t, f.ColumnMajor)
			require.Equal(t, c.notes, f.Notes)
		})
	}
}

// The option is for two bytes without a type and changes no other element type.
func TestAssumeBF16(t *testing.T) {
	for descr, want := range map[string]format.DType{"<f2": format.F16, "<u2": format.U16, "|V2": format.BF16} {
		f, err := Open(writeTemp(t, "x.npy", npy1("'"+descr+"'", "False", "(1,)", 0x80, 0x3f)), Options{AssumeBF16: true})
		require.NoError(t, err)
		require.Equal(t, want, f.DType)
		require.Equal(t, descr, f.Type)
		require.NoError(t, f.Close())
	}
}

func TestShapes(t *testing.T) {
	for shape, want := range map[string][]int{
		"()": {}, "(0,)": {0}, "(0, 5)": {0, 5}, "(2, 3)": {2, 3}, "(1,1,1,1,1,1,1,6)": {1, 1, 1, 1, 1, 1, 1, 6},
		"(0, 9223372036854775807)": {0, 1<<63 - 1},
	} {
		f, err := Open(writeTemp(t, "x.npy", npy1("'|i1'", "True", shape, make([]byte, 6)...)), Options{})
		require.NoError(t, err, shape)
		require.Equal(t, want, f.Shape)
		require.Equal(t, len(want) > 1, f.ColumnMajor)
		require.NoError(t, f.Close())
	}
}

func TestOpenFailures(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "missing.npy"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.False(t, isRefusal(err))
	_, err = OpenArchive(filepath.Join(dir, "missing.npz"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.False(t, isRefusal(err))

	_, err = Open(dir, Options{})
	requireRefused(t, err, dir, "is a directory")
	_, err = OpenArchive(dir, Options{})
	requireRefused(t, err, dir, "is a directory")
}

// A file that loses bytes after it was opened is an I/O error, not a malformed file: it was whole when it was checked.
func TestCutWhileOpen(t *testing.T) {
	path := writeTemp(t, "x.npy", f8("1000", 8000))
	f, err := Open(path, Options{})
	require.NoError(t, err)
	defer f.Close()
	dst := make([]float64, 1000)
	require.NoError(t, f.ReadFloat64(dst, 0))
	require.NoError(t, os.Truncate(path, 4000))
	err = f.ReadFloat64(dst, 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, path)
	require.False(t, isRefusal(err))
	require.ErrorIs(t, WriteArray(io.Discard, f.Array), io.ErrUnexpectedEOF)

	require.NoError(t, os.WriteFile(path, f8("1000", 8000), 0o644))
	g, err := format.Open(path)
	require.NoError(t, err)
	defer g.Close()
	for _, n := range []int64{20, 9, 5, 0} {
		require.NoError(t, os.Truncate(path, n))
		_, err = Parse(g, Options{})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.False(t, isRefusal(err))
	}
}

func TestReadAfterClose(t *testing.T) {
	f, err := Open(writeTemp(t, "x.npy", f8("1", 8)), Options{})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = f.Float64s()
	require.True(t, errors.Is(err, os.ErrClosed), "%v", err)
}

// Headers of thousands of items, one in each member of an archive, cost a small multiple of their bytes.
func TestLongHeaders(t *testing.T) {
	for name, descr := range map[string]string{
		"a list":     "[" + strings.Repeat("0,", 4900) + "]",
		"a tuple":    "(" + strings.Repeat("0,", 4900) + ")",
		"nested":     strings.Repeat("[", 60) + strings.Repeat("0,", 4800) + strings.Repeat("]", 60),
		"of strings": "[" + strings.Repeat("'',", 3200) + "]",
	} {
		member := npyFile(1, "{'descr': "+descr+", 'fortran_order': False, 'shape': (1,)}")
		var entries []zipEntry
		for i := range 300 {
			entries = append(entries, zipEntry{name: fmt.Sprintf("%d.npy", i), content: member})
		}
		file := zipFile(zipEnd{}, entries...)
		before := allocated()
		a, err := parseArchive(bytes.NewReader(file), int64(len(file)), "x.npz", Options{})
		require.NoError(t, err)
		for _, n := range a.Names() {
			_, err := a.Array(n)
			require.True(t, isRefusal(err), "%v", err)
			require.ErrorContains(t, err, "dtype is not supported")
		}
		require.LessOrEqual(t, allocated()-before, bound(len(file)), name)
	}
}
