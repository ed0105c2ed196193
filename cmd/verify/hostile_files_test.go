//go:build unix

package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// npyBytes returns a .npy file with the header as it stands. A length that is not 0 is what the file declares for it.
func npyBytes(version byte, length uint32, header string, data ...byte) []byte {
	if length == 0 {
		length = uint32(len(header))
	}
	b := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(length))
	} else {
		b = binary.LittleEndian.AppendUint32(b, length)
	}
	return append(append(b, header...), data...)
}

// npyRows are files that end in .npy.
func npyRows() []hostile {
	const tail = "'fortran_order': False, 'shape': (64, 4), }\n"
	plain := func(descr, shape string, size int) []byte {
		return numpyFile(1, descr, false, shape, make([]byte, size))
	}
	header := func(text string, size int) []byte { return npyBytes(1, 0, text, make([]byte, size)...) }
	f8 := format.Encode(nil, cosines(64, 4), format.F64)
	times := func(s float64) []byte {
		x := cosines(64, 4)
		for i := range x {
			x[i] *= s
		}
		return numpyFile(1, "<f8", false, "(64, 4)", format.Encode(nil, x, format.F64))
	}
	with := func(v float64) []byte {
		x := cosines(64, 4)
		x[4*10+2] = v
		return numpyFile(1, "<f8", false, "(64, 4)", format.Encode(nil, x, format.F64))
	}
	rows := []hostile{
		// The fifteen of formats.md, section 19.
		{name: "bad magic", data: []byte("\x93NUMPX\x01\x00v\x00{}"), says: "bad magic"},
		{name: "version 9", data: npyBytes(9, 0, "{'descr': '<f8', "+tail), says: "version 9.0"},
		{name: "header length beyond the file", data: npyBytes(1, 60000, "{}"), says: "header length 60000 goes beyond the file"},
		{name: "header of 1 GiB in 12 bytes", data: npyBytes(2, 1<<30, ""), says: "header length 1073741824 goes beyond the file"},
		{name: "header not a dict", data: header("['descr', '<f8']\n", 0), says: "not a Python dict"},
		{name: "key missing", data: header("{'descr': '<f8', 'fortran_order': False}\n", 2048), says: `no key "shape"`},
		{name: "key extra", data: header("{'descr': '<f8', 'x': 1, "+tail, 2048), says: `unknown key "x"`},
		{name: "objects", data: plain("|O", "(64, 4)", 2048), says: "refused: pickle"},
		{name: "structured", data: header("{'descr': [('a', '<f8'), ('b', '<f8')], "+tail, 4096), says: "structured dtype"},
		{name: "dimension -1", data: plain("<f8", "(-1, 4)", 2048), says: "negative"},
		{name: "10^18 elements", data: plain("<f8", "(1000000000000000000,)", 2048), says: "want 8000000000000000000 for float64"},
		{name: "32 GiB in 80 bytes", data: npyBytes(1, 0, "{'descr':'<f8','fortran_order':False,'shape':(65536,65536)}"), says: "0 bytes of data, want 34359738368"},
		{name: "dimension 2^64", data: plain("<f8", "(18446744073709551616,)", 2048), says: "want at most 9223372036854775807"},
		{name: "one byte short", data: plain("<f8", "(64, 4)", 2047), says: "2047 bytes of data, want 2048"},
		{name: "header not UTF-8", data: npyBytes(3, 0, "{'descr': '\xff', "+tail), says: "not valid UTF-8"},

		// Preamble and header.
		{name: "six bytes", data: []byte("\x93NUMPY"), says: "the preamble is cut"},
		{name: "length cut", data: []byte("\x93NUMPY\x02\x00\x00\x00"), says: "the header length is cut"},
		{name: "header of 60 kB", data: npyBytes(1, 0, "{"+strings.Repeat(" ", 60000)+"}"), says: "header length 60002, want at most 10000"},
		{name: "pickle", data: []byte("\x80\x04\x95cos\nsystem\n"), says: "refused: pickle"},
		{name: "zip archive", data: []byte("PK\x03\x04" + strings.Repeat("\x00", 60)), says: "is a zip archive"},
		{name: "key twice", data: header("{'shape': (64, 4), 'descr': '<f8', "+tail, 2048), says: `the key "shape" twice`},
		{name: "fortran_order 1", data: header("{'descr': '<f8', 'fortran_order': 1, 'shape': (64, 4)}", 2048), says: "want True or False"},
		{name: "dimension 4.0", data: plain("<f8", "(64, 4.0)", 2048), says: "want an integer"},
		{name: "dimension True", data: plain("<f8", "(64, True)", 2048), says: "want an integer"},
		{name: "shape a list", data: plain("<f8", "[64, 4]", 2048), says: "want a tuple"},
		{name: "rank 9", data: plain("<f8", "(64, 4, 1, 1, 1, 1, 1, 1, 1)", 2048), says: "rank 9, want at most 8"},
		{name: "rank 3000", data: plain("<f8", "("+strings.Repeat("1, ", 3000)+")", 8), says: "rank 3000"},
		{name: "tuples 3000 deep", data: plain("<f8", strings.Repeat("(", 3000), 8), says: "nested deeper than 64"},
		{name: "string without an end", data: header("{'descr': '<f8", 0), says: "a string is not closed"},
		{name: "NUL", data: header("{'descr': '<f8',\x00"+tail, 2048), says: "header"},
		{name: "escape sequences in the type", data: header("{'descr': '\x1b[31m\x9b31m', "+tail, 2048), says: "unknown element type"},
		{name: "escape sequences in a key", data: header("{'\x1b[2J': 1, 'descr': '<f8', "+tail, 2048), says: "unknown key"},
		{name: "a billion rows in one byte", data: plain("<f4", "(1000000000, 32)", 1), says: "1 bytes of data, want 128000000000"},
		{name: "zero times 2^63 − 1", data: plain("<f8", "(0, 9223372036854775807)", 0), says: "more than 2⁶³−1 bytes"},

		// Types that are named.
		{name: "long double", data: plain("<f16", "(64, 4)", 4096), says: "long double"},
		{name: "complex", data: plain("<c8", "(64, 4)", 2048), says: "complex elements"},
		{name: "text", data: plain("<U4", "(64, 4)", 4096), says: "unicode string"},
		{name: "two bytes without a type", data: plain("|V2", "(64, 4)", 512), says: "--assume-bf16"},
		{name: "subarray", data: header("{'descr': ('<f8', (2,)), "+tail, 4096), says: "subarray dtype"},
		{name: "no byte order", data: plain("f8", "(64, 4)", 2048), says: "no byte order"},

		// Files that are read, and judged.
		{name: "no dimension", data: plain("<f8", "()", 8), code: check.ExitFail, says: "0-dimensional"},
		{name: "no rows", data: plain("<f8", "(0, 5)", 0), code: check.ExitFail, says: "the basis is empty, shape (0, 5)"},
		{name: "no columns", data: plain("<f8", "(5, 0)", 0), code: check.ExitFail, says: "the basis is empty, shape (5, 0)"},
		{name: "nothing", data: plain("<f8", "(0, 0)", 0), code: check.ExitFail, says: "the basis is empty, shape (0, 0)"},
		{name: "integers", data: plain("<i8", "(64, 4)", 2048), code: check.ExitFail, says: "want a floating-point type"},
		{name: "zeros", data: times(0), code: check.ExitFail, says: "rank 0 of 4 columns"},
		{name: "subnormal", data: times(0x1p-1070), code: check.ExitFail, says: "basis/orthonormal"},
		{name: "squares overflow", data: times(1e200), code: check.ExitFail, says: "basis/orthonormal"},
		{name: "NaN", data: with(math.NaN()), code: check.ExitFail, says: "row 10, column 2: NaN"},
		{name: "infinity", data: with(math.Inf(-1)), code: check.ExitFail, says: "row 10, column 2: -Inf"},
		{name: "a megabyte behind the data", data: numpyFile(1, "<f8", false, "(64, 4)", append(f8, make([]byte, 1<<20)...)), code: accepted, says: "1048576 bytes behind the data are ignored"},
		{name: "as many columns as rows", data: numpyFile(1, "<f2", false, "(1500, 1500)", make([]byte, 2*1500*1500)), code: check.ExitFail, says: "the basis spans the whole space"},
	}
	for i := range rows {
		rows[i].path = "f.npy"
	}
	return rows
}

// member is an entry of a zip archive. What is not 0 beside name and content is a false declaration.
type member struct {
	name    string
	content []byte
	deflate bool
	size    uint64 // of the content
	stored  uint64 // bytes in the archive
	crc     uint32 // added to the checksum
	flags   uint16
	method  uint16
}

// npzBytes returns a zip archive.
func npzBytes(members ...member) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range members {
		raw := m.content
		h := &zip.FileHeader{Name: m.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(m.content) + m.crc, UncompressedSize64: uint64(len(m.content)), Flags: m.flags}
		if m.deflate {
			var packed bytes.Buffer
			f, _ := flate.NewWriter(&packed, flate.BestCompression)
			f.Write(m.content)
			f.Close()
			raw, h.Method = packed.Bytes(), zip.Deflate
		}
		h.CompressedSize64 = uint64(len(raw))
		if m.size != 0 {
			h.UncompressedSize64 = m.size
		}
		if m.stored != 0 {
			h.CompressedSize64 = m.stored
		}
		if m.method != 0 {
			h.Method = m.method
		}
		f, err := w.CreateRaw(h)
		if err != nil {
			panic(err)
		}
		f.Write(raw)
	}
	w.Close()
	return b.Bytes()
}

// npzRows are files that end in .npz.
func npzRows() []hostile {
	basis := numpyFile(1, "<f8", false, "(64, 4)", format.Encode(nil, cosines(64, 4), format.F64))
	one := func(name string) []byte { return npzBytes(member{name: name, content: basis}) }
	bomb := numpyFile(1, "<f4", false, "(64, 4)", make([]byte, 16<<20))
	zeros := numpyFile(1, "<f4", false, "(4194304, 1)", make([]byte, 16<<20))
	many := make([]member, 10_001)
	for i := range many {
		many[i].name = fmt.Sprintf("%d.npy", i)
	}
	patch := func(b []byte, sig string, at int, v ...byte) []byte { // in the last record of that signature
		b = bytes.Clone(b)
		copy(b[bytes.LastIndex(b, []byte(sig))+at:], v)
		return b
	}
	healthy := one("Q.npy")
	rows := []hostile{
		// The twelve of formats.md, section 19.
		{name: "evil name", data: one("../evil.npy"), says: `path element ".."`},
		{name: "absolute name", data: one("/etc/evil.npy"), says: "name is absolute"},
		{name: "name twice", data: npzBytes(member{name: "Q.npy", content: basis}, member{name: "Q.npy", content: basis}), says: "is there twice"},
		{name: "name without .npy", data: one("Q.txt"), says: "does not end in .npy"},
		{name: "inflates beyond its header", data: npzBytes(member{name: "Q.npy", content: bomb, deflate: true, size: uint64(len(basis))/2 + 64}), says: "f.npz:Q"},
		{name: "above the budget", data: npzBytes(member{name: "Q.npy", content: zeros, deflate: true}), args: "--basis FILE --max-uncompressed 1MB", says: "--max-uncompressed raises it"},
		{name: "wrong CRC", data: npzBytes(member{name: "Q.npy", content: basis, crc: 1}), says: "CRC-32"},
		{name: "directory cut", data: healthy[:len(healthy)-30], says: "truncated zip archive"},
		{name: "zip64 sizes that lie", data: npzBytes(member{name: "Q.npy", content: basis, size: 1 << 40, stored: 1 << 40}), says: "1099511627776 bytes at byte 0 reach beyond"},
		{name: "encrypted", data: npzBytes(member{name: "Q.npy", content: basis, flags: 1}), says: "is encrypted"},
		{name: "10,001 entries", data: npzBytes(many...), says: "10001 entries, want at most 10000"},
		{name: "not a zip", data: []byte("not a zip archive"), says: "not a zip archive"},

		{name: "empty", data: nil, says: "is empty"},
		{name: "no members", data: npzBytes(), args: "--basis FILE", says: "holds no arrays"},
		{name: "a .npy file", data: basis, says: "is a .npy file"},
		{name: "pickle", data: []byte("\x80\x04\x95."), says: "refused: pickle"},
		{name: "checkpoint of PyTorch", data: one("archive/data.pkl"), says: "refused: pickle"},
		{name: "backslash", data: one(`..\evil.npy`), says: "has a backslash"},
		{name: "escape sequences in a name", data: one("\x1b[31m.npy"), says: "control character"},
		{name: "C1 control in a name", data: npzBytes(member{name: "\u009b31m.npy", content: basis, flags: 1 << 11}), says: "control character"},
		{name: "name of 2000 bytes", data: one(strings.Repeat("x", 2000) + ".npy"), says: "name of 2000 bytes"},
		{name: "compression method 12", data: npzBytes(member{name: "Q.npy", content: basis, method: 12}), says: "compression method 12"},
		{name: "garbage for deflate", data: npzBytes(member{name: "Q.npy", content: basis, method: zip.Deflate}), says: "compressed data"},
		{name: "declares 1 GB for 2 kB", data: npzBytes(member{name: "Q.npy", content: numpyFile(1, "<f4", false, "(250000000, 1)", make([]byte, 2048)), deflate: true, size: 128 + 1e9}), says: "cannot inflate"},
		{name: "member not .npy", data: npzBytes(member{name: "Q.npy", content: []byte("hello, world")}), says: "bad magic"},
		{name: "member of objects", data: npzBytes(member{name: "Q.npy", content: numpyFile(1, "|O", false, "(2,)", make([]byte, 16))}), says: "refused: pickle"},
		{name: "member one byte short", data: npzBytes(member{name: "Q.npy", content: basis[:len(basis)-1]}), says: "2047 bytes of data by the directory"},
		{name: "comment beyond the file", data: patch(healthy, "PK\x05\x06", 20, 9), says: "declares a comment of 9 bytes"},
		{name: "more entries than there are", data: patch(healthy, "PK\x05\x06", 8, 9, 0, 9, 0), says: "central directory ends inside entry"},
		{name: "directory beyond the file", data: patch(healthy, "PK\x05\x06", 12, 0xff, 0xff, 0xff, 0x7f), says: "central directory is declared as"},
		{name: "several disks", data: patch(healthy, "PK\x05\x06", 4, 1), says: "several disks"},
		{name: "local header of another name", data: bytes.Replace(healthy, []byte("Q.npy"), []byte("P.npy"), 1), says: "the name in the local header"},
		{name: "names that turn the line round", data: npzBytes(member{name: "a\u202eb.npy", content: basis, flags: 1 << 11}, member{name: "it's \"b\".npy", content: basis}), args: "--basis FILE", code: check.ExitUsage, says: "holds 2 arrays"},
		{name: "no member of the name", data: healthy, args: "--basis FILE:\u202eP", code: check.ExitUsage, says: "has no member"},
	}
	for i := range rows {
		rows[i].path = "f.npz"
	}
	return rows
}
