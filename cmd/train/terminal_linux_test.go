package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/terminal"
)

// The help of every command, with the keys of its configuration, and the list of configurations fit terminals of 80 and 120 columns, whole.
func TestScreens(t *testing.T) {
	commands := [][]string{{"--help"}, {"--list-configs"}, {"ppo", "--config", "config_right", "--help"}, {"grpo", "--config", "grpo_causal", "--help"}}
	for _, c := range newRoot().Commands() {
		commands = append(commands, []string{c.Name(), "--help"})
	}
	for _, args := range commands {
		plain, errs, code := program(t, args...)
		for _, size := range [][2]int{{80, 24}, {120, 40}} {
			text, got := terminal.Run(t, binaryPath, t.TempDir(), size[0], size[1], args...)
			require.Equal(t, code, got, "%v\n%s", args, text)
			require.Empty(t, terminal.Faults(text, plain+errs, size[0]), "%v on %d × %d", args, size[0], size[1])
		}
	}
}
