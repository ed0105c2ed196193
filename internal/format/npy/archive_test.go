package npy

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArchiveAccepted(t *testing.T) {
	for _, c := range []struct {
		name string
		file []byte
	}{
		{"stored", entry1(zipEntry{})},
		{"deflated", entry1(zipEntry{deflate: true})},
		{"data descriptor", entry1(zipEntry{descriptor: true})},
		{"data descriptor, deflated", entry1(zipEntry{descriptor: true, deflate: true})},
		{"zip64 sizes", entry1(zipEntry{zip64: true})},
		{"zip64 sizes, deflated", entry1(zipEntry{zip64: true, deflate: true})},
		{"zip64 end record", zipFile(zipEnd{zip64: true}, zipEntry{name: "a.npy", content: counted(3)})},
		{"zip64 end record beside full end record", zipFile(zipEnd{zip64: true, mutate: func(end []byte) { copy(end[8:], []byte{1, 0, 1, 0}) }}, zipEntry{name: "a.npy", content: counted(3)})},
		{"comment", zipFile(zipEnd{comment: strings.Repeat("c", 65535)}, zipEntry{name: "a.npy", content: counted(3)})},
		{"zip64 field behind another", entry1(zipEntry{zip64: true, extra: "UT\x18\x00" + strings.Repeat("\x07", 24)})},
		{"other extra fields", entry1(zipEntry{extra: "UT\x01\x00\x00\x00\x00"})},
		{"empty deflate blocks at the end", entry1(zipEntry{deflate: true, raw: append(deflateStored(counted(3)), 1, 0, 0, 0xff, 0xff)})},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := writeTemp(t, "x.npz", c.file)
			a, err := OpenArchive(path, Options{})
			require.NoError(t, err)
			defer a.Close()
			require.Equal(t, []string{"a"}, a.Names())
			arr, err := a.Array("a")
			require.NoError(t, err)
			got, err := arr.Float64s()
			require.NoError(t, err)
			require.Equal(t, []float64{0, 1, 2}, got)
			require.Equal(t, path+":a", arr.Name)
			again, err := a.Array("a")
			require.NoError(t, err)
			require.Same(t, arr, again)

			z, err := zip.NewReader(bytes.NewReader(c.file), int64(len(c.file)))
			require.NoError(t, err)
			require.Len(t, z.File, 1)
		})
	}
}

// deflateStored returns b as one deflate block without compression that is not the last.
func deflateStored(b []byte) []byte {
	out := le.AppendUint16([]byte{0}, uint16(len(b)))
	return append(le.AppendUint16(out, ^uint16(len(b))), b...)
}

func TestEmptyArchive(t *testing.T) {
	a, err := OpenArchive(writeTemp(t, "x.npz", zipFile(zipEnd{})), Options{})
	require.NoError(t, err)
	require.Empty(t, a.Names())
	require.NoError(t, a.Close())
}

func TestNoSuchMember(t *testing.T) {
	path := writeTemp(t, "x.npz", zipFile(zipEnd{}, many(20)...))
	a, err := OpenArchive(path, Options{})
	require.NoError(t, err)
	defer a.Close()
	_, err = a.Array("a")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, path+`: no member "a" among ["0" "1" "2" "3" "4" "5" "6" "7"] and 12 more`)
	require.False(t, isRefusal(err))

	b, err := OpenArchive("testdata/compressed.npz", Options{})
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Array("a.npy")
	require.ErrorContains(t, err, `no member "a.npy" among ["a" "o"]: file does not exist`)
}

// A member that cannot be decoded does not keep the others from being read.
func TestBadMemberAmongGood(t *testing.T) {
	for _, deflate := range []bool{false, true} {
		a, err := OpenArchive(writeTemp(t, "x.npz", zipFile(zipEnd{},
			zipEntry{name: "text.npy", content: npy1("'<U1'", "False", "(1,)", 65, 0, 0, 0), deflate: deflate},
			zipEntry{name: "corrupt.npy", content: counted(3), crcXor: 1, deflate: deflate},
			zipEntry{name: "good.npy", content: counted(3), deflate: deflate})), Options{})
		require.NoError(t, err)
		defer a.Close()
		for range 2 {
			_, err = a.Array("text")
			requireRefused(t, err, "x.npz:text", "unicode string")
			_, err = a.Array("corrupt")
			requireRefused(t, err, "x.npz:corrupt", "CRC-32")
			arr, err := a.Array("good")
			require.NoError(t, err)
			require.Equal(t, []int{3}, arr.Shape)
		}
	}
}

// An array of zeros compresses 1029:1; that is no lie and is read.
func TestZerosAreNoBomb(t *testing.T) {
	file := entry1(zipEntry{content: zeros, deflate: true})
	require.Less(t, len(file), 5000)
	a, err := OpenArchive(writeTemp(t, "x.npz", file), Options{MaxUncompressed: int64(len(zeros))}) // to the byte
	require.NoError(t, err)
	defer a.Close()
	arr, err := a.Array("a")
	require.NoError(t, err)
	require.Equal(t, int64(4<<20), arr.Bytes())
}

// Stored members are read in place: they cost no memory and no budget.
func TestStoredIsLazy(t *testing.T) {
	content := f8("2097152", 16<<20)
	path := writeTemp(t, "x.npz", zipFile(zipEnd{}, zipEntry{name: "a.npy", content: content}))
	before := allocated()
	a, err := OpenArchive(path, Options{MaxUncompressed: 1})
	require.NoError(t, err)
	defer a.Close()
	arr, err := a.Array("a")
	require.NoError(t, err)
	dst := make([]float64, 1000)
	require.NoError(t, arr.ReadFloat64(dst, arr.Len()-1000))
	require.Less(t, allocated()-before, int64(2<<20))
}

// Many small members cost little more than their bytes in the file, whether stored or deflated.
func TestManyMembers(t *testing.T) {
	entries := many(5000)
	for _, raw := range [][]byte{nil, deflateBytes(entries[0].content)} {
		for i := range entries {
			if entries[i].raw = raw; raw != nil {
				entries[i].method = 8
			}
		}
		file := zipFile(zipEnd{}, entries...)
		before := allocated()
		a, err := parseArchive(bytes.NewReader(file), int64(len(file)), "x.npz", Options{})
		require.NoError(t, err)
		for _, name := range a.Names() {
			_, err := a.Array(name)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, allocated()-before, bound(len(file)))
	}
}

func TestArchiveCutWhileOpen(t *testing.T) {
	for _, deflate := range []bool{false, true} {
		entries := []zipEntry{{name: "a.npy", content: counted(1000), deflate: deflate}, {name: "b.npy", content: counted(5000), deflate: deflate}}
		path := writeTemp(t, "x.npz", zipFile(zipEnd{}, entries...))
		a, err := OpenArchive(path, Options{})
		require.NoError(t, err)
		defer a.Close()
		arr, err := a.Array("a")
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, 1000))
		if err := arr.ReadFloat64(make([]float64, 1000), 0); deflate {
			require.NoError(t, err) // it is in memory
		} else {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.False(t, isRefusal(err))
		}
		_, err = a.Array("b")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.ErrorContains(t, err, path+":b")
		require.False(t, isRefusal(err))
	}

}

var errDisk = errors.New("input/output error")

// badSector fails every read that touches the byte at, after the bytes before it.
type badSector struct {
	r  io.ReaderAt
	at int64
}

func (b badSector) ReadAt(p []byte, off int64) (int, error) {
	if off > b.at || off+int64(len(p)) <= b.at {
		return b.r.ReadAt(p, off)
	}
	n, _ := b.r.ReadAt(p[:b.at-off], off)
	return n, errDisk
}

// A byte that cannot be read is reported as what it is, never as malformed content, whatever a decompressor or parser
// makes of the bytes before it.
func TestBadSector(t *testing.T) {
	entries := many(3)
	entries[0].content = counted(50)
	entries[1] = zipEntry{name: "1.npy", content: counted(50), deflate: true}
	comment := strings.Repeat("c", 65535) // so that the search for the end record reads nothing else
	plain := zipFile(zipEnd{comment: comment}, entries...)
	zip64 := zipFile(zipEnd{comment: comment, zip64: true}, entries[:2]...)
	noEnd := append([]byte("neither format"), make([]byte, 70_000)...)
	for _, c := range []struct {
		file   []byte
		reader func(r io.ReaderAt, size int64) error
	}{
		{plain, readArchive},
		{zip64, readArchive},
		{noEnd, readArchive},
		{counted(3), func(r io.ReaderAt, size int64) error {
			arr, err := parse(r, size, "x", Options{})
			if err == nil {
				_, err = arr.Float64s()
			}
			return err
		}},
	} {
		whole := c.reader(bytes.NewReader(c.file), int64(len(c.file)))
		failed := 0
		for at := range min(len(c.file), 2000) {
			err := c.reader(badSector{bytes.NewReader(c.file), int64(at)}, int64(len(c.file)))
			if err == nil || whole != nil && err.Error() == whole.Error() {
				continue // the byte was not needed
			}
			failed++
			require.ErrorIs(t, err, errDisk, "byte %d", at)
			require.False(t, isRefusal(err), "byte %d", at)
		}
		require.Positive(t, failed)
	}
}

// readArchive reads all of an archive.
func readArchive(r io.ReaderAt, size int64) error {
	a, err := parseArchive(r, size, "x", Options{})
	if err != nil {
		return err
	}
	for _, name := range a.Names() {
		arr, err := a.Array(name)
		if err == nil {
			_, err = arr.Float64s()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestArchiveConcurrent(t *testing.T) {
	entries := many(50)
	for i := range entries {
		entries[i].content, entries[i].deflate = counted(i), i%2 == 0
	}
	a, err := OpenArchive(writeTemp(t, "x.npz", zipFile(zipEnd{}, entries...)), Options{})
	require.NoError(t, err)
	defer a.Close()
	errs := make(chan error, 200)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i, name := range a.Names() {
				arr, err := a.Array(name)
				if err == nil {
					var got []float64
					if got, err = arr.Float64s(); err == nil && (len(got) != i || i > 0 && got[i-1] != float64(i-1)) {
						err = fmt.Errorf("%s: %v", name, got)
					}
				}
				errs <- err
			}
		})
	}
	wg.Wait()
	for range 200 {
		require.NoError(t, <-errs)
	}
}
