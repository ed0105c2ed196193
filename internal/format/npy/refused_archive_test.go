package npy

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// counted returns n float64 0, 1, 2 … as a .npy file.
func counted(n int) []byte {
	data := make([]float64, n)
	for i := range data {
		data[i] = float64(i)
	}
	var b bytes.Buffer
	if err := Write(&b, format.F64, []int{n}, data); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func entry1(e zipEntry) []byte {
	if e.name == "" {
		e.name = "a.npy"
	}
	if e.content == nil {
		e.content = counted(3)
	}
	return zipFile(zipEnd{}, e)
}

// twoAtOnePlace declares the entry b with the offset and name of a.
func twoAtOnePlace() []byte {
	c := counted(1)
	return zipFile(zipEnd{}, zipEntry{name: "a.npy", content: c}, zipEntry{name: "b.npy", content: c, offset: -(30 + len("a.npy") + len(c))})
}

func many(n int) []zipEntry {
	entries := make([]zipEntry, n)
	for i := range entries {
		entries[i] = zipEntry{name: fmt.Sprintf("%d.npy", i), content: counted(0)}
	}
	return entries
}

// zeros is 4 MiB of 0 in 4 KiB.
var zeros = f8("524288", 4<<20)

type refusedArchive struct {
	name     string
	file     []byte
	opt      Options
	fragment string
}

// refusedArchives has a case for every rule of an archive. Two of them are large.
var refusedArchives = sync.OnceValue(func() []refusedArchive {
	return []refusedArchive{
		{"empty file", nil, Options{}, "is empty, want a zip archive"},
		{"not a zip", []byte("name,value\n1,2\n"), Options{}, "not a zip archive: no end record"},
		{"not a zip, large", bytes.Repeat([]byte("PK\x05"), 1<<17), Options{}, "not a zip archive"},
		{"a .npy file", counted(3), Options{}, "is a .npy file, want a zip archive"},
		{"a pickle", []byte("\x80\x02}q\x00."), Options{}, "refused: pickle"},
		{"one byte", []byte("P"), Options{}, "not a zip archive"},
		{"end record cut", entry1(zipEntry{})[:187+51+10], Options{}, "truncated zip archive"},
		{"truncated in the data", entry1(zipEntry{})[:100], Options{}, "truncated zip archive"},

		{"name ../evil", entry1(zipEntry{name: "../evil.npy"}), Options{}, `entry "../evil.npy": name has the path element ".."`},
		{"name a/../b", entry1(zipEntry{name: "a/../b.npy"}), Options{}, `path element ".."`},
		{"name ..", entry1(zipEntry{name: "...npy"}), Options{}, `path element ".."`},
		{"name absolute", entry1(zipEntry{name: "/etc/a.npy"}), Options{}, `entry "/etc/a.npy": name is absolute`},
		{"name absolute on Windows", entry1(zipEntry{name: "c:/a.npy"}), Options{}, `name is absolute`},
		{"name with backslash", entry1(zipEntry{name: `..\evil.npy`}), Options{}, `name has a backslash`},
		{"name with newline", entry1(zipEntry{name: "a\nb.npy"}), Options{}, `entry "a\nb.npy": name has a control character`},
		{"name with NUL", entry1(zipEntry{name: "a.npy\x00.npy"}), Options{}, `name has a control character`},
		{"name with C1 control", entry1(zipEntry{name: "a\u009b.npy"}), Options{}, `name has a control character`},
		{"name not UTF-8", entry1(zipEntry{name: "\xff.npy", flags: 1 << 11}), Options{}, `name is not UTF-8`},
		{"name not marked UTF-8", bytes.ReplaceAll(entry1(zipEntry{name: "ab.npy"}), []byte("ab.npy"), []byte("é.npy")), Options{}, `name is not UTF-8`},
		{"name empty", entry1(zipEntry{name: ".npy"}), Options{}, `entry ".npy": name is empty`},
		{"no name", entry1(zipEntry{name: " "}), Options{}, `name does not end in .npy`},
		{"name too long", entry1(zipEntry{name: strings.Repeat("x", 1025) + ".npy"}), Options{}, `name of 1025 bytes, want at most 1024`},
		{"entry without .npy", entry1(zipEntry{name: "a.txt"}), Options{}, `entry "a.txt": name does not end in .npy`},
		{"a PyTorch checkpoint", entry1(zipEntry{name: "archive/data.pkl"}), Options{}, `entry "archive/data.pkl": refused: pickle`},
		{"entry with .NPY", entry1(zipEntry{name: "a.NPY"}), Options{}, `name does not end in .npy`},
		{"folder", entry1(zipEntry{name: "a/"}), Options{}, `name does not end in .npy`},
		{"duplicate names", zipFile(zipEnd{}, zipEntry{name: "a.npy", content: counted(1)}, zipEntry{name: "a.npy", content: counted(2)}), Options{},
			`entry "a.npy": is there twice`},
		{"encrypted", entry1(zipEntry{flags: 1}), Options{}, `entry "a.npy": is encrypted`},
		{"strongly encrypted", entry1(zipEntry{flags: 1 << 6}), Options{}, `entry "a.npy": is encrypted`},
		{"encrypted by the local header alone", func() []byte { b := entry1(zipEntry{}); b[6] |= 1; return b }(), Options{}, `is encrypted`},
		{"bad second name", zipFile(zipEnd{}, zipEntry{name: "a.npy", content: counted(1)}, zipEntry{name: "../b.npy", content: counted(2)}), Options{}, `entry "../b.npy"`},
		{"10,001 entries", zipFile(zipEnd{}, many(10_001)...), Options{}, "10001 entries, want at most 10000"},
		{"10,001 entries, 1 declared", zipFile(zipEnd{count: -10_000}, many(10_001)...), Options{}, "central directory goes on behind its 1 entries"},
		{"65,536 entries by zip64", zipFile(zipEnd{zip64: true, count: 65_535}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "65536 entries, want at most 10000"},
		{"more entries declared", zipFile(zipEnd{count: 1}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "central directory ends inside entry 2 of 2"},
		{"no entries declared", zipFile(zipEnd{count: -1}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "goes on behind its 0 entries"},
		{"central directory cut", func() []byte {
			b := entry1(zipEntry{})
			return append(b[:len(b)-22-20:len(b)-22-20], b[len(b)-22:]...)
		}(), Options{}, "central directory is declared as 51 bytes"},
		{"central directory cut, size adjusted", func() []byte {
			b := zipFile(zipEnd{size: -20}, zipEntry{name: "a.npy", content: counted(1)})
			return append(b[:len(b)-22-20:len(b)-22-20], b[len(b)-22:]...)
		}(), Options{}, "central directory ends inside entry 1 of 1"},
		{"central directory of 4 GiB", zipFile(zipEnd{size: 1<<32 - 100}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "central directory is declared as 4294967247 bytes"},
		{"bytes before the archive", append([]byte("#!/bin/sh\n"), entry1(zipEntry{})...), Options{}, "want it to end at byte"},
		{"bytes behind the archive", append(entry1(zipEntry{}), 0), Options{}, "declares a comment of 0 bytes, 1 follow it"},
		{"two archives", append(entry1(zipEntry{}), entry1(zipEntry{name: "b.npy"})...), Options{}, "want it to end at byte"},
		{"comment with an end record", zipFile(zipEnd{comment: "PK\x05\x06" + strings.Repeat("\x00", 18)}), Options{}, "declared as 0 bytes at byte 0, want it to end at byte 22"},
		{"several disks", zipFile(zipEnd{mutate: func(end []byte) { end[4] = 1 }}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "several disks"},
		{"several disks, entries elsewhere", zipFile(zipEnd{mutate: func(end []byte) { end[10] = 2 }}, zipEntry{name: "a.npy", content: counted(1)}), Options{}, "several disks"},
		{"entry on another disk", func() []byte {
			b := entry1(zipEntry{})
			b[187+34] = 1
			return b
		}(), Options{}, `entry "a.npy": lies on disk 1`},
		{"bad signature in the directory", bytes.ReplaceAll(entry1(zipEntry{}), []byte("PK\x01\x02"), []byte("PK\x01\x03")), Options{}, "central directory entry 1: found"},
		{"zip64 end record elsewhere", func() []byte {
			b := zipFile(zipEnd{zip64: true}, zipEntry{name: "a.npy", content: counted(1)})
			b[len(b)-22-12]++
			return b
		}(), Options{}, "zip64 end record is declared at byte"},
		{"zip64 end record at 2^63", func() []byte {
			b := zipFile(zipEnd{zip64: true}, zipEntry{name: "a.npy", content: counted(1)})
			b[len(b)-22-5] = 0x80
			return b
		}(), Options{}, "zip64 end record is declared at byte 9223372036854776"},
		{"zip64 end record of another size", bytes.ReplaceAll(zipFile(zipEnd{zip64: true}), []byte("PK\x06\x06\x2c"), []byte("PK\x06\x06\x2d")), Options{}, "no zip64 end record of 56 bytes"},
		{"zip64 end record that disagrees", zipFile(zipEnd{zip64: true, mutate: func(end []byte) { end[8], end[9], end[10], end[11] = 2, 0, 2, 0 }},
			zipEntry{name: "a.npy", content: counted(1)}), Options{}, "zip64 end record says [0 1 1"},

		{"zip64 size that lies", entry1(zipEntry{zip64: true, size: 1 << 40}), Options{}, "directory declares 1099511627776 bytes, of which 152 are stored"},
		{"zip64 size that lies, deflated", entry1(zipEntry{deflate: true, zip64: true, size: 1 << 40}), Options{}, "1099511627648 bytes of data by the directory of the archive, want 24"},
		{"zip64 stored size that lies", entry1(zipEntry{zip64: true, csize: 1 << 40}), Options{}, "1099511627776 bytes at byte 0 reach beyond byte 187"},
		{"zip64 size of 2^63", entry1(zipEntry{zip64: true, size: 1 << 63}), Options{}, "zip64 field has 9223372036854775808"},
		{"zip64 stored size of 2^64-1", entry1(zipEntry{zip64: true, csize: 1<<64 - 1}), Options{}, "zip64 field has 18446744073709551615"},
		{"zip64 stored size of 2^63-1", entry1(zipEntry{zip64: true, csize: 1<<63 - 1}), Options{}, "9223372036854775807 bytes at byte 0 reach beyond"},
		{"zip64 offset beyond the file", entry1(zipEntry{zip64: true, offset: 1 << 40}), Options{}, "152 bytes at byte 1099511627776 reach beyond"},
		{"zip64 offset of 2^63-1, no room for a local header", entry1(zipEntry{name: "longer.npy", localName: "a.npy", content: []byte{}, zip64: true, offset: 1<<63 - 1}),
			Options{}, "0 bytes at byte 9223372036854775807 reach beyond byte 35"},
		{"zip64 directory of a size and offset that wrap around", func() []byte {
			b := zipFile(zipEnd{zip64: true})
			copy(b[40:], "\x64\x00\x00\x00\x00\x00\x00\x00\x9c\xff\xff\xff\xff\xff\xff\xff") // 100 bytes at byte -100
			return b
		}(), Options{}, "declared as 100 bytes at byte 18446744073709551516, want it to end at byte 0"},
		{"zip64 field missing", entry1(zipEntry{size: 1<<32 - 1}), Options{}, "there is no zip64 field"},
		{"zip64 field too short", entry1(zipEntry{csize: 1<<32 - 1, extra: "\x01\x00\x04\x00\x00\x00\x00\x00"}), Options{}, "zip64 field is too short"},
		{"extra field cut", entry1(zipEntry{extra: "\x01\x00\x08\x00\x00\x00"}), Options{}, "extra field of 8 bytes, 2 are left"},

		{"offset beyond the file", entry1(zipEntry{offset: 1000}), Options{}, `entry "a.npy": 152 bytes at byte 1000 reach beyond byte 187`},
		{"stored bytes reach into the directory", entry1(zipEntry{csize: 153}), Options{}, "153 bytes at byte 0 reach beyond byte 187"},
		{"local name longer, data reach into the directory", entry1(zipEntry{localName: "aa.npy"}), Options{}, "name in the local header"},
		{"two entries at one place", twoAtOnePlace(), Options{}, "reach beyond byte 0, where the next entry or the directory begins"},
		{"no local header", entry1(zipEntry{localSig: "PK\x03\x05"}), Options{}, `no local header: found "PK\x03\x05"`},
		{"another name in the local header", entry1(zipEntry{localName: "b.npy"}), Options{}, `name in the local header is not that in the directory, "a.npy"`},
		{"another method in the local header", func() []byte { b := entry1(zipEntry{}); b[8] = 8; return b }(), Options{}, "compression method 8, in the directory 0"},
		{"local extra field beyond the directory", func() []byte { b := entry1(zipEntry{}); b[28] = 1; return b }(), Options{}, "152 bytes reach beyond byte 187"},

		{"method LZMA", entry1(zipEntry{method: 14}), Options{}, "compression method 14, want 0 (stored) or 8 (deflate)"},
		{"wrong CRC", entry1(zipEntry{crcXor: 1}), Options{}, "CRC-32 is "},
		{"wrong CRC, deflated", entry1(zipEntry{crcXor: 1 << 31, deflate: true}), Options{}, "CRC-32 is "},
		{"CRC of 0", func() []byte {
			b := entry1(zipEntry{})
			at := bytes.LastIndex(b, []byte("PK\x01\x02")) + 16
			copy(b[at:at+4], make([]byte, 4))
			return b
		}(), Options{}, "want 00000000"},
		{"stored data changed", func() []byte { b := entry1(zipEntry{}); b[186] ^= 1; return b }(), Options{}, "CRC-32 is "},
		{"empty member", entry1(zipEntry{content: []byte{}, raw: []byte{}}), Options{}, "is empty, want a .npy file"},
		{"member not .npy", entry1(zipEntry{content: []byte("hello, world")}), Options{}, "bad magic"},
		{"member not .npy, deflated", entry1(zipEntry{content: []byte("hello, world"), deflate: true}), Options{}, "bad magic"},
		{"member with trailing bytes", entry1(zipEntry{content: append(counted(3), 0)}), Options{}, "25 bytes of data by the directory of the archive, want 24"},
		{"member with trailing bytes, deflated", entry1(zipEntry{content: append(counted(3), 0), deflate: true}), Options{}, "25 bytes of data by the directory of the archive, want 24"},
		{"member cut", entry1(zipEntry{content: counted(3)[:151]}), Options{}, "23 bytes of data by the directory of the archive, want 24"},
		{"member an object array", entry1(zipEntry{content: npy1("'|O'", "False", "(1,)", 0x80, 4)}), Options{}, "refused: pickle"},

		{"bomb: inflates beyond its header", entry1(zipEntry{content: zeros, raw: deflateBytes(append(zeros, zeros...)), deflate: true}), Options{},
			"inflates beyond the 4194"},
		{"bomb: the directory knows, the header does not", entry1(zipEntry{content: append(counted(3), make([]byte, 4<<20)...), deflate: true}), Options{},
			"4194328 bytes of data by the directory of the archive, want 24"},
		{"bomb: header and directory lie alike", entry1(zipEntry{content: f8("134217728", 100), size: 1<<30 + 76, deflate: true}), Options{},
			"cannot inflate to 1073741900, at most to 1032 times as much"},
		{"over the budget", entry1(zipEntry{content: zeros, deflate: true}), Options{MaxUncompressed: 4 << 20}, "--max-uncompressed"},
		{"over the budget by default", func() []byte {
			head := f8("134217728", 0)
			return entry1(zipEntry{content: head, raw: append(deflateBytes(head), make([]byte, 2<<20)...), size: 1<<30 + uint64(len(head)), deflate: true})
		}(), Options{}, "over what is left of the budget for decompressed members, 1073741824 of 1073741824 bytes"},
		{"over the budget together", zipFile(zipEnd{}, zipEntry{name: "a.npy", content: zeros, deflate: true}, zipEntry{name: "b.npy", content: zeros, deflate: true}),
			Options{MaxUncompressed: 5 << 20}, ":b: inflates to 4194"},
		{"compressed data end early", entry1(zipEntry{content: counted(300), raw: deflateBytes(counted(300)[:1000]), deflate: true}), Options{}, "compressed data end before"},
		{"compressed data end inside the header", entry1(zipEntry{raw: deflateBytes(counted(3)[:20]), deflate: true}), Options{}, "compressed data end before"},
		{"compressed data cut", entry1(zipEntry{raw: deflateBytes(counted(3))[:40], deflate: true}), Options{}, "compressed data end before"},
		{"compressed data corrupt", entry1(zipEntry{raw: bytes.Repeat([]byte{0xff}, 60), deflate: true}), Options{}, "compressed data: corrupt input"},
		{"bytes behind the compressed data", entry1(zipEntry{raw: append(deflateBytes(counted(3)), 0), deflate: true}), Options{}, "1 bytes behind the end of the compressed data"},
	}
})

func TestRefusedArchives(t *testing.T) {
	for _, c := range refusedArchives() {
		t.Run(c.name, func(t *testing.T) {
			path := writeTemp(t, "x.npz", c.file)
			before := allocated()
			a, err := OpenArchive(path, c.opt)
			if err == nil {
				defer a.Close()
				for _, name := range a.Names() {
					if _, err = a.Array(name); err != nil {
						break
					}
				}
			}
			after := allocated()
			requireRefused(t, err, path, c.fragment)
			budget := int64(0)
			if c.opt.MaxUncompressed != 0 || strings.HasPrefix(c.fragment, "inflates beyond") {
				budget = 5 << 20
			}
			require.LessOrEqual(t, after-before, 4*int64(len(c.file))+1<<20+budget, "allocated for a file of %d bytes", len(c.file))
		})
	}
}
