package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onTerminal runs the built program on a pseudoterminal of so many columns and rows and returns what it wrote there, with plain line ends.
func onTerminal(t *testing.T, dir string, columns, rows int, args ...string) (text string, code int) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer master.Close()
	unlock := 0
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, unlock))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}))
	cmd := exec.Command(binaryPath, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, slave, slave, slave
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "COLUMNS" && name != "NO_COLOR" && name != "FORCE_COLOR" && name != "CLICOLOR_FORCE" && !strings.HasPrefix(name, "LC_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "LANG=C.UTF-8")
	require.NoError(t, cmd.Start())
	slave.Close()
	var all bytes.Buffer
	for part := make([]byte, 1<<16); ; {
		n, err := master.Read(part)
		all.Write(part[:n])
		if err != nil { // EIO: nobody has the other side open
			require.True(t, n == 0 && errors.Is(err, syscall.EIO), err)
			break
		}
	}
	_ = cmd.Wait()
	return strings.ReplaceAll(all.String(), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// erased is how a line of progress gives way to the next.
const erased = "\r\x1b[K"

var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// screenFaults says what is wrong with a text on a terminal: a line that is wider than it, a cursor that is moved, words of the text without a
// terminal that are not there, in whatever order.
func screenFaults(text, plain string, columns int) (faults []string) {
	var kept []string
	for _, line := range strings.Split(colour.ReplaceAllString(text, ""), "\n") {
		states := strings.Split(line, erased) // of a line of progress, the last of which stays
		for _, state := range states[:len(states)-1] {
			if n := utf8.RuneCountInString(state); n > columns {
				faults = append(faults, fmt.Sprintf("%d columns of progress: %q", n, state))
			}
		}
		line = states[len(states)-1]
		kept = append(kept, line)
		if n := utf8.RuneCountInString(line); n > columns {
			faults = append(faults, fmt.Sprintf("%d columns: %q", n, line))
		}
		if strings.ContainsAny(line, "\x1b\r\t") {
			faults = append(faults, fmt.Sprintf("a control character: %q", line))
		}
	}
	letters := map[rune]int{} // of words, without the frames of tables and the digits of times
	count := func(s string, by int) {
		for _, r := range s {
			if unicode.IsLetter(r) {
				letters[r] += by
			}
		}
	}
	count(colour.ReplaceAllString(plain, ""), 1)
	count(strings.Join(kept, "\n"), -1)
	for r, n := range letters {
		if n > 0 {
			faults = append(faults, fmt.Sprintf("%d letters %q of the text are not on the screen", n, r))
		}
	}
	return faults
}

// What a person sees first fits terminals of 80 and 120 columns, whole: the demo, a finding, the list of checks, an explanation, the help of
// every command.
func TestScreens(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/pad_in_denominator", filepath.Join(dir, "run")))
	commands := [][]string{{"demo", "--plot", ""}, {"dump", "run"}, {"dump", "run", "-v"}, {"list"}, {"explain", "AGG-PAD-DENOMINATOR"}, {"explain", "advantage/group"}, {"explain", "approx_kl"},
		{"profiles"}, {"profiles", "trl-grpo@1.16"}, {"version"}, {"help"}, {"faults", "--dump", "run"}, {"vram", "--model", "gpt-j-6b", "--int8", "--lora-r", "16", "--targets", "q_proj,v_proj", "--batch", "4", "--seq", "424", "--limit", "18GB"}}
	for _, c := range newRoot().Commands() {
		commands = append(commands, []string{c.Name(), "--help"})
	}
	for _, args := range commands {
		plain, errs, code := verify(t, dir, args...)
		for _, size := range [][2]int{{80, 24}, {120, 40}} {
			text, got := onTerminal(t, dir, size[0], size[1], args...)
			require.Equal(t, code, got, "%v\n%s", args, text)
			require.Empty(t, screenFaults(text, plain+errs, size[0]), "%v on %d × %d", args, size[0], size[1])
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
	require.Empty(t, screenFaults("a line of seven\nwords fits here\n", plain, 20))
	require.Empty(t, screenFaults("\x1b[31ma line of seven\x1b[0m\nwords fits here\n", plain, 15))
	require.Len(t, screenFaults(plain, plain, 20), 1, "too wide")
	require.NotEmpty(t, screenFaults("a line of seven…\n", plain, 20), "cut")
	require.NotEmpty(t, screenFaults("a line of seven\rwords fits here\n", plain, 40), "written over")
}
