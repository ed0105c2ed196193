package golden

import (
	"encoding/json"
	"io/fs"
	"maps"
	"slices"
	"strings"
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
		if s == models || s == texts {
			continue
		}
		text, err := data.Data.ReadFile(partOf(f, s.name) + ".json")
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
		if name == models.name || name == texts.name {
			t.Skip("has no file of its own")
		}
		tensors, err := data.Data.ReadFile(partOf(t, name) + ".safetensors")
		require.NoError(t, err)
		folder := fstest.MapFS{name + ".json": {Data: text}, name + ".safetensors": {Data: tensors}}
		if err := judgeMap(folder); err != nil && !format.IsMalformed(err) {
			t.Fatalf("%v", err)
		}
	})
}

// judgeMap reads and judges a folder in memory.
func judgeMap(folder fstest.MapFS) error {
	s, err := openMap(folder)
	if err == nil {
		_, err = Suite.Run(s, check.Selection{})
	}
	return err
}

// modelMap returns the files of an embedded model.
func modelMap(t testing.TB, name string) fstest.MapFS {
	folder := fstest.MapFS{}
	require.NoError(t, fs.WalkDir(data.Data, "models/"+name, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := data.Data.ReadFile(file)
		folder[strings.TrimPrefix(file, "models/")] = &fstest.MapFile{Data: content}
		return err
	}))
	return folder
}

// FuzzModel reads and judges a model of which one file was changed.
func FuzzModel(f *testing.F) {
	folder := modelMap(f, "gpt2")
	names := slices.Sorted(maps.Keys(folder))
	for i, name := range names {
		f.Add(uint8(i), folder[name].Data)
	}
	f.Fuzz(func(t *testing.T, which uint8, content []byte) {
		changed := maps.Clone(folder)
		changed[names[int(which)%len(names)]] = &fstest.MapFile{Data: content}
		s, err := openMap(changed)
		if err == nil {
			s.Pattern = "models/*/float64" // the others run the model eight times more
			_, err = Models.Run(s)
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
