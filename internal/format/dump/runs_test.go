package dump

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of a folder that has folders of runs only, the newest run is read; a folder that has dumps of its own beside them is refused, and
// so are two runs that are named together.
func TestRunFolders(t *testing.T) {
	dir := t.TempDir()
	file := func(name, run string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(join(dir, name)), 0o777))
		put(t, join(dir, name), `{"schema":1,"step":`+run[len(run)-1:]+`,"run":"`+run+`"}`, mask("response_mask", "1"))
	}
	file("run-20260101-000000-aaaa/a.safetensors", "run-1")
	file("run-20260102-000000-aaaa/a.safetensors", "run-2")
	require.NoError(t, os.MkdirAll(join(dir, "run-20260103-000000-aaaa"), 0o777)) // a run that dumped nothing
	require.NoError(t, os.MkdirAll(join(dir, "critic"), 0o777))
	r, err := Open(context.Background(), []string{dir})
	require.NoError(t, err)
	require.Equal(t, "run-2", r.Common().Run)
	require.Len(t, r.Files(), 1)
	_, err = Open(context.Background(), []string{join(dir, "run-20260101-000000-aaaa"), join(dir, "run-20260102-000000-aaaa")})
	require.ErrorContains(t, err, "files of two runs")
	file("old.safetensors", "run-3")
	_, err = Open(context.Background(), []string{dir})
	require.ErrorContains(t, err, "holds dumps of its own and 2 folders of runs")
}
