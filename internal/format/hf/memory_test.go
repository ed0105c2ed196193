package hf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A folder of as many tensors as fit costs a small multiple of its files, with an index and without.
func TestFolderMemory(t *testing.T) {
	const n = 200_000
	var header, index bytes.Buffer
	for i := range n {
		fmt.Fprintf(&header, `,"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		fmt.Fprintf(&index, `,"%x":"a.safetensors"`, i)
	}
	header.WriteByte('}')
	header.Bytes()[0] = '{'
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(header.Len())), header.Bytes()...)
	for _, sharded := range []bool{false, true} {
		dir, size := t.TempDir(), len(file)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(llamaConfig), 0o644))
		name := "model.safetensors"
		if sharded {
			name = "a.safetensors"
			text := `{"weight_map":{` + index.String()[1:] + "}}"
			size += len(text)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(text), 0o644))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), file, 0o644))
		var f *Folder
		var err error
		got := allocated(func() { f, err = Open(dir) })
		require.NoError(t, err)
		require.NoError(t, f.Close())
		t.Logf("%.1f times %d bytes", float64(got)/float64(size), size)
		require.LessOrEqual(t, got, budget(size))
	}
}
