package npy

import (
	"bytes"
	"compress/flate"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// npyFile returns a .npy file with the given header, as it stands, and data.
func npyFile(version byte, dict string, data ...byte) []byte {
	b := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		b = le.AppendUint16(b, uint16(len(dict)))
	} else {
		b = le.AppendUint32(b, uint32(len(dict)))
	}
	return append(append(b, dict...), data...)
}

// npy1 returns a .npy file of version 1.0 with the three keys in NumPy's order.
func npy1(descr, order, shape string, data ...byte) []byte {
	return npyFile(1, "{'descr': "+descr+", 'fortran_order': "+order+", 'shape': "+shape+", }\n", data...)
}

// f8 returns a .npy file of n float64 that are 0.
func f8(n string, data int) []byte { return npy1("'<f8'", "False", "("+n+",)", make([]byte, data)...) }

// zipEntry is an entry to be put into an archive. Every field but name and content is for a false declaration.
type zipEntry struct {
	name    string
	content []byte // before compression
	deflate bool

	raw        []byte // what is stored, in place of what content gives
	method     uint16 // in both headers, in place of 0 or 8
	flags      uint16 // in both headers
	crcXor     uint32
	size       uint64 // in the directory, in place of len(content)
	csize      uint64 // in the directory, in place of the length of what is stored
	zip64      bool   // sizes and offset stand in a zip64 field
	extra      string // more extra fields in the directory
	localName  string
	localSig   string
	descriptor bool // sizes and checksum follow the data, the local header has 0
	offset     int  // of the local header in the directory, added to the true one
}

// zipEnd says how the directory ends. The zero value is a plain archive.
type zipEnd struct {
	comment string
	zip64   bool
	count   int // added to the true number of entries
	size    int // added to the true size of the directory
	mutate  func(end []byte)
}

func zipFile(end zipEnd, entries ...zipEntry) []byte {
	var b, dir []byte
	for _, e := range entries {
		method := e.method
		raw := e.content
		if e.deflate {
			method = 8
			raw = deflateBytes(e.content)
		}
		if e.raw != nil {
			raw = e.raw
		}
		crc := crc32.ChecksumIEEE(e.content) ^ e.crcXor
		size, csize := uint64(len(e.content)), uint64(len(raw))
		local, sig, flags := e.name, "PK\x03\x04", e.flags
		if e.localName != "" {
			local = e.localName
		}
		if e.localSig != "" {
			sig = e.localSig
		}
		for _, c := range e.name {
			if c >= 0x80 {
				flags |= 1 << 11
			}
		}
		if e.descriptor {
			flags |= 1 << 3
		}
		off := uint64(len(b) + e.offset)

		b = append(b, sig...)
		b = le.AppendUint16(b, 20)
		b = le.AppendUint16(b, flags)
		b = le.AppendUint16(b, method)
		b = le.AppendUint32(b, 0x00210000) // 1980-01-01
		if e.descriptor {
			b = append(b, make([]byte, 12)...)
		} else {
			b = le.AppendUint32(b, crc)
			b = le.AppendUint32(b, uint32(csize))
			b = le.AppendUint32(b, uint32(size))
		}
		b = le.AppendUint16(b, uint16(len(local)))
		b = le.AppendUint16(b, 0)
		b = append(append(b, local...), raw...)
		if e.descriptor {
			b = append(b, "PK\x07\x08"...)
			b = le.AppendUint32(b, crc)
			b = le.AppendUint32(b, uint32(csize))
			b = le.AppendUint32(b, uint32(size))
		}

		if e.size != 0 {
			size = e.size
		}
		if e.csize != 0 {
			csize = e.csize
		}
		extra := []byte(e.extra)
		if e.zip64 {
			extra = append(extra, 1, 0, 24, 0)
			extra = le.AppendUint64(extra, size)
			extra = le.AppendUint64(extra, csize)
			extra = le.AppendUint64(extra, off)
			size, csize, off = 1<<32-1, 1<<32-1, 1<<32-1
		}
		dir = append(dir, "PK\x01\x02\x14\x00\x14\x00"...)
		dir = le.AppendUint16(dir, flags)
		dir = le.AppendUint16(dir, method)
		dir = le.AppendUint32(dir, 0x00210000)
		dir = le.AppendUint32(dir, crc)
		dir = le.AppendUint32(dir, uint32(csize))
		dir = le.AppendUint32(dir, uint32(size))
		dir = le.AppendUint16(dir, uint16(len(e.name)))
		dir = le.AppendUint16(dir, uint16(len(extra)))
		dir = append(dir, make([]byte, 10)...)
		dir = le.AppendUint32(dir, uint32(off))
		dir = append(append(dir, e.name...), extra...)
	}
	off := len(b)
	b = append(b, dir...)
	count, size := len(entries)+end.count, len(dir)+end.size
	if end.zip64 {
		at := len(b)
		b = append(b, "PK\x06\x06"...)
		b = le.AppendUint64(b, 44)
		b = append(b, 45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		for _, v := range []int{count, count, size, off} {
			b = le.AppendUint64(b, uint64(v))
		}
		b = append(b, "PK\x06\x07\x00\x00\x00\x00"...)
		b = le.AppendUint64(b, uint64(at))
		b = append(b, 1, 0, 0, 0)
		count, size, off = 1<<16-1, 1<<32-1, 1<<32-1
	}
	b = append(b, "PK\x05\x06\x00\x00\x00\x00"...)
	b = le.AppendUint16(b, uint16(count))
	b = le.AppendUint16(b, uint16(count))
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, uint32(off))
	b = le.AppendUint16(b, uint16(len(end.comment)))
	b = append(b, end.comment...)
	if end.mutate != nil {
		end.mutate(b[len(b)-22-len(end.comment):])
	}
	return b
}

func deflateBytes(b []byte) []byte {
	var buf bytes.Buffer
	w, _ := flate.NewWriter(&buf, flate.BestCompression)
	w.Write(b)
	w.Close()
	return buf.Bytes()
}

// writeTemp writes b as a file of the given name into a fresh folder.
func writeTemp(t testing.TB, name string, b []byte) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o644))
	return path
}

// allocated returns the bytes that this process has allocated on the heap so far.
func allocated() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// requireRefused demands a refusal of the file that contains the fragment and names the file.
func requireRefused(t *testing.T, err error, file, fragment string) {
	t.Helper()
	require.ErrorContains(t, err, fragment)
	require.Contains(t, err.Error(), file)
	require.Less(t, len(err.Error()), 500+len(file))
	require.True(t, isRefusal(err), "not a *format.Error: %v", err)
}

// pad returns n spaces.
func pad(n int) string { return strings.Repeat(" ", n) }
