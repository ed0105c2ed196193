package zip

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

func anyName(full string) (string, error) { return full, nil }

// archive is what the standard library writes.
func archive(t require.TestingT, names []string, contents [][]byte, method uint16) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i, name := range names {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		require.NoError(t, err)
		_, err = w.Write(contents[i])
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// The entries are those that the standard library wrote, in their order, and what is stored of them is found.
func TestDirectory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "entries")
		names, contents := make([]string, n), make([][]byte, n)
		for i := range n {
			names[i] = fmt.Sprintf("%d/%s", i, rapid.StringMatching(`[a-zé][a-zé.]{0,7}`).Draw(t, "name"))
			contents[i] = []byte(rapid.String().Draw(t, "content"))
		}
		file := archive(t, names, contents, zip.Store)
		entries, err := Directory(bytes.NewReader(file), int64(len(file)), "x.zip", 20, anyName)
		require.NoError(t, err)
		require.Len(t, entries, n)
		for i, e := range entries {
			require.Equal(t, names[i], e.Name)
			require.Equal(t, uint16(Stored), e.Method)
			off, err := e.Data(bytes.NewReader(file), "x.zip:"+e.Name)
			require.NoError(t, err)
			got, err := io.ReadAll(&format.Section{R: bytes.NewReader(file), Off: off, End: off + e.Packed})
			require.NoError(t, err)
			require.True(t, bytes.Equal(contents[i], got))
		}
	})
}

func TestRefused(t *testing.T) {
	two := archive(t, []string{"a", "b"}, [][]byte{{1}, {2}}, zip.Store)
	for name, c := range map[string]struct {
		file     []byte
		accept   func(string) (string, error)
		most     int
		fragment string
	}{
		"too many":       {two, anyName, 1, "2 entries, want at most 1"},
		"name refused":   {two, func(full string) (string, error) { return "", errors.New("not that one") }, 9, `entry "a": not that one`},
		"known as a way": {two, func(full string) (string, error) { return "../" + full, nil }, 9, `path element ".."`},
		"known as none":  {two, func(string) (string, error) { return "", nil }, 9, "name is empty"},
		"empty":          {nil, anyName, 9, "is empty"},
		"pickle":         {[]byte("\x80\x02."), anyName, 9, "refused: pickle"},
		"cut":            {two[:40], anyName, 9, "truncated zip archive"},
		"comment":        {append(slices.Clone(two), "xyz"...), anyName, 9, "declares a comment of 0 bytes, 3 follow it"},
		"bytes in front": {append([]byte("x"), two...), anyName, 9, "want it to end at byte"},
	} {
		_, err := Directory(bytes.NewReader(c.file), int64(len(c.file)), "x.zip", c.most, c.accept)
		require.ErrorContains(t, err, c.fragment, name)
		require.ErrorContains(t, err, "x.zip", name)
		require.True(t, format.IsMalformed(err), name)
	}
}

// A local header that is not that of the entry is refused whatever bit is wrong.
func TestLocalHeader(t *testing.T) {
	file := archive(t, []string{"name"}, [][]byte{{1, 2, 3}}, zip.Store)
	entries, err := Directory(bytes.NewReader(file), int64(len(file)), "x.zip", 1, anyName)
	require.NoError(t, err)
	for _, at := range []int{0, 3, 6, 8, 26, 30, 33} { // signature, flags, method, length of the name, name
		bad := bytes.Clone(file)
		bad[at] ^= 1
		_, err := entries[0].Data(bytes.NewReader(bad), "x.zip:name")
		require.True(t, format.IsMalformed(err), "byte %d: %v", at, err)
	}
	bad := bytes.Clone(file)
	bad[29] = 0xff // an extra field that reaches into the directory
	_, err = entries[0].Data(bytes.NewReader(bad), "x.zip:name")
	require.ErrorContains(t, err, "reach beyond")
}

// Fields that make an entry another one for some readers.
func TestExtraFields(t *testing.T) {
	zip64 := append([]byte{1, 0, 8, 0}, make([]byte, 8)...)
	for name, c := range map[string]struct {
		extra    []byte
		fragment string
	}{
		"another name":     {[]byte("up\x06\x00\x01crc.x"), "another name in UTF-8"},
		"two zip64 fields": {append(zip64, zip64...), "two zip64 fields"},
		"longer than it":   {[]byte{9, 9, 5, 0}, "extra field of 5 bytes, 0 are left"},
		"of no meaning":    {[]byte{9, 9, 1, 0, 7}, ""},
		"one zip64 field":  {zip64, ""},
	} {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		_, err := z.CreateHeader(&zip.FileHeader{Name: "a", Extra: c.extra})
		require.NoError(t, err)
		require.NoError(t, z.Close())
		_, err = Directory(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.zip", 9, anyName)
		if c.fragment == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.fragment, name)
		require.True(t, format.IsMalformed(err), name)
	}
}

// A directory of as many entries as fit costs a small multiple of itself, also one whose entries are nowhere.
func TestMemory(t *testing.T) {
	const n = 300_000
	var b bytes.Buffer
	for i := range n {
		name := fmt.Sprintf("%x", i)
		record := make([]byte, dirSize)
		copy(record, dirSig)
		le.PutUint16(record[28:], uint16(len(name)))
		b.Write(append(record, name...))
	}
	locator := make([]byte, locatorSize)
	end64, end := make([]byte, end64Size), make([]byte, endSize)
	copy(end64, end64Sig)
	le.PutUint64(end64[4:], end64Size-12)
	le.PutUint64(end64[24:], n)
	le.PutUint64(end64[32:], n)
	le.PutUint64(end64[40:], uint64(b.Len()))
	copy(locator, locatorSig)
	le.PutUint64(locator[8:], uint64(b.Len()))
	le.PutUint32(locator[16:], 1)
	copy(end, endSig)
	copy(end[8:], bytes.Repeat([]byte{0xff}, 4))
	le.PutUint32(end[12:], uint32(b.Len()))
	file := append(append(append(b.Bytes(), end64...), locator...), end...)

	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	_, err := Directory(bytes.NewReader(file), int64(len(file)), "x.zip", n, anyName)
	metrics.Read(s)
	require.ErrorContains(t, err, "where the next entry or the directory begins")
	got := s[0].Value.Uint64() - before
	t.Logf("%.1f times %d bytes", float64(got)/float64(len(file)), len(file))
	require.LessOrEqual(t, got, uint64(4*len(file)+4<<20))
}

func FuzzDirectory(f *testing.F) {
	f.Add(archive(f, []string{"a/data.pkl", "a/data/0"}, [][]byte{{1}, {2, 3}}, zip.Store), byte(0))
	f.Add(archive(f, []string{"a"}, [][]byte{bytes.Repeat([]byte{7}, 99)}, zip.Deflate), byte(9))
	f.Fuzz(func(t *testing.T, file []byte, seed byte) {
		if len(file) > 0 && seed > 0 {
			file = bytes.Clone(file) // what the fuzzer holds stays as it is
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			file[r.IntN(len(file))] ^= 1 << r.IntN(8)
		}
		entries, err := Directory(bytes.NewReader(file), int64(len(file)), "x.zip", 1000, anyName)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err, "what is accepted, another reader accepts")
		require.Len(t, z.File, len(entries))
		for i, e := range entries {
			require.Equal(t, z.File[i].Name, e.Name)
			if off, err := e.Data(bytes.NewReader(file), "x.zip"); err == nil {
				require.LessOrEqual(t, off+e.Packed, int64(len(file)))
			}
		}
	})
}
