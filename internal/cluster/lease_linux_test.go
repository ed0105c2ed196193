package cluster

import (
	"context"
	"encoding/json"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A coordinator whose machine is gone, which NATS does not know yet, is not taken for dead: the next one says who has the run, and why it
// is not sure.
func TestCoordinatorSilent(t *testing.T) {
	t.Parallel()
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	dirs := copied(t, 2)
	first := start(t, "coordinator", []string{"CLUSTER_URL=" + srv.ClientURL(), "CLUSTER_DIR=" + dirs[0], "CLUSTER_OUT=" + filepath.Join(dirs[0], "out"), "CLUSTER_STEPS=1"})
	first.says(t, "ready at")
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	p, text := tiny(t)
	_, err = Open(context.Background(), Config{URL: srv.ClientURL(), Dir: dirs[1], Policy: p, Text: text, Model: json.RawMessage(`{}`)})
	var running *RunningError
	require.ErrorAs(t, err, &running)
	require.Contains(t, running.Who, "which does not answer")
	first.kill()
	c, err := Open(context.Background(), Config{URL: srv.ClientURL(), Dir: dirs[1], Policy: p, Text: text, Model: json.RawMessage(`{}`)})
	require.NoError(t, err)
	require.NoError(t, c.Close(false))
}
