package npy

import (
	"archive/zip"
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// readAll reads every element of a in blocks, without keeping them.
func readAll(t *testing.T, a *format.Array) {
	var dst [512]float64
	for at := 0; at < a.Len(); at += len(dst) {
		require.NoError(t, a.ReadFloat64(dst[:min(len(dst), a.Len()-at)], at))
	}
}

// requireSound demands what every accepted array keeps: it can be read and written, and what is written reads the same.
func requireSound(t *testing.T, a *format.Array) (raw []byte) {
	var one, two bytes.Buffer
	require.NoError(t, WriteArray(&one, a))
	b, err := parse(bytes.NewReader(one.Bytes()), int64(one.Len()), "x.npy", Options{AssumeBF16: true})
	require.NoError(t, err)
	require.Equal(t, a.DType, b.DType)
	require.True(t, slices.Equal(a.Shape, b.Shape))
	require.NoError(t, WriteArray(&two, b))
	require.True(t, bytes.Equal(one.Bytes(), two.Bytes()))
	want, err := a.Float64s()
	require.NoError(t, err)
	got, err := b.Float64s()
	require.NoError(t, err)
	requireSame(t, want, got)
	return one.Bytes()[b.Offset:]
}

// addShort adds a seed unless it is long: a case that needs its length is a test, mutants of it are slow and find nothing.
func addShort(f *testing.F, file []byte, flag bool) {
	if len(file) <= 4096 {
		f.Add(file, flag)
	}
}

func FuzzNPY(f *testing.F) {
	for _, c := range refusedFiles {
		addShort(f, c.file, false)
	}
	for d, descr := range kindSize {
		s := sample{d, []int{2, 3}, make([]byte, 6*d.Size())}
		for version := range byte(3) {
			f.Add(style{version: version + 1, columns: version == 1, order: "<", keys: []int{0, 1, 2}, quote: "'", align: 64}.encode(s), descr == "V2")
		}
		f.Add(style{version: 1, big: true, order: ">", keys: []int{2, 0, 1}, quote: `"`, space: " \n", suffix: "L", align: 1}.encode(s), false)
	}
	f.Fuzz(func(t *testing.T, file []byte, bf16 bool) {
		before := allocated()
		a, err := parse(bytes.NewReader(file), int64(len(file)), "x.npy", Options{AssumeBF16: bf16})
		if err == nil {
			readAll(t, a)
		}
		require.LessOrEqual(t, allocated()-before, bound(len(file)))
		if err != nil {
			require.True(t, isRefusal(err), "%v", err)
			return
		}
		require.LessOrEqual(t, a.Offset+a.Bytes(), int64(len(file)))
		requireSound(t, a)
	})
}

// FuzzNPZ reads file as an archive or, if wrap is set, as the one member of an archive, so that the fuzzer need not
// find a checksum to get at the member.
func FuzzNPZ(f *testing.F) {
	for _, c := range refusedArchives() {
		addShort(f, c.file, false)
	}
	for _, c := range refusedFiles {
		addShort(f, c.file, true)
	}
	f.Add(counted(3), true)
	f.Add(zipFile(zipEnd{}, zipEntry{name: "a.npy", content: counted(3), deflate: true}, zipEntry{name: "b.npy", content: counted(1)}), false)
	f.Add(zipFile(zipEnd{zip64: true, comment: "c"}, zipEntry{name: "a.npy", content: counted(3), deflate: true, zip64: true, descriptor: true}), false)
	f.Fuzz(func(t *testing.T, file []byte, wrap bool) {
		if wrap {
			file = zipFile(zipEnd{}, zipEntry{name: "s.npy", content: file}, zipEntry{name: "d.npy", content: file, deflate: true})
		}
		const budget = 1 << 20
		arrays := map[string]*format.Array{}
		before := allocated()
		a, err := parseArchive(bytes.NewReader(file), int64(len(file)), "x.npz", Options{AssumeBF16: true, MaxUncompressed: budget})
		if err != nil {
			require.True(t, isRefusal(err), "%v", err)
			require.LessOrEqual(t, allocated()-before, bound(len(file)))
			return
		}
		for _, name := range a.Names() {
			arr, err := a.Array(name)
			if err != nil {
				require.True(t, isRefusal(err), "%v", err)
				continue
			}
			arrays[name] = arr
			readAll(t, arr)
		}
		require.LessOrEqual(t, allocated()-before, bound(len(file))+budget)

		// Another reader sees the same members with the same bytes.
		z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
		require.Len(t, z.File, len(a.Names()))
		var members []Member
		for i, zf := range z.File {
			require.Equal(t, zf.Name, a.Names()[i]+".npy")
			arr := arrays[a.Names()[i]]
			if arr == nil {
				continue
			}
			raw := requireSound(t, arr)
			members = append(members, Member{Name: a.Names()[i], DType: arr.DType, Shape: arr.Shape, Raw: raw})

			r, err := zf.Open()
			require.NoError(t, err)
			want, err := io.ReadAll(r)
			require.NoError(t, err)
			got := make([]byte, arr.Bytes())
			_, err = arr.Data.ReadAt(got, arr.Offset)
			require.True(t, err == nil || err == io.EOF)
			require.True(t, bytes.HasSuffix(want, got))
		}
		var b bytes.Buffer
		require.NoError(t, WriteArchive(&b, members))
		again, err := parseArchive(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.npz", Options{AssumeBF16: true})
		require.NoError(t, err)
		for _, m := range members {
			arr, err := again.Array(m.Name)
			require.NoError(t, err)
			require.Equal(t, m.Raw, requireSound(t, arr))
		}
	})
}
