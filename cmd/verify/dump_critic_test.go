package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCriticBesideTheActor judges the folder that the hooks of verl and OpenRLHF fill: a critic with a bug beside an actor without one
// is no clean run.
func TestCriticBesideTheActor(t *testing.T) {
	of := func(t *testing.T, actor, critic string) string {
		dir := t.TempDir()
		for at, from := range map[string]string{"run-1": actor, "critic/run-2": critic} {
			if from == "" {
				continue
			}
			to := filepath.Join(dir, at)
			require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
			require.NoError(t, os.CopyFS(to, os.DirFS(filepath.Join("../../golden/dumps/verl", from))))
		}
		return dir
	}
	for _, c := range []struct {
		actor, critic string
		exit          int
		says          string
	}{
		{"clean/ppo", "clean/ppo", 0, "critic: run-2"},
		{"clean/ppo", "faulty/value_loss_no_half", 1, "critic: value_loss"},
		{"faulty/value_loss_no_half", "clean/ppo", 1, "VALUE-NO-HALF"},
		{"clean/ppo", "", 0, "agree with verl"},
	} {
		dir := of(t, c.actor, c.critic)
		out, errs, code := verify(t, "", "dump", dir)
		require.Equal(t, c.exit, code, "%+v: %s%s", c, out, errs)
		require.Contains(t, out, c.says)
	}
	out, _, code := verify(t, "", "dump", filepath.Join(of(t, "clean/ppo", "faulty/value_loss_no_half"), "run-1"))
	require.Zero(t, code, "one run that is named is judged alone: %s", out)

	dir := of(t, "clean/ppo", "")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "critic", "notes"), 0o755))
	_, errs, code := verify(t, "", "dump", dir)
	require.Zero(t, code, "a folder without dumps is no critic: %s", errs)

	dir = of(t, "faulty/value_loss_no_half", "clean/ppo")
	broken := filepath.Join(dir, "critic", "run-2", "zz.safetensors")
	require.NoError(t, os.WriteFile(broken, []byte("no header"), 0o644))
	out, errs, code = verify(t, "", "dump", dir)
	require.Equal(t, 4, code, "%s%s", out, errs)
	require.Contains(t, out, "VALUE-NO-HALF", "a critic that cannot be read does not hide what the actor has")
	require.Contains(t, out, broken)

	dir = of(t, "clean/ppo", "faulty/value_loss_no_half")
	var parts []string
	for _, part := range []string{"0/2", "1/2"} {
		to := filepath.Join(t.TempDir(), "part.json")
		out, errs, code = verify(t, "", "dump", dir, "--shard", part, "-o", to)
		require.Zero(t, code, "%s%s", out, errs)
		parts = append(parts, to)
	}
	out, errs, code = verify(t, "", append([]string{"merge"}, parts...)...)
	require.Equal(t, 1, code, "%s%s", out, errs)
	require.Contains(t, out, "critic: value_loss")
}
