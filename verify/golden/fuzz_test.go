package golden

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	data "plumbline/golden"
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// FuzzSection reads and judges a section's JSON file beside the tensors that belong to it: whatever it holds, there is a
// result or an error about the file.
func FuzzSection(f *testing.F) {
	for i, s := range sections {
		text, err := data.Data.ReadFile("rl/" + s.name + ".json")
		require.NoError(f, err)
		var file map[string]any
		require.NoError(f, json.Unmarshal(text, &file))
		entries := file["entries"].([]any)
		for _, k := range []int{0, len(entries) / 2, len(entries) - 1} {
			e := entries[k].(map[string]any)
			for _, key := range []string{"numpy_check", "textbook_check", "note", "how", "seed"} {
				delete(e, key)
			}
			small, err := json.Marshal(map[string]any{"section": s.name, "file": s.name + ".safetensors", "entries": []any{e}})
			require.NoError(f, err)
			f.Add(uint8(i), small)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		name := sections[int(which)%len(sections)].name
		tensors, err := data.Data.ReadFile("rl/" + name + ".safetensors")
		require.NoError(t, err)
		folder := fstest.MapFS{name + ".json": {Data: text}, name + ".safetensors": {Data: tensors}}
		s, err := load(context.Background(), "", folder, func(name string) (io.ReadCloser, int64, error) {
			content := folder[name].Data
			return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
		})
		if err == nil {
			_, err = Suite.Run(s, check.Selection{})
		}
		if err != nil && !format.IsMalformed(err) {
			t.Fatalf("%v", err)
		}
	})
}

// FuzzManifest reads a manifest of either layout.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"a": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}`), true)
	f.Add([]byte(`{"seed": 1, "sha256": {"a": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}}`), false)
	f.Fuzz(func(t *testing.T, text []byte, bare bool) {
		base := "manifest.json"
		if bare {
			base = "MANIFEST.json"
		}
		m, err := readManifest(base, base, text)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		for name, sum := range m.SHA256 {
			require.Len(t, sum, 64, name)
		}
	})
}
