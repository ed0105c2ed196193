package pickle

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// allocated returns the bytes that f allocates, all together.
func allocated(f func()) int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := int64(s[0].Value.Uint64())
	f()
	metrics.Read(s)
	return int64(s[0].Value.Uint64()) - before
}

// limit is what a file of size bytes may make us allocate (formats, rule 1).
func limit(size int) int64 { return 16<<20 + 4*int64(size) }

func scanBytes(b []byte) (*Summary, error) { return ScanAt(bytes.NewReader(b), int64(len(b)), "x.pkl") }

// archive is what torch.save writes: members are names and contents in turn.
func archive(t testing.TB, members ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		w, err := z.CreateHeader(&zip.FileHeader{Name: members[i], Method: zip.Store})
		require.NoError(t, err)
		_, err = io.WriteString(w, members[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// tensor is the program of {"w": a tensor of the given storage class, elements, offset, shape and strides}, each an opcode.
func tensor(class, elements, offset, shape, strides string) string {
	return "\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n" + class +
		"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + elements + "tQ" + offset + shape + strides + "\x89}tRs."
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, file, fragment string }{
		{"empty", "", "is empty"},
		{"text", "hello", "BINGET of 101, which was never stored"},
		{"safetensors", "\x08\x00\x00\x00\x00\x00\x00\x00{}", "byte 0: no pickle"},
		{"no STOP", "\x80\x02}", "ends without STOP"},
		{"unknown opcode", "\x80\x02}\xff.", "byte 3: no opcode"},
		{"protocol", "\x80\x06.", "protocol 6"},
		{"STOP alone", "\x80\x02.", "empty stack"},
		{"frame", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "frame of"},
		{"string of 4 GiB", "X\xff\xff\xff\xff.", "4294967295 bytes are declared, 1 are left"},
		{"string of 2^64", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "18446744073709551615 bytes are declared"},
		{"negative string", "T\xff\xff\xff\xff.", "BINSTRING of -1 bytes"},
		{"half an argument", "J\x00", "pickle ends"},
		{"line without an end", "cos\nsystem", "ends inside a line"},
		{"pop of nothing", "0.", "POP: the stack has nothing"},
		{"items for no set", "(N\x90N.", "ADDITEMS: the stack has nothing"},
		{"tuple of nothing", "N\x87.", "too little"},
		{"tuple across a mark", "(N\x86.", "too little"},
		{"no mark", "Nt.", "TUPLE: no mark"},
		{"memo", "\x80\x04h\x05.", "BINGET of 5, which was never stored"},
		{"memo with a word", "gab\n.", "want a number"},
		{"odd dict", "}(Nu.", "no value"},
		{"object of nothing", "(o.", "want a class"},
		{"archive without data.pkl", string(archive(t, "a/version", "3\n")), "without data.pkl"},
		{"two programs", string(archive(t, "a/data.pkl", "N.", "b/data.pkl", "N.")), "two programs"},
		{"archive that is cut", string(archive(t, "a/data.pkl", "N."))[:60], "truncated zip"},
		{"name that leaves", string(archive(t, "../data.pkl", "N.")), `path element ".."`},
		{"bad program in an archive", string(archive(t, "a/data.pkl", "\xff")), "x.pkl:a/data.pkl: byte"},
	} {
		_, err := scanBytes([]byte(c.file))
		require.ErrorContains(t, err, c.fragment, c.name)
		require.ErrorContains(t, err, "x.pkl", c.name)
		require.True(t, format.IsMalformed(err), c.name)
		require.Less(t, len(err.Error()), 400, c.name)
	}
}

// Every cut of every golden is refused or has less in it, and never crashes.
func TestCut(t *testing.T) {
	for name := range goldens(t) {
		whole, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		step := 1 + len(whole)/200
		for n := 1; n < len(whole); n += step {
			s, err := scanBytes(whole[:n])
			if err != nil {
				require.True(t, format.IsMalformed(err), "%s[:%d]: %v", name, n, err)
				continue
			}
			require.True(t, name == "legacy.pt" && len(s.Problems) > 0 || name == "hostile_second.pkl", "%s[:%d] is accepted", name, n)
		}
	}
}

// Tensors and storages that cannot be.
func TestProblems(t *testing.T) {
	zeros := strings.Repeat("\x00", 16)
	for _, c := range []struct{ name, program, data, fragment string }{
		{"healthy", tensor("FloatStorage", "K\x04", "K\x00", "K\x02K\x02\x86", "K\x02K\x01\x86"), zeros, ""},
		{"offset", tensor("FloatStorage", "K\x04", "K\x01", "K\x02K\x02\x86", "K\x02K\x01\x86"), zeros, "reach beyond the 4 elements"},
		{"negative offset", tensor("FloatStorage", "K\x04", "J\xff\xff\xff\xff", "K\x02\x85", "K\x01\x85"), zeros, "offset -1"},
		{"shape", tensor("FloatStorage", "K\x04", "K\x00", "K\x05\x85", "K\x01\x85"), zeros, "reach beyond"},
		{"overflow", tensor("FloatStorage", "K\x04", "K\x00", "\x8a\x07\xff\xff\xff\xff\xff\xff\x07\x8a\x07\xff\xff\xff\xff\xff\xff\x07\x86", "K\x00K\x00\x86"), zeros, "shape"},
		{"negative stride", tensor("FloatStorage", "K\x04", "K\x00", "K\x02\x85", "J\xff\xff\xff\xff\x85"), zeros, "strides [-1]"},
		{"ranks", tensor("FloatStorage", "K\x04", "K\x00", "K\x02\x85", ")"), zeros, "shape [2] and strides []"},
		{"storage is shorter", tensor("FloatStorage", "K\x04", "K\x00", "K\x04\x85", "K\x01\x85"), zeros[:12], "has 12 bytes, want 16"},
		{"storage is missing", tensor("FloatStorage", "K\x04", "K\x00", "K\x04\x85", "K\x01\x85"), "", "not in the archive"},
		{"unknown class", tensor("BrotStorage", "K\x04", "K\x00", "K\x04\x85", "K\x01\x85"), zeros, "BrotStorage"},
		{"elements", tensor("FloatStorage", "\x8a\x07\xff\xff\xff\xff\xff\xff\x07", "K\x00", "K\x04\x85", "K\x01\x85"), zeros, "has 16 bytes"},
	} {
		members := []string{"m/data.pkl", c.program}
		if c.data != "" {
			members = append(members, "m/data/0", c.data)
		}
		s, err := scanBytes(archive(t, members...))
		require.NoError(t, err, c.name)
		if c.fragment == "" {
			require.Empty(t, s.Problems)
			require.Equal(t, "w float32[2 2]", s.Tensors[0].String())
			continue
		}
		require.Contains(t, strings.Join(s.Problems, "\n"), c.fragment, c.name)
	}
}

// Storages that wrap around to the size of the file, members that say another size than they store, programs that nobody
// follows: none of them goes unsaid.
func TestLies(t *testing.T) {
	var storages strings.Builder
	n := 0
	for ; n < 32; n++ { // 32·(2⁵⁹ − 1 + 8) = 2⁶⁴ + 32·7
		fmt.Fprintf(&storages, "((X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x02\x00\x00\x00%02dX\x03\x00\x00\x00cpu\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x07tQt0", n)
	}
	legacy := "\x80\x02\x8a\x0a" + legacyMagic + ".\x80\x02M\xe9\x03.\x80\x02}.\x80\x02" + storages.String() + "}.\x80\x02]." + strings.Repeat("x", 32*7)
	s, err := scanBytes([]byte(legacy))
	require.NoError(t, err)
	require.Equal(t, TorchLegacy, s.Container)
	require.Len(t, s.Storages, n)
	require.Contains(t, strings.Join(s.Problems, "\n"), "224 bytes of storages")

	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i, text := range []string{tensor("FloatStorage", "K\x04", "K\x00", "K\x04\x85", "K\x01\x85"), strings.Repeat("\x00", 16)} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: []string{"m/data.pkl", "m/data/0"}[i], Method: uint16(8 * i)})
		require.NoError(t, err)
		_, err = io.WriteString(w, text)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	s, err = scanBytes(b.Bytes())
	require.NoError(t, err)
	require.Contains(t, strings.Join(s.Problems, "\n"), `storage "0" is compressed`)

	s, err = scanBytes([]byte(strings.Repeat("\x80\x02N.", maxPrograms+1) + "\x80\x02cos\nsystem\n."))
	require.NoError(t, err)
	require.Contains(t, strings.Join(s.Notes, "\n"), "behind the first 1000 pickles are not followed")
	s, err = scanBytes([]byte(strings.Repeat("\x80\x02N.", maxPrograms)))
	require.NoError(t, err)
	require.Empty(t, s.Notes)
}

// A size of more than 60 bits is no other size.
func TestLargeIntegers(t *testing.T) {
	for _, n := range []int64{0, 1, -1, 1<<59 - 1, -1 << 59} {
		require.Equal(t, n, integral(n).int())
	}
	for _, n := range []int64{1 << 59, -1<<59 - 1, 1<<63 - 1, -1 << 63} {
		require.Equal(t, opaque, integral(n))
	}
	s, err := scanBytes(archive(t, "m/data.pkl", tensor("FloatStorage", "K\x04", "K\x00", "\x8a\x08\x02\x00\x00\x00\x00\x00\x00\x10\x85", "K\x01\x85"), "m/data/0", strings.Repeat("\x00", 16)))
	require.NoError(t, err)
	require.Empty(t, s.Tensors, "a shape of 2⁶⁰ + 2 is not one of 2")
}

// Opcodes that append to a tuple, which has no room for it, leave it as it is.
func TestAppendToATuple(t *testing.T) {
	for _, program := range []string{")Na.", "](Na.", ")(NNNe.", "N\x85(NNNe.", ")NNs.", ")(NNu.", "N\x85}b."} {
		for _, wrapped := range []string{program, "\x80\x02}K\x00" + program[:len(program)-1] + "s."} {
			_, err := scanBytes([]byte(wrapped))
			require.True(t, err == nil || format.IsMalformed(err), "%q: %v", wrapped, err)
		}
	}
	one := tensor("FloatStorage", "K\x04", "K\x00", "K\x02\x85", "K\x01\x85")
	s, err := scanBytes([]byte("(" + strings.TrimSuffix(one[2:], ".") + "t(NNNNe."))
	require.NoError(t, err)
	require.Len(t, s.Tensors, 1)
}

// Programs that make much of little: memory, time and the opcodes are as they should be.
func TestBombs(t *testing.T) {
	laughs := "\x80\x04]\x94" // lists of lists of the one before
	for i := range 200 {
		b := string([]byte{byte(i)})
		laughs += "](h" + b + "h" + b + "h" + b + "e\x94"
	}
	half := func(c string) string { return "X\x00\x02\x00\x00" + strings.Repeat(c, 512) }
	sizes := "(" + strings.Repeat("K\x01", 64) + "t\x94"
	shared := "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQK\x00" +
		sizes + "h\x00tR\x94" // in the memo as 1, its shape as 0
	var distinct strings.Builder
	for i := range 1 << 15 {
		fmt.Fprintf(&distinct, "\x8c\x05%05dNs", i)
	}
	for name, file := range map[string]string{
		"long keys in a long key": half("k") + "\x94}" + half("j") + "}" + strings.Repeat("h\x00}s", 1<<16) + "s.",
		"a wide tuple":            "}" + half("j") + strings.Repeat("(", 1<<10) + strings.Repeat(strings.Repeat("N", 1023)+"t", 1<<10) + "s.",
		"wide tuples":             "}" + half("j") + "(" + strings.Repeat("("+strings.Repeat("N", 1000)+"t", 1000) + "ts.",
		"tensors of rank 64":      "}" + shared + "0" + strings.Repeat("Nh\x01s", 1<<16) + ".",
		"named tensors":           "}" + half("j") + "}" + strings.Replace(shared, "_v2\n((X", "_v2\n(("+"X", 1) + "0" + strings.Repeat("Nh\x01s", 1<<16) + "s.",
		"quoted keys":             "S'" + strings.Repeat("k", 1000) + "'\n\x94}" + strings.Repeat("h\x00Ns", 1<<16) + ".",
		"keys that are not UTF-8": "X\x00\x04\x00\x00" + strings.Repeat("\xffk", 512) + "\x94}" + strings.Repeat("h\x00Ns", 1<<16) + ".",
		"a text too many":         "X\x00\x04\x00\x00" + strings.Repeat("k", 1024) + "\x940}" + distinct.String() + strings.Repeat("h\x00Ns", 1<<16) + ".",
		"everything":              everything(),
		"objects on the stack":    strings.Repeat("N", 1<<20) + ".",
		"duplicates":              "N" + strings.Repeat("2", 1<<20) + ".",
		"marks":                   strings.Repeat("(", 1<<20) + "N.",
		"dicts":                   strings.Repeat("}", 1<<20) + ".",
		"nested lists":            strings.Repeat("](", 1<<18) + "N.",
		"memo":                    "N" + strings.Repeat("\x94", 1<<20) + ".",
		"memo far apart":          "N" + strings.Repeat("r\x00\x00\x00\x80r\x00\x00\x00\x90", 1<<16) + ".",
		"one-tuples":              "N" + strings.Repeat("\x85", 1<<20) + ".",
		"tuples":                  "N" + strings.Repeat("(NNNNNNNNt0", 1<<16) + ".",
		"calls":                   "cos\nsystem\n" + strings.Repeat(")R", 1<<19) + ".",
		"names":                   "\x8c\x64" + strings.Repeat("m", 100) + "\x94" + strings.Repeat("h\x00h\x00\x930", 1<<17) + "N.",
		"long keys":               "X\x00\x04\x00\x00" + strings.Repeat("k", 1024) + "\x94}" + strings.Repeat("h\x00}s", 1<<18) + ".",
		"lists inside one list":   laughs + ".",
		"frames":                  strings.Repeat("\x95\x00\x00\x00\x00\x00\x00\x00\x00", 1<<17) + "N.",
	} {
		var s *Summary
		var err error
		started := time.Now()
		got := allocated(func() { s, err = scanBytes([]byte(file)) })
		require.NoError(t, err, name)
		t.Logf("%s: %d bytes, %.1f times as many, %v", name, len(file), float64(got)/float64(len(file)), time.Since(started))
		require.LessOrEqual(t, got, limit(len(file))+int64(len(file)), "%s", name) // the copy of the file is ours
		require.Less(t, time.Since(started), time.Minute, name)
		require.NotEmpty(t, s.Opcodes, name)
	}
	for name, file := range map[string][]byte{"distinct names": nil, "distinct keys": nil} {
		var b bytes.Buffer
		b.WriteString("\x80\x04}")
		for i := range 100_000 {
			if name == "distinct names" {
				fmt.Fprintf(&b, "cm%d\nn\n0", i)
			} else {
				fmt.Fprintf(&b, "\x8c\x06%06dNs", i)
			}
		}
		b.WriteByte('.')
		file = b.Bytes()
		var s *Summary
		var err error
		got := allocated(func() { s, err = scanBytes(file) })
		require.NoError(t, err, name)
		require.LessOrEqual(t, got, limit(len(file)), name)
		require.NotEmpty(t, s.Notes, name)
	}
}

// Files that are no longer what they were when they were opened.
func TestReadErrors(t *testing.T) {
	whole, err := os.ReadFile("testdata/state_dict.pt")
	require.NoError(t, err)
	_, err = ScanAt(bytes.NewReader(whole[:1000]), int64(len(whole)), "x.pt")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = ScanAt(bytes.NewReader([]byte("\x80\x02")), 10, "x.pkl")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = ScanAt(failing{}, 10, "x.pkl")
	require.ErrorContains(t, err, "x.pkl")
	require.False(t, format.IsMalformed(err))
}

// everything fills each table with as few bytes as it can.
func everything() string {
	const size = 4 << 20
	var b strings.Builder
	one := tensor("FloatStorage", "K\x01", "K\x00", "K\x01\x85", "K\x01\x85")
	b.WriteString("]}}\x94")                                                                   // 0: a dict
	b.WriteString(one[strings.Index(one, "ctorch._utils"):strings.Index(one, "s.")] + "\x940") // 1: a tensor
	b.WriteString("ctorch\nFloatStorage\n\x940K\x01\x940\x8c\x03cpu\x940")                     // 2, 3, 4
	for i := range base/2 + size/512 {
		fmt.Fprintf(&b, "(Nh\x02\x8c\x05%05dh\x04h\x03tQ0", i)
	}
	b.WriteString(strings.Repeat("h\x03h\x01s", base+size/32))
	b.WriteString(strings.Repeat("\x94", base+size/8))
	b.WriteString(strings.Repeat("N", base+size/16+1))
	return b.String() + strings.Repeat("}0", max(0, size-b.Len())/2) + "."
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errors.New("disk") }

func FuzzScan(f *testing.F) {
	for name := range goldens(f) {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(b, false)
	}
	f.Add([]byte(tensor("FloatStorage", "K\x04", "K\x00", "K\x02K\x02\x86", "K\x02K\x01\x86")), true)
	f.Fuzz(func(t *testing.T, b []byte, wrap bool) {
		if wrap {
			b = archive(t, "m/data.pkl", string(b), "m/data/0", "12345678")
		}
		sound(t, b)
	})
}

// FuzzProgram runs programs that are put together from whole opcodes, each chosen by a byte: behind their first bytes random
// ones are no program.
func FuzzProgram(f *testing.F) {
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz"), false)
	f.Add([]byte{28, 29, 30, 31, 5, 24}, true)
	f.Add([]byte{17, 17, 1, 12, 4, 0, 12, 26, 39, 18, 38, 37}, false) // appends to a tuple under a list
	f.Fuzz(func(t *testing.T, chosen []byte, wrap bool) {
		b := []byte(program(chosen))
		if wrap {
			b = archive(t, "m/data.pkl", string(b), "m/data/0", "12345678")
		}
		sound(t, b)
	})
}

// pieces are opcodes with their operands, and runs of them that make objects.
var pieces = []string{
	"N", "(", "0", "1", "2", "K\x00", "K\x01", "K\x02", "J\xff\xff\xff\xff", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x07", "I01\n", "L-7L\n",
	")", "\x85", "\x86", "\x87", "t", "]", "}", "\x8f", "l", "d", "\x91", "\x90",
	"s", "u", "a", "e", "b", "R", "\x81", "\x92", "o", "Q", "Pid\n",
	"h\x00", "h\x01", "h\x02", "q\x00", "q\x01", "q\x02", "\x94", "g3\n", "p3\n", "r\x00\x00\x00\x90", "j\x00\x00\x00\x90",
	"X\x01\x00\x00\x00w", "\x8c\x02\xffa", "S'q\\x41'\n", "V\\u0041\n", "\x8c\x00", "U\x01u", "X\x07\x00\x00\x00storage", "\x8c\x03cpu", "\x8c\x010",
	"cos\nsystem\n", "ctorch\nFloatStorage\n", "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_parameter\n", "ctorch\nSize\n", "ibuiltins\nset\n", "\x93", "\x82\x01",
	"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ", "K\x02\x85", "K\x00K\x02\x85K\x01\x85\x89}tR",
	"\x80\x02", "\x95\x01\x00\x00\x00\x00\x00\x00\x00", ".\x80\x02", "\x8a\x0a" + legacyMagic, "\x88", "\x97", "\x98", "G12345678", "F1\n", "C\x01x", "B\x02\x00\x00\x00xy",
	strings.Repeat("N", 1023), strings.Repeat("]\x94", 600), "(" + strings.Repeat("K\x01", 70) + "t",
}

func program(chosen []byte) string {
	var b strings.Builder
	for _, c := range chosen {
		b.WriteString(pieces[int(c)%len(pieces)])
	}
	return b.String() + "."
}

// sound demands what every summary promises, and every refusal.
func sound(t *testing.T, b []byte) {
	var s *Summary
	var err error
	got := allocated(func() { s, err = scanBytes(b) })
	require.LessOrEqual(t, got, limit(len(b)))
	if err != nil {
		require.True(t, format.IsMalformed(err), "%v", err)
		return
	}
	n, calls := 0, 0
	for _, o := range s.Opcodes {
		n += o.Count
		switch o.Name {
		case "REDUCE", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ":
			calls += o.Count
		}
	}
	require.GreaterOrEqual(t, len(b), n)
	for _, g := range s.Globals {
		require.Positive(t, g.Count)
		require.Less(t, g.Offset, int64(len(b)))
		_, _ = g.Risk().String(), g.String()
		calls -= g.Calls
	}
	require.GreaterOrEqual(t, calls, 0, "more calls than opcodes that call")
	require.LessOrEqual(t, len(s.Keys), len(b))
	for _, x := range s.Tensors {
		require.LessOrEqual(t, len(x.Name), maxText)
		require.LessOrEqual(t, len(x.Shape), maxRank)
		_ = x.Len()
	}
	for _, x := range s.Storages {
		require.GreaterOrEqual(t, x.Bytes, x.Elements)
	}
}
