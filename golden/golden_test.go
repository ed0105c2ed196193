package golden

import (
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestManifests(t *testing.T) {
	here := os.DirFS(".")
	seen := 0
	for _, folder := range folders(t, here) {
		m, err := Load(here, folder)
		require.NoError(t, err)
		require.FileExists(t, "../"+m.Producer)
		require.NotEmpty(t, m.Versions)
		require.NotZero(t, m.Seed)
		require.NotEmpty(t, m.SHA256)
		seen++
	}
	require.Greater(t, seen, 10)
	for _, folder := range folders(t, Data) {
		if folder == "tokenizer" { // of which a part is embedded
			for _, name := range []string{"manifest.json", "strings.json", "smollm2.json.gz"} {
				ours, err := Data.ReadFile("tokenizer/" + name)
				require.NoError(t, err)
				theirs, err := os.ReadFile("tokenizer/" + name)
				require.NoError(t, err)
				require.Equal(t, theirs, ours)
			}
			continue
		}
		_, err := Load(Data, folder)
		require.NoError(t, err, "the embedded files are those of the repository")
	}
}

// folders returns the folders of goldens: those of the first level, and each model.
func folders(t *testing.T, fsys fs.FS) []string {
	t.Helper()
	var list []string
	top, err := fs.ReadDir(fsys, ".")
	require.NoError(t, err)
	for _, f := range top {
		switch {
		case !f.IsDir() || f.Name() == "gen":
		case f.Name() != "models":
			list = append(list, f.Name())
		default:
			models, err := fs.ReadDir(fsys, "models")
			require.NoError(t, err)
			for _, m := range models {
				if m.IsDir() {
					list = append(list, "models/"+m.Name())
				}
			}
		}
	}
	return list
}

// The dumps of the demo are copies of real runs, which its manifest names.
func TestDemoIsACopy(t *testing.T) {
	m, err := Load(Data, "demo")
	require.NoError(t, err)
	var origin map[string]string
	require.NoError(t, json.Unmarshal(m.Values, &origin))
	for name := range m.SHA256 {
		folder, file := path.Split(name)
		ours, err := Data.ReadFile("demo/" + name)
		require.NoError(t, err)
		theirs, err := os.ReadFile("../verify/dump/testdata/trl/" + origin[path.Clean(folder)] + "/" + file)
		require.NoError(t, err)
		require.Equal(t, theirs, ours, name)
	}
}

// A changed, a missing and an unlisted file are each found.
func TestManifestFails(t *testing.T) {
	const sum = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae" // of "foo"
	folder := func() fstest.MapFS {
		return fstest.MapFS{
			"x/manifest.json": {Data: []byte(`{"sha256": {"a": "` + sum + `"}}`)},
			"x/a":             {Data: []byte("foo")},
		}
	}
	_, err := Load(folder(), "x")
	require.NoError(t, err)
	changed := folder()
	changed["x/a"] = &fstest.MapFile{Data: []byte("fop")}
	_, err = Load(changed, "x")
	require.ErrorContains(t, err, "sha256")
	missing := folder()
	delete(missing, "x/a")
	_, err = Load(missing, "x")
	require.ErrorContains(t, err, "0 files")
	extra := folder()
	extra["x/b"] = &fstest.MapFile{Data: []byte("foo")}
	_, err = Load(extra, "x")
	require.Error(t, err)
	_, err = Load(folder(), "y")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
