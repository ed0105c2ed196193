package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/terminal"
	"plumbline/internal/cases"
)

// What a person sees first fits terminals of 80 and 120 columns, whole: the demo, a finding, the list of checks, an explanation, the help of
// every command, an error.
func TestScreens(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/pad_in_denominator", filepath.Join(dir, "run")))
	commands := [][]string{{"demo", "--plot", ""}, {"dump", "run"}, {"dump", "run", "-v"}, {"list"}, {"explain", "AGG-PAD-DENOMINATOR"}, {"explain", "advantage/group"}, {"explain", "approx_kl"},
		{"profiles"}, {"profiles", "trl-grpo@1.16"}, {"version"}, {"help"}, {"faults", "--dump", "run"}, {"vram", "--model", "gpt-j-6b", "--int8", "--lora-r", "16", "--targets", "q_proj,v_proj", "--batch", "4", "--seq", "424", "--limit", "18GB"},
		{"vram", "--model", "gpt-j-6b", "--nf4", "--batch", "1", "--seq", "1"}} // an error of one line
	for _, c := range newRoot().Commands() {
		commands = append(commands, []string{c.Name(), "--help"})
	}
	for i, args := range commands {
		if i%cases.Every != 0 {
			continue
		}
		plain, errs, code := verify(t, dir, args...)
		for _, size := range [][2]int{{80, 24}, {120, 40}} {
			text, got := terminal.Run(t, binaryPath, dir, size[0], size[1], args...)
			require.Equal(t, code, got, "%v\n%s", args, text)
			require.Empty(t, terminal.Faults(text, plain+errs, size[0]), "%v on %d × %d", args, size[0], size[1])
			if args[0] == "demo" && len(args) > 1 && args[1] == "--plot" {
				for _, part := range strings.Split(text, "── ")[1:] {
					require.LessOrEqual(t, 1+strings.Count(strings.TrimRight(part, "\n"), "\n"), size[1], "a part of the demo is a screen: %s", part)
				}
			}
		}
	}
}

// The check of the screens sees what it is there for.
func TestScreensSeePlants(t *testing.T) {
	const plain = "a line of seven words fits here\n"
	require.Empty(t, terminal.Faults("a line of seven\nwords fits here\n", plain, 20))
	require.Empty(t, terminal.Faults("\x1b[31ma line of seven\x1b[0m\nwords fits here\n", plain, 15))
	require.Len(t, terminal.Faults(plain, plain, 20), 1, "too wide")
	require.NotEmpty(t, terminal.Faults("a line of seven…\n", plain, 20), "cut")
	require.NotEmpty(t, terminal.Faults("a line of seven\rwords fits here\n", plain, 40), "written over")
}
