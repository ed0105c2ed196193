package cluster

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/train"
)

// patient is a worker that waits for so long, and what it says.
func patient(t *testing.T, address string, wait time.Duration) (said []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a worker that waits for ever fails by this
	defer cancel()
	w := Worker{URL: address, Wait: wait, Open: func(Spec) (train.Policy, train.Tokenizer, error) {
		p, text := tiny(t)
		return p, text, nil
	}, Say: func(format string, _ ...any) { said = append(said, format) }}
	return said, w.Work(ctx)
}

// A worker that starts after the end of a run ends and says why: at once where the cluster is still there, else when it has waited.
func TestWorkerAfterTheEnd(t *testing.T) {
	t.Parallel()
	p, text := tiny(t)
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	dir := t.TempDir()
	open := func() *Coordinator {
		c, err := Open(context.Background(), Config{URL: srv.ClientURL(), Dir: dir, Policy: p, Text: text, Model: json.RawMessage(`{}`), Check: 50 * time.Millisecond})
		require.NoError(t, err)
		return c
	}
	c := open()
	there := hire(t, c, nil)
	sampled(t, c.Policy(), text, 0)
	require.NoError(t, c.Close(true))
	require.NoError(t, <-there)
	said, err := patient(t, srv.ClientURL(), time.Minute)
	require.NoError(t, err)
	require.Contains(t, said, "the run has ended")

	// A run that goes on has not ended.
	c = open()
	require.NoError(t, c.handOver(context.Background()))
	require.NoError(t, c.fill(context.Background(), true))
	hire(t, c, nil)
	sampled(t, c.Policy(), text, 4)

	// Its coordinator dies: the cluster answers, and nobody else.
	require.NoError(t, c.Close(false))
	_, err = patient(t, srv.ClientURL(), 300*time.Millisecond)
	var gone *GoneError
	require.ErrorAs(t, err, &gone)

	c = coordinate(t, t.TempDir(), p, text)
	address := c.Address()
	require.NoError(t, c.Close(true))
	_, err = patient(t, address, 300*time.Millisecond)
	require.ErrorAs(t, err, &gone)
	require.ErrorContains(t, err, "no coordinator at "+address)
}

// Of the policies only the blob of the present one stays; a run that goes on with older masters has theirs again.
func TestPolicyBlobsAreDropped(t *testing.T) {
	p, text := tiny(t)
	dir := t.TempDir()
	blobs := func() (list []string) {
		found, err := os.ReadDir(filepath.Join(dir, "blobs"))
		require.NoError(t, err)
		for _, f := range found {
			list = append(list, f.Name())
		}
		return list
	}
	c := coordinate(t, dir, p, text)
	hire(t, c, nil)
	var checkpoint []float64
	var policies []string
	for step := range 3 {
		move(p, uint64(step))
		if step == 1 {
			checkpoint = append(checkpoint, p.Params()[0].Data...)
		}
		sampled(t, c.Policy(), text, 4*step)
		policies = append(policies, c.entry.SHA256)
		require.Contains(t, blobs(), policies[step])
		require.Len(t, blobs(), 4*(step+1)+1)
	}
	require.NoError(t, c.Close(false))

	other, _ := tiny(t)
	move(other, 0)
	move(other, 1)
	require.Equal(t, checkpoint, other.Params()[0].Data)
	// A stranger's folder names a file that is no blob.
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o644))
	log, err := os.OpenFile(filepath.Join(dir, "policies.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = log.WriteString(`{"policy":"../outside","version":3}` + "\n")
	require.NoError(t, err)
	require.NoError(t, log.Close())
	c = coordinate(t, dir, other, text)
	defer c.Close(false)
	hire(t, c, nil)
	want, _ := sampled(t, other, text, 12)
	got, _ := sampled(t, c.Policy(), text, 12)
	require.Equal(t, want, got)
	require.Equal(t, policies[1], c.entry.SHA256)
	require.Contains(t, blobs(), policies[1])
	require.NotContains(t, blobs(), policies[2])
	require.FileExists(t, outside)
}
